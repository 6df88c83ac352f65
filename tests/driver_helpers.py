"""A store with its driver on a clock that is moved by hand, in step with the test.

`settle` waits until the driver's thread sleeps and has nothing left to do. A condition
tells it so, not a sleep: the waiter of this clock says when it is waited in.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import wheeldb
from wheeldb.clock import Waiter
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.testing.clock import _ManualWaiter

_Answer = TypeVar("_Answer")

# A test that waits longer than this hangs.
PATIENCE_S = 20.0

START = datetime(2026, 1, 1, tzinfo=UTC)


class WatchedWaiter(_ManualWaiter):
    """Says until when its thread sleeps."""

    asleep: tuple[int | None, int | None] | None = None

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        with self._moved:
            self.asleep = (boottime_ms, wall_ms)
            self._moved.notify_all()
            super().wait(boottime_ms, wall_ms, timeout_ms)
            self.asleep = None

    def sleeps_on(self) -> bool:
        """Return whether its thread sleeps and nothing is about to wake it."""
        return self.asleep is not None and not self._is_over(*self.asleep)


class WatchedClock(ManualClock):
    """A manual clock with such a waiter."""

    watched: WatchedWaiter

    def waiter(self) -> Waiter:
        self.watched = WatchedWaiter(self)
        return self.watched


class Driven:
    """One store, driven, with disk and clock in the test's hands."""

    def __init__(
        self,
        *,
        clock: WatchedClock | None = None,
        disk: CrashableDisk | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or WatchedClock(START)
        self.disk = disk or CrashableDisk()
        self.db = wheeldb.open("/store", clock=self.clock, disk=self.disk, **options)
        self.settle()

    @property
    def wakeups(self) -> int:
        """How often the driver has woken up."""
        return self.db.statistics().wakeups

    def settle(self) -> tuple[int | None, int | None]:
        """Wait until the driver sleeps; return until when, on both clocks."""
        driver, engine = self.db._driver, self.db._engine
        assert driver is not None, "the store has a driver"
        moved, waiter = self.clock._moved, self.clock.watched
        while True:
            with engine.checkpointing, engine.snapshotting:
                pass
            with moved:
                assert moved.wait_for(waiter.sleeps_on, PATIENCE_S), "it never sleeps"
            with engine.lock, moved:
                if waiter.sleeps_on() and not driver._is_tidying:
                    assert waiter.asleep is not None, "it sleeps"
                    return waiter.asleep

    def until_tidying(self) -> None:
        """Wait until the driver sleeps beside a tidier at work."""
        driver, engine = self.db._driver, self.db._engine
        assert driver is not None, "the store has a driver"
        moved, waiter = self.clock._moved, self.clock.watched
        with moved:
            assert moved.wait_for(waiter.sleeps_on, PATIENCE_S), "it never sleeps"
        with engine.lock:
            assert driver._is_tidying, "there was nothing to tidy"

    def let_pass(self, seconds: float) -> int:
        """Let time go by from wake-up to wake-up; return how many there were."""
        wakeups = self.wakeups
        end_ms = self.clock.read().boottime_ms + round(seconds * 1000)
        while True:
            boottime_ms, wall_ms = self.settle()
            now = self.clock.read()
            waits_ms = [end_ms - now.boottime_ms]
            if boottime_ms is not None:
                waits_ms.append(boottime_ms - now.boottime_ms)
            if wall_ms is not None:
                waits_ms.append(wall_ms - now.wall_ms)
            if not waits_ms[0]:
                return self.wakeups - wakeups
            self.clock.advance(min(waits_ms) / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            assert self.db.check() == []
        self.db.close()


class Background(Generic[_Answer]):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], _Answer]) -> None:
        self._call = call
        self._answer: _Answer | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        """Whether the call has returned."""
        return not self._thread.is_alive()

    def result(self) -> _Answer:
        """Wait for the call; return or raise what it did."""
        self._thread.join(PATIENCE_S)
        assert self.is_over, "it doesn't return"
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def until_waiting(db: wheeldb.WheelDB, count: int) -> None:
    """Wait until so many threads wait in the store with a deadline."""
    engine = db._engine
    while True:
        with engine.lock:
            if len(engine.deadlines) == count:
                return
