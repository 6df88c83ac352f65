"""`wheeldb stat DIR`: the store's numbers, once.

The store is opened read-only, so they are those of what is on disk. What only a
running process has counted (its syncs, its lateness) or holds in memory is left out: it
would be zero here, whatever the owner is doing.
"""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_read
from wheeldb.cli.output import print_fields, print_json

__all__ = ("FIELDS", "configure", "run")

FIELDS = (
    "pending",
    "pending_count",
    "payload_bytes",
    "finished_count",
    "last_lsn",
    "durable_lsn",
    "checkpoint_lsn",
    "log_segments",
    "index_bytes",
    "index_rows",
    "clock_trust",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the statistics."""
    with open_to_read(arguments.directory) as db:
        statistics = db.statistics()
    fields = {name: getattr(statistics, name) for name in FIELDS}
    if arguments.json:
        print_json(fields)
    else:
        print_fields(fields)
    return ExitStatus.FINE
