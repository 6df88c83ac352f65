"""The bytes of one file, read in pieces.

    with ByteSource(disk, "log/00000001-0000000000000001.seg") as source:
        block = source.read(0, 4096)

A short answer means that the file ends there. A medium that can't read is damage with
a place, not an error of the caller. Nothing is verified here.
"""

import errno
from types import TracebackType

from wheeldb.disk import Disk
from wheeldb.errors import CorruptionError

__all__ = ("PIECE_BYTES", "ByteSource")

PIECE_BYTES = 2**20


class ByteSource:
    """Reads a file through one buffer, of 1 MiB unless said otherwise."""

    def __init__(
        self, disk: Disk, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> None:
        """Open the file; close it with the `with` block."""
        self.path = path
        self.fd = disk.open(path, readonly=True)
        self._disk = disk
        self._piece_bytes = piece_bytes
        self._buffer = b""
        self._base = 0

    def __enter__(self) -> "ByteSource":
        """Return the source."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._disk.close(self.fd)

    def size(self) -> int:
        """Return the file's length at this moment."""
        return self._disk.size(self.fd)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only at the end of the file.

        Raises:
            CorruptionError: If the medium can't read them (EIO).
        """
        start = offset - self._base
        if start >= 0 and start + length <= len(self._buffer):
            return self._buffer[start : start + length]
        if length >= self._piece_bytes:
            return self._pread(length, offset)
        self._buffer = self._pread(self._piece_bytes, offset)
        self._base = offset
        return self._buffer[:length]

    def forget(self) -> None:
        """Drop the buffer, so that the next read sees what the file holds now."""
        self._buffer = b""

    def _pread(self, length: int, offset: int) -> bytes:
        pieces: list[bytes] = []
        try:
            while length > 0:
                piece = self._disk.pread(self.fd, length, offset)
                if not piece:
                    break
                pieces.append(piece)
                length -= len(piece)
                offset += len(piece)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CorruptionError(
                f"the medium cannot read the file ({error.strerror})",
                path=self.path,
                offset=offset,
            ) from error
        return b"".join(pieces)
