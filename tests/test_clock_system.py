"""The real clocks and the real waiter: the one place where time itself is under test.

Sleeps here are a few milliseconds and nothing bounds how late a busy machine may be;
that nothing is *early* holds on any machine.
"""

import ctypes
import errno
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from wheeldb.clock import Clock, Reading, Waiter
from wheeldb.clock.system import BUILD_MS, SystemClock
from wheeldb.clock.waiter import (
    TFD_TIMER_ABSTIME,
    TFD_TIMER_CANCEL_ON_SET,
    PollWaiter,
    TimerWaiter,
)
from wheeldb.errors import ClosedError

LONG_MS = 60_000

HAS_TIMERFD = hasattr(ctypes.CDLL(None), "timerfd_create")

needs_timerfd = pytest.mark.skipif(not HAS_TIMERFD, reason="no timerfd on this system")


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture(params=["timer", "poll"])
def waiter(
    request: pytest.FixtureRequest,
    clock: SystemClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Waiter]:
    """Each kind of waiter in turn: both keep the same contract.

    The second one is made as on a system without eventfd too, on a pipe.
    """
    made: Waiter
    if request.param == "timer":
        if not HAS_TIMERFD:
            pytest.skip("no timerfd on this system")
        made = TimerWaiter()
    else:
        monkeypatch.delattr(os, "eventfd", raising=False)
        made = PollWaiter(clock.read)
    yield made
    made.close()


@pytest.fixture
def timer() -> Iterator[TimerWaiter]:
    made = TimerWaiter()
    yield made
    made.close()


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_the_system_clock_is_a_clock(clock: SystemClock) -> None:
    seam: Clock = clock

    assert seam.boot_id
    assert seam.boot_id == SystemClock().boot_id or seam.boot_id.startswith("process-")
    assert seam.build_ms == BUILD_MS
    assert not seam.time_namespace or seam.time_namespace.isdigit()


def test_readings_are_rounded_down(clock: SystemClock) -> None:
    before_ns = time.time_ns()
    reading = clock.read()
    after_ns = time.time_ns()

    assert before_ns // 1_000_000 <= reading.wall_ms <= after_ns // 1_000_000
    assert reading.cut_ms in (0, 1)
    assert clock.read().boottime_ms >= reading.boottime_ms


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here that counts suspend"
)
def test_boottime_is_the_clock_that_counts_suspend(clock: SystemClock) -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    boottime_ms = clock.read().boottime_ms
    after_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    assert before_ns // 1_000_000 <= boottime_ms <= after_ns // 1_000_000


def test_process_time_rises(clock: SystemClock) -> None:
    assert clock.process_ns() <= clock.process_ns()


@needs_timerfd
def test_linux_gets_the_timers(clock: SystemClock) -> None:
    waiter = clock.waiter()
    waiter.close()

    assert isinstance(waiter, TimerWaiter)


@needs_timerfd
def test_the_kernel_has_the_timers_as_meant(timer: TimerWaiter) -> None:
    """No test can suspend the machine or set its clock, but these are the switches."""
    timer.wait(1, 1)

    with open(f"/proc/self/fdinfo/{timer._boottime.fd}") as file:
        boottime = dict(line.split(":", 1) for line in file)
    with open(f"/proc/self/fdinfo/{timer._wall.fd}") as file:
        wall = dict(line.split(":", 1) for line in file)

    assert int(boottime["clockid"]) == getattr(time, "CLOCK_BOOTTIME", 7)
    assert int(boottime["settime flags"], 8) == TFD_TIMER_ABSTIME
    assert int(wall["clockid"]) == time.CLOCK_REALTIME
    assert int(wall["settime flags"], 8) == TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET


@pytest.mark.parametrize("delay_ms", [1, 5])
def test_no_wait_for_boottime_is_early(
    clock: SystemClock, waiter: Waiter, delay_ms: int
) -> None:
    for _ in range(5):
        due_ms = clock.read().boottime_ms + delay_ms

        waiter.wait(due_ms, None, LONG_MS)

        assert clock.read().boottime_ms >= due_ms
    # Nor did it wake up more often than asked.
    assert waiter.wakeups == 5


@pytest.mark.parametrize("delay_ms", [1, 5])
def test_no_wait_for_the_wall_is_early(
    clock: SystemClock, waiter: Waiter, delay_ms: int
) -> None:
    for _ in range(5):
        due_ms = clock.read().wall_ms + delay_ms

        waiter.wait(None, due_ms, LONG_MS)

        assert clock.read().wall_ms >= due_ms
    assert waiter.wakeups == 5


def test_the_earlier_of_both_instants_ends_the_wait(
    clock: SystemClock, waiter: Waiter
) -> None:
    start = clock.read()

    waiter.wait(start.boottime_ms + 2, start.wall_ms + LONG_MS)
    waiter.wait(start.boottime_ms + LONG_MS, start.wall_ms + 4)

    assert clock.read().boottime_ms - start.boottime_ms < LONG_MS


@pytest.mark.parametrize("past_ms", [0, -1, -(10**15)])
def test_a_past_instant_returns_at_once_every_time(
    waiter: Waiter, past_ms: int
) -> None:
    # The same instants again and again: each wait must see that they are over.
    for _ in range(3):
        waiter.wait(past_ms, None)
        waiter.wait(None, past_ms)
        waiter.wait(None, past_ms)
        waiter.wait(past_ms, past_ms)

    assert waiter.wakeups == 12


def test_an_instant_that_is_over_stays_over(clock: SystemClock, waiter: Waiter) -> None:
    start = clock.read()

    for _ in range(3):
        waiter.wait(start.boottime_ms + 1, None)
        waiter.wait(start.boottime_ms + 1, start.wall_ms + LONG_MS)
        waiter.wait(None, start.wall_ms + 1)

    assert waiter.wakeups == 9


def test_an_instant_given_up_does_not_end_a_later_wait(
    clock: SystemClock, waiter: Waiter
) -> None:
    start = clock.read()
    waiter.wait(start.boottime_ms + 1, start.wall_ms + 1)
    waiter.wait(start.boottime_ms + 1, start.wall_ms + 1)

    before_ns = time.monotonic_ns()
    waiter.wait(None, None, 5)

    assert time.monotonic_ns() - before_ns >= 5_000_000


def test_the_timeout_ends_the_wait(waiter: Waiter) -> None:
    before_ns = time.monotonic_ns()

    waiter.wait(None, None, 5)

    assert time.monotonic_ns() - before_ns >= 5_000_000
    assert waiter.wakeups == 1


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_time_at_all_only_looks(waiter: Waiter, timeout_ms: int) -> None:
    waiter.wait(None, None, timeout_ms)

    assert waiter.wakeups == 1


def test_an_endless_timeout_fits_the_system_call(waiter: Waiter) -> None:
    waiter.wake()

    waiter.wait(2**80, 2**80, 2**80)

    assert waiter.wakeups == 1


def test_wake_ends_the_wait_of_another_thread(waiter: Waiter) -> None:
    thread = in_thread(lambda: waiter.wait(None, None))

    waiter.wake()
    thread.join(30)

    assert not thread.is_alive()
    assert waiter.wakeups == 1


def test_several_wakes_are_one_and_are_kept(waiter: Waiter) -> None:
    for _ in range(100):
        waiter.wake()

    waiter.wait(None, None)

    # None of them is left: this wait lasts until its instant.
    before_ns = time.monotonic_ns()
    waiter.wait(None, None, 5)
    assert time.monotonic_ns() - before_ns >= 5_000_000
    assert waiter.wakeups == 2


def test_wake_never_blocks(waiter: Waiter) -> None:
    """More bytes than any pipe holds, and nobody reads."""
    for _ in range(20_000):
        waiter.wake()

    waiter.wait(None, None)


def test_wake_from_a_signal_handler_ends_the_wait(waiter: Waiter) -> None:
    main = threading.get_ident()
    previous = signal.signal(signal.SIGUSR1, lambda *_: waiter.wake())
    try:
        in_thread(lambda: signal.pthread_kill(main, signal.SIGUSR1)).join(30)
        waiter.wait(None, None)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    assert waiter.wakeups == 1


def test_a_signal_alone_does_not_end_the_wait(
    clock: SystemClock, waiter: Waiter
) -> None:
    main = threading.get_ident()
    handled: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    due_ms = clock.read().boottime_ms + 20
    try:
        thread = in_thread(lambda: signal.pthread_kill(main, signal.SIGUSR1))
        waiter.wait(due_ms, None)
        thread.join(30)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    assert handled
    assert clock.read().boottime_ms >= due_ms


def test_closing_twice_and_waking_a_closed_one_are_harmless(waiter: Waiter) -> None:
    waiter.close()
    # A descriptor that was just opened gets a number that was just closed.
    fds = [os.dup(2) for _ in range(4)]
    try:
        waiter.close()
        waiter.wake()
        for fd in fds:
            os.fstat(fd)
    finally:
        for fd in fds:
            os.close(fd)

    with pytest.raises(ClosedError, match="take a new one"):
        waiter.wait(0, 0)


def test_a_closed_waiter_writes_to_nobody(waiter: Waiter) -> None:
    waiter.close()
    ends = [os.pipe() for _ in range(4)]
    try:
        waiter.wake()
        for read_fd, _ in ends:
            os.set_blocking(read_fd, False)
            with pytest.raises(BlockingIOError):
                os.read(read_fd, 1)
    finally:
        for pair in ends:
            os.close(pair[0])
            os.close(pair[1])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")
def test_closing_gives_every_descriptor_back(clock: SystemClock) -> None:
    before = sorted(os.listdir("/proc/self/fd"))

    for _ in range(3):
        clock.waiter().close()
        PollWaiter(clock.read).close()

    assert sorted(os.listdir("/proc/self/fd")) == before


@needs_timerfd
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_without_timers_there_is_still_a_waiter(
    clock: SystemClock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(name: object, **_: object) -> "_Refusing":
        return _Refusing(code)

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    waiter = clock.waiter()

    assert isinstance(waiter, PollWaiter)
    waiter.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


@needs_timerfd
def test_a_process_without_descriptors_is_told(
    clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: _Refusing(errno.EMFILE))

    with pytest.raises(OSError, match="timerfd_create") as caught:
        clock.waiter()

    assert caught.value.errno == errno.EMFILE


class _Refusing:
    """A C library whose kernel gives out no timers."""

    def __init__(self, code: int) -> None:
        self.code = code

    timerfd_settime = None

    def timerfd_create(self, clock_id: int, flags: int) -> int:
        ctypes.set_errno(self.code)
        return -1


@needs_timerfd
def test_a_step_between_two_waits_ends_the_second(timer: TimerWaiter) -> None:
    """What the kernel answers after a step is fed in: no test sets the real clock."""
    settime = timer._wall._settime
    answers = [errno.ECANCELED]

    def stepped(*arguments: object) -> int:
        # The kernel arms the timer and reports the step all the same.
        result: int = settime(*arguments)
        if answers:
            ctypes.set_errno(answers.pop())
            return -1
        return result

    timer._wall._settime = stepped

    timer.wait(None, None)
    before_ns = time.monotonic_ns()
    timer.wait(None, None, 5)

    assert time.monotonic_ns() - before_ns >= 5_000_000
    assert timer.wakeups == 2


@needs_timerfd
def test_a_step_during_a_wait_is_drained_and_the_timer_armed_anew(
    clock: SystemClock, timer: TimerWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    wall_fd = timer._wall.fd

    def stepped(fd: int, size: int) -> bytes:
        data = read(fd, size)
        if fd == wall_fd:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        return data

    monkeypatch.setattr(os, "read", stepped)
    timer.wait(None, 1)
    monkeypatch.undo()
    assert select.select([wall_fd], [], [], 0) == ([], [], [])
    due_ms = clock.read().wall_ms + 3

    timer.wait(None, due_ms)

    assert clock.read().wall_ms >= due_ms


@needs_timerfd
def test_an_unchanged_instant_costs_no_system_call(timer: TimerWaiter) -> None:
    calls = 0
    settime = timer._boottime._settime

    def counted(*arguments: object) -> int:
        nonlocal calls
        calls += 1
        result: int = settime(*arguments)
        return result

    timer._boottime._settime = counted
    timer._wall._settime = counted
    far_ms = SystemClock().read().boottime_ms + LONG_MS

    for _ in range(10):
        timer.wait(far_ms, None, 0)

    assert calls == 2


def test_a_minute_is_the_longest_sleep_by_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would end it when the machine was suspended or the wall set."""
    slept_ms: list[int] = []

    class Poll:
        def register(self, fd: int, mask: int) -> None: ...

        def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
            slept_ms.append(timeout_ms)
            return []

    monkeypatch.setattr("select.poll", Poll)
    waiter = PollWaiter(lambda: Reading(1_000_000, 500, 1))

    waiter.wait(None, None)
    waiter.wait(500 + 60_001, 1_000_000 + 60_001)
    waiter.wait(500 + 59_999, None)
    waiter.wait(None, 1_000_000 + 59_998)
    waiter.wait(None, None, 59_997)
    waiter.close()

    assert slept_ms == [60_000, 60_000, 59_999, 59_998, 59_997]
