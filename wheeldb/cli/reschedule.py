"""`wheeldb reschedule DIR ID --delay 15m | --at INSTANT`: another due time."""

import argparse

from wheeldb.cli.arguments import add_directory, add_due, log_position
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("id", metavar="ID", help="the task")
    add_due(parser)
    parser.add_argument(
        "--expect-lsn",
        type=log_position,
        metavar="LSN",
        help="refuse if it changed since",
    )
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Move the task and print its new due time."""
    with open_to_write(arguments.directory) as db, usage_errors():
        if arguments.at is not None:
            receipt = db.reschedule(
                arguments.id, at=arguments.at, expect_lsn=arguments.expect_lsn
            )
        else:
            receipt = db.reschedule(
                arguments.id, delay=arguments.delay, expect_lsn=arguments.expect_lsn
            )
    if arguments.json:
        print_json(receipt)
    else:
        print(shown(receipt.due_at))
    return ExitStatus.FINE
