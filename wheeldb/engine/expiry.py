"""Expiry: due tasks that nobody has started in time end by themselves.

A task with ``expires`` is looked at when it becomes ready, for only from its due time
on can it be started, and so be too late. What is found waits in a heap for its time::

    window ─ ready, in a lane where tasks expire ─► heap of (expiry, number) ─► EXPIRED

Lanes that never held such a task cost nothing. Entries of the heap are hints, as those
of the window are: whether the task is still there, due and expired is decided with the
event. A paused task or queue does not expire meanwhile; what was overdue ends when it
is resumed. Nothing of this is durable: after an opening every overdue task becomes
ready again, and so is looked at again.
"""

from heapq import heapify, heappop, heappush

from wheeldb.clock.timekeeper import Now
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.engine import Engine
from wheeldb.engine.window import entry_number
from wheeldb.events import ELAPSED, WALL

__all__ = ("Expiries",)

# Rows that are read, and tasks that end, in one step.
STEP_COUNT = 500

# Hints of tasks that are not ready any more, which may lie in the heaps until then.
STALE_HINTS_MAX = 1_000


class Expiries:
    """The expiries of ready tasks, in order, on both timelines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heaps: tuple[list[tuple[int, int]], ...] = ([], [])

    def tend(self, now: Now) -> None:
        """End what has expired, a step of it.

        Raises:
            StorageFullError, StorePoisoned: As the log says.
        """
        self._look()
        engine = self._engine
        with engine.lock:
            expired = [_take_until(now_ms, heap) for heap, now_ms in self._with(now)]
        numbers = [number for popped in expired for _, number in popped]
        if not numbers:
            return
        try:
            engine.expired_count += engine.commit(
                lambda decider: attempts.expire_tasks(decider, numbers),
                synced=False,
                need=Need.RESERVE,
                author="wheel",
            )
        except BaseException:
            with engine.lock:
                for (heap, _), popped in zip(self._with(now), expired, strict=True):
                    for one in popped:
                        heappush(heap, one)
            raise

    def _with(self, now: Now) -> list[tuple[list[tuple[int, int]], int]]:
        return [
            (self._heaps[ELAPSED], now.elapsed_ms),
            (self._heaps[WALL], now.wall_ms),
        ]

    def _look(self) -> None:
        """Take note of the expiries of tasks that have become ready."""
        engine = self._engine
        with engine.lock:
            self._forget_stale()
            fresh = engine.window.take_fresh(STEP_COUNT)
        for entry in fresh:
            number = entry_number(entry)
            row = engine.view(number)
            expires = None if row is None else row.expired_at()
            if expires is not None:
                timeline, at_ms = expires
                with engine.lock:
                    heappush(self._heaps[timeline], (at_ms, number))

    def _forget_stale(self) -> None:
        """Keep the hints of ready tasks alone once most are of others; hold the lock.

        A task that was taken and comes back is looked at as it becomes ready again.
        """
        window = self._engine.window
        count = sum(map(len, self._heaps))
        if count <= 2 * window.ready_count + STALE_HINTS_MAX:
            return
        ready = set(map(entry_number, window.expiring()))
        for heap in self._heaps:
            heap[:] = {hint for hint in heap if hint[1] in ready}
            heapify(heap)

    def next_ms(self, timeline: int, now_ms: int) -> int | None:
        """Return when the next task expires; hold the lock."""
        if timeline == ELAPSED and self._engine.window.has_fresh():
            return now_ms
        heap = self._heaps[timeline]
        return heap[0][0] if heap else None


def _take_until(now_ms: int, heap: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Take what has expired off a heap, a step of it."""
    taken: list[tuple[int, int]] = []
    while heap and heap[0][0] <= now_ms and len(taken) < STEP_COUNT:
        taken.append(heappop(heap))
    return taken
