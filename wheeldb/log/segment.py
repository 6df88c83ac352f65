"""Files of the log: their names, their headers, and how one comes into being.

A segment is called ``<number>-<first LSN>.seg`` and begins with a header, padded
with zeros to 4,096 bytes so that the first frame starts on a block::

     0        8        10         12            16         32       40     48
    +--------+--------+----------+-------------+----------+--------+------+--------
    | magic  | format | checksum | incarnation | database | number | salt | first
    | 8      | 2      | id 2     | 4           | UUID 16  | 8      | 8    | LSN 8
    +--------+--------+----------+-------------+----------+--------+------+--------
     56               64               72            80           88
    +----------------+----------------+-------------+------------+-----------------
    | predecessor's  | predecessor's  | sealed up   | sealed     | highest bound
    | last LSN 8     | end in bytes 8 | to LSN 8    | bytes 8    | before it 8
    +----------------+----------------+-------------+------------+-----------------
     96             104                 108       112
    +--------------+-------------------+---------+
    | highest HLC  | predecessor's     | own CRC |
    | before it 8  | last header CRC 4 | 4       |
    +--------------+-------------------+---------+

* *A segment ends where its successor's header says*; what lies behind is ignored.
  The predecessor's last header CRC goes on as the first link of the chain here.
* *sealed*: what was written and synced before the file got its name. After a
  rotation that is the header alone, after an opening also the frames up to the
  `opened` one. The name is given last, so these bytes are proven by it, as a
  watermark would prove them.
* Magic, format and the place of the own CRC stay as they are in every format, so
  that an old reader can tell a newer file from a damaged one.

A file is built as ``next.tmp``, synced, renamed, and the directory synced: a name
always stands for a whole header, and creation can't be torn. This module knows
nothing of what the frames mean or when a new segment is needed.
"""

import builtins
import contextlib
import errno
import os.path
import re
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from wheeldb.disk import Disk, write_all
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.frame import LSN_MAX

__all__ = (
    "BLOCK_BYTES",
    "CHECKSUM_CRC32",
    "SEGMENT_FORMAT",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "TEMPORARY_NAME",
    "Entropy",
    "LogSyncError",
    "SegmentHeader",
    "SegmentName",
    "block_end",
    "build_segment",
    "list_segments",
    "new_salt",
    "pack_segment_header",
    "parse_segment_header",
    "sync_directory",
    "sync_file",
)

# These constants are part of the format on disk and never change meaning.
SEGMENT_FORMAT = 1
SEGMENT_HEADER_BYTES = 4096
SEGMENT_MAGIC = b"WHEELDB\x01"
CHECKSUM_CRC32 = 1

# What a medium writes at once, or a multiple of it.
BLOCK_BYTES = 4096
TEMPORARY_NAME = "next.tmp"

_FIELDS = struct.Struct("<8sHHI16sQ8sQQQQQQQI")
_CHECKSUM = struct.Struct("<I")
_USED_BYTES = _FIELDS.size + _CHECKSUM.size
_NAME = re.compile(r"(\d{8,})-(\d{16})\.seg")

assert _USED_BYTES == 112, _USED_BYTES


class Entropy(Protocol):
    """Where random bytes come from; tests put a seeded one here."""

    def bytes(self, count: int, /) -> builtins.bytes:
        """Return `count` random bytes."""
        ...


class LogSyncError(OSError):
    """Raised when a sync of a log file or its directory failed.

    What reached the disk is unknown from then on, and the kernel may say success
    at the next try without having written anything: nobody may repeat it.
    """


class SegmentName(NamedTuple):
    """What a segment's file name says."""

    number: int
    first_lsn: int

    @property
    def file_name(self) -> str:
        """Return the name of the file."""
        return f"{self.number:08d}-{self.first_lsn:016d}.seg"


class SegmentHeader(NamedTuple):
    """What stands in the first block of a segment."""

    incarnation: int
    database: bytes
    number: int
    salt: bytes
    first_lsn: int
    predecessor_last_lsn: int
    predecessor_bytes: int
    sealed_lsn: int
    sealed_bytes: int
    bound: int
    hlc: int
    predecessor_crc: int

    @property
    def name(self) -> SegmentName:
        """Return the name that the file must have."""
        return SegmentName(self.number, self.first_lsn)


def pack_segment_header(
    header: SegmentHeader, *, magic: bytes = SEGMENT_MAGIC
) -> bytes:
    """Return the header's block of 4,096 bytes."""
    assert len(header.database) == 16, f"a UUID has 16 bytes: {header.database!r}"
    assert len(header.salt) == 8, f"a salt has 8 bytes: {header.salt!r}"
    assert header.first_lsn == header.predecessor_last_lsn + 1, header
    incarnation, database, number, salt, *rest = header
    fields = _FIELDS.pack(
        magic,
        SEGMENT_FORMAT,
        CHECKSUM_CRC32,
        incarnation,
        database,
        number,
        salt,
        *rest,
    )
    used = fields + _CHECKSUM.pack(zlib.crc32(fields))
    return used.ljust(SEGMENT_HEADER_BYTES, b"\0")


def parse_segment_header(
    block: bytes, *, path: str, magic: bytes = SEGMENT_MAGIC
) -> SegmentHeader:
    """Return the verified header in a file's first block.

    Raises:
        CorruptionError: If the block is short, damaged, or not such a file's.
        FormatError: If the block is whole and of a format that is not ours.
    """

    def refuse(reason: str) -> CorruptionError:
        return CorruptionError(
            f"{reason}; the header was synced before the file got its name, so no "
            "crash explains it",
            path=path,
            offset=0,
        )

    if len(block) < SEGMENT_HEADER_BYTES:
        raise refuse(f"the header has {len(block)} bytes of {SEGMENT_HEADER_BYTES}")
    (crc,) = _CHECKSUM.unpack_from(block, _FIELDS.size)
    if zlib.crc32(block[: _FIELDS.size]) != crc:
        raise refuse("the header's checksum is wrong")
    found_magic, form, checksum, *fields = _FIELDS.unpack_from(block)
    if found_magic != magic:
        raise refuse(f"the file begins with {found_magic!r} instead of {magic!r}")
    if form != SEGMENT_FORMAT or checksum != CHECKSUM_CRC32:
        raise FormatError(
            f"{path} has log format {form} with checksum {checksum}; this version "
            f"reads format {SEGMENT_FORMAT} with checksum {CHECKSUM_CRC32}: "
            "open it with the release that wrote it, or a newer one"
        )
    if block[_USED_BYTES:SEGMENT_HEADER_BYTES].strip(b"\0"):
        raise refuse("there are bytes where the header's padding should be")
    header = SegmentHeader(*fields)
    is_possible = (
        header.first_lsn == header.predecessor_last_lsn + 1
        and max(header.first_lsn, header.bound) <= LSN_MAX
    )
    if not is_possible:
        raise refuse("the header's numbers are impossible")
    return header


def list_segments(disk: Disk, directory: str) -> list[SegmentName]:
    """Return the segments in `directory` by number; other files are passed over."""
    found: list[SegmentName] = []
    for text in disk.list(directory):
        match = _NAME.fullmatch(text)
        if match:
            name = SegmentName(int(match[1]), int(match[2]))
            # Another spelling of a number names no file of ours.
            if name.file_name == text:
                found.append(name)
    return sorted(found)


def block_end(offset: int) -> int:
    """Return `offset`, or the next block's begin if it lies inside a block.

    Files are cut there: cutting inside a block would write it once more, and with it
    acknowledged bytes, which some media lose when the power fails just then.
    """
    return offset + -offset % BLOCK_BYTES


def new_salt(entropy: Entropy) -> bytes:
    """Return a salt for a segment; it is never all zeros, as unwritten room is."""
    salt = entropy.bytes(8)
    assert len(salt) == 8, f"entropy gave {len(salt)} bytes instead of 8"
    return salt if salt.strip(b"\0") else b"\0\0\0\0\0\0\0\1"


def build_segment(
    disk: Disk, directory: str, header: SegmentHeader, frames: Iterable[bytes] = ()
) -> tuple[int, SegmentHeader]:
    """Make a segment under its final name, with everything in it durable.

    Ensures:
        1. Under its name the file is whole: a crash at any moment leaves either no
           such name or all of header and frames.
        2. Begun again from the start it gives the same, whatever was left behind.

    Args:
        disk: The seam to the file system.
        directory: Where the log lies.
        header: What it shall say; `sealed_bytes` is filled in here.
        frames: Packed frames, written behind the header.

    Returns:
        The descriptor and the header as written. The descriptor stays open for the
        segment's whole life: an error of write-back is told once per descriptor and
        would be lost with it.

    Raises:
        LogSyncError: If a sync failed; the log must not be written any more.
        OSError: If there is no room, or a write failed; nothing has changed.
    """
    temporary = os.path.join(directory, TEMPORARY_NAME)
    final = os.path.join(directory, header.name.file_name)
    # Ensures 2: what a crash left is removed, not overwritten. Where a rename is a link
    # and an unlink, both names may be left, and this one may be a segment's second.
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    fd = disk.open(temporary, create=True, exclusive=True)
    try:
        offset = SEGMENT_HEADER_BYTES
        for data in frames:
            write_all(disk, fd, data, offset)
            offset += len(data)

        header = header._replace(sealed_bytes=offset)
        write_all(disk, fd, pack_segment_header(header), 0)
        sync_file(disk, fd, temporary)
        disk.rename(temporary, final)  # Ensures 1: the name comes last.
        sync_directory(disk, directory)
    except BaseException:
        disk.close(fd)
        # On a full disk the blocks of a file that nobody wants are better free.
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    return fd, header


def sync_file(disk: Disk, fd: int, path: str) -> None:
    """Make a log file's bytes durable.

    Raises:
        LogSyncError: If the kernel reports an error, ENOSPC included.
    """
    try:
        disk.sync_data(fd)
    except OSError as error:
        raise _sync_error(error, path) from error


def sync_directory(disk: Disk, path: str) -> None:
    """Make names in a directory of the log durable.

    Raises:
        LogSyncError: If the kernel reports an error.
    """
    try:
        disk.sync_directory(path)
    except OSError as error:
        raise _sync_error(error, path) from error


def _sync_error(error: OSError, path: str) -> LogSyncError:
    return LogSyncError(
        error.errno or errno.EIO,
        f"sync failed ({error.strerror or error}); reopen the store",
        path,
    )
