"""A clock that stands still until it is moved by hand.

    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.advance(60)           # a minute goes by
    clock.step_wall(-3600)      # somebody sets the wall clock back by an hour
    clock.suspend(8 * 3600)     # the lid was closed over night
    clock.reboot(off=30)        # half a minute without power

What each of them moves:

                    wall          boottime      process     boot id
    advance         + seconds     + seconds     + seconds
    suspend         + seconds     + seconds
    step_wall       + seconds
    reboot          + off         from zero                 a new one

A waiter of this clock really blocks its thread, until the clock is moved to the instant
by another. Everything is safe to call from any thread. It knows nothing of the store;
any program that takes a `wheeldb.clock.Clock` can be tested with it.
"""

from datetime import UTC, datetime
from threading import Condition

from wheeldb.clock import Reading, Waiter
from wheeldb.errors import ClosedError

__all__ = ("ManualClock",)

# 2000-01-01T00:00:00Z: early enough that a test with a date in it never grows too old.
BUILD_MS = 946_684_800_000

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class ManualClock:
    """Implements `wheeldb.clock.Clock`; time passes only when a test says so.

    Attributes:
        is_synchronised: Whether the system says that its wall clock is synchronised,
            see `set_synchronised`.
    """

    def __init__(
        self,
        wall: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        elapsed: float = 0.0,
    ) -> None:
        """Start at a wall time, some seconds after the machine was started.

        Raises:
            ValueError: `wall` has no zone or lies before 1970, or `elapsed` is
                negative.
        """
        self.is_synchronised = False
        self._moved = Condition()
        self._wall_ns = _instant_ns(wall)
        self._boottime_ns = _duration_ns(elapsed)
        self._process_ns = self._boottime_ns
        self._boot_count = 1
        # Steps and reboots so far: either ends a wait, as a step of a real clock does.
        self._step_count = 0

    @property
    def boot_id(self) -> str:
        """A name for this boot, the same in every run of a test."""
        with self._moved:
            return f"00000000-0000-4000-8000-{self._boot_count:012}"

    @property
    def time_namespace(self) -> str:
        """Always the same one."""
        return "manual"

    @property
    def build_ms(self) -> int:
        """The start of the year 2000: only older wall times can't be true."""
        return BUILD_MS

    def read(self) -> Reading:
        """Return both clocks."""
        with self._moved:
            wall_ms, wall_rest = divmod(self._wall_ns, NS_PER_MS)
            boottime_ms, boottime_rest = divmod(self._boottime_ns, NS_PER_MS)
        return Reading(wall_ms, boottime_ms, 1 if wall_rest or boottime_rest else 0)

    def process_ns(self) -> int:
        """Return nanoseconds that no suspend and no reboot moves."""
        with self._moved:
            return self._process_ns

    def waiter(self) -> Waiter:
        """Return a new place to sleep until this clock is moved."""
        return _ManualWaiter(self)

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: `seconds` is negative.
        """
        duration_ns = _duration_ns(seconds)
        with self._moved:
            self._wall_ns += duration_ns
            self._boottime_ns += duration_ns
            self._process_ns += duration_ns
            self._moved.notify_all()

    def suspend(self, seconds: float) -> None:
        """Let time pass while nothing runs, as when a lid is closed.

        Raises:
            ValueError: `seconds` is negative.
        """
        duration_ns = _duration_ns(seconds)
        with self._moved:
            self._wall_ns += duration_ns
            self._boottime_ns += duration_ns
            self._moved.notify_all()

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if `seconds` is negative.

        Raises:
            ValueError: That would be before 1970.
        """
        with self._moved:
            self._set_wall_locked(self._wall_ns + round(seconds * NS_PER_S))

    def set_wall(self, wall: datetime) -> None:
        """Set the wall clock.

        Raises:
            ValueError: `wall` has no zone or lies before 1970.
        """
        wall_ns = _instant_ns(wall)
        with self._moved:
            self._set_wall_locked(wall_ns)

    def reboot(self, off: float = 0.0, wall: datetime | None = None) -> None:
        """Start the machine anew: another boot id, boottime from zero.

        What was open before the reboot should be dropped, as its process is gone.

        Args:
            off: For how long the power was off.
            wall: What the wall clock shows then; by default it has gone on, as one
                with a battery does.

        Raises:
            ValueError: `off` is negative, or `wall` has no zone or lies before 1970.
        """
        off_ns = _duration_ns(off)
        wall_ns = None if wall is None else _instant_ns(wall)
        with self._moved:
            self._boot_count += 1
            self._boottime_ns = 0
            self._set_wall_locked(
                self._wall_ns + off_ns if wall_ns is None else wall_ns
            )

    def set_synchronised(self, is_synchronised: bool) -> None:
        """Set whether the system calls its wall clock synchronised."""
        with self._moved:
            self.is_synchronised = is_synchronised
            self._moved.notify_all()

    def _set_wall_locked(self, wall_ns: int) -> None:
        if wall_ns < 0:
            raise ValueError(
                f"the wall clock can't be set to {wall_ns / NS_PER_S} s, before 1970"
            )
        self._wall_ns = wall_ns
        self._step_count += 1
        self._moved.notify_all()


class _ManualWaiter:
    """Blocks a thread until its clock has been moved far enough."""

    def __init__(self, clock: ManualClock) -> None:
        self.wakeups = 0
        self._clock = clock
        self._moved = clock._moved
        self._steps_seen = clock._step_count
        self._is_woken = False
        self._is_closed = False

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        """Block until an instant, a wake-up, a step, a reboot, or the timeout.

        Raises:
            ClosedError: The waiter was closed.
        """
        clock = self._clock
        with self._moved:
            if self._is_closed:
                raise ClosedError("the waiter is closed; take a new one from the clock")
            if timeout_ms is not None:
                timeout_ns = clock._boottime_ns + timeout_ms * NS_PER_MS
                until_ms = -(-timeout_ns // NS_PER_MS)
                if boottime_ms is None or until_ms < boottime_ms:
                    boottime_ms = until_ms
            self._moved.wait_for(lambda: self._is_over(boottime_ms, wall_ms))
            self._steps_seen = clock._step_count
            self._is_woken = False
            self.wakeups += 1

    def wake(self) -> None:
        """End the wait, or the next one."""
        with self._moved:
            self._is_woken = True
            self._moved.notify_all()

    def close(self) -> None:
        """End the wait; none is possible afterwards."""
        with self._moved:
            self._is_closed = True
            self._moved.notify_all()

    def _is_over(self, boottime_ms: int | None, wall_ms: int | None) -> bool:
        """Return whether there is a reason to end the wait. The lock is held."""
        clock = self._clock
        return (
            self._is_woken
            or self._is_closed
            or self._steps_seen != clock._step_count
            or (
                boottime_ms is not None
                and clock._boottime_ns >= boottime_ms * NS_PER_MS
            )
            or (wall_ms is not None and clock._wall_ns >= wall_ms * NS_PER_MS)
        )


def _instant_ns(wall: datetime) -> int:
    """Return an aware datetime as nanoseconds since 1970, exactly."""
    if wall.tzinfo is None:
        raise ValueError(
            f"{wall.isoformat()} has no zone; give one, such as tzinfo=datetime.UTC"
        )
    since = wall - datetime(1970, 1, 1, tzinfo=UTC)
    # Not by total_seconds(): a float is off by some hundred nanoseconds here.
    wall_ns = (since.days * 86_400 + since.seconds) * NS_PER_S
    wall_ns += since.microseconds * 1000
    if wall_ns < 0:
        raise ValueError(f"{wall.isoformat()} lies before 1970")
    return wall_ns


def _duration_ns(seconds: float) -> int:
    if seconds < 0:
        raise ValueError(f"time can't pass by {seconds} s; step_wall() goes back")
    return round(seconds * NS_PER_S)
