"""``WheelDB``: the store as its users hold it.

It locks the directory, reads the options, packs what callers give and hands it to the
engine; it decides nothing.  All methods may be called from any thread, and return once
the promised durability is reached.

    with wheeldb.open("gateway.wheeldb") as db:
        db.schedule("valve.close", {"valve": 7}, delay=900, id="valve-7")
        with db.lease("default", wait=5.0) as leases:
            for lease in leases:
                with lease:
                    close(lease.payload["valve"])

After a fork the child must not use it: every call there raises ``ClosedError``.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from wheeldb.access import Access
from wheeldb.backup import backup_store
from wheeldb.batch import Batch
from wheeldb.care import Statistics, check_store, gather_statistics, take_snapshot
from wheeldb.closing import close_engine
from wheeldb.driver import Driver
from wheeldb.engine import amendment
from wheeldb.engine.commit import Need
from wheeldb.engine.engine import Engine
from wheeldb.engine.history import (
    History,
    iterate_log,
    judge_lsn,
    read_history,
    watch_events,
)
from wheeldb.engine.listing import Filter, iterate_tasks
from wheeldb.engine.moment import seconds_text
from wheeldb.engine.names import ID_BYTES_MAX, judge_text, lookup_id
from wheeldb.engine.upkeep import Upkeep
from wheeldb.engine.waiting import wait_for_end
from wheeldb.errors import TaskNotFound
from wheeldb.leases import Lease, Leases, ack_many
from wheeldb.log.frame import LSN_MAX
from wheeldb.model import (
    CancelOutcome,
    Event,
    Finding,
    NewTask,
    Receipt,
    Seconds,
    Task,
    TaskOptions,
    TaskState,
)
from wheeldb.pull import take
from wheeldb.report import RecoveryReport
from wheeldb.settings import Settings, judge_between

__all__ = ("WheelDB",)


class WheelDB:
    """An open store.  Made by ``wheeldb.open``; a context manager that closes it."""

    def __init__(
        self,
        engine: Engine,
        upkeep: Upkeep | None,
        driver: Driver | None,
        settings: Settings,
        report: RecoveryReport,
        release_lock: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._upkeep = upkeep
        self._driver = driver
        self._settings = settings
        self._report = report
        self._release_lock = release_lock
        self._closing = threading.RLock()
        self._is_closed = False
        self._access = Access(engine, upkeep, driver, settings)
        engine.decider.existing = self._access.present
        if driver is not None:
            engine.alarm = driver.alarm
            engine.nudge = driver.nudge
            driver.start()
        _open_stores.add(self)

    @property
    def recovery(self) -> RecoveryReport:
        """What the opening found and did."""
        return self._report

    @property
    def path(self) -> Path:
        """The store's directory."""
        return Path(self._engine.path)

    @property
    def durable_lsn(self) -> int:
        """The log position up to which everything is proven to be durable."""
        return self._engine.committer.durable_lsn

    # Scheduling.

    def schedule(
        self, name: str, payload: object = None, **options: Unpack[TaskOptions]
    ) -> Receipt:
        """Schedule a task; return once that is durable.

        Args:
            name: Which handler it is for, 1 to 255 bytes of UTF-8.
            payload: ``None``, bool, 64-bit int, float, str, bytes, list or dict with
                str keys.
            **options: Exactly one of ``delay`` (elapsed time) and ``at`` (wall time),
                and what ``TaskOptions`` lists.

        Raises:
            TypeError, ValueError, PayloadTooLarge: For an argument that can't be right.
            TaskExists: The id is taken by a request with other arguments.
            StaleVersion: The id is known with a higher version.
            QueueFull, StorageFullError: There is no room.
            CommitUnknown, StorePoisoned: The log failed.
        """
        access = self._access
        request = access.request_one(name, payload, options)
        return access.receipt_at(access.schedule(request), 0, request.durability)

    def schedule_many(self, tasks: Sequence[NewTask]) -> Sequence[Receipt]:
        """Schedule tasks together: one frame, all or nothing.

        Returns:
            A receipt for each, in order, made when it is looked at.

        Raises:
            As ``schedule``; the error's ``index`` tells which task it was.
        """
        if not len(tasks):
            return []
        request = self._access.request(tasks)
        return self._access.receipts(self._access.schedule(request), request.durability)

    def batch(self) -> Batch:
        """Return a batch: several changes, one frame, one sync, all or nothing."""
        self._access.require_open()
        return Batch(self._access)

    def cancel(self, id: str, *, running: bool = False) -> CancelOutcome:
        """Cancel a task.

        Args:
            id: The task's id.
            running: Also take the lease from a running attempt.

        Returns:
            ``CANCELLED`` (also if it was before), ``LEASED`` (it runs now and will not
            be retried), ``FINISHED`` or ``UNKNOWN``.
        """
        return self._access.amend(
            id,
            lambda decider: amendment.cancel(decider, id, running=running),
            need=Need.RESERVE,
        )

    def reschedule(
        self,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        expect_lsn: int | None = None,
    ) -> Receipt:
        """Give a task another due time; behind the attempt that runs, if one does.

        Args:
            id: The task's id.
            delay: Seconds from now, or
            at: an instant on the wall clock.
            expect_lsn: Only if the task was last changed at this LSN.

        Raises:
            TaskNotFound: No unfinished task has the id.
            StaleVersion: It was changed after ``expect_lsn``.
        """
        due = self._access.due(delay, at)
        if expect_lsn is not None:
            judge_lsn(expect_lsn, "expect_lsn")
        row = self._access.amend(
            id,
            lambda decider: amendment.reschedule(
                decider, id, *due(decider), expect_lsn
            ),
        )
        return self._access.receipt(row)

    def revive(
        self,
        id: str | None = None,
        *,
        queue: str | None = None,
        name: str | None = None,
        tag: str | None = None,
    ) -> int:
        """Make dead tasks due at once, with all their attempts; return how many.

        Args:
            id: One task, or all that match
            queue: this queue,
            name: this name and
            tag: this tag.

        Raises:
            TaskNotFound: No unfinished task has the id.
            TypeError: Neither an id nor anything to match was given.
        """
        if id is not None:
            return int(
                self._access.amend(id, lambda decider: amendment.revive(decider, id))
            )
        if queue is None and name is None and tag is None:
            raise TypeError("give an id, or a queue, name or tag")
        revived = 0
        for task in self.tasks(state=TaskState.DEAD, queue=queue, name=name, tag=tag):
            with contextlib.suppress(TaskNotFound):
                revived += self.revive(task.id)
        return revived

    def run_now(self, id: str) -> Receipt:
        """Make a task due at once, whatever it waits for.

        Raises:
            TaskNotFound: No unfinished task has the id.
        """
        return self._access.receipt(
            self._access.amend(id, lambda decider: amendment.run_now(decider, id))
        )

    def pause(self, id: str | None = None, *, queue: str | None = None) -> None:
        """Keep a task, or a queue's tasks, from being started until resumed.

        Raises:
            TaskNotFound: No unfinished task has the id.
            TypeError: Not exactly one of id and queue was given.
        """
        self._require_one(id, queue)
        if queue is not None:
            self._access.commit(
                lambda decider: amendment.pause_queue(decider, queue),
                need=Need.BALLAST,
            )
            self._engine.queue_changed()
        elif id is not None:
            self._access.amend(id, lambda decider: amendment.pause(decider, id))

    def resume(
        self,
        id: str | None = None,
        *,
        queue: str | None = None,
        now: bool = False,
    ) -> None:
        """Let a paused task or queue go on.

        Args:
            id: The task, or
            queue: the queue.
            now: Make the task due at once.

        Raises:
            TaskNotFound: No unfinished task has the id.
            TypeError: Not exactly one of id and queue was given.
        """
        self._require_one(id, queue)
        if id is not None:
            self._access.amend(
                id, lambda decider: amendment.resume(decider, id, now=now)
            )
        elif queue is not None:
            self._access.commit(
                lambda decider: amendment.resume_queue(decider, queue),
                need=Need.BALLAST,
            )
            self._engine.queue_changed()
            if now:
                for task in self.tasks(state=TaskState.SCHEDULED, queue=queue):
                    with contextlib.suppress(TaskNotFound):
                        self.run_now(task.id)

    # Looking.

    def get(self, id: str) -> Task | None:
        """Return a task as it stands, ``None`` if nothing is known under the id."""
        self._access.require_open()
        kept = self._engine.find(id)
        return None if kept is None else self._access.present(kept)

    def tasks(
        self,
        *,
        state: TaskState | str | None = None,
        queue: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        series: str | None = None,
        due_before: datetime | None = None,
        limit: int | None = None,
        after: Task | str | int | None = None,
    ) -> Iterator[Task]:
        """Yield tasks in the order in which they were scheduled, or have finished.

        Args:
            state: Only those in this state; a finished one lists finished ids.
            queue: Only those of this queue,
            name: with this name,
            tag: this tag,
            series: of this series,
            due_before: due before this instant.
            limit: At most so many.
            after: Go on behind this task: the last one seen, its id or number (LSN, of
                finished ones).  A task that exists throughout is listed exactly once,
                whatever happens.
        """
        self._access.require_open()
        wanted = Filter(
            state=None if state is None else TaskState(state),
            queue=queue,
            name=name,
            tag=tag,
            series=series,
            due_before=due_before,
        )
        if limit is not None:
            judge_between("limit", limit, 0, LSN_MAX)
        start = self._start(after, wanted.is_finished)
        return iterate_tasks(self._engine, self._access.present, wanted, limit, start)

    def _start(self, after: Task | str | int | None, is_finished: bool) -> int:
        if after is None:
            return 0
        if isinstance(after, Task):
            return after.lsn if is_finished else after.number
        if type(after) is int:
            return min(after, LSN_MAX)
        kept = self._engine.find(after)  # type: ignore[arg-type]
        if kept is None:
            number = lookup_id(after)
            if type(number) is int:
                return number
            raise TaskNotFound(
                f"no task has the id {after!r} any more; go on behind a Task or its "
                "number"
            )
        return kept.lsn if is_finished else kept.number

    def history(self, id: str) -> History:
        """Return what happened to a task, oldest first.

        The log is kept back to the older snapshot; the answer's ``is_complete`` says
        whether it reaches back to the scheduling.
        """
        self._access.require_open()
        return read_history(self._engine, id)

    def events(self, from_lsn: int = 0) -> Iterator[Event]:
        """Yield every durable event above ``from_lsn`` that the log has, and end."""
        self._access.require_open()
        return iterate_log(self._engine, judge_lsn(from_lsn))

    def watch(self, from_lsn: int = 0) -> Iterator[Event]:
        """Yield events above ``from_lsn`` as they become durable; waits for more.

        Raises:
            Compacted: Some of them are gone; its ``oldest_lsn`` is the first one left.
            ClosedError: The store was closed meanwhile.
            io.UnsupportedOperation: It was opened with ``readonly=True``: nothing will
                come; ``events`` gives what there is.
        """
        self._access.require_open()
        self._access.tending()
        return watch_events(
            self._engine, judge_lsn(from_lsn), self._access.require_running
        )

    def wait(self, id: str, timeout: Seconds | None = None) -> Task:
        """Wait until a task is done, dead, cancelled or expired, and return it.

        Without a driver it never waits: the task has ended, or it is a
        ``TimeoutError``.

        Raises:
            TaskNotFound: Nothing is known under the id.
            TimeoutError: It took longer than ``timeout`` seconds.
            ClosedError: The store was closed meanwhile.
            StorePoisoned: The log or the driver failed.
            io.UnsupportedOperation: It has not ended in what a store shows that was
                opened with ``readonly=True``.
        """
        access = self._access
        access.require_open()
        end = wait_for_end(
            self._engine,
            id,
            access.deadline_ms(timeout),
            access.require_open,
            access.may_wait,
        )
        if end is None:
            within = "" if timeout is None else f" in {seconds_text(timeout)}"
            raise TimeoutError(f"{id!r} has not ended{within}")
        return access.present(end)

    # Working.

    def lease(
        self,
        queue: str | Sequence[str] = "default",
        *,
        limit: int = 1,
        wait: Seconds | None = 0.0,
        names: Sequence[str] | None = None,
    ) -> Leases:
        """Lease due tasks.

        Args:
            queue: The queue or queues to take from.
            limit: At most so many.
            wait: Seconds to wait for the first one; ``None`` waits for ever.  Without a
                driver it never waits.
            names: Only tasks with one of these names; of a queue's due tasks the first
                1,000 are looked at.

        Returns:
            A list, in the order: priority, due time, LSN.  As a context manager it
            gives back what was not settled in the block.

        Raises:
            ClosedError: The store was closed meanwhile.
            StorePoisoned: The log or the driver failed.
            io.UnsupportedOperation: It was opened with ``readonly=True``.
        """
        return take(self._access, queue, limit, wait, names)

    def ack_many(self, leases: Sequence[Lease]) -> list[Lease]:
        """Finish what is still held, in one frame; return what was lost."""
        return ack_many(self._access, leases)

    # Without a driver.

    def poll(self, limit: int | None = None) -> int:
        """Do what a driver would do now; return how many tasks came due.

        Args:
            limit: Move at most so many.

        Raises:
            StorePoisoned: The log failed.
        """
        if limit is not None:
            judge_between("limit", limit, 0, LSN_MAX)
        return self._access.poll(limit)

    def next_in(self) -> float | None:
        """Return seconds until a task becomes due or a lease ends, ``None`` for never.

        Tasks that are due already and wait to be leased don't count.  A task that is
        held counts as the clocks run now: until it would be due if nobody set them.
        """
        self._access.require_open()
        return self._access.tending().next_in()

    # Looking after it.

    def statistics(self) -> Statistics:
        """Return the store's numbers as of now."""
        self._access.require_open()
        return gather_statistics(self._engine, self._upkeep, self._driver)

    def check(self) -> list[Finding]:
        """Verify log, snapshots, index and memory against each other."""
        self._access.require_open()
        return check_store(self._engine)

    def checkpoint(self) -> None:
        """Bring the index up to the log's end."""
        self._access.require_open()
        self._access.tending()
        self._engine.checkpoint()

    def snapshot(self) -> Path:
        """Write a snapshot, verify it, and return its path.

        Raises:
            TimeoutError: It takes more than a minute; it is dropped.
        """
        self._access.require_open()
        self._access.tending()
        return Path(take_snapshot(self._engine, archive=self._settings.archive))

    def backup(self, dest: str | os.PathLike[str]) -> None:
        """Write a backup into a new directory while the store stays open.

        It holds everything that was durable when the call began; ``wheeldb.restore``
        makes a store of it.

        Raises:
            FileExistsError: There is something at ``dest``.
            ValueError: It is not UTF-8, or lies inside a store or a backup.
            TimeoutError: It is so slow that it takes more than a minute.
        """
        self._access.require_open()
        self._access.tending()
        backup_store(self._engine, os.fspath(dest))

    def close(self) -> None:
        """Stop, sync, write a snapshot if one is due, and give the lock back.

        Blocked calls raise ``ClosedError``.  If it was interrupted, call it again.

        Raises:
            CommitUnknown, StorePoisoned: The log failed; it is closed all the same.
        """
        with self._closing:
            if self._is_closed:
                return
            self._access.closed_because = "it was closed"
            self._engine.wake_waiters()
            if self._driver is not None:
                self._driver.stop()
            self._is_closed = True
            _open_stores.discard(self)
            try:
                close_engine(self._engine, self._upkeep, self._settings)
            finally:
                self._release_lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What leases, batches and this class share.

    @staticmethod
    def _require_one(id: str | None, queue: str | None) -> None:
        if (id is None) == (queue is None):
            raise TypeError("give exactly one of id and queue")
        if queue is not None:
            judge_text(queue, "the queue", ID_BYTES_MAX)

    def _forget_parent(self) -> None:
        self._access.closed_because = (
            "it was opened before a fork, and belongs to the parent process; open it "
            "in one process and reach it through that"
        )
        self._is_closed = True
        # One of the parent's threads may have been closing it.
        self._closing = threading.RLock()


_open_stores: "weakref.WeakSet[WheelDB]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store._forget_parent()
    _open_stores.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
