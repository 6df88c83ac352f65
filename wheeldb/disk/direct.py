"""Writes around the page cache, with ``O_DIRECT``.

Such a write has its place, its length and its memory on multiples of the device's
block, for which 4,096 bytes do everywhere; so the bytes go through a buffer of pages of
their own.  When it returns they are on the device, in its cache: a sync has to follow,
as after any write, but it has no dirty pages to look for.

    direct = OsDirect.open("log/00000001.seg")
    direct.write(block, 8192)
    os.fdatasync(handle)                      # any handle of the same file

Not for two threads at once.
"""

import mmap
import os
import sys

from wheeldb.disk.lock import open_above_standard

__all__ = ("DIRECT_BYTES_MAX", "OsDirect")

DIRECT_BYTES_MAX = 2**17


class OsDirect:
    """A file that is open for such writes."""

    __slots__ = ("_buffer", "_handle", "_view")

    def __init__(self, handle: int) -> None:
        self._handle = handle
        # Private: a forked child must not share it.
        self._buffer = mmap.mmap(
            -1, DIRECT_BYTES_MAX, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._view = memoryview(self._buffer)

    @classmethod
    def open(cls, path: str) -> "OsDirect | None":
        """Open a file that exists; None where system or file system refuse."""
        if sys.platform != "linux":
            return None
        try:
            return cls(open_above_standard(path, os.O_RDWR | os.O_DIRECT))
        except OSError:
            # It is a help, not a need: whatever it was, the other handle will tell.
            return None

    def write(self, blocks: bytes, offset: int) -> int:
        """Write whole blocks, at most `DIRECT_BYTES_MAX`; return the count.

        Raises:
            OSError: As the system says; EINVAL if the file system takes none after all.
        """
        size = len(blocks)
        self._buffer[:size] = blocks
        return os.pwrite(self._handle, self._view[:size], offset)

    def close(self) -> None:
        """Close the file; call it once."""
        os.close(self._handle)
