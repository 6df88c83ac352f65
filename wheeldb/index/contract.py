"""What every kind of index does, whatever it is kept in.

A store holds an `Index` and doesn't ask which.  One checkpoint is one `apply`, which is
there as a whole or not at all; what is read is read through views, each of one moment:

    index.apply(Changes(put_tasks=[(9, 9, b"body")], put_due=[(16, 5_000, 9, 5_000)]))
    with index.snapshot() as view:
        assert view.task(9) == (9, b"body")

How an index is found, opened or made is `wheeldb.index.opening`'s part.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from wheeldb.index.changes import Changes
from wheeldb.index.snapshot import Snapshot

__all__ = ("Index", "IndexStatistics")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatistics:
    """What the index holds and takes.

    Attributes:
        rows: The number of rows by table.
        bytes: The bytes in use by the file, free pages inside it included.
        pages: The same in pages.
        map_bytes: How far the file can grow before the map is enlarged.
        commits: Transactions committed since opening.
    """

    rows: dict[str, int]
    bytes: int
    pages: int
    map_bytes: int
    commits: int


class Index(Protocol):
    """Every pending task by number and by due time, as of the last checkpoint.

    Writes come from one thread at a time; views may be taken from any.
    """

    @property
    def path(self) -> str:
        """The directory of the index."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a view of the index as of now, for the length of a block.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses.
        """

    def apply(self, changes: Changes) -> None:
        """Write all changes in one transaction and sync it, or nothing.

        Deletes come before puts; a delete of what isn't there is no error.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses; the index is of no use any more.
        """

    def statistics(self) -> IndexStatistics:
        """Return what the index holds and takes."""

    def keep_room(self, room_bytes: int = 32 * 2**20) -> bool:
        """Keep room on the disk behind the last page; return whether it is there."""

    def close(self) -> None:
        """Close it; a second call does nothing.  Views must be left before."""
