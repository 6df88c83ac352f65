"""The two timelines, over steps, suspends, reboots and clocks that can't be right.

The machine at the end knows the true time in microseconds and reads it as the real
clocks are read, rounded down. Whatever happens, the elapsed timeline neither goes back
nor gets ahead of the truth.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from wheeldb.clock import Reading
from wheeldb.clock.timekeeper import Anchor, Continuation, Now, Timekeeper
from wheeldb.errors import CorruptionError

BUILD_MS = 1_000_000_000_000
WALL_MS = BUILD_MS + 500_000_000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def repaid(keeper: Timekeeper, reading: Reading) -> Now:
    """Add the off-time that is owed, and return where the timelines stand."""
    owed_ms = keeper.owed_ms(reading)
    assert owed_ms is not None, "off-time is owed"
    keeper.repay(owed_ms)
    return keeper.now(reading)


def opened(
    reading: Reading,
    anchor: Anchor | None = None,
    boot_id: str = "boot 1",
    time_namespace: str = "namespace",
) -> Timekeeper:
    keeper = Timekeeper(BUILD_MS)
    keeper.open(reading, boot_id, time_namespace, anchor)
    return keeper


def anchor_after(elapsed_ms: int, boottime_ms: int = 7000) -> Anchor:
    """Return the anchor of a store that ran this long from WALL_MS on."""
    keeper = opened(Reading(WALL_MS, boottime_ms))
    return keeper.anchor(Reading(WALL_MS + elapsed_ms, boottime_ms + elapsed_ms))


def test_a_new_store_starts_at_zero_and_counts_boottime() -> None:
    keeper = Timekeeper(BUILD_MS)
    continuation = keeper.open(Reading(WALL_MS, 7000), "boot 1", "", None)

    assert Continuation("first", None) == continuation
    assert keeper.now(Reading(WALL_MS, 7000)).elapsed_ms == 0

    # Suspended time is part of boottime: eight hours pass at once.
    now = keeper.now(Reading(WALL_MS + 8 * HOUR_MS, 7000 + 8 * HOUR_MS))

    assert now.elapsed_ms == 8 * HOUR_MS
    assert now.wall_ms == WALL_MS + 8 * HOUR_MS
    assert now.trust == "assumed"
    assert now.shift_ms == 0


@pytest.mark.parametrize("step_ms", [-120_000, 120_000, -1000, YEAR_MS, 178 * YEAR_MS])
def test_a_step_moves_the_wall_timeline_alone(step_ms: int) -> None:
    """As in agronholm/apscheduler#351, where one step back silenced every interval."""
    keeper = opened(Reading(WALL_MS, 7000))
    keeper.now(Reading(WALL_MS + 30_000, 37_000))

    now = keeper.now(Reading(WALL_MS + 40_000 + step_ms, 47_000))

    assert now.elapsed_ms == 40_000
    assert WALL_MS + 40_000 + step_ms == now.wall_ms
    assert now.trust == "assumed"
    assert step_ms == now.shift_ms


def test_the_shift_is_counted_from_the_last_anchor() -> None:
    keeper = opened(Reading(WALL_MS, 0))
    stepped = Reading(WALL_MS + 100 + 60_000, 100)
    assert keeper.now(stepped).shift_ms == 60_000
    keeper.anchor(stepped)

    assert keeper.now(stepped).shift_ms == 0
    assert keeper.now(Reading(WALL_MS + 200 + 60_000, 200)).shift_ms == 0
    assert keeper.now(Reading(WALL_MS + 300, 300)).shift_ms == -60_000


def test_readings_out_of_order_do_not_turn_time_back() -> None:
    keeper = opened(Reading(WALL_MS, 0))
    later = keeper.now(Reading(WALL_MS + 10, 10))

    earlier = keeper.now(Reading(WALL_MS + 5, 5))

    assert (earlier.elapsed_ms, earlier.boottime_ms) == (10, 10)
    assert earlier.elapsed_ms == later.elapsed_ms


def test_an_anchor_of_a_late_reading_puts_no_delay_early() -> None:
    keeper = opened(Reading(WALL_MS, 0))
    keeper.now(Reading(WALL_MS + 10, 10))
    anchor = keeper.anchor(Reading(WALL_MS + 5, 5))

    reopened = opened(Reading(WALL_MS + 1000, 0), anchor, "boot 2")

    assert reopened.now(Reading(WALL_MS + 1000, 0)).elapsed_ms == 1000


def test_the_same_boot_goes_on_by_boottime_whatever_the_wall_shows() -> None:
    anchor = anchor_after(60_000)
    keeper = Timekeeper(BUILD_MS)

    reading = Reading(BUILD_MS - YEAR_MS, 7000 + 60_000 + 5000)
    continuation = keeper.open(reading, "boot 1", "namespace", anchor)

    assert Continuation("boottime", 5000) == continuation
    assert keeper.now(reading).elapsed_ms == 65_000


@pytest.mark.parametrize(
    ("boot_id", "time_namespace", "boottime_ms"),
    [
        ("boot 2", "namespace", 900_000),
        ("boot 1", "another namespace", 900_000),
        ("boot 1", "namespace", 66_999),
    ],
    ids=["reboot", "time namespace", "boottime behind: a machine restored"],
)
def test_another_boottime_goes_on_by_the_wall(
    boot_id: str, time_namespace: str, boottime_ms: int
) -> None:
    anchor = anchor_after(60_000)
    keeper = Timekeeper(BUILD_MS)

    reading = Reading(WALL_MS + 60_000 + HOUR_MS, boottime_ms)
    continuation = keeper.open(reading, boot_id, time_namespace, anchor)

    assert Continuation("wall", HOUR_MS) == continuation
    now = keeper.now(reading._replace(boottime_ms=boottime_ms + 10))
    assert now.elapsed_ms == 60_000 + HOUR_MS + 10


def test_a_reboot_without_a_clock_is_late_until_the_clock_is_set() -> None:
    anchor = anchor_after(60_000)
    keeper = Timekeeper(BUILD_MS)

    continuation = keeper.open(Reading(30_000, 5000), "boot 2", "namespace", anchor)

    assert Continuation("nothing", None) == continuation
    now = keeper.now(Reading(50_000, 25_000))
    assert now.trust == "untrusted"
    assert now.elapsed_ms == 80_000
    assert now.wall_ms == WALL_MS + 60_000

    # An hour without power, then 30 s until the time came from the network.
    wall_ms = WALL_MS + 60_000 + HOUR_MS + 30_000
    assert keeper.now(Reading(wall_ms, 35_000)).elapsed_ms == 90_000
    now = repaid(keeper, Reading(wall_ms, 35_000))

    assert now.trust == "assumed"
    assert now.elapsed_ms == 60_000 + HOUR_MS + 30_000
    assert wall_ms == now.wall_ms


def test_off_time_is_added_once() -> None:
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    wall_ms = WALL_MS + 60_000 + HOUR_MS
    repaid(keeper, Reading(wall_ms, 1000))

    keeper.now(Reading(30_000, 2000))
    assert keeper.owed_ms(Reading(wall_ms + HOUR_MS, 3000)) is None
    now = keeper.now(Reading(wall_ms + HOUR_MS, 3000))

    assert now.elapsed_ms == 60_000 + HOUR_MS + 2000


def test_off_time_of_several_boots_without_a_clock_is_added_in_one() -> None:
    anchor = anchor_after(60_000)
    for boot in ("boot 2", "boot 3"):
        keeper = opened(Reading(30_000, 0), anchor, boot)
        anchor = keeper.anchor(Reading(40_000, 10_000))
        assert anchor.trust == "untrusted"
        assert anchor.is_owed
    assert anchor.elapsed_ms == 80_000

    wall_ms = WALL_MS + 60_000 + HOUR_MS
    keeper = opened(Reading(wall_ms, 0), anchor, "boot 4")

    # Not by the opening: delays may have been given meanwhile.
    assert keeper.now(Reading(wall_ms, 0)).elapsed_ms == 80_000
    assert repaid(keeper, Reading(wall_ms, 0)).elapsed_ms == 60_000 + HOUR_MS


def test_off_time_is_still_owed_after_a_restart_of_the_process() -> None:
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    anchor = keeper.anchor(Reading(40_000, 10_000))
    keeper = opened(Reading(50_000, 20_000), anchor, "boot 2")
    assert keeper.now(Reading(50_000, 20_000)).elapsed_ms == 80_000

    now = repaid(keeper, Reading(WALL_MS + 60_000 + HOUR_MS, 21_000))

    assert now.elapsed_ms == 60_000 + HOUR_MS


def test_what_was_repaid_can_be_owed_again() -> None:
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    keeper.note_opening(77)
    reading = Reading(WALL_MS + 60_000 + HOUR_MS, 1000)
    assert (keeper.is_owed, keeper.owed_since) == (True, 77)
    before = keeper.now(reading)
    owed_ms = keeper.owed_ms(reading)
    assert owed_ms == HOUR_MS - 1000

    keeper.repay(owed_ms)
    assert keeper.now(reading).elapsed_ms == before.elapsed_ms + owed_ms
    assert not keeper.is_owed
    keeper.owe(owed_ms, 77)

    assert keeper.now(reading) == before
    assert keeper.owed_ms(reading) == owed_ms


def test_a_step_in_front_of_the_repayment_is_no_off_time() -> None:
    # The clock is put right, and set forward by a day before that was answered.
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    wall_ms = WALL_MS + 60_000 + HOUR_MS
    assert keeper.now(Reading(wall_ms, 1000)).trust == "assumed"
    later = Reading(wall_ms + 24 * HOUR_MS + 500, 1500)
    assert keeper.owed_ms(later) == HOUR_MS - 1000
    # A clock that tells less is taken at its word: late, not early.
    assert keeper.owed_ms(Reading(wall_ms - 60_000, 1500)) == HOUR_MS - 61_500
    assert repaid(keeper, later).elapsed_ms == HOUR_MS

    # What is owed after the next night is told anew.
    anchor = keeper.anchor(later)
    keeper = opened(Reading(30_000, 0), anchor, "boot 3")
    assert keeper.owed_ms(Reading(later.wall_ms + HOUR_MS, 1000)) == HOUR_MS - 1000


def test_since_when_off_time_is_owed_is_kept_over_openings() -> None:
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    keeper.note_opening(77)
    anchor = keeper.anchor(Reading(40_000, 10_000))
    assert Anchor.from_fields(anchor.to_fields()) == anchor

    keeper = opened(Reading(30_000, 0), anchor, "boot 3")
    keeper.note_opening(99)

    assert keeper.owed_since == 77


def test_a_store_that_never_saw_a_clock_counts_off_time_as_nothing() -> None:
    """As in agronholm/apscheduler#35: a board that boots in 1970, corrected later."""
    keeper = opened(Reading(30_000, 0))
    now = keeper.now(Reading(50_000, 20_000))
    assert (now.trust, now.elapsed_ms, now.wall_ms) == ("untrusted", 20_000, BUILD_MS)
    anchor = keeper.anchor(Reading(50_000, 20_000))
    assert anchor.high_water_ms == 0
    assert anchor.origin_ms is None

    keeper = opened(Reading(30_000, 0), anchor, "boot 2")
    now = keeper.now(Reading(WALL_MS, 1000))

    assert (now.trust, now.elapsed_ms) == ("assumed", 21_000)


def test_a_clock_behind_the_mark_holds_what_is_later_than_the_mark() -> None:
    mark_ms = WALL_MS + 60_000
    keeper = opened(Reading(mark_ms - 1_800_000, 0), anchor_after(60_000), "boot 2")

    now = keeper.now(Reading(mark_ms - 1_800_000, 0))
    assert ("untrusted", mark_ms) == (now.trust, now.wall_ms)
    assert "before 2001-09-14 " in now.reason
    assert "the highest time that it showed before" in now.reason
    assert "set the clock" in now.reason

    assert keeper.now(Reading(mark_ms - 1, 0)).trust == "untrusted"
    assert keeper.now(Reading(mark_ms, 0)).trust == "assumed"
    assert mark_ms == keeper.now(Reading(mark_ms, 0)).wall_ms


def test_the_reason_names_both_instants_before_the_release() -> None:
    keeper = opened(Reading(0, 0))

    assert keeper.now(Reading(30_000, 0)).reason == (
        "the wall clock shows 1970-01-01 00:00:30 UTC, which is before 2001-09-09 "
        "01:46:40 UTC, the date of this release; tasks due later wait until it has "
        "passed that: set the clock"
    )


def test_a_mark_beyond_the_calendar_is_still_told() -> None:
    """A mark can't be bounded: it comes from whatever the clock once showed."""
    anchor = replace(anchor_after(0), high_water_ms=10**18)
    keeper = opened(Reading(WALL_MS, 0), anchor)

    reason = keeper.now(Reading(WALL_MS, 0)).reason

    assert "1000000000000000000 ms after 1970" in reason


def test_the_mark_rises_with_believed_readings_only() -> None:
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")
    mark_ms = WALL_MS + 60_000
    assert mark_ms == keeper.anchor(Reading(BUILD_MS, 10)).high_water_ms

    keeper.now(Reading(mark_ms + HOUR_MS, 20))

    assert mark_ms + HOUR_MS == keeper.anchor(Reading(mark_ms, 30)).high_water_ms


def test_waits_for_the_mark_while_the_clock_is_not_believed() -> None:
    mark_ms = WALL_MS + 60_000
    keeper = opened(Reading(30_000, 0), anchor_after(60_000), "boot 2")

    assert mark_ms == keeper.wall_wait(None)
    assert mark_ms == keeper.wall_wait(mark_ms + 1)
    # What is overdue doesn't wait for a clock that may never be set.
    assert keeper.wall_wait(mark_ms) == 0

    keeper.now(Reading(mark_ms, 10))

    assert keeper.wall_wait(None) is None
    assert mark_ms + 1 == keeper.wall_wait(mark_ms + 1)


def test_an_elapsed_instant_comes_at_its_boottime() -> None:
    anchor = anchor_after(60_000)
    reading = Reading(WALL_MS + 60_000 + HOUR_MS, 500)
    keeper = opened(reading, anchor, "boot 2")
    due_ms = keeper.now(reading).elapsed_ms + 250

    boottime_ms = keeper.elapsed_to_boottime(due_ms)

    assert boottime_ms == 750
    assert due_ms == keeper.now(Reading(WALL_MS, boottime_ms)).elapsed_ms


def test_the_estimate_of_an_elapsed_due_time_follows_the_clock() -> None:
    keeper = opened(Reading(30_000, 0))
    assert keeper.estimate_wall_ms(60_000) is None

    keeper.now(Reading(WALL_MS, 10_000))
    assert keeper.estimate_wall_ms(60_000) == WALL_MS + 50_000

    keeper.now(Reading(WALL_MS + 1000 - HOUR_MS, 11_000))
    assert keeper.estimate_wall_ms(60_000) == WALL_MS + 50_000 - HOUR_MS

    keeper.now(Reading(30_000, 12_000))
    assert keeper.estimate_wall_ms(60_000) is None


def test_a_cut_fraction_is_taken_to_the_late_side() -> None:
    # The wall clock showed .9 ms beyond the anchor's reading; 1000.0 ms later it
    # shows .9 again, and the elapsed timeline must not have gone on by 1001.
    keeper = opened(Reading(WALL_MS, 0))
    anchor = keeper.anchor(Reading(WALL_MS, 0, 1))

    reading = Reading(WALL_MS + 1000, 0, 1)
    now = opened(reading, anchor, "boot 2").now(reading)

    assert now.elapsed_ms == 998


@pytest.mark.parametrize("origin_ms", [None, -5, WALL_MS])
def test_an_anchor_survives_its_fields(origin_ms: int | None) -> None:
    anchor = replace(
        anchor_after(60_000), origin_ms=origin_ms, is_owed=True, trust="untrusted"
    )

    fields = anchor.to_fields()

    assert anchor == Anchor.from_fields({**fields, "a later field": 1})
    assert all(type(value) in (int, str) for value in fields.values())


@pytest.mark.parametrize("name", sorted(anchor_after(60_000).to_fields()))
def test_a_damaged_anchor_is_refused_with_the_field(name: str) -> None:
    fields = anchor_after(60_000).to_fields()
    damaged: int | str = 7 if isinstance(fields[name], str) else "seven"

    with pytest.raises(CorruptionError, match=f"{name}="):
        Anchor.from_fields({**fields, name: damaged})

    # Only the origins may be missing.
    del fields[name]
    if name not in ("origin_ms", "latest_origin_ms"):
        with pytest.raises(CorruptionError, match=f"{name}=None"):
            Anchor.from_fields(fields)


def test_an_unknown_trust_is_refused() -> None:
    fields = anchor_after(60_000).to_fields()

    with pytest.raises(CorruptionError, match="'blind'"):
        Anchor.from_fields({**fields, "trust": "blind"})


def test_now_before_open_is_a_programmer_error() -> None:
    with pytest.raises(AssertionError, match="open"):
        Timekeeper(BUILD_MS).now(Reading(WALL_MS, 0))


durations_us = st.one_of(
    st.integers(0, 5000),
    st.integers(0, 100_000_000),
    st.integers(0, 30 * 24 * HOUR_MS * 1000),
)


class TimelinesMachine(RuleBasedStateMachine):
    """A machine whose true time is known, with a store that keeps its timelines.

    Off-time and a step of the wall clock can't be told apart while nothing runs or
    nothing is believed. So the wall clock's error may rise freely while it is believed
    (an anchor is written then, as the store does), but not meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.true_us = WALL_MS * 1000
        self.boot_us = 0
        self.error_us = 0
        self.boot_count = 1
        self.zero_us = 0
        self.believed_error_us: int | None = None
        self.elapsed_ms = 0
        self.mark_ms = BUILD_MS

    @initialize(
        uptime_us=st.integers(0, 10_000_000),
        error_us=st.sampled_from([0, 0, -WALL_MS * 1000, -7_300_000, 3_600_000_500]),
    )
    def start(self, uptime_us: int, error_us: int) -> None:
        self.boot_us = self.true_us - uptime_us
        self.error_us = error_us
        # The timeline starts with the millisecond in which the store is opened.
        self.zero_us = self.true_us - uptime_us % 1000
        self.open(None)
        self.anchor = self.keeper.anchor(self.reading())

    def reading(self) -> Reading:
        wall_ms, wall_rest = divmod(self.true_us + self.error_us, 1000)
        boottime_ms, boottime_rest = divmod(self.true_us - self.boot_us, 1000)
        return Reading(wall_ms, boottime_ms, int(wall_rest + boottime_rest > 0))

    def open(self, anchor: Anchor | None) -> None:
        self.keeper = Timekeeper(BUILD_MS)
        self.keeper.open(self.reading(), f"boot {self.boot_count}", "", anchor)
        self.floor_ms = self.mark_ms

    @property
    def is_believed(self) -> bool:
        return self.reading().wall_ms >= self.floor_ms

    def settle_error(self, error_us: int) -> int:
        """Return the error as far as the rule above allows it."""
        if self.believed_error_us is None:
            return error_us
        return min(error_us, self.believed_error_us)

    @rule(duration_us=durations_us)
    def let_time_pass(self, duration_us: int) -> None:
        self.true_us += duration_us

    @precondition(lambda self: self.is_believed)
    @rule(step_us=st.integers(-100_000_000, 100_000_000) | st.just(-WALL_MS * 1000))
    def step_the_wall(self, step_us: int) -> None:
        self.error_us = max(self.error_us + step_us, -self.true_us)
        self.anchor = self.keeper.anchor(self.reading())

    @precondition(lambda self: not self.is_believed)
    @rule(error_us=st.sampled_from([0, -500, -5_000_000]))
    def correct_the_wall(self, error_us: int) -> None:
        self.error_us = self.settle_error(error_us)

    @rule()
    def write_an_anchor(self) -> None:
        self.anchor = self.keeper.anchor(self.reading())

    @rule(duration_us=durations_us)
    def restart_the_process(self, duration_us: int) -> None:
        self.anchor = self.keeper.anchor(self.reading())
        self.mark_ms = max(self.mark_ms, self.anchor.high_water_ms)
        self.true_us += duration_us
        self.open(self.anchor)

    @rule(
        duration_us=durations_us,
        error_us=st.sampled_from([0, 0, 0, -400, -60_000_000, -WALL_MS * 1000]),
        is_clean=st.booleans(),
    )
    def reboot(self, duration_us: int, error_us: int, is_clean: bool) -> None:
        if is_clean:
            self.anchor = self.keeper.anchor(self.reading())
        self.mark_ms = max(self.mark_ms, self.anchor.high_water_ms)
        # What ran since the last anchor is gone with the machine.
        self.elapsed_ms = self.anchor.elapsed_ms
        # No machine is off and on again within a millisecond.
        self.true_us += duration_us + 1000
        self.error_us = self.settle_error(error_us)
        self.boot_us = self.true_us
        self.boot_count += 1
        self.open(self.anchor)

    @invariant()
    def the_timelines_are_right(self) -> None:
        if self.boot_us == 0:
            return  # not started
        reading = self.reading()
        now = self.keeper.now(reading)
        assert now.elapsed_ms >= self.elapsed_ms
        assert now.elapsed_ms * 1000 <= self.true_us - self.zero_us
        assert now.trust == ("assumed" if self.is_believed else "untrusted")
        assert now.wall_ms == max(reading.wall_ms, self.floor_ms)
        due_ms = now.elapsed_ms + 1000
        assert self.keeper.elapsed_to_boottime(due_ms) == now.boottime_ms + 1000
        self.elapsed_ms = now.elapsed_ms
        if self.is_believed:
            self.believed_error_us = self.error_us


TestTimelines = TimelinesMachine.TestCase
TestTimelines.settings = settings(max_examples=60, stateful_step_count=25)


@pytest.mark.parametrize("off_ms", [1000, HOUR_MS])
def test_a_good_clock_loses_four_milliseconds_a_reboot_at_most(off_ms: int) -> None:
    """Never early is easy if one is always late; this is the other bound."""
    true_us = WALL_MS * 1000 + 123
    keeper = opened(Reading(WALL_MS, 0, 1), boot_id="boot 0")
    start_us = true_us
    for boot in range(1, 51):
        true_us += 90_700_333
        wall_ms = true_us // 1000
        anchor = keeper.anchor(Reading(wall_ms, 90_700, 1))
        true_us += off_ms * 1000 + 77
        keeper = opened(Reading(true_us // 1000, 0, 1), anchor, f"boot {boot}")

    elapsed_ms = keeper.now(Reading(true_us // 1000, 0, 1)).elapsed_ms

    late_ms = (true_us - start_us) / 1000 - elapsed_ms
    assert 0 <= late_ms < 4 * 50
