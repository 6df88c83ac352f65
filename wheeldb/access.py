"""What a store's public objects share: one way to the engine.

``WheelDB``, batches and leases all pack what they were given, commit it under the
store's settings, and show rows as values.  That is here, once; nothing is decided here.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from wheeldb.driver import Driver
from wheeldb.engine import admission
from wheeldb.engine.admission import Scheduled
from wheeldb.engine.commit import Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.engine import Engine
from wheeldb.engine.moment import DUE_MS_MAX, delay_ms, instant_ms, span_ms
from wheeldb.engine.names import lookup_id
from wheeldb.engine.request import Limits, Request, build, build_one
from wheeldb.engine.row import Finished, Row
from wheeldb.engine.upkeep import Upkeep
from wheeldb.engine.values import Presenter, Receipts, instant
from wheeldb.errors import ClosedError, StorePoisoned
from wheeldb.events import ELAPSED, WALL
from wheeldb.model import NewTask, Receipt, Seconds, Task
from wheeldb.settings import Settings

__all__ = ("Access",)

_Answer = TypeVar("_Answer")

_REFUSE = Need.REFUSE


class Access:
    """An opened store, as its own public objects reach it."""

    def __init__(
        self,
        engine: Engine,
        upkeep: Upkeep | None,
        driver: Driver | None,
        settings: Settings,
    ) -> None:
        self.engine = engine
        self.upkeep = upkeep
        self.driver = driver
        self.settings = settings
        self.presenter = Presenter(engine.keeper)
        self._is_synced = settings.is_synced
        self._author = settings.author
        self.limits = Limits(
            payload_bytes_max=settings.payload_bytes_max,
            batch_max=settings.batch_max,
        )
        # Why nothing can be done any more, once that is so.
        self.closed_because = ""

    def require_open(self) -> None:
        """Raise unless the store can be looked at.

        A poisoned store can: what is shown had been durable.

        Raises:
            ClosedError: It was closed, or opened before a fork.
        """
        if self.closed_because:
            raise ClosedError(f"the store can't be used: {self.closed_because}")

    def require_running(self) -> None:
        """Raise unless the store can be changed, and its time goes on.

        Raises:
            ClosedError: As ``require_open``.
            StorePoisoned: Its log or its driver has failed.
        """
        if self.closed_because:
            self.require_open()
        failure = self.engine.committer.poison
        if self.driver is not None and self.driver.failure is not None:
            failure = self.driver.failure
        if failure is not None:
            raise StorePoisoned(
                f"the store has failed ({failure}); close it and open it again"
            ) from failure

    def tending(self) -> Upkeep:
        """Return the upkeep of a store that is open for writing.

        Raises:
            io.UnsupportedOperation: It was opened with ``readonly=True``.
        """
        if self.upkeep is None:
            raise io.UnsupportedOperation(
                "the store was opened with readonly=True; nothing runs in it"
            )
        return self.upkeep

    def may_wait(self) -> bool:
        """Return whether calls may block: only where a driver would end the wait.

        Raises:
            io.UnsupportedOperation, ClosedError, StorePoisoned: Nothing will change.
        """
        self.tending()
        self.require_running()
        return self.driver is not None

    # Changing.

    def commit(
        self,
        decide: Callable[[Decider], _Answer],
        *,
        need: Need,
        size: int = 64,
        synced: bool | None = None,
        ids: Sequence[str] = (),
    ) -> _Answer:
        """Commit a change with the store's durability, or another."""
        self.require_running()
        if self.driver is None:
            self._note_step()
        if synced is None:
            synced = self._is_synced
        return self.engine.commit(decide, synced, need, self._author, size, ids)

    def _note_step(self) -> None:
        """Note a step of the clock before the next change, as a driver does at once.

        After a power cut the wall clock tells how long the power was off; a step that
        is not in the log would be taken for that, and end delays early.
        """
        if self.upkeep is not None:
            self.upkeep.note_step(self.engine.now())

    def amend(
        self,
        task_id: str,
        decide: Callable[[Decider], _Answer],
        *,
        need: Need = Need.BALLAST,
    ) -> _Answer:
        """Commit a change of one task.

        Its id is judged here, in the caller's own thread: what breaks off a decision
        meets whoever leads the group.

        Raises:
            TypeError: The id is no ``str``.
            ValueError: It is not Unicode text.
        """
        lookup_id(task_id)
        return self.commit(decide, need=need, ids=(task_id,))

    def request(self, tasks: Sequence[NewTask]) -> Request:
        """Judge and pack tasks that are to be scheduled.

        Raises:
            TypeError, ValueError, PayloadTooLarge: For what can't be right.
        """
        self.require_running()
        if self.driver is None:
            self._note_step()
        if len(tasks) > self.limits.batch_max:
            raise ValueError(
                f"{len(tasks)} tasks in one call; batch_max is {self.limits.batch_max}"
            )
        return build(tasks, self.engine.now(), self.limits)

    def request_one(
        self, name: str, payload: object, options: Mapping[str, object]
    ) -> Request:
        """Judge and pack the arguments of one task, likewise."""
        self.require_running()
        if self.driver is None:
            self._note_step()
        return build_one(name, payload, options, self.engine.now(), self.limits)

    def schedule(self, request: Request) -> Scheduled:
        """Commit a request that was made just now: who made it was let to."""
        synced = self._is_synced
        if request.durability is not None:
            synced = request.durability == "fsync"
        return self.engine.commit(
            lambda decider: admission.schedule(decider, request),
            synced,
            _REFUSE,
            self._author,
            request.size,
            request.ids,
        )

    def due(
        self, delay: Seconds | None, at: datetime | None
    ) -> Callable[[Decider], tuple[int, int]]:
        """Return what tells a decision (timeline, due time) of a delay or an instant.

        Off-time that is added until the decision is none of the delay's.

        Raises:
            TypeError: If not exactly one of them is given.
        """
        if (delay is None) == (at is None):
            raise TypeError("give exactly one of delay and at")
        if at is not None:
            due_ms = instant_ms(at, "at")
            if due_ms > DUE_MS_MAX:
                raise ValueError(f"{at!r} lies behind the year 9999")
            return lambda decider: (WALL, due_ms)
        now = self.engine.now()
        wait_ms = delay_ms(delay)
        due_ms = now.elapsed_ms
        if wait_ms:
            due_ms += wait_ms + now.cut_ms
        if due_ms > DUE_MS_MAX:
            raise ValueError(f"a delay of {delay!r} ends behind the year 9999")
        since_boot_ms = due_ms - now.offset_ms

        def of(decider: Decider) -> tuple[int, int]:
            return ELAPSED, min(since_boot_ms + decider.now.offset_ms, DUE_MS_MAX)

        return of

    # Time goes on.

    def poll(self, limit: int | None = None) -> int:
        """Move what is due, and do the upkeep if no driver does; see ``WheelDB``."""
        self.require_running()
        upkeep = self.tending()
        moved = self.engine.advance(limit)
        if self.driver is None:
            if upkeep.tend():
                moved += self.engine.advance(None if limit is None else limit - moved)
            if upkeep.wants_tidy():
                upkeep.tidy()
        return moved

    # Showing.

    def receipts(self, scheduled: Scheduled, durability: str | None) -> Receipts:
        """Return the receipts for what was scheduled."""
        return Receipts(
            scheduled,
            self.presenter,
            self.engine.state.paused_queues,
            durability or self.settings.durability,
        )

    def receipt_at(
        self, scheduled: Scheduled, position: int, durability: str | None
    ) -> Receipt:
        """Return the receipt for one of the tasks that were scheduled."""
        return self.presenter.receipt_at(
            scheduled,
            position,
            self.engine.state.paused_queues,
            durability or self.settings.durability,
        )

    def receipt(self, row: Row) -> Receipt:
        """Return the receipt for a task that was changed."""
        return self.presenter.receipt(
            row,
            False,
            self.engine.now(),
            self.engine.state.paused_queues,
            self.settings.durability,
        )

    def present(self, kept: Row | Finished) -> Task:
        """Return a task as it stands."""
        engine = self.engine
        return self.presenter.task(kept, engine.now(), engine.state.paused_queues)

    # Time.

    def boottime_ms(self) -> int:
        """Return the boottime now: what leases and waits are measured on."""
        return self.engine.reading().boottime_ms

    def deadline_ms(self, seconds: Seconds | None) -> int | None:
        """Return the boottime so many seconds from now, ``None`` for never."""
        if seconds is None:
            return None
        return self.boottime_ms() + max(span_ms(seconds, "the wait"), 0)

    def instant_in(self, seconds: float) -> datetime:
        """Return the instant so many seconds from now, by the wall clock."""
        return instant(self.engine.reading().wall_ms) + timedelta(seconds=seconds)
