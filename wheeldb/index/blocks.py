"""Blocks: untouched tasks of one event, side by side in one row of the index.

A call about a thousand tasks costs per row.  So what nothing has happened to since it
was scheduled goes in by the block: consecutive numbers, their values in columns, one
row for all of them, and short enough to share a page of the tree with another:

    body   [far_ms, {field: value}, {field: [value, …]}]      one msgpack array

The first map is what all tasks have alike, the second what differs; a task's own body
is a map of both, without what is nil for it.  One whose columns are all nil is gone: it
has ended, or was changed and has a row of its own.  Under the key 9:

    [4_194_304, {3: "valve.close"}, {4: [b"7", nil, b"8"], 6: [900, nil, 70], 2: [nil,
     nil, "x"]}]

    task 9    {3: "valve.close", 4: b"7", 6: 900}
    task 10   gone
    task 11   {3: "valve.close", 4: b"8", 6: 70, 2: "x"}

The first column has a value for every task that is there.  `far_ms` tells how the due
times are rounded in the due fields (`keys.block_field`).  What a field means is not
known here.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgpack

from wheeldb.errors import FormatError
from wheeldb.index.keys import (
    number_key,
    number_key_part,
    pack_envelope,
    row_crc,
    unpack_row,
)
from wheeldb.unpacking import unpack_whole

__all__ = ("BLOCK_BYTES_MAX", "BLOCK_TASKS_MAX", "BLOCK_TASKS_MIN", "Block")

BLOCK_TASKS_MAX = 64
# Fewer tasks of one event are rows of their own.
BLOCK_TASKS_MIN = 8
# With key and envelope, two blocks fill a page of LMDB; a value of more than half a
# page would get a whole number of pages for itself.
BLOCK_BYTES_MAX = 1_984

_Columns: TypeAlias = dict[int, list[object]]


class Block:
    """The tasks of one block; position ``i`` has the number ``first + i``."""

    __slots__ = ("columns", "crc", "end", "far_ms", "first", "shared")

    def __init__(
        self, first: int, far_ms: int, shared: dict[int, object], columns: _Columns
    ) -> None:
        self.first = first
        self.far_ms = far_ms
        self.shared = shared
        self.columns = columns
        # The number behind its last one.
        self.end = first + len(next(iter(columns.values())))
        # That of its row as it was read, or packed, last.
        self.crc = 0

    @classmethod
    def from_body(cls, first: int, body: bytes) -> "Block | None":
        """Return the block that `body` holds, ``None`` if that is no block."""
        try:
            # Bounded: a snapshot may have anything in a body's place.
            found: Any = unpack_whole(body)
            far_ms, shared, columns = found
            is_block = (
                type(far_ms) is int
                and type(shared) is dict
                and {type(column) for column in columns.values()} == {list}
                and len({len(column) for column in columns.values()}) == 1
            )
        except (AttributeError, FormatError, TypeError, ValueError):
            return None
        return cls(first, far_ms, shared, columns) if is_block else None

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "Block | None":
        """Return the block in a row of the block table, ``None`` if it is damaged."""
        row = unpack_row(key, value)
        if row is None or len(key) != 8:
            return None
        block = cls.from_body(number_key_part(key), row[2])
        if block is not None:
            block.crc = row[1]
        return block

    def pack(self) -> bytes:
        """Return its body."""
        # `packb` takes three times as long to say the same.
        body: bytes = msgpack.Packer().pack([self.far_ms, self.shared, self.columns])
        return body

    def row(self, body: bytes) -> tuple[bytes, bytes]:
        """Return key and value of its row, given its body."""
        key = number_key(self.first)
        self.crc = row_crc(key, self.first, body)
        return key, pack_envelope(self.first, self.crc) + body

    def holds(self, number: int) -> bool:
        """Return whether a task is in it."""
        if not self.first <= number < self.end:
            return False
        return next(iter(self.columns.values()))[number - self.first] is not None

    def numbers(self) -> list[int]:
        """Return the numbers of the tasks that are in it."""
        kept = next(iter(self.columns.values()))
        return [
            number for number, value in enumerate(kept, self.first) if value is not None
        ]

    def fields(self, number: int) -> dict[int, object]:
        """Return the fields of a task that is in it."""
        position = number - self.first
        fields = self.shared.copy()
        for field, column in self.columns.items():
            value = column[position]
            if value is not None:
                fields[field] = value
        return fields

    def bodies(self, after: int = -1) -> Iterator[tuple[int, bytes]]:
        """Yield number and body of each of its tasks above a number, in order."""
        pack = msgpack.Packer().pack
        for number in self.numbers():
            if number > after:
                yield number, pack(self.fields(number))

    def body(self, number: int) -> bytes:
        """Return the body of a task that is in it."""
        body: bytes = msgpack.Packer().pack(self.fields(number))
        return body

    def drop(self, number: int) -> None:
        """Let a task be gone."""
        position = number - self.first
        for column in self.columns.values():
            column[position] = None
