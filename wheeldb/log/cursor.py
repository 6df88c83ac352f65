"""Walking the frames of one file, each verified against the one before.

    cursor = FrameCursor(source, header, limit=source.size())
    while isinstance(found := cursor.next(), Frame):
        ...
    found, cursor.torn_offset              # what is wrong, and where

A frame must carry the file's salt, link to the frame before, take the next number and
have both checksums right. On the way the cursor learns how far the file proves itself
to have been durable. It gives no verdict: whether a flaw is damage or the end of the
log is for those who know which file this is.
"""

from collections import deque

from wheeldb.errors import FormatError
from wheeldb.log.frame import (
    HEADER_BYTES,
    Flaw,
    Frame,
    FrameType,
    frame_bytes,
    parse_header,
    payload_checksum,
)
from wheeldb.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader, block_end
from wheeldb.log.source import ByteSource

__all__ = ("FrameCursor",)


class FrameCursor:
    """Walks the frames of one file and verifies each against the one before."""

    def __init__(self, source: ByteSource, header: SegmentHeader, limit: int) -> None:
        """Stand behind the file's header.

        Args:
            source: The file's bytes.
            header: Its header, where chain and numbers begin.
            limit: Where the frames end at the latest.
        """
        self.source = source
        self.header = header
        self.limit = limit
        self.offset = SEGMENT_HEADER_BYTES
        self.torn_offset = SEGMENT_HEADER_BYTES
        self.previous_crc = header.predecessor_crc
        self.last_lsn = header.predecessor_last_lsn
        self.bound_highest = header.bound
        self.hlc_highest = header.hlc
        self.footer: Frame | None = None
        # How far the file proves itself, and the frames behind that.
        self.watermark = header.predecessor_last_lsn
        self.watermark_offset = SEGMENT_HEADER_BYTES
        self.watermark_crc = header.predecessor_crc
        self._watermark_seen = header.sealed_lsn
        self._unproven: deque[tuple[int, int, int]] = deque()

    def next(self) -> Frame | Flaw:
        """Step behind the next frame and return it, or what is wrong in its place.

        A frame stands directly behind the one before or on the next block. The chain
        tells that there was none in between, whatever the gap holds.

        Raises:
            CorruptionError: If the medium can't read the bytes.
            FormatError: If the frame is whole and of a newer format.
        """
        self.torn_offset = self.offset
        found = self._frame_at(self.offset)
        aligned = block_end(self.offset)
        if not isinstance(found, Frame) and aligned != self.offset:
            beyond = self._frame_at(aligned)
            if isinstance(beyond, Frame):
                found = beyond
            elif beyond is not Flaw.ZEROS and self._is_gap_empty(aligned):
                # The frame that is damaged stood on the block: name that place.
                self.torn_offset = aligned
                found = beyond
        if isinstance(found, Frame):
            self._step(found)
        elif found is Flaw.FORMAT:
            raise FormatError(
                f"{self.source.path} has a frame of another format at byte "
                f"{self.torn_offset}: open it with the release that wrote it"
            )
        return found

    def _frame_at(self, offset: int) -> Frame | Flaw:
        room = self.limit - offset
        block = self.source.read(offset, max(0, min(HEADER_BYTES, room)))
        header = parse_header(block, 0, self.header.salt)
        if isinstance(header, Flaw):
            return header
        if header.previous_crc != self.previous_crc:
            return Flaw.CHAIN
        next_lsn = self.last_lsn + 1
        is_hole = header.first_lsn > next_lsn and header.is_opened
        if header.first_lsn != next_lsn and not is_hole:
            return Flaw.NUMBER
        # The padding must be there, too: a frame's end is never beyond its file's.
        if frame_bytes(header.length) > room:
            return Flaw.LENGTH
        payload = self.source.read(offset + HEADER_BYTES, header.length)
        if len(payload) < header.length:
            return Flaw.LENGTH
        checksum = payload_checksum(payload, self.header.salt, header.first_lsn)
        if checksum != header.payload_crc:
            return Flaw.PAYLOAD
        return Frame(header, payload, self.header.number, offset)

    def _step(self, frame: Frame) -> None:
        header = frame.header
        self.offset = self.torn_offset = frame.end
        self.previous_crc = header.crc
        self.bound_highest = max(self.bound_highest, header.bound)
        self.hlc_highest = max(self.hlc_highest, header.hlc)
        self.footer = frame if header.type == FrameType.FOOTER else None
        # An empty frame repeats the number before it and is itself proven by nothing,
        # so the proven part never ends with one.
        if header.lsn_count:
            self.last_lsn = header.last_lsn
            self._unproven.append((header.last_lsn, frame.end, header.crc))
        self._watermark_seen = max(self._watermark_seen, header.watermark)
        while self._unproven and self._unproven[0][0] <= self._watermark_seen:
            self.watermark, self.watermark_offset, self.watermark_crc = (
                self._unproven.popleft()
            )

    def _is_gap_empty(self, aligned: int) -> bool:
        gap = self.source.read(self.offset, aligned - self.offset)
        return not gap.strip(b"\0")
