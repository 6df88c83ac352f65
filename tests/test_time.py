"""The clocks, through the whole store: nothing early, late by no more than is said."""

import errno
from datetime import UTC, datetime, timedelta

import pytest
from driver_helpers import START, Background, Driven, until_waiting
from field_helpers import Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
)

import wheeldb
from wheeldb.engine.values import instant
from wheeldb.testing import ManualClock

HOUR = 3_600
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def power_cut(
    bench: Bench, off: float, wall: datetime | None = None, profile: str = "none"
) -> None:
    """Cut the power for some seconds, and open the store again."""
    bench.disk.crash(profile)
    bench.clock.reboot(off=off, wall=wall)
    bench.open()


def task(bench: Bench, id: str) -> wheeldb.Task:
    found = bench.db.get(id)
    assert found is not None
    return found


class TestElapsed:
    @pytest.mark.parametrize("step", [HOUR, -HOUR, 100 * 24 * HOUR])
    def test_a_step_of_the_wall_clock_moves_no_delay(self, step: float) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=100, id="a")
            bench.clock.advance(50)
            bench.db.poll()
            bench.clock.step_wall(step)
            bench.db.poll()
            assert task(bench, "a").due_in == 50
            bench.clock.advance(49.999)
            assert bench.started() == []
            bench.clock.advance(0.001)
            assert bench.started() == ["a"]

    @pytest.mark.parametrize("act", ["schedule", "schedule_many", "cancel", "ack"])
    def test_a_step_before_a_power_cut_is_no_off_time(self, act: str) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=100, id="a")
            bench.db.schedule("a", delay=100, id="b")
            bench.db.schedule("a", delay=0, id="due")
            [lease] = bench.db.lease()
            bench.clock.step_wall(100)
            if act == "schedule":
                bench.db.schedule("a", delay=100, id="c")
            elif act == "schedule_many":
                bench.db.schedule_many([wheeldb.NewTask("a", delay=100)])
            elif act == "cancel":
                bench.db.cancel("b")
            else:
                lease.ack()
            power_cut(bench, off=0)
            assert "a" not in bench.started()

    def test_suspended_time_counts(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=HOUR, id="a")
            bench.clock.suspend(HOUR)
            assert bench.started() == ["a"]

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_a_battery_tells_for_how_long_the_power_was_off(
        self, is_clean: bool
    ) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=HOUR, id="a")
            bench.clock.advance(600)
            bench.db.poll()
            if is_clean:
                bench.db.close()
            power_cut(bench, off=1_200)
            assert task(bench, "a").due_in == HOUR - 1_800
            bench.clock.advance(1_799.999)
            assert bench.started() == []
            bench.clock.advance(0.001)
            assert bench.started() == ["a"]

    def test_without_a_battery_off_time_is_owed_until_the_clock_is_right(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=2 * HOUR, id="a")
            bench.clock.advance(HOUR)
            bench.db.poll()
            right = START + timedelta(hours=2.5)
            power_cut(bench, off=HOUR, wall=EPOCH)
            assert bench.db.statistics().clock_trust == "untrusted"
            assert task(bench, "a").due_in == HOUR
            assert task(bench, "a").due_at is None
            bench.clock.advance(0.5 * HOUR)
            assert bench.started() == []
            bench.clock.set_wall(right)
            assert bench.started() == ["a"]

    def test_without_a_right_clock_it_is_late_by_the_off_time(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=2 * HOUR, id="a")
            bench.clock.advance(HOUR)
            bench.db.poll()
            power_cut(bench, off=5 * HOUR, wall=EPOCH)
            bench.clock.advance(HOUR - 0.001)
            assert bench.started() == []
            bench.clock.advance(0.001)
            assert bench.started() == ["a"]

    @pytest.mark.parametrize("back", [[7_200.0], [300 * 86_400.0], [7_200.0, 1e7]])
    @pytest.mark.parametrize("cuts", [1, 2])
    def test_a_clock_that_was_set_back_for_a_while_ends_nothing_early(
        self, back: list[float], cuts: int
    ) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=1e6, id="a")
            right = bench.clock.read().wall_ms
            for seconds in back:
                bench.clock.step_wall(-seconds)
                bench.db.poll()
            for _ in range(cuts):
                bench.disk.crash("none")
                right += 5_000
                bench.clock.reboot(off=5, wall=instant(right))
                bench.open()
                bench.db.poll()
            due_in = task(bench, "a").due_in
            assert due_in is not None
            assert 1e6 - 5 * cuts <= due_in <= 1e6

    def test_a_power_cut_costs_no_more_than_the_mark(self) -> None:
        # Everything since the last anchor is forgotten with the power, but that is a
        # minute old at most.
        driven = Driven()
        driven.db.schedule("a", delay=2 * HOUR, id="a")
        driven.let_pass(HOUR - 1)
        driver = driven.db._driver
        assert driver is not None
        driver.stop()
        driven.disk.crash("none")
        driven.clock.reboot(off=10, wall=EPOCH)
        with wheeldb.open(
            "/store", disk=driven.disk, clock=driven.clock, driver=False
        ) as db:
            found = db.get("a")
            assert found is not None
            assert found.due_in is not None
            assert HOUR + 1 <= found.due_in <= HOUR + 1 + 60

    def test_a_delay_that_is_given_while_off_time_is_owed_begins_then(self) -> None:
        # The machine boots in 1970, tasks are scheduled, the network sets the clock:
        # the hours that are added then are none of theirs.
        with Bench() as bench:
            bench.db.schedule("before", delay=6 * HOUR, id="before")
            power_cut(bench, off=5 * HOUR, wall=EPOCH)
            bench.db.schedule("since", delay=600, id="since")
            bench.db.schedule("retry", delay=0, id="retry")
            bench.db.schedule("moved", delay=0, id="moved", lease=HOUR)
            leases = {lease.id: lease for lease in bench.db.lease(limit=9)}
            leases["retry"].nack("no", retry_in=300)
            bench.db.reschedule("moved", delay=900)
            bench.clock.advance(60)
            bench.clock.set_wall(START + timedelta(hours=5, seconds=60))
            assert bench.started() == []
            assert task(bench, "before").due_in == HOUR - 60
            assert task(bench, "since").due_in == 540
            assert task(bench, "retry").due_in == 240
            assert task(bench, "moved").due_in == 840
            leases["moved"].ack()
            assert bench.kill().check() == []
            assert task(bench, "since").due_in == 540
            bench.clock.advance(840)
            assert bench.started() == ["retry", "since", "moved"]

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_nor_does_it_in_an_opening_after_that(self, is_clean: bool) -> None:
        with Bench() as bench:
            bench.db.schedule("before", delay=6 * HOUR, id="before")
            power_cut(bench, off=HOUR, wall=EPOCH)
            bench.db.schedule("since", delay=600, id="since")
            if is_clean:
                bench.db.close()
            power_cut(bench, off=HOUR, wall=START + timedelta(hours=2))
            assert bench.started() == []
            # Late by what the power was off, since nobody can tell the two apart.
            assert task(bench, "since").due_in == 600
            assert task(bench, "before").due_in == 4 * HOUR

    def test_nor_if_it_was_in_the_index(self) -> None:
        with Bench() as bench:
            power_cut(bench, off=HOUR, wall=EPOCH)
            bench.db.schedule("since", delay=600, id="since")
            bench.db.checkpoint()
            bench.clock.set_wall(START + timedelta(hours=1))
            assert bench.started() == []
            assert task(bench, "since").due_in == 600

    def test_nor_if_it_was_reckoned_before_and_committed_after(self) -> None:
        with Bench() as bench:
            power_cut(bench, off=HOUR, wall=EPOCH)
            with bench.db.batch() as batch:
                batch.schedule("one", delay=600, id="one")
                batch.schedule_many([wheeldb.NewTask("many", delay=700)])
                batch.reschedule("one", delay=650)
                bench.clock.set_wall(START + timedelta(hours=1))
                bench.db.poll()
            assert bench.started() == []
            assert [found.due_in for found in bench.db.tasks()] == [650, 700]

    def test_a_full_disk_puts_it_off(self) -> None:
        with Bench(reserve=False) as bench:
            bench.db.schedule("before", delay=2 * HOUR, id="before")
            power_cut(bench, off=HOUR, wall=EPOCH)
            bench.db.schedule("since", delay=600, id="since")
            bench.disk.fail("pwrite", errno.ENOSPC, forever=True)
            bench.clock.set_wall(START + timedelta(hours=1))
            bench.db.poll()
            assert task(bench, "before").due_in == 2 * HOUR
            assert task(bench, "since").due_in == 600
            bench.disk.heal()
            bench.clock.advance(10)
            bench.db.poll()
            assert task(bench, "before").due_in == HOUR - 10
            assert task(bench, "since").due_in == 590

    def test_another_time_namespace_is_another_boot(self) -> None:
        class Namespaced(ManualClock):
            namespace = "one"

            @property
            def time_namespace(self) -> str:
                return self.namespace

        bench = Bench()
        bench.db.close()
        bench.clock.advance(10 * HOUR)
        clock = Namespaced(START + timedelta(hours=10), elapsed=10 * HOUR)
        bench.clock = bench.options["clock"] = clock
        bench.open()
        bench.db.schedule("a", delay=HOUR, id="a")
        bench.db.close()
        # The container's boottime begins anew; the wall clock goes on.
        clock.namespace = "two"
        clock.reboot(off=600)
        clock._boot_count -= 1
        bench.open()
        assert task(bench, "a").due_in == HOUR - 600
        bench.db.close()

    def test_an_estimate_of_the_due_time_follows_the_wall_clock(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=HOUR, id="a")
            assert task(bench, "a").due_at == START + timedelta(hours=1)
            bench.clock.step_wall(600)
            bench.db.poll()
            assert task(bench, "a").due_at == START + timedelta(hours=1, seconds=600)


class TestWall:
    def test_a_forward_step_fires_what_it_passes(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", at=START + timedelta(hours=1), id="a")
            bench.db.schedule("b", at=START + timedelta(hours=3), id="b")
            bench.clock.step_wall(2 * HOUR)
            assert bench.started() == ["a"]

    def test_a_backward_step_takes_back_what_was_not_started(self) -> None:
        with Bench() as bench:
            bench.db.schedule("wall", at=START + timedelta(hours=1), id="wall")
            bench.db.schedule("delay", delay=HOUR, id="delay")
            bench.clock.advance(HOUR)
            assert bench.db.poll() == 2
            bench.clock.step_wall(-600)
            assert bench.started() == ["delay"]
            assert task(bench, "wall").state == "scheduled"
            bench.clock.advance(600)
            assert bench.started() == ["wall"]

    def test_a_reset_clock_holds_until_it_has_passed_the_mark(self) -> None:
        with Bench() as bench:
            bench.db.schedule("before", at=START + timedelta(hours=1), id="before")
            bench.db.schedule("after", at=START + timedelta(hours=3), id="after")
            bench.clock.advance(2 * HOUR)
            bench.db.close()
            bench.clock.reboot(off=HOUR, wall=EPOCH)
            bench.open()
            # Overdue for certain: the clock has shown a later time.
            assert bench.started() == ["before"]
            held = task(bench, "after").held
            assert held is not None
            assert "1970-01-01" in held
            assert "set the clock" in held
            bench.clock.advance(10 * HOUR)
            assert bench.started() == []
            bench.clock.set_wall(START + timedelta(hours=13))
            assert task(bench, "after").held is None
            assert bench.started() == ["after"]

    def test_the_mark_is_no_due_time(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", at=START + timedelta(hours=3), id="a")
            bench.clock.advance(2 * HOUR)
            bench.db.close()
            bench.clock.reboot(off=1, wall=EPOCH)
            bench.open()
            bench.clock.set_wall(START + timedelta(hours=2.5))
            assert bench.started() == []
            assert task(bench, "a").held is None
            bench.clock.advance(0.5 * HOUR)
            assert bench.started() == ["a"]

    def test_the_driver_wakes_when_the_clock_is_put_right(self) -> None:
        with Driven() as driven:
            driven.db.schedule("wall", at=START + timedelta(hours=1), id="wall")
            driven.let_pass(1)
            driven.clock.set_wall(START.replace(year=1990))
            driven.settle()
            waiting = Background(lambda: driven.db.lease(wait=None))
            driven.let_pass(2 * HOUR)
            assert not waiting.is_over
            driven.clock.set_wall(START + timedelta(hours=1))
            (lease,) = waiting.result()
            lease.ack()


class TestDurations:
    """Leases and waits are measured on boottime: no correction ends one."""

    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_a_step_expires_no_lease(self, step: float) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30)
            (lease,) = bench.db.lease()
            bench.clock.step_wall(step)
            bench.db.poll()
            assert lease.remaining == 30
            bench.clock.advance(29.999)
            bench.db.poll()
            assert bench.db.statistics().leases_expired == 0
            bench.clock.advance(0.001)
            bench.db.poll()
            assert bench.db.statistics().leases_expired == 1

    def test_repaid_off_time_expires_no_lease(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30, id="a")
            bench.clock.advance(1)
            bench.db.poll()
            power_cut(bench, off=HOUR, wall=EPOCH)
            (lease,) = bench.db.lease()
            elapsed_ms = bench.db._engine.now().elapsed_ms
            bench.clock.set_wall(START + timedelta(hours=1, seconds=2))
            bench.db.poll()
            assert bench.db._engine.now().elapsed_ms >= elapsed_ms + HOUR * 1_000
            assert lease.remaining == 30
            lease.ack()

    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_a_step_ends_no_wait(self, step: float) -> None:
        with Driven() as driven:
            waiting = Background(lambda: driven.db.lease(wait=60))
            until_waiting(driven.db, 1)
            driven.clock.step_wall(step)
            driven.let_pass(59.999)
            assert not waiting.is_over
            driven.let_pass(0.001)
            assert waiting.result() == []

    def test_suspended_time_counts_in_a_wait(self) -> None:
        with Driven() as driven:
            waiting = Background(lambda: driven.db.lease(wait=60))
            until_waiting(driven.db, 1)
            driven.clock.suspend(60)
            assert waiting.result() == []


class NothingEarly(RuleBasedStateMachine):
    """Whatever the clocks do, no task starts before its time.

    The test knows the truth: how long ago a delay was given, and the highest time that
    the wall clock ever showed. What no machine can know is left out: nobody sets the
    clock while the power is off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(reserve=False, segment_bytes=2**20)
        # True milliseconds since the start, and how far the wall clock is off.
        self.true_ms = 0
        self.off_ms = 0
        self.shown_ms_max = 0
        self.delays: dict[str, int] = {}
        self.instants: dict[str, int] = {}
        self.is_reset = False
        self.count = 0
        self.off_time_ms = 0

    def new_id(self) -> str:
        self.count += 1
        return f"task {self.count}"

    @property
    def wall_ms(self) -> int:
        return self.true_ms + self.off_ms

    def look(self) -> None:
        if not self.is_reset:
            self.shown_ms_max = max(self.shown_ms_max, self.wall_ms)
        for id in self.bench.started():
            if id in self.delays:
                assert self.true_ms >= self.delays.pop(id), f"{id} is early"
            else:
                assert self.shown_ms_max >= self.instants.pop(id), f"{id} is early"

    @rule(delay_ms=st.integers(0, 20_000_000))
    def delay(self, delay_ms: int) -> None:
        id = self.new_id()
        self.bench.db.schedule("a", delay=delay_ms / 1000, id=id)
        self.delays[id] = self.true_ms + delay_ms

    @rule(ahead_ms=st.integers(0, 20_000_000))
    def instant(self, ahead_ms: int) -> None:
        at_ms = self.wall_ms + ahead_ms
        id = self.new_id()
        at = START + timedelta(milliseconds=at_ms)
        self.bench.db.schedule("a", at=at, id=id)
        self.instants[id] = at_ms

    @rule(milliseconds=st.integers(1, 8_000_000), is_suspended=st.booleans())
    def time(self, milliseconds: int, is_suspended: bool) -> None:
        clock = self.bench.clock
        (clock.suspend if is_suspended else clock.advance)(milliseconds / 1000)
        self.true_ms += milliseconds
        self.look()

    @rule(milliseconds=st.integers(-8_000_000, 8_000_000))
    @precondition(lambda self: not self.is_reset)
    def step(self, milliseconds: int) -> None:
        self.bench.clock.step_wall(milliseconds / 1000)
        self.off_ms += milliseconds
        self.look()
        # An anchor of it is on disk before the power goes.
        self.bench.db.poll()

    @rule(
        off_ms=st.integers(0, 8_000_000),
        has_battery=st.booleans(),
        how=st.sampled_from(["close", "none", "all", "prefix"]),
    )
    def reboot(self, off_ms: int, has_battery: bool, how: str) -> None:
        if how == "close":
            self.bench.db.close()
        wall = None if has_battery else EPOCH
        self.true_ms += off_ms
        self.off_time_ms += off_ms
        power_cut(self.bench, off_ms / 1000, wall, "none" if how == "close" else how)
        self.is_reset = self.is_reset or not has_battery
        self.look()

    @rule()
    @precondition(lambda self: self.is_reset)
    def put_right(self) -> None:
        self.is_reset = False
        wall = START + timedelta(milliseconds=self.wall_ms)
        self.bench.clock.set_wall(wall)
        self.look()
        self.bench.db.poll()

    def teardown(self) -> None:
        # None is lost: with a right clock all come, late by the off-time at most.
        if self.is_reset:
            self.put_right()
        ahead_ms = max(self.shown_ms_max - self.wall_ms, 0) + 21_000_000
        ahead_ms += self.off_time_ms
        self.time(ahead_ms, False)
        assert (self.delays, self.instants) == ({}, {})
        assert self.bench.db.check() == []
        self.bench.db.close()


TestNothingEarly = NothingEarly.TestCase
TestNothingEarly.settings = settings(max_examples=15, stateful_step_count=15)
