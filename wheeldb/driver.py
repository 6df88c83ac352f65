"""The driver: the thread that sleeps until something is due, and sees to it.

It waits in one ``poll`` on boottime, wall clock and an alarm (``clock/waiter.py``),
lets ``Upkeep.step`` do what there is to do, and sleeps again until the instant that
``Upkeep.plan`` names.  With nothing pending it sleeps for ever: no wake-up when nothing
is due.  What takes its time, checkpoints and snapshots, is done by a second thread, so
that no task waits for it::

    driver   step ─ plan ─ sleep ······ step ─ plan ─ sleep ·· step ─ plan ─ sleep
                                           │ something to tidy    ▲ done
    tidier   sleep ························└─► checkpoint ────────┘ sleep ········

Commits call ``nudge`` from their own threads, which wakes the driver only if it would
sleep through what they changed.  The plan is made under the state's lock, and changes
show under the same lock: none falls between the two.

What either thread raises ends the driver and is kept in ``failure``; the store then
says so at every call that needs it.  An open store goes on until it is closed or the
process ends, even if nobody refers to it any more: the threads do.
"""

import threading
from collections.abc import Callable

from wheeldb.clock import Waiter
from wheeldb.engine.upkeep import TAIL_MS, Upkeep, Wait
from wheeldb.events import ELAPSED, WALL
from wheeldb.wheel import DUE_LIMIT_MS

__all__ = ("Driver",)

FOREVER_MS = 1 << 62


class Driver:
    """Drives one store from threads of its own."""

    def __init__(self, upkeep: Upkeep, waiter: Waiter) -> None:
        self.failure: BaseException | None = None
        self._upkeep = upkeep
        self._waiter = waiter
        self._is_stopping = False
        # Whether the driver sleeps, and until when: in boottime, and the same instant
        # on both timelines. What is earlier has to wake it.
        self._is_asleep = False
        self._until_ms = FOREVER_MS
        self._until = (DUE_LIMIT_MS, DUE_LIMIT_MS)
        self._is_tidying = False
        self._to_tidy = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for work, name in (
                (self._drive, "wheeldb-driver"),
                (self._tidy, "wheeldb-tidier"),
            )
        ]

    @property
    def wakeups(self) -> int:
        """How often it has woken up."""
        return self._waiter.wakeups

    def start(self) -> None:
        """Begin to drive.

        Raises:
            RuntimeError: The system has no thread left.
        """
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the threads and wait for them; does nothing the second time.

        Called from one of them, it doesn't wait for that one.
        """
        self._is_stopping = True
        self._waiter.wake()
        self._to_tidy.release()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        self._waiter.close()

    def alarm(self) -> None:
        """Make it look again now."""
        self._waiter.wake()

    def nudge(self, at_ms: int | None = None) -> None:
        """Make it look again if it would sleep through a change; hold the lock.

        Args:
            at_ms: The boottime at which it is wanted.  By default it finds out itself:
                the log's tail wants a look soon, and what became visible may have
                brought an earlier due time or end of a lease.
        """
        if self._is_asleep and (
            self._is_too_long() if at_ms is None else at_ms < self._until_ms
        ):
            self._is_asleep = False
            self._waiter.wake()

    def _is_too_long(self) -> bool:
        upkeep = self._upkeep
        engine = upkeep.engine
        window, lease_ends = engine.window, engine.decider.lease_ends
        elapsed, wall = window.wheels
        elapsed_ms, wall_ms = self._until
        # As in the engine, which asks at every commit: the attribute spares a call.
        if (elapsed.first_ms < elapsed_ms and elapsed.is_due(elapsed_ms - 1)) or (
            wall.first_ms < wall_ms and wall.is_due(wall_ms - 1)
        ):
            return True
        if lease_ends and lease_ends[0][0] < self._until_ms:
            return True
        if self._until_ms > engine.decider.now.boottime_ms + TAIL_MS:
            # Else it was told of whatever the tail wants sooner, when that was written.
            tail_ms = upkeep.next_tail()
            if tail_ms is not None and tail_ms < self._until_ms:
                return True
        return bool(window.horizons) and self._has_sooner_horizon()

    def _has_sooner_horizon(self) -> bool:
        upkeep, now = self._upkeep, self._upkeep.engine.decider.now
        elapsed_ms = upkeep.next_due(ELAPSED, now.elapsed_ms)
        wall_ms = upkeep.next_due(WALL, now.wall_ms)
        return (elapsed_ms is not None and elapsed_ms < self._until[ELAPSED]) or (
            wall_ms is not None and wall_ms < self._until[WALL]
        )

    def _fall_asleep(self) -> Wait:
        """Note until when it sleeps; the lock is held."""
        wait = self._upkeep.plan(is_tidying=self._is_tidying)
        elapsed_ms = wall_ms = DUE_LIMIT_MS
        self._until_ms = FOREVER_MS
        if wait.boottime_ms is not None:
            self._until_ms = wait.boottime_ms
            elapsed_ms = self._upkeep.engine.keeper.boottime_to_elapsed(self._until_ms)
        if wait.wall_ms is not None:
            wall_ms = wait.wall_ms
        self._until = (min(elapsed_ms, DUE_LIMIT_MS), min(wall_ms, DUE_LIMIT_MS))
        self._is_asleep = True
        return wait

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self._is_stopping:
                work()
        except BaseException as error:  # kept, and told at every call
            if not self._is_stopping:
                self.failure = self.failure or error
            self._is_stopping = True
            self._waiter.wake()
            self._to_tidy.release()
            self._upkeep.engine.wake_waiters()

    def _drive(self) -> None:
        upkeep = self._upkeep
        upkeep.step()
        if not self._is_tidying and upkeep.wants_tidy():
            self._is_tidying = True
            self._to_tidy.release()
        with upkeep.engine.lock:
            wait = self._fall_asleep()
        self._waiter.wait(wait.boottime_ms, wait.wall_ms)
        self._is_asleep = False

    def _tidy(self) -> None:
        self._to_tidy.acquire()
        if not self._is_stopping:
            self._upkeep.tidy()
            with self._upkeep.engine.lock:
                self._is_tidying = False
                self._waiter.wake()
