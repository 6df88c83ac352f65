"""One group commit as bytes: a 64-byte header, the payload, zeros to 8 bytes.

::

     0        8     9       10     12      16          24     28
    +--------+-----+-------+------+-------+-----------+------+----------+
    | salt   |type | format| flags|length | first LSN |count | previous |
    | 8      | 1   | 1     | 2    | 4     | 8         | 4    | 4        |
    +--------+-----+-------+------+-------+-----------+------+----------+
     32       40          48       56            60           64
    +--------+-----------+--------+-------------+------------+----------
    | HLC    | watermark | bound  | payload CRC | header CRC | payload …
    | 8      | 8         | 8      | 4           | 4          | length
    +--------+-----------+--------+-------------+------------+----------

All numbers are little-endian.

* *salt* is the segment's. It comes first, so that a search behind damage is one
  ``bytes.find``, and leftovers of another file never read as ours.
* *first LSN, count*: the frame covers ``first .. first + count - 1``. An empty
  frame (a watermark, a footer) has count 0 and the number that comes next.
* *previous* is the header CRC of the frame before: the chain, kept as a field, so
  that each frame can still be verified alone. Telling a torn tail from damage
  needs that.
* *watermark* is the highest LSN known to be durable when the frame was built
  (after Pebble's sync offset, cockroachdb/pebble ``record/record.go``). A valid
  frame behind a broken one proves with it whether durable numbers are missing.
* *bound*: no event takes a number at or above the bound of the last synced frame,
  so numbers lost in a power cut are never handed out again.
* The payload CRC is seeded with salt and first LSN; the header CRC covers all in
  front of it, the payload CRC included. A length is never believed before its
  header's checksum was. Sixty-four zero bytes are not a frame, for type 0 is none.

This module packs and verifies. It opens no file and knows no order of frames.
"""

import struct
from enum import IntEnum, StrEnum
from typing import NamedTuple
from zlib import crc32

__all__ = (
    "FRAME_FORMAT",
    "HEADER_BYTES",
    "LSN_BOUND_STEP",
    "LSN_MAX",
    "OPENED",
    "PAYLOAD_BYTES_MAX",
    "Flaw",
    "Frame",
    "FrameHeader",
    "FrameType",
    "find_next_frame",
    "frame_bytes",
    "header_checksum",
    "lsn_bound",
    "pack_frame",
    "parse_header",
    "payload_checksum",
)

# These constants are part of the format on disk. A change of any of them, or of
# the layout, needs a new FRAME_FORMAT and a reader for the old one.
FRAME_FORMAT = 1
HEADER_BYTES = 64
PAYLOAD_BYTES_MAX = 32 * 2**20
LSN_MAX = 2**53
LSN_BOUND_STEP = 2**20
OPENED = 1  # Flag: the numbers may jump forward in front of this frame.

_ALIGNMENT = 8
_HEADER = struct.Struct("<8sBBHIQIIQQQI")
_CHECKSUM = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_CHECKSUM_OFFSET = _HEADER.size
# Each is looked up once, not at every frame.
_pack_header, _pack_checksum, _pack_number = _HEADER.pack, _CHECKSUM.pack, _NUMBER.pack
# By the length of the payload beyond a multiple of 8.
_PADDING = tuple(bytes(-beyond % _ALIGNMENT) for beyond in range(_ALIGNMENT))

assert _CHECKSUM_OFFSET + _CHECKSUM.size == HEADER_BYTES, _CHECKSUM_OFFSET


class FrameType(IntEnum):
    """What a frame is to the log; 0 stays unused, so that zeros are no frame."""

    SYNCED = 1
    UNSYNCED = 2
    WATERMARK = 3
    FOOTER = 4


class Flaw(StrEnum):
    """Why the bytes at an offset are not the next frame."""

    ZEROS = "there are only zeros"
    SHORT = "the file ends inside a frame's header"
    SALT = "there is no frame of this segment"
    HEADER = "the header's checksum is wrong"
    FORMAT = "the frame has a format that this version does not know"
    TYPE = "the frame's type or numbers are impossible"
    LENGTH = "the payload runs past the end of the file"
    PAYLOAD = "the payload's checksum is wrong"
    CHAIN = "the frame does not follow the one before it"
    NUMBER = "the frame's LSN is not the next one"


class FrameHeader(NamedTuple):
    """A verified header."""

    type: FrameType
    flags: int
    length: int
    first_lsn: int
    lsn_count: int
    previous_crc: int
    hlc: int
    watermark: int
    bound: int
    payload_crc: int
    crc: int

    @property
    def last_lsn(self) -> int:
        """Return the last number covered; for an empty frame the one before it."""
        return self.first_lsn + self.lsn_count - 1

    @property
    def is_opened(self) -> bool:
        """Return whether the numbers may jump forward in front of this frame."""
        return bool(self.flags & OPENED)


class Frame(NamedTuple):
    """A verified frame and the place where it lies."""

    header: FrameHeader
    payload: bytes
    segment: int
    offset: int

    @property
    def end(self) -> int:
        """Return the offset of the first byte behind the frame."""
        return self.offset + frame_bytes(self.header.length)


def frame_bytes(payload_length: int) -> int:
    """Return what a frame with such a payload takes, header and padding included."""
    return HEADER_BYTES + payload_length + -payload_length % _ALIGNMENT


def lsn_bound(last_lsn: int) -> int:
    """Return the bound that a frame ending with `last_lsn` states."""
    bound = last_lsn + LSN_BOUND_STEP
    return bound if bound < LSN_MAX else LSN_MAX


def payload_checksum(payload: bytes, salt: bytes, first_lsn: int) -> int:
    """Return the payload's CRC, seeded so that it is good in one place only."""
    return crc32(payload, crc32(salt + _pack_number(first_lsn)))


def header_checksum(data: bytes) -> int:
    """Return the header CRC of packed bytes: the next frame's link to this one."""
    checksum: int = _CHECKSUM.unpack_from(data, _CHECKSUM_OFFSET)[0]
    return checksum


def pack_frame(
    salt: bytes,
    kind: FrameType,
    payload: bytes,
    first_lsn: int,
    count: int,
    previous_crc: int,
    hlc: int,
    watermark: int,
    bound: int,
    flags: int = 0,
) -> bytes:
    """Return the frame's bytes, padded to a multiple of 8.

    Raises:
        ValueError: If the payload is longer than a reader accepts.
    """
    length = len(payload)
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(
            f"a frame holds at most {PAYLOAD_BYTES_MAX} bytes, not {length}; "
            "split the batch"
        )

    assert first_lsn >= 1, f"first LSN {first_lsn} is below 1"
    assert first_lsn + count <= LSN_MAX, f"LSN {first_lsn} + {count} is above 2^53"
    assert watermark < first_lsn, f"watermark {watermark} is not below {first_lsn}"
    header = _pack_header(
        salt,
        kind,
        FRAME_FORMAT,
        flags,
        length,
        first_lsn,
        count,
        previous_crc,
        hlc,
        watermark,
        bound,
        payload_checksum(payload, salt, first_lsn),
    )
    checksum = _pack_checksum(crc32(header))
    return b"".join((header, checksum, payload, _PADDING[length % _ALIGNMENT]))


def parse_header(
    buffer: bytes | memoryview, offset: int, salt: bytes
) -> FrameHeader | Flaw:
    """Return the verified header at `offset` in `buffer`, or what is wrong there.

    The payload is not looked at; compare it with `payload_checksum`.
    """
    data = bytes(buffer[offset : offset + HEADER_BYTES])
    if data[:8] != salt:
        if not data.strip(b"\0"):
            return Flaw.ZEROS
        return Flaw.SALT if len(data) == HEADER_BYTES else Flaw.SHORT
    if len(data) < HEADER_BYTES:
        return Flaw.SHORT
    (crc,) = _CHECKSUM.unpack_from(data, _CHECKSUM_OFFSET)
    if crc32(data[:_CHECKSUM_OFFSET]) != crc:
        return Flaw.HEADER

    (_, kind, form, flags, length, first, count, *rest) = _HEADER.unpack_from(data)
    if form != FRAME_FORMAT:
        return Flaw.FORMAT
    previous, hlc, watermark, bound, payload_crc = rest
    # A header with a good checksum and impossible numbers was written so. It is a
    # mistake of the writer and must not be believed any more than a torn one.
    possible = (
        FrameType.SYNCED <= kind <= FrameType.FOOTER
        and length <= PAYLOAD_BYTES_MAX
        and 1 <= first <= first + count <= LSN_MAX
        and watermark < first
        and bound <= LSN_MAX
    )
    if not possible:
        return Flaw.TYPE
    return FrameHeader(
        FrameType(kind),
        flags,
        length,
        first,
        count,
        previous,
        hlc,
        watermark,
        bound,
        payload_crc,
        crc,
    )


def find_next_frame(
    buffer: bytes, salt: bytes, start: int, base: int = 0
) -> tuple[int, FrameHeader] | None:
    """Return the first place at or behind `start` that holds a verified header.

    Args:
        buffer: Bytes of a segment.
        salt: The segment's salt.
        start: Where in `buffer` to begin.
        base: Offset of the buffer's first byte in its file; frames lie on
            multiples of 8 in the file, wherever the buffer begins.
    """
    position = buffer.find(salt, start)
    while position >= 0:
        if (base + position) % _ALIGNMENT == 0:
            header = parse_header(buffer, position, salt)
            if isinstance(header, FrameHeader):
                return position, header
        position = buffer.find(salt, position + 1)
    return None
