"""The timing wheel against a sorted list, and the ways in which other wheels failed.

Goal: whatever the steps of time, each entry comes out once, in order, at the first
advance at or after its due instant. Method: a state machine compares every answer with
that of a set of ints; the tests after it drive the wheel into the corners where public
bug reports found timers lost, early or a rotation late.
"""

import math
import random
import tracemalloc
from bisect import insort
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from wheeldb.wheel import DUE_LIMIT_MS, DUE_SHIFT, Wheel

# Not the start of any slot, and late enough that every level has a digit.
NOW_MS = 1_793_456_789_123

DAY_MS = 86_400_000

LEVEL_SPANS_MS = [256**level for level in range(1, 6)]
BOUNDARY_DELAYS_MS = sorted(
    {0, 1, 2}
    | {span + offset for span in LEVEL_SPANS_MS for offset in (-1, 0, 1)}
    | {2**bits + offset for bits in (31, 32, 36) for offset in (-1, 0, 1)}
    | {2**47}
)


def entry_of(due_ms: int, number: int = 0, lane: int = 0) -> int:
    return due_ms << DUE_SHIFT | lane << 53 | number


def due_of(entry: int) -> int:
    return entry >> DUE_SHIFT


def drain(wheel: Wheel, now_ms: int) -> list[int]:
    """Advance until nothing more is due, and return what came out."""
    expired: list[int] = []
    while batch := wheel.advance(now_ms):
        expired += batch
    return expired


def fire_instants(wheel: Wheel, nows: Iterator[int]) -> dict[int, int]:
    """Return at which `now` each entry came out; each must come out once."""
    fired: dict[int, int] = {}
    for now_ms in nows:
        for entry in drain(wheel, now_ms):
            assert entry not in fired
            fired[entry] = now_ms
        if not wheel:
            break
    assert len(wheel) == 0
    assert wheel.check() == []
    return fired


delays = st.one_of(
    st.integers(-300, 600),
    st.sampled_from(BOUNDARY_DELAYS_MS),
    st.integers(0, 45).flatmap(lambda bits: st.integers(0, 2**bits)),
)
steps = st.one_of(
    st.just(0),
    st.integers(0, 600),
    st.sampled_from(LEVEL_SPANS_MS[:4]),
    st.integers(0, 40).flatmap(lambda bits: st.integers(0, 2**bits)),
)


class WheelAgainstSortedList(RuleBasedStateMachine):
    """The model is a sorted list of the entries that should be in the wheel."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW_MS
        self.wheel = Wheel(NOW_MS)
        self.model: list[int] = []
        self.gone: list[int] = []
        self.number = 0

    def new_entry(self, delay_ms: int, lane: int = 0) -> int:
        self.number += 1
        due_ms = min(max(self.now_ms + delay_ms, 0), DUE_LIMIT_MS - 1)
        return entry_of(due_ms, self.number, lane)

    @rule(delay_ms=delays, lane=st.integers(0, 65_535))
    def insert(self, delay_ms: int, lane: int) -> None:
        entry = self.new_entry(delay_ms, lane)
        assert self.wheel.insert(entry)
        assert not self.wheel.insert(entry)
        insort(self.model, entry)

    @rule(delay_ms=delays, spread_ms=st.integers(0, 400), count=st.integers(0, 150))
    def insert_many(self, delay_ms: int, spread_ms: int, count: int) -> None:
        entries = [
            self.new_entry(delay_ms + place * spread_ms // max(count, 1))
            for place in range(count)
        ]
        assert self.wheel.insert_many(iter(entries)) == count
        assert self.wheel.insert_many(entries) == 0
        self.model = sorted(self.model + entries)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.model:
            place = data.draw(st.integers(0, len(self.model) - 1))
            entry = self.model.pop(place)
            assert self.wheel.cancel(entry)
            assert not self.wheel.cancel(entry)
            self.gone.append(entry)

    @rule(count=st.integers(1, 80))
    def cancel_earliest(self, count: int) -> None:
        for entry in self.model[:count]:
            assert self.wheel.cancel(entry)
        self.gone += self.model[:count]
        del self.model[:count]

    @rule(data=st.data())
    def insert_again(self, data: st.DataObject) -> None:
        if self.gone:
            entry = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
            assert entry not in self.wheel
            assert self.wheel.insert(entry)
            insort(self.model, entry)

    @rule(step_ms=steps, limit=st.sampled_from([0, 1, 7, 64, 5_000]))
    def advance(self, step_ms: int, limit: int) -> None:
        self.now_ms = min(self.now_ms + step_ms, DUE_LIMIT_MS - 1)
        due = [entry for entry in self.model if due_of(entry) <= self.now_ms][:limit]
        assert self.wheel.advance(self.now_ms, limit) == due
        del self.model[: len(due)]
        self.gone += due

    @rule(limit=st.sampled_from([1, 64]))
    def advance_to_next(self, limit: int) -> None:
        expiration = self.wheel.next_expiration()
        if expiration is not None:
            self.advance(max(expiration - self.now_ms - 1, 0), limit)
            self.advance(max(expiration - self.now_ms, 0), limit)

    @rule(keep=st.integers(0, 300))
    def trim(self, keep: int) -> None:
        removed = self.wheel.trim(keep)
        assert sorted(removed) == self.model[keep:]
        self.gone += removed
        del self.model[keep:]

    @rule(back_ms=st.integers(0, 2**20))
    def clear_and_go_back(self, back_ms: int) -> None:
        self.now_ms -= back_ms
        self.wheel.clear(self.now_ms)
        assert len(self.wheel) == 0
        self.wheel.insert_many(self.model)

    @invariant()
    def is_sound(self) -> None:
        assert self.wheel.check() == []

    @invariant()
    def agrees(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert sorted(self.wheel.entries()) == self.model
        assert self.wheel.now_ms == self.now_ms
        earliest = due_of(self.model[0]) if self.model else None
        assert self.wheel.next_expiration() == earliest
        is_due = earliest is not None and earliest <= self.now_ms
        assert self.wheel.is_due(self.now_ms) == is_due
        assert all(entry in self.wheel for entry in self.model[:20])
        assert not any(entry in self.wheel for entry in self.gone[-20:])


def test_wheel_against_sorted_list() -> None:
    run_state_machine_as_test(
        WheelAgainstSortedList,
        settings=settings(max_examples=60, stateful_step_count=30),
    )


@pytest.mark.slow
def test_wheel_against_sorted_list_at_length() -> None:
    run_state_machine_as_test(
        WheelAgainstSortedList,
        settings=settings(max_examples=1_000, stateful_step_count=60),
    )


@pytest.mark.parametrize("delay_ms", BOUNDARY_DELAYS_MS)
@pytest.mark.parametrize("now_ms", [0, 255, 65_535, 2**40 - 1, 2**40, NOW_MS])
def test_boundary_delay_fires_at_its_instant(now_ms: int, delay_ms: int) -> None:
    # Wheels have lost or misplaced timers at the edges of their levels:
    # tokio-rs/tokio#5183, tokio-rs/tokio#6634, tokio-rs/tokio#2408,
    # tokio-rs/tokio#4494, netty/netty#7760.
    wheel = Wheel(now_ms)
    entry = entry_of(now_ms + delay_ms, 7)
    assert wheel.insert(entry)
    assert wheel.next_expiration() == now_ms + delay_ms
    if delay_ms:
        assert wheel.advance(now_ms + delay_ms - 1) == []
        assert entry in wheel
        assert wheel.next_expiration() == now_ms + delay_ms
    assert wheel.advance(now_ms + delay_ms) == [entry]
    assert wheel.check() == []


def test_last_instant_and_beyond() -> None:
    wheel = Wheel(NOW_MS)
    last = entry_of(DUE_LIMIT_MS - 1)
    assert wheel.insert(last)
    with pytest.raises(AssertionError, match="outside the wheel"):
        wheel.insert(entry_of(DUE_LIMIT_MS))
    with pytest.raises(AssertionError, match="outside the wheel"):
        wheel.advance(DUE_LIMIT_MS)
    with pytest.raises(AssertionError, match="outside the wheel"):
        Wheel(-1)
    assert wheel.advance(DUE_LIMIT_MS - 2) == []
    assert wheel.advance(DUE_LIMIT_MS - 1) == [last]


def test_wheel_older_than_the_span_of_its_levels() -> None:
    # A wheel that measures its range from its own creation refuses every timer once
    # it is old: tokio-rs/tokio#5536.
    wheel = Wheel(NOW_MS)
    for age_ms in (30 * DAY_MS, 796 * DAY_MS, 3_000 * DAY_MS, 40_000 * DAY_MS):
        now_ms = NOW_MS + age_ms
        assert wheel.advance(now_ms) == []
        entry = entry_of(now_ms + 10_000)
        wheel.insert(entry)
        assert wheel.advance(now_ms + 9_999) == []
        assert wheel.advance(now_ms + 10_000) == [entry]


@pytest.mark.parametrize("step_tenths", [1, 9, 10, 17, 370, 3 * 2_560, 3 * 655_360])
def test_poll_rhythm_differs_from_the_tick(step_tenths: int) -> None:
    # A wheel that moves one slot a poll instead of one a tick skips timers:
    # aeron-io/agrona#73. Now is rounded down to whole milliseconds, as callers do.
    wheel = Wheel(NOW_MS)
    rotations = max(5, 2 * step_tenths // 2_560)
    dues = range(NOW_MS, NOW_MS + rotations * 256, max(1, rotations * 256 // 1_280))
    wheel.insert_many(entry_of(due_ms, due_ms - NOW_MS) for due_ms in dues)

    def polls() -> Iterator[int]:
        tenths = 0
        while True:
            yield NOW_MS + tenths // 10
            tenths += step_tenths

    fired = fire_instants(wheel, polls())
    assert len(fired) == len(dues)
    for entry, now_ms in fired.items():
        late_polls = -(-(due_of(entry) - NOW_MS) * 10 // step_tenths)
        assert now_ms == NOW_MS + late_polls * step_tenths // 10


def test_poll_rhythm_at_random() -> None:
    dice = random.Random(5)
    wheel = Wheel(NOW_MS)
    wheel.insert_many(
        entry_of(NOW_MS + dice.randrange(5 * 256), number) for number in range(1_000)
    )
    nows = [NOW_MS]
    while nows[-1] < NOW_MS + 5 * 256:
        nows.append(nows[-1] + dice.choice([0, 1, 1, 2, 37, 300]))
    fired = fire_instants(wheel, iter(nows))
    assert len(fired) == 1_000
    for entry, now_ms in fired.items():
        assert now_ms == next(now for now in nows if now >= due_of(entry))


def test_stall_does_not_shift_later_timers() -> None:
    # A wheel that counts the ticks it was given stays late for good after a stall:
    # zeromicro/go-zero#3619.
    wheel = Wheel(NOW_MS)
    dues = range(NOW_MS + 50, NOW_MS + 60_001, 50)
    wheel.insert_many(entry_of(due_ms) for due_ms in dues)
    stalls = {NOW_MS + 10_000, NOW_MS + 25_010, NOW_MS + 41_230}

    def polls() -> Iterator[int]:
        now_ms = NOW_MS
        while True:
            now_ms += 300 if now_ms in stalls else 10
            yield now_ms

    fired = fire_instants(wheel, polls())
    assert len(fired) == len(dues)
    for entry, now_ms in fired.items():
        stalled = any(start < due_of(entry) < start + 300 for start in stalls)
        assert now_ms - due_of(entry) < (300 if stalled else 1)


@pytest.mark.parametrize("rotation_ms", [256, 65_536])
def test_no_extra_rotation(rotation_ms: int) -> None:
    # A timer that lands in the slot under the hand may wait a rotation too many:
    # zeromicro/go-zero#5510, Yiling-J/theine-go#64.
    for phase in range(256):
        now_ms = NOW_MS - NOW_MS % rotation_ms + phase * (rotation_ms // 256)
        wheel = Wheel(now_ms)
        wheel.insert_many(
            entry_of(now_ms + turns * rotation_ms + offset)
            for turns in range(1, 6)
            for offset in (-1, 0, 1)
        )
        count = len(wheel)
        while (due_ms := wheel.next_expiration()) is not None:
            assert wheel.advance(due_ms - 1) == []
            assert wheel.advance(due_ms) == [entry_of(due_ms)]
            count -= 1
        assert count == 0


def test_distant_timers_in_a_mixed_population() -> None:
    # A timer eight days away fired after one, among timers months and years away:
    # RussellLuo/timingwheel#19.
    dice = random.Random(19)
    now_ms, number = NOW_MS, 10_000
    wheel = Wheel(now_ms)

    def some_due() -> int:
        return now_ms + int(math.exp(dice.uniform(math.log(1e3), math.log(3.2e11))))

    model = sorted(entry_of(some_due(), count) for count in range(number))
    wheel.insert_many(model)
    while now_ms < NOW_MS + 400 * DAY_MS:
        number += 1
        entry = entry_of(some_due(), number)
        assert wheel.insert(entry)
        insort(model, entry)
        if number % 4 == 0:
            assert wheel.cancel(model.pop(dice.randrange(len(model))))
        now_ms += int(math.exp(dice.uniform(0, math.log(5 * DAY_MS))))
        due_count = sum(1 for entry in model if due_of(entry) <= now_ms)
        assert drain(wheel, now_ms) == model[:due_count]
        del model[:due_count]
        assert len(wheel) == len(model)
    assert sorted(wheel.entries()) == model
    assert len(model) > 500
    assert wheel.check() == []


def test_moved_timer_can_still_be_cancelled() -> None:
    # The old, logically deleted timer took the new one's key with it:
    # zeromicro/go-zero#205.
    wheel = Wheel(NOW_MS)
    wheel.insert(entry_of(NOW_MS + 8, 1))
    assert wheel.advance(NOW_MS + 6) == []
    assert wheel.cancel(entry_of(NOW_MS + 8, 1))
    assert wheel.insert(entry_of(NOW_MS + 13, 1))
    assert wheel.advance(NOW_MS + 9) == []
    assert wheel.cancel(entry_of(NOW_MS + 13, 1))
    assert wheel.advance(NOW_MS + 39) == []
    assert len(wheel) == 0


def test_timer_moved_later_earlier_and_over_levels() -> None:
    # Moved to a later time a timer fired at the old one, moved to an earlier one it
    # left an orphan: twisted/twisted#1232.
    dice = random.Random(1232)
    wheel = Wheel(NOW_MS)
    delays_ms = [60_000, 120_000, 5_000, 60_000, 3 * DAY_MS]
    delays_ms += [dice.randrange(1, 1 << dice.randrange(1, 40)) for _ in range(2_000)]
    delays_ms.append(1_000)
    wheel.insert(entry_of(NOW_MS + delays_ms[0]))
    for old_ms, new_ms in pairwise(delays_ms):
        assert wheel.cancel(entry_of(NOW_MS + old_ms))
        assert wheel.insert(entry_of(NOW_MS + new_ms))
        assert len(wheel) == 1
        assert wheel.next_expiration() == NOW_MS + new_ms
    assert wheel.advance(NOW_MS + 999) == []
    assert drain(wheel, NOW_MS + 4 * DAY_MS) == [entry_of(NOW_MS + 1_000)]


@pytest.mark.parametrize("count", [65, 3_000, 20_000])
def test_many_at_one_instant_come_out_in_order(count: int) -> None:
    wheel = Wheel(NOW_MS)
    numbers = random.Random(3).sample(range(count), count)
    wheel.insert_many(
        entry_of(NOW_MS + 70_000, number, number % 3) for number in numbers
    )
    expired = wheel.advance(NOW_MS + 70_000)
    assert len(expired) == 64
    # While the rest waits it can be cancelled, and what is new finds its place.
    late = entry_of(NOW_MS + 70_000, count, 2)
    past = entry_of(NOW_MS + 5, count)
    assert wheel.insert(late)
    assert wheel.insert(past)
    cancelled = next(wheel.entries())
    assert wheel.cancel(cancelled)
    expired += drain(wheel, NOW_MS + 70_000)
    assert len(expired) == count + 1
    assert expired[64:65] == [past] or cancelled == past
    assert expired[:64] + expired[65:] == sorted(expired[:64] + expired[65:])


def test_cancelling_what_is_due_counts_once() -> None:
    # Cancelling a timer that was in the slot at work counted twice:
    # netty/netty#14959.
    wheel = Wheel(NOW_MS)
    entries = [entry_of(NOW_MS + 5, number) for number in range(11)]
    wheel.insert_many(entries)
    assert wheel.advance(NOW_MS + 5, limit=1) == entries[:1]
    assert [wheel.cancel(entry) for entry in entries] == [False] + [True] * 10
    assert len(wheel) == 0
    assert wheel.advance(NOW_MS + 5) == []
    assert wheel.check() == []


def test_leftovers_stay_in_order_beside_new_entries() -> None:
    # Leftovers lie in a coarse slot that is due as a whole, the hand in front of it.
    wheel = Wheel(NOW_MS)
    model = [entry_of(NOW_MS + 70_000 + number, number) for number in range(200)]
    wheel.insert_many(model)
    now_ms = NOW_MS + 10 * DAY_MS
    assert wheel.advance(now_ms, limit=10) == model[:10]
    del model[:10]
    for due_ms in (NOW_MS - 5, NOW_MS + 70_050, NOW_MS + DAY_MS, now_ms, now_ms + 1):
        entry = entry_of(due_ms, 1_000)
        assert wheel.insert(entry)
        insort(model, entry)
    assert wheel.check() == []
    assert wheel.next_expiration() == NOW_MS - 5
    assert drain(wheel, now_ms) == model[:-1]
    assert list(wheel.entries()) == model[-1:]


def test_entries_are_placed_as_seen_from_now() -> None:
    # Seen from where the wheel began, or from what came out last, both would lie at a
    # coarse level.
    wheel = Wheel(NOW_MS)
    wheel.insert(entry_of(NOW_MS + DAY_MS))
    assert len(wheel.advance(NOW_MS + 30 * DAY_MS)) == 1
    wheel.insert(entry_of(NOW_MS + 30 * DAY_MS))
    wheel.insert(entry_of((NOW_MS + 30 * DAY_MS) | 255))
    assert wheel.statistics().level_counts[0] == 2


def test_time_does_not_go_back() -> None:
    wheel = Wheel(NOW_MS)
    wheel.advance(NOW_MS + 5)
    with pytest.raises(AssertionError, match=f"{NOW_MS + 4} is before {NOW_MS + 5}"):
        wheel.advance(NOW_MS + 4)


def test_a_step_of_a_century_visits_no_empty_slot() -> None:
    wheel = Wheel(NOW_MS)
    visits = 0

    class CountingWheel(Wheel):
        __slots__ = ()

        def _earliest(self) -> tuple[int, int]:
            nonlocal visits
            visits += 1
            return super()._earliest()

    wheel = CountingWheel(NOW_MS)
    entry = entry_of(NOW_MS + 36_500 * DAY_MS)
    wheel.insert(entry)
    assert wheel.advance(NOW_MS + 36_500 * DAY_MS) == [entry]
    assert wheel.advance(NOW_MS + 73_000 * DAY_MS) == []
    assert visits <= 7


def test_next_expiration_stays_cheap_while_the_earliest_is_cancelled() -> None:
    # The pattern of request time-outs: always the earliest goes. Looking at the whole
    # slot each time would look at 200 million entries here.
    wheel = Wheel(NOW_MS)
    entries = [entry_of(NOW_MS + 70_000 + number, number) for number in range(20_000)]
    wheel.insert_many(entries)
    for entry, following in pairwise(entries):
        assert wheel.cancel(entry)
        assert wheel.next_expiration() == due_of(following)
    assert wheel.check() == []


def test_count_stays_true_when_the_iterable_raises() -> None:
    wheel = Wheel(NOW_MS)

    def broken() -> Iterator[int]:
        yield entry_of(NOW_MS + 1)
        yield entry_of(NOW_MS + 2)
        raise LookupError

    with pytest.raises(LookupError):
        wheel.insert_many(broken())
    assert len(wheel) == 2
    assert wheel.check() == []


@pytest.mark.parametrize("count", [2_800, 10_950, 21_900])
@pytest.mark.parametrize("span_ms", [1, 60_000, 400 * DAY_MS])
def test_an_entry_takes_at_most_100_bytes(count: int, span_ms: int) -> None:
    # The counts come just after a dict has grown, if one slot gets them all.
    dice = random.Random(4)
    delays_ms = [dice.randrange(span_ms) for _ in range(count)]
    tracemalloc.start()
    try:
        wheel = Wheel(NOW_MS)
        size_empty, _ = tracemalloc.get_traced_memory()
        for number, delay_ms in enumerate(delays_ms):
            wheel.insert(entry_of(NOW_MS + 70_000 + delay_ms, number))
        size, _ = tracemalloc.get_traced_memory()
        assert (size - size_empty) / count <= 100
        for number, delay_ms in enumerate(delays_ms):
            wheel.next_expiration()
            wheel.cancel(entry_of(NOW_MS + 70_000 + delay_ms, number))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(wheel) == 0
    # What is left is the table of slots, 12 KB, and spare dicts of the interpreter.
    assert size < 50_000


def test_heap_of_a_slot_does_not_keep_what_was_cancelled() -> None:
    wheel = Wheel(NOW_MS)
    stay = [entry_of(NOW_MS + 70_000, number) for number in range(100)]
    wheel.insert_many(stay)
    assert wheel.next_expiration() == NOW_MS + 70_000
    assert wheel.statistics().heap_count == 1
    for number in range(100, 5_000):
        entry = entry_of(NOW_MS + 70_000, number)
        wheel.insert(entry)
        wheel.cancel(entry)
        if number % 50 == 0:
            wheel.next_expiration()
            assert wheel.check() == []
    wheel.insert_many(entry_of(NOW_MS + 70_000, number) for number in range(5_000))
    wheel.next_expiration()
    wheel.trim(100)
    assert wheel.check() == []
    assert drain(wheel, NOW_MS + 70_000) == stay


def test_statistics() -> None:
    wheel = Wheel(0)
    wheel.insert_many(entry_of(256**level) for level in range(6))
    wheel.insert(entry_of(3 * 256**2))
    statistics = wheel.statistics()
    assert statistics.entry_count == len(wheel) == 7
    assert statistics.level_counts == (1, 1, 2, 1, 1, 1)
    assert statistics.slot_count == 7
    assert statistics.heap_count == 0


@pytest.mark.parametrize(
    ("field", "value", "finding"),
    [
        ("size", 3, "size is 3"),
        ("_occupied", 0, "bit and its content"),
        ("_occupied", 1 << 1_600, "beyond the last slot"),
        ("_hand", NOW_MS + 1, "disagree"),
        ("_hand", NOW_MS - 1_000, "belongs to"),
        ("_heaps", {9: []}, "its slot is empty"),
    ],
)
def test_check_finds_damage(field: str, value: object, finding: str) -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(entry_of(NOW_MS + 1))
    assert wheel.check() == []
    setattr(wheel, field, value)
    assert any(finding in found for found in wheel.check())


def test_check_finds_a_damaged_heap() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many(entry_of(NOW_MS + 70_000, number) for number in range(100))
    wheel.next_expiration()
    (heap,) = wheel._heaps.values()
    heap.reverse()
    assert any("out of order" in finding for finding in wheel.check())
    heap.clear()
    assert any("lacks an entry" in finding for finding in wheel.check())
    heap += range(3_000)
    assert any("3000 for 100" in finding for finding in wheel.check())


@pytest.mark.parametrize(
    "empty",
    [lambda wheel: wheel.trim(0), lambda wheel: wheel.clear()],
    ids=["trimmed", "cleared"],
)
def test_what_was_first_is_forgotten_with_the_rest(
    empty: Callable[[Wheel], object],
) -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(entry_of(NOW_MS + 5))
    assert wheel.next_expiration() == NOW_MS + 5
    empty(wheel)
    assert wheel.next_expiration() is None
    assert not wheel.is_due(NOW_MS + 5)
    wheel.insert(entry_of(NOW_MS + 9))
    assert wheel.next_expiration() == NOW_MS + 9
    assert wheel.check() == []
