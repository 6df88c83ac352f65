"""The writing end of the log: place, write, landed; rotate; retire.

The engine's group commit drives it step by step::

    if writer.must_rotate(len(payload)):
        writer.rotate()
    placed = writer.place(FrameType.SYNCED, payload, first_lsn=41, count=3, …)
    writer.write(placed)                              # bytes in the page cache
    done.extend(map(writer.sync_data, (writer.fd,)))  # durable
    writer.landed(placed)                             # the cursor moves on

A KeyboardInterrupt may fall between any two bytecodes, and then another thread takes
the group up at the step it had reached. So every step can be begun again from its
start with the same object: `place` changes nothing, `write` is a pwrite of the same
bytes at the same offset, and `landed` and `rotate` end in one assignment of a
value that nobody changes, which happens whole or not at all.

The writer takes no lock: one caller at a time, but for `sync_data`, which may run
beside a `write` of an unsynced frame. It knows bytes and LSNs; who waits for what,
and what a failure means for the store, is the engine's.
"""

import contextlib
import itertools
import os.path
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wheeldb.disk import NO_ROOM, Disk, write_all
from wheeldb.log.frame import (
    HEADER_BYTES,
    OPENED,
    FrameHeader,
    FrameType,
    frame_bytes,
    header_checksum,
    pack_frame,
    parse_header,
)
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    Entropy,
    SegmentHeader,
    block_end,
    build_segment,
    list_segments,
    new_salt,
    sync_directory,
    sync_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("LogStatistics", "LogWriter", "Placed", "Position")

_ZEROED_AHEAD_BYTES = 2**20
_ZEROS = bytes(_ZEROED_AHEAD_BYTES)


# Of both there is one for every frame. They are never changed; to be frozen would take
# twice as long.
@dataclass(slots=True)
class Position:
    """Where the log stands: everything that a step changes, changed at once."""

    header: SegmentHeader
    fd: int
    offset: int
    previous_crc: int
    last_lsn: int
    zeroed_bytes: int
    last_type: FrameType | None
    # The highest of the whole log.
    bound: int
    hlc: int
    # Totals since the log was opened.
    frames: int
    frame_bytes: int
    bytes_written: int
    # The descriptor of the segment before. A sync may still be running on it.
    previous_fd: int | None


@dataclass(slots=True)
class Placed:
    """A frame with its place; nothing of it is written yet."""

    data: bytes
    offset: int
    zeros_behind: int
    before: Position
    after: Position

    @property
    def end(self) -> int:
        """Return the offset of the first byte behind the frame."""
        return self.offset + len(self.data)

    @property
    def last_lsn(self) -> int:
        """Return the last LSN that the log holds once this has landed."""
        return self.after.last_lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Counts since the log was opened; sizes in bytes."""

    segment: int
    segment_bytes: int
    segment_bytes_max: int
    last_lsn: int
    frames: int
    frame_bytes: int
    bytes_written: int
    rotations: int


class LogWriter:
    """Appends frames to the last segment and begins the next one.

    Made by `wheeldb.log.repair`, never on a segment that another opening has written.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        position: Position,
        *,
        entropy: Entropy,
        segment_bytes: int,
        block_align: bool,
    ) -> None:
        """Take over a segment just built.

        Args:
            disk: The seam to the file system.
            directory: Where the segments lie.
            position: The end of the segment; its descriptor now belongs to the writer.
            entropy: Gives each segment's salt.
            segment_bytes: A segment is left when the next frame would not fit.
            block_align: Let every synced frame begin on a block of its own, so that no
                block with acknowledged bytes is ever written again. For media that may
                damage bytes beside those being written.
        """
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.block_align = block_align
        # The disk's own function, so that a caller can let C code store its answer.
        self.sync_data: Callable[[int], None] = disk.sync_data
        self._disk = disk
        self._entropy = entropy
        # Where the log stands. Moved by the writer alone, read by everybody.
        self.position = position
        self._first_number = position.header.number

    @property
    def fd(self) -> int:
        """Return the last segment's descriptor; it stays open over one rotation."""
        return self.position.fd

    @property
    def last_lsn(self) -> int:
        """Return the last LSN that landed, synced or not."""
        return self.position.last_lsn

    @property
    def path(self) -> str:
        """Return the last segment's path."""
        return self._path(self.position)

    def must_rotate(self, payload_length: int) -> bool:
        """Return whether a frame belongs into the next segment.

        One that is larger than a segment gets an empty segment for itself.
        """
        offset = self.position.offset
        end = offset + frame_bytes(payload_length)
        return end > self.segment_bytes and offset > SEGMENT_HEADER_BYTES

    def place(
        self,
        kind: FrameType,
        payload: bytes,
        first_lsn: int,
        count: int,
        hlc: int,
        watermark: int,
        bound: int,
        *,
        align: bool = True,
        is_opened: bool = False,
    ) -> Placed:
        """Return the frame's bytes and place; nothing changes.

        Args:
            kind: Whether a sync of its own follows, or what else the frame is.
            payload: The caller's bytes.
            first_lsn: The number after `last_lsn`, or a later one with `is_opened`.
            count: How many numbers the frame covers; 0 for an empty frame.
            hlc: The frame's stamp.
            watermark: The highest LSN known to be durable.
            bound: The LSN that no event may reach once this frame is synced.
            align: False writes without padding, for the events that must still fit
                on a full disk.
            is_opened: Whether the numbers may jump forward in front of the frame: one
                that another log began with, taken over as it is.

        Raises:
            ValueError: If the payload is over 32 MiB.
        """
        before = self.position
        jump = first_lsn - before.last_lsn - 1
        assert jump == 0 or (is_opened and jump > 0), (
            f"LSN {first_lsn} does not follow {before.last_lsn}"
        )
        data = pack_frame(
            before.header.salt,
            kind,
            payload,
            first_lsn,
            count,
            before.previous_crc,
            hlc,
            watermark,
            bound,
            OPENED if is_opened else 0,
        )
        offset = before.offset
        if align and self.block_align and self._needs_block(kind, before, watermark):
            offset = block_end(offset)
        size = len(data)
        end = offset + size
        # A frame that crosses the line of what is zeroed takes the next piece along;
        # the zeros never go beyond the segment, the frame may.
        zeroed = before.zeroed_bytes
        zeros = 0
        if end > zeroed:
            line = min(end + -end % _ZEROED_AHEAD_BYTES, self.segment_bytes)
            zeroed = max(end, line)
            zeros = zeroed - end
        after = Position(
            before.header,
            before.fd,
            end,
            header_checksum(data),
            first_lsn + count - 1,
            zeroed,
            kind,
            bound if bound > before.bound else before.bound,
            hlc if hlc > before.hlc else before.hlc,
            before.frames + 1,
            before.frame_bytes + size,
            before.bytes_written + size + zeros,
            before.previous_fd,
        )
        return Placed(data, offset, zeros, before, after)

    def write(self, placed: Placed) -> None:
        """Write the frame into its place, and zeros ahead if it crosses their line.

        Overwriting zeroed blocks needs no change of the file's own records at the next
        sync. The zeros are a help, not a need: no room for them is no error.

        Raises:
            OSError: If the frame could not be written whole. On ENOSPC the log can go
                on: the cursor has not moved, call `undo_write`. After anything else
                nobody knows what the file holds.
        """
        fd = placed.before.fd
        write_all(self._disk, fd, placed.data, placed.offset)
        if placed.zeros_behind:
            zeros = memoryview(_ZEROS)[: placed.zeros_behind]
            try:
                write_all(self._disk, fd, zeros, placed.end)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise

    def undo_write(self, placed: Placed) -> bool:
        """Take back what a write without room has left; return whether that worked.

        The leftover is never read as a frame: part of it is missing. Without it the
        end of the log reads as clean, and its blocks are free for others.
        """
        before = placed.before
        with contextlib.suppress(OSError):
            size = self._disk.size(before.fd)
            kept = max(block_end(before.offset), min(before.zeroed_bytes, size))
            if size > kept:
                self._disk.truncate(before.fd, kept)
            dirty = min(placed.end, kept) - placed.offset
            if dirty > 0:
                write_all(self._disk, before.fd, bytes(dirty), placed.offset)
            return True
        return False

    def landed(self, placed: Placed) -> None:
        """Move the cursor behind a written frame; a repetition does nothing."""
        if self.position is placed.before:
            self.position = placed.after

    def rotate(self) -> int:
        """Leave the segment and begin the next; return the LSN durable by that.

        Ensures:
            1. The old segment is cut at its end and synced, unsynced frames included,
               before the new one has a name.
            2. The cursor moves in one assignment, at the end. Begun again before it,
               the same new segment is built; after it, nothing happens.
            3. The old descriptor stays open until the next rotation, since a sync may
               be running on it.

        Raises:
            LogSyncError: If a sync failed: what is durable is unknown.
            OSError: If there is no room; the old segment can still be written.
        """
        before = self.position
        if before.offset <= SEGMENT_HEADER_BYTES:
            return before.last_lsn  # Ensures 2
        self._disk.truncate(before.fd, block_end(before.offset))
        sync_file(self._disk, before.fd, self._path(before))  # Ensures 1
        header = SegmentHeader(
            incarnation=before.header.incarnation,
            database=before.header.database,
            number=before.header.number + 1,
            salt=new_salt(self._entropy),
            first_lsn=before.last_lsn + 1,
            predecessor_last_lsn=before.last_lsn,
            predecessor_bytes=before.offset,
            sealed_lsn=before.last_lsn,
            sealed_bytes=0,
            bound=before.bound,
            hlc=before.hlc,
            predecessor_crc=before.previous_crc,
        )
        fd, header = build_segment(self._disk, self.directory, header)
        self.position = replace(
            before,
            header=header,
            fd=fd,
            offset=SEGMENT_HEADER_BYTES,
            zeroed_bytes=SEGMENT_HEADER_BYTES,
            last_type=None,
            bytes_written=before.bytes_written + SEGMENT_HEADER_BYTES,
            previous_fd=before.fd,
        )
        # From here on an interrupt leaks one descriptor at most; closing it twice
        # could hit a file of somebody else.
        if before.previous_fd is not None:
            self._disk.close(before.previous_fd)
        return before.last_lsn

    def retire(self, before_lsn: int, *, archive: str | None = None) -> tuple[int, ...]:
        """Remove the segments that hold only LSNs below `before_lsn`, oldest first.

        Each removal is made durable before the next, so that a crash can't leave a hole
        in the numbers of the segments.

        Args:
            before_lsn: The first LSN that is still needed.
            archive: Move them to this directory instead.

        Returns:
            The numbers of the segments that are gone.

        Raises:
            LogSyncError: If a sync failed.
            OSError: If a file could not be removed.
        """
        names = list_segments(self._disk, self.directory)
        gone: list[int] = []
        for name, successor in itertools.pairwise(names):
            if successor.first_lsn > before_lsn:
                break
            path = os.path.join(self.directory, name.file_name)
            if archive is None:
                self._disk.unlink(path)
            else:
                self._disk.rename(path, os.path.join(archive, name.file_name))
                sync_directory(self._disk, archive)
            sync_directory(self._disk, self.directory)
            gone.append(name.number)
        return tuple(gone)

    def cut(self) -> None:
        """Give back the zeros behind the last frame, durably; the last step of a close.

        Raises:
            LogSyncError: If the sync failed.
            OSError: If the file could not be cut.
        """
        position = self.position
        self._disk.truncate(position.fd, block_end(position.offset))
        sync_file(self._disk, position.fd, self._path(position))

    def close(self) -> None:
        """Close the descriptors; nothing is written or synced. Call it once."""
        position = self.position
        self.position = replace(position, previous_fd=None)
        if position.previous_fd is not None:
            self._disk.close(position.previous_fd)
        self._disk.close(position.fd)

    def check(self) -> list[str]:
        """Return what is wrong between the cursor and the file; reads one header."""
        position = self.position
        findings: list[str] = []
        size = self._disk.size(position.fd)
        if size < position.offset:
            findings.append(
                f"{self.path} has {size} bytes, but its frames end at {position.offset}"
            )
        header = position.header
        block = self._disk.pread(position.fd, HEADER_BYTES, position.offset)
        if isinstance(parse_header(block, 0, header.salt), FrameHeader):
            findings.append(
                f"{self.path} has a frame at byte {position.offset}, behind its end"
            )
        if position.last_lsn < header.predecessor_last_lsn:
            findings.append(
                f"LSN {position.last_lsn} is below the {header.predecessor_last_lsn} "
                f"with which {self.path} began"
            )
        return findings

    def statistics(self) -> LogStatistics:
        """Return the counts at this moment."""
        position = self.position
        return LogStatistics(
            segment=position.header.number,
            segment_bytes=position.offset,
            segment_bytes_max=self.segment_bytes,
            last_lsn=position.last_lsn,
            frames=position.frames,
            frame_bytes=position.frame_bytes,
            bytes_written=position.bytes_written,
            rotations=position.header.number - self._first_number,
        )

    def _needs_block(self, kind: FrameType, before: Position, watermark: int) -> bool:
        # Unsynced frames may share a block with each other: nobody was promised that
        # they survive a power cut. With a synced frame they may not, nor with those
        # that a sync has reached meanwhile.
        return (
            kind != FrameType.UNSYNCED
            or before.last_type != FrameType.UNSYNCED
            or before.last_lsn <= watermark
        )

    def _path(self, position: Position) -> str:
        return os.path.join(self.directory, position.header.name.file_name)
