"""`wheeldb add DIR NAME [JSON]`: schedule one task.

    wheeldb add gateway.wheeldb valve.close '{"valve": 7}' --delay 15m --id valve-7

The id goes to stdout once the task is durable. An id that is taken by the same request
is fine, and said so; by another one it is refused (exit 1), unless `--if-exists` says
what to do. Without `--create` a missing store is an error: a mistyped path must not
start a new one.
"""

import argparse

import wheeldb
from wheeldb.cli.arguments import duration, header, instant, json_value, priority
from wheeldb.cli.opening import ExitStatus, open_to_write, usage_errors
from wheeldb.cli.output import print_json, say, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "payload", metavar="JSON", nargs="?", type=json_value, help="the payload"
    )
    due = parser.add_mutually_exclusive_group(required=True)
    due.add_argument("--delay", type=duration, help="elapsed time from now: 15m, 2h30m")
    due.add_argument("--at", type=instant, help="wall time: 2026-12-01T02:00:00+01:00")
    parser.add_argument("--id", help="your own id; generated unless given")
    parser.add_argument("--version", type=int, help="a higher one replaces a lower one")
    parser.add_argument("--if-exists", choices=("same", "keep", "replace"))
    parser.add_argument("--queue")
    parser.add_argument(
        "--priority", type=priority, help="lower goes first, 0 unless given"
    )
    parser.add_argument("--lease", type=duration, help="how long one attempt may take")
    parser.add_argument(
        "--expires", type=duration, help="useless so long after it was due"
    )
    parser.add_argument("--tag", action="append", dest="tags", metavar="WORD")
    parser.add_argument("--header", action="append", type=header, metavar="NAME=VALUE")
    parser.add_argument("--at-most-once", action="store_true")
    parser.add_argument(
        "--create", action="store_true", help="make DIR if it is missing"
    )
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Schedule the task and print its id."""
    options = _options(arguments)
    with (
        open_to_write(arguments.directory, create=arguments.create) as db,
        usage_errors(),
    ):
        receipt = db.schedule(arguments.name, arguments.payload, **options)
    if arguments.json:
        print_json(receipt)
    else:
        print(shown(receipt.id))
    if receipt.created:
        say(f"due {shown(receipt.due_at)}")
    else:
        say(f"it was there already, {receipt.state}; nothing changed")
    return ExitStatus.FINE


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
