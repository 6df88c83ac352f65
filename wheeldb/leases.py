"""Leases: the exclusive right to run a task once, for a time.

::

    with db.lease("valves", limit=10, wait=5.0) as leases:
        for lease in leases:
            with lease:                     # acks at the end, nacks on an exception
                close(lease.payload, token=lease.fence)

The ``fence`` rises with every attempt of every task, over restarts, power cuts and
restores: who passes it on to what he changes can refuse a late attempt there.  A lease
that was lost (it ran out and another attempt began, or the task was replaced) raises
``LeaseLost`` at whatever would settle it, and changes nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from wheeldb.engine.row import Row
from wheeldb.events import F
from wheeldb.model import NewTask, Seconds, Task
from wheeldb.payload import unpack_payload

if TYPE_CHECKING:
    from wheeldb.store import WheelDB

__all__ = ("Lease", "Leases")


class Lease:
    """One attempt at one task.

    Attributes:
        id: The task's id.
        name: Its name.
        queue: Its queue.
        due_at: When it was due; ``None`` for a delay while the clock is untrusted.
        late: Seconds from its due time to this lease.
        attempt: Which attempt this is, from 1.
        recoveries: Attempts that the death of their process cut short.
        may_have_run: Whether an earlier start may have happened whose end is unknown.
        fence: A number that rises with every attempt.
        headers: What the caller passed along.
    """

    def __init__(self, store: "WheelDB", row: Row, late: float) -> None:
        self._store = store
        self._row = row
        self._until_ms = row.until_ms
        self._is_settled = False
        self.id = row.task_id
        self.name = row.name
        self.queue = row.queue
        self.late = late
        self.attempt = row.attempts
        self.recoveries = row.recoveries
        self.may_have_run = row.may_have_run
        self.fence = row.fence

    @property
    def number(self) -> int:
        """The task's number, see ``Task``."""
        return self._row.number

    @property
    def payload(self) -> object:
        """The task's payload; a new copy each time."""
        return unpack_payload(self._row.payload)

    @property
    def headers(self) -> Mapping[str, str]:
        """What the caller passed along."""
        return dict(self._row.options.get(F.HEADERS, {}))  # type: ignore[call-overload]

    @property
    def due_at(self) -> datetime | None:
        """When it was due; ``None`` for a delay while the clock is untrusted."""
        return self._store._due_at(self._row)

    @property
    def cursor(self) -> object:
        """What the attempt before has saved, or ``None``."""
        cursor = self._row.cursor
        return None if cursor is None else unpack_payload(cursor)

    @property
    def task(self) -> Task:
        """The task as it was when it was leased."""
        return self._store._present(self._row)

    @property
    def remaining(self) -> float:
        """Seconds until the lease runs out; negative when it has."""
        return (self._until_ms - self._store._boottime_ms()) / 1000

    @property
    def deadline(self) -> datetime | None:
        """The instant at which it runs out, by the wall clock of this moment."""
        return self._store._instant_in(self.remaining)

    def ack(self, result: object = None, then: Sequence[NewTask] = ()) -> None:
        """Finish the task; what is in ``then`` is scheduled in the same step.

        Args:
            result: Kept for ids that the caller gave, like a payload.
            then: Follow-up tasks: all or nothing, together with the ack.

        Raises:
            LeaseLost: If the lease is stale.
            TaskExists, StaleVersion, QueueFull: A follow-up was refused; the lease
                stays.
        """
        self._store._ack(self, result, then)
        self._is_settled = True

    def nack(
        self, error: BaseException | str, retry_in: Seconds | None = None
    ) -> None:
        """Note that the attempt failed: the task waits for the next one, or is dead.

        Args:
            error: What went wrong.
            retry_in: Seconds until the next attempt instead of the policy's.

        Raises:
            LeaseLost: If the lease is stale.
        """
        self._store._nack(self, error, retry_in)
        self._is_settled = True

    def release(self, delay: Seconds = 0) -> None:
        """Give the task back; no attempt is used.

        Raises:
            LeaseLost: If the lease is stale.
        """
        self._store._release([self], delay)
        self._is_settled = True

    def reject(self, reason: str) -> None:
        """Make the task dead, whatever attempts it has left.

        Raises:
            LeaseLost: If the lease is stale.
        """
        self._store._reject(self, reason)
        self._is_settled = True

    def renew(self, seconds: Seconds | None = None) -> None:
        """Restart the lease's clock, with its own duration or another.

        Raises:
            LeaseLost: If the lease is stale.
        """
        self._until_ms = self._store._renew(self, seconds)

    def save(self, cursor: object) -> None:
        """Keep a resume point for the next attempt; durable on return.

        Raises:
            LeaseLost: If the lease is stale.
        """
        self._store._save(self, cursor)

    @contextlib.contextmanager
    def keep(self) -> Iterator[Self]:
        """Renew the lease in the background for the length of a block.

        The driver does it (or ``poll``), each time a third of the lease has passed.
        """
        self._store._keep(self)
        try:
            yield self
        finally:
            self._store._keep_no_more(self)

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack(error)
        else:
            # The program is being ended, the task did nothing wrong.
            self.release()

    def __repr__(self) -> str:
        return f"<Lease of {self.name} {self.id!r}, fence {self.fence}>"


class Leases(list[Lease]):
    """A list of leases; as a context manager it releases what was not settled."""

    def __init__(self, leases: Sequence[Lease], release: Callable[[list[Lease]], None]):
        super().__init__(leases)
        self._release = release

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = [lease for lease in self if not lease._is_settled]
        if left:
            self._release(left)
