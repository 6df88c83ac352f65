"""The fold: what each kind of event does to the state.

Live and in replay the same code runs, with the same arguments: a ``Fact`` at its LSN
under its stamp.  So a fact holds all that was decided (which tasks, until when, to
which state); nothing is judged here, no clock is read and no default consulted.

    fact = Fact(Kind.ACKED, 1, {F.NUMBER: [1041]})
    apply(state, fact, lsn=2001, hlc=…)        # task 1041 is done

What ends an attempt follows one rule, ``_end_attempt``: a cancel that came meanwhile
wins, then a due time or definition that waits behind the attempt, then the event's own
outcome.  A row that is not there any more is an error of the log: ``apply`` raises
``CorruptionError``, and a decision that would lead to it is a bug of ours.
"""

from collections.abc import Callable

from wheeldb.clock.hlc import physical_ms
from wheeldb.clock.timekeeper import Anchor
from wheeldb.engine.columns import Columns
from wheeldb.engine.row import DEAD, LEASED, SCHEDULED, Finished, Row
from wheeldb.engine.state import State
from wheeldb.errors import CorruptionError
from wheeldb.events import ELAPSED, EventRecord, F, Kind, pack_event, pack_fields
from wheeldb.unpacking import MISSHAPEN, misshapen

__all__ = (
    "Fact",
    "apply",
    "apply_record",
    "is_doubtful",
)


class Fact:
    """An event on its way into the log, or out of it."""

    __slots__ = ("columns", "count", "fields", "kind", "packed")

    def __init__(
        self,
        kind: int,
        count: int,
        fields: dict[int, object],
        columns: Columns | None = None,
        packed: bytes | None = None,
    ) -> None:
        self.kind = kind
        self.count = count
        self.fields = fields
        self.columns = columns
        # The event's bytes, where the caller's thread has packed them already.
        self.packed = packed

    @classmethod
    def from_record(cls, record: EventRecord) -> "Fact":
        """Return the fact that an event of the log holds."""
        columns = None
        if record.kind == Kind.SCHEDULED:
            columns = Columns.from_fields(record.fields)
        return cls(record.kind, record.lsn_count, record.fields, columns=columns)

    def pack(self) -> bytes:
        """Return the event's bytes."""
        if self.packed is not None:
            return self.packed
        return pack_event(self.kind, self.count, pack_fields(self.fields))


def apply(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    """Make the state what it is after ``fact``, whose first position is ``lsn``.

    Raises:
        CorruptionError: If it concerns a task that the state does not have.
    """
    _APPLY[fact.kind](state, fact, lsn, hlc)
    state.active.events += 1
    state.last_lsn = lsn + fact.count - 1
    state.last_hlc = hlc


def apply_record(state: State, record: EventRecord, lsn: int, hlc: int) -> None:
    """Apply an event that was read.

    Raises:
        CorruptionError: If it concerns a task that the state does not have.
        FormatError: If it has not the fields that events of its kind have.
    """
    try:
        apply(state, Fact.from_record(record), lsn, hlc)
    except MISSHAPEN as error:
        kind = Kind(record.kind).name.lower()
        raise misshapen(f"the event {kind} at LSN {lsn}", error) from error


def _scheduled(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    columns = fact.columns
    assert columns is not None, "a SCHEDULED fact carries its columns"
    columns.first = lsn
    columns.created_ms = physical_ms(hlc)
    if columns.ids is not None:
        replaces: dict[int, int] = fact.fields.get(F.REPLACES, {})  # type: ignore[assignment]
        for number in replaces.values():
            state.remove(_row(state, number, lsn))
        for task_id in columns.ids:
            if task_id is not None:
                finished = state.finished_of(task_id)
                if finished is not None:
                    state.drop_finished(finished)
    state.insert(columns)


def _superseded(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    definition: dict[int, object] = fact.fields[F.DEFINITION]  # type: ignore[assignment]
    old = _row(state, fact.fields[F.NUMBER], lsn)
    new = _changed(state, old, lsn)
    fields = dict(definition)
    new.name = fields.pop(F.NAME)  # type: ignore[assignment]
    new.payload = fields.pop(F.PAYLOAD)  # type: ignore[assignment]
    timeline = fields.pop(F.TIMELINE, ELAPSED)
    new.behind = (timeline, fields.pop(F.DUE))  # type: ignore[assignment]
    new.options = fields
    new.cancelled = False
    new.created_ms = physical_ms(hlc)
    state.put(old, new)


def _cancelled(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    marks_only = fact.fields.get(F.CANCELLED, False)
    for position, old in _rows(state, fact, lsn):
        if marks_only:
            new = _changed(state, old, lsn + position)
            new.cancelled = True
            state.put(old, new)
        else:
            _finish(state, old, "cancelled", lsn + position, hlc)


def _rescheduled(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    timeline: int = fact.fields.get(F.TIMELINE, ELAPSED)  # type: ignore[assignment]
    due_ms: int = fact.fields[F.DUE]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        if old.state == LEASED:
            new.behind = (timeline, due_ms)
        else:
            _schedule_at(new, timeline, due_ms)
            new.fence = 0
            if old.state == DEAD:
                new.attempts = new.recoveries = 0
        state.put(old, new)


def _revived(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    due_ms: int = fact.fields[F.DUE]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        _schedule_at(new, ELAPSED, due_ms)
        new.fence = 0
        new.attempts = new.recoveries = 0
        state.put(old, new)


def _started_now(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    due_ms: int = fact.fields[F.DUE]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        new.paused = False
        if old.state == LEASED:
            new.behind = (ELAPSED, due_ms)
        else:
            _schedule_at(new, ELAPSED, due_ms)
            new.fence = 0
            if old.state == DEAD:
                new.attempts = new.recoveries = 0
        state.put(old, new)


def _paused(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        new.paused = fact.kind == Kind.PAUSED
        if F.DUE in fact.fields and old.state == SCHEDULED:
            _schedule_at(new, ELAPSED, fact.fields[F.DUE])  # type: ignore[arg-type]
            new.fence = 0
        state.put(old, new)


def _leased(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    until: list[int] = fact.fields[F.UNTIL]  # type: ignore[assignment]
    holder: int = fact.fields.get(F.HOLDER, 0)  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        new.state = LEASED
        new.attempts += 1
        new.fence = lsn + position
        new.until_ms = until[position]
        new.holder = holder
        state.put(old, new)


def _acked(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    results: dict[int, bytes] = fact.fields.get(F.RESULT, {})  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        if old.behind is not None and not old.cancelled:
            _end_attempt(state, old, lsn + position, hlc)
        else:
            result = results.get(position)
            _finish(state, old, "done", lsn + position, hlc, result=result)


def _nacked(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    due_ms = fact.fields.get(F.DUE)
    error: str = fact.fields[F.ERROR]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _end_attempt(state, old, lsn + position, hlc)
        if new is None:
            continue
        new.error = error
        if due_ms is None:
            new.state = DEAD
        else:
            _try_again_at(new, due_ms)  # type: ignore[arg-type]
        state.put(old, new)


def _released(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    due_ms = fact.fields.get(F.DUE)
    may_have_run = F.MAY_HAVE_RUN in fact.fields
    for position, old in _rows(state, fact, lsn):
        new = _end_attempt(state, old, lsn + position, hlc, may_have_run=may_have_run)
        if new is None:
            continue
        new.attempts -= 1
        new.state = SCHEDULED
        if due_ms is not None:
            _try_again_at(new, due_ms)  # type: ignore[arg-type]
        state.put(old, new)


def _rejected(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    for position, old in _rows(state, fact, lsn):
        new = _end_attempt(state, old, lsn + position, hlc)
        if new is not None:
            new.state = DEAD
            new.error = fact.fields[F.REASON]  # type: ignore[assignment]
            state.put(old, new)


def _renewed(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    until: list[int] = fact.fields[F.UNTIL]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        new.until_ms = until[position]
        state.put(old, new)


def _saved(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    for position, old in _rows(state, fact, lsn):
        new = _changed(state, old, lsn + position)
        new.cursor = fact.fields[F.CURSOR]  # type: ignore[assignment]
        state.put(old, new)


def _cut_short(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    """LEASE_EXPIRED and INTERRUPTED: nobody knows how the attempt ended."""
    due_ms: int = fact.fields[F.DUE]  # type: ignore[assignment]
    outcome: int = fact.fields[F.STATE]  # type: ignore[assignment]
    for position, old in _rows(state, fact, lsn):
        new = _end_attempt(state, old, lsn + position, hlc, may_have_run=True)
        if new is None:
            continue
        if fact.kind == Kind.INTERRUPTED:
            new.attempts -= 1
            new.recoveries += 1
        else:
            # Until somebody takes the task, its late ack is still good.
            new.fence = old.fence
        if outcome == DEAD:
            new.state = DEAD
            new.error = fact.fields[F.REASON]  # type: ignore[assignment]
        else:
            _try_again_at(new, due_ms)
        state.put(old, new)


def _expired(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    for position, old in _rows(state, fact, lsn):
        _finish(state, old, "expired", lsn + position, hlc)


def _queue_paused(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    queue: str = fact.fields[F.QUEUE]  # type: ignore[assignment]
    if fact.kind == Kind.QUEUE_PAUSED:
        state.paused_queues |= {queue}
    else:
        state.paused_queues -= {queue}


def _anchored(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    state.anchor = Anchor.from_fields(fact.fields[F.ANCHOR])  # type: ignore[arg-type]


def _opened(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    fields = fact.fields
    state.incarnation = fields[F.INCARNATION]  # type: ignore[assignment]
    state.anchor = Anchor.from_fields(fields[F.ANCHOR])  # type: ignore[arg-type]
    place: list[int] = fields[F.PLACE]  # type: ignore[assignment]
    state.place = (place[0], place[1])
    doubt: list[int] | None = fields.get(F.DOUBT)  # type: ignore[assignment]
    if doubt is not None:
        state.doubt = (lsn, doubt[0], doubt[1])


def _forgotten(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    state.forgotten_through = fact.fields[F.THROUGH]  # type: ignore[assignment]
    state.finished_count = fact.fields[F.ROWS]  # type: ignore[assignment]


def _noted(state: State, fact: Fact, lsn: int, hlc: int) -> None:
    """CHECKPOINTED and SNAPSHOT_TAKEN vouch for files; the tasks stay as they are."""


_APPLY: dict[int, Callable[[State, Fact, int, int], None]] = {
    Kind.OPENED: _opened,
    Kind.SCHEDULED: _scheduled,
    Kind.SUPERSEDED: _superseded,
    Kind.CANCELLED: _cancelled,
    Kind.RESCHEDULED: _rescheduled,
    Kind.REVIVED: _revived,
    Kind.STARTED_NOW: _started_now,
    Kind.PAUSED: _paused,
    Kind.RESUMED: _paused,
    Kind.LEASED: _leased,
    Kind.ACKED: _acked,
    Kind.NACKED: _nacked,
    Kind.RELEASED: _released,
    Kind.REJECTED: _rejected,
    Kind.RENEWED: _renewed,
    Kind.SAVED: _saved,
    Kind.LEASE_EXPIRED: _cut_short,
    Kind.INTERRUPTED: _cut_short,
    Kind.EXPIRED: _expired,
    Kind.QUEUE_PAUSED: _queue_paused,
    Kind.QUEUE_RESUMED: _queue_paused,
    Kind.ANCHORED: _anchored,
    Kind.CHECKPOINTED: _noted,
    Kind.SNAPSHOT_TAKEN: _noted,
    Kind.FORGOTTEN: _forgotten,
}


def _row(state: State, number: object, lsn: int) -> Row:
    row = state.lookup(number)  # type: ignore[arg-type]
    if row is None:
        raise CorruptionError(
            f"an event concerns task {number}, which does not exist", lsn=lsn
        )
    return row


def _rows(state: State, fact: Fact, lsn: int) -> list[tuple[int, Row]]:
    numbers: list[int] = fact.fields[F.NUMBER]  # type: ignore[assignment]
    return [
        (position, _row(state, number, lsn)) for position, number in enumerate(numbers)
    ]


def is_doubtful(state: State, row: Row) -> bool:
    """Return whether a power cut may have swallowed the news of an earlier start."""
    lsn, *due_ms = state.doubt
    return row.lsn < lsn and row.due_ms <= due_ms[row.timeline]


def _changed(state: State, old: Row, lsn: int) -> Row:
    """Return a copy to change, into which the doubt about earlier starts is carried."""
    new = old.copy(lsn)
    if not new.may_have_run and is_doubtful(state, old):
        new.may_have_run = True
    return new


def _schedule_at(row: Row, timeline: int, due_ms: int) -> None:
    """Give a task a due time of its own; what it expires after counts from there."""
    row.state = SCHEDULED
    row.timeline = timeline
    row.due_ms = due_ms
    match row.options.get(F.EXPIRES):
        case [_, _, expires_ms]:
            row.options = {**row.options, F.EXPIRES: expires_ms}


def _try_again_at(row: Row, due_ms: int) -> None:
    """Give a task another attempt; when it expires stays as it is."""
    expires_ms, expired_at = row.options.get(F.EXPIRES), row.expired_at()
    row.state = SCHEDULED
    row.timeline = ELAPSED
    row.due_ms = due_ms
    if type(expires_ms) is int and expired_at is not None:
        row.options = {**row.options, F.EXPIRES: [*expired_at, expires_ms]}


def _end_attempt(
    state: State, old: Row, lsn: int, hlc: int, *, may_have_run: bool = False
) -> Row | None:
    """End an attempt; return the copy to finish it on, or ``None`` if that is done."""
    if old.cancelled:
        _finish(state, old, "cancelled", lsn, hlc)
        return None
    new = _changed(state, old, lsn)
    new.fence = 0
    new.until_ms = 0
    new.holder = 0
    new.may_have_run = new.may_have_run or may_have_run
    if old.behind is None:
        return new
    timeline, due_ms = old.behind
    _schedule_at(new, timeline, due_ms)
    new.behind = None
    new.attempts = new.recoveries = 0
    new.cursor = None
    new.error = None
    new.may_have_run = may_have_run
    state.put(old, new)
    return None


def _finish(
    state: State,
    row: Row,
    outcome: str,
    lsn: int,
    hlc: int,
    *,
    result: bytes | None = None,
) -> None:
    state.remove(row)
    awaited = state.awaited.get(row.number)
    if row.id is None and awaited is None:
        return
    fields: dict[int, object] = {
        F.ID: row.task_id,
        F.NUMBER: row.number,
        F.NAME: row.name,
        F.STATE: outcome,
        F.FINISHED: physical_ms(hlc),
        F.CREATED: row.created_ms,
    }
    more: dict[int, object] = {
        F.QUEUE: row.options.get(F.QUEUE),
        F.VERSION: row.options.get(F.VERSION),
        F.DIGEST: row.options.get(F.DIGEST),
        F.FENCE: row.fence or None,
        F.ATTEMPTS: row.attempts or None,
        F.RECOVERIES: row.recoveries or None,
        F.ERROR: row.error,
        F.RESULT: result,
    }
    fields |= {number: value for number, value in more.items() if value is not None}
    finished = Finished(lsn, fields)
    if awaited is not None:
        awaited.end = finished
    if row.id is not None:
        state.keep_finished(finished)
