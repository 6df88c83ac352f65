"""Amendments: what may change about a task that is scheduled.

Cancel, another due time, pause and resume, a dead task's revival.  A task whose attempt
is running is changed behind it: the attempt goes on under its fence, and what was asked
for takes effect when it ends.
"""

from wheeldb.engine.decide import Decider
from wheeldb.engine.fold import Fact
from wheeldb.engine.names import lookup_id
from wheeldb.engine.row import DEAD, LEASED, Finished, Row
from wheeldb.errors import StaleVersion
from wheeldb.events import ELAPSED, F, Kind
from wheeldb.model import CancelOutcome

__all__ = (
    "cancel",
    "pause",
    "pause_queue",
    "reschedule",
    "resume",
    "resume_queue",
    "revive",
    "run_now",
)


def cancel(decider: Decider, task_id: str, *, running: bool) -> CancelOutcome:
    """Cancel a task; while it is leased, that attempt is its last."""
    found = decider.find(task_id)
    if isinstance(found, Finished):
        decider.rests_on = max(decider.rests_on, found.lsn)
        if found.state == "cancelled":
            return CancelOutcome.CANCELLED
        return CancelOutcome.FINISHED
    if found is None:
        key = lookup_id(task_id)
        if type(key) is int and 0 < key <= decider.state.last_lsn:
            # Nobody knows by which event it went; it may be the last one.
            decider.rests_on = decider.state.last_lsn
            return CancelOutcome.FINISHED
        return CancelOutcome.UNKNOWN
    fields: dict[int, object] = {F.NUMBER: [found.number]}
    if found.state != LEASED or running:
        decider.emit(Fact(Kind.CANCELLED, 1, fields))
        return CancelOutcome.CANCELLED
    if found.cancelled:
        decider.rests_on = max(decider.rests_on, found.lsn)
    else:
        decider.emit(Fact(Kind.CANCELLED, 1, {**fields, F.CANCELLED: True}))
    return CancelOutcome.LEASED


def reschedule(
    decider: Decider, task_id: str, timeline: int, due_ms: int, expect_lsn: int | None
) -> Row:
    """Give a task another due time; behind the running attempt if there is one.

    Raises:
        TaskNotFound: If there is no such unfinished task.
        StaleVersion: If it was changed after ``expect_lsn``.
    """
    row = decider.unfinished(task_id)
    if expect_lsn is not None and row.lsn != expect_lsn:
        raise StaleVersion(
            f"{task_id!r} was last changed at LSN {row.lsn}, not {expect_lsn}; "
            "get it again and decide anew"
        )
    fields: dict[int, object] = {F.NUMBER: [row.number], F.DUE: due_ms}
    if timeline != ELAPSED:
        fields[F.TIMELINE] = timeline
    decider.emit(Fact(Kind.RESCHEDULED, 1, fields))
    return _now_standing(decider, row.number)


def revive(decider: Decider, task_id: str) -> bool:
    """Make a dead task due at once, with all its attempts; False if it lives.

    Raises:
        TaskNotFound: If there is no such unfinished task.
    """
    row = decider.unfinished(task_id)
    if row.state != DEAD:
        return False
    fields = {F.NUMBER: [row.number], F.DUE: decider.now.elapsed_ms}
    decider.emit(Fact(Kind.REVIVED, 1, fields))
    return True


def run_now(decider: Decider, task_id: str) -> Row:
    """Make a task due at once, whatever it waits for.

    Raises:
        TaskNotFound: If there is no such unfinished task.
    """
    row = decider.unfinished(task_id)
    fields = {F.NUMBER: [row.number], F.DUE: decider.now.elapsed_ms}
    decider.emit(Fact(Kind.STARTED_NOW, 1, fields))
    return _now_standing(decider, row.number)


def pause(decider: Decider, task_id: str) -> None:
    """Keep a task from being started until it is resumed.

    Raises:
        TaskNotFound: If there is no such unfinished task.
    """
    row = decider.unfinished(task_id)
    if row.paused:
        decider.rests_on = max(decider.rests_on, row.lsn)
    else:
        decider.emit(Fact(Kind.PAUSED, 1, {F.NUMBER: [row.number]}))


def resume(decider: Decider, task_id: str, *, now: bool) -> None:
    """Let a paused task be started again, with ``now`` at once.

    Raises:
        TaskNotFound: If there is no such unfinished task.
    """
    row = decider.unfinished(task_id)
    if not row.paused and not now:
        decider.rests_on = max(decider.rests_on, row.lsn)
        return
    fields: dict[int, object] = {F.NUMBER: [row.number]}
    if now:
        fields[F.DUE] = decider.now.elapsed_ms
    decider.emit(Fact(Kind.RESUMED, 1, fields))


def pause_queue(decider: Decider, queue: str) -> bool:
    """Keep a queue's tasks from being started; return whether that is new."""
    if queue in decider.state.paused_queues:
        decider.rests_on = decider.state.last_lsn
        return False
    decider.emit(Fact(Kind.QUEUE_PAUSED, 1, {F.QUEUE: queue}))
    return True


def resume_queue(decider: Decider, queue: str) -> bool:
    """Let a paused queue go on; return whether it was paused."""
    if queue not in decider.state.paused_queues:
        decider.rests_on = decider.state.last_lsn
        return False
    decider.emit(Fact(Kind.QUEUE_RESUMED, 1, {F.QUEUE: queue}))
    return True


def _now_standing(decider: Decider, number: int) -> Row:
    row = decider.state.lookup(number)
    assert row is not None, f"task {number} is gone"
    return row
