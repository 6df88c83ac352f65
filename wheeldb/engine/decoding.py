"""Rows out of the index's bytes; bytes that make no row are a damaged index.

    row = decode_row(number, lsn, body)          # Row, or IndexDamaged

A body whose checksum holds can still be none: memory that went bad before the sum was
taken, a release that had a fault.  The index is a cache, so that is no reason to refuse
a call, and none to give the store up: whoever catches ``IndexDamaged`` has it rebuilt
from snapshot and log.  What those hold themselves is not decoded here: a row there that
does not decode is a ``FormatError``, and stays one.
"""

from wheeldb.engine.row import Finished, Row
from wheeldb.errors import FormatError
from wheeldb.index.snapshot import IndexDamaged

__all__ = ("decode_finished", "decode_row")

# A map that lacks a field, or has something else in its place.
_UNDECODED = (FormatError, KeyError, TypeError, ValueError)


def decode_row(number: int, lsn: int, body: bytes) -> Row:
    """Return an unfinished task's row.

    Raises:
        IndexDamaged: If the body is none.
    """
    try:
        return Row.unpack(number, lsn, body)
    except _UNDECODED as error:
        raise IndexDamaged(f"the row of task {number} does not decode") from error


def decode_finished(lsn: int, body: bytes) -> Finished:
    """Return what is kept of a finished task.

    Raises:
        IndexDamaged: If the body is none.
    """
    try:
        return Finished.unpack(lsn, body)
    except _UNDECODED as error:
        raise IndexDamaged(
            f"the row of what finished at LSN {lsn} does not decode"
        ) from error
