"""How an opening begins to write: always in a new segment, never behind a torn tail.

After a scan the log is, with X the end of the last valid frame and w the end of the
last one proven to have been durable::

    … frame | frame | frame | frame | torn … zeros
                    w               X

The frames between w and X were read, but perhaps only from the page cache: a sync that
failed before may have been forgotten by the kernel. So they are written once more.

1. (in the scan) Every segment and the directory are synced, then read.
2. A new segment is built under a temporary name: its header says that the predecessor
   ends *at w*; then the frames w … X, sealed again with the new salt; then the
   caller's `opened` frame. Sync, rename, sync the directory. From here on the new
   segment counts, and what lies behind w in the old one is ignored.
3. What lies behind X is copied to `aside/`.
4. The old segment is cut behind the block with w.

A crash before the rename leaves the log as it was. After it the next scan finds a whole
segment, and the next opening does 3 and 4 again for whatever is longer than its
successor says. So a crash anywhere, and another one in the repair, give the same.

After a clean close the same steps run with nothing torn. One way for every opening
means that a torn frame behind a footer can only be damage. An opening costs a segment
of a few kilobytes, which goes with the next snapshot.

Appending behind a tail that was torn once has lost acknowledged writes elsewhere; so
has truncating without a sync. This module decides nothing about tasks: what `opened`
says and which number it takes is the caller's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wheeldb.disk import Disk
from wheeldb.errors import CorruptionError
from wheeldb.log.aside import keep_torn_bytes
from wheeldb.log.cursor import FrameCursor
from wheeldb.log.frame import (
    OPENED,
    Flaw,
    Frame,
    FrameType,
    header_checksum,
    lsn_bound,
    pack_frame,
)
from wheeldb.log.reader import LogEnd, LogScan, SegmentFile
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    Entropy,
    SegmentHeader,
    block_end,
    build_segment,
    new_salt,
    sync_file,
)
from wheeldb.log.source import ByteSource
from wheeldb.log.writer import LogWriter, Position

__all__ = ("Opening", "Repaired", "WriterOptions", "create", "repair")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The `opened` frame of the caller.

    Attributes:
        first_lsn: Its number; a hole in front of it is legal.
        count: How many numbers it covers.
        hlc: Its stamp.
        payload: What it says, bytes to the log.
    """

    first_lsn: int
    count: int
    hlc: int
    payload: bytes

    @property
    def last_lsn(self) -> int:
        """Return the last number covered."""
        return self.first_lsn + self.count - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How the writer that comes out shall write.

    Attributes:
        entropy: Gives each segment's salt.
        segment_bytes: When a segment is left.
        block_align: Whether synced frames begin on blocks of their own.
    """

    entropy: Entropy
    segment_bytes: int = 16 * 2**20
    block_align: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What an opening found and did.

    Attributes:
        writer: The log, ready for the next frame; all in it is durable.
        segments: How many segments the log had.
        is_clean: Whether the log had been closed.
        torn_path: The segment with the torn tail, None if there was none.
        torn_offset: Where the tail began.
        torn_bytes: How long it was.
        reason: What was wrong there.
        aside: Where its bytes are kept; None if there were none, or no room.
        sealed_frames: How many frames were written once more.
    """

    writer: LogWriter
    segments: int
    is_clean: bool
    torn_path: str | None
    torn_offset: int
    torn_bytes: int
    reason: str | None
    aside: str | None
    sealed_frames: int


def create(
    disk: Disk,
    directory: str,
    *,
    database: bytes,
    incarnation: int,
    opening: Opening,
    options: WriterOptions,
    previous_lsn: int = 0,
) -> LogWriter:
    """Begin a log in an empty directory; done again after a crash it gives the same.

    Args:
        disk: The seam to the file system.
        directory: Where the segments shall lie; it exists.
        database: The store's UUID.
        incarnation: The store's incarnation.
        opening: The first frame.
        options: How to write.
        previous_lsn: The number that the log follows, such as that of the snapshot
            from which a store is restored.

    Raises:
        LogSyncError: If a sync failed.
        OSError: If there is no room.
    """
    assert opening.first_lsn > previous_lsn, (
        f"LSN {opening.first_lsn} is not above {previous_lsn}"
    )
    header = SegmentHeader(
        incarnation=incarnation,
        database=database,
        number=1,
        salt=new_salt(options.entropy),
        first_lsn=previous_lsn + 1,
        predecessor_last_lsn=previous_lsn,
        predecessor_bytes=0,
        sealed_lsn=0,
        sealed_bytes=0,
        bound=0,
        hlc=0,
        predecessor_crc=0,
    )
    return _begin(disk, directory, header, (), opening, options)


def repair(
    disk: Disk,
    directory: str,
    aside: str,
    scan: LogScan,
    *,
    opening: Opening,
    options: WriterOptions,
    incarnation: int | None = None,
) -> Repaired:
    """Make the log ready for writing after a scan, whatever way it ended.

    Args:
        disk: The seam to the file system.
        directory: Where the segments lie.
        aside: Where torn tails are kept; it is made when one is.
        scan: A finished scan with `sync_first`.
        opening: The caller's frame. After a clean end it takes the next number, after
            anything else one that cannot have been handed out: the highest bound known.
        options: How to write.
        incarnation: The store's new incarnation; None keeps it.

    Raises:
        LogSyncError: If a sync failed.
        OSError: If there is no room for the new segment, and nothing has changed; or
            the torn bytes could not be kept for another reason than room.
    """
    end = scan.end
    old = end.segment.header
    assert opening.first_lsn > end.last_lsn, (
        f"LSN {opening.first_lsn} is not above {end.last_lsn}"
    )
    header = SegmentHeader(
        incarnation=old.incarnation if incarnation is None else incarnation,
        database=old.database,
        number=old.number + 1,
        salt=new_salt(options.entropy),
        first_lsn=end.watermark + 1,
        predecessor_last_lsn=end.watermark,
        predecessor_bytes=end.watermark_offset,
        sealed_lsn=0,
        sealed_bytes=0,
        bound=end.bound_highest,
        hlc=end.hlc_highest,
        predecessor_crc=end.watermark_crc,
    )
    with ByteSource(disk, end.segment.path) as source:
        unproven = _frames_behind_watermark(source, end)
        writer = _begin(disk, directory, header, unproven, opening, options)
    try:
        kept = None
        if end.torn_bytes:
            kept = keep_torn_bytes(disk, end.segment.path, end.torn_offset, aside)
        _cut(disk, end.segment, end.watermark_offset)
        for segment in scan.segments[:-1]:
            _finish_earlier(disk, segment, aside)
    except BaseException:
        writer.close()
        raise
    return Repaired(
        writer=writer,
        segments=len(scan.segments),
        is_clean=end.is_clean,
        torn_path=end.segment.path if end.torn_bytes else None,
        torn_offset=end.torn_offset,
        torn_bytes=end.torn_bytes,
        reason=end.reason,
        aside=kept,
        sealed_frames=writer.position.frames - 1,
    )


def _begin(
    disk: Disk,
    directory: str,
    header: SegmentHeader,
    unproven: Iterable[Frame],
    opening: Opening,
    options: WriterOptions,
) -> LogWriter:
    """Build the segment of an opening and return the writer behind its last frame."""
    header = header._replace(sealed_lsn=opening.last_lsn)
    last: list[bytes] = []
    frames = 0

    def seal() -> Iterator[bytes]:
        nonlocal frames
        for data in _sealed(header, unproven, opening):
            last[:] = [data]
            frames += 1
            yield data

    fd, header = build_segment(disk, directory, header, seal())
    position = Position(
        header=header,
        fd=fd,
        offset=header.sealed_bytes,
        previous_crc=header_checksum(last[0]),
        last_lsn=opening.last_lsn,
        zeroed_bytes=header.sealed_bytes,
        last_type=FrameType.SYNCED,
        bound=max(header.bound, lsn_bound(opening.last_lsn)),
        hlc=max(header.hlc, opening.hlc),
        frames=frames,
        frame_bytes=header.sealed_bytes - SEGMENT_HEADER_BYTES,
        bytes_written=header.sealed_bytes,
        previous_fd=None,
    )
    return LogWriter(
        disk,
        directory,
        position,
        entropy=options.entropy,
        segment_bytes=options.segment_bytes,
        block_align=options.block_align,
    )


def _sealed(
    header: SegmentHeader, unproven: Iterable[Frame], opening: Opening
) -> Iterator[bytes]:
    """Yield the frames of a new segment: the unproven ones again, then `opened`."""
    crc = header.predecessor_crc
    for frame in unproven:
        old = frame.header
        data = pack_frame(
            header.salt,
            old.type,
            frame.payload,
            first_lsn=old.first_lsn,
            count=old.lsn_count,
            previous_crc=crc,
            hlc=old.hlc,
            watermark=old.watermark,
            bound=old.bound,
            flags=old.flags,
        )
        crc = header_checksum(data)
        yield data
    yield pack_frame(
        header.salt,
        FrameType.SYNCED,
        opening.payload,
        first_lsn=opening.first_lsn,
        count=opening.count,
        previous_crc=crc,
        hlc=opening.hlc,
        watermark=header.predecessor_last_lsn,
        bound=lsn_bound(opening.last_lsn),
        flags=OPENED,
    )


def _frames_behind_watermark(source: ByteSource, end: LogEnd) -> Iterator[Frame]:
    """Yield what was read between w and X; empty watermark frames say nothing more."""
    cursor = FrameCursor(source, end.segment.header, end.offset)
    cursor.offset = end.watermark_offset
    cursor.last_lsn = end.watermark
    cursor.previous_crc = end.watermark_crc
    while cursor.offset < end.offset:
        found = cursor.next()
        if isinstance(found, Flaw):
            raise CorruptionError(
                f"{found}, although it was read a moment ago",
                path=source.path,
                offset=cursor.torn_offset,
                lsn=cursor.last_lsn + 1,
            )
        if found.header.type != FrameType.WATERMARK:
            yield found


def _finish_earlier(disk: Disk, segment: SegmentFile, aside: str) -> None:
    """Do what a crash in an earlier repair has left undone."""
    assert segment.successor is not None, f"{segment.path} is the last"
    named = segment.successor.predecessor_bytes
    if segment.file_bytes > block_end(named):
        keep_torn_bytes(disk, segment.path, named, aside)
        _cut(disk, segment, named)


def _cut(disk: Disk, segment: SegmentFile, end_bytes: int) -> None:
    """Cut a segment where its successor says that it ends."""
    end_bytes = block_end(end_bytes)
    if segment.file_bytes <= end_bytes:
        return
    fd = disk.open(segment.path)
    try:
        disk.truncate(fd, end_bytes)
        sync_file(disk, fd, segment.path)
    finally:
        disk.close(fd)
