"""Sleeping until an instant on either clock, or until woken, in one poll().

    boottime timerfd ───┐
    realtime timerfd ───┼──► poll() ──► the driver's thread
    eventfd ────────────┘    (timeout)
      ▲
      └── wake(), from any thread or signal handler

Why descriptors: a thread in poll() on a boottime timerfd woke 60 µs late in the median,
one on a condition variable 130 µs; a timerfd counts suspended time, which poll()'s own
timeout does not; and only a timerfd reports that somebody has set the wall clock
(TFD_TIMER_CANCEL_ON_SET in timerfd_create(2)).

Systems without timerfd get a waiter that polls for at most a minute at a time, so that
a suspend or a step is noticed within that minute.

Nothing here decides what is due, and no thread is started here. The timers are made by
ctypes: Python has them from 3.13 on only, and one way that serves every version is
better tested than two.
"""

import ctypes
import errno
import os
import select
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import RLock

from wheeldb.clock import Reading, Waiter
from wheeldb.errors import ClosedError

__all__ = ("PollWaiter", "TimerWaiter", "new_waiter")

# The longest sleep where neither a suspend nor a step would end it.
POLL_MS_MAX = 60_000

# poll() takes a C int.
POLL_LIMIT_MS = 2**31 - 1

# Later than any due time in a human life, and far below where the kernel's 64-bit
# nanoseconds end (year 2262). A timer that far off fires in vain at worst.
FAR_MS = 2**43

# From <linux/timerfd.h> and <linux/time.h>.
CLOCK_REALTIME = 0
CLOCK_BOOTTIME = 7
TFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
TFD_TIMER_ABSTIME = 1
TFD_TIMER_CANCEL_ON_SET = 2

# Eight bytes are one to an eventfd, and just bytes to a pipe.
WAKE = (1).to_bytes(8, sys.byteorder)

# What timerfd_create answers where it is missing or a sandbox forbids it.
UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EINVAL)


def new_waiter(read: Callable[[], Reading]) -> Waiter:
    """Return the best waiter that this system has.

    Args:
        read: Reads the clocks that the instants belong to.

    Raises:
        OSError: The process has no descriptors left.
    """
    try:
        return TimerWaiter()
    except AttributeError:  # the C library doesn't know the call
        return PollWaiter(read)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return PollWaiter(read)


class TimerWaiter:
    """Sleeps by two timerfds: instants on the system's own clocks, on Linux."""

    def __init__(self) -> None:
        """Make the timers.

        Raises:
            AttributeError: The C library has no timerfd.
            OSError: The kernel has none, or the process has no descriptors left.
        """
        self.wakeups = 0
        self._is_closed = False
        self._poll = select.poll()
        with ExitStack() as stack:
            self._boottime = _Timer(CLOCK_BOOTTIME, TFD_TIMER_ABSTIME)
            stack.callback(self._boottime.close)
            self._wall = _Timer(
                CLOCK_REALTIME, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET
            )
            stack.callback(self._wall.close)
            self._channel = _WakeChannel()
            stack.callback(self._channel.close)
            for fd in (self._boottime.fd, self._wall.fd, self._channel.read_fd):
                self._poll.register(fd, select.POLLIN)
            self._owned = stack.pop_all()

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        """Sleep until an instant, a wake-up, a step, or the timeout.

        Raises:
            ClosedError: The waiter was closed.
        """
        _require_open(self._is_closed)
        self._boottime.arm(boottime_ms)
        # Armed at any time, far off if need be, so that a step is reported.
        is_stepped = self._wall.arm(FAR_MS if wall_ms is None else wall_ms)
        if is_stepped:
            timeout_ms = 0
        elif timeout_ms is not None:
            timeout_ms = min(max(timeout_ms, 0), POLL_LIMIT_MS)
        ready = self._poll.poll(timeout_ms)
        self.wakeups += 1
        for fd, _ in ready:
            if fd == self._wall.fd:
                self._wall.drain()
            elif fd == self._channel.read_fd:
                self._channel.drain()

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._channel.wake()

    def close(self) -> None:
        """Close the descriptors. Not while another thread still waits."""
        self._is_closed = True
        self._owned.close()


class PollWaiter:
    """Sleeps by the timeout of poll(), where there is no timerfd."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        """Sleep by the clocks that `read` reads."""
        self.wakeups = 0
        self._is_closed = False
        self._read = read
        self._channel = _WakeChannel()
        self._poll = select.poll()
        self._poll.register(self._channel.read_fd, select.POLLIN)

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        """Sleep until an instant, a wake-up, the timeout, or for a minute.

        Raises:
            ClosedError: The waiter was closed.
        """
        _require_open(self._is_closed)
        reading = self._read()
        left_ms = POLL_MS_MAX
        if boottime_ms is not None:
            left_ms = min(left_ms, boottime_ms - reading.boottime_ms)
        if wall_ms is not None:
            left_ms = min(left_ms, wall_ms - reading.wall_ms)
        if timeout_ms is not None:
            left_ms = min(left_ms, timeout_ms)
        ready = self._poll.poll(max(left_ms, 0))
        self.wakeups += 1
        if ready:
            self._channel.drain()

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._channel.wake()

    def close(self) -> None:
        """Close the descriptors. Not while another thread still waits."""
        self._is_closed = True
        self._channel.close()


def _require_open(is_closed: bool) -> None:
    if is_closed:
        raise ClosedError("the waiter is closed; take a new one from the clock")


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _Timer:
    """One timerfd: readable from its instant on, until armed again or drained."""

    __slots__ = ("_armed_ms", "_flags", "_settime", "_spec", "fd")

    def __init__(self, clock_id: int, flags: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime: Callable[..., int] = libc.timerfd_settime
        self.fd: int = libc.timerfd_create(clock_id, TFD_FLAGS)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_create({clock_id}): {os.strerror(code)}")
        self._flags = flags
        self._spec = _TimerSpec()
        # A new timer is disarmed.
        self._armed_ms: int | None = 0

    def arm(self, instant_ms: int | None) -> bool:
        """Set the instant; None disarms.

        Arming anew takes back that the descriptor is readable; the same instant again
        is left alone, and costs no system call.

        Returns:
            Whether the clock was stepped since the timer was last armed or drained.
            The timer is armed all the same, see BUGS in timerfd_create(2).
        """
        # Zero would disarm, so an instant before the first millisecond counts as it.
        ms = 0 if instant_ms is None else min(max(instant_ms, 1), FAR_MS)
        if ms == self._armed_ms:
            return False
        value = self._spec.value
        value.seconds, rest_ms = divmod(ms, 1000)
        value.nanoseconds = rest_ms * 1_000_000
        self._armed_ms = ms
        if self._settime(self.fd, self._flags, ctypes.byref(self._spec), None) == 0:
            return False
        code = ctypes.get_errno()
        if code == errno.ECANCELED:
            return True
        raise OSError(code, f"timerfd_settime to {ms} ms: {os.strerror(code)}")

    def drain(self) -> None:
        """Take back that the descriptor is readable.

        The read fails with ECANCELED after a step and takes it back all the same.
        """
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ECANCELED:
                raise
        # Whether it is still armed depends on why it was readable.
        self._armed_ms = None

    def close(self) -> None:
        os.close(self.fd)


class _WakeChannel:
    """A descriptor that becomes readable by `wake`: an eventfd, or a pipe.

    The lock keeps `wake` from writing to a number that `close` has given back and
    another open has taken: eight bytes in the middle of somebody's file. It can be
    taken again by the thread that has it, since a signal handler may call `wake` in
    the middle of either; nobody who holds it ever blocks.
    """

    __slots__ = ("_lock", "_write_fd", "read_fd")

    def __init__(self) -> None:
        self._lock = RLock()
        if hasattr(os, "eventfd"):
            self.read_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._write_fd = self.read_fd
        else:
            self.read_fd, self._write_fd = os.pipe()
            os.set_blocking(self.read_fd, False)
            os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        # A full pipe or counter means that wake-ups enough are waiting.
        with self._lock, suppress(BlockingIOError):
            if self._write_fd >= 0:
                os.write(self._write_fd, WAKE)

    def drain(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.read_fd, 4096)

    def close(self) -> None:
        with self._lock:
            read_fd, self.read_fd = self.read_fd, -1
            write_fd, self._write_fd = self._write_fd, -1
            if write_fd != read_fd:
                os.close(write_fd)
            if read_fd >= 0:
                os.close(read_fd)
