"""What the first invalid frame of the last segment means: torn tail, or damage.

A power cut may leave anything of what was not synced: nothing, all, single sectors in
any order. It can't touch what was. So the question is whether a byte behind the last
valid frame had been durable, and there are three ways to know:

===============================================================  =====================
what is found                                                    verdict
===============================================================  =====================
a valid frame further on, whose watermark says that the number   damage
expected here had been durable
an LSN known from elsewhere (checkpoint, snapshot, what was      damage
synced with the segment's header) is at or above it
a valid frame further on, whose watermark is below               torn tail: writes that
                                                                 landed out of order
none of these                                                    torn tail
===============================================================  =====================

Bytes behind a footer are a torn tail like any other: nothing is ever written there, but
the footer itself may have been on its way as the power went, and on flash that damages
what lies beside it in its block.

The verdict never depends on what the broken bytes look like: a rule such as "a sector
of zeros is a torn write" fails on a payload that holds zeros (etcd-io/etcd#6515 shows
how such tails come about). What remains open: damage within the last synced batch,
before anything has recorded that it was synced, looks like a torn tail. The frame of
the next batch, the watermark after a quiet moment or the footer closes that window.
"""

from dataclasses import dataclass

from wheeldb.log.frame import HEADER_BYTES, Flaw, find_next_frame
from wheeldb.log.segment import SegmentHeader
from wheeldb.log.source import PIECE_BYTES, ByteSource

__all__ = ("Tail", "inspect_tail", "refusal_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What lies behind the last valid frame.

    Attributes:
        torn_bytes: Bytes up to the last one that is not zero.
        watermark: The highest watermark in a verified header further on.
        watermark_offset: Where that header lies.
        bound_highest: The highest LSN bound there.
        hlc_highest: The highest stamp there.
    """

    torn_bytes: int
    watermark: int
    watermark_offset: int
    bound_highest: int
    hlc_highest: int


def inspect_tail(source: ByteSource, header: SegmentHeader, offset: int) -> Tail:
    """Read from `offset` to the end of the file.

    A header with a good checksum counts even if its payload is broken: that it was
    built with such a watermark is all it has to prove.

    Raises:
        CorruptionError: If the medium can't read the bytes.
    """
    last_byte = offset
    watermark = watermark_offset = bound_highest = hlc_highest = 0
    base = offset
    while piece := source.read(base, PIECE_BYTES):
        used = len(piece.rstrip(b"\0"))
        if used:
            last_byte = base + used
        # What stands at `offset` itself is known to be no frame of this place.
        start = 8 if base == offset else 0
        while found := find_next_frame(piece, header.salt, start, base):
            position, frame = found
            start = position + 8
            bound_highest = max(bound_highest, frame.bound)
            hlc_highest = max(hlc_highest, frame.hlc)
            if frame.watermark > watermark:
                watermark = frame.watermark
                watermark_offset = base + position
        if len(piece) < PIECE_BYTES:
            break
        # The pieces overlap, so that a header on their border is seen whole.
        base += PIECE_BYTES - HEADER_BYTES
    return Tail(
        torn_bytes=last_byte - offset,
        watermark=watermark,
        watermark_offset=watermark_offset,
        bound_highest=bound_highest,
        hlc_highest=hlc_highest,
    )


def refusal_of(flaw: Flaw, tail: Tail, *, next_lsn: int, proven_lsn: int) -> str | None:
    """Return why the log's end can't be the work of a crash; None if it can.

    Args:
        flaw: What is wrong where the next frame should be.
        tail: What lies there and behind.
        next_lsn: The number expected there.
        proven_lsn: The highest number known from elsewhere to have been durable.
    """
    if tail.watermark >= next_lsn:
        return (
            f"{flaw}, but a frame at byte {tail.watermark_offset} says that LSN "
            f"{tail.watermark} was durable"
        )
    if proven_lsn >= next_lsn:
        return (
            f"{flaw}, but LSN {proven_lsn} is known to have been durable: "
            "the end of the log is missing"
        )
    return None
