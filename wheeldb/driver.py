"""The driver: the one thread that sleeps until something is due, and sees to it.

It waits in one ``poll`` on boottime, wall clock and an alarm (``clock/waiter.py``),
lets ``Upkeep.step`` do what there is to do, and sleeps again until the instant that
this returns.  With nothing pending it sleeps for ever: no wake-up when nothing is due.

Commits call ``nudge`` from their own threads, which wakes it only if it sleeps longer
than the change allows.  What the upkeep raises ends the driver and is kept in
``failure``; the store then says so at every call.
"""

import threading

from wheeldb.clock import Waiter
from wheeldb.engine.upkeep import TAIL_MS, Upkeep, Wait
from wheeldb.errors import ClosedError
from wheeldb.events import ELAPSED, WALL

__all__ = ("Driver",)


class Driver:
    """Drives one store from a thread of its own."""

    def __init__(self, upkeep: Upkeep, waiter: Waiter) -> None:
        self.failure: BaseException | None = None
        self._upkeep = upkeep
        self._waiter = waiter
        self._is_stopping = False
        # Until when the driver sleeps, while it does; what is earlier has to wake it.
        self._wait: Wait | None = None
        self._thread = threading.Thread(
            target=self._drive, name="wheeldb-driver", daemon=True
        )

    @property
    def wakeups(self) -> int:
        """How often it has woken up."""
        return self._waiter.wakeups

    def start(self) -> None:
        """Begin to drive."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; does nothing the second time."""
        self._is_stopping = True
        self._waiter.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._waiter.close()

    def alarm(self) -> None:
        """Make it look again now."""
        self._waiter.wake()

    def nudge(self) -> None:
        """Make it look again if it would sleep through a change; hold the lock.

        A change needs a look at the log's tail soon, and earlier than the next
        expiration if it brought an earlier one.
        """
        wait = self._wait
        if wait is None:
            return
        engine = self._upkeep.engine
        window = engine.window
        until_ms = wait.boottime_ms
        soon_ms = engine.clock.read().boottime_ms + TAIL_MS
        elapsed_ms = window.wheels[ELAPSED].next_expiration()
        if elapsed_ms is not None:
            soon_ms = min(soon_ms, engine.keeper.elapsed_to_boottime(elapsed_ms))
        wall_ms = window.wheels[WALL].next_expiration()
        if (
            until_ms is None
            or soon_ms < until_ms
            or (
                wall_ms is not None and (wait.wall_ms is None or wall_ms < wait.wall_ms)
            )
        ):
            self._wait = None
            self._waiter.wake()

    def _drive(self) -> None:
        try:
            while not self._is_stopping:
                wait = self._upkeep.step()
                self._wait = wait
                # Whatever changed since the step began has nudged nobody.
                if self._upkeep.is_stale():
                    self._wait = None
                    continue
                self._waiter.wait(wait.boottime_ms, wait.wall_ms)
                self._wait = None
        except ClosedError:
            if not self._is_stopping:
                raise
        except BaseException as error:  # kept, and told at every call
            self.failure = error
            self._upkeep.engine.wake_waiters()
