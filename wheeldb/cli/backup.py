"""`wheeldb backup DIR DEST`: copy a store; DEST must not exist yet."""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument(
        "target", metavar="DEST", help="a directory that does not exist"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Write the backup."""
    with open_to_write(arguments.directory) as db, usage_errors():
        db.backup(arguments.target)
    if arguments.json:
        print_json({"backup": arguments.target})
    else:
        say(f"{arguments.directory} is copied to {arguments.target}")
    return ExitStatus.FINE
