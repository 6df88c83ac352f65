"""`wheeldb snapshot DIR`: write a snapshot and print its path.

Correctness never needs one; it makes the log behind it superfluous.
"""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write
from wheeldb.cli.output import print_json, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Write the snapshot."""
    with open_to_write(arguments.directory) as db:
        path = db.snapshot()
    if arguments.json:
        print_json({"path": path})
    else:
        print(shown(path))
    return ExitStatus.FINE
