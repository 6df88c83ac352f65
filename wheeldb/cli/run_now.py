"""`wheeldb run-now DIR ID`: make a task due at once.

It only changes the due time: whoever serves the queue runs the task.
"""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("id", metavar="ID", help="the task")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make the task due."""
    with open_to_write(arguments.directory) as db, usage_errors():
        receipt = db.run_now(arguments.id)
    if arguments.json:
        print_json(receipt)
    else:
        say(f"{arguments.id} is due now")
    return ExitStatus.FINE
