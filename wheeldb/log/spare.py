"""A second place for the block at the log's end, while that has to be written again.

On flash a write may damage what lies beside it in its block when the power goes, so a
synced frame begins on a block of its own.  On a full disk there are none left: frames
that end tasks go behind the last one, into a block that holds acknowledged ones.  Then
what that block holds is written here before, and synced::

    log/spare   magic · salt · begin · length · CRC │ up to 4,096 bytes of a segment
                └──────────── 32 bytes ────────────┘

Only one of the two places is ever being written, so the other one is whole.  An opening
compares them first: bytes of the last segment that differ are put back.  Those bytes
never change as long as it is the last, so an old copy does no harm.

Who only reads a store puts nothing back: he may find it damaged until it is opened.
"""

import struct
import zlib

from wheeldb.disk import NO_ROOM, Disk, write_all
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.segment import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    list_segments,
    parse_segment_header,
    sync_directory,
    sync_file,
)
from wheeldb.log.source import ByteSource

__all__ = ("SpareBlock", "put_back")

_HEADER = struct.Struct("<8s8sQII")
_MAGIC = b"wdbspare"
_FILE_BYTES = 2 * BLOCK_BYTES


class SpareBlock:
    """The file of one store that is open for writing.

    Attributes:
        is_there: Whether it has its blocks; they are taken while there is room.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Open the file, and take its blocks if it has none.

        Args:
            disk: The seam to the file system.
            directory: Where the log lies.

        Raises:
            OSError: For another reason than room.
        """
        self._disk = disk
        self._path = _path_in(directory)
        self._fd = disk.open(self._path, create=True)
        self.is_there = True
        try:
            if disk.size(self._fd) < _FILE_BYTES:
                self._take_blocks(directory)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self.close()
                raise
            self.is_there = False

    def _take_blocks(self, directory: str) -> None:
        # The length comes last: a file that has it has its blocks.
        write_all(self._disk, self._fd, bytes(_FILE_BYTES - 1), 0)
        self._disk.sync_data(self._fd)
        write_all(self._disk, self._fd, b"\0", _FILE_BYTES - 1)
        self._disk.sync_data(self._fd)
        sync_directory(self._disk, directory)

    def keep(self, fd: int, salt: bytes, offset: int) -> None:
        """Write down, durably, what stands before an offset in its block.

        Args:
            fd: The last segment.
            salt: Its salt.
            offset: Where the next frame will be written.

        Raises:
            LogSyncError: If the sync failed.
            OSError: If it could not be written.
        """
        length = offset % BLOCK_BYTES
        data = self._disk.pread(fd, length, offset - length)
        write_all(self._disk, self._fd, _pack(salt, offset - length, data), 0)
        sync_file(self._disk, self._fd, self._path)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._fd)


def put_back(disk: Disk, directory: str) -> bool:
    """Mend the block at the log's end if a cut has damaged it; return whether it had.

    Raises:
        LogSyncError: If the sync failed.
        OSError: As the disk says.
    """
    found = _read(disk, _path_in(directory))
    names = list_segments(disk, directory)
    if found is None or not names:
        return False
    salt, begin, data = found
    path = f"{directory}/{names[-1].file_name}"
    with ByteSource(disk, path, piece_bytes=BLOCK_BYTES) as source:
        if not _has_lost(source, salt, begin, data):
            return False
    fd = disk.open(path)
    try:
        write_all(disk, fd, data, begin)
        sync_file(disk, fd, path)
    finally:
        disk.close(fd)
    return True


def _has_lost(source: ByteSource, salt: bytes, begin: int, data: bytes) -> bool:
    """Return whether a segment is the one that was copied from, and differs."""
    try:
        head = source.read(0, SEGMENT_HEADER_BYTES)
        if parse_segment_header(head, path=source.path).salt != salt:
            return False
    except (CorruptionError, FormatError):
        return False
    if source.size() < begin + len(data):
        return False
    try:
        return source.read(begin, len(data)) != data
    except CorruptionError:
        # What a medium can't read, it may be able to after a write.
        return True


def _path_in(directory: str) -> str:
    return f"{directory}/spare"


def _pack(salt: bytes, begin: int, data: bytes) -> bytes:
    head = _HEADER.pack(_MAGIC, salt, begin, len(data), 0)[:-4]
    return head + zlib.crc32(head + data).to_bytes(4, "little") + data


def _read(disk: Disk, path: str) -> tuple[bytes, int, bytes] | None:
    """Return salt, offset and bytes; ``None`` if nothing whole is there."""
    if disk.info(path) is None:
        return None
    try:
        with ByteSource(disk, path) as source:
            text = source.read(0, _FILE_BYTES)
    except CorruptionError:
        return None
    if len(text) < _HEADER.size:
        return None
    magic, salt, begin, length, _ = _HEADER.unpack_from(text)
    data = text[_HEADER.size : _HEADER.size + length]
    is_whole = magic == _MAGIC and 0 < length < BLOCK_BYTES
    is_whole = is_whole and text[: _HEADER.size + length] == _pack(salt, begin, data)
    return (salt, begin, data) if is_whole else None
