"""Checkpoints: the hot table's changes go into the index, in one transaction.

::

    1 sync the log         nothing unsynced may be named by a checkpoint
    2 freeze               the hot table is swapped out (as an LSM tree swaps its
                           memtable); intake goes on into a new one
    3 write                rows, due keys, ids and the store's tables, in key order
    4 drop the frozen one  the index answers for it now

``Changes`` takes what is in the frozen table, and takes away what ``lifted`` says the
index holds of the same tasks.  A task that was scheduled and finished in between
appears in neither and never touches the index.  What was scheduled and not touched
since goes in by the block (``untouched.py``), and is taken out of it when it is touched
after all (``taking.py``): from then on it has a row of its own.

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
from wheeldb.engine.taking import take_out
from wheeldb.engine.untouched import Blocks
from wheeldb.index.bulk import due_fields, pack_due_rows, pack_tasks
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    DUE,
    FINISHED,
    ID,
    TASK,
    due_digest,
    far_from,
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
    frozen: HotTable,
    lanes: Lanes,
    digests: Digests,
    forgotten: list[Finished],
    index: Index,
) -> Changes:
    """Return what the index has to take, and bring the digests up to it.

    Args:
        frozen: The table to write; nobody changes it any more.
        lanes: The numbers of lanes.
        digests: What the index holds by the events so far.
        forgotten: Finished tasks that the index still has and shall lose.
        index: Asked for the blocks and runs that lose something.

    Raises:
        IndexDamaged: If one of those is damaged.
    """
    changes = Changes()
    taken = take_out(frozen.lifted, lanes, index, changes, digests)
    writer = _Writer(frozen, lanes, digests, changes, taken)
    untouched = _put_changed(frozen, writer)
    for columns, gone in untouched.items():
        writer.put_columns(columns, gone)
    writer.blocks.finish()
    for finished in frozen.dropped.values():
        writer.forget(finished)
    for lsn, kept in frozen.finished.items():
        if kept is not None and lsn > frozen.forgotten_through:
            writer.keep(kept)
    for finished in forgotten:
        if finished.lsn not in frozen.dropped:
            writer.forget(finished)
    return changes


def _put_changed(frozen: HotTable, writer: "_Writer") -> dict[Columns, set[int]]:
    """Write what was changed; return the columns, and which positions are not theirs.

    All numbers of an event are in the table, in order and side by side.
    """
    untouched: dict[Columns, set[int]] = {}
    columns: Columns | None = None
    gone: set[int] = set()
    count = 0
    for number, entry in frozen.rows.items():
        if entry is columns and columns is not None:
            continue
        if isinstance(entry, Columns):
            columns = entry
            gone = untouched[entry] = set(range(number - entry.first))
            count += entry.count - len(gone)
            continue
        if (
            columns is not None
            and columns.first < number < columns.first + columns.count
        ):
            gone.add(number - columns.first)
            count -= 1
        lifted = frozen.lifted.get(number)
        if lifted is not None:
            writer.take_away(*lifted, keeps_id=entry is not None)
        if entry is not None:
            writer.put(entry, has_id=lifted is not None)
        count += 1
    assert count == len(frozen.rows), f"{len(frozen.rows)} entries, {count} are known"
    return untouched


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

    def __init__(
        self,
        frozen: HotTable,
        lanes: Lanes,
        digests: Digests,
        changes: Changes,
        taken: set[int],
    ) -> None:
        self.changes = changes
        self.blocks = Blocks(changes, digests)
        self._frozen = frozen
        self._lanes = lanes
        self._digests = digests
        # What blocks have lost already.
        self._taken = taken

    def put_columns(self, columns: Columns, gone: set[int]) -> None:
        """Put the tasks of an event that are as they were scheduled."""
        first, count = columns.first, columns.count
        if not columns.is_uniform() or columns.due_first() < 0:
            for position in range(count):
                if position not in gone:
                    self.put(columns.row(first + position), has_id=False)
            return
        timeline, _, _ = lane_key = columns.lane_key(0)
        lane = self._lanes.number(lane_key)
        now_ms = self._frozen.now[timeline]
        left = self.blocks.cut(columns, gone, lane, far_from(now_ms))
        if left:
            self._put_singly(columns, left, lane, now_ms)
        if columns.ids is not None:
            for position, task_id in enumerate(columns.ids):
                if task_id is not None and position not in gone:
                    self._put_id(task_id, first + position)

    def _put_singly(
        self, columns: Columns, numbers: list[int], lane: int, now_ms: int
    ) -> None:
        """Put tasks of an event that are in no block."""
        dues_ms = [columns.due(number - columns.first) for number in numbers]
        fields = due_fields(dues_ms, now_ms)
        bodies = columns.pack_rows(numbers, map(ne, fields, dues_ms))
        task_rows, task_digest = pack_tasks(numbers, bodies)
        due_rows, due_digest = pack_due_rows(lane, fields, numbers, dues_ms)
        self.changes.task_rows += task_rows
        self.changes.due_rows += due_rows
        self._digests.add(TASK, task_digest, len(numbers))
        self._digests.add(DUE, due_digest, len(numbers))

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
        number = old.number
        changes, subtract = self.changes, self._digests.subtract
        if number not in self._taken:
            lane = self._lanes.of_row(old)
            due_ms = max(old.due_ms, 0)
            body = old.pack(coarse=lane >= LANE_FIRST and field != due_ms)
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
