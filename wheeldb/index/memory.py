"""The index in memory: sorted keys and a dictionary for each table.

It serves stores at ``":memory:"`` and stores on a simulated disk, which LMDB can't
reach, and it is what the tests hold the LMDB index against.  Rows are kept as the same
bytes, so that they are checked and can be damaged in the same way.

Isolation is by copy: a view pins the tables it was taken from, and a write that finds
them pinned works on a copy.  A commit is one assignment, so it is atomic, and it
outlives `close`: `reopen` finds what was committed, like a file after a power cut.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from wheeldb.errors import ClosedError
from wheeldb.index.changes import Changes, TableChanges, encode, piece_sizes
from wheeldb.index.keys import TABLES
from wheeldb.index.snapshot import IndexStatistics, Snapshot

__all__ = ("MemoryIndex",)

# Up to this many single insertions beat sorting the whole list of keys again.
_SINGLE_CHANGES_MAX = 32


class MemoryIndex:
    """An `Index` without a file."""

    def __init__(self, path: str = ":memory:") -> None:
        self._path = path
        self._tables = {name: _Table() for name in TABLES}
        self._pins: dict[int, int] = {}
        self._lock = Lock()
        self._commits = 0
        self._is_open = True

    @property
    def path(self) -> str:
        """The name it was given."""
        return self._path

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Return a view of the index as of now, for the length of a block.

        Raises:
            ClosedError: If the index is closed.
        """
        with self._lock:
            self._require_open()
            tables = self._tables
            version = id(tables)
            self._pins[version] = self._pins.get(version, 0) + 1
        try:
            yield Snapshot(_MemorySource(self._path, tables))
        finally:
            with self._lock:
                self._pins[version] -= 1
                if not self._pins[version]:
                    del self._pins[version]

    def apply(self, changes: Changes) -> None:
        """Write all changes, or nothing.

        Raises:
            ClosedError: If the index is closed.
        """
        batch = encode(changes)
        with self._lock:
            self._require_open()
            tables = self._tables
            if id(tables) in self._pins:
                tables = {name: table.copy() for name, table in tables.items()}
            for one in batch:
                tables[one.table].apply(one)
            self._tables = tables
            self._commits += 1

    def statistics(self) -> IndexStatistics:
        """Return what the index holds; it has no pages and no map."""
        return IndexStatistics(
            rows={name: len(table.keys) for name, table in self._tables.items()},
            bytes=0,
            pages=0,
            map_bytes=0,
            commits=self._commits,
        )

    def keep_room(self, room_bytes: int = 32 * 2**20) -> bool:
        """Do nothing: memory can't be kept."""
        return True

    def close(self) -> None:
        """Close it; what was committed stays for `reopen`."""
        self._is_open = False

    def reopen(self) -> None:
        """Open it again after `close`, with everything that was committed."""
        self._is_open = True

    def clear(self) -> None:
        """Forget every row, as if it were new."""
        with self._lock:
            self._tables = {name: _Table() for name in TABLES}

    def take_over(self, other: "MemoryIndex") -> None:
        """Hold another index's rows instead of one's own, and be open."""
        with other._lock:
            tables = {name: table.copy() for name, table in other._tables.items()}
        with self._lock:
            self._tables = tables
            self._commits += 1
            self._is_open = True

    def corrupt(self, table: str, key: bytes, *, offset: int, xor: int) -> None:
        """Damage one byte of a row's value, for tests of what notices it."""
        value = bytearray(self._tables[table].values[key])
        value[offset] ^= xor
        self._tables[table].values[key] = bytes(value)

    def __deepcopy__(self, memo: dict[int, object]) -> "MemoryIndex":
        """Return an index of its own with the same rows; locks can't be copied."""
        twin = MemoryIndex(self._path)
        with self._lock:
            twin._tables = {name: table.copy() for name, table in self._tables.items()}
            twin._commits = self._commits
            twin._is_open = self._is_open
        return twin

    def _require_open(self) -> None:
        if not self._is_open:
            raise ClosedError(f"{self._path}: the index is closed; reopen the store")


class _Table:
    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        # The keys in order, and the same keys with their values.
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}

    def copy(self) -> "_Table":
        table = _Table()
        table.keys = self.keys.copy()
        table.values = self.values.copy()
        return table

    def apply(self, changes: TableChanges) -> None:
        gone = [key for key in changes.deletes if key in self.values]
        for key in gone:
            del self.values[key]
        if len(gone) <= _SINGLE_CHANGES_MAX:
            for key in gone:
                del self.keys[bisect_left(self.keys, key)]
        else:
            self.keys = [key for key in self.keys if key in self.values]
        new = [key for key, _ in changes.puts if key not in self.values]
        self.values.update(changes.puts)
        if len(new) <= _SINGLE_CHANGES_MAX:
            for key in new:
                insort(self.keys, key)
        else:
            # Two sorted runs, which the sort merges in one pass.
            self.keys += new
            self.keys.sort()


class _MemorySource:
    def __init__(self, path: str, tables: dict[str, _Table]) -> None:
        self.path = path
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._tables[table].values.get(key)

    def last_to(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        one = self._tables[table]
        place = bisect_right(one.keys, key)
        if not place:
            return None
        found = one.keys[place - 1]
        return found, one.values[found]

    def scan(
        self, table: str, start: bytes, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        keys = self._tables[table].keys
        values = self._tables[table].values
        place = bisect_left(keys, start)
        for size in piece_sizes(min(limit, len(keys) - place)):
            yield [(key, values[key]) for key in keys[place : place + size]]
            place += size

    def count(self, table: str) -> int:
        return len(self._tables[table].keys)
