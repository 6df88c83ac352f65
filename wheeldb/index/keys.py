"""Keys, row envelopes and digests of the index: how a row is spelled in bytes.

All integers are big-endian, so that the order of the bytes is the order of the values:

    table      key                                        value
    task       number(8)                                  row
    block      first number(8)                            row (its lsn is that number)
    due        lane(4) ‖ due field(8) ‖ number(8)         exact due(8) ‖ crc32(4)
    run        lane(4) ‖ due field(8) ‖ first number(8)   entries ‖ crc32(4)
    id         hash of a caller's id(8) ‖ number(8)       finishing lsn(8), or empty
    finished   finishing lsn(8)                           row
    meta       name                                       row (its lsn is 0)

    row  =  lsn(8) ‖ crc32(4) ‖ body        the CRC covers key ‖ lsn ‖ body

A task is in the task table or in a block (`blocks` draws one), never in both, and its
due time is in the due table or in a run (`runs`), whichever of the two the task is in.

LMDB has no checksum of its own, and a bit that flips inside a value goes unseen there;
with the key in the CRC, a row that turns up under another row's key is found as well.
An id row has no CRC: it is empty for a live task, and the LSN that it holds for a
finished one leads to a row that has.  The digest covers all tables but meta.

A *digest* is the sum modulo 2**64 of one number for each row.  It doesn't depend on the
order, so whoever knows the rows that come and go keeps it up to date:

    digest += row_digest(9, row_crc(number_key(9), lsn, body))    # the row is put
    digest -= row_digest(9, row_crc(number_key(9), lsn, body))    # the row is deleted

This module knows neither LMDB nor files, and not what a body means.
"""

from hashlib import blake2b
from struct import Struct
from zlib import crc32

__all__ = (
    "BLOCK",
    "COARSE_MS",
    "DIGEST_MASK",
    "DIGEST_TABLES",
    "DUE",
    "FINISHED",
    "FORMAT_NAME",
    "ID",
    "INDEX_FORMAT",
    "KEY_BYTES",
    "META",
    "NEAR_MS",
    "RUN",
    "TABLES",
    "TASK",
    "block_field",
    "digest_weight",
    "due_digest",
    "due_field",
    "due_key",
    "due_key_parts",
    "far_from",
    "id_digest",
    "id_hash",
    "id_key",
    "id_key_parts",
    "number_digest",
    "number_key",
    "number_key_part",
    "pack_due",
    "pack_due_value",
    "pack_envelope",
    "pack_row",
    "row_crc",
    "row_digest",
    "unpack_due",
    "unpack_row",
)

TASK = "task"
BLOCK = "block"
DUE = "due"
RUN = "run"
ID = "id"
FINISHED = "finished"
META = "meta"
# The digests are kept in the meta table, which therefore has none itself.
DIGEST_TABLES = (TASK, BLOCK, DUE, RUN, ID, FINISHED)
TABLES = (*DIGEST_TABLES, META)

# The width of a far due field, 70 minutes.
COARSE_MS = 2**22
# The width of a near one of a task in a block, 8 seconds.  It divides the other, so
# that no due field lies before the multiple of `COARSE_MS` below the exact due time.
NEAR_MS = 2**13

DIGEST_MASK = 2**64 - 1

# Stands in the meta table.  Raised when tables, keys or rows are spelled otherwise; an
# index of another format is rebuilt, as any doubtful one is.
INDEX_FORMAT = b"2"
FORMAT_NAME = "format"

_NUMBER = Struct(">Q")
_DUE_KEY = Struct(">IQQ")
_DUE_VALUE = Struct(">QI")
_ID_KEY = Struct(">8sQ")
_ENVELOPE = Struct(">QI")

# Odd, so that a change of any one bit in any one field changes the sum of products.
_FACTOR_A = 0x9E3779B97F4A7C15
_FACTOR_B = 0xD1B54A32D192ED03
_FACTOR_C = 0x8CB92BA72F3D8DD7
_FACTOR_MIX = 0xBF58476D1CE4E5B9


# The width of a table's keys; the names in the meta table have any.
KEY_BYTES = {
    TASK: _NUMBER.size,
    BLOCK: _NUMBER.size,
    DUE: _DUE_KEY.size,
    RUN: _DUE_KEY.size,
    ID: _ID_KEY.size,
    FINISHED: _NUMBER.size,
}

number_key = _NUMBER.pack
due_key = _DUE_KEY.pack
id_key = _ID_KEY.pack
# LSN and CRC, which stand in front of a row's body.
pack_envelope = _ENVELOPE.pack
# The exact due time and the CRC of a due row.
pack_due_value = _DUE_VALUE.pack


def number_key_part(key: bytes) -> int:
    """Return the number (or LSN) that is the key of a task or finished row."""
    number: int = _NUMBER.unpack(key)[0]
    return number


def due_key_parts(key: bytes) -> tuple[int, int, int]:
    """Return lane, due field and number of a due key."""
    lane, field, number = _DUE_KEY.unpack(key)
    return lane, field, number


def id_key_parts(key: bytes) -> tuple[bytes, int]:
    """Return the hash and the number of an id key."""
    hash8, number = _ID_KEY.unpack(key)
    return hash8, number


def id_hash(task_id: str) -> bytes:
    """Return the 8 bytes under which a caller's id is found.

    Two ids may share them; the row tells which id it is.
    """
    return blake2b(task_id.encode(), digest_size=8).digest()


def due_field(exact_due: int, now: int, *, coarse_ms: int = COARSE_MS) -> int:
    """Return the due time as it stands in a due key.

    A far one is rounded down to ``coarse_ms``, so that the tasks of one checkpoint
    share few leaves of the tree; a near one, less than two widths ahead, is exact.
    With a width of 1,000 at 4,200 the first far one is 6,000:

        due_field(5_999, 4_200, coarse_ms=1_000) == 5_999
        due_field(6_789, 4_200, coarse_ms=1_000) == 6_000

    Args:
        exact_due: The due time in milliseconds.
        now: The present, on the same timeline.
        coarse_ms: The width to which it is rounded.
    """
    if exact_due < far_from(now, coarse_ms=coarse_ms):
        return exact_due
    return exact_due - exact_due % coarse_ms


def far_from(now: int, *, coarse_ms: int = COARSE_MS) -> int:
    """Return the first due time that is far, and rounded down in its key."""
    return (now // coarse_ms + 2) * coarse_ms


def block_field(exact_due: int, far_ms: int) -> int:
    """Return the due field of a task in a block: coarse if far, of `NEAR_MS` if near.

    Args:
        exact_due: The due time in milliseconds.
        far_ms: What `far_from` returned when the block was made.
    """
    return exact_due & (-COARSE_MS if exact_due >= far_ms else -NEAR_MS)


def row_crc(key: bytes, lsn: int, body: bytes) -> int:
    """Return the CRC that protects a row: over key, LSN and body."""
    return crc32(body, crc32(key + _NUMBER.pack(lsn)))


def pack_row(key: bytes, lsn: int, body: bytes) -> bytes:
    """Return a row: its body behind LSN and CRC."""
    return pack_envelope(lsn, row_crc(key, lsn, body)) + body


def unpack_row(key: bytes, value: bytes) -> tuple[int, int, bytes] | None:
    """Return LSN, CRC and body of a row, or ``None`` if it is damaged."""
    if len(value) < _ENVELOPE.size:
        return None
    lsn, crc = _ENVELOPE.unpack_from(value)
    body = value[_ENVELOPE.size :]
    if row_crc(key, lsn, body) != crc:
        return None
    return lsn, crc, body


def pack_due(key: bytes, exact_due: int) -> bytes:
    """Return the value of a due row."""
    return pack_due_value(exact_due, row_crc(key, exact_due, b""))


def unpack_due(key: bytes, value: bytes) -> int | None:
    """Return the exact due time of a due row, or ``None`` if the row is damaged."""
    if len(value) != _DUE_VALUE.size or len(key) != _DUE_KEY.size:
        return None
    exact_due: int
    exact_due, crc = _DUE_VALUE.unpack(value)
    return exact_due if row_crc(key, exact_due, b"") == crc else None


def row_digest(number: int, crc: int) -> int:
    """Return what a task or finished row adds to its table's digest.

    As in Fletcher's checksum (1982) the lower half of the sum tells which CRCs there
    are, the upper half with which rows they are; all rows of a table are one product
    each, and cost no call (`bulk.py`).

    Args:
        number: The number in its key, or the finishing LSN of a finished row.
        crc: The row's ``row_crc``.
    """
    return crc * digest_weight(number) & DIGEST_MASK


def digest_weight(number: int) -> int:
    """Return the factor of a row's CRC."""
    return number << 32 | 1


def due_digest(lane: int, field: int, number: int, exact_due: int) -> int:
    """Return what a due row adds to the due table's digest."""
    return row_digest(number, row_crc(due_key(lane, field, number), exact_due, b""))


def number_digest(number: int) -> int:
    """Return a number whose sum over a set stands for that set of task numbers."""
    return _mix(number * _FACTOR_A)


def id_digest(hash8: bytes, number: int, finishing_lsn: int | None) -> int:
    """Return what an id row adds to the id table's digest.

    Args:
        hash8: The id's ``id_hash``.
        number: The task's number.
        finishing_lsn: Where the task finished, or ``None`` while it is live.
    """
    finished = 0 if finishing_lsn is None else finishing_lsn + 1
    return _mix(
        int.from_bytes(hash8) * _FACTOR_A + number * _FACTOR_B + finished * _FACTOR_C
    )


def _mix(product: int) -> int:
    # A product carries its bits upward; the shifts bring them back down.  This is half
    # of the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
    # Number Generators", 2014), enough against accidents and cheap in Python.
    product &= DIGEST_MASK
    product ^= product >> 32
    product = product * _FACTOR_MIX & DIGEST_MASK
    return product ^ product >> 29
