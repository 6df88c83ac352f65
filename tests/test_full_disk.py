"""A full disk: new tasks are refused, what ends tasks goes on.

Goal: no room is an answer, not a catastrophe: nothing that was acknowledged is lost,
nothing that was refused is there, and work can be finished until there is room again.
Method: a disk in memory with a capacity, in 4,096-byte blocks as file systems count; at
the end once a real one, a tmpfs of a few MiB, where that may be mounted. After
beanstalkd, which reserves the room for deleting a job as it accepts it.
"""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import wheeldb
from wheeldb.engine.history import scan_frames
from wheeldb.errors import StorageFullError
from wheeldb.leases import Lease
from wheeldb.testing import CrashableDisk, ManualClock

SEGMENT_BYTES = 64 * 2**10
CALLS_MAX = 20_000
ONCE = wheeldb.Retry(max_attempts=1)
OFTEN = wheeldb.Retry(max_attempts=100_000)


def schedule_until_full(schedule: Callable[[int], object]) -> int:
    """Go on until there is no room; return how many calls were accepted."""
    for number in range(CALLS_MAX):
        try:
            schedule(number)
        except StorageFullError:
            return number
    return CALLS_MAX


class Bench:
    """A store on a disk that can be filled to the last block."""

    def __init__(self, *, flash: bool = False) -> None:
        self.disk = CrashableDisk(flash=flash)
        self.clock = ManualClock()
        self.db = self.open()

    def open(self) -> wheeldb.WheelDB:
        return wheeldb.open(
            "/store",
            disk=self.disk,
            clock=self.clock,
            driver=False,
            segment_bytes=SEGMENT_BYTES,
        )

    def fill(self, *, but: int = 0) -> None:
        """Take all room, and schedule into what the log has before it."""
        self.leave(but)
        for payload in ("x" * 100, None):
            count = schedule_until_full(
                lambda _, payload=payload: self.db.schedule(  # type: ignore[misc]
                    "filler", payload, delay=3600
                )
            )
            assert count < CALLS_MAX, "the disk did not fill up"

    def leave(self, bytes_free: int) -> None:
        self.disk.full(None)
        self.disk.full(10**12)
        used = 10**12 - self.disk.free_bytes()
        self.disk.full(used + bytes_free)

    def held(self, name: str) -> int:
        info = self.disk.info(f"/store/log/{name}")
        assert info is not None
        return info.size

    def kill(self) -> wheeldb.WheelDB:
        self.disk.crash("none")
        self.db = self.open()
        return self.db


def filled(**options: bool) -> tuple[Bench, Sequence[Lease]]:
    """Return a store on a full disk, with 40 leases and 400 tasks that wait."""
    bench = Bench(**options)
    bench.db.schedule_many(
        [
            wheeldb.NewTask(
                "due", delay=0, id=f"due-{n}", retry=ONCE if n % 2 else OFTEN
            )
            for n in range(40)
        ]
    )
    bench.db.schedule_many(
        [wheeldb.NewTask("later", delay=3600, id=f"later-{n}") for n in range(400)]
    )
    leases = bench.db.lease(limit=40)
    assert len(leases) == 40
    bench.fill()
    return bench, leases


@pytest.mark.parametrize("flash", [False, True])
def test_new_tasks_are_refused_and_nothing_of_them_is_there(flash: bool) -> None:
    bench, _ = filled(flash=flash)
    pending = bench.db.statistics().pending_count
    last_lsn = bench.db.statistics().last_lsn
    refused: list[Callable[[], object]] = [
        lambda: bench.db.schedule("a", delay=1, id="a"),
        lambda: bench.db.schedule("a", delay=1, id="a", durability="written"),
        lambda: bench.db.schedule_many([wheeldb.NewTask("a", delay=1, id="a")]),
        lambda: bench.db.schedule("a", delay=1, id="later-1", if_exists="replace"),
    ]
    for change in refused:
        with pytest.raises(StorageFullError) as caught:
            change()
        assert caught.value.errno == errno.ENOSPC
    assert bench.db.get("a") is None
    assert bench.db.statistics().pending_count == pending
    assert bench.db.statistics().last_lsn == last_lsn
    assert bench.db.check() == []
    db = bench.kill()
    assert db.get("a") is None
    assert db.statistics().pending_count == pending


@pytest.mark.parametrize("flash", [False, True])
def test_what_ends_tasks_goes_on_over_many_segments(flash: bool) -> None:
    bench, leases = filled(flash=flash)
    ended: list[str] = []
    for number, lease in enumerate(leases):
        match number % 4:
            case 0:
                lease.ack()
            case 1:
                lease.nack("the last attempt")  # dead
            case 2:
                lease.release()
            case _:
                lease.reject("no")
        ended.append(lease.id)
    for number in range(400):
        outcome = bench.db.cancel(f"later-{number}")
        assert outcome == wheeldb.CancelOutcome.CANCELLED
    assert bench.db.check() == []
    segments = {frame.segment for frame in scan_frames(bench.db._engine, 0)}
    assert len(segments) > 1
    with pytest.raises(StorageFullError):
        bench.db.schedule("a", "x" * 5_000, delay=1)
    db = bench.kill()
    states = {task.id: task.state for task in db.tasks()}
    for number, task_id in enumerate(ended):
        assert states.get(task_id) == {1: "dead", 2: "due", 3: "dead"}.get(number % 4)
    assert not any(task_id.startswith("later") for task_id in states)
    assert db.check() == []


def test_a_batch_may_do_what_the_weakest_of_its_calls_may() -> None:
    bench, _ = filled()
    db = bench.db
    for number in range(0, 400, 4):
        with db.batch() as batch:
            for one in range(number, number + 4):
                batch.cancel(f"later-{one}", expect=wheeldb.CancelOutcome.CANCELLED)
    segments = {frame.segment for frame in scan_frames(db._engine, 0)}
    assert len(segments) > 1

    def cancel_and_schedule() -> None:
        with db.batch() as batch:
            batch.cancel("due-1", running=True)
            batch.schedule("a", "x" * 5_000, delay=1)

    with pytest.raises(StorageFullError):
        cancel_and_schedule()
    task = db.get("due-1")
    assert task is not None
    assert task.state == "leased"
    assert db.check() == []


def test_leases_and_retries_have_the_ballast() -> None:
    bench, leases = filled()
    assert bench.held("ballast") == SEGMENT_BYTES
    count = 0
    with suppress(StorageFullError):
        for _ in range(2_000):
            lease = leases[0]
            lease.renew()
            lease.nack("again", retry_in=0)
            leases = bench.db.lease(names=["due"])
            count += 1
    assert count > 100
    assert bench.held("ballast") == 0
    # The ballast is used up, the reserve isn't: ending tasks goes on.
    for task in bench.db.tasks(state="leased"):
        assert bench.db.cancel(task.id, running=True) == "cancelled"
    assert bench.db.cancel("later-1") == "cancelled"
    assert bench.db.check() == []


def test_a_refused_follow_up_changes_nothing_and_the_ack_alone_goes_on() -> None:
    bench, leases = filled()
    lease = leases[0]
    with pytest.raises(StorageFullError):
        lease.ack(then=[wheeldb.NewTask("next", "x" * 200, delay=1, id="next")])
    task = bench.db.get(lease.id)
    assert task is not None
    assert task.state == "leased"
    assert bench.db.get("next") is None
    lease.ack()
    task = bench.db.get(lease.id)
    assert task is not None
    assert task.state == "done"


def test_the_ballast_is_made_again_before_new_tasks_are_taken() -> None:
    bench, leases = filled()
    while bench.held("ballast"):
        leases[0].renew()
    # Room for the task's own frame, and none for the ballast.
    bench.leave(SEGMENT_BYTES // 2)
    with pytest.raises(StorageFullError):
        bench.db.schedule("a", delay=1)
    assert bench.held("ballast") == 0
    bench.disk.full(None)
    bench.db.schedule("a", delay=1)
    assert bench.held("ballast") == SEGMENT_BYTES


def test_the_reserve_is_made_again_before_new_tasks_are_taken() -> None:
    bench, _ = filled()
    before = bench.held("reserve")
    for number in range(400):
        bench.db.cancel(f"later-{number}")
    assert bench.held("reserve") < before
    bench.disk.full(None)
    bench.db.schedule("a", delay=1)
    assert bench.held("reserve") >= 128 * bench.db.statistics().pending_count


def test_other_errors_than_no_room_refuse_new_tasks_without_harm() -> None:
    bench = Bench()
    bench.disk.fail("allocate", errno.EIO)
    with pytest.raises(StorageFullError) as caught:
        bench.db.schedule("a", delay=1)
    assert caught.value.errno == errno.EIO
    bench.db.schedule("a", delay=1)
    assert bench.db.check() == []


def test_in_one_group_only_those_without_room_are_refused() -> None:
    # Both wait for the pen: one frame, and no room for it.
    bench, _ = filled()
    answers: list[object] = []
    engine = bench.db._engine

    def schedule() -> None:
        try:
            answers.append(bench.db.schedule("a", "x" * 9_000, delay=1))
        except StorageFullError as error:
            answers.append(error)

    def cancel() -> None:
        answers.append(bench.db.cancel("later-7"))

    threads = [threading.Thread(target=call) for call in (schedule, cancel)]
    with engine.committer.turn:
        for count, thread in enumerate(threads, 1):
            thread.start()
            while len(engine.committer._lines[True]) < count:
                os.sched_yield()
    for thread in threads:
        thread.join(20)
    refused, cancelled = sorted(answers, key=lambda answer: isinstance(answer, str))
    assert isinstance(refused, StorageFullError)
    assert cancelled == "cancelled"


def test_a_snapshot_gives_up_the_ballast_to_free_segments() -> None:
    bench = Bench()
    for number in range(200):
        bench.db.schedule("a", "x" * 1_000, delay=60, id=f"a-{number}")
        bench.db.cancel(f"a-{number}")
    bench.leave(0)
    assert bench.held("ballast")
    segments = bench.db.statistics().log_segments
    assert segments > 3
    bench.db.snapshot()
    bench.db.snapshot()
    assert bench.db.statistics().log_segments < segments
    bench.db.schedule("a", delay=1)
    assert bench.held("ballast") == SEGMENT_BYTES
    assert bench.db.check() == []


def test_upkeep_survives_a_full_disk() -> None:
    bench, leases = filled()
    with suppress(StorageFullError):
        for _ in range(5_000):
            leases[0].renew()
    for _ in range(20):
        bench.clock.advance(61)
        bench.db.poll()
    bench.disk.full(None)
    bench.clock.advance(61)
    bench.db.poll()
    # Their leases have run out: none was forgotten.
    assert not list(bench.db.tasks(state="leased"))
    assert bench.db.check() == []
    bench.db.close()
    assert bench.open().check() == []


def test_closing_on_a_full_disk_loses_nothing() -> None:
    bench, leases = filled()
    leases[0].ack()
    with suppress(StorageFullError):
        for _ in range(5_000):
            leases[1].renew()
    states = {task.id: task.state for task in bench.db.tasks()}
    bench.db.close()
    bench.disk.full(None)
    db = bench.open()
    found = {task.id: task.state for task in db.tasks()}
    assert found.keys() == states.keys()
    assert db.check() == []


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("flash", [False, True])
def test_a_store_opens_on_a_full_disk(flash: bool, closed: bool) -> None:
    bench = Bench(flash=flash)
    for number in range(10):
        bench.db.schedule("a", delay=1, id=f"a-{number}")
    for number, room in enumerate(("ballast", "reserve")):
        if closed:
            bench.db.close()
        else:
            bench.disk.kill()
        bench.leave(0)
        held = bench.held(room)
        assert held > 0
        bench.db = bench.open()
        assert bench.held(room) < held
        assert bench.db.cancel(f"a-{number}") == "cancelled"
        with pytest.raises(StorageFullError):
            bench.db.schedule("new", delay=1)
        assert bench.db.check() == []
    bench.db.close()


@pytest.mark.parametrize("room", ["ballast", "reserve"])
def test_room_whose_length_is_lost_is_given_up_as_well(room: str) -> None:
    bench = Bench()
    bench.db.schedule("a", delay=1, id="a")
    bench.disk.kill()
    # A power cut may keep the blocks of a file and lose how long it was.
    for name in ("ballast", "reserve"):
        handle = bench.disk.open(f"/store/log/{name}")
        bench.disk.truncate(handle, 0)
        if name == room:
            assert bench.disk.allocate(handle, 0, SEGMENT_BYTES)
        bench.disk.sync(handle)
        bench.disk.close(handle)
    bench.leave(0)

    assert bench.open().get("a") is not None


def test_a_store_that_can_not_open_for_want_of_room_says_so() -> None:
    bench = Bench()
    bench.db.schedule("a", delay=1, id="a")
    bench.db.close()
    for _ in range(2):
        bench.leave(0)
        for name in ("ballast", "reserve"):
            handle = bench.disk.open(f"/store/log/{name}")
            bench.disk.truncate(handle, 0)
            bench.disk.close(handle)
        bench.leave(0)
        with pytest.raises(StorageFullError, match="no room to open /store; free some"):
            bench.open()
    bench.disk.full(None)
    assert bench.open().get("a") is not None


# A real file system.


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a tmpfs")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_real_file_system_runs_full(small_file_system: Path) -> None:
    clock = ManualClock()
    path = small_file_system / "store"
    db = wheeldb.open(path, clock=clock, driver=False, segment_bytes=256 * 2**10)
    count = schedule_until_full(
        lambda number: db.schedule(
            "a", "x" * 1_000, delay=0, id=f"t-{number}", durability="written"
        )
    )
    assert 100 < count < CALLS_MAX
    ids = [f"t-{number}" for number in range(count)]
    leases = db.lease(limit=50)
    assert len(leases) == 50
    assert db.ack_many(leases) == []
    for task_id in ids[100:]:
        assert db.cancel(task_id) == "cancelled"
    assert db.check() == []
    db.close()
    db = wheeldb.open(path, clock=clock, driver=False, segment_bytes=256 * 2**10)
    assert {task.id for task in db.tasks()} <= set(ids[:100])
    assert db.check() == []
    db.close()
