import errno
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
from driver_helpers import START, Background, Driven, WatchedClock, until_waiting

import wheeldb
import wheeldb.pull
from wheeldb.testing import CrashableDisk

HOUR = 3_600


def driver_threads(driven: Driven) -> list[str]:
    driver = driven.db._driver
    assert driver is not None, "the store has one"
    return [thread.name for thread in driver._threads if thread.is_alive()]


class TestFiring:
    def test_a_task_fires_when_its_time_has_come(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=5, id="a")
            waiting = Background(lambda: driven.db.lease(wait=None))
            driven.let_pass(4.999)
            assert not waiting.is_over
            driven.clock.advance(0.001)
            (lease,) = waiting.result()
            assert lease.id == "a"
            assert lease.late == 0
            lease.ack()

    def test_a_new_earlier_task_wakes_the_driver(self) -> None:
        with Driven() as driven:
            driven.db.schedule("late", delay=500, id="late")
            driven.let_pass(1)
            waiting = Background(lambda: driven.db.lease(wait=None))
            driven.db.schedule("early", delay=2, id="early")
            driven.let_pass(2)
            (lease,) = waiting.result()
            assert lease.id == "early"
            lease.ack()

    def test_an_instant_wakes_it_on_the_wall_clock(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", at=START + timedelta(hours=2), id="a")
            driven.let_pass(1)
            waiting = Background(lambda: driven.db.lease(wait=None))
            driven.clock.step_wall(HOUR)
            driven.settle()
            driven.let_pass(HOUR - 1)
            (lease,) = waiting.result()
            lease.ack()

    def test_what_is_due_at_once_needs_no_driver(self) -> None:
        with Driven() as driven:
            waiting = Background(lambda: driven.db.lease(wait=60))
            until_waiting(driven.db, 1)
            driven.db.schedule("a", delay=0)
            (lease,) = waiting.result()
            lease.ack()

    def test_a_wait_ends_on_manual_time(self) -> None:
        with Driven() as driven:
            waiting = Background(lambda: driven.db.lease(wait=10))
            until_waiting(driven.db, 1)
            driven.let_pass(9.999)
            assert not waiting.is_over
            driven.let_pass(0.001)
            assert waiting.result() == []
            assert driven.settle() == (None, None)

    def test_waiting_for_an_end_times_out_on_manual_time(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=HOUR, id="a")
            waiting = Background(lambda: driven.db.wait("a", timeout=10))
            until_waiting(driven.db, 1)
            driven.let_pass(10)
            with pytest.raises(TimeoutError):
                waiting.result()

    def test_waiting_for_an_end(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, id="a")
            waiting = Background(lambda: driven.db.wait("a", timeout=10))
            until_waiting(driven.db, 1)
            driven.db.lease()[0].ack("done")
            assert waiting.result().result == "done"

    def test_one_task_is_one_lease_and_the_others_wait_on(self) -> None:
        with Driven() as driven:
            waiting = [Background(lambda: driven.db.lease(wait=60)) for _ in range(4)]
            until_waiting(driven.db, 4)
            driven.db.schedule("a", delay=0, lease=HOUR)
            until_waiting(driven.db, 3)
            driven.let_pass(60)
            results = [one.result() for one in waiting]
            assert sorted(len(leases) for leases in results) == [0, 0, 0, 1]

    def test_waiting_for_names_does_not_spin(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = 0
        lease = wheeldb.pull._lease

        def counting(*arguments: Any) -> object:
            nonlocal looks
            looks += 1
            return lease(*arguments)

        monkeypatch.setattr(wheeldb.pull, "_lease", counting)
        with Driven() as driven:
            driven.db.schedule("other", delay=0)
            waiting = Background(lambda: driven.db.lease(wait=60, names=["wanted"]))
            until_waiting(driven.db, 1)
            seen = looks
            for _ in range(200):
                driven.db.schedule("other", delay=HOUR)
            assert looks == seen
            driven.db.schedule("wanted", delay=0)
            (found,) = waiting.result()
            assert found.name == "wanted"
            found.ack()

    def test_a_flood_of_due_tasks_in_several_threads(self) -> None:
        with Driven() as driven:
            tasks = [
                wheeldb.NewTask("a", delay=index % 7, lease=HOUR)
                for index in range(700)
            ]
            driven.db.schedule_many(tasks)
            seen: list[str] = []

            def work() -> None:
                while leases := driven.db.lease(limit=3, wait=20):
                    seen.extend(lease.id for lease in leases)
                    assert driven.db.ack_many(leases) == []

            workers = [Background(work) for _ in range(4)]
            while not all(worker.is_over for worker in workers):
                driven.let_pass(1)
            for worker in workers:
                worker.result()
            assert len(seen) == len(set(seen)) == 700


class TestWakeUps:
    def test_nothing_pending(self) -> None:
        with Driven() as driven:
            assert driven.let_pass(HOUR) == 0

    def test_a_pending_delay_costs_one_a_minute(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=5 * HOUR)
            driven.let_pass(2 * 60 + 1)
            assert driven.let_pass(HOUR) == 60

    def test_an_instant_in_the_far_future_costs_none(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", at=START + timedelta(days=400))
            driven.let_pass(2 * 60 + 1)
            assert driven.let_pass(HOUR) == 0

    def test_a_held_task_costs_one_in_ten_seconds(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", at=START + timedelta(days=400), id="a")
            driven.let_pass(2 * 60 + 1)
            disk = driven.disk
            driven.db.close()
            clock = WatchedClock(START)
            clock.reboot(off=60, wall=START.replace(year=1970))
            driven.db = wheeldb.open("/store", clock=clock, disk=disk)
            driven.clock = clock
            driven.let_pass(2 * 60 + 1)
            assert driven.let_pass(HOUR) == 360
            task = driven.db.get("a")
            assert task is not None
            assert task.held is not None
            assert "set the clock" in task.held

    def test_an_untrusted_clock_alone_costs_none(self) -> None:
        clock = WatchedClock(START.replace(year=1971))
        with Driven(clock=clock) as driven:
            assert driven.let_pass(HOUR) == 0

    def test_a_backlog_that_nobody_takes_does_not_spin(self) -> None:
        # More is due than the window holds: its horizon has come, and must not make
        # the driver look again and again.
        with Driven(window_max=1_000) as driven:
            for _ in range(4):
                driven.db.schedule_many([wheeldb.NewTask("a", delay=1)] * 1_000)
            driven.let_pass(200)
            assert driven.db.statistics().ready_count < 3_000
            # What is not loaded may be a delay that is still pending: the mark goes on.
            assert driven.let_pass(HOUR) == 60
            seen = 0
            while leases := driven.db.lease(limit=1_000):
                seen += len(leases)
                driven.db.ack_many(leases)
            assert seen == 4_000

    def test_a_paused_queue_with_delays_keeps_its_mark(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=5 * HOUR)
            driven.db.pause(queue="default")
            driven.let_pass(2 * 60 + 1)
            assert driven.let_pass(HOUR) == 60

    def test_a_lease_costs_one_when_it_ends(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=1_800)
            (lease,) = driven.db.lease()
            driven.let_pass(61)
            # Its end, the log's tail, and a checkpoint that tells it is written.
            assert driven.let_pass(HOUR) == 4
            assert driven.db.statistics().leases_expired == 1
            lease.ack()

    def test_an_acked_lease_costs_none(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=1_800)
            driven.db.lease()[0].ack()
            driven.let_pass(61)
            assert driven.let_pass(HOUR) == 0

    def test_a_repeated_ack_costs_none(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, id="a")
            (lease,) = driven.db.lease()
            lease.ack()
            driven.let_pass(61)
            wakeups = driven.wakeups
            lease.ack()
            driven.settle()
            assert driven.wakeups == wakeups


class TestFailure:
    @staticmethod
    def failing() -> Driven:
        driven = Driven(durability="written")
        driven.db.schedule("a", delay=0, id="a", durability="fsync")
        driven.db.schedule("a", delay=0)
        driven.disk.fail("sync_data", errno.EIO, forever=True)
        return driven

    def test_a_failed_sync_shows_at_every_later_call(self) -> None:
        driven = self.failing()
        waiting = Background(lambda: driven.db.lease("other", wait=None))
        driven.clock.advance(0.05)
        with pytest.raises(wheeldb.StorePoisoned):
            waiting.result()
        calls = [
            lambda: driven.db.schedule("b", delay=1),
            lambda: driven.db.cancel("a"),
            lambda: driven.db.lease(),
            lambda: driven.db.lease(wait=None),
            lambda: driven.db.wait("a"),
            lambda: driven.db.poll(),
            lambda: next(driven.db.watch()),
        ]
        for call in calls:
            with pytest.raises(wheeldb.StorePoisoned):
                call()  # type: ignore[no-untyped-call]
        # What is shown was shown before.
        assert driven.db.get("a") is not None
        driven.disk.heal()
        driven.db.close()
        assert driver_threads(driven) == []

    def test_who_waits_learns_of_another_threads_failed_sync(self) -> None:
        driven = Driven()
        driven.db.schedule("a", delay=HOUR, id="a")
        driven.let_pass(120)
        waiting: list[Background[object]] = [
            Background(lambda: driven.db.lease(wait=None)),
            Background(lambda: driven.db.wait("a")),
        ]
        driven.disk.fail("sync_data", errno.EIO)
        with pytest.raises(wheeldb.CommitUnknown):
            driven.db.schedule("b", delay=1)
        for one in waiting:
            with pytest.raises(wheeldb.StorePoisoned):
                one.result()
        driven.db.close()

    def test_the_tasks_are_there_after_the_next_opening(self) -> None:
        driven = self.failing()
        waiting = Background(lambda: driven.db.lease("other", wait=None))
        driven.clock.advance(0.05)
        with pytest.raises(wheeldb.StorePoisoned):
            waiting.result()
        driven.db.close()  # without a word: it was told that the log has failed
        driven.disk.heal()
        with Driven(clock=driven.clock, disk=driven.disk) as again:
            assert again.db.get("a") is not None


class TestFullDisk:
    def test_time_goes_on_and_what_has_to_be_written_follows(self) -> None:
        # A lease that can't be renewed, ended or followed by an anchor is no reason
        # to stop: room comes back.
        with Driven(reserve=False) as driven:
            driven.db.schedule("a", delay=0, id="a", lease=30)
            driven.db.schedule("b", delay=40, id="b")
            (lease,) = driven.db.lease()
            driven.let_pass(1)
            driven.disk.fail("pwrite", errno.ENOSPC, forever=True)
            driven.disk.fail("allocate", errno.ENOSPC, forever=True)
            driven.let_pass(60)
            assert driven.db.statistics().leases_expired == 0
            assert driven.db.statistics().ready_count == 1
            driven.disk.heal()
            driven.let_pass(10)
            assert driven.db.statistics().leases_expired == 1
            lease.ack()
            assert [lease.id for lease in driven.db.lease()] == ["b"]


class TestClosing:
    def test_a_sleeping_driver_ends_at_once(self) -> None:
        driven = Driven()
        driven.db.schedule("a", delay=HOUR)
        driven.settle()
        assert driver_threads(driven) == ["wheeldb-driver", "wheeldb-tidier"]
        driven.db.close()
        assert driver_threads(driven) == []
        driven.db.close()

    def test_blocked_calls_raise(self) -> None:
        driven = Driven()
        driven.db.schedule("a", delay=HOUR, id="a")
        watch = driven.db.watch(driven.db.durable_lsn)
        waiting: list[Background[object]] = [
            Background(lambda: driven.db.lease(wait=None)),
            Background(lambda: driven.db.lease(wait=HOUR)),
            Background(lambda: driven.db.wait("a")),
            Background(lambda: next(watch)),
        ]
        until_waiting(driven.db, 1)
        driven.db.close()
        for one in waiting:
            with pytest.raises(wheeldb.ClosedError):
                one.result()

    def test_calls_that_race_with_it_are_done_or_refused(self) -> None:
        disk, clock = CrashableDisk(), WatchedClock(START)
        for _ in range(10):
            db = wheeldb.open("/store", clock=clock, disk=disk)
            done: list[str] = []

            may_close = threading.Event()

            def work(
                db: wheeldb.WheelDB = db,
                done: list[str] = done,
                may_close: threading.Event = may_close,
            ) -> None:
                while True:
                    done.append(db.schedule("a", delay=1).id)
                    if len(done) > 20:
                        may_close.set()

            workers = [Background(work) for _ in range(3)]
            assert may_close.wait(20)
            db.close()
            for worker in workers:
                with pytest.raises(wheeldb.ClosedError):
                    worker.result()
            with wheeldb.open("/store", clock=clock, disk=disk, driver=False) as again:
                assert all(again.get(id) is not None for id in done)
                for id in done:
                    again.cancel(id)

    def test_from_two_threads_both_wait_for_the_end(self) -> None:
        driven = Driven()
        closing = [Background(driven.db.close) for _ in range(2)]
        for one in closing:
            one.result()
        assert driver_threads(driven) == []
        wheeldb.open("/store", clock=driven.clock, disk=driven.disk).close()

    def test_the_driver_may_be_stopped_from_its_own_thread(self) -> None:
        driven = Driven()
        driver = driven.db._driver
        assert driver is not None
        driver._upkeep.step = driver.stop  # type: ignore[method-assign]
        driver.alarm()
        for thread in driver._threads:
            thread.join(20)
        assert driver.failure is None
        driven.db.close()
        assert driver_threads(driven) == []

    def test_an_interrupted_close_can_be_repeated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driven = Driven()
        stop = wheeldb.driver.Driver.stop

        def interrupted(driver: object) -> None:
            monkeypatch.setattr(wheeldb.driver.Driver, "stop", stop)
            raise KeyboardInterrupt

        monkeypatch.setattr(wheeldb.driver.Driver, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driven.db.close()
        driven.db.close()
        assert driver_threads(driven) == []
        wheeldb.open("/store", clock=driven.clock, disk=driven.disk).close()

    def test_a_store_that_nobody_refers_to_goes_on(self) -> None:
        driven = Driven()
        driver, gone = driven.db._driver, weakref.ref(driven.db)
        assert driver is not None
        driven.db.schedule("a", delay=5)
        del driven.db
        assert gone() is None
        driven.clock.advance(5)
        assert all(thread.is_alive() for thread in driver._threads)
        with pytest.raises(wheeldb.LockedError):
            wheeldb.open("/store", clock=driven.clock, disk=driven.disk)
        driver.stop()
