"""`wheeldb replay DIR`: fold the log again and report what comes out.

    wheeldb replay broken.wheeldb                              # only reports
    wheeldb replay broken.wheeldb --to new.wheeldb             # a new store
    wheeldb replay broken.wheeldb --to new.wheeldb --salvage   # goes on past damage

The old directory is never written to. What is folded lies beside NEWDIR or, without
`--to`, in TMPDIR or /var/tmp until it is done. `--until` stops behind an LSN or an
instant. Exit 1 says that something was dropped; the report says precisely what.
"""

import argparse
from datetime import datetime

import wheeldb
from wheeldb.cli.arguments import add_directory, instant, log_position
from wheeldb.cli.opening import ExitStatus, take_owner, usage_errors
from wheeldb.cli.output import print_fields, print_json

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("--to", metavar="NEWDIR", help="write a new store there")
    parser.add_argument(
        "--until", type=_lsn_or_instant, metavar="LSN|TIME", help="stop behind this"
    )
    parser.add_argument("--salvage", action="store_true", help="go on past damage")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Replay and print the report."""
    if arguments.to is not None:
        take_owner(arguments.directory)
    with usage_errors():
        report = wheeldb.replay(
            arguments.directory,
            to=arguments.to,
            until=arguments.until,
            salvage=arguments.salvage,
        )
    if arguments.json:
        print_json(report)
    else:
        print_fields(report)
    return ExitStatus.FINDINGS if report.dropped else ExitStatus.FINE


def _lsn_or_instant(text: str) -> int | datetime:
    return log_position(text) if text.isdigit() else instant(text)
