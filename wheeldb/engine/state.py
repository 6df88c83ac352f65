"""The state: everything a store knows, as lookups over hot table and index.

::

    lookup(number) ─► active table ─► leased rows ─► frozen table ─► index
                      changed since    in memory      being          everything
                      the last         at all times   written        else
                      checkpoint

Changes come only from ``fold.py``: of tasks through ``insert``, ``put`` and ``remove``,
of finished ids through ``keep_finished`` and ``drop_finished``.  These keep the
counters, the undo record and the list of what the window has to place anew.

Ensures, after each of them:
 1. ``pending`` counts the rows by queue and state, ``payload_bytes`` sums them up.
 2. ``leased`` holds exactly the rows whose state is LEASED.
 3. A key that the index holds and the hot table changes is in ``lifted``, once.
 4. With an undo record, the value from before it can be had from there.

What is in flight is not to be seen yet: ``view`` and ``shown_under`` are told what the
events replaced, and answer as if they had not happened.  The state knows no lock; its
owner holds one.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wheeldb.engine.columns import Columns
from wheeldb.engine.decoding import decode_finished, decode_row
from wheeldb.engine.hot import HotTable
from wheeldb.engine.lanes import (
    LANE_FIRST,
    LANE_LEASED,
    Lanes,
    field_in_index,
    field_to_write,
)
from wheeldb.engine.row import LEASED, SCHEDULED, Finished, Row
from wheeldb.engine.undo import ABSENT, Undo
from wheeldb.events import F
from wheeldb.index.keys import id_hash
from wheeldb.index.snapshot import Index, Snapshot

if TYPE_CHECKING:
    from wheeldb.clock.timekeeper import Anchor

__all__ = (
    "Awaited",
    "State",
    "row_from_index",
)


class Awaited:
    """The end of a task, once it has come, and how many wait for it."""

    __slots__ = ("end", "waiters_count")

    def __init__(self) -> None:
        self.end: Finished | None = None
        self.waiters_count = 0


class State:
    """What the events so far amount to."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.active = HotTable()
        self.frozen: HotTable | None = None
        self.lanes = Lanes()
        self.leased: dict[int, Row] = {}

        # Durable tables of the store itself; see ``tables.py``.
        self.last_lsn = 0
        self.last_hlc = 0
        self.incarnation = 0
        self.anchor: Anchor | None = None
        self.place: tuple[int, int] = (0, 0)
        self.doubt: tuple[int, int, int] = (0, 0, 0)
        self.paused_queues: frozenset[str] = frozenset()
        self.forgotten_through = 0
        self.finished_count = 0

        # Derived: counted from the rows.
        self.pending: dict[tuple[str, int], int] = {}
        self.pending_count = 0
        self.payload_bytes = 0

        # Ends that somebody waits for, whatever the id.
        self.awaited: dict[int, Awaited] = {}

        self.undo: Undo | None = None
        # What the window has to look at once the events stand: old and new rows, and
        # columns; ``None`` while nobody keeps a window (replay).
        self.touched: list[tuple[Row | None, Row | None] | Columns] | None = None

    # Looking things up.

    def lookup(self, number: int) -> Row | None:
        """Return the row of an unfinished task."""
        active = self.active
        if number in active.rows:
            return active.row(number)
        row = self.leased.get(number)
        if row is not None:
            return row
        frozen = self.frozen
        if frozen is not None and number in frozen.rows:
            return frozen.row(number)
        with self.index.snapshot() as snapshot:
            return row_from_index(snapshot, number)

    def number_of(self, task_id: str) -> int:
        """Return the number of the live task with a caller's id, or 0."""
        number = self.active.ids.get(task_id)
        return self._number_beneath(task_id) if number is None else number

    def _number_beneath(self, task_id: str) -> int:
        """Return the same without a look at the active table."""
        if self.frozen is not None:
            number = self.frozen.ids.get(task_id)
            if number is not None:
                return number
        with self.index.snapshot() as snapshot:
            for number, finishing_lsn in snapshot.numbers_for(id_hash(task_id)):
                if finishing_lsn is None:
                    row = row_from_index(snapshot, number)
                    if row is not None and row.id == task_id:
                        return number
        return 0

    def finished_of(self, task_id: str) -> Finished | None:
        """Return what is kept of the finished task with a caller's id."""
        lsn = self.active.finished_ids.get(task_id)
        if lsn is None:
            lsn = self._finishing_lsn_beneath(task_id)
        return self.finished_at(lsn, ()) if lsn else None

    def _finishing_lsn_beneath(self, task_id: str) -> int:
        """Return where a caller's id finished, or 0, as frozen table and index say."""
        if self.frozen is not None:
            lsn = self.frozen.finished_ids.get(task_id)
            if lsn is not None:
                return lsn
        with self.index.snapshot() as snapshot:
            for _, finishing_lsn in snapshot.numbers_for(id_hash(task_id)):
                # The row of one that was forgotten may outlive it for a while, and
                # the id have come back and finished again.
                if finishing_lsn is None:
                    continue
                if finishing_lsn > self.forgotten_through:
                    kept = snapshot.finished(finishing_lsn)
                    if kept is not None:
                        finished = decode_finished(finishing_lsn, kept)
                        if finished.id == task_id:
                            return finishing_lsn
        return 0

    def finished_at(self, lsn: int, undos: Iterable[Undo]) -> Finished | None:
        """Return what is kept of the task that finished at ``lsn``."""
        if lsn <= self.forgotten_through:
            return None
        for undo in undos:
            if lsn in undo.finished:
                return undo.finished[lsn]
        for table in (self.active, self.frozen):
            if table is not None and lsn in table.finished:
                return table.finished[lsn]
        with self.index.snapshot() as snapshot:
            kept = snapshot.finished(lsn)
        return None if kept is None else decode_finished(lsn, kept)

    def changed_numbers(self) -> Iterator[int]:
        """Yield the numbers that the hot table knows better than the index."""
        yield from self.active.rows
        if self.frozen is not None:
            active = self.active.rows
            yield from (number for number in self.frozen.rows if number not in active)

    def hot_row(self, number: int) -> Row | None:
        """Return the row of one of ``changed_numbers``, ``None`` if it is gone."""
        if number in self.active.rows:
            return self.active.row(number)
        assert self.frozen is not None, f"task {number} is not in the hot table"
        return self.frozen.row(number)

    # What is shown while events are in flight.

    def view(self, number: int, undos: Iterable[Undo]) -> Row | None:
        """Return a row as it was before the events in flight, oldest undo first."""
        for undo in undos:
            if undo.first_lsn <= number <= undo.last_lsn:
                return None
            old = undo.rows.get(number, ABSENT)
            if old is not ABSENT:
                return old  # type: ignore[return-value]
        return self.lookup(number)

    def shown_under(self, task_id: str, undos: Iterable[Undo]) -> tuple[int, int]:
        """Return (number, finishing LSN) under a caller's id, 0 for none, likewise."""
        number: object = None
        lsn: object = None
        for undo in undos:
            if number is None:
                number = undo.ids.get(task_id)
            if lsn is None:
                lsn = undo.finished_ids.get(task_id)
        if number is ABSENT:
            number = self._number_beneath(task_id)
        elif number is None:
            number = self.number_of(task_id)
        if lsn is ABSENT or (lsn is None and task_id not in self.active.finished_ids):
            lsn = self._finishing_lsn_beneath(task_id)
        elif lsn is None:
            lsn = self.active.finished_ids[task_id]
        return number, lsn  # type: ignore[return-value]

    # Changing things; called by the fold alone.

    def insert(self, columns: Columns) -> None:
        """Add the tasks of a ``SCHEDULED`` event, which has its numbers."""
        first, count, active = columns.first, columns.count, self.active
        if count == 1:
            active.rows[first] = columns
        else:
            active.rows.update(dict.fromkeys(range(first, first + count), columns))
        if columns.ids is not None:
            for position, task_id in enumerate(columns.ids):
                if task_id is not None:
                    self._set_id(task_id, first + position)
        if columns.is_uniform():
            lane_key = columns.lane_key(0)
            self._count(lane_key[1], SCHEDULED, count)
            lane = columns.lane = self.lanes.number(lane_key)
            if columns.shared and F.EXPIRES in columns.shared:
                self.lanes.note_expiry(lane)
        else:
            for position in range(count):
                lane_key = columns.lane_key(position)
                self._count(lane_key[1], SCHEDULED, 1)
                lane = self.lanes.number(lane_key)
                if F.EXPIRES in columns.options(position):
                    self.lanes.note_expiry(lane)
        self.payload_bytes += columns.payload_bytes
        active.payload_bytes += columns.payload_bytes
        self.pending_count += count
        if self.touched is not None:
            self.touched.append(columns)

    def put(self, old: Row, new: Row) -> None:
        """Replace the row of a task that stays unfinished."""
        self._displace(old)
        self.active.rows[new.number] = new
        self.active.payload_bytes += len(new.payload)
        self.payload_bytes += len(new.payload) - len(old.payload)
        queue, state = new.queue, new.state
        if (queue, state) != (old.queue, old.state):
            self._count(old.queue, old.state, -1)
            self._count(queue, state, 1)
        if state == LEASED:
            self.leased[new.number] = new
        elif old.state == LEASED:
            self.leased.pop(new.number, None)
        lane = self.lanes.of_row(new)
        if lane >= LANE_FIRST and F.EXPIRES in new.options:
            self.lanes.note_expiry(lane)
        if self.touched is not None:
            self.touched.append((old, new))

    def remove(self, old: Row) -> None:
        """Take out the row of a task that has ended."""
        self._displace(old)
        self.active.rows[old.number] = None
        self.leased.pop(old.number, None)
        self._count(old.queue, old.state, -1)
        self.payload_bytes -= len(old.payload)
        self.pending_count -= 1
        if old.id is not None:
            self._set_id(old.id, 0)
        if self.touched is not None:
            self.touched.append((old, None))

    def keep_finished(self, finished: Finished) -> None:
        """Remember a finished task by its caller's id."""
        self._set_finished_id(finished.id, finished.lsn)
        self.active.finished[finished.lsn] = finished
        self.finished_count += 1

    def drop_finished(self, finished: Finished) -> None:
        """Forget a finished task whose id is scheduled anew."""
        undo = self.undo
        if undo is not None and finished.lsn < undo.first_lsn:
            undo.finished.setdefault(finished.lsn, finished)
        if finished.lsn not in self.active.finished:
            self.active.dropped[finished.lsn] = finished
        self._set_finished_id(finished.id, 0)
        self.active.finished[finished.lsn] = None
        self.finished_count -= 1

    def has_dropped(self, lsn: int) -> bool:
        """Return whether ``drop_finished`` took it since the last checkpoint."""
        for table in (self.active, self.frozen):
            if table is not None and lsn in table.finished:
                return table.finished[lsn] is None
        return False

    def check(self) -> list[str]:
        """Return what is wrong between counters and rows; looks at no index."""
        findings = [
            f"{count} tasks of queue {queue!r} are counted in state {state}"
            for (queue, state), count in self.pending.items()
            if count < 0
        ]
        if sum(self.pending.values()) != self.pending_count:
            findings.append(
                f"{self.pending_count} tasks are counted, by state "
                f"{sum(self.pending.values())}"
            )
        leased = sum(
            count for (_, state), count in self.pending.items() if state == LEASED
        )
        if leased != len(self.leased):
            findings.append(f"{len(self.leased)} tasks are leased, counted {leased}")
        findings += [
            f"task {number} is kept as leased and is not"
            for number, row in self.leased.items()
            if row.state != LEASED
        ]
        return findings

    def _displace(self, old: Row) -> None:
        """Note what a change takes the place of, in ``lifted`` and the undo record."""
        number, active = old.number, self.active
        if number not in active.rows and number not in active.lifted:
            active.lifted[number] = (old, self._field(old))
        undo = self.undo
        if undo is not None and number < undo.first_lsn and number not in undo.rows:
            undo.rows[number] = old

    def _field(self, old: Row) -> int:
        """Return the due field under which the index holds, or soon will, a row."""
        lane = self.lanes.of_row(old)
        if lane == LANE_LEASED:
            return 0
        frozen = self.frozen
        if frozen is not None and old.number in frozen.rows:
            return field_to_write(lane, old.due_ms, frozen.now, old.timeline)
        return field_in_index(lane, old)

    def _set_id(self, task_id: str, number: int) -> None:
        undo = self.undo
        ids = self.active.ids
        if undo is not None and task_id not in undo.ids:
            undo.ids[task_id] = ids.get(task_id, ABSENT)
        ids[task_id] = number

    def _set_finished_id(self, task_id: str, lsn: int) -> None:
        undo = self.undo
        ids = self.active.finished_ids
        if undo is not None and task_id not in undo.finished_ids:
            undo.finished_ids[task_id] = ids.get(task_id, ABSENT)
        ids[task_id] = lsn

    def _count(self, queue: str, state: int, by: int) -> None:
        key = (queue, state)
        pending, undo = self.pending, self.undo
        if undo is not None and key not in undo.pending:
            undo.pending[key] = pending.get(key, ABSENT)
        pending[key] = pending.get(key, 0) + by


def row_from_index(snapshot: Snapshot, number: int) -> Row | None:
    """Return a row as the index holds it."""
    found = snapshot.task(number)
    if found is None:
        return None
    lsn, body = found
    return decode_row(number, lsn, body)
