"""Waiting for a task's end, whoever brings it about.

A task with a generated id leaves nothing behind when it ends, so whoever waits has its
end kept for that long (``Engine.awaiting``).  An end that was decided before the
waiting began, and became durable after it, was not kept; the log still tells it.
"""

from collections.abc import Callable
from contextlib import ExitStack

from wheeldb.clock.hlc import physical_ms
from wheeldb.engine.engine import Engine
from wheeldb.engine.history import read_history
from wheeldb.engine.row import DEAD, Finished, Row
from wheeldb.errors import TaskNotFound
from wheeldb.events import F
from wheeldb.model import TaskState

__all__ = ("wait_for_end",)

# The event that ends a task, and what it then is.  A task that was cancelled while an
# attempt ran ends with that, however the attempt does.
_ENDS = {
    "acked": TaskState.DONE,
    "cancelled": TaskState.CANCELLED,
    "expired": TaskState.EXPIRED,
    "interrupted": TaskState.CANCELLED,
    "lease_expired": TaskState.CANCELLED,
    "nacked": TaskState.CANCELLED,
    "rejected": TaskState.CANCELLED,
    "released": TaskState.CANCELLED,
}


def wait_for_end(
    engine: Engine,
    task_id: str,
    deadline_ms: int | None,
    require_open: Callable[[], None],
    may_wait: Callable[[], bool],
) -> Row | Finished | None:
    """Wait until a task is done, dead, cancelled or expired; ``None`` if not in time.

    A task that takes its place under the same id is waited for instead.

    Args:
        engine: The store's.
        task_id: The task's id.
        deadline_ms: Until when on boottime, ``None`` for ever.
        require_open: Raises once the store is closed.
        may_wait: Raises if nothing can change in it any more; False if nobody would
            end the wait in time.

    Raises:
        TaskNotFound: Nothing is known under the id.
    """
    while True:
        with ExitStack() as stack:
            with engine.lock:
                kept = engine.find(task_id)
                if isinstance(kept, Row):
                    ended = stack.enter_context(engine.awaiting(kept.number))
            if kept is None:
                raise TaskNotFound(f"nothing is known under the id {task_id!r}")
            if isinstance(kept, Finished):
                return kept
            while True:
                ticket = engine.ticket
                require_open()
                row = engine.view(kept.number)
                if row is None:
                    break
                if row.state == DEAD:
                    return row
                if not may_wait() or not engine.wait_for_change(ticket, deadline_ms):
                    return None
            end = ended()
        if end is not None:
            return end
        if kept.id is None:
            return _end_in_log(engine, kept)
        # It was replaced, or is remembered as finished by now.


def _end_in_log(engine: Engine, row: Row) -> Finished:
    """Return how a task with a generated id ended, by its last event."""
    event = read_history(engine, row.task_id)[-1]
    fields: dict[int, object] = {
        F.ID: row.task_id,
        F.NUMBER: row.number,
        F.NAME: row.name,
        F.STATE: str(_ENDS[event.kind]),
        F.FINISHED: physical_ms(event.hlc),
        F.CREATED: row.created_ms,
    }
    return Finished(event.lsn, fields)
