"""The system's clocks, as Linux and other POSIX systems keep them.

This is the one module that reads a clock. Boottime is CLOCK_BOOTTIME where it exists:
CLOCK_MONOTONIC stands still while a Linux machine is suspended, and a delay of an hour
would take an hour and the whole night that the lid was closed.

It does not judge what it reads: `wheeldb.clock.timekeeper` does.
"""

import os
import time
import uuid

from wheeldb.clock import Reading, Waiter
from wheeldb.clock.waiter import new_waiter

__all__ = ("BUILD_MS", "SystemClock")

# 2026-11-01T00:00:00Z. No clock that is right can show less. Raised at each release.
BUILD_MS = 1_793_491_200_000

NS_PER_MS = 1_000_000

# Makes a reading of its fields in half the time that its own constructor takes.
_reading = tuple.__new__

BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The real clocks of this machine."""

    __slots__ = ("_boot_id", "_time_namespace")

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()
        self._time_namespace = _read_time_namespace()

    @property
    def boot_id(self) -> str:
        """The kernel's random name for this boot."""
        return self._boot_id

    @property
    def time_namespace(self) -> str:
        """The inode of this process's time namespace; empty where there are none."""
        return self._time_namespace

    @property
    def build_ms(self) -> int:
        """The date of this release."""
        return BUILD_MS

    def read(self) -> Reading:
        """Return both clocks, read back to back."""
        wall_ns = time.time_ns()
        boottime_ns = time.clock_gettime_ns(BOOTTIME)
        wall_ms, boottime_ms = wall_ns // NS_PER_MS, boottime_ns // NS_PER_MS
        is_cut = wall_ms * NS_PER_MS < wall_ns or boottime_ms * NS_PER_MS < boottime_ns
        return _reading(Reading, (wall_ms, boottime_ms, 1 if is_cut else 0))

    def process_ns(self) -> int:
        """Return the monotonic clock in nanoseconds."""
        return time.monotonic_ns()

    def waiter(self) -> Waiter:
        """Return a new place to sleep by these clocks.

        Raises:
            OSError: The process has no descriptors left.
        """
        return new_waiter(self.read)


def _read_boot_id() -> str:
    """Return the kernel's name for this boot, or one made for this process.

    Where the kernel gives none, every start of a process counts as a boot of its own.
    Off-time is then taken from the wall clock, which is right though less exact. Two
    boots under one name would take the boottimes of both for one scale, and tasks would
    fire at any time.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            name = file.read().strip()
    except OSError:
        name = ""
    return name or f"process-{uuid.uuid4()}"


def _read_time_namespace() -> str:
    """Return the inode in `time:[4026531834]`, see time_namespaces(7)."""
    try:
        link = os.readlink("/proc/self/ns/time")
    except OSError:
        return ""
    return link.removeprefix("time:[").removesuffix("]")
