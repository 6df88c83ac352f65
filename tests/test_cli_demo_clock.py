"""The demo's fast clock keeps the contract of every clock.

These read the real clock, since what it is made of is real time; they compare readings
and never depend on how quick the machine is.
"""

from wheeldb.cli.demo_clock import FastClock
from wheeldb.clock.system import SystemClock

RATE = 100_000
WALL_MS = 1_800_000_000_000


def fast_clock() -> FastClock:
    origin_ns = SystemClock().process_ns()
    return FastClock(origin_ns=origin_ns, wall_ms=WALL_MS, rate=RATE)


def test_wall_and_boottime_run_together_and_forward() -> None:
    clock = fast_clock()
    readings = [clock.read() for _ in range(1_000)]

    assert readings == sorted(readings)
    assert readings[0].wall_ms >= WALL_MS
    gaps = {reading.wall_ms - reading.boottime_ms for reading in readings}
    assert gaps == {WALL_MS - FastClock.BOOTTIME_MS}


def test_two_clocks_of_one_origin_agree() -> None:
    origin_ns = SystemClock().process_ns()
    first = FastClock(origin_ns=origin_ns, wall_ms=WALL_MS, rate=RATE)
    second = FastClock(origin_ns=origin_ns, wall_ms=WALL_MS, rate=RATE)

    assert first.boot_id == second.boot_id
    before, between, after = first.read(), second.read(), first.read()
    assert before.wall_ms <= between.wall_ms <= after.wall_ms


def test_wait_is_never_early() -> None:
    clock = fast_clock()
    waiter = clock.waiter()
    try:
        for ahead_ms in (1, RATE - 1, 3 * RATE):
            target_ms = clock.read().boottime_ms + ahead_ms
            waiter.wait(target_ms, None)
            assert clock.read().boottime_ms >= target_ms
            target_ms = clock.read().wall_ms + ahead_ms
            waiter.wait(None, target_ms)
            assert clock.read().wall_ms >= target_ms
    finally:
        waiter.close()


def test_wake_ends_a_wait_without_an_end() -> None:
    waiter = fast_clock().waiter()
    try:
        waiter.wake()
        waiter.wait(None, None)
        waiter.wake()
        waiter.wait(2**60, 2**60)
    finally:
        waiter.close()
    assert waiter.wakeups == 2
