"""`wheeldb restore BACKUP DEST`: make a store from a backup; DEST must not exist yet.

The restored store numbers on from far above the backup's last number, so that it never
hands out a fence that the original may have handed out since.
"""

import argparse

import wheeldb
from wheeldb.cli.opening import ExitStatus, usage_errors
from wheeldb.cli.output import print_json, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("backup", metavar="BACKUP", help="what `backup` has written")
    parser.add_argument(
        "target", metavar="DEST", help="a directory that does not exist"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Restore the backup."""
    with usage_errors():
        wheeldb.restore(arguments.backup, arguments.target)
    if arguments.json:
        print_json({"restored": arguments.target})
    else:
        say(f"{arguments.target} is restored from {arguments.backup}")
    return ExitStatus.FINE
