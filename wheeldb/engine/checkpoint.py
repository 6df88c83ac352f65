"""Checkpoints: the hot table's changes go into the index, in one transaction.

::

    1 sync the log         nothing unsynced may be named by a checkpoint
    2 freeze               the hot table is swapped out (as an LSM tree swaps its
                           memtable); intake goes on into a new one
    3 write                rows, due keys, ids and the store's tables, in key order
    4 drop the frozen one  the index answers for it now

``Changes`` takes what is in the frozen table, and takes away what ``lifted`` says the
index holds of the same tasks.  A task that was scheduled and finished in between
appears in neither and never touches the index.

At most two tables exist.  If the active one fills up before the frozen one is written,
whoever fills it has to wait (``engine.py``).
"""

from operator import ne

from wheeldb.engine.columns import Columns
from wheeldb.engine.decoding import decode_finished
from wheeldb.engine.digests import Digests
from wheeldb.engine.hot import HotTable
from wheeldb.engine.lanes import LANE_FIRST, Lanes, field_to_write
from wheeldb.engine.row import Finished, Row
from wheeldb.engine.state import State
from wheeldb.index.bulk import due_fields, pack_due_rows, pack_tasks
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    DUE,
    FINISHED,
    ID,
    TASK,
    due_digest,
    id_digest,
    id_hash,
    number_key,
    row_crc,
    row_digest,
)
from wheeldb.index.snapshot import Index

__all__ = (
    "DIGESTS_NAME",
    "FORGOTTEN_MAX",
    "TABLES_NAME",
    "changes_of",
    "forgotten_rows",
    "freeze",
    "thaw",
)

TABLES_NAME = "tables"
DIGESTS_NAME = "digests"
# Finished rows that one checkpoint removes from the index, at most.
FORGOTTEN_MAX = 50_000
_PIECE_COUNT = 1_000


def freeze(state: State, now: tuple[int, int]) -> HotTable:
    """Swap the hot table out; call it under the lock with everything synced."""
    assert state.frozen is None, "the table before is still being written"
    frozen = state.active
    frozen.now = now
    frozen.forgotten_through = state.forgotten_through
    state.frozen = frozen
    state.active = HotTable()
    return frozen


def thaw(state: State) -> None:
    """Drop the frozen table: the index has it; call it under the lock."""
    state.frozen = None


def changes_of(
    frozen: HotTable, lanes: Lanes, digests: Digests, forgotten: list[Finished]
) -> Changes:
    """Return what the index has to take, and bring the digests up to it.

    Args:
        frozen: The table to write; nobody changes it any more.
        lanes: The numbers of lanes.
        digests: What the index holds by the events so far.
        forgotten: Finished tasks that the index still has and shall lose.
    """
    writer = _Writer(frozen, lanes, digests)
    untouched: dict[Columns, list[int]] = {}
    for number, entry in frozen.rows.items():
        if isinstance(entry, Columns):
            # As it was scheduled, since the checkpoint before: nothing was lifted.
            numbers = untouched.get(entry)
            if numbers is None:
                numbers = untouched[entry] = []
            numbers.append(number)
            continue
        lifted = frozen.lifted.get(number)
        if lifted is not None:
            writer.take_away(*lifted, keeps_id=entry is not None)
        if entry is not None:
            writer.put(entry, has_id=lifted is not None)
    for columns, numbers in untouched.items():
        writer.put_columns(columns, numbers)
    for finished in frozen.dropped.values():
        writer.forget(finished)
    for lsn, kept in frozen.finished.items():
        if kept is not None and lsn > frozen.forgotten_through:
            writer.keep(kept)
    for finished in forgotten:
        if finished.lsn not in frozen.dropped:
            writer.forget(finished)
    return writer.changes


def forgotten_rows(index: Index, through: int) -> list[Finished]:
    """Return finished tasks up to an LSN that the index still has, the oldest."""
    rows: list[Finished] = []
    with index.snapshot() as snapshot:
        after, count = 0, 1
        while len(rows) < FORGOTTEN_MAX:
            piece = snapshot.finished_range(after, count)
            for lsn, body in piece:
                if lsn > through:
                    return rows
                rows.append(decode_finished(lsn, body))
            if len(piece) < count:
                break
            after, count = piece[-1][0], _PIECE_COUNT
    return rows


class _Writer:
    """Collects rows into ``Changes`` and sums them up."""

    def __init__(self, frozen: HotTable, lanes: Lanes, digests: Digests) -> None:
        self.changes = Changes()
        self._frozen = frozen
        self._lanes = lanes
        self._digests = digests

    def put_columns(self, columns: Columns, numbers: list[int]) -> None:
        """Put tasks that are as they were scheduled, all of one event."""
        dues_ms = [columns.due(number - columns.first) for number in numbers]
        if not columns.is_uniform() or min(dues_ms) < 0:
            for number in numbers:
                self.put(columns.row(number), has_id=False)
            return
        timeline, _, _ = lane_key = columns.lane_key(0)
        lane = self._lanes.number(lane_key)
        fields = due_fields(dues_ms, self._frozen.now[timeline])
        bodies = columns.pack_rows(numbers, map(ne, fields, dues_ms))
        task_rows, task_digest = pack_tasks(numbers, bodies)
        due_rows, due_digest = pack_due_rows(lane, fields, numbers, dues_ms)
        self.changes.task_rows += task_rows
        self.changes.due_rows += due_rows
        self._digests.add(TASK, task_digest, len(numbers))
        self._digests.add(DUE, due_digest, len(numbers))
        if columns.ids is not None:
            for number in numbers:
                task_id = columns.ids[number - columns.first]
                if task_id is not None:
                    self._put_id(task_id, number)

    def put(self, row: Row, *, has_id: bool) -> None:
        lane = self._lanes.of_row(row)
        due_ms = max(row.due_ms, 0)
        field = field_to_write(lane, due_ms, self._frozen.now, row.timeline)
        body = row.pack(coarse=lane >= LANE_FIRST and field != due_ms)
        number = row.number
        changes, add = self.changes, self._digests.add
        changes.put_tasks.append((number, row.lsn, body))
        add(TASK, _digest(number, row.lsn, body))
        changes.put_due.append((lane, field, number, due_ms))
        add(DUE, due_digest(lane, field, number, due_ms))
        if row.id is not None and not has_id:
            self._put_id(row.id, number)

    def _put_id(self, task_id: str, number: int) -> None:
        hash8 = id_hash(task_id)
        self.changes.put_ids.append((hash8, number, None))
        self._digests.add(ID, id_digest(hash8, number, None))

    def take_away(self, old: Row, field: int, *, keeps_id: bool) -> None:
        lane = self._lanes.of_row(old)
        due_ms = max(old.due_ms, 0)
        body = old.pack(coarse=lane >= LANE_FIRST and field != due_ms)
        number = old.number
        changes, subtract = self.changes, self._digests.subtract
        if not keeps_id:
            changes.delete_tasks.append(number)
        subtract(TASK, _digest(number, old.lsn, body))
        changes.delete_due.append((lane, field, number))
        subtract(DUE, due_digest(lane, field, number, due_ms))
        if old.id is not None and not keeps_id:
            hash8 = id_hash(old.id)
            changes.delete_ids.append((hash8, number))
            subtract(ID, id_digest(hash8, number, None))

    def keep(self, finished: Finished) -> None:
        body, hash8 = finished.pack(), id_hash(finished.id)
        lsn, number = finished.lsn, finished.number
        self.changes.put_finished.append((lsn, body))
        self._digests.add(FINISHED, _digest(lsn, lsn, body))
        self.changes.put_ids.append((hash8, number, lsn))
        self._digests.add(ID, id_digest(hash8, number, lsn))

    def forget(self, finished: Finished) -> None:
        body, hash8 = finished.pack(), id_hash(finished.id)
        lsn, number = finished.lsn, finished.number
        self.changes.delete_finished.append(lsn)
        self._digests.subtract(FINISHED, _digest(lsn, lsn, body))
        self.changes.delete_ids.append((hash8, number))
        self._digests.subtract(ID, id_digest(hash8, number, lsn))


def _digest(number: int, lsn: int, body: bytes) -> int:
    return row_digest(number, row_crc(number_key(number), lsn, body))
