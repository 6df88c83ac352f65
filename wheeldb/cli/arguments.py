"""What people type, turned into values: durations, instants, JSON.

A duration is a number with its unit, or several from large to small: `15m`, `90s`,
`2h30m`, `500ms`, `1.5h`, `1d`. A bare number is refused, since nobody can tell whether
it means seconds. An instant is ISO 8601 with an offset: `2026-12-01T02:00:00+01:00`,
`2026-12-01T02:00Z`; one without an offset is refused, since it would mean another
instant on another machine.

Nothing here reads a clock or opens a store.
"""

import argparse
import json
import os
import re
from datetime import datetime, timedelta
from typing import NoReturn

from wheeldb.layout import judge_path

__all__ = (
    "Parser",
    "UsageError",
    "add_directory",
    "add_due",
    "duration",
    "header",
    "instant",
    "json_value",
    "log_position",
    "priority",
    "store_path",
)

# From large to small, the order in which they may follow each other.
UNITS_MS = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
PART = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|[wdhms])")
_DIGITS_MAX = 16
DURATION_MS_MAX = int(timedelta.max.total_seconds()) * 1_000


class UsageError(Exception):
    """Raised when the command line can't be understood; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, raised and not printed."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the first argument of nearly every verb: which store."""
    parser.add_argument(
        "directory", metavar="DIR", type=store_path, help="the store's directory"
    )


def add_due(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to say when a task is due; one of them is needed."""
    due = parser.add_mutually_exclusive_group(required=True)
    due.add_argument(
        "--delay",
        type=duration,
        metavar="DURATION",
        help="elapsed time from now: 15m, 2h30m",
    )
    due.add_argument(
        "--at",
        type=instant,
        metavar="INSTANT",
        help="wall time: 2026-12-01T02:00:00+01:00",
    )


def store_path(text: str) -> str:
    """Return the path of a directory in which stores can be.

    Raises:
        argparse.ArgumentTypeError: It is empty, or with what is above it not UTF-8.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    try:
        judge_path(os.path.abspath(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def duration(text: str) -> timedelta:
    """Return the duration that a text like `2h30m` names.

    Raises:
        argparse.ArgumentTypeError: It isn't one; the message says how to write it.
    """
    total_ms = 0.0
    position = 0
    unit_ms_before = float("inf")
    for part in PART.finditer(text):
        unit_ms = UNITS_MS[part["unit"]]
        if part.start() != position or unit_ms >= unit_ms_before:
            break
        total_ms += float(part["number"]) * unit_ms
        position = part.end()
        unit_ms_before = unit_ms
    if position != len(text) or not text:
        hint = f"; did you mean {text}s?" if text.isdigit() else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration like 15m, 90s, 2h30m or 500ms{hint}"
        )
    if total_ms > DURATION_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than time itself")
    return timedelta(milliseconds=total_ms)


def instant(text: str) -> datetime:
    """Return the instant that an ISO 8601 text with an offset names.

    Raises:
        argparse.ArgumentTypeError: It isn't one, or says no offset.
    """
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an instant like 2026-12-01T02:00:00+01:00"
        ) from None
    if value.utcoffset() is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} says no offset; write {text}Z for UTC, or {text}+01:00"
        )
    return value


def json_value(text: str) -> object:
    """Return the value that a JSON text describes.

    Raises:
        argparse.ArgumentTypeError: It isn't JSON; the message says where.
    """
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not JSON: {error.msg} at character {error.pos + 1} "
            "(a string needs its quotes: '\"text\"')"
        ) from None
    except RecursionError:
        raise argparse.ArgumentTypeError("the JSON is nested too deeply") from None
    return value


def header(text: str) -> tuple[str, str]:
    """Return the name and value of `NAME=VALUE`.

    Raises:
        argparse.ArgumentTypeError: There is no `=`, or nothing before it.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def log_position(text: str) -> int:
    """Return an LSN.

    Raises:
        argparse.ArgumentTypeError: It isn't a whole number from 0.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise argparse.ArgumentTypeError(
            f"{text!r:.40} is not a position of the log: a whole number from 0"
        )
    return int(text)


def priority(text: str) -> int:
    """Return a priority.

    Raises:
        argparse.ArgumentTypeError: It isn't a whole number from -128 to 127.
    """
    try:
        value = int(text)
    except ValueError:
        value = 1_000
    if not -128 <= value <= 127:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from -128 (first) to 127 (last)"
        )
    return value
