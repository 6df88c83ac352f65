"""The clock for tests moves as its table says, and its waiters wait for it."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.clock import Clock, Reading, Waiter
from wheeldb.errors import ClosedError
from wheeldb.testing import ManualClock

WALL_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_it_is_a_clock_that_starts_where_told() -> None:
    clock: Clock = ManualClock()
    later: Clock = ManualClock(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), elapsed=2.5)

    assert clock.read() == Reading(WALL_MS, 0)
    assert later.read() == Reading(WALL_MS + 1000, 2500)
    assert clock.build_ms == 946_684_800_000
    assert clock.time_namespace == later.time_namespace
    assert clock.boot_id == later.boot_id


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()

    assert {clock.read() for _ in range(1000)} == {Reading(WALL_MS, 0)}


def test_what_each_call_moves() -> None:
    clock = ManualClock()
    boot_id = clock.boot_id

    clock.advance(60)
    assert clock.read() == Reading(WALL_MS + 60_000, 60_000)
    assert clock.process_ns() == 60_000_000_000

    clock.suspend(3600)
    assert clock.read() == Reading(WALL_MS + 3_660_000, 3_660_000)
    assert clock.process_ns() == 60_000_000_000

    clock.step_wall(-600.5)
    assert clock.read() == Reading(WALL_MS + 3_059_500, 3_660_000)

    clock.set_wall(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert clock.read() == Reading(WALL_MS, 3_660_000)
    assert clock.boot_id == boot_id


def test_a_reboot_starts_boottime_anew() -> None:
    clock = ManualClock(elapsed=100)
    boot_ids = [clock.boot_id]

    clock.reboot(off=30)
    boot_ids.append(clock.boot_id)
    assert clock.read() == Reading(WALL_MS + 30_000, 0)

    clock.reboot(off=30, wall=datetime(1970, 1, 1, tzinfo=UTC))
    boot_ids.append(clock.boot_id)
    assert clock.read() == Reading(0, 0)

    assert len(set(boot_ids)) == 3


def test_fractions_are_kept_and_rounded_down_in_readings() -> None:
    clock = ManualClock(datetime(2026, 1, 1, microsecond=1, tzinfo=UTC))
    assert clock.read() == Reading(WALL_MS, 0, 1)

    clock.advance(0.000_999)
    assert clock.read() == Reading(WALL_MS + 1, 0, 1)

    clock.advance(0.000_001)
    assert clock.read() == Reading(WALL_MS + 1, 1, 1)


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_many_small_moves_are_one_large(moves_ms: list[int]) -> None:
    clock = ManualClock()
    for move_ms in moves_ms:
        clock.advance(move_ms / 1000)

    total_ms = sum(moves_ms)

    assert clock.read() == Reading(WALL_MS + total_ms, total_ms)


def test_synchronised_is_remembered() -> None:
    clock = ManualClock()
    assert not clock.is_synchronised

    clock.set_synchronised(True)

    assert clock.is_synchronised


def test_impossible_moves_are_refused_and_move_nothing() -> None:
    clock = ManualClock()
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    ancient = datetime(1969, 12, 31, tzinfo=UTC)

    with pytest.raises(ValueError, match="step_wall"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="step_wall"):
        clock.suspend(-1)
    with pytest.raises(ValueError, match="step_wall"):
        clock.reboot(off=-1)
    with pytest.raises(ValueError, match="no zone"):
        clock.set_wall(naive)
    with pytest.raises(ValueError, match="no zone"):
        clock.reboot(wall=naive)
    with pytest.raises(ValueError, match="no zone"):
        ManualClock(naive)
    with pytest.raises(ValueError, match="before 1970"):
        clock.set_wall(ancient)
    with pytest.raises(ValueError, match="before 1970"):
        clock.step_wall(-100 * 366 * 86_400)
    with pytest.raises(ValueError, match="step_wall"):
        ManualClock(elapsed=-1)

    assert clock.read() == Reading(WALL_MS, 0)
    assert clock.boot_id == ManualClock().boot_id


@pytest.mark.parametrize(
    "wait",
    [
        lambda waiter: waiter.wait(0, None),
        lambda waiter: waiter.wait(None, WALL_MS),
        lambda waiter: waiter.wait(None, None, 0),
        lambda waiter: waiter.wait(0, WALL_MS + 1, 10),
    ],
    ids=["boottime", "wall", "timeout", "one of three"],
)
def test_an_instant_that_is_over_returns_at_once(
    wait: Callable[[Waiter], None],
) -> None:
    waiter = ManualClock().waiter()

    wait(waiter)
    wait(waiter)

    assert waiter.wakeups == 2


@pytest.mark.parametrize(
    ("boottime_ms", "wall_ms", "timeout_ms", "after_ms"),
    [
        (1000, None, None, 1000),
        (None, WALL_MS + 1000, None, 1000),
        (None, None, 1000, 1000),
        (1000, WALL_MS + 500, 2000, 500),
        (1000, WALL_MS + 2000, 700, 700),
        (300, WALL_MS + 2000, 700, 300),
    ],
)
def test_a_wait_lasts_until_the_first_instant(
    boottime_ms: int | None,
    wall_ms: int | None,
    timeout_ms: int | None,
    after_ms: int,
) -> None:
    clock = ManualClock()
    waiter = clock.waiter()
    ended_at: list[Reading] = []

    def wait() -> None:
        waiter.wait(boottime_ms, wall_ms, timeout_ms)
        ended_at.append(clock.read())

    # The timeout counts from when the wait begins, so it must have begun.
    thread = start_waiting(clock, wait)
    clock.advance((after_ms - 1) / 1000)
    until_waiting(clock, thread)
    clock.advance(0.001)
    thread.join(30)

    assert ended_at == [Reading(WALL_MS + after_ms, after_ms)]
    assert waiter.wakeups == 1


def start_waiting(clock: ManualClock, wait: Callable[[], None]) -> threading.Thread:
    """Start a thread and return when it waits for the clock."""
    thread = in_thread(wait)
    until_waiting(clock, thread)
    return thread


def until_waiting(clock: ManualClock, thread: threading.Thread) -> None:
    """Return when the thread waits and has seen every move of the clock so far.

    A move takes the thread off the condition's list; it comes back by itself if its
    time has not come.
    """
    while not clock._moved._waiters:  # type: ignore[attr-defined]
        thread.join(0.001)
        assert thread.is_alive(), "the wait was over too early"


@pytest.mark.parametrize(
    "move",
    [
        lambda clock: clock.step_wall(1),
        lambda clock: clock.step_wall(-1),
        lambda clock: clock.set_wall(datetime(2027, 1, 1, tzinfo=UTC)),
        lambda clock: clock.reboot(),
    ],
    ids=["forward", "back", "set", "reboot"],
)
def test_a_step_ends_the_wait_or_the_next_one(
    move: Callable[[ManualClock], None],
) -> None:
    clock = ManualClock()
    waiter = clock.waiter()
    thread = start_waiting(clock, lambda: waiter.wait(None, None))

    move(clock)
    thread.join(30)
    assert not thread.is_alive()

    move(clock)
    waiter.wait(None, None)

    assert waiter.wakeups == 2


def test_a_step_ends_one_wait_only() -> None:
    clock = ManualClock()
    waiter = clock.waiter()
    clock.step_wall(1)
    waiter.wait(None, None)

    thread = start_waiting(clock, lambda: waiter.wait(5000, None))
    clock.suspend(5)
    thread.join(30)

    assert waiter.wakeups == 2


def test_wakes_are_kept_and_count_as_one() -> None:
    clock = ManualClock()
    waiter = clock.waiter()
    waiter.wake()
    waiter.wake()

    waiter.wait(None, None)
    thread = start_waiting(clock, lambda: waiter.wait(None, None))
    waiter.wake()
    thread.join(30)

    assert waiter.wakeups == 2


def test_one_waiter_does_not_wake_another() -> None:
    clock = ManualClock()
    one, other = clock.waiter(), clock.waiter()
    thread = start_waiting(clock, lambda: one.wait(1000, None))

    other.wake()
    other.wait(None, None)
    clock.advance(1)
    thread.join(30)

    assert (one.wakeups, other.wakeups) == (1, 1)


def test_closing_ends_the_wait_and_forbids_the_next() -> None:
    clock = ManualClock()
    waiter = clock.waiter()
    thread = start_waiting(clock, lambda: waiter.wait(None, None))

    waiter.close()
    thread.join(30)
    waiter.close()
    waiter.wake()

    assert not thread.is_alive()
    with pytest.raises(ClosedError, match="take a new one"):
        waiter.wait(0, 0)


def test_moves_of_several_threads_are_all_counted() -> None:
    clock = ManualClock()

    def move() -> None:
        for _ in range(200):
            clock.advance(0.001)

    threads = [in_thread(move) for _ in range(4)]
    for thread in threads:
        thread.join(30)

    assert clock.read() == Reading(WALL_MS + 800, 800)
