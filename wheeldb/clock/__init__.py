"""The clock seam: the only way by which time comes into the store.

Three hands of the same system are read, and each has one use:

    wall        Unix time. May be stepped in either direction, or be plainly wrong.
                Decides what is due on the wall timeline, once it is trusted.
    boottime    Time since the machine started, suspend included. Never goes back
                within a boot. Measures delays, leases and waits.
    process     Nanoseconds without meaning of their own. Measure how long a piece of
                work took, for statistics; nothing is decided by them.

A reading holds the first two, taken back to back and rounded down:

    reading = clock.read()      # wall 1767225600000.7 ms, boottime 5000.2 ms
    reading.wall_ms             # 1767225600000
    reading.boottime_ms         # 5000
    reading.cut_ms              # 1: something was cut off

Now is rounded down and due times are rounded up, so that nothing is early by rounding:
who counts a due time from a reading adds `cut_ms` to it.

This module knows no system call: `wheeldb.clock.system` reads the real clocks,
`wheeldb.testing` has one that is moved by hand. It doesn't say which wall time can be
believed either; that is `wheeldb.clock.timekeeper`.
"""

from typing import NamedTuple, Protocol

__all__ = ("Clock", "Reading", "Waiter")


# Readings are taken several times per task. A named tuple is made in half the time of
# a frozen dataclass.
class Reading(NamedTuple):
    """What the clocks showed at one moment, in whole milliseconds, rounded down.

    Attributes:
        wall_ms: Unix time.
        boottime_ms: Time since the machine started, suspend included.
        cut_ms: 1 if a fraction was cut off either of them, otherwise 0.
    """

    wall_ms: int
    boottime_ms: int
    cut_ms: int = 0


class Waiter(Protocol):
    """Something that one thread sleeps in until there is work.

    - One thread at a time waits; any thread, and a signal handler, may wake it.
    - A wake-up while nobody waits is kept: the next wait returns at once. Several of
      them count as one.
    - A wait may end without a cause that the caller can see. It looks at the clock
      again after each.
    """

    @property
    def wakeups(self) -> int:
        """How often a wait has ended."""

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        """Sleep until the first of the instants, and not a moment less.

        It ends early on `wake`, and when the wall clock is stepped: the caller must
        then look again at what is due. A step between two waits ends the second.

        Args:
            boottime_ms: An instant on boottime, or None for no such limit.
            wall_ms: An instant on the wall clock, or None.
            timeout_ms: The longest time to sleep, or None.

        Raises:
            ClosedError: The waiter was closed.
        """

    def wake(self) -> None:
        """End the wait, or the next one. Never blocks; does nothing once closed."""

    def close(self) -> None:
        """Give back what the system lent. Not while another thread still waits."""


class Clock(Protocol):
    """The readings, what tells one boot from another, and a place to sleep."""

    @property
    def boot_id(self) -> str:
        """A name for this boot of the machine: boottimes of two can't be compared."""

    @property
    def time_namespace(self) -> str:
        """A name for the time namespace: each has a boottime of its own."""

    @property
    def build_ms(self) -> int:
        """The earliest wall time that can be true."""

    def read(self) -> Reading:
        """Return both clocks, read back to back."""

    def process_ns(self) -> int:
        """Return nanoseconds that only rise; differences alone have a meaning."""

    def waiter(self) -> Waiter:
        """Return a new place to sleep by this clock."""
