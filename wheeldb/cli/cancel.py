"""`wheeldb cancel DIR ID …`: cancel tasks; running ones won't be retried.

Prints one outcome per id: `cancelled` (also if it was before), `leased` (it runs now),
`finished`, `unknown`. An unknown id is exit 1.
"""

import argparse

import wheeldb
from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, print_table

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("ids", metavar="ID", nargs="+", help="the tasks")
    parser.add_argument("--json", action="store_true", help="one outcome a line")


def run(arguments: argparse.Namespace) -> int:
    """Cancel the tasks and print what was found."""
    outcomes: list[tuple[str, wheeldb.CancelOutcome]] = []
    with open_to_write(arguments.directory) as db:
        for id in arguments.ids:
            with usage_errors():
                outcomes.append((id, db.cancel(id)))
    if arguments.json:
        for id, outcome in outcomes:
            print_json({"id": id, "outcome": outcome})
    else:
        print_table(("id", "outcome"), outcomes)
    is_unknown = any(found == wheeldb.CancelOutcome.UNKNOWN for _, found in outcomes)
    return ExitStatus.FINDINGS if is_unknown else ExitStatus.FINE
