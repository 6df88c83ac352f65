"""The reading end of the log: every frame in order, and where the log ends.

::

    scan = LogScan(disk, "log", database=uuid, from_lsn=snapshot_lsn)
    for frame in scan:
        replay(frame.payload)
    scan.end.torn_bytes        # 0, or what the last power cut left behind

A segment that has a successor must be whole up to the end that the successor names.
Only the last one may end anyhow; what its first invalid frame means is decided by
`wheeldb.log.tail`. So a scan gives all frames up to the end of the log, or raises
CorruptionError with file, offset and LSN; it never stops silently in between, as
readers that truncate at the first bad checksum do (google/leveldb#251).

Reading streams: at most one piece of 1 MiB and one frame are in memory. Nothing is
changed on disk; that is `wheeldb.log.repair`.
"""

import os.path
from collections.abc import Iterator
from dataclasses import dataclass

from wheeldb.disk import Disk
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.cursor import FrameCursor
from wheeldb.log.frame import Flaw, Frame
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentName,
    list_segments,
    parse_segment_header,
    sync_directory,
    sync_file,
)
from wheeldb.log.source import ByteSource
from wheeldb.log.tail import Tail, inspect_tail, refusal_of

__all__ = ("LogEnd", "LogScan", "SegmentFile", "read_segment_header")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment as found.

    Attributes:
        path: The file.
        header: Its verified header.
        file_bytes: How long the file is.
        successor: The header behind it, which says where this segment ends.
    """

    path: str
    header: SegmentHeader
    file_bytes: int
    successor: SegmentHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where the log ends, and how much of it is proven to have been durable.

    Attributes:
        segment: The last segment.
        offset: Where the last valid frame ends.
        last_lsn: The last number in a valid frame.
        watermark: The last number that the log itself proves to be durable.
        watermark_offset: Where the frame with that number ends, in the last segment.
        watermark_crc: That frame's header CRC.
        torn_offset: Where the next frame should stand: at `offset`, or on the block
            behind it.
        torn_bytes: Bytes from there to the last one that is not zero.
        reason: What is wrong there; None if there are only zeros or nothing.
        footer: The frame of a clean close, if the log ends with one.
        bound_highest: The highest LSN bound met, also behind `offset`.
        hlc_highest: The highest stamp met.
        frames: How many frames were read.
    """

    segment: SegmentFile
    offset: int
    last_lsn: int
    watermark: int
    watermark_offset: int
    watermark_crc: int
    torn_offset: int
    torn_bytes: int
    reason: str | None
    footer: Frame | None
    bound_highest: int
    hlc_highest: int
    frames: int

    @property
    def is_clean(self) -> bool:
        """Return whether the log was closed."""
        return self.footer is not None


class LogScan:
    """One pass over the log; `end` is there when it was iterated to its end."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        database: bytes | None,
        from_lsn: int = 0,
        proven_lsn: int = 0,
        sync_first: bool = False,
        archive: str | None = None,
    ) -> None:
        """List the segments and verify their headers.

        Args:
            disk: The seam to the file system.
            directory: Where the segments lie.
            database: The UUID that they must have; None takes the first one's.
            from_lsn: Frames that end at or below it are passed over, and segments that
                end there are not read. A snapshot's LSN: it was durable.
            proven_lsn: Another LSN known from elsewhere to have been durable, such as
                a checkpoint's. A log that ends below either is damaged.
            sync_first: For an opening that will write: nothing may be decided on bytes
                that only the page cache has.
            archive: Where retired segments lie, if they are to be read as well.

        Raises:
            CorruptionError: If a header is damaged, a segment missing or too short.
            FormatError: If a segment is of another database or a newer format.
            LogSyncError: If `sync_first` failed.
            FileNotFoundError: If the owner, which is at work beside this reader, has
                just retired a segment: begin again.
        """
        self.directory = directory
        self.from_lsn = from_lsn
        self.proven_lsn = max(from_lsn, proven_lsn)
        self._disk = disk
        self._archive = archive
        self._end: LogEnd | None = None
        self._frames = 0
        if sync_first:
            self._sync_all()
        self.segments = self._find_segments(database)

    @property
    def end(self) -> LogEnd:
        """Return where the log ends; only known once every frame was read."""
        if self._end is None:
            raise RuntimeError("the end is known when the scan was iterated to its end")
        return self._end

    def finish(self) -> LogEnd:
        """Read what is left without keeping it, and return the end.

        Raises:
            CorruptionError, FormatError: As iterating does.
        """
        if self._end is None:
            for _ in self:
                pass
        return self.end

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames with numbers above `from_lsn`, in order.

        Raises:
            CorruptionError: If there is damage that no crash explains.
            FormatError: If a frame is of a newer format.
        """
        self._frames = 0
        for segment in self.segments:
            successor = segment.successor
            if successor is None:
                yield from self._read_last(segment)
            elif successor.predecessor_last_lsn > self.from_lsn:
                yield from self._read_whole(segment, successor)

    def _read_whole(
        self, segment: SegmentFile, successor: SegmentHeader
    ) -> Iterator[Frame]:
        with ByteSource(self._disk, segment.path) as source:
            cursor = FrameCursor(source, segment.header, successor.predecessor_bytes)
            while cursor.offset < cursor.limit:
                found = cursor.next()
                if isinstance(found, Flaw):
                    raise CorruptionError(
                        f"{found}, and this is not the last segment",
                        path=segment.path,
                        offset=cursor.torn_offset,
                        lsn=cursor.last_lsn + 1,
                    )
                self._frames += 1
                if self._is_wanted(found):
                    yield found
        named = (
            successor.predecessor_bytes,
            successor.predecessor_last_lsn,
            successor.predecessor_crc,
        )
        if (cursor.offset, cursor.last_lsn, cursor.previous_crc) != named:
            raise CorruptionError(
                f"the segment does not end as {successor.name.file_name} says",
                path=segment.path,
                offset=cursor.offset,
                lsn=cursor.last_lsn,
            )

    def _read_last(self, segment: SegmentFile) -> Iterator[Frame]:
        with ByteSource(self._disk, segment.path) as source:
            self._disk.drop_cache(source.fd)
            cursor = FrameCursor(source, segment.header, source.size())
            found = cursor.next()
            while True:
                if isinstance(found, Frame):
                    self._frames += 1
                    if self._is_wanted(found):
                        yield found
                    found = cursor.next()
                    continue
                tail = inspect_tail(source, segment.header, cursor.torn_offset)
                refusal = refusal_of(
                    found,
                    tail,
                    next_lsn=cursor.last_lsn + 1,
                    proven_lsn=max(self.proven_lsn, segment.header.sealed_lsn),
                )
                if refusal is None:
                    break
                # A log that its owner writes at this moment grows behind our back:
                # what was not there a moment ago may be whole now.
                source.forget()
                cursor.limit = source.size()
                found = cursor.next()
                if isinstance(found, Flaw):
                    raise CorruptionError(
                        refusal,
                        path=segment.path,
                        offset=cursor.torn_offset,
                        lsn=cursor.last_lsn + 1,
                    )
        self._end = self._end_of(segment, cursor, tail, found)

    def _end_of(
        self, segment: SegmentFile, cursor: FrameCursor, tail: Tail, flaw: Flaw
    ) -> LogEnd:
        return LogEnd(
            segment=segment,
            offset=cursor.offset,
            last_lsn=cursor.last_lsn,
            watermark=cursor.watermark,
            watermark_offset=cursor.watermark_offset,
            watermark_crc=cursor.watermark_crc,
            torn_offset=cursor.torn_offset,
            torn_bytes=tail.torn_bytes,
            reason=str(flaw) if tail.torn_bytes else None,
            footer=cursor.footer,
            bound_highest=max(cursor.bound_highest, tail.bound_highest),
            hlc_highest=max(cursor.hlc_highest, tail.hlc_highest),
            frames=self._frames,
        )

    def _is_wanted(self, frame: Frame) -> bool:
        return frame.header.lsn_count > 0 and frame.header.last_lsn > self.from_lsn

    def _sync_all(self) -> None:
        for name in list_segments(self._disk, self.directory):
            path = os.path.join(self.directory, name.file_name)
            with ByteSource(self._disk, path) as source:
                sync_file(self._disk, source.fd, path)
        sync_directory(self._disk, self.directory)

    def _find_segments(self, database: bytes | None) -> list[SegmentFile]:
        names = list_segments(self._disk, self.directory)
        if not names:
            raise CorruptionError(
                "there is no segment of the log", path=self.directory, lsn=self.from_lsn
            )
        paths = [os.path.join(self.directory, name.file_name) for name in names]
        if self._archive is not None:
            archived = list_segments(self._disk, self._archive)
            older = [name for name in archived if name < names[0]]
            files = [os.path.join(self._archive, name.file_name) for name in older]
            names, paths = [*older, *names], [*files, *paths]
        found: list[tuple[SegmentHeader, int]] = []
        for name, path in zip(names, paths, strict=True):
            header, size = read_segment_header(self._disk, path, name, database)
            found.append((header, size))
            database = header.database
        headers = [header for header, _ in found]
        successors: list[SegmentHeader | None] = [*headers[1:], None]
        segments = [
            SegmentFile(path=path, header=header, file_bytes=size, successor=successor)
            for path, (header, size), successor in zip(
                paths, found, successors, strict=True
            )
        ]
        self._check_segments(segments)
        return segments

    def _check_segments(self, segments: list[SegmentFile]) -> None:
        first = segments[0]
        if first.header.predecessor_last_lsn > self.from_lsn:
            raise CorruptionError(
                f"the log begins here, but LSN {self.from_lsn + 1} and those behind it "
                "are needed: older segments are missing",
                path=first.path,
                lsn=self.from_lsn + 1,
            )
        for segment in segments:
            successor = segment.successor
            if successor is None:
                continue
            if successor.number != segment.header.number + 1:
                raise CorruptionError(
                    f"the next segment is number {successor.number}: those in between "
                    "are missing",
                    path=segment.path,
                    lsn=successor.first_lsn,
                )
            if segment.file_bytes < successor.predecessor_bytes:
                raise CorruptionError(
                    f"the file has {segment.file_bytes} bytes, its successor says "
                    f"{successor.predecessor_bytes}",
                    path=segment.path,
                    offset=segment.file_bytes,
                )


def read_segment_header(
    disk: Disk, path: str, name: SegmentName, database: bytes | None
) -> tuple[SegmentHeader, int]:
    """Return the verified header of a segment, and how long the file is.

    Args:
        disk: The seam to the file system.
        path: The file.
        name: What it is called.
        database: The UUID that it must have; None takes its own.

    Raises:
        CorruptionError: If the header is damaged, or that of another segment.
        FormatError: If it is of another database or a newer format.
    """
    with ByteSource(disk, path, piece_bytes=SEGMENT_HEADER_BYTES) as source:
        header = parse_segment_header(source.read(0, SEGMENT_HEADER_BYTES), path=path)
        size = source.size()
    if header.name != name:
        raise CorruptionError(
            f"by its header the file is {header.name.file_name}",
            path=path,
            offset=0,
            lsn=name.first_lsn,
        )
    if database is not None and header.database != database:
        raise FormatError(
            f"{path} belongs to database {header.database.hex()}, this store is "
            f"{database.hex()}: move the file out of the directory"
        )
    return header, size
