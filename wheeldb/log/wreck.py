"""What is left of a damaged log: every frame that proves itself, and what lies between.

    wreck = Wreck(disk, ["log"], from_lsn=snapshot_lsn)
    for frame in wreck:
        save(frame.payload)
    wreck.dropped        # ["log/00000003-….seg: bytes 8192–9104: …; LSN 17 is lost"]

`LogScan` refuses at the first damage; this goes on past it. A sector that can't be read
counts as zeros, a broken frame is searched over for the next one, a segment's salt is
found in its first frame if the header is gone, and a missing segment is a hole. Three
rules still hold, or what was taken back would come back:

- A segment ends where its successor says.  Behind that lies what a repair has cut off.
- In the last segment, what may be the torn end of a power cut is no damage; it is
  counted, not saved.
- Numbers only rise.  A frame that an opening has sealed again is given once.

Whole files are in memory, one at a time.  Nothing is changed on disk.
"""

import errno
import os.path
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wheeldb.disk import Disk
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.frame import (
    HEADER_BYTES,
    Flaw,
    Frame,
    FrameHeader,
    find_next_frame,
    frame_bytes,
    parse_header,
    payload_checksum,
)
from wheeldb.log.segment import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentName,
    block_end,
    list_segments,
    parse_segment_header,
)
from wheeldb.log.source import PIECE_BYTES

__all__ = ("Wreck",)


class _File(NamedTuple):
    name: SegmentName
    path: str
    header: SegmentHeader | None
    # Why there is no header.
    reason: str


class Wreck:
    """The segments of a log that may be damaged anywhere; iterate it once."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        *,
        database: bytes | None,
        from_lsn: int = 0,
        proven_lsn: int = 0,
    ) -> None:
        """Look at the segments' headers.

        Args:
            disk: The seam to the file system.
            directories: Where segments lie.
            database: The UUID that they must have; None takes the first one's.
            from_lsn: Frames that end at or below it are passed over.
            proven_lsn: An LSN that is known to have been durable.

        Raises:
            FormatError: If a segment is of a newer format.
        """
        self.database = database
        self.dropped: list[str] = []
        self.torn_bytes = 0
        self.last_lsn = from_lsn
        self._disk = disk
        self._from_lsn = from_lsn
        self._proven_lsn = max(from_lsn, proven_lsn)
        # Damage passed over, until the next frame tells which numbers it held.
        self._damage: list[str] = []
        self._files = self._find_files(directories)
        self.segments = len(self._files)

    @property
    def first_lsn(self) -> int | None:
        """Return the first number of the oldest segment, None without one."""
        return self._files[0].name.first_lsn if self._files else None

    def __iter__(self) -> Iterator[Frame]:
        """Yield every whole frame with numbers above `from_lsn`, in order.

        Raises:
            FormatError: If a frame is of a newer format.
            OSError: As the disk says, but for sectors that can't be read.
        """
        for position, file in enumerate(self._files):
            following = self._files[position + 1 : position + 2]
            successor = following[0] if following else None
            if position:
                self._tell_missing(self._files[position - 1].name, file.name)
            if (
                successor is not None
                and successor.name.number == file.name.number + 1
                and successor.name.first_lsn <= self._from_lsn + 1
            ):
                continue
            yield from self._read(file, successor)
        if self._proven_lsn > self.last_lsn:
            self._damage.append("the end of the log is missing")
        self._tell(self._proven_lsn)

    def note_hole(self, frame: Frame, after_lsn: int) -> None:
        """Say that a frame behind a legal hole names the number before the hole."""
        if after_lsn > self.last_lsn:
            if not self._damage:
                self._damage.append(f"{self.path_of(frame)}: in front of its opening")
            self._tell(after_lsn)

    def path_of(self, frame: Frame) -> str:
        """Return the file that a frame was found in."""
        return next(
            file.path for file in self._files if file.name.number == frame.segment
        )

    # Files.

    def _find_files(self, directories: Sequence[str]) -> list[_File]:
        paths: dict[SegmentName, str] = {}
        for directory in directories:
            if self._disk.info(directory) is not None:
                for name in list_segments(self._disk, directory):
                    paths.setdefault(name, os.path.join(directory, name.file_name))
        files = []
        for name, path in sorted(paths.items()):
            header, reason = self._header(path)
            if header is not None and self.database is None:
                self.database = header.database
            if header is not None and header.database != self.database:
                self.dropped.append(
                    f"{path}: the file belongs to database {header.database.hex()}"
                )
                continue
            if header is not None and header.name != name:
                self.dropped.append(
                    f"{path}: by its header the file is {header.name.file_name}; it "
                    "was read as that"
                )
                name = header.name
            files.append(_File(name, path, header, reason))
        return sorted(files, key=lambda file: file.name)

    def _header(self, path: str) -> tuple[SegmentHeader | None, str]:
        handle = self._disk.open(path, readonly=True)
        try:
            block = self._disk.pread(handle, SEGMENT_HEADER_BYTES, 0)
            return parse_segment_header(block, path=path), ""
        except CorruptionError as error:
            return None, error.reason
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None, f"the medium cannot read the header ({error.strerror})"
        finally:
            self._disk.close(handle)

    def _load(self, path: str) -> bytes:
        """Return a file's bytes; blocks that can't be read are zeros, and told."""
        handle = self._disk.open(path, readonly=True)
        try:
            size = self._disk.size(handle)
            pieces = []
            for offset in range(0, size, PIECE_BYTES):
                length = min(PIECE_BYTES, size - offset)
                piece = self._pread(handle, length, offset)
                if piece is None:
                    piece = self._load_blocks(handle, path, length, offset)
                pieces.append(piece.ljust(length, b"\0"))
            return b"".join(pieces)
        finally:
            self._disk.close(handle)

    def _load_blocks(self, handle: int, path: str, length: int, start: int) -> bytes:
        blocks = []
        unreadable: list[list[int]] = []
        for offset in range(start, start + length, BLOCK_BYTES):
            wanted = min(BLOCK_BYTES, start + length - offset)
            block = self._pread(handle, wanted, offset)
            if block is None:
                if not unreadable or unreadable[-1][1] != offset:
                    unreadable.append([offset, offset])
                unreadable[-1][1] = offset + wanted
                block = b""
            blocks.append(block.ljust(wanted, b"\0"))
        self._damage += [
            f"{path}: bytes {first}–{end}: the medium cannot read them"
            for first, end in unreadable
        ]
        return b"".join(blocks)

    def _pread(self, handle: int, length: int, offset: int) -> bytes | None:
        data = b""
        try:
            while len(data) < length:
                more = self._disk.pread(handle, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        return data

    # Frames.

    def _read(self, file: _File, successor: _File | None) -> Iterator[Frame]:
        data = self._load(file.path)
        salt = file.header.salt if file.header is not None else _find_salt(data)
        if file.header is None:
            self._damage.append(f"{file.path}: {file.reason}")
        if salt is None:
            self._damage.append(f"{file.path}: there is no whole frame")
            return
        end = _end_of(file, successor)
        if end is None:
            # Only zeros behind the last byte are the room that was not used yet.
            end = len(data.rstrip(b"\0"))
            end = min(len(data), end + -end % 8)
        elif end > len(data):
            self._damage.append(f"{file.path}: the file has {len(data)} bytes of {end}")
        offset = SEGMENT_HEADER_BYTES
        while offset < min(end, len(data)):
            found = _frame_at(data, salt, offset, end, file)
            if isinstance(found, Flaw) and found is Flaw.FORMAT:
                raise FormatError(
                    f"{file.path} has a frame of another format at byte {offset}: "
                    "open it with the release that wrote it"
                )
            if isinstance(found, Flaw):
                if successor is None and self._is_torn_end(data, salt, offset, file):
                    return
                following = _next_frame(data, salt, offset + 8, end, file)
                stop = end if following is None else following.offset
                self._damage.append(f"{file.path}: bytes {offset}–{stop}: {found}")
                if following is None:
                    return
                found = following
            offset = found.end
            if found.header.lsn_count and found.header.last_lsn > self.last_lsn:
                header = found.header
                if header.first_lsn > self.last_lsn + 1 and not header.is_opened:
                    if not self._damage:
                        self._damage.append(f"{file.path}: in front of byte {offset}")
                    self._tell(header.first_lsn - 1)
                elif not header.is_opened:
                    self._tell(self.last_lsn)
                yield found
                self._tell(self.last_lsn)
                self.last_lsn = header.last_lsn

    def _is_torn_end(self, data: bytes, salt: bytes, offset: int, file: _File) -> bool:
        """Return whether an opening would take the rest for torn, and count it."""
        rest = len(data[offset:].rstrip(b"\0"))
        watermark = 0
        position = offset + 8
        while found := find_next_frame(data, salt, position):
            position, header = found[0] + 8, found[1]
            watermark = max(watermark, header.watermark)
        sealed = file.header.sealed_lsn if file.header is not None else 0
        next_lsn = self.last_lsn + 1
        if max(watermark, self._proven_lsn, sealed) >= next_lsn or self._damage:
            return False
        self.torn_bytes = rest
        return True

    # Telling.

    def _tell_missing(self, before: SegmentName, after: SegmentName) -> None:
        if after.number > before.number + 1:
            first, last = before.number + 1, after.number - 1
            which = (
                f"segment {first} is"
                if first == last
                else (f"segments {first}–{last} are")
            )
            self._damage.append(f"{which} missing")

    def _tell(self, through_lsn: int) -> None:
        """Report the damage so far, now that the numbers are known that it held."""
        if not self._damage:
            return
        first = self.last_lsn + 1
        if through_lsn < first:
            lost = "no event is lost by it"
        elif through_lsn == first:
            lost = f"LSN {first} is lost"
        else:
            lost = f"LSN {first}–{through_lsn} are lost"
        self.dropped += [f"{text}; {lost}" for text in self._damage]
        self._damage.clear()


def _end_of(file: _File, successor: _File | None) -> int | None:
    """Return where a segment ends, None if nothing says so."""
    if successor is None or successor.header is None:
        return None
    if successor.name.number != file.name.number + 1:
        return None
    return successor.header.predecessor_bytes


def _find_salt(data: bytes) -> bytes | None:
    """Return the salt of the first header that is good with what it begins with."""
    for offset in range(SEGMENT_HEADER_BYTES, len(data) - HEADER_BYTES + 1, 8):
        salt = data[offset : offset + 8]
        if salt.strip(b"\0") and isinstance(
            parse_header(data, offset, salt), FrameHeader
        ):
            return salt
    return None


def _frame_at(
    data: bytes, salt: bytes, offset: int, end: int, file: _File
) -> Frame | Flaw:
    """Return the frame at an offset, or on the block behind it."""
    found = _verified(data, salt, offset, end, file)
    aligned = block_end(offset)
    is_gap_empty = aligned != offset and not data[offset:aligned].strip(b"\0")
    if isinstance(found, Flaw) and is_gap_empty:
        return _verified(data, salt, aligned, end, file)
    return found


def _verified(
    data: bytes, salt: bytes, offset: int, end: int, file: _File
) -> Frame | Flaw:
    header = parse_header(data, offset, salt)
    if isinstance(header, Flaw):
        return header
    start = offset + HEADER_BYTES
    if offset + frame_bytes(header.length) > end:
        return Flaw.LENGTH
    payload = data[start : start + header.length]
    if payload_checksum(payload, salt, header.first_lsn) != header.payload_crc:
        return Flaw.PAYLOAD
    return Frame(header, payload, file.name.number, offset)


def _next_frame(
    data: bytes, salt: bytes, start: int, end: int, file: _File
) -> Frame | None:
    while found := find_next_frame(data, salt, start):
        offset = found[0]
        if offset >= end:
            return None
        frame = _verified(data, salt, offset, end, file)
        if isinstance(frame, Frame):
            return frame
        start = offset + 8
    return None
