"""The store's own tables as bytes: what a checkpoint and a snapshot keep beside rows.

One msgpack map of field numbers: the LSN it is true for, the stamp, lanes in the order
of their numbers, paused queues, the clock's anchor, where earlier starts are in doubt,
what was forgotten, and the counts that would otherwise need a walk over every row.
"""

from wheeldb.clock.timekeeper import Anchor
from wheeldb.engine.state import State
from wheeldb.events import F, pack_fields, unpack_fields

__all__ = ("pack_tables", "unpack_tables")


def pack_tables(state: State, extra: dict[int, object] | None = None) -> bytes:
    """Return the tables of a state, with what the caller keeps beside them."""
    anchor = state.anchor
    fields: dict[int, object] = {
        F.CHECKPOINT: state.last_lsn,
        F.HLC: state.last_hlc,
        F.INCARNATION: state.incarnation,
        F.PLACE: list(state.place),
        F.DOUBT: list(state.doubt),
        F.LANES: [list(key) for key in state.lanes.keys],
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
    fields.update(extra or {})
    return pack_fields(fields)


def unpack_tables(state: State, packed: bytes) -> dict[int, object]:
    """Set a state's tables; return all fields, also those that are the caller's."""
    fields = unpack_fields(packed)
    state.last_lsn = fields[F.CHECKPOINT]  # type: ignore[assignment]
    state.last_hlc = fields[F.HLC]  # type: ignore[assignment]
    state.incarnation = fields[F.INCARNATION]  # type: ignore[assignment]
    state.place = tuple(fields[F.PLACE])  # type: ignore[arg-type]
    state.doubt = tuple(fields[F.DOUBT])  # type: ignore[arg-type]
    for timeline, queue, priority in fields[F.LANES]:  # type: ignore[attr-defined]
        state.lanes.number((timeline, queue, priority))
    state.paused_queues = frozenset(fields[F.QUEUES])  # type: ignore[arg-type]
    state.forgotten_through = fields[F.THROUGH]  # type: ignore[assignment]
    state.finished_count = fields[F.FINISHED]  # type: ignore[assignment]
    state.payload_bytes = fields[F.BYTES]  # type: ignore[assignment]
    state.pending = {
        (queue, number): count
        for queue, number, count in fields[F.ROWS]  # type: ignore[attr-defined]
    }
    state.pending_count = sum(state.pending.values())
    if F.ANCHOR in fields:
        state.anchor = Anchor.from_fields(fields[F.ANCHOR])  # type: ignore[arg-type]
    return fields
