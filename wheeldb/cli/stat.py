"""`wheeldb stat DIR`: the store's numbers, once.

The store is opened read-only, so what belongs to a running process (its lateness, its
bytes written) is not in them; what is on disk is.
"""

import argparse

from wheeldb.cli.opening import ExitStatus, open_to_read
from wheeldb.cli.output import print_fields, print_json

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Print the statistics."""
    with open_to_read(arguments.directory) as db:
        statistics = db.statistics()
    if arguments.json:
        print_json(statistics)
    else:
        print_fields(statistics)
    return ExitStatus.FINE
