"""`CrashableIndex`: an index in memory that a power cut may damage, as it may LMDB's.

A commit is atomic and durable once it has returned, and counts as one operation of the
disk ("index"), so that the power can go just before it. What a crash makes of it:

    new              what was committed last
    old              what was committed before that
    stale            something older, as when a drive lied about several flushes
    unopenable       a meta page is damaged: LMDB refuses the file
    subtree missing  a stretch of rows of one table is gone, as behind a zeroed page
    bit flip         one byte of one row is another

The index is a cache: a store has to come through all of them, whatever the disk kept.
"""

from collections.abc import Callable
from random import Random

from wheeldb.index import Changes, IndexDamaged, MemoryIndex

__all__ = ("INDEX_FATES", "CrashableIndex")

INDEX_FATES = ("new", "old", "stale", "unopenable", "subtree missing", "bit flip")

# How many commits a drive that lies may lose.
_VERSIONS_MAX = 4


class CrashableIndex(MemoryIndex):
    """An index on a `CrashableDisk`.

    Args:
        path: The index's directory.
        enter: Is called before each commit: counts it, and raises if the power goes.
    """

    def __init__(self, path: str, enter: Callable[[str], None]) -> None:
        super().__init__(path)
        self._enter = enter
        self._versions: list[MemoryIndex] = []
        self._is_damaged = False

    def apply(self, changes: Changes) -> None:
        """Write all changes, or nothing; see `MemoryIndex.apply`."""
        self._enter(self.path)
        self._remember()
        super().apply(changes)

    def clear(self) -> None:
        """Forget every row and all damage, as if it were new."""
        self._remember()
        self._is_damaged = False
        super().clear()

    def take_over(self, other: MemoryIndex) -> None:
        """Hold another index's rows; a commit like any other."""
        self._enter(self.path)
        self._remember()
        self._is_damaged = False
        super().take_over(other)

    def after(
        self, fate: str, random: Random, enter: Callable[[str], None]
    ) -> "CrashableIndex":
        """Return what a power cut leaves of it, for another disk."""
        rows: MemoryIndex = self
        if fate == "old" and self._versions:
            rows = self._versions[-1]
        elif fate == "stale" and self._versions:
            rows = random.choice(self._versions)
        twin = CrashableIndex(self.path, enter)
        MemoryIndex.take_over(twin, rows)
        twin._is_damaged = self._is_damaged or fate == "unopenable"
        if fate == "subtree missing":
            twin._lose_rows(random)
        elif fate == "bit flip":
            twin._flip_bit(random)
        return twin

    def clone(self, enter: Callable[[str], None]) -> "CrashableIndex":
        """Return a copy that is open and may lose what this one may, on a clone."""
        twin = self.after("new", Random(0), enter)
        twin._versions = list(self._versions)
        twin._is_open = self._is_open
        return twin

    def _require_open(self) -> None:
        super()._require_open()
        if self._is_damaged:
            raise IndexDamaged("neither meta page is whole", path=self.path)

    def _remember(self) -> None:
        version = MemoryIndex(self.path)
        version.take_over(self)
        self._versions.append(version)
        del self._versions[:-_VERSIONS_MAX]

    def _lose_rows(self, random: Random) -> None:
        filled = [name for name, table in self._tables.items() if table.keys]
        if filled:
            table = self._tables[random.choice(filled)]
            start = random.randrange(len(table.keys))
            end = random.randint(start + 1, len(table.keys))
            for key in table.keys[start:end]:
                del table.values[key]
            del table.keys[start:end]

    def _flip_bit(self, random: Random) -> None:
        rows = [
            (name, key, len(value))
            for name, table in self._tables.items()
            for key, value in table.values.items()
            if value
        ]
        if rows:
            name, key, size = random.choice(rows)
            offset, bit = random.randrange(size), random.randrange(8)
            self.corrupt(name, key, offset=offset, xor=1 << bit)
