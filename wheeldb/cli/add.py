"""`wheeldb add DIR NAME [JSON]`: schedule one task.

    wheeldb add gateway.wheeldb valve.close '{"valve": 7}' --delay 15m --id valve-7

The id goes to stdout once the task is durable. An id that is taken by the same request
is fine, and said so; by another one it is refused (exit 1), unless `--if-exists` says
what to do. Without `--create` a missing store is an error: a mistyped path must not
start a new one; nor does a request that is refused.
"""

import argparse

import wheeldb
from wheeldb.cli.arguments import (
    add_directory,
    add_due,
    duration,
    header,
    json_value,
    priority,
)
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, say, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("name", metavar="NAME", help="what it asks for")
    parser.add_argument(
        "payload",
        metavar="JSON",
        nargs="?",
        type=json_value,
        help="the payload, null unless given",
    )
    add_due(parser)
    parser.add_argument("--id", help="your own id; generated unless given")
    parser.add_argument(
        "--version",
        type=int,
        metavar="NUMBER",
        help="a higher one replaces a lower one; 0 unless given",
    )
    parser.add_argument(
        "--if-exists",
        choices=("same", "keep", "replace"),
        help="for an id that is taken: refuse another request (unless given), keep "
        "what is there, or replace it",
    )
    parser.add_argument("--queue", help='"default" unless given')
    parser.add_argument(
        "--priority",
        type=priority,
        metavar="NUMBER",
        help="-128 (first) to 127; 0 unless given",
    )
    parser.add_argument(
        "--lease",
        type=duration,
        metavar="DURATION",
        help="how long one attempt may take; 30s unless given",
    )
    parser.add_argument(
        "--expires",
        type=duration,
        metavar="DURATION",
        help="useless so long after it was due",
    )
    parser.add_argument(
        "--tag", action="append", dest="tags", metavar="WORD", help="may be repeated"
    )
    parser.add_argument(
        "--header",
        action="append",
        type=header,
        metavar="NAME=VALUE",
        help="may be repeated",
    )
    parser.add_argument(
        "--at-most-once",
        action="store_true",
        help="never start it again, not even after an attempt that was cut short",
    )
    parser.add_argument(
        "--create", action="store_true", help="make DIR if it is missing"
    )
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Schedule the task and print its id."""
    if arguments.create:
        # In a store that leaves nothing behind, before one that would stay is made.
        with wheeldb.open(":memory:", driver=False) as trial:
            _schedule(trial, arguments)
    with open_to_write(arguments.directory, create=arguments.create) as db:
        receipt = _schedule(db, arguments)
    if arguments.json:
        print_json(receipt)
    else:
        print(shown(receipt.id))
    if receipt.created:
        say(f"due {shown(receipt.due_at)}")
    else:
        say(f"it was there already, {receipt.state}; nothing changed")
    return ExitStatus.FINE


def _schedule(db: wheeldb.WheelDB, arguments: argparse.Namespace) -> wheeldb.Receipt:
    with usage_errors():
        return db.schedule(arguments.name, arguments.payload, **_options(arguments))


def _options(arguments: argparse.Namespace) -> wheeldb.TaskOptions:
    # Only what was given: the store judges two requests by their arguments.
    options: wheeldb.TaskOptions = {}
    if arguments.delay is not None:
        options["delay"] = arguments.delay
    if arguments.at is not None:
        options["at"] = arguments.at
    if arguments.id is not None:
        options["id"] = arguments.id
    if arguments.version is not None:
        options["version"] = arguments.version
    if arguments.if_exists is not None:
        options["if_exists"] = arguments.if_exists
    if arguments.queue is not None:
        options["queue"] = arguments.queue
    if arguments.priority is not None:
        options["priority"] = arguments.priority
    if arguments.lease is not None:
        options["lease"] = arguments.lease
    if arguments.expires is not None:
        options["expires"] = arguments.expires
    if arguments.tags is not None:
        options["tags"] = tuple(arguments.tags)
    if arguments.header is not None:
        options["headers"] = dict(arguments.header)
    if arguments.at_most_once:
        options["at_most_once"] = True
    return options
