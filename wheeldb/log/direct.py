"""Writing a segment's tail around the page cache, where the system lets us.

A sync of one small frame costs the kernel more work than the disk: it looks for dirty
pages, locks and submits them.  A direct write (`wheeldb.disk.direct`) leaves nothing of
that to the sync, which stays the same call with the same meaning.

Such writes are whole blocks.  So a frame goes out with what stands before it in its
block and the zeros behind it, as the page cache would write its page::

    block                     block
    │ frame │ frame │ NEW ━━━━│━━━━ │ 0 0 0 │
    └── written again ────────┴── written ──┘

The bytes of the block before the new frame are kept, or read again if something else
was written meanwhile.  On flash a synced frame begins on a block of its own, and
nothing is written again.

Only frames that a sync follows, and that lie where zeros have been written, go this
way; the caller writes all others through the cache.  Both may be mixed: Linux writes
dirty pages back before such a write and drops them behind it.
"""

from errno import EINVAL

from wheeldb.disk import DIRECT_BYTES_MAX, Disk
from wheeldb.log.segment import BLOCK_BYTES

__all__ = ("DirectTail",)

_BLOCK_MASK = BLOCK_BYTES - 1


class DirectTail:
    """The end of one segment, written block by block."""

    __slots__ = ("_direct", "_disk", "_kept", "number")

    def __init__(self, disk: Disk, path: str, number: int) -> None:
        """Open a segment a second time; where that is refused, nothing is written.

        Args:
            disk: The seam to the file system.
            path: The segment.
            number: Its number, for the owner to know it by.
        """
        self.number = number
        self._disk = disk
        self._direct = disk.open_direct(path)
        # Where the last write ended, and the bytes before that in the last block.
        self._kept = (0, b"")

    def write(self, handle: int, data: bytes, offset: int, zeroed_bytes: int) -> bool:
        """Write a frame; return False if that has to be done through the cache.

        Args:
            handle: The segment's own handle, to read by.
            data: The frame.
            offset: Its place: nothing but zeros stands there and behind.
            zeroed_bytes: Up to where zeros have been written.

        Raises:
            OSError: As the disk says; then any part may have been written.
        """
        direct = self._direct
        if direct is None:
            return False
        begin = offset & ~_BLOCK_MASK
        end = offset + len(data)
        size = (end + _BLOCK_MASK & ~_BLOCK_MASK) - begin
        if size > DIRECT_BYTES_MAX or begin + size > zeroed_bytes:
            return False
        if begin != offset:
            kept_end, before = self._kept
            if kept_end != offset:
                before = self._disk.pread(handle, offset - begin, begin)
                if len(before) != offset - begin:
                    return False
            data = before + data
        try:
            written = direct.write(data.ljust(size, b"\0"), begin)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            self.close()
            return False
        self._kept = (end, data[len(data) - (end & _BLOCK_MASK) :])
        return written == size

    def close(self) -> None:
        """Close what was opened; done again it does nothing."""
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
