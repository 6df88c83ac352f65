"""Group commit: order, durability, visibility, poison.

Goal: what a caller is told is so, whoever commits beside it and whatever the disk does.
Method: a disk in memory whose syncs wait until the test lets them go on, so that every
moment "while that one syncs" can be stood in; and the same disk failing call by call.
"""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import wheeldb
from wheeldb.disk import UnsyncedDisk
from wheeldb.engine import amendment, commit
from wheeldb.engine.commit import Committer, Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.history import scan_frames
from wheeldb.engine.row import Finished
from wheeldb.engine.waiting import wait_for_end
from wheeldb.errors import StorageFullError
from wheeldb.events import ELAPSED
from wheeldb.leases import Lease, ack_many
from wheeldb.log.frame import PAYLOAD_BYTES_MAX, FrameType
from wheeldb.testing import CrashableDisk, ManualClock

PATIENCE_S = 20


class HeldDisk(CrashableDisk):
    """A disk whose syncs of data wait, while told so, until the test lets one go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = False
        self.arrived = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def sync_data(self, handle: int) -> None:
        if self.is_holding:
            self.arrived.release()
            assert self._go.acquire(timeout=PATIENCE_S)
        super().sync_data(handle)

    def wait_for_sync(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE_S)

    def let_go(self, *, all_of_them: bool = False) -> None:
        if all_of_them:
            self.is_holding = False
        self._go.release()


class Worker:
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.answer: object = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(PATIENCE_S)
        assert self.is_done, "the call did not return"
        if self.error is not None:
            raise self.error
        return self.answer


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if holds():
            return
        os.sched_yield()
    pytest.fail("it never came to that")


class Bench:
    """A store on a disk whose syncs can be held."""

    def __init__(self, **options: object) -> None:
        self.disk = HeldDisk()
        self.clock = ManualClock()
        self.options = options
        self.db = self.open()

    def open(self) -> wheeldb.WheelDB:
        return wheeldb.open(
            "/store",
            disk=self.disk,
            clock=self.clock,
            driver=False,
            **self.options,  # type: ignore[arg-type]
        )

    @property
    def committer(self) -> Committer:
        return self.db._engine.committer

    def waiting(self, *, synced: bool = True) -> int:
        return len(self.committer._lines[synced])

    def change(self, decide: Callable[[Decider], object], *, synced: bool) -> object:
        return self.db._engine.commit(decide, synced=synced, need=Need.BALLAST)

    def frames(self) -> list[tuple[FrameType, int, int]]:
        return [
            (frame.header.type, frame.header.first_lsn, frame.header.lsn_count)
            for frame in scan_frames(self.db._engine, 0)
        ]

    def crash(self, profile: str) -> wheeldb.WheelDB:
        self.disk.crash(profile)
        self.db = self.open()
        return self.db


# Order and groups.


def test_many_threads_commit_everything_in_one_order() -> None:
    bench = Bench()
    receipts: dict[int, list[wheeldb.Receipt]] = {}

    def work(number: int) -> None:
        receipts[number] = [
            bench.db.schedule("a", [number, count], delay=60) for count in range(200)
        ]

    workers = [Worker(lambda number=number: work(number)) for number in range(8)]  # type: ignore[misc]
    for worker in workers:
        worker.join()
    lsns = [[receipt.lsn for receipt in mine] for mine in receipts.values()]
    assert all(mine == sorted(mine) for mine in lsns)
    everything = sorted(lsn for mine in lsns for lsn in mine)
    assert everything == list(range(everything[0], everything[0] + 1_600))
    assert bench.db.durable_lsn >= everything[-1]
    assert bench.db.check() == []
    db = bench.crash("none")
    assert db.statistics().pending_count == 1_600
    payloads = {task.number: task.payload for task in db.tasks()}
    for number, mine in receipts.items():
        for count, receipt in enumerate(mine):
            assert payloads[receipt.lsn] == [number, count]


def test_who_waits_while_one_syncs_shares_the_next_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Who waits is woken; nobody comes to it by running out of patience.
    monkeypatch.setattr(commit, "PATIENCE_S", 10 * PATIENCE_S)
    bench = Bench()
    before = bench.db.statistics()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=1))
    bench.disk.wait_for_sync()
    others = [
        Worker(lambda n=n: bench.db.schedule("a", n, delay=1))  # type: ignore[misc]
        for n in range(7)
    ]
    wait_until(lambda: bench.waiting() == 8)
    bench.disk.let_go()
    first.join()  # without waiting for the next sync
    bench.disk.wait_for_sync()
    assert not any(worker.is_done for worker in others)
    bench.disk.let_go(all_of_them=True)
    for worker in others:
        worker.join()
    after = bench.db.statistics()
    assert after.syncs == before.syncs + 2
    assert [count for *_, count in bench.frames()][-2:] == [1, 7]


def test_an_answer_does_not_wait_for_the_next_group() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    workers = [Worker(lambda: bench.db.schedule("a", delay=1))]
    bench.disk.wait_for_sync()
    workers += [Worker(lambda: bench.db.schedule("b", delay=1)) for _ in range(3)]
    wait_until(lambda: bench.waiting() == 4)
    bench.disk.let_go()
    bench.disk.wait_for_sync()
    late = Worker(lambda: bench.db.schedule("c", delay=1))
    wait_until(lambda: bench.waiting() == 4)
    bench.disk.let_go()
    bench.disk.wait_for_sync()
    # The third group syncs: all of the second have their answer.
    for worker in workers:
        worker.join()
    assert not late.is_done
    bench.disk.let_go()
    late.join()


def test_a_group_stops_at_its_limits_and_the_rest_follows() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=1))
    bench.disk.wait_for_sync()
    big = "x" * 60_000
    others = [Worker(lambda: bench.db.schedule("b", big, delay=1)) for _ in range(40)]
    wait_until(lambda: bench.waiting() == 41)
    bench.disk.let_go(all_of_them=True)
    for worker in [first, *others]:
        worker.join()
    counts = [count for *_, count in bench.frames()]
    assert max(counts) == 17
    assert bench.db.statistics().pending_count == 41


def test_a_frame_over_its_limit_refuses_its_own_call_only() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=1))
    bench.disk.wait_for_sync()
    huge = "q" * (PAYLOAD_BYTES_MAX + 1)
    near = "q" * (PAYLOAD_BYTES_MAX - 1_000)
    others = [
        Worker(
            lambda queue=queue: bench.change(  # type: ignore[misc]
                lambda decider: amendment.pause_queue(decider, queue), synced=True
            )
        )
        for queue in ("s" * 200_000, huge, near)
    ]
    wait_until(lambda: bench.waiting() == 4)
    bench.disk.let_go(all_of_them=True)
    first.join()
    small, too_large, next_frame = others
    with pytest.raises(wheeldb.PayloadTooLarge):
        too_large.join()
    assert (small.join(), next_frame.join()) == (True, True)
    assert [count for *_, count in bench.frames()][-2:] == [1, 1]
    assert bench.db.check() == []


# Unsynced frames beside a sync, and what is seen of both.


def test_a_written_call_returns_while_another_syncs() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    synced = Worker(lambda: bench.db.schedule("a", delay=60, id="synced"))
    bench.disk.wait_for_sync()
    bench.db.schedule("a", delay=0, id="written", durability="written")
    # Each event shows at its own level.
    assert bench.db.get("synced") is None
    assert [task.id for task in bench.db.tasks()] == ["written"]
    assert bench.db.get("written") is not None
    assert [lease.id for lease in bench.db.lease()] == ["written"]
    task = bench.db.get("written")
    assert task is not None
    assert task.state == "leased"
    bench.disk.let_go(all_of_them=True)
    synced.join()
    assert {task.id for task in bench.db.tasks()} == {"synced", "written"}
    kinds = [kind for kind, *_ in bench.frames()]
    assert kinds.count(FrameType.UNSYNCED) >= 2
    assert bench.db.check() == []


def test_a_reader_sees_the_row_from_before_until_it_is_durable() -> None:
    bench = Bench()
    bench.db.schedule("a", 1, delay=60, id="x")
    bench.db.schedule("a", 1, delay=60, id="y")
    bench.disk.is_holding = True

    def change() -> list[object]:
        with bench.db.batch() as batch:
            batch.schedule("a", 2, delay=5, id="x", if_exists="replace")
            batch.cancel("y")
            batch.schedule("a", 3, delay=5, id="z")
        return batch.results

    worker = Worker(change)
    bench.disk.wait_for_sync()
    payloads = {task.id: task.payload for task in bench.db.tasks()}
    assert payloads == {"x": 1, "y": 1}
    x, y = bench.db.get("x"), bench.db.get("y")
    assert x is not None
    assert y is not None
    assert (x.payload, y.state) == (1, "scheduled")
    assert bench.db.get("z") is None
    assert not list(bench.db.tasks(state="cancelled"))
    bench.disk.let_go(all_of_them=True)
    worker.join()
    payloads = {task.id: task.payload for task in bench.db.tasks()}
    assert payloads == {"x": 2, "z": 3}
    assert [task.id for task in bench.db.tasks(state="cancelled")] == ["y"]


def test_the_window_hears_of_changes_in_their_order() -> None:
    # The younger event is shown first. What the older one takes out of the window
    # must not be what the younger one has put there.
    bench = Bench()
    bench.db.schedule("a", delay=60, id="x")
    soon = bench.db._engine.now().elapsed_ms + 60_000
    bench.disk.is_holding = True
    away = Worker(
        lambda: bench.change(
            lambda decider: amendment.reschedule(decider, "x", ELAPSED, 10**9, None),
            synced=True,
        )
    )
    bench.disk.wait_for_sync()
    bench.change(
        lambda decider: amendment.reschedule(decider, "x", ELAPSED, soon, None),
        synced=False,
    )
    bench.disk.let_go(all_of_them=True)
    away.join()
    assert bench.db.check() == []
    bench.clock.advance(60)
    assert [lease.id for lease in bench.db.lease()] == ["x"]


def test_a_written_answer_rests_on_what_is_written() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    synced = Worker(lambda: bench.db.schedule("a", delay=60, id="x"))
    bench.disk.wait_for_sync()
    again = bench.db.schedule("a", delay=60, id="x", durability="written")
    assert not again.created
    bench.disk.let_go(all_of_them=True)
    synced.join()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_synced_answer_makes_durable_what_it_rests_on(is_refused: bool) -> None:
    bench = Bench()
    bench.db.schedule("a", 1, delay=60, id="x", durability="written")
    lsn = bench.db.statistics().last_lsn
    assert bench.db.durable_lsn < lsn
    if is_refused:
        with pytest.raises(wheeldb.TaskExists):
            bench.db.schedule("a", 2, delay=60, id="x")
    else:
        assert not bench.db.schedule("a", 1, delay=60, id="x").created
    assert bench.db.durable_lsn == bench.db.statistics().last_lsn == lsn
    # Nothing is left to be made durable: the next answer costs no sync.
    syncs = bench.db.statistics().syncs
    assert not bench.db.schedule("a", 1, delay=60, id="x").created
    assert bench.db.statistics().syncs == syncs
    db = bench.crash("none")
    assert db.get("x") is not None


def test_an_answer_about_a_finished_id_is_durable() -> None:
    bench = Bench(durability="written")
    receipt = bench.db.schedule("a", delay=0)
    bench.db.lease()[0].ack()
    answer = bench.change(
        lambda decider: amendment.cancel(decider, receipt.id, running=False),
        synced=True,
    )
    assert answer == "finished"
    assert bench.db.durable_lsn == bench.db.statistics().last_lsn


def test_an_unsynced_frame_never_reaches_the_bound() -> None:
    bench = Bench(durability="written")
    committer = bench.committer
    committer.sync()
    # As if 2**20 numbers had been taken since.
    committer._bound = bench.db.statistics().last_lsn + 4
    for _ in range(3):
        bench.db.schedule("a", delay=1)
    assert committer.has_unsynced()
    bench.db.schedule("a", delay=1)
    assert not committer.has_unsynced()
    assert bench.frames()[-1][0] == FrameType.SYNCED
    assert committer._bound > bench.db.statistics().last_lsn + 2**19
    bench.db.schedule("a", delay=1)
    assert bench.frames()[-1][0] == FrameType.UNSYNCED


def test_a_segment_is_left_only_when_no_sync_runs() -> None:
    bench = Bench(segment_bytes=64 * 2**10)
    big = "x" * 30_000
    bench.db.schedule("a", big, delay=1)
    bench.disk.is_holding = True
    synced = Worker(lambda: bench.db.schedule("a", big, delay=1, id="s"))
    bench.disk.wait_for_sync()
    written = Worker(
        lambda: bench.db.schedule("a", big, delay=1, id="w", durability="written")
    )
    wait_until(lambda: bench.waiting() == 2)
    assert not written.is_done
    assert bench.db.statistics().log_segments == 1
    bench.disk.let_go(all_of_them=True)
    synced.join()
    written.join()
    assert bench.db.statistics().log_segments == 2
    db = bench.crash("none")
    assert {task.id for task in db.tasks()} >= {"s", "w"}
    assert db.check() == []


def test_what_a_sync_covers_is_known_as_it_begins() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    synced = Worker(lambda: bench.db.schedule("a", delay=60))
    bench.disk.wait_for_sync()
    covered = bench.db.statistics().last_lsn
    bench.db.schedule("a", delay=60, durability="written")
    bench.disk.let_go(all_of_them=True)
    synced.join()
    assert bench.db.durable_lsn == covered


def test_a_closed_log_takes_no_call_that_comes_late() -> None:
    bench = Bench()
    engine = bench.db._engine
    bench.db.close()
    operations = len(bench.disk.operations)
    for synced in (True, False):
        with pytest.raises(wheeldb.ClosedError):
            engine.commit(
                lambda decider: amendment.pause_queue(decider, "default"),
                synced=synced,
            )
    with pytest.raises(wheeldb.ClosedError):
        engine.committer.write_watermark()
    assert len(bench.disk.operations) == operations


def test_a_call_from_within_another_is_refused() -> None:
    # So it is with a signal handler that runs in the middle of one.
    bench = Bench()
    bench.db.schedule("a", delay=60, id="x")
    with pytest.raises(RuntimeError, match="signal handler"):
        bench.change(lambda decider: bench.db.cancel("x"), synced=True)
    task = bench.db.get("x")
    assert task is not None
    assert task.state == "scheduled"
    assert bench.db.cancel("x") == "cancelled"


# Decisions that break off.


def test_a_fault_in_a_decision_reaches_its_caller_and_changes_nothing() -> None:
    bench = Bench()
    bench.db.schedule("a", delay=60, id="x")
    last_lsn = bench.db.statistics().last_lsn

    def faulty(decider: Decider) -> None:
        amendment.cancel(decider, "x", running=False)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.change(faulty, synced=True)
    assert bench.db.statistics().last_lsn == last_lsn
    task = bench.db.get("x")
    assert task is not None
    assert task.state == "scheduled"
    assert bench.db.check() == []
    bench.db.schedule("a", delay=60)


def test_a_decision_that_fails_under_every_leader_poisons() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=60, id="first"))
    bench.disk.wait_for_sync()

    def faulty(decider: Decider) -> None:
        raise ZeroDivisionError

    good = Worker(lambda: bench.db.schedule("a", delay=60, id="good"))
    wait_until(lambda: bench.waiting() == 2)
    bad = Worker(lambda: bench.change(faulty, synced=True))
    wait_until(lambda: bench.waiting() == 3)
    bench.disk.let_go(all_of_them=True)
    first.join()
    # Its leader could not know whose fault it was, and left.
    with pytest.raises(ZeroDivisionError):
        good.join()
    with pytest.raises(wheeldb.CommitUnknown):
        bad.join()
    with pytest.raises(wheeldb.StorePoisoned):
        bench.db.schedule("a", delay=60)
    assert [task.id for task in bench.db.tasks()] == ["first"]


AMENDMENTS: dict[str, Callable[[wheeldb.WheelDB, str], object]] = {
    "cancel": lambda db, task_id: db.cancel(task_id),
    "reschedule": lambda db, task_id: db.reschedule(task_id, delay=1),
    "run_now": lambda db, task_id: db.run_now(task_id),
    "pause": lambda db, task_id: db.pause(task_id),
    "resume": lambda db, task_id: db.resume(task_id),
    "revive": lambda db, task_id: db.revive(task_id),
}


@pytest.mark.parametrize("name", AMENDMENTS)
def test_a_bad_id_fails_its_own_call_and_nobody_elses(name: str) -> None:
    """It is refused before it is in line, where it would meet whoever leads."""
    bench = Bench()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=60))
    bench.disk.wait_for_sync()
    good = Worker(lambda: bench.db.schedule("a", delay=60))
    wait_until(lambda: bench.waiting() == 2)
    bad = Worker(lambda: AMENDMENTS[name](bench.db, 5))  # type: ignore[arg-type]
    wait_until(lambda: bad.is_done or bench.waiting() == 3)
    bench.disk.let_go(all_of_them=True)
    first.join()
    good.join()
    with pytest.raises(TypeError, match="not a str"):
        bad.join()
    assert bench.committer.poison is None


ENDINGS: dict[str, Callable[[Lease], object]] = {
    "ack": lambda lease: lease.ack(),
    "nack": lambda lease: lease.nack("no"),
    "reject": lambda lease: lease.reject("no"),
    "release": lambda lease: lease.release(),
}


# What ends the attempt ends the task, if that was cancelled meanwhile.
@pytest.mark.parametrize(
    ("ending", "is_cancelled"),
    [("ack", False), *((ending, True) for ending in ENDINGS)],
)
def test_who_begins_to_wait_while_the_end_is_on_its_way_is_told_by_the_log(
    ending: str, is_cancelled: bool
) -> None:
    bench = Bench()
    bench.db.schedule("a", delay=0)
    (lease,) = bench.db.lease()
    if is_cancelled:
        assert bench.db.cancel(lease.id) == wheeldb.CancelOutcome.LEASED
    bench.disk.is_holding = True
    ends = Worker(lambda: ENDINGS[ending](lease))
    bench.disk.wait_for_sync()
    engine = bench.db._engine
    waits = Worker(
        lambda: wait_for_end(engine, lease.id, None, lambda: None, lambda: True)
    )
    wait_until(lambda: bool(engine.state.awaited))
    bench.disk.let_go(all_of_them=True)
    ends.join()
    end = waits.join()
    assert isinstance(end, Finished)
    assert end.state == ("done" if ending == "ack" else "cancelled")


# Poison.


@pytest.mark.parametrize("name", AMENDMENTS)
@pytest.mark.parametrize("in_batch", [False, True])
def test_an_unknown_outcome_names_the_task(name: str, in_batch: bool) -> None:
    bench = Bench()
    bench.db.schedule("a", delay=60, id="known", retry=wheeldb.Retry(1))
    if name == "revive":
        bench.db.run_now("known")
        bench.db.lease()[0].reject("no")
    elif name == "resume":
        bench.db.pause("known")
    bench.disk.fail("sync_data", errno.EIO)

    def amend() -> None:
        if not in_batch:
            AMENDMENTS[name](bench.db, "known")
            return
        with bench.db.batch() as batch:
            AMENDMENTS[name](batch, "known")  # type: ignore[arg-type]

    with pytest.raises(wheeldb.CommitUnknown) as caught:
        amend()
    assert caught.value.ids == ("known",)


SETTLINGS: dict[str, Callable[[Lease], object]] = {
    **ENDINGS,
    "ack with a follow-up": lambda lease: lease.ack(
        then=[wheeldb.NewTask("b", delay=1, id="next")]
    ),
    "save": lambda lease: lease.save("half"),
    "ack_many": lambda lease: ack_many(lease._access, [lease]),
}


@pytest.mark.parametrize("settling", SETTLINGS)
def test_an_unknown_outcome_names_the_lease_s_task(settling: str) -> None:
    bench = Bench()
    bench.db.schedule("a", delay=0, id="known")
    (lease,) = bench.db.lease()
    bench.disk.fail("sync_data", errno.EIO)
    with pytest.raises(wheeldb.CommitUnknown) as caught:
        SETTLINGS[settling](lease)
    follow_ups = ("next",) if "follow-up" in settling else ()
    assert caught.value.ids == ("known", *follow_ups)


@pytest.mark.parametrize("operation", ["sync_data", "pwrite"])
def test_a_failed_write_or_sync_ends_all_writing(operation: str) -> None:
    bench = Bench()
    bench.db.schedule("a", 1, delay=60, id="kept")
    bench.disk.fail(operation, errno.EIO)
    with pytest.raises(wheeldb.CommitUnknown) as caught:
        bench.db.schedule("a", 2, delay=60, id="doubtful")
    assert caught.value.ids == ("doubtful",)
    assert isinstance(caught.value.__cause__, OSError)
    for change in (
        lambda: bench.db.schedule("a", delay=60),
        lambda: bench.db.schedule("a", delay=60, durability="written"),
        lambda: bench.db.cancel("kept"),
        lambda: bench.db.checkpoint(),
        lambda: bench.db.snapshot(),
        lambda: bench.db.poll(),
    ):
        with pytest.raises(wheeldb.StorePoisoned):
            change()
    # Reads answer from what was durable.
    assert [task.id for task in bench.db.tasks()] == ["kept"]
    assert bench.db.get("doubtful") is None
    task = bench.db.get("kept")
    assert task is not None
    assert task.payload == 1
    names = [entry.name for entry in bench.disk.operations]
    bench.db.close()
    closing = [entry.name for entry in bench.disk.operations][len(names) :]
    assert not {"pwrite", "sync", "sync_data", "rename", "truncate"} & set(closing)
    db = bench.open()
    assert db.get("kept") is not None
    assert db.check() == []


def test_everybody_in_the_group_is_told_and_nobody_else_succeeds() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    first = Worker(lambda: bench.db.schedule("a", delay=60, id="first"))
    bench.disk.wait_for_sync()
    others = {
        name: Worker(lambda name=name: bench.db.schedule("a", delay=60, id=name))  # type: ignore[misc]
        for name in ("b", "c", "d")
    }
    wait_until(lambda: bench.waiting() == 4)
    bench.disk.let_go()
    first.join()
    bench.disk.wait_for_sync()
    late = Worker(lambda: bench.db.schedule("a", delay=60, id="late"))
    wait_until(lambda: bench.waiting() == 4)
    bench.disk.fail("sync_data", errno.EIO)
    bench.disk.let_go(all_of_them=True)
    for name, worker in others.items():
        with pytest.raises(wheeldb.CommitUnknown) as caught:
            worker.join()
        assert caught.value.ids == (name,)
    with pytest.raises(wheeldb.StorePoisoned):
        late.join()
    assert [task.id for task in bench.db.tasks()] == ["first"]
    # What a failed sync lost is not read back as if it were there.
    db = bench.crash("failed_sync")
    assert "first" in {task.id for task in db.tasks()}
    assert db.get("late") is None


def test_a_written_frame_that_fails_beside_a_sync_fails_both() -> None:
    bench = Bench()
    bench.disk.is_holding = True
    synced = Worker(lambda: bench.db.schedule("a", delay=60, id="s"))
    bench.disk.wait_for_sync()
    bench.disk.fail("pwrite", errno.EIO)
    with pytest.raises(wheeldb.CommitUnknown):
        bench.db.schedule("a", delay=60, id="w", durability="written")
    bench.disk.let_go(all_of_them=True)
    with pytest.raises(wheeldb.CommitUnknown):
        synced.join()
    assert not list(bench.db.tasks())


def test_a_sync_is_never_repeated() -> None:
    bench = Bench()
    bench.disk.fail("sync_data", errno.EIO)
    with pytest.raises(wheeldb.CommitUnknown):
        bench.db.schedule("a", delay=60)
    syncs = [entry for entry in bench.disk.operations if entry.name == "sync_data"]
    for change in (bench.committer.sync, bench.db.poll, bench.db.checkpoint):
        with pytest.raises(wheeldb.StorePoisoned):
            change()
    bench.db.close()
    again = [entry for entry in bench.disk.operations if entry.name == "sync_data"]
    assert again == syncs


# Every operation, every error.

SPOILED = (wheeldb.CommitUnknown, wheeldb.StorePoisoned)


class Story:
    """A short life of a store; notes what was acknowledged."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.is_poisoned = False
        self.errors: list[BaseException] = []
        # By id: there, gone, or None for not known.
        self.told: dict[str, bool | None] = {}

    def step(self, act: Callable[[], object], **told: bool) -> None:
        """Do one thing; ``told`` is what its success promises."""
        try:
            act()
        except SPOILED as error:
            self.errors.append(error)
            self.is_poisoned = True
            self.told.update(dict.fromkeys(told))
        except (wheeldb.WheelDBError, OSError) as error:
            self.errors.append(error)
        else:
            assert not (self.is_poisoned and told), "it succeeded on a dead store"
            self.told.update(told)

    def run(self) -> None:
        db = self.bench.db
        for name in ("a", "b"):
            self.step(
                lambda name=name: db.schedule("t", delay=0, id=name),  # type: ignore[misc]
                **{name: True},
            )
        self.step(
            lambda: db.schedule_many(
                [wheeldb.NewTask("t", "x" * 30_000, delay=60, id=i) for i in "cd"]
            ),
            c=True,
            d=True,
        )
        self.step(lambda: db.schedule("t", delay=60, durability="written"))
        self.step(db.checkpoint)
        self.step(lambda: db.cancel("c"), c=False)
        self.step(lambda: self._ack_first(db))
        self.step(lambda: db.schedule("t", "x" * 30_000, delay=60, id="e"), e=True)
        self.bench.clock.advance(1)
        self.step(db.poll)
        self.step(db.snapshot)
        self.step(lambda: db.schedule("t", delay=60, id="f"), f=True)

    def _ack_first(self, db: wheeldb.WheelDB) -> None:
        leases = db.lease()
        if leases:
            lease = leases[0]
            self.told[lease.id] = None
            lease.ack()
            self.told[lease.id] = False

    def verify(self) -> None:
        """What was acknowledged is found, after a kill and after a power cut."""
        disk = self.bench.disk
        disk.heal()
        for profile in ("kill", "none"):
            self.bench.disk = disk.clone()  # type: ignore[assignment]
            if profile == "kill":
                self.bench.disk.kill()
            else:
                self.bench.disk.crash(profile)
            db = wheeldb.open(
                "/store",
                disk=self.bench.disk,
                clock=self.bench.clock,
                driver=False,
            )
            unfinished = {task.id for task in db.tasks()}
            for name, is_there in self.told.items():
                if is_there is not None:
                    assert (name in unfinished) == is_there, (profile, name)
            assert db.check() == []
            db.close()


OPERATIONS = (
    "pwrite",
    "sync_data",
    "sync_directory",
    "rename",
    "truncate",
    "allocate",
    "unlink",
    "open",
    "pread",
    "size",
    "list",
    "close",
)
# What nobody needs to hear of: the call was repeated, or its effect is a help only.
HARMLESS = {("pwrite", "short"), ("pread", "short"), ("pwrite", errno.ENOSPC)}
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EINTR)
FAULTS = [
    *((operation, error) for operation in OPERATIONS for error in ERRORS),
    ("pwrite", "short"),
    ("pread", "short"),
]


def tell_story(
    operation: str, error: int | str, nth: int, *, forever: bool, path: str = ""
) -> bool:
    """Fail the nth call of an operation on a path; return whether it came to that."""
    bench = Bench(segment_bytes=64 * 2**10)
    story = Story(bench)
    bench.disk.fail(operation, error, nth, forever, path=path)
    story.run()
    armed = bench.disk._faults._faults
    was_hit = not armed or armed[0].left <= 0
    if was_hit and not story.errors:
        # A snapshot without room is tried once more with the ballast.
        is_repeated = path == "/snapshots" and error == errno.ENOSPC and not forever
        # Beside the index a rotation notes that there is a new segment, a guard against
        # what no crash does: without it the store is as durable.
        is_note = path == "/index"
        assert is_repeated or is_note or (operation, error) in HARMLESS, nth
    with suppress(*SPOILED, OSError):
        bench.db.close()
    story.verify()
    return was_hit


@pytest.mark.parametrize("operation", ["pwrite", "sync_data"])
def test_an_input_output_error_at_some_calls(operation: str) -> None:
    for nth in (1, 3, 5, 9):
        tell_story(operation, errno.EIO, nth, forever=False)


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize(("operation", "error"), FAULTS)
def test_every_error_at_every_call(
    operation: str, error: int | str, forever: bool
) -> None:
    hits = 0
    for path in ("/log", "/snapshots", "/index"):
        nth = 1
        while tell_story(operation, error, nth, forever=forever, path=path):
            nth += 1
        hits += nth - 1
    assert hits, "the story has no such call"


def test_storage_full_is_no_poison() -> None:
    bench = Bench()
    bench.disk.fail("pwrite", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        bench.db.schedule("a", delay=60)
    bench.db.schedule("a", delay=60, id="x")
    assert bench.db.check() == []
    db = bench.crash("none")
    assert [task.id for task in db.tasks()] == ["x"]


# What nothing is promised for.


def test_a_store_for_tests_syncs_nothing(tmp_path: Path) -> None:
    with wheeldb.open(
        tmp_path / "store", clock=ManualClock(), driver=False, durability="memory"
    ) as db:
        receipt = db.schedule("a", delay=60, id="x", durability="fsync")
        assert receipt.created
        disk = db._engine.disk
        assert isinstance(disk, UnsyncedDisk)
        # What does not exist can't be synced: nobody has tried.
        disk.sync_data(10**6)
        disk.sync(10**6)
        disk.sync_directory(str(tmp_path / "missing"))
    with wheeldb.open(tmp_path / "store", clock=ManualClock(), driver=False) as db:
        assert db.get("x") is not None
