"""Snapshots: a compacted log in one file, whole under its name or not there.

A snapshot is called ``<LSN>.snap`` after the last number that it stands for, and looks
like a segment::

    +--------------------+-------+-------+-- ··· --+-------+
    | header, 4096 bytes | frame | frame |         | END   |
    +--------------------+-------+-------+-- ··· --+-------+

* The header is a segment's with another magic: the snapshot's LSN is its predecessor's
  last one, for the log goes on where the snapshot ends. Incarnation, database, highest
  HLC and highest LSN bound stand where a segment has them.
* A frame is a log's, of type ``SYNCED``, with no numbers of its own (count 0) and no
  room in between. Its payload is the caller's, cut as the caller likes.
* END is a ``FOOTER`` frame, and nothing comes behind it. Its payload::

     0          8                    16                   24
    +----------+--------------------+--------------------+
    | frames 8 | bytes before END 8 | CRC over them all 8|
    +----------+--------------------+--------------------+

  The frames' checksums and the chain tell where damage is. END tells that nothing is
  missing, and covers what they don't: the padding.

A file is written as ``next.tmp``, synced, read back, renamed, and the directory synced.
So a crash leaves no snapshot that is not whole, and anything broken is damage.

    info = write_snapshot(disk, "snapshots", lsn=900, payloads=states(), …)
    with open_snapshot(disk, info.path, database=uuid) as reader:
        for payload in reader:
            apply(payload)         # believe the sum of them when the loop has ended

Writing and reading stream: one frame and one piece of 1 MiB are in memory at most.
This module knows bytes, not tasks, and not when a snapshot is due or which part of the
log it replaces.
"""

import contextlib
import errno
import os.path
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple

from wheeldb.disk import Disk, write_all
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.cursor import FrameCursor
from wheeldb.log.frame import (
    HEADER_BYTES,
    Flaw,
    Frame,
    FrameType,
    header_checksum,
    pack_frame,
)
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    TEMPORARY_NAME,
    Entropy,
    SegmentHeader,
    new_salt,
    pack_segment_header,
    parse_segment_header,
)
from wheeldb.log.source import PIECE_BYTES, ByteSource

__all__ = (
    "SNAPSHOTS_KEPT",
    "SNAPSHOT_MAGIC",
    "SnapshotInfo",
    "SnapshotName",
    "SnapshotReader",
    "copy_snapshot",
    "list_snapshots",
    "open_snapshot",
    "remove_snapshots",
    "remove_unfinished",
    "verify_snapshot",
    "write_snapshot",
)

# These are part of the format on disk and never change meaning.
SNAPSHOT_MAGIC = b"WHEELSN\x01"
_END = struct.Struct("<QQQ")
_NAME = re.compile(r"(\d{16})\.snap")

# Two generations: if the newest one is damaged, the one before and the log behind it
# still give everything.
SNAPSHOTS_KEPT = 2

_TEMPORARY_SUFFIX = ".tmp"

# END itself has no padding that its own checksum would leave out.
assert _END.size % 8 == 0, _END.size


class SnapshotName(NamedTuple):
    """What a snapshot's file name says."""

    lsn: int

    @property
    def file_name(self) -> str:
        """Return the name of the file."""
        return f"{self.lsn:016d}.snap"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A snapshot that was read to its end and found whole.

    Attributes:
        path: The file.
        database: The UUID of the store.
        incarnation: The incarnation that wrote it.
        lsn: The last number that it stands for.
        hlc: The highest stamp up to there.
        bound: The highest LSN bound up to there.
        frames: How many payloads it holds.
        file_bytes: How long the file is.
    """

    path: str
    database: bytes
    incarnation: int
    lsn: int
    hlc: int
    bound: int
    frames: int
    file_bytes: int


class SnapshotReader:
    """Reads one snapshot. Made by `open_snapshot`; close it with the `with` block."""

    def __init__(self, source: ByteSource, database: bytes | None) -> None:
        """Take over an open file and verify its header.

        Raises:
            CorruptionError: If the header is damaged, or not the one of this name.
            FormatError: If the file is of another database or a newer format.
        """
        block = source.read(0, SEGMENT_HEADER_BYTES)
        self.header = parse_segment_header(
            block, path=source.path, magic=SNAPSHOT_MAGIC
        )
        self._source = source
        self._header_crc = zlib.crc32(block)
        self._info: SnapshotInfo | None = None
        name = _NAME.fullmatch(os.path.basename(source.path))
        if name and int(name[1]) != self.lsn:
            raise self._damage("the file has the name of another LSN", 0)
        if database is not None and self.header.database != database:
            raise FormatError(
                f"{source.path} belongs to database {self.header.database.hex()}, this "
                f"store is {database.hex()}: move the file out of the directory"
            )

    def __enter__(self) -> "SnapshotReader":
        """Return the reader."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._source.__exit__(kind, error, traceback)

    @property
    def path(self) -> str:
        """Return the file's path."""
        return self._source.path

    @property
    def database(self) -> bytes:
        """Return the UUID of the store."""
        return self.header.database

    @property
    def incarnation(self) -> int:
        """Return the incarnation that wrote the snapshot."""
        return self.header.incarnation

    @property
    def lsn(self) -> int:
        """Return the last number that the snapshot stands for."""
        return self.header.predecessor_last_lsn

    @property
    def hlc(self) -> int:
        """Return the highest stamp up to there."""
        return self.header.hlc

    @property
    def bound(self) -> int:
        """Return the highest LSN bound up to there."""
        return self.header.bound

    def finish(self) -> SnapshotInfo:
        """Return what the snapshot is; read it to its end unless that was done.

        Raises:
            CorruptionError, FormatError: As iterating does.
        """
        if self._info is None:
            for _ in self:
                pass
        assert self._info is not None, f"{self.path} was read without an end"
        return self._info

    def __iter__(self) -> Iterator[bytes]:
        """Yield the payloads in order, from the first one.

        Each is verified before it is given out. That none is missing is known when the
        iteration ends without an error, so throw away what came out of one that didn't.

        Raises:
            CorruptionError: If the file is damaged or its end is missing.
            FormatError: If a frame is of a newer format.
        """
        source = self._source
        cursor = FrameCursor(source, self.header, limit=source.size())
        crc = self._header_crc
        frames = 0
        while True:
            start = cursor.offset
            # Read in front of the cursor, so that both share one piece of the file.
            head = source.read(start, HEADER_BYTES)
            found = cursor.next()
            if isinstance(found, Flaw):
                reason = str(found) if start < cursor.limit else "the end is missing"
                raise self._damage(reason, cursor.torn_offset)
            self._check_frame(found, start)
            if found.header.type == FrameType.FOOTER:
                break
            padding_at = start + HEADER_BYTES + found.header.length
            padding = source.read(padding_at, found.end - padding_at)
            crc = zlib.crc32(padding, zlib.crc32(found.payload, zlib.crc32(head, crc)))
            frames += 1
            yield found.payload
        if found.payload != _END.pack(frames, start, crc):
            raise self._damage("the snapshot does not hold what its end says", start)
        if found.end != cursor.limit:
            raise self._damage("there are bytes behind the end", found.end)
        self._info = SnapshotInfo(
            path=self.path,
            database=self.database,
            incarnation=self.incarnation,
            lsn=self.lsn,
            hlc=self.hlc,
            bound=self.bound,
            frames=frames,
            file_bytes=cursor.limit,
        )

    def _check_frame(self, frame: Frame, start: int) -> None:
        header = frame.header
        kinds = (FrameType.SYNCED, FrameType.FOOTER)
        if frame.offset != start:
            raise self._damage("there is a gap between two frames", start)
        if header.type not in kinds or header.lsn_count or header.is_opened:
            raise self._damage("the frame is none of a snapshot", start)

    def _damage(self, reason: str, offset: int) -> CorruptionError:
        return CorruptionError(
            f"{reason}; a snapshot gets its name when all of it was synced and read "
            "back, so no crash explains it",
            path=self.path,
            offset=offset,
            lsn=self.lsn,
        )


def list_snapshots(
    disk: Disk, directory: str, *, sync_first: bool = False
) -> list[SnapshotName]:
    """Return the snapshots in `directory`, newest first; others are passed over.

    Only names are looked at: `open_snapshot` tells whether the files are any good.

    Args:
        disk: The seam to the file system.
        directory: Where the snapshots lie.
        sync_first: For an opening that will write: a process may have died between
            giving a name and making it durable, and nothing may be removed because of
            a name that the next power cut takes away.

    Raises:
        OSError: As the disk says.
    """
    if sync_first:
        disk.sync_directory(directory)
    matches = map(_NAME.fullmatch, disk.list(directory))
    names = (SnapshotName(int(match[1])) for match in matches if match)
    return sorted(names, reverse=True)


def open_snapshot(disk: Disk, path: str, *, database: bytes | None) -> SnapshotReader:
    """Return a reader of the snapshot at `path`, its header verified.

    Args:
        disk: The seam to the file system.
        path: The file.
        database: The UUID that it must have; None takes any.

    Raises:
        CorruptionError: If the header is damaged, or not the one of this name.
        FormatError: If the file is of another database or a newer format.
        OSError: If the file can't be opened.
    """
    source = ByteSource(disk, path)
    try:
        # What counts is the medium, not what memory still knows of the writing.
        disk.drop_cache(source.fd)
        return SnapshotReader(source, database)
    except BaseException:
        disk.close(source.fd)
        raise


def verify_snapshot(disk: Disk, path: str, *, database: bytes | None) -> SnapshotInfo:
    """Read a snapshot from begin to end and return what it is.

    Raises:
        CorruptionError: If anything in the file is damaged or missing.
        FormatError: If the file is of another database or a newer format.
        OSError: If the file can't be opened.
    """
    with open_snapshot(disk, path, database=database) as reader:
        return reader.finish()


def write_snapshot(
    disk: Disk,
    directory: str,
    *,
    database: bytes,
    incarnation: int,
    lsn: int,
    hlc: int,
    bound: int,
    entropy: Entropy,
    payloads: Iterable[bytes],
) -> SnapshotInfo:
    """Make a snapshot, durably, and return what was read back of it.

    Ensures:
        1. Under its name the file is whole, and was read back after its sync.
        2. Whatever is raised, by the disk or by `payloads`, no new name stays: a name
           whose directory could not be synced may be gone after the next power cut,
           and nobody may rely on it. The log and other snapshots are not touched.
        3. A snapshot of the same LSN is replaced as one, and not removed by a failure.

    Args:
        disk: The seam to the file system.
        directory: Where the snapshots lie.
        database: The UUID of the store.
        incarnation: The store's incarnation.
        lsn: The last number that the payloads stand for; it must be durable.
        hlc: The highest stamp up to there.
        bound: The highest LSN bound up to there.
        entropy: Gives the salt.
        payloads: What the frames hold, each at most 32 MiB; 1 MiB is a good size.

    Raises:
        OSError: If there is no room, a write or a sync failed, or what was read back
            is damaged (EIO). It is safe to try again: a new file is written.
        ValueError: If a payload is longer than a frame holds.
    """
    header = SegmentHeader(
        incarnation=incarnation,
        database=database,
        number=0,
        salt=new_salt(entropy),
        first_lsn=lsn + 1,
        predecessor_last_lsn=lsn,
        predecessor_bytes=0,
        sealed_lsn=lsn,
        sealed_bytes=0,
        bound=bound,
        hlc=hlc,
        predecessor_crc=0,
    )
    temporary = os.path.join(directory, TEMPORARY_NAME)
    final = os.path.join(directory, SnapshotName(lsn).file_name)
    is_new = disk.info(final) is None
    try:
        _write_file(disk, temporary, header, payloads)
        info = _read_back(disk, temporary, database)
        disk.rename(temporary, final)  # Ensures 1: the name comes last.
        disk.sync_directory(directory)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        if is_new:  # Ensures 3
            with contextlib.suppress(OSError):
                disk.unlink(final)  # Ensures 2
        raise
    return replace(info, path=final)


def copy_snapshot(
    disk: Disk, path: str, directory: str, *, database: bytes
) -> SnapshotInfo:
    """Copy a snapshot to another directory, durably, and return what was read back.

    Ensures:
        Under its name the copy is whole, and was read back after its sync.

    Raises:
        CorruptionError: If the original is damaged.
        FormatError: If it is of another database or a newer format.
        OSError: If there is no room, a write or a sync failed, or what was read back
            is damaged (EIO); no name stays.
    """
    info = verify_snapshot(disk, path, database=database)
    temporary = os.path.join(directory, TEMPORARY_NAME)
    final = os.path.join(directory, SnapshotName(info.lsn).file_name)
    try:
        with ByteSource(disk, path) as source:
            handle = disk.open(temporary, create=True)
            try:
                disk.truncate(handle, 0)  # A crash may have left a longer one.
                offset = 0
                while piece := source.read(offset, PIECE_BYTES):
                    write_all(disk, handle, piece, offset)
                    offset += len(piece)
                disk.sync_data(handle)
            finally:
                disk.close(handle)
        info = _read_back(disk, temporary, database)
        disk.rename(temporary, final)
        disk.sync_directory(directory)
    except BaseException:
        for left in (temporary, final):
            with contextlib.suppress(OSError):
                disk.unlink(left)
        raise
    return replace(info, path=final)


def remove_snapshots(
    disk: Disk, directory: str, keep: int = SNAPSHOTS_KEPT
) -> tuple[SnapshotName, ...]:
    """Remove all but the newest snapshots, and what a crash left of unfinished ones.

    Only names are looked at. Verify those that stay before, and do not call this while
    a snapshot is being written.

    Returns:
        The snapshots that are gone, oldest first.

    Raises:
        OSError: As the disk says; any part of them may be gone.
    """
    assert keep >= 1, f"keep is {keep}"
    # Oldest first: a crash in between leaves no hole among the generations.
    gone = tuple(reversed(list_snapshots(disk, directory)[keep:]))
    remove_unfinished(disk, directory)
    for name in gone:
        disk.unlink(os.path.join(directory, name.file_name))
    if gone:
        disk.sync_directory(directory)
    return gone


def remove_unfinished(disk: Disk, directory: str) -> bool:
    """Remove what a crash left of snapshots that were being written; say if there was.

    Do not call this while one is being written.

    Raises:
        OSError: As the disk says.
    """
    stray = [name for name in disk.list(directory) if name.endswith(_TEMPORARY_SUFFIX)]
    for file_name in stray:
        disk.unlink(os.path.join(directory, file_name))
    if stray:
        disk.sync_directory(directory)
    return bool(stray)


class _Output:
    """Collects bytes into pieces worth a system call, and sums them up."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self.size = 0
        self.crc = 0
        self._disk = disk
        self._handle = handle
        self._waiting: list[bytes] = []
        self._written = 0

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self.size += len(data)
        self.crc = zlib.crc32(data, self.crc)
        if self.size - self._written >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        write_all(self._disk, self._handle, b"".join(self._waiting), self._written)
        self._waiting.clear()
        self._written = self.size


def _write_file(
    disk: Disk, path: str, header: SegmentHeader, payloads: Iterable[bytes]
) -> None:
    """Write the file and sync it."""
    previous_crc = header.predecessor_crc

    def frame(kind: FrameType, payload: bytes) -> bytes:
        return pack_frame(
            header.salt,
            kind,
            payload,
            first_lsn=header.first_lsn,
            count=0,
            previous_crc=previous_crc,
            hlc=header.hlc,
            watermark=header.predecessor_last_lsn,
            bound=header.bound,
        )

    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, 0)  # A crash may have left a longer one.
        output = _Output(disk, handle)
        output.add(pack_segment_header(header, magic=SNAPSHOT_MAGIC))
        frames = 0
        for payload in payloads:
            data = frame(FrameType.SYNCED, payload)
            output.add(data)
            previous_crc = header_checksum(data)
            frames += 1
        end = _END.pack(frames, output.size, output.crc)
        output.add(frame(FrameType.FOOTER, end))
        output.flush()
        disk.sync_data(handle)
    finally:
        disk.close(handle)


def _read_back(disk: Disk, path: str, database: bytes) -> SnapshotInfo:
    try:
        return verify_snapshot(disk, path, database=database)
    except CorruptionError as damage:
        # The store is not damaged: this file was never part of it.
        text = f"the snapshot is not what was written ({damage.reason}); try again"
        raise OSError(errno.EIO, text, path) from damage
