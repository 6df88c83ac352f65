"""What a repair cuts off is kept for a while: `aside/<segment>.torn`.

Evidence, not data: no opening reads it. At most 4 files and 256 MiB stay, the oldest
segments' go first. A second repair of the same segment writes the same file again.
"""

import contextlib
import os.path

from wheeldb.disk import NO_ROOM, Disk, write_all
from wheeldb.log.source import PIECE_BYTES, ByteSource

__all__ = ("ASIDE_BYTES_MAX", "ASIDE_FILES_MAX", "keep_torn_bytes")

ASIDE_FILES_MAX = 4
ASIDE_BYTES_MAX = 256 * 2**20

_SUFFIX = ".torn"


def keep_torn_bytes(disk: Disk, path: str, offset: int, aside: str) -> str | None:
    """Copy a segment's bytes from `offset` to its last one that is not zero.

    Returns:
        The copy's path; None if there are only zeros, or no room for it: a store on a
        full disk must still open.

    Raises:
        CorruptionError: If the medium can't read the segment.
        OSError: If the copy failed for another reason than room.
    """
    target = os.path.join(aside, os.path.basename(path) + _SUFFIX)
    with ByteSource(disk, path) as source:
        length = _torn_length(source, offset)
        if length == 0:
            return None
        try:
            disk.make_directory(aside)
            disk.sync_directory(os.path.dirname(aside) or ".")
            _copy(disk, source, offset, length, target)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            with contextlib.suppress(OSError):
                disk.unlink(target)
            return None
    disk.sync_directory(aside)
    _drop_oldest(disk, aside)
    return target


def _torn_length(source: ByteSource, offset: int) -> int:
    length = 0
    position = offset
    while piece := source.read(position, PIECE_BYTES):
        used = len(piece.rstrip(b"\0"))
        if used:
            length = position + used - offset
        position += len(piece)
    return length


def _copy(
    disk: Disk, source: ByteSource, offset: int, length: int, target: str
) -> None:
    handle = disk.open(target, create=True)
    try:
        disk.truncate(handle, 0)
        copied = 0
        while copied < length:
            piece = source.read(offset + copied, min(PIECE_BYTES, length - copied))
            write_all(disk, handle, piece, copied)
            copied += len(piece)
        disk.sync_data(handle)
    finally:
        disk.close(handle)


def _drop_oldest(disk: Disk, aside: str) -> None:
    paths = [
        os.path.join(aside, name) for name in disk.list(aside) if name.endswith(_SUFFIX)
    ]
    kept_bytes = 0
    # Names begin with the segment's number, so the newest come last.
    for count, path in enumerate(reversed(paths), start=1):
        info = disk.info(path)
        kept_bytes += info.size if info else 0
        if count > ASIDE_FILES_MAX or kept_bytes > ASIDE_BYTES_MAX:
            disk.unlink(path)
