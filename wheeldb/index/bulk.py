"""Many new rows at once: the same keys, rows and digests as `keys.py` makes one by one.

A checkpoint after a call about a thousand tasks costs per row, and most of that is
calling: here the columns of many rows go through one expression each.

    rows, digest = pack_tasks([9, 10], [b"body", b"other"])
    rows[0] == (number_key(9), pack_row(number_key(9), 9, b"body"))
    digest  == row_digest(9, …) + row_digest(10, …), modulo 2**64

It is for tasks that nothing has happened to yet: a row's LSN is the task's number.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import add, mul
from zlib import crc32

from wheeldb.index.keys import (
    COARSE_MS,
    due_key,
    far_from,
    number_key,
    pack_due_value,
    pack_envelope,
)

__all__ = ("Rows", "digest_sum", "due_fields", "pack_due_rows", "pack_tasks")

Rows = list[tuple[bytes, bytes]]


def pack_tasks(numbers: Sequence[int], bodies: Sequence[bytes]) -> tuple[Rows, int]:
    """Return the rows of the task table and the sum of their digests."""
    keys = list(map(number_key, numbers))
    # A row's CRC covers key, LSN and body; the LSN of a new one has the key's bytes.
    crcs = [
        crc32(body, crc32(key + key)) for key, body in zip(keys, bodies, strict=True)
    ]
    values = map(add, map(pack_envelope, numbers, crcs), bodies)
    return list(zip(keys, values, strict=True)), digest_sum(numbers, crcs)


def due_fields(dues_ms: Sequence[int], now_ms: int) -> list[int]:
    """Return what `due_field` makes of each."""
    far_ms = far_from(now_ms)
    return [
        due_ms if due_ms < far_ms else due_ms - due_ms % COARSE_MS for due_ms in dues_ms
    ]


def pack_due_rows(
    lane: int, fields: Sequence[int], numbers: Sequence[int], dues_ms: Sequence[int]
) -> tuple[Rows, int]:
    """Return the rows of the due table for tasks of one lane, and the digests' sum."""
    keys = list(map(due_key, repeat(lane), fields, numbers))
    crcs = list(map(crc32, map(add, keys, map(number_key, dues_ms))))
    rows = list(zip(keys, map(pack_due_value, dues_ms, crcs), strict=True))
    return rows, digest_sum(numbers, crcs)


def digest_sum(numbers: Sequence[int], crcs: Sequence[int]) -> int:
    """Return the sum of what `row_digest` makes of each, modulo 2**64.

    As two sums, of CRCs and of products, which are small numbers for longer.
    """
    products: int = sum(map(mul, crcs, numbers))
    return sum(crcs) + (products << 32)
