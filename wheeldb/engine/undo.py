"""What a group of events changed, so that it can be unseen and taken back.

Two needs, one record.  An event shows once it is durable, but the state holds it as
soon as it is numbered: a reader that meets a younger row asks the undo record for the
older one.  And a decision may be cut short at any bytecode (a Ctrl-C), or a batch be
refused midway: then everything since the record began is put back.

For each key the *first* value since then is kept, ``ABSENT`` where there was none.
Keys at or above ``first_lsn`` need no record: they are the group's own.

Ensures, in ``roll_back``, whatever bytecode the change was cut short at:
 1. Every lookup answers as it did when the record began.
 2. Counters, tables and the next LSN are those of then.
 3. Rolling back twice is the same as once.
"""

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from wheeldb.engine.row import LEASED, Finished, Row
from wheeldb.log.frame import LSN_MAX

if TYPE_CHECKING:
    from wheeldb.engine.state import State

__all__ = ("ABSENT", "Undo", "merge", "roll_back")


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()

_REPLACED = (
    "last_lsn",
    "last_hlc",
    "incarnation",
    "anchor",
    "place",
    "doubt",
    "paused_queues",
    "forgotten_through",
    "finished_count",
    "pending_count",
    "payload_bytes",
)
_read_replaced = attrgetter(*_REPLACED)


class Undo:
    """The values that a group of events replaced."""

    __slots__ = (
        "expiring",
        "finished",
        "finished_ids",
        "finished_then",
        "first_lsn",
        "ids",
        "lanes_count",
        "last_lsn",
        "pending",
        "rows",
        "rows_then",
        "tables",
        "touched_count",
    )

    def __init__(self, state: "State") -> None:
        """Begin the record of the state as it is; changes fill it while it is there."""
        self.first_lsn = state.last_lsn + 1
        # The last of the group's own numbers, once all are known.
        self.last_lsn = LSN_MAX
        self.rows: dict[int, Row] = {}
        self.ids: dict[str, object] = {}
        self.finished: dict[int, Finished | None] = {}
        self.finished_ids: dict[str, object] = {}
        self.pending: dict[tuple[str, int], object] = {}
        # How many keys the hot table had: those that have come since are its last.
        self.rows_then = len(state.active.rows)
        self.finished_then = len(state.active.finished)
        lanes = state.lanes
        self.lanes_count = len(lanes.keys)
        self.expiring = lanes.expiring
        self.touched_count = len(state.touched) if state.touched is not None else 0
        # The state's own attributes that events replace rather than change.
        self.tables: tuple[object, ...] = _read_replaced(state)


def roll_back(state: "State", undo: Undo) -> None:
    """Put everything back to where the record began."""
    active, first_lsn = state.active, undo.first_lsn
    for number in _keys_since(active.rows, undo.rows_then, first_lsn):
        state.leased.pop(number, None)
        active.lifted.pop(number, None)
        # Last: if this is cut short, the next attempt finds it again.
        del active.rows[number]
    for number, old in undo.rows.items():
        active.rows[number] = old
        if old.state == LEASED:
            state.leased[number] = old
        else:
            state.leased.pop(number, None)
    for lsn in _keys_since(active.finished, undo.finished_then, first_lsn):
        del active.finished[lsn]
    _restore(active.finished, undo.finished)
    _restore(active.ids, undo.ids)
    _restore(active.finished_ids, undo.finished_ids)
    _restore(state.pending, undo.pending)
    state.lanes.cut(undo.lanes_count)
    state.lanes.expiring = undo.expiring
    for kept in state.awaited.values():
        if kept.end is not None and kept.end.lsn >= first_lsn:
            kept.end = None
    if state.touched is not None:
        del state.touched[undo.touched_count :]
    for name, value in zip(_REPLACED, undo.tables, strict=True):
        setattr(state, name, value)


def _keys_since(table: dict[int, Any], count: int, first_lsn: int) -> list[int]:
    """Return the keys from an LSN on, of a table that had `count` keys before them.

    No other key is ever taken out of it, so they are among the last.
    """
    keys = islice(reversed(table), max(len(table) - count, 0))
    return [key for key in keys if key >= first_lsn]


def merge(outer: Undo, inner: Undo) -> None:
    """Add to the record of a group what a batch within it replaced."""
    for key, count in inner.pending.items():
        outer.pending.setdefault(key, count)
    for number, old in inner.rows.items():
        if number < outer.first_lsn:
            outer.rows.setdefault(number, old)
    for task_id, value in inner.ids.items():
        outer.ids.setdefault(task_id, value)
    for lsn, finished in inner.finished.items():
        if lsn < outer.first_lsn:
            outer.finished.setdefault(lsn, finished)
    for task_id, value in inner.finished_ids.items():
        outer.finished_ids.setdefault(task_id, value)


def _restore(table: dict, before: dict) -> None:  # type: ignore[type-arg]
    for key, value in before.items():
        if value is ABSENT:
            table.pop(key, None)
        else:
            table[key] = value
