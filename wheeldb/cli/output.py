"""What people and programs read: tables, and JSON by the line.

Data goes to stdout, talk to stderr. With `--json` every record is one line of JSON, so
that a long answer can be read while it comes. Instants are ISO 8601 in UTC, states are
words, durations seconds. Bytes are `{"$bytes": base64}`, and the numbers that JSON has
no word for are `{"$float": "nan"}`; consumers should ignore fields they don't know.

In a table, characters that could steer a terminal are shown as escapes: an id comes
from anywhere.
"""

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import islice
from pathlib import PurePath

__all__ = (
    "plain",
    "print_fields",
    "print_json",
    "print_table",
    "say",
    "shown",
)

TABLE_ROWS_TOGETHER = 1_000


def say(text: str) -> None:
    """Print a line of talk to stderr."""
    print(text, file=sys.stderr, flush=True)


def plain(value: object) -> object:
    """Return a value as JSON can hold it; what has fields becomes an object."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    fields = _fields_of(value)
    if fields is not None:
        return {name: plain(item) for name, item in fields.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return repr(value)


def _fields_of(value: object) -> dict[str, object] | None:
    """Return the fields of a dataclass, named tuple or mapping, ``None`` for others."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: dict[str, object] = value._asdict()
        return fields
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return None


def print_json(value: object) -> None:
    """Print one record as one line of JSON."""
    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def shown(value: object) -> str:
    """Return a value as one cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    simple = plain(value)
    if isinstance(value, datetime):
        text = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    elif isinstance(value, float):
        text = f"{value:.3f}"
    elif isinstance(simple, str):
        text = simple
    else:
        text = json.dumps(simple, ensure_ascii=False, allow_nan=False)
    return "".join(
        character if character.isprintable() else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    # A lone surrogate comes from a file name that isn't UTF-8.
    return character.encode("unicode_escape").decode("ascii")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Print rows under their columns; return how many there were.

    A long table is aligned a thousand rows at a time, so that it starts at once and
    never stands in memory as a whole.
    """
    widths = [len(column) for column in columns]
    iterator = iter(rows)
    count = 0
    while True:
        cells = [
            [shown(value) for value in row]
            for row in islice(iterator, TABLE_ROWS_TOGETHER)
        ]
        for row in cells:
            widths = [
                max(width, len(cell)) for width, cell in zip(widths, row, strict=True)
            ]
        if count == 0:
            _print_row([column.upper() for column in columns], widths)
        for row in cells:
            _print_row(row, widths)
        count += len(cells)
        if len(cells) < TABLE_ROWS_TOGETHER:
            return count


def _print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    print("  ".join(padded).rstrip())


def print_fields(value: object, indent: str = "") -> None:
    """Print what has fields, one a line, nested ones indented; others as they are."""
    fields = _fields_of(value)
    if fields is None:
        print(f"{indent}{shown(value)}")
        return
    width = max((len(name) for name in fields), default=0)
    for name, item in fields.items():
        if _fields_of(item):
            print(f"{indent}{name}")
            print_fields(item, indent + "  ")
        else:
            print(f"{indent}{name.ljust(width)}  {shown(item)}")
