"""Rows as callers see them: tasks, receipts, events.

Inside, instants are milliseconds on two timelines and payloads are bytes; here they
become aware datetimes, seconds and values.  The due time of an elapsed task is an
estimate, made with the wall clock of this moment, and ``None`` while that is untrusted.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import overload

from wheeldb.clock.timekeeper import Now, Timekeeper
from wheeldb.engine.admission import Scheduled
from wheeldb.engine.row import (
    DEAD,
    LEASED,
    PARKED,
    QUEUE_DEFAULT,
    SCHEDULED,
    Finished,
    Row,
    generated_id,
    headers_of,
)
from wheeldb.events import WALL, F
from wheeldb.model import Receipt, Task, TaskState
from wheeldb.payload import unpack_payload

__all__ = ("Presenter", "Receipts", "instant")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# Makes a receipt of its fields in half the time that its own constructor takes.
_receipt = tuple.__new__

_DUE, _SCHEDULED = TaskState.DUE, TaskState.SCHEDULED
_STATES = {LEASED: TaskState.LEASED, DEAD: TaskState.DEAD, PARKED: TaskState.PARKED}


def instant(unix_ms: int) -> datetime:
    """Return Unix milliseconds as an aware datetime."""
    return _EPOCH + _MILLISECOND * unix_ms


class Presenter:
    """Makes public values, as of one moment each."""

    def __init__(self, keeper: Timekeeper) -> None:
        self._keeper = keeper

    def due_at(self, timeline: int, due_ms: int) -> datetime | None:
        """Return a due time as an instant, ``None`` if that can't be told."""
        if timeline == WALL:
            return instant(due_ms)
        wall_ms = self._keeper.estimate_wall_ms(due_ms)
        try:
            return None if wall_ms is None else instant(wall_ms)
        except OverflowError:
            return None

    def state_of(self, row: Row, now: Now, paused_queues: frozenset[str]) -> TaskState:
        """Return where a task is."""
        if row.state != SCHEDULED:
            return _STATES[row.state]
        if row.paused:
            return TaskState.PAUSED
        return _waiting_state(row.timeline, row.due_ms, row.queue, now, paused_queues)

    def task(
        self, kept: Row | Finished, now: Now, paused_queues: frozenset[str]
    ) -> Task:
        """Return a task as it stands."""
        if isinstance(kept, Finished):
            return _finished_task(kept)
        row = kept
        timeline, due_ms = row.behind or (row.timeline, row.due_ms)
        now_ms = now.wall_ms if timeline == WALL else now.elapsed_ms
        state = self.state_of(row, now, paused_queues)
        held = None
        if timeline == WALL and state == TaskState.SCHEDULED:
            held = now.reason if now.trust == "untrusted" else None
        options = row.options
        return Task(
            id=row.task_id,
            number=row.number,
            name=row.name,
            queue=row.queue,
            payload=unpack_payload(row.payload),
            state=state,
            version=row.version,
            lsn=row.lsn,
            due_at=self.due_at(timeline, due_ms),
            due_kind="wall" if timeline == WALL else "elapsed",
            due_in=(due_ms - now_ms) / 1000,
            held=held,
            priority=row.priority,
            attempts=row.attempts,
            recoveries=row.recoveries,
            tags=tuple(options.get(F.TAGS, ())),  # type: ignore[arg-type]
            headers=headers_of(row),
            created_at=instant(row.created_ms),
            finished_at=None,
            result=None,
            error=row.error,
            series=options.get(F.SERIES),  # type: ignore[arg-type]
        )

    def receipt(
        self,
        kept: Row | Finished,
        created: bool,
        now: Now,
        paused_queues: frozenset[str],
        durability: str,
    ) -> Receipt:
        """Return the receipt for a task that stands under the id of a request."""
        due_at = None
        if isinstance(kept, Row):
            due_at = self.due_at(*(kept.behind or (kept.timeline, kept.due_ms)))
            state = self.state_of(kept, now, paused_queues)
            task_id = kept.task_id
        else:
            state, task_id = TaskState(kept.state), kept.id
        return Receipt(
            task_id, due_at, kept.lsn, created, state, kept.version, durability
        )

    def receipt_at(
        self,
        scheduled: Scheduled,
        position: int,
        paused_queues: frozenset[str],
        durability: str,
    ) -> Receipt:
        """Return the receipt for one task of a request, as of its decision."""
        now = scheduled.now
        if position in scheduled.standing:
            kept, created = scheduled.standing[position]
            return self.receipt(kept, created, now, paused_queues, durability)
        # It was scheduled; a row would take as long to make as the receipt.
        columns, index = scheduled.place_of(position)
        number = columns.first + index
        task_id, timeline, due_ms, options = columns.at(index)
        queue, version = QUEUE_DEFAULT, 0
        if options:
            queue = options.get(F.QUEUE, QUEUE_DEFAULT)  # type: ignore[assignment]
            version = options.get(F.VERSION, 0)  # type: ignore[assignment]
        return _receipt(
            Receipt,
            (
                task_id or generated_id(number),
                self.due_at(timeline, due_ms),
                number,
                True,
                _waiting_state(timeline, due_ms, queue, now, paused_queues),
                version,
                durability,
            ),
        )


def _waiting_state(
    timeline: int, due_ms: int, queue: str, now: Now, paused_queues: frozenset[str]
) -> TaskState:
    if queue in paused_queues:
        return TaskState.PAUSED
    now_ms = now.wall_ms if timeline == WALL else now.elapsed_ms
    return _DUE if due_ms <= now_ms else _SCHEDULED


def _finished_task(kept: Finished) -> Task:
    fields = kept.fields
    result = fields.get(F.RESULT)
    return Task(
        id=kept.id,
        number=kept.number,
        name=fields[F.NAME],  # type: ignore[arg-type]
        queue=fields.get(F.QUEUE, QUEUE_DEFAULT),  # type: ignore[arg-type]
        payload=None,
        state=TaskState(kept.state),
        version=kept.version,
        lsn=kept.lsn,
        due_at=None,
        due_kind="elapsed",
        due_in=None,
        held=None,
        priority=0,
        attempts=fields.get(F.ATTEMPTS, 0),  # type: ignore[arg-type]
        recoveries=fields.get(F.RECOVERIES, 0),  # type: ignore[arg-type]
        tags=(),
        headers={},
        created_at=instant(fields[F.CREATED]),  # type: ignore[arg-type]
        finished_at=instant(kept.finished_ms),
        result=None if result is None else unpack_payload(result),  # type: ignore[arg-type]
        error=fields.get(F.ERROR),  # type: ignore[arg-type]
        series=fields.get(F.SERIES),  # type: ignore[arg-type]
    )


class Receipts(Sequence[Receipt]):
    """The receipts of one request, each made when it is looked at.

    They tell the states as they were when the request was decided.
    """

    def __init__(
        self,
        scheduled: Scheduled,
        presenter: Presenter,
        paused_queues: frozenset[str],
        durability: str,
    ) -> None:
        self._scheduled = scheduled
        self._presenter = presenter
        self._paused_queues = paused_queues
        self._durability = durability

    def __len__(self) -> int:
        return self._scheduled.count

    @overload
    def __getitem__(self, position: int) -> Receipt: ...

    @overload
    def __getitem__(self, position: slice) -> list[Receipt]: ...

    def __getitem__(self, position: int | slice) -> Receipt | list[Receipt]:
        if isinstance(position, slice):
            return [self[index] for index in range(*position.indices(len(self)))]
        count = self._scheduled.count
        if not -count <= position < count:
            raise IndexError(f"receipt {position} of {count}")
        return self._presenter.receipt_at(
            self._scheduled, position % count, self._paused_queues, self._durability
        )

    def __iter__(self) -> Iterator[Receipt]:
        for position in range(len(self)):
            yield self[position]

    def __repr__(self) -> str:
        return f"<{len(self)} receipts>"
