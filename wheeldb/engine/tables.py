"""The store's own tables as bytes: what a checkpoint and a snapshot keep beside rows.

One msgpack map of field numbers: the LSN it is true for, the stamp, lanes in the order
of their numbers, paused queues, the clock's anchor, where earlier starts are in doubt,
what was forgotten, and the counts that would otherwise need a walk over every row.
"""

from typing import Any

from wheeldb.clock.timekeeper import Anchor
from wheeldb.engine.state import State
from wheeldb.events import F, pack_fields, unpack_fields
from wheeldb.unpacking import MISSHAPEN, misshapen

__all__ = ("pack_tables", "unpack_tables")


def pack_tables(state: State) -> bytes:
    """Return the tables of a state."""
    anchor = state.anchor
    fields: dict[int, object] = {
        F.CHECKPOINT: state.last_lsn,
        F.HLC: state.last_hlc,
        F.INCARNATION: state.incarnation,
        F.PLACE: list(state.place),
        F.DOUBT: list(state.doubt),
        F.LANES: state.lanes.stored(),
        F.QUEUES: sorted(state.paused_queues),
        F.THROUGH: state.forgotten_through,
        F.FINISHED: state.finished_count,
        F.BYTES: state.payload_bytes,
        F.ROWS: [
            [queue, number, count]
            for (queue, number), count in state.pending.items()
            if count
        ],
    }
    if anchor is not None:
        fields[F.ANCHOR] = anchor.to_fields()
    return pack_fields(fields)


def unpack_tables(state: State, packed: bytes) -> None:
    """Set a state's tables.

    Raises:
        FormatError: If they do not decode.
    """
    known: dict[int, Any] = unpack_fields(packed)
    try:
        _set_tables(state, known)
    except MISSHAPEN as error:
        raise misshapen("what stands for the store's own tables", error) from error


def _set_tables(state: State, known: dict[int, Any]) -> None:
    state.last_lsn = known[F.CHECKPOINT]
    state.last_hlc = known[F.HLC]
    state.incarnation = known[F.INCARNATION]
    state.place = tuple(known[F.PLACE])
    state.doubt = tuple(known[F.DOUBT])
    state.lanes.restore(known[F.LANES])
    state.paused_queues = frozenset(known[F.QUEUES])
    state.forgotten_through = known[F.THROUGH]
    state.finished_count = known[F.FINISHED]
    state.payload_bytes = known[F.BYTES]
    state.pending = {(queue, number): count for queue, number, count in known[F.ROWS]}
    state.pending_count = sum(state.pending.values())
    if F.ANCHOR in known:
        state.anchor = Anchor.from_fields(known[F.ANCHOR])
