"""The hybrid clock keeps the laws of its paper, checked against the paper's own text.

`paper_local` and `paper_receive` are Figure 5 of Kulkarni et al. 2014 on pairs, as it
stands there; the clock does the same by arithmetic on one integer. Milliseconds and
counters are drawn from few values, so that ties, which are the hard cases, are common.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.clock.hlc import STAMP_MAX, HybridClock, logical, pack, physical_ms
from wheeldb.errors import ClockDriftExceeded

COUNTER_MAX = 65_535
NO_LIMIT = 1 << 48

walls = st.integers(0, 6)
stamps = st.builds(pack, st.integers(0, 6), st.integers(0, 3))
steps = st.lists(st.tuples(walls, st.none() | stamps), max_size=60)


def paper_local(last: tuple[int, int], wall: int) -> tuple[int, int]:
    physical = max(last[0], wall)
    return physical, last[1] + 1 if physical == last[0] else 0


def paper_receive(
    last: tuple[int, int], remote: tuple[int, int], wall: int
) -> tuple[int, int]:
    physical = max(last[0], remote[0], wall)
    if physical == last[0] == remote[0]:
        return physical, max(last[1], remote[1]) + 1
    if physical == last[0]:
        return physical, last[1] + 1
    if physical == remote[0]:
        return physical, remote[1] + 1
    return physical, 0


@given(steps)
def test_follows_the_paper(steps: list[tuple[int, int | None]]) -> None:
    clock = HybridClock()
    expected = (0, 0)
    for wall, remote in steps:
        if remote is None:
            stamp = clock.now(wall)
            expected = paper_local(expected, wall)
        else:
            stamp = clock.merge(remote, wall, drift_ms_max=NO_LIMIT)
            pair = (physical_ms(remote), logical(remote))
            expected = paper_receive(expected, pair, wall)

        assert expected == (physical_ms(stamp), logical(stamp))
        assert stamp == clock.last


@given(steps)
def test_rises_above_everything_seen_and_the_wall(
    steps: list[tuple[int, int | None]],
) -> None:
    clock = HybridClock()
    seen = 0
    for wall, remote in steps:
        if remote is None:
            stamp = clock.now(wall)
        else:
            stamp = clock.merge(remote, wall, drift_ms_max=NO_LIMIT)
            seen = max(seen, remote)

        assert stamp > seen
        assert physical_ms(stamp) >= wall
        seen = stamp


@given(st.integers(0, 6), st.integers(0, STAMP_MAX), st.integers(0, 6))
def test_a_stamp_too_far_ahead_moves_nothing(
    wall: int, remote: int, drift_ms_max: int
) -> None:
    clock = HybridClock(pack(3, 3))
    is_too_far = physical_ms(remote) - wall > drift_ms_max
    if not is_too_far:
        assert clock.merge(remote, wall, drift_ms_max=drift_ms_max) > remote
        return

    with pytest.raises(ClockDriftExceeded, match="nothing was merged"):
        clock.merge(remote, wall, drift_ms_max=drift_ms_max)

    assert pack(3, 3) == clock.last


def test_the_bound_itself_is_still_allowed() -> None:
    clock = HybridClock()

    assert pack(60_005, 1) == clock.merge(pack(60_005), 5, drift_ms_max=60_000)
    with pytest.raises(ClockDriftExceeded, match="60001 ms ahead"):
        clock.merge(pack(60_006), 5, drift_ms_max=60_000)


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    clock = HybridClock(pack(1000, COUNTER_MAX))

    assert pack(1001, 0) == clock.now(1000)
    assert pack(1001, 1) == clock.now(1001)
    assert pack(1002, 0) == clock.now(1002)


def test_a_full_counter_of_another_node_borrows_too() -> None:
    clock = HybridClock()

    remote = pack(1000, COUNTER_MAX)

    assert pack(1001, 0) == clock.merge(remote, 1000, drift_ms_max=0)


def test_a_frozen_wall_clock_never_repeats_a_stamp() -> None:
    clock = HybridClock()

    stamps = [clock.now(1000) for _ in range(100_000)]

    assert stamps == sorted(set(stamps))
    assert pack(1001, 100_000 - 1 - 65_536) == stamps[-1]


@given(st.lists(st.tuples(walls, st.integers(1, 5)), max_size=30))
def test_many_at_once_are_the_same_as_one_by_one(
    takes: list[tuple[int, int]],
) -> None:
    at_once, one_by_one = HybridClock(), HybridClock()
    for wall, count in takes:
        first = at_once.now(wall, count)

        expected = [one_by_one.now(wall) for _ in range(count)]

        assert expected == list(range(first, first + count))
        assert one_by_one.last == at_once.last


def test_goes_on_above_what_was_restored_after_the_wall_went_back() -> None:
    clock = HybridClock()
    clock.restore(pack(5000, 9))

    assert pack(5000, 10) == clock.now(10)


def test_restoring_an_older_stamp_does_not_go_back() -> None:
    clock = HybridClock(pack(5000))
    clock.restore(pack(4000))

    assert pack(5000) == clock.last


@given(st.integers(0, (1 << 48) - 1), st.integers(0, COUNTER_MAX))
def test_pack_is_taken_apart_again_and_keeps_the_order(ms: int, counter: int) -> None:
    stamp = pack(ms, counter)

    assert (ms, counter) == (physical_ms(stamp), logical(stamp))
    assert 0 <= stamp <= STAMP_MAX
    assert pack(ms) <= stamp < pack(ms) + COUNTER_MAX + 1


def test_an_answer_carries_the_order_to_a_node_that_is_behind() -> None:
    """A write caused by another's is above it, though this wall clock is slow."""
    ahead, behind = HybridClock(), HybridClock()
    sent = ahead.now(20_000)

    behind.merge(sent, 10_000, drift_ms_max=60_000)

    assert behind.now(10_001) > sent
