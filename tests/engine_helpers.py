"""What the tests of the engine share: everything that a state knows, to be compared."""

from typing import TYPE_CHECKING

from wheeldb.engine.listing import finished_rows, unfinished_rows
from wheeldb.engine.row import Row
from wheeldb.engine.tables import pack_tables
from wheeldb.store import WheelDB

if TYPE_CHECKING:
    from wheeldb.engine.state import State


def packed(row: Row) -> tuple[int, int, bytes]:
    """Return a row as the index would hold it."""
    return row.number, row.lsn, row.pack()


def everything(db: WheelDB, ids: tuple[str, ...] = ()) -> dict[str, object]:
    """Return what a store's state amounts to, by every way of looking it up."""
    engine = db._engine
    state: State = engine.state
    rows = list(unfinished_rows(engine, 0))
    looked_up = [state.lookup(row.number) for row in rows]
    finished = list(finished_rows(engine))
    return {
        "tables": pack_tables(state),
        "rows": [packed(row) for row in rows],
        "looked up": [packed(row) for row in looked_up if row is not None],
        "leased": sorted(map(packed, state.leased.values())),
        "finished": [(kept.lsn, kept.pack()) for kept in finished],
        "ids": [state.number_of(one) for one in ids],
        "finished ids": [
            None if kept is None else kept.lsn
            for kept in (state.finished_of(one) for one in ids)
        ],
        "pending": {key: count for key, count in state.pending.items() if count},
        "counted": (state.pending_count, state.payload_bytes, state.finished_count),
        "last": (state.last_lsn, state.last_hlc),
    }
