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
from wheeldb.engine.upkeep import Upkeep, Wait
from wheeldb.events import ELAPSED, WALL

__all__ = ("Driver",)

FOREVER_MS = 1 << 62


class Driver:
    """Drives one store from threads of its own."""

    def __init__(self, upkeep: Upkeep, waiter: Waiter) -> None:
        self.failure: BaseException | None = None
        self._upkeep = upkeep
        self._waiter = waiter
        self._is_stopping = False
        # Until when the driver sleeps, while it does; what is earlier has to wake it.
        self._wait: Wait | None = None
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
        wait = self._wait
        if wait is None:
            return
        until_ms = FOREVER_MS if wait.boottime_ms is None else wait.boottime_ms
        if self._is_too_long(wait, until_ms) if at_ms is None else at_ms < until_ms:
            self._wait = None
            self._waiter.wake()

    def _is_too_long(self, wait: Wait, until_ms: int) -> bool:
        upkeep = self._upkeep
        engine = upkeep.engine
        decider, now = engine.decider, engine.decider.now
        tail_ms = upkeep.next_tail()
        if tail_ms is not None and tail_ms < until_ms:
            return True
        if decider.lease_ends and decider.lease_ends[0][0] < until_ms:
            return True
        window = engine.window
        elapsed, wall = window.wheels
        elapsed_ms, wall_ms = elapsed.next_expiration(), wall.next_expiration()
        if window.horizons:
            elapsed_ms = upkeep.next_due(ELAPSED, now.elapsed_ms)
            wall_ms = upkeep.next_due(WALL, now.wall_ms)
        if elapsed_ms is not None and elapsed_ms - now.offset_ms < until_ms:
            return True
        return wall_ms is not None and (wait.wall_ms is None or wall_ms < wait.wall_ms)

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
            wait = self._wait = upkeep.plan(is_tidying=self._is_tidying)
        self._waiter.wait(wait.boottime_ms, wait.wall_ms)
        self._wait = None

    def _tidy(self) -> None:
        self._to_tidy.acquire()
        if not self._is_stopping:
            self._upkeep.tidy()
            with self._upkeep.engine.lock:
                self._is_tidying = False
                self._waiter.wake()
