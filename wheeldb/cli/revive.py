"""`wheeldb revive DIR ID | --queue Q --name N --tag T`: dead tasks get another chance.

Prints what came back to life. Without an id every dead task that matches is taken.
"""

import argparse

from wheeldb.cli.arguments import UsageError, add_directory
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("id", metavar="ID", nargs="?", help="one task, or all of:")
    parser.add_argument("--queue", help="those of this queue")
    parser.add_argument("--name", help="those of this name")
    parser.add_argument("--tag", metavar="WORD", help="those with this tag")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Revive what is named."""
    has_filter = any((arguments.queue, arguments.name, arguments.tag))
    if (arguments.id is None) != has_filter:
        raise UsageError(
            "wheeldb revive: give either one ID, or --queue, --name or --tag"
        )
    with open_to_write(arguments.directory) as db, usage_errors():
        if arguments.id is not None:
            revived: object = db.revive(arguments.id)
        else:
            revived = db.revive(
                queue=arguments.queue, name=arguments.name, tag=arguments.tag
            )
    if arguments.json:
        print_json({"revived": revived})
    else:
        print(shown(revived))
    return ExitStatus.FINE
