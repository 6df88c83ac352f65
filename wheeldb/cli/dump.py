"""`wheeldb dump DIR`: the events of the log, one line of JSON each, oldest first.

    wheeldb dump gateway.wheeldb --task valve-7
    wheeldb dump gateway.wheeldb --from-lsn 1200 | grep '"kind": "leased"'

The log holds what the last two snapshots don't replace. Asked for an event that is
gone, it refuses and names the oldest one it has.
"""

import argparse

from wheeldb.cli.arguments import add_directory, log_position
from wheeldb.cli.opening import ExitStatus, open_to_read, usage_errors
from wheeldb.cli.output import print_json, say

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument(
        "--from-lsn",
        type=log_position,
        default=0,
        metavar="LSN",
        help="only events from this log position on",
    )
    parser.add_argument("--task", metavar="ID", help="only the events of this task")
    parser.add_argument("--json", action="store_true", help="always so")


def run(arguments: argparse.Namespace) -> int:
    """Print the events."""
    with open_to_read(arguments.directory) as db:
        if arguments.task is not None:
            with usage_errors():
                events = iter(db.history(arguments.task))
        else:
            events = db.events(max(arguments.from_lsn - 1, 0))
        count = 0
        for event in events:
            if event.lsn >= arguments.from_lsn:
                print_json(event)
                count += 1
    say(f"{count} events" if count != 1 else "1 event")
    return ExitStatus.FINE
