"""Leases over their whole life: taken, kept, settled, run out, cut short."""

import pytest
from driver_helpers import START, Driven
from field_helpers import Bench

import wheeldb
from wheeldb import NewTask, TaskState
from wheeldb.engine.caution import CAUTION_MS, GOOD_RUNS


def state(db: wheeldb.WheelDB, id: str) -> TaskState | None:
    task = db.get(id)
    return None if task is None else task.state


class TestBlocks:
    def test_a_block_acks_at_its_end(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            for lease in bench.db.lease():
                with lease:
                    assert state(bench.db, "a") == "leased"
            assert state(bench.db, "a") == "done"

    def test_an_exception_nacks_and_comes_out(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            with pytest.raises(ZeroDivisionError), bench.db.lease()[0]:
                _ = 1 // 0
            task = bench.db.get("a")
            assert task is not None
            assert (task.state, task.attempts) == ("scheduled", 1)
            assert "ZeroDivisionError" in str(task.error)

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_the_end_of_the_program_releases(self, kind: type[BaseException]) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            with pytest.raises(kind), bench.db.lease()[0]:
                raise kind
            task = bench.db.get("a")
            assert task is not None
            assert (task.state, task.attempts, task.error) == ("due", 0, None)

    def test_what_was_settled_within_stays_so(self) -> None:
        with Bench() as bench:
            for id in "abc":
                bench.db.schedule("a", delay=0, id=id)
            for lease in bench.db.lease(limit=3):
                with lease:
                    if lease.id == "a":
                        lease.ack()
                    elif lease.id == "b":
                        lease.reject("no")
                    else:
                        lease.release(delay=5)
            states = [state(bench.db, id) for id in "abc"]
            assert states == ["done", "dead", "scheduled"]

    def test_the_blocks_own_error_is_not_hidden_by_a_lost_lease(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            (lease,) = bench.db.lease()

            def work() -> None:
                with lease:
                    bench.db.cancel("a", running=True)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as caught:
                work()
            assert "no longer leased" in caught.value.__notes__[0]

    def test_a_list_gives_back_what_was_not_settled(self) -> None:
        with Bench() as bench:
            bench.db.schedule_many([NewTask("a", delay=0, id=id) for id in "abc"])
            with bench.db.lease(limit=3) as leases:
                leases[1].ack()
            states = [state(bench.db, id) for id in "abc"]
            assert states == ["due", "done", "due"]
            assert [lease.attempt for lease in bench.db.lease(limit=3)] == [1, 1]

    def test_a_list_left_by_an_error_does_so_too(self) -> None:
        with Bench() as bench:
            bench.db.schedule_many([NewTask("a", delay=0, id=id) for id in "ab"])
            with (
                pytest.raises(ZeroDivisionError),
                bench.db.lease(limit=3) as leases,
                leases[0],
            ):
                _ = 1 // 0
            states = [state(bench.db, id) for id in "ab"]
            assert states == ["scheduled", "due"]

    def test_a_lost_one_is_no_error_at_the_end_of_the_list(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            with bench.db.lease():
                bench.db.cancel("a", running=True)

    def test_entry_restarts_the_clock(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30)
            (lease,) = bench.db.lease()
            bench.clock.advance(20)
            assert lease.remaining == 10
            with lease:
                assert lease.remaining == 30
                bench.clock.advance(5)
                lease.renew(100)
                assert lease.remaining == 100
                assert lease.deadline is not None
                assert (lease.deadline - START).total_seconds() == 125


class TestKeeping:
    def test_the_driver_renews_for_the_length_of_the_block(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=30)
            (lease,) = driven.db.lease()
            with lease.keep():
                # Each time a third of it has passed.
                for _ in range(30):
                    driven.let_pass(10)
                    assert lease.remaining == 30
            driven.let_pass(29.999)
            assert driven.db.statistics().leases_expired == 0
            driven.let_pass(0.001)
            assert driven.db.statistics().leases_expired == 1

    def test_a_poll_does_it_without_a_driver(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30)
            (lease,) = bench.db.lease()
            with lease.keep():
                for _ in range(10):
                    bench.clock.advance(20)
                    bench.db.poll()
            lease.ack()
            assert bench.db.statistics().leases_expired == 0

    def test_two_blocks_at_once(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=30)
            (lease,) = driven.db.lease()
            with lease.keep():
                with lease.keep():
                    driven.let_pass(60)
                driven.let_pass(60)
                lease.ack()

    def test_what_is_lost_is_kept_no_longer(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=30, id="a")
            (lease,) = driven.db.lease()
            with lease.keep():
                driven.db.cancel("a", running=True)
                driven.let_pass(61)
                assert driven.let_pass(300) == 0
            with pytest.raises(wheeldb.LeaseLost):
                lease.ack()

    def test_one_that_was_renewed_for_long_is_not_cut_back(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=30)
            (lease,) = driven.db.lease()
            lease.renew(1_000)
            with lease.keep():
                driven.let_pass(100)
                assert lease.remaining == 900
            lease.ack()


class TestRunningOut:
    def test_the_task_is_due_again_and_may_have_run(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30, id="a")
            (first,) = bench.db.lease()
            assert not first.may_have_run
            bench.clock.advance(30)
            (second,) = bench.db.lease()
            assert (second.attempt, second.may_have_run) == (2, True)
            assert second.fence > first.fence
            with pytest.raises(wheeldb.LeaseLost):
                first.ack()
            second.ack()

    def test_the_fence_is_good_until_somebody_takes_the_task(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30, id="a")
            (lease,) = bench.db.lease()
            bench.clock.advance(40)
            assert bench.db.poll() == 1
            assert state(bench.db, "a") == "due"
            lease.ack()
            assert state(bench.db, "a") == "done"
            assert bench.db.lease() == []

    def test_attempts_are_used_up(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, lease=30, id="a")
            for attempt in (1, 2, 3):
                (lease,) = bench.db.lease()
                assert lease.attempt == attempt
                bench.clock.advance(30)
            assert bench.db.lease() == []
            task = bench.db.get("a")
            assert task is not None
            assert (task.state, task.error) == ("dead", "lease expired")

    def test_a_saved_cursor_does_not_lose_the_end(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=0, lease=30, id="a")
            (lease,) = driven.db.lease()
            driven.let_pass(20)
            lease.save({"at": 7})
            driven.let_pass(10)
            assert driven.db.statistics().leases_expired == 1
            (again,) = driven.db.lease()
            assert again.cursor == {"at": 7}
            again.ack()

    def test_at_most_once_is_dead(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a", at_most_once=True)
            syncs = bench.db.statistics().syncs
            bench.db.lease()
            # Its start is known to the disk before the handler begins.
            assert bench.db.statistics().syncs == syncs + 1
            bench.clock.advance(30)
            bench.db.poll()
            assert state(bench.db, "a") == "dead"

    def test_thousands_of_stale_ends_do_not_pile_up(self) -> None:
        with Bench() as bench:
            bench.db.schedule("long", delay=0, lease=3_600, id="long")
            (long,) = bench.db.lease()
            for _ in range(40):
                bench.db.schedule_many([NewTask("a", delay=0)] * 100)
                bench.db.ack_many(bench.db.lease(limit=100))
            bench.db.poll()
            assert len(bench.db._engine.decider.lease_ends) < 2_000
            long.ack()


class TestInterruption:
    def test_three_recoveries_then_dead(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            for recoveries in range(4):
                (lease,) = bench.db.lease()
                assert (lease.attempt, lease.recoveries) == (1, recoveries)
                assert lease.may_have_run is (recoveries > 0)
                bench.kill()
            assert bench.db.lease() == []
            task = bench.db.get("a")
            assert task is not None
            assert (task.state, task.error) == ("dead", "interrupted")

    def test_ten_over_power_cuts(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            for _ in range(11):
                (lease,) = bench.db.lease()
                bench.db._engine.committer.sync()
                bench.disk.crash("none")
                bench.clock.reboot(off=1)
                bench.open()
            assert lease.recoveries == 10
            assert state(bench.db, "a") == "dead"

    def test_at_most_once_is_dead_at_once(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a", at_most_once=True)
            bench.db.lease()
            bench.kill()
            assert state(bench.db, "a") == "dead"

    def test_a_close_gives_back_what_is_leased(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            (lease,) = bench.db.lease()
            bench.reopen()
            (again,) = bench.db.lease()
            assert (again.attempt, again.recoveries) == (1, 0)
            assert again.may_have_run
            assert again.fence > lease.fence

    def test_any_number_of_closes_uses_up_nothing(self) -> None:
        with Bench(recoveries_max=1) as bench:
            bench.db.schedule("a", delay=0, id="a")
            for _ in range(5):
                (lease,) = bench.db.lease()
                assert (lease.attempt, lease.recoveries) == (1, 0)
                bench.reopen()
            assert bench.db.recovery.interrupted == 0


class TestCaution:
    """After a power cut each start is synced first, until that has gone well."""

    @staticmethod
    def cut(bench: Bench) -> None:
        bench.disk.crash("none")
        bench.clock.reboot(off=1)
        bench.open()

    @staticmethod
    def syncs_of_a_lease(bench: Bench) -> int:
        bench.db.schedule("a", delay=0)
        # What is due to be synced for other reasons.
        bench.db.poll()
        before = bench.db.statistics().syncs
        (lease,) = bench.db.lease()
        syncs = bench.db.statistics().syncs - before
        lease.ack()
        return syncs

    def test_as_usual_it_is_not(self) -> None:
        with Bench() as bench:
            assert self.syncs_of_a_lease(bench) == 0
            bench.kill()
            assert self.syncs_of_a_lease(bench) == 0
            bench.reopen()
            assert self.syncs_of_a_lease(bench) == 0

    def test_for_ten_minutes(self) -> None:
        with Bench() as bench:
            self.cut(bench)
            assert self.syncs_of_a_lease(bench) == 1
            bench.clock.advance((CAUTION_MS - 1) / 1000)
            assert self.syncs_of_a_lease(bench) == 1
            bench.clock.advance(0.001)
            assert self.syncs_of_a_lease(bench) == 0

    def test_for_a_thousand_good_runs(self) -> None:
        with Bench() as bench:
            self.cut(bench)
            bench.db.schedule_many([NewTask("a", delay=0)] * (GOOD_RUNS - 1))
            bench.db.ack_many(bench.db.lease(limit=GOOD_RUNS))
            assert self.syncs_of_a_lease(bench) == 1
            assert self.syncs_of_a_lease(bench) == 0

    def test_a_task_that_cuts_the_power_is_counted(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=0, id="a")
            starts = 0
            while leases := bench.db.lease():
                starts += 1
                assert leases[0].id == "a"
                self.cut(bench)
                assert starts < 20
            # The first start was lost with the power, the others were not.
            assert starts == 12
            assert state(bench.db, "a") == "dead"


class TestOrder:
    def test_priority_then_due_time_then_number(self) -> None:
        with Bench() as bench:
            for id, delay, priority in (
                ("late", 9, 0), ("twin", 5, 0), ("first", 5, -1), ("low", 1, 3),
                ("twin2", 5, 0), ("early", 2, 0),
            ):  # fmt: skip
                bench.db.schedule("a", delay=delay, priority=priority, id=id)
            bench.clock.advance(10)
            order = [lease.id for lease in bench.db.lease(limit=9)]
            assert order == ["first", "early", "twin", "twin2", "late", "low"]

    def test_the_limit(self) -> None:
        with Bench() as bench:
            bench.db.schedule_many([NewTask("a", delay=0)] * 5)
            assert [len(bench.db.lease(limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_several_queues_share_one_order(self) -> None:
        with Bench() as bench:
            for id, queue, delay in (
                ("a", "one", 3), ("b", "two", 1), ("c", "two", 4), ("d", "three", 2),
            ):  # fmt: skip
                bench.db.schedule("a", delay=delay, queue=queue, id=id)
            bench.clock.advance(5)
            order = [lease.id for lease in bench.db.lease(["one", "two"], limit=9)]
            assert order == ["b", "a", "c"]

    def test_names_pass_others_by(self) -> None:
        with Bench() as bench:
            for name in "abcab":
                bench.db.schedule(name, delay=0)
            names = [lease.name for lease in bench.db.lease(limit=9, names=["b", "c"])]
            assert names == ["b", "c", "b"]
            assert [lease.name for lease in bench.db.lease(limit=9)] == ["a", "a"]

    def test_names_are_not_hidden_by_a_flood_of_others(self) -> None:
        with Bench(window_max=100) as bench:
            bench.db.schedule_many(
                [NewTask("flood", n, delay=0, priority=-1) for n in range(500)]
            )
            bench.db.schedule("other", id="in-another-lane", delay=0)
            bench.reopen()
            got = bench.db.lease(limit=5, names=["other"])
            assert [lease.id for lease in got] == ["in-another-lane"]
            assert len(bench.db.lease(limit=400, names=["flood"])) == 400

    def test_a_lease_is_filled_from_more_than_the_window_holds(self) -> None:
        with Bench(window_max=100) as bench:
            receipts = bench.db.schedule_many(
                [NewTask("a", n, delay=0, priority=n % 3) for n in range(900)]
            )
            ids = [receipt.id for receipt in receipts]
            bench.reopen()
            got = [lease.id for lease in bench.db.lease(limit=700)]
            assert got == [*ids[0::3], *ids[1::3], *ids[2::3]][:700]
