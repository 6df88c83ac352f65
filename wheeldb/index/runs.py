"""Runs: the due entries of many tasks in one row of the index.

The tasks that one checkpoint brings in blocks and that share lane and due field have
one row for all of their due times, up to 128 of them, instead of one each:

    key     lane(4) ‖ due field(8) ‖ first number(8)
    value   entries, by number, each  number - first(4) ‖ exact due - due field(4)
            ‖ crc32(4) of key and entries

    (16, 8_192, 9) ‖ entries 0 11, 3 5      task 9 is due at 8,203, task 12 at 8,197

The key stays when the first entry goes.  What comes later has higher numbers, for it is
there since it was scheduled: within a lane and due field one run ends before the next
begins.  So the runs' entries in key order are in order of due field and number, like
the rows of the due table, and the one that may know a number is the last that begins at
or below it.

A due time that shares its field with fewer than two others is a row of the due table.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import sub
from struct import Struct
from zlib import crc32

from wheeldb.index.keys import (
    COARSE_MS,
    NEAR_MS,
    due_key,
    due_key_parts,
    pack_due_value,
    row_crc,
    row_digest,
)

__all__ = (
    "RUN_ENTRIES_MAX",
    "RUN_ENTRIES_MIN",
    "DueGroups",
    "DueRows",
    "Run",
)

RUN_ENTRIES_MAX = 128
RUN_ENTRIES_MIN = 3

_HALF = 32
_HALF_MASK = 2**_HALF - 1
_SUM_MAX = 2**63
_CRC = Struct(">I")
_ENTRY_BYTES = 8
_KEY_BYTES = 20


@lru_cache(maxsize=RUN_ENTRIES_MAX)
def _packer(count: int) -> Struct:
    return Struct(f">{count}Q")


class Run:
    """A run that was read."""

    __slots__ = ("_entries", "crc", "field", "first", "key")

    def __init__(self, key: bytes, crc: int, entries: Sequence[int]) -> None:
        self.key = key
        # The numbers in its key.
        _, self.field, self.first = due_key_parts(key)
        # What its value ends with.
        self.crc = crc
        self._entries = entries

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "Run | None":
        """Return the run in a row of its table, ``None`` if it is damaged."""
        count, rest = divmod(len(value) - _CRC.size, _ENTRY_BYTES)
        if len(key) != _KEY_BYTES or count < 1 or rest:
            return None
        packed = value[: -_CRC.size]
        crc: int = _CRC.unpack_from(value, len(packed))[0]
        if crc != crc32(packed, crc32(key)):
            return None
        run = cls(key, crc, _packer(count).unpack(packed))
        # What its entries add must still be a number of 64 bits.
        return run if max(run.field, run.first) < _SUM_MAX else None

    def entries(self) -> list[tuple[int, int]]:
        """Return number and exact due time of each task, by number."""
        first, field = self.first, self.field
        return [
            (first + (entry >> _HALF), field + (entry & _HALF_MASK))
            for entry in self._entries
        ]

    def numbers(self) -> list[int]:
        """Return the numbers of its tasks, in order."""
        first = self.first
        return [first + (entry >> _HALF) for entry in self._entries]

    def without(self, numbers: Container[int]) -> tuple[bytes, int] | None:
        """Return its value and CRC without some tasks, ``None`` if that leaves none."""
        first = self.first
        kept = [
            entry for entry in self._entries if first + (entry >> _HALF) not in numbers
        ]
        return _pack(self.key, kept) if kept else None


def _pack(key: bytes, entries: Sequence[int]) -> tuple[bytes, int]:
    """Return the value of a run, and the CRC in it."""
    packed = _packer(len(entries)).pack(*entries)
    crc = crc32(packed, crc32(key))
    return packed + _CRC.pack(crc), crc


class DueGroups:
    """Collects the due times of tasks in blocks, and makes runs of them.

    Assumes that within each lane numbers come in order, and higher ones than in any run
    that the index has.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, defaultdict[int, list[int]]] = {}

    def add(self, lane: int, far_ms: int, tasks: Iterable[tuple[int, int]]) -> None:
        """Add tasks of one lane.

        Args:
            lane: The lane.
            far_ms: What the tasks' block says.
            tasks: Number and exact due time of each, by number.
        """
        fields = self._lanes.get(lane)
        if fields is None:
            fields = self._lanes[lane] = defaultdict(list)
        coarse, near = -COARSE_MS, -NEAR_MS
        for number, due_ms in tasks:
            # As `block_field`, whose call would double the time.
            field = due_ms & (coarse if due_ms >= far_ms else near)
            fields[field].append((number << _HALF) + due_ms - field)

    def rows(self) -> "DueRows":
        """Return the rows that come of it."""
        rows = DueRows()
        for lane, fields in self._lanes.items():
            for field, entries in fields.items():
                for start in range(0, len(entries), RUN_ENTRIES_MAX):
                    rows.add(lane, field, entries[start : start + RUN_ENTRIES_MAX])
        return rows


class DueRows:
    """Rows of the run and due tables, and the sums of their digests."""

    def __init__(self) -> None:
        self.runs: list[tuple[bytes, bytes]] = []
        self.runs_digest = 0
        self.singles: list[tuple[bytes, bytes]] = []
        self.singles_digest = 0

    def add(self, lane: int, field: int, entries: list[int]) -> None:
        """Add what shares lane and field: one run, or a few single rows."""
        first = entries[0] >> _HALF
        spread = (entries[-1] >> _HALF) - first
        if len(entries) < RUN_ENTRIES_MIN or spread > _HALF_MASK:
            for entry in entries:
                self._add_single(
                    lane, field, entry >> _HALF, field + (entry & _HALF_MASK)
                )
            return
        key = due_key(lane, field, first)
        value, crc = _pack(key, list(map(sub, entries, repeat(first << _HALF))))
        self.runs.append((key, value))
        self.runs_digest += row_digest(first, crc)

    def _add_single(self, lane: int, field: int, number: int, due_ms: int) -> None:
        key = due_key(lane, field, number)
        crc = row_crc(key, due_ms, b"")
        self.singles.append((key, pack_due_value(due_ms, crc)))
        self.singles_digest += row_digest(number, crc)
