"""Tasks that nobody starts in time end by themselves, also over restarts."""

import errno
from datetime import UTC, datetime, timedelta

import pytest
from field_helpers import Bench

from wheeldb import NewTask, TaskState
from wheeldb.engine.engine import Thresholds

START = datetime(2026, 1, 1, tzinfo=UTC)


def state_of(bench: Bench, task_id: str) -> TaskState:
    task = bench.db.get(task_id)
    assert task is not None, f"{task_id} is forgotten"
    return task.state


def test_a_due_task_expires_without_a_lease() -> None:
    with Bench() as bench:
        bench.db.schedule("report", delay=10, expires=60, id="r")
        bench.clock.advance(69.999)
        assert bench.db.poll() == 1
        assert state_of(bench, "r") == TaskState.DUE
        assert bench.db.next_in() == pytest.approx(0.001)

        bench.clock.advance(0.001)
        bench.db.poll()

        assert state_of(bench, "r") == TaskState.EXPIRED
        assert bench.db.history("r")[-1].kind == "expired"
        statistics = bench.db.statistics()
        assert (statistics.pending_count, statistics.tasks_expired) == (0, 1)
        assert bench.db.next_in() is None
        assert not bench.db.lease()


def test_an_instant_counts_from_the_due_time_on() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=60, expires=START + timedelta(seconds=5), id="a")
        bench.clock.advance(30)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.SCHEDULED
        bench.clock.advance(30)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


@pytest.mark.parametrize("ending", ["close", "kill", "cut"])
def test_what_expired_while_nobody_looked_ends_at_the_opening(ending: str) -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=10, expires=60, id="a")
        bench.clock.advance(20)
        bench.db.poll()
        bench.clock.advance(100)
        if ending == "cut":
            bench.disk.crash("none")
            bench.clock.reboot(off=1)
            bench.open()
        elif ending == "kill":
            bench.kill()
        else:
            bench.reopen()
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


def test_a_lane_remembers_over_a_checkpoint_that_its_tasks_expire() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=10, expires=60, id="a")
        bench.reopen()
        assert bench.db._engine.state.lanes.expiring
        bench.clock.advance(100)
        bench.db.poll()
        assert bench.db.statistics().tasks_expired == 1


def test_lanes_without_an_expiry_are_not_looked_at() -> None:
    with Bench() as bench:
        bench.db.schedule_many([NewTask("a", delay=1) for _ in range(10)])
        bench.db.schedule("b", delay=1, queue="other", expires=5)
        bench.clock.advance(1)
        bench.db._engine.advance()
        assert len(bench.db._engine.window.take_fresh(100)) == 1


@pytest.mark.parametrize("by_queue", [True, False])
def test_what_is_paused_expires_when_it_is_resumed(by_queue: bool) -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=10, expires=60, id="a")
        bench.clock.advance(11)
        bench.db.poll()
        task_id, queue = (None, "default") if by_queue else ("a", None)
        bench.db.pause(task_id, queue=queue)
        bench.clock.advance(100)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.PAUSED
        bench.db.resume(task_id, queue=queue)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


def test_a_running_attempt_does_not_expire_and_its_retry_does() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=0, expires=60, id="a", lease=1_000)
        (lease,) = bench.db.lease()
        bench.clock.advance(100)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.LEASED
        lease.nack("no", retry_in=5)
        bench.clock.advance(4.999)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.SCHEDULED
        bench.clock.advance(0.001)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


def test_a_rescheduled_task_has_the_time_from_its_new_due_time() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=0, expires=60, id="a")
        bench.db.poll()
        bench.db.reschedule("a", delay=50)
        bench.clock.advance(60)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.DUE


def test_a_flood_expires_although_it_does_not_fit_into_the_window() -> None:
    with Bench(window_max=100) as bench:
        bench.db._engine.thresholds = Thresholds(entries=500)
        for _ in range(4):
            bench.db.schedule_many(
                [NewTask("a", delay=1, expires=10) for _ in range(500)]
            )
            bench.db.poll()
        bench.clock.advance(20)
        for _ in range(200):
            bench.db.poll()
        assert bench.db.statistics().tasks_expired == 2_000
        assert len(bench.db._engine.window) == 0


def test_with_the_wall_clock_set_back_it_is_not_expired_any_more() -> None:
    with Bench() as bench:
        bench.db.schedule("a", at=START + timedelta(60), expires=60, id="a")
        bench.clock.set_wall(START + timedelta(60, seconds=30))
        bench.db.poll()
        bench.clock.set_wall(START)
        bench.clock.advance(100)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.SCHEDULED
        bench.clock.set_wall(START + timedelta(60, seconds=60))
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


@pytest.mark.parametrize("kind", ["delay", "at"])
def test_a_driver_sees_to_it(kind: str) -> None:
    bench = Bench(driver=True)
    db = bench.db
    if kind == "delay":
        db.schedule("a", delay=10, expires=60, id="a")
    else:
        db.schedule("a", at=START + timedelta(seconds=10), expires=60, id="a")
    bench.clock.advance(10)
    # Whoever looks for other tasks may be the first to find it ready.
    assert not db.lease("other")
    bench.clock.advance(59.999)
    assert state_of(bench, "a") == TaskState.DUE
    bench.clock.advance(0.001)
    assert db.wait("a").state == TaskState.EXPIRED
    db.close()


def test_on_a_full_disk_it_waits_for_room() -> None:
    with Bench(reserve=False) as bench:
        bench.db.schedule("a", delay=0, expires=5, id="a")
        bench.db.poll()
        bench.clock.advance(5)
        bench.disk.fail("pwrite", errno.ENOSPC, forever=True, path="log")
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.DUE
        bench.disk.heal()
        bench.clock.advance(10)
        bench.db.poll()
        assert state_of(bench, "a") == TaskState.EXPIRED


@pytest.mark.parametrize("is_settled_at_once", [False, True])
def test_memory_does_not_grow_with_what_was_started_in_time(
    is_settled_at_once: bool,
) -> None:
    """Tasks that are done long before they would expire leave nothing behind."""
    with Bench() as bench:
        db = bench.db
        db.schedule("a", delay=0, expires=60, id="waits", queue="slow")
        for _ in range(7):
            db.schedule_many(
                [NewTask("a", delay=0, expires=10**6) for _ in range(3_000)]
            )
            if not is_settled_at_once:
                for _ in range(6):
                    db.poll()
            bench.started(limit=10_000)
        expiries, window = db._upkeep._expiries, db._engine.window  # type: ignore[union-attr]
        assert sum(map(len, expiries._heaps)) < 5_000
        assert len(window._fresh) < 5_000

        bench.clock.advance(60)
        for _ in range(10):
            db.poll()
        assert state_of(bench, "waits") == TaskState.EXPIRED
