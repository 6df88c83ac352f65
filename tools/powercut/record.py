"""The record: what arrived at the disk, and what was acknowledged, in one order.

A file of entries, appended while a run lasts and read when it is over::

    | kind 1 | length u32 | offset u64 | length bytes |

    W   a write of `length` bytes at `offset`
    F   a flush: every W before it is on the disk
    L   a line of acknowledgement
    E   the command has ended; what follows is the unmounting
    X   the record's bound was reached: it is worth nothing

A line stands behind all that had arrived when it was written, since the recorder
empties the pipe before it takes the next write or flush. The bytes of writes stay in
the file; `Record` holds where they are.

    record = Record.load(path)
    record.entries[7]       Entry(kind="W", offset=4096, length=512, position=1130)
    record.flushes          [12, 31, …]      indexes of the F entries
"""

import os
import struct
from dataclasses import dataclass
from typing import Self

__all__ = ("END", "FLUSH", "LINE", "OVERFLOW", "WRITE", "Entry", "Record", "Writer")

WRITE, FLUSH, LINE, END, OVERFLOW = "W", "F", "L", "E", "X"
_HEAD = struct.Struct("<cIQ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `position` is where its bytes begin in the record's file."""

    kind: str
    offset: int
    length: int
    position: int


class Writer:
    """Appends entries to a new file, up to a bound.

    Args:
        path: The file; there must be none.
        bytes_max: Where the record ends.
    """

    def __init__(self, path: str, bytes_max: int) -> None:
        self._file = open(path, "xb")  # noqa: SIM115  # closed by close()
        self._left = bytes_max

    def append(self, kind: str, data: bytes = b"", offset: int = 0) -> bool:
        """Append an entry; return whether there was room."""
        size = _HEAD.size + len(data)
        if size > self._left:
            if self._left >= 0:
                self._file.write(_HEAD.pack(OVERFLOW.encode(), 0, 0))
            self._left = -1
            return False
        self._left -= size
        self._file.write(_HEAD.pack(kind.encode(), len(data), offset))
        self._file.write(data)
        return True

    def close(self) -> None:
        """Write out what is left."""
        self._file.close()


class Record:
    """A finished record.

    Attributes:
        entries: All of them, in order.
        flushes: The indexes of the flushes up to the command's end.
        end: The index of the command's end.
    """

    def __init__(self, descriptor: int, entries: list[Entry]) -> None:
        self._descriptor = descriptor
        self.entries = entries
        ends = [i for i, entry in enumerate(entries) if entry.kind == END]
        self.end = ends[0] if ends else len(entries)
        self.flushes = [
            i for i, entry in enumerate(entries[: self.end]) if entry.kind == FLUSH
        ]

    @classmethod
    def load(cls, path: str) -> Self:
        """Read the entries of a record.

        Raises:
            ValueError: The record is cut, or has reached its bound.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(descriptor).st_size
        entries: list[Entry] = []
        position = 0
        while position < size:
            head = os.pread(descriptor, _HEAD.size, position)
            if len(head) < _HEAD.size:
                raise ValueError(f"{path} is cut at byte {position}")
            kind, length, offset = _HEAD.unpack(head)
            position += _HEAD.size
            entries.append(Entry(kind.decode(), offset, length, position))
            position += length
        if any(entry.kind == OVERFLOW for entry in entries):
            raise ValueError(f"{path} has reached its bound; the run wrote too much")
        return cls(descriptor, entries)

    def data(self, entry: Entry) -> bytes:
        """Return the bytes of one entry."""
        return os.pread(self._descriptor, entry.length, entry.position)

    def lines(self, end: int) -> list[str]:
        """Return the acknowledgements before an index."""
        return [
            self.data(entry).decode()
            for entry in self.entries[:end]
            if entry.kind == LINE
        ]

    def pending(self, start: int, end: int) -> list[Entry]:
        """Return the writes between two indexes."""
        return [entry for entry in self.entries[start:end] if entry.kind == WRITE]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
