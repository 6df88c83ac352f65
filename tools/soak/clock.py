"""The soak's clock: real time made fast, with steps, suspends and reboots.

    real    ├─ 1 s ─┤├─ 1 s ─┤         each a minute on the fast clock
    wall    12:00    12:01  15:01      + step of 3 h
    boot    00:10    00:11  00:12      a step doesn't move it; a suspend moves both

A `Weather` says how far the hands stand from the fast clock's. The parent keeps it over
the deaths of its children and hands it to each; a child reports a change before it
makes it, so that both agree whenever it is killed.
"""

import weakref
from dataclasses import dataclass

from wheeldb.cli.demo_clock import FastClock
from wheeldb.clock import Clock, Reading, Waiter

__all__ = ("ShiftedClock", "Sky", "Weather")

# What boottime shows right after a reboot.
BOOTED_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How a clock stands, as plain values that go through a pipe.

    Attributes:
        origin_ns: The fast clock's origin, see `FastClock`.
        wall_ms: What it shows there.
        rate: How fast it runs.
        boot: Counts the boots.
        wall_shift_ms: The wall clock less the fast one's.
        boottime_shift_ms: Boottime less the fast one's.
        right_shift_ms: Where the wall clock belongs, while it shows 1970.
    """

    origin_ns: int
    wall_ms: int
    rate: int
    boot: int = 1
    wall_shift_ms: int = 0
    boottime_shift_ms: int = 0
    right_shift_ms: int | None = None

    def fast(self) -> FastClock:
        """Return the fast clock that this one is read from."""
        return FastClock(origin_ns=self.origin_ns, wall_ms=self.wall_ms, rate=self.rate)


class ShiftedClock:
    """Implements `wheeldb.clock.Clock`; moved by `shift`, from any thread."""

    def __init__(self, weather: Weather) -> None:
        self._base: Clock = weather.fast()
        self._waiters: weakref.WeakSet[_ShiftedWaiter] = weakref.WeakSet()
        self.weather = weather

    @property
    def boot_id(self) -> str:
        """One for each boot of the soak."""
        return f"soak-{self.weather.origin_ns}-{self.weather.boot}"

    @property
    def time_namespace(self) -> str:
        """The real one."""
        return self._base.time_namespace

    @property
    def build_ms(self) -> int:
        """The real one."""
        return self._base.build_ms

    def read(self) -> Reading:
        """Return both clocks."""
        weather, reading = self.weather, self._base.read()
        return Reading(
            reading.wall_ms + weather.wall_shift_ms,
            reading.boottime_ms + weather.boottime_shift_ms,
            reading.cut_ms,
        )

    def process_ns(self) -> int:
        """Return real nanoseconds."""
        return self._base.process_ns()

    def waiter(self) -> Waiter:
        """Return a waiter that sleeps until shifted instants."""
        waiter = _ShiftedWaiter(self, self._base.waiter())
        self._waiters.add(waiter)
        return waiter

    def shift(self, weather: Weather) -> None:
        """Move the hands; whoever sleeps looks at them again."""
        self.weather = weather
        for waiter in list(self._waiters):
            waiter.wake()


class _ShiftedWaiter:
    def __init__(self, clock: ShiftedClock, base: Waiter) -> None:
        self._clock = clock
        self._base = base

    @property
    def wakeups(self) -> int:
        return self._base.wakeups

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        weather = self._clock.weather
        if boottime_ms is not None:
            boottime_ms -= weather.boottime_shift_ms
        if wall_ms is not None:
            wall_ms -= weather.wall_shift_ms
        self._base.wait(boottime_ms, wall_ms, timeout_ms)

    def wake(self) -> None:
        self._base.wake()

    def close(self) -> None:
        self._base.close()


class Sky:
    """The parent's side: reboots, and the time that has truly passed.

    Attributes:
        weather: How the clock of the next child stands.
        true_origin_ms: True time less boottime, in this boot: true time counts the
            hours without power, whatever any clock shows.
    """

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.true_origin_ms = 0
        self._fast = weather.fast()

    def reboot(self, off_ms: int, *, in_1970: bool) -> None:
        """Turn the power off for a while.

        Args:
            off_ms: For how long.
            in_1970: The wall clock has no battery.
        """
        old, fast = self.weather, self._fast.read()
        true_ms = fast.boottime_ms + old.boottime_shift_ms + self.true_origin_ms
        right_ms = old.right_shift_ms
        right_ms = (old.wall_shift_ms if right_ms is None else right_ms) + off_ms
        # One that shows 1970 already has no battery in the next night either.
        in_1970 = in_1970 or old.right_shift_ms is not None
        self.true_origin_ms = true_ms + off_ms - BOOTED_MS
        self.weather = Weather(
            origin_ns=old.origin_ns,
            wall_ms=old.wall_ms,
            rate=old.rate,
            boot=old.boot + 1,
            wall_shift_ms=-fast.wall_ms if in_1970 else right_ms,
            boottime_shift_ms=BOOTED_MS - fast.boottime_ms,
            right_shift_ms=right_ms if in_1970 else None,
        )
