"""What callers are told when the index is damaged and can't be rebuilt for now.

    ENOSPC, EDQUOT             StorageFullError: free some room
    EIO, EROFS, EACCES, …      IndexUnavailable: see to the disk
    LMDB's own, or none        IndexUnavailable with EIO

`IndexDamaged` itself stays inside the store: that the index is damaged is nobody's
loss, only that the disk takes no new one.  A damaged log or snapshot is told as that.
"""

import errno

from wheeldb.disk import NO_ROOM
from wheeldb.errors import IndexUnavailable, StorageFullError
from wheeldb.index.snapshot import IndexDamaged

__all__ = ("refusal_of",)

_ADVICE = (
    "nothing is lost, the log is whole. Tasks in memory go on, no new ones are taken; "
    "calls that need the index try again to rebuild it"
)


def refusal_of(damage: IndexDamaged) -> StorageFullError | IndexUnavailable:
    """Return the error for callers, with the system's number and what to do."""
    code, reason = damage.code, damage.reason
    if code in NO_ROOM:
        return StorageFullError(
            code, f"no room to rebuild the index ({reason}); free some: {_ADVICE}"
        )
    return IndexUnavailable(
        code or errno.EIO,
        f"the index can't be rebuilt ({reason}); see to the disk: {_ADVICE}",
    )
