"""`wheeldb show DIR ID`: one task with its history, as far back as the log goes.

A generated id keeps nothing once it is finished; its history may still be in the log.
An id that neither the store nor the log knows is exit 1.
"""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_read, usage_errors
from wheeldb.cli.output import print_fields, print_json, print_table, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("id", metavar="ID", help="the task")
    parser.add_argument("--json", action="store_true", help='{"task": …, "history": …}')


def run(arguments: argparse.Namespace) -> int:
    """Print the task and its events."""
    with open_to_read(arguments.directory) as db:
        with usage_errors():
            task = db.get(arguments.id)
        history = db.history(arguments.id)
    if task is None and not history:
        say(f"wheeldb: {arguments.directory} knows no task {arguments.id!r}")
        return ExitStatus.FINDINGS
    if arguments.json:
        print_json({"task": task, "history": history})
        return ExitStatus.FINE
    if task is None:
        say("it is finished, and its id was a generated one: only the log has it")
    else:
        print_fields(task)
        print()
    print_table(
        ("lsn", "at", "kind", "by", "details"),
        (
            (event.lsn, event.at, event.kind, event.by, event.fields)
            for event in history
        ),
    )
    return ExitStatus.FINE
