"""What happens to an attempt in every situation, one test for each.

What a lease promises over time-outs, second thoughts and accidents is where schedulers
differ, so each rule stands here by itself. The rules for handlers that a store runs
itself are not among them.
"""

from typing import TYPE_CHECKING

import pytest
from field_helpers import Bench

from wheeldb import (
    CancelOutcome,
    Fixed,
    Lease,
    LeaseLost,
    NewTask,
    QueueFull,
    Retry,
    StaleVersion,
    Task,
    TaskExists,
    TaskState,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def leased(bench: Bench, task_id: str = "x", **options: object) -> Lease:
    """Schedule a task that is due, and lease it."""
    bench.db.schedule("job", delay=0, id=task_id, **options)  # type: ignore[arg-type]
    (lease,) = bench.db.lease()
    return lease


def task_of(bench: Bench, task_id: str = "x") -> Task:
    task = bench.db.get(task_id)
    assert task is not None, f"{task_id} is unknown"
    return task


def cut_power(bench: Bench, survives: str = "all") -> None:
    bench.disk.crash(survives)
    bench.clock.reboot(off=1)
    bench.open()


def end_process(bench: Bench, how: str) -> None:
    if how == "close":
        bench.reopen()
    elif how == "kill":
        bench.kill()
    else:
        cut_power(bench, "none")


def assert_lost(bench: Bench, lease: Lease) -> None:
    """Nothing can be done with a stale fence, and nothing changes by trying."""
    before = list(bench.db.tasks()), bench.db.statistics().last_lsn
    settles: list[Callable[[], None]] = [
        lease.ack,
        lambda: lease.nack("no"),
        lease.release,
        lambda: lease.reject("no"),
        lease.renew,
        lambda: lease.save(1),
    ]
    for settle in settles:
        with pytest.raises(LeaseLost):
            settle()
    assert bench.db.ack_many([lease]) == [lease]
    assert (list(bench.db.tasks()), bench.db.statistics().last_lsn) == before


class TestStaleFence:
    def test_another_attempt_started(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.clock.advance(30)
            (second,) = bench.db.lease()
            assert second.fence > lease.fence
            assert_lost(bench, lease)
            second.ack()
            assert_lost(bench, lease)

    def test_the_task_was_replaced(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.db.schedule("other", delay=5, id="x", if_exists="replace")
            assert task_of(bench).name == "other"
            assert_lost(bench, lease)

    def test_it_was_given_back(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            lease.release()
            assert_lost(bench, lease)

    def test_the_running_attempt_was_cancelled(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            outcome = bench.db.cancel("x", running=True)
            assert outcome == CancelOutcome.CANCELLED
            assert_lost(bench, lease)

    def test_a_fence_from_before_a_power_cut_is_never_given_again(self) -> None:
        with Bench() as bench:
            fence = leased(bench).fence
            for survives in ("none", "all"):
                cut_power(bench, survives)
                (lease,) = bench.db.lease()
                assert lease.fence > fence
                fence = lease.fence


class TestAckAfterExpiry:
    def test_nobody_took_the_task_yet(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.clock.advance(31)
            bench.db.poll()
            assert task_of(bench).state == TaskState.DUE
            lease.ack(result=7)
            assert (task_of(bench).state, task_of(bench).result) == ("done", 7)
            assert not bench.db.lease()

    def test_its_attempts_were_used_up(self) -> None:
        with Bench() as bench:
            lease = leased(bench, retry=Retry(1))
            bench.clock.advance(31)
            bench.db.poll()
            assert task_of(bench).state == TaskState.DEAD
            lease.ack()
            assert task_of(bench).state == TaskState.DONE

    def test_a_late_failure_is_taken_too(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.clock.advance(31)
            bench.db.poll()
            lease.nack("late", retry_in=60)
            task = task_of(bench)
            assert (task.state, task.error, task.attempts) == ("scheduled", "late", 1)

    def test_it_can_neither_be_renewed_nor_given_back(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.clock.advance(31)
            bench.db.poll()
            with pytest.raises(LeaseLost):
                lease.renew()
            with pytest.raises(LeaseLost):
                lease.release()
            with pytest.raises(LeaseLost):
                lease.save(1)

    @pytest.mark.parametrize("action", ["reschedule", "run_now"])
    def test_a_new_due_time_meanwhile_is_kept(self, action: str) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.clock.advance(31)
            bench.db.poll()
            if action == "reschedule":
                bench.db.reschedule("x", delay=5)
            else:
                bench.db.run_now("x")
            assert_lost(bench, lease)


class TestRepeatedAck:
    def test_the_same_answer_again(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            lease.ack(then=[NewTask("next", delay=0, id="n")])
            lease.ack(then=[NewTask("next", delay=0, id="n")])
            assert bench.db.ack_many([lease]) == []
            assert task_of(bench).state == TaskState.DONE
            bench.reopen()
            assert task_of(bench, "n").state == TaskState.DUE

    def test_within_the_retention(self) -> None:
        with Bench(retention=60.0) as bench:
            lease = leased(bench)
            lease.ack()
            bench.clock.advance(60)
            with pytest.raises(LeaseLost):
                lease.ack()

    def test_not_for_a_generated_id(self) -> None:
        with Bench() as bench:
            bench.db.schedule("job", delay=0)
            (lease,) = bench.db.lease()
            lease.ack()
            with pytest.raises(LeaseLost):
                lease.ack()

    def test_not_after_the_id_came_back(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            lease.ack()
            leased(bench, version=1).ack()
            assert_lost(bench, lease)


class TestBehindTheAttempt:
    @pytest.mark.parametrize("end", ["ack", "nack", "reject", "release"])
    @pytest.mark.parametrize("change", ["reschedule", "version", "run_now"])
    def test_it_waits_and_the_fence_stays_good(self, change: str, end: str) -> None:
        with Bench() as bench:
            lease = leased(bench)
            if change == "reschedule":
                bench.db.reschedule("x", delay=60)
            elif change == "run_now":
                bench.db.run_now("x")
            else:
                receipt = bench.db.schedule(
                    "new", {"n": 2}, delay=60, id="x", version=1
                )
                assert (receipt.created, receipt.state) == (True, "leased")
            task = task_of(bench)
            assert task.state == TaskState.LEASED
            assert task.due_in == (0 if change == "run_now" else 60)
            lease.renew()
            lease.save("cursor of the old one")
            if end == "ack":
                lease.ack()
            elif end == "nack":
                lease.nack("no")
            elif end == "reject":
                lease.reject("no")
            else:
                lease.release()
            task = task_of(bench)
            assert (task.attempts, task.error) == (0, None)
            bench.clock.advance(60)
            (again,) = bench.db.lease()
            assert (again.attempt, again.cursor, again.may_have_run) == (1, None, False)
            assert again.name == ("new" if change == "version" else "job")

    def test_a_lower_version_is_refused(self) -> None:
        with Bench() as bench:
            leased(bench, version=3)
            with pytest.raises(StaleVersion):
                bench.db.schedule("job", delay=0, id="x", version=2)

    def test_it_survives_the_end_of_the_process(self) -> None:
        with Bench() as bench:
            leased(bench)
            bench.db.reschedule("x", delay=60)
            bench.kill()
            task = task_of(bench)
            assert (task.state, task.due_in, task.recoveries) == ("scheduled", 60, 0)
            bench.clock.advance(60)
            (again,) = bench.db.lease()
            # The attempt of then may have gone far.
            assert again.may_have_run


class TestCancelWhileLeased:
    def cancelled(self, bench: Bench) -> Lease:
        lease = leased(bench)
        assert bench.db.cancel("x") == CancelOutcome.LEASED
        assert bench.db.cancel("x") == CancelOutcome.LEASED
        return lease

    def test_then_ack(self) -> None:
        with Bench() as bench:
            lease = self.cancelled(bench)
            lease.ack(result=1, then=[NewTask("next", delay=0, id="n")])
            assert (task_of(bench).state, task_of(bench).result) == ("done", 1)
            assert bench.db.get("n") is None

    @pytest.mark.parametrize("end", ["nack", "reject", "release", "runs out"])
    def test_then_anything_else(self, end: str) -> None:
        with Bench() as bench:
            lease = self.cancelled(bench)
            if end == "nack":
                lease.nack("no")
            elif end == "reject":
                lease.reject("no")
            elif end == "release":
                lease.release()
            else:
                bench.clock.advance(31)
                bench.db.poll()
            assert task_of(bench).state == TaskState.CANCELLED

    @pytest.mark.parametrize("end", ["close", "kill", "cut"])
    def test_then_the_process_ends(self, end: str) -> None:
        with Bench() as bench:
            self.cancelled(bench)
            end_process(bench, end)
            assert task_of(bench).state == TaskState.CANCELLED

    def test_a_cancel_wins_over_a_new_due_time(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            bench.db.reschedule("x", delay=60)
            bench.db.cancel("x")
            lease.nack("no")
            assert task_of(bench).state == TaskState.CANCELLED

    def test_a_higher_version_takes_the_cancel_back(self) -> None:
        with Bench() as bench:
            lease = self.cancelled(bench)
            bench.db.schedule("new", delay=60, id="x", version=1)
            lease.ack()
            assert task_of(bench).state == TaskState.SCHEDULED


class TestProcessDied:
    def test_the_task_is_due_at_once(self) -> None:
        with Bench() as bench:
            lease = leased(bench, retry=Retry(1))
            bench.clock.advance(5)
            bench.kill()
            assert bench.db.recovery.interrupted == 1
            task = task_of(bench)
            assert (task.state, task.attempts, task.recoveries) == ("due", 0, 1)
            (again,) = bench.db.lease()
            assert (again.attempt, again.recoveries, again.may_have_run) == (1, 1, True)
            assert again.fence > lease.fence
            again.ack()

    def test_recoveries_are_bounded(self) -> None:
        with Bench(recoveries_max=2) as bench:
            leased(bench)
            for _ in range(2):
                bench.kill()
                (lease,) = bench.db.lease()
                assert lease.attempt == 1
            bench.kill()
            task = task_of(bench)
            assert (task.state, task.error) == (TaskState.DEAD, "interrupted")
            assert bench.db.revive("x") == 1
            (lease,) = bench.db.lease()
            assert (lease.attempt, lease.recoveries) == (1, 0)

    def test_ten_when_the_boot_changed(self) -> None:
        with Bench(recoveries_max=2) as bench:
            leased(bench)
            for _ in range(10):
                cut_power(bench)
                assert len(bench.db.lease()) == 1
            cut_power(bench)
            assert task_of(bench).state == TaskState.DEAD

    @pytest.mark.parametrize("end", ["kill", "close", "cut"])
    def test_at_most_once(self, end: str) -> None:
        with Bench() as bench:
            leased(bench, at_most_once=True)
            end_process(bench, end)
            task = task_of(bench)
            assert (task.state, task.error) == (TaskState.DEAD, "interrupted")


class TestMayHaveRun:
    def test_not_the_first_time(self) -> None:
        with Bench() as bench:
            assert not leased(bench).may_have_run

    def test_not_after_an_end_that_is_known(self) -> None:
        with Bench() as bench:
            lease = leased(bench, retry=Retry(5, Fixed(0)))
            lease.release()
            (lease,) = bench.db.lease()
            assert not lease.may_have_run
            lease.nack("no", retry_in=0)
            (lease,) = bench.db.lease()
            assert (lease.attempt, lease.may_have_run) == (2, False)

    def test_after_a_lease_that_ran_out(self) -> None:
        with Bench() as bench:
            leased(bench)
            bench.clock.advance(31)
            (lease,) = bench.db.lease()
            assert lease.may_have_run

    @pytest.mark.parametrize("kind", ["delay", "at"])
    def test_after_a_power_cut_that_took_the_lease(self, kind: str) -> None:
        with Bench() as bench:
            if kind == "delay":
                bench.db.schedule("job", delay=3_600, id="x")
            else:
                instant = bench.db.schedule("other", delay=3_600).due_at
                assert instant is not None
                bench.db.schedule("job", at=instant, id="x")
            bench.db.schedule("later", delay=40_000, id="later")
            bench.clock.advance(3_600)
            assert bench.db.lease(names=["job"])
            cut_power(bench, "none")
            task = task_of(bench)
            # Nothing is known of that start ...
            assert (task.state, task.recoveries) == (TaskState.DUE, 0)
            (lease,) = bench.db.lease(names=["job"])
            # ... but that it is possible.
            assert lease.may_have_run
            bench.clock.advance(40_000)
            (lease,) = bench.db.lease(names=["later"])
            assert not lease.may_have_run

    def test_also_after_a_long_suspend(self) -> None:
        with Bench() as bench:
            bench.db.schedule("job", delay=3_600, id="x")
            bench.clock.suspend(50_000)
            assert bench.db.lease()
            bench.disk.crash("none")
            # A clock without a battery: nothing tells how long the power was off.
            bench.clock.reboot(off=1)
            bench.clock.step_wall(-49_000)
            bench.open()
            bench.clock.advance(50_000)
            (lease,) = bench.db.lease()
            assert lease.may_have_run


class TestThen:
    def test_an_id_that_exists_is_treated_as_if_exists_says(self) -> None:
        with Bench() as bench:
            bench.db.schedule("next", {"n": 1}, delay=60, id="n")
            lease = leased(bench)
            lease.ack(
                then=[
                    NewTask("next", {"n": 1}, delay=60, id="n"),
                    NewTask("next", {"n": 2}, delay=60, id="n", if_exists="keep"),
                ]
            )
            assert task_of(bench, "n").payload == {"n": 1}

    @pytest.mark.parametrize("refusal", [TaskExists, StaleVersion])
    def test_a_refusal_leaves_the_lease(self, refusal: type[Exception]) -> None:
        with Bench() as bench:
            bench.db.schedule("next", {"n": 1}, delay=60, id="n", version=1)
            lease = leased(bench)
            version = 1 if refusal is TaskExists else 0
            follow_up = NewTask("next", {"n": 2}, delay=0, id="n", version=version)
            with pytest.raises(refusal):
                lease.ack(then=[NewTask("first", delay=0, id="f"), follow_up])
            assert task_of(bench).state == TaskState.LEASED
            assert bench.db.get("f") is None
            bench.db._engine.state.check()
            lease.ack(then=[NewTask("first", delay=0, id="f")])
            assert task_of(bench).state == TaskState.DONE
            assert task_of(bench, "f").state == TaskState.DUE

    def test_a_task_may_schedule_itself_anew(self) -> None:
        with Bench() as bench:
            lease = leased(bench)
            lease.ack(then=[NewTask("job", delay=60, id="x", if_exists="replace")])
            assert task_of(bench).state == TaskState.SCHEDULED


class TestBytesMax:
    """``bytes_max`` counts what there will be, not what is given."""

    def test_a_replacement_of_the_same_size_fits(self) -> None:
        with Bench(bytes_max=100) as bench:
            bench.db.schedule("a", "x" * 80, delay=60, id="x")
            bench.db.schedule("a", "y" * 80, delay=60, id="x", if_exists="replace")
            assert task_of(bench).payload == "y" * 80

    def test_a_larger_one_does_not(self) -> None:
        with Bench(bytes_max=100) as bench:
            bench.db.schedule("a", "x" * 80, delay=60, id="x")
            with pytest.raises(QueueFull, match="bytes_max"):
                bench.db.schedule("a", "y" * 99, delay=60, id="x", if_exists="replace")
            assert task_of(bench).payload == "x" * 80

    def test_a_version_behind_a_running_attempt_counts(self) -> None:
        with Bench(bytes_max=100) as bench:
            leased(bench)
            with pytest.raises(QueueFull, match="bytes_max"):
                bench.db.schedule("a", "y" * 500, delay=60, id="x", version=1)
            bench.db.schedule("a", "y" * 50, delay=60, id="x", version=1)
            assert bench.db.statistics().payload_bytes < 100
