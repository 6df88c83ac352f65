"""What has to be done from time to time: the log's tail, anchors, checkpoints."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from driver_helpers import START, Background, Driven
from field_helpers import Bench

import wheeldb
from wheeldb.engine.engine import Thresholds
from wheeldb.engine.snapshots import snapshot_payloads

HOUR = 3_600


def kinds(db: wheeldb.WheelDB, kind: str) -> int:
    return sum(event.kind == kind for event in db.events())


class TestTail:
    def test_an_unsynced_frame_is_synced_within_50_ms_and_told_once(self) -> None:
        with Driven(durability="written") as driven:
            committer = driven.db._engine.committer
            driven.let_pass(1)
            receipt = driven.db.schedule("a", at=START + timedelta(days=1))
            driven.let_pass(0.049)
            syncs, frames = committer.syncs, committer.log_statistics().frames
            assert driven.db.durable_lsn < receipt.lsn
            assert driven.let_pass(0.001) == 1
            assert driven.db.durable_lsn == receipt.lsn
            assert committer.syncs == syncs + 1
            assert committer.log_statistics().frames == frames + 1
            assert driven.let_pass(59) == 0
            assert committer.log_statistics().frames == frames + 1

    def test_after_a_synced_one_there_is_only_the_empty_frame(self) -> None:
        with Driven() as driven:
            committer = driven.db._engine.committer
            driven.let_pass(1)
            driven.db.schedule("a", at=START + timedelta(days=1))
            syncs, frames = committer.syncs, committer.log_statistics().frames
            driven.let_pass(59)
            assert committer.syncs == syncs
            assert committer.log_statistics().frames == frames + 1

    def test_a_stream_of_unsynced_frames_puts_no_sync_off(self) -> None:
        # While it was the quiet that was waited for, a store that was never quiet was
        # never synced.
        with Driven(durability="written") as driven:
            lsns = []
            for _ in range(100):
                lsns.append(driven.db.schedule("a", delay=HOUR).lsn)
                driven.let_pass(0.01)
                if len(lsns) > 6:
                    assert driven.db.durable_lsn >= lsns[-7]
            assert driven.db._engine.committer.syncs < 40

    def test_a_poll_does_it_without_a_driver(self) -> None:
        with Bench(durability="written") as bench:
            receipt = bench.db.schedule("a", delay=HOUR)
            bench.clock.advance(0.05)
            bench.db.poll()
            assert bench.db.durable_lsn >= receipt.lsn


class TestCheckpoints:
    def test_one_comes_60_s_after_the_last_change_and_then_silence(self) -> None:
        with Driven() as driven:
            driven.let_pass(1)
            driven.db.schedule("a", at=START + timedelta(days=1), id="a")
            driven.let_pass(30)
            driven.db.schedule("b", at=START + timedelta(days=1))
            driven.let_pass(59.999)
            assert driven.db.statistics().checkpoints == 0
            driven.let_pass(0.001)
            driven.settle()
            assert driven.db.statistics().checkpoints == 1
            assert driven.let_pass(HOUR) == 0
            assert driven.db.statistics().checkpoints == 1

    def test_anchors_do_not_put_it_off(self) -> None:
        with Driven(elapsed_mark=10) as driven:
            driven.db.schedule("a", delay=HOUR)
            driven.let_pass(61)
            assert driven.db.statistics().checkpoints == 1

    def test_one_comes_when_the_table_is_full(self) -> None:
        with Driven() as driven:
            engine = driven.db._engine
            engine.thresholds = Thresholds(entries=100)
            for _ in range(5):
                driven.db.schedule_many([wheeldb.NewTask("a", delay=HOUR)] * 60)
                driven.settle()
            assert driven.db.statistics().checkpoints >= 2
            assert len(engine.state.active) < 120

    def test_a_timer_fires_beside_a_long_one(self) -> None:
        # The tidier is held up in the middle; due tasks go on.
        with Driven() as driven:
            engine = driven.db._engine
            driven.db.schedule("a", delay=61, id="a")
            driven.settle()
            waiting = Background(lambda: driven.db.lease(wait=None))
            with engine.checkpointing:
                driven.clock.advance(60)
                driven.until_tidying()
                driven.clock.advance(1)
                (lease,) = waiting.result()
                assert driven.db.statistics().checkpoints == 0
            driven.settle()
            assert driven.db.statistics().checkpoints == 1
            lease.ack()

    def test_a_poll_does_it_without_a_driver(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=HOUR)
            bench.clock.advance(60)
            bench.db.poll()
            assert bench.db.statistics().checkpoints == 1

    @pytest.mark.parametrize(
        "error",
        [OSError(errno.EIO, "no"), wheeldb.CorruptionError("an index of its own")],
    )
    def test_a_snapshot_that_fails_is_kept_in_mind_and_tried_again(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = []

        def snapshot() -> None:
            taken.append(bench.clock.read().boottime_ms)
            if len(taken) == 1:
                raise error

        with Bench() as bench:
            upkeep = bench.db._upkeep
            assert upkeep is not None
            monkeypatch.setattr(upkeep, "_snapshot", snapshot)
            monkeypatch.setattr(upkeep, "_wants_snapshot", lambda: True)
            for _ in range(20):
                bench.db.schedule("a", delay=HOUR)
                bench.clock.advance(60)
                bench.db.poll()
                assert len(taken) < 2 or upkeep.snapshot_error is None
                if len(taken) == 1:
                    assert upkeep.snapshot_error is error
            assert taken[1] - taken[0] == 600_000


class TestHowLongASnapshotSeesTheIndex:
    def slow_down(
        self, bench: Bench, seconds: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Let each of a snapshot's three pieces take so long."""

        def slowly(*args: Any) -> Iterator[bytes]:
            for piece in snapshot_payloads(*args):
                bench.clock.advance(seconds)
                yield piece

        bench.db.schedule("a", delay=100 * HOUR)
        bench.db.schedule("a", delay=0, id="b")
        assert bench.started() == ["b"]
        monkeypatch.setattr("wheeldb.care.snapshot_payloads", slowly)

    def test_a_minute_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Bench() as bench:
            self.slow_down(bench, 20, monkeypatch)
            assert bench.db.snapshot().name in bench.disk.list("/store/snapshots")

    def test_past_a_minute_it_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Bench() as bench:
            self.slow_down(bench, 20.001, monkeypatch)
            for call in (bench.db.snapshot, lambda: bench.db.backup("/backup")):
                with pytest.raises(TimeoutError, match="dropped: in 60 seconds"):
                    call()
            assert bench.disk.list("/store/snapshots") == []
            assert bench.disk.list("/") == ["store"]
            monkeypatch.undo()
            bench.db.snapshot()

    def test_a_dropped_one_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Bench() as bench:
            self.slow_down(bench, 20.001, monkeypatch)
            upkeep = bench.db._upkeep
            assert upkeep is not None
            upkeep.is_snapshot_due = True
            bench.db.poll()
            error = bench.db.statistics().snapshot_error
            assert error is not None
            assert "dropped" in error
            monkeypatch.undo()
            monkeypatch.setattr(upkeep, "_wants_snapshot", lambda: True)
            bench.clock.advance(600)
            bench.db.schedule("a", delay=HOUR)
            bench.clock.advance(60)
            bench.db.poll()
            assert bench.db.statistics().snapshot_error is None
            assert len(bench.disk.list("/store/snapshots")) == 1

    def test_it_is_let_go_before_the_file_is_synced_and_read_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Bench() as bench:
            index, told = bench.db._engine.state.index, []
            take, rename = index.snapshot, bench.disk.rename

            @contextmanager
            def watched() -> Iterator[Any]:
                with take() as view:
                    told.append("seen")
                    yield view
                told.append("let go")

            def named(source: str, target: str) -> None:
                told.append("named")
                rename(source, target)

            bench.db.checkpoint()
            monkeypatch.setattr(index, "snapshot", watched)
            monkeypatch.setattr(bench.disk, "rename", named)
            bench.db.snapshot()
            assert told[told.index("named") - 1] == "let go"
            monkeypatch.undo()


class TestAnchors:
    def test_one_a_minute_while_a_delay_is_pending(self) -> None:
        with Driven() as driven:
            driven.db.schedule("a", delay=600)
            driven.let_pass(10)
            before = kinds(driven.db, "anchored")
            driven.let_pass(600)
            assert kinds(driven.db, "anchored") == before + 9
            driven.db.lease()[0].ack()
            driven.let_pass(HOUR)
            assert kinds(driven.db, "anchored") == before + 9

    def test_one_at_each_step_of_the_wall_clock(self) -> None:
        with Driven() as driven:
            for seconds in (HOUR, -2 * HOUR, 0.5):
                driven.clock.step_wall(seconds)
                driven.settle()
            # Half a second is not worth one.
            assert kinds(driven.db, "anchored") == 2

    def test_one_when_the_trust_changes(self) -> None:
        with Driven() as driven:
            driven.let_pass(1)
            driven.clock.set_wall(START.replace(year=1990))
            driven.settle()
            assert driven.db.statistics().clock_trust == "untrusted"
            assert kinds(driven.db, "anchored") == 1
            driven.clock.set_wall(START.replace(day=2))
            driven.settle()
            assert kinds(driven.db, "anchored") == 2

    def test_it_is_durable_at_once(self) -> None:
        with Driven() as driven:
            driven.clock.step_wall(HOUR)
            driven.settle()
            anchored = [e.lsn for e in driven.db.events() if e.kind == "anchored"]
            assert driven.db.durable_lsn >= anchored[-1]


class TestNextIn:
    def test_nothing_is_never(self) -> None:
        with Bench() as bench:
            assert bench.db.next_in() is None

    def test_the_first_of_delay_instant_and_end_of_a_lease(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", at=START + timedelta(seconds=100), id="a")
            assert bench.db.next_in() == 100
            bench.db.schedule("b", delay=50, id="b")
            assert bench.db.next_in() == 50
            bench.db.schedule("c", delay=0, lease=20)
            (lease,) = bench.db.lease()
            assert bench.db.next_in() == 20
            lease.ack()
            assert bench.db.next_in() == 50

    def test_what_is_due_does_not_count_once_it_was_moved(self) -> None:
        with Bench() as bench:
            bench.db.schedule("a", delay=5)
            bench.clock.advance(6)
            assert bench.db.next_in() == 0
            assert bench.db.poll() == 1
            assert bench.db.next_in() is None

    def test_a_held_task_counts_as_the_clock_runs_now(self) -> None:
        with Bench() as bench:
            bench.clock.advance(HOUR)
            bench.db.schedule("a", at=START + timedelta(seconds=HOUR + 100))
            bench.db.close()
            bench.clock.reboot(off=1, wall=START)
            bench.open()
            assert bench.db.next_in() == HOUR + 100
            bench.clock.advance(HOUR + 100)
            assert bench.db.next_in() == 0
            assert bench.db.poll() == 1

    def test_a_loop_that_polls_then_meets_every_task(self) -> None:
        with Bench() as bench:
            for delay in (3, 8, 1, 8, 700, 20_000):
                bench.db.schedule("a", delay=delay)
            rounds, met = 0, 0
            while (seconds := bench.db.next_in()) is not None:
                bench.clock.advance(seconds)
                met += bench.db.poll()
                rounds += 1
                bench.started()
            assert (rounds, met) == (5, 6)
