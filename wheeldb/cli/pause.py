"""`wheeldb pause DIR ID | --queue Q`: hold a task or a queue back until `resume`."""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("id", metavar="ID", nargs="?", help="one task")
    what.add_argument("--queue", help="or all tasks of a queue")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Pause what is named."""
    with open_to_write(arguments.directory) as db, usage_errors():
        if arguments.id is not None:
            db.pause(id=arguments.id)
        else:
            db.pause(queue=arguments.queue)
    if arguments.json:
        print_json({"paused": arguments.id or arguments.queue})
    else:
        say(f"{arguments.id or 'queue ' + arguments.queue} is paused")
    return ExitStatus.FINE
