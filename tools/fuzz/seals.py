"""Sound files, changed anywhere, with every checksum right again.

A reader sees damage by its checksums, so changed bytes alone never reach what lies
behind them.  Here the fields and payloads of a sound file are changed and everything is
sealed anew: what comes out is a file that a faulty or another release might have
written::

    sealed_segment(edits)        # a segment: header, frames, payloads
    sealed_snapshot(edits)       # a snapshot, its end right as well

``edits`` are drawn from bytes by `edits_of`: each replaces a few bytes somewhere in one
part of the file, a header or a payload.  The numbers that a header is made of are
changed like all else; only the checksums are reckoned.
"""

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tools.bitrot.stores import Site, build
from wheeldb.log.frame import HEADER_BYTES, FrameType, frame_bytes, payload_checksum
from wheeldb.log.segment import SEGMENT_HEADER_BYTES

__all__ = (
    "Edit",
    "edits_of",
    "pieces_of",
    "seal",
    "sealed_segment",
    "sealed_snapshot",
    "site",
)

# Where the checksums stand in a segment's header and in a frame's.
_OWN_CRC = 108
_PAYLOAD_CRC, _HEADER_CRC = 56, 60
_FRAME_LENGTH, _FRAME_FIRST, _FRAME_PREVIOUS = 12, 16, 28
_EDIT = struct.Struct("<HHB")
_EDITS_MAX = 16


class Edit(NamedTuple):
    """A few bytes put somewhere into one part of a file."""

    part: int
    offset: int
    data: bytes


@lru_cache(maxsize=1)
def site() -> Site:
    """Return the store whose files are changed; it was killed."""
    return build(is_closed=False)


def edits_of(data: bytes) -> list[Edit]:
    """Return the edits that bytes spell: part, offset, length, then what to put
    there.
    """
    edits: list[Edit] = []
    position = 0
    while position + _EDIT.size <= len(data) and len(edits) < _EDITS_MAX:
        part, offset, length = _EDIT.unpack_from(data, position)
        position += _EDIT.size
        edits.append(Edit(part, offset, data[position : position + length % 32]))
        position += length % 32
    return edits


@lru_cache(maxsize=8)
def pieces_of(data: bytes) -> tuple[bytes, ...]:
    """Return a sound file's header, and each frame's header and payload in turn."""
    pieces = [data[:SEGMENT_HEADER_BYTES]]
    offset = SEGMENT_HEADER_BYTES
    while data[offset : offset + 8].strip(b"\0"):
        length = int.from_bytes(data[offset + _FRAME_LENGTH :][:4], "little")
        pieces.append(data[offset : offset + HEADER_BYTES])
        pieces.append(data[offset + HEADER_BYTES :][:length])
        offset += frame_bytes(length)
    return tuple(pieces)


def sealed_segment(data: bytes, edits: list[Edit]) -> bytes:
    """Return a segment with edits, sealed."""
    return seal(_edited(pieces_of(data), edits))


def sealed_snapshot(data: bytes, edits: list[Edit]) -> bytes:
    """Return a snapshot with edits, sealed, and its end reckoned anew."""
    return seal(_edited(pieces_of(data), edits), end_of=_snapshot_end)


def _edited(pieces: tuple[bytes, ...], edits: list[Edit]) -> list[bytes]:
    changed = list(pieces)
    for edit in edits:
        # The first parts are asked for most: headers, and the events of an opening.
        part = edit.part % (len(changed) if edit.part % 2 else min(7, len(changed)))
        piece = bytearray(changed[part])
        if piece:
            offset = edit.offset % len(piece)
            if part % 2 or part == 0:  # a header keeps its length
                data = edit.data[: len(piece) - offset]
                piece[offset : offset + len(data)] = data
            else:
                piece[offset : offset + edit.offset // 4_096] = edit.data
        changed[part] = bytes(piece)
    return changed


def seal(
    pieces: list[bytes], *, end_of: Callable[[int, bytes], bytes] | None = None
) -> bytes:
    """Return the file that parts make, with lengths, links and checksums right."""
    header = bytearray(pieces[0])
    header[_OWN_CRC : _OWN_CRC + 4] = _crc(bytes(header[:_OWN_CRC]))
    out = [bytes(header)]
    salt = bytes(header[40:48])
    previous = bytes(header[104:108])
    for position in range(1, len(pieces) - 1, 2):
        frame, payload = bytearray(pieces[position]), pieces[position + 1]
        if end_of is not None and frame[8] == FrameType.FOOTER:
            payload = end_of(position // 2, b"".join(out))
        frame[:8] = salt
        frame[_FRAME_LENGTH : _FRAME_LENGTH + 4] = len(payload).to_bytes(4, "little")
        first = int.from_bytes(frame[_FRAME_FIRST : _FRAME_FIRST + 8], "little")
        frame[_FRAME_PREVIOUS : _FRAME_PREVIOUS + 4] = previous
        checksum = payload_checksum(payload, salt, first)
        frame[_PAYLOAD_CRC:_HEADER_CRC] = checksum.to_bytes(4, "little")
        frame[_HEADER_CRC:] = previous = _crc(bytes(frame[:_HEADER_CRC]))
        out += [bytes(frame), payload, bytes(-len(payload) % 8)]
    return b"".join(out)


def _snapshot_end(frames: int, before: bytes) -> bytes:
    return struct.pack("<QQQ", frames, len(before), zlib.crc32(before))


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")
