"""A store opened with `readonly=True` is seen and never touched.

Goal: beside a running owner, after a close and after a kill, a reader takes no lock,
changes no byte, shows what the log's end says, and refuses every change by name.
Method: every file of the directory is compared before and after; on the disk in memory,
every operation is listed.
"""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from field_helpers import Bench, Child

import wheeldb
from wheeldb.errors import ClosedError, CorruptionError, LockedError
from wheeldb.model import NewTask, TaskState
from wheeldb.testing import CrashableDisk, ManualClock


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store with a task in each state, and the disk it is on."""
    with Bench(segment_bytes=2**16) as bench:
        fill(bench.db)
        yield bench


def fill(db: wheeldb.WheelDB) -> None:
    """Schedule a task for each state that one can be in."""
    for name in ("done", "dead", "leased", "cancelled"):
        db.schedule(name, {"of": name}, delay=0, id=name)
    leases = {lease.id: lease for lease in db.lease(limit=4)}
    leases["done"].ack({"answer": 42})
    leases["dead"].reject("no reason")
    leases["cancelled"].release()
    db.cancel("cancelled")
    db.schedule("later", "x" * 100, delay=60, id="later", tags=["blue"])
    db.schedule("due", delay=0, id="due")
    db.schedule("asleep", delay=60, id="asleep")
    db.pause("asleep")
    db.schedule("held", delay=0, id="held", queue="held")
    db.pause(queue="held")


def read(bench: Bench) -> wheeldb.WheelDB:
    """Open the bench's store beside whoever has it."""
    return wheeldb.open(bench.path, disk=bench.disk, clock=bench.clock, readonly=True)


def states(db: wheeldb.WheelDB) -> dict[str, str]:
    known = ["done", "dead", "leased", "cancelled", "later", "due", "asleep", "held"]
    tasks = {task_id: db.get(task_id) for task_id in known}
    return {task_id: task.state for task_id, task in tasks.items() if task is not None}


ALL_STATES = {
    "done": TaskState.DONE,
    "dead": TaskState.DEAD,
    "leased": TaskState.LEASED,
    "cancelled": TaskState.CANCELLED,
    "later": TaskState.SCHEDULED,
    "due": TaskState.DUE,
    "asleep": TaskState.PAUSED,
    "held": TaskState.PAUSED,
}


def look_at_everything(db: wheeldb.WheelDB, *, is_closed: bool = False) -> None:
    """Call all that only reads."""
    # Closing gives the leases back.
    given_back = {"leased": TaskState.DUE} if is_closed else {}
    assert states(db) == ALL_STATES | given_back
    assert {task.id for task in db.tasks()} == {
        *("dead", "leased", "later", "due", "asleep", "held")
    }
    assert [task.id for task in db.tasks(state="done")] == ["done"]
    assert [task.id for task in db.tasks(tag="blue")] == ["later"]
    assert db.get("done").result == {"answer": 42}  # type: ignore[union-attr]
    assert db.get("dead").error == "no reason"  # type: ignore[union-attr]
    assert [event.kind for event in db.history("done")] == [
        *("scheduled", "leased", "acked")
    ]
    assert len(list(db.events())) > 10
    assert db.statistics().pending_count == 6
    assert db.recovery.reason in ("clean", "unclean")
    assert db.check() == []


# It changes nothing.


def operations_of(bench: Bench, call: Callable[[], object]) -> list[str]:
    """Return the changes that a call makes on the disk."""
    before = len(bench.disk.operations)
    call()
    return [str(operation) for operation in bench.disk.operations[before:]]


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("end", ["running", "closed", "killed"])
def test_a_reader_changes_nothing_and_sees_all(
    bench: Bench, end: str, is_checkpointed: bool
) -> None:
    if is_checkpointed:
        bench.db.checkpoint()
        bench.db.snapshot()
    if end == "closed":
        bench.db.close()
    elif end == "killed":
        bench.disk.kill()
    before = bench.disk.dump()

    def look() -> None:
        with read(bench) as db:
            look_at_everything(db, is_closed=end == "closed")

    assert operations_of(bench, look) == []
    assert bench.disk.dump() == before
    if end == "running":
        # The owner has noticed nothing.
        bench.db.schedule("task", delay=1)
    else:
        bench.open()
        # The attempt ended with its process.
        assert states(bench.db) == {**ALL_STATES, "leased": TaskState.DUE}


def state_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of change of each file."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


OWNER = """
import sys
sys.path.insert(0, sys.argv[2])
import wheeldb
from test_readonly import fill
db = wheeldb.open(sys.argv[1], driver=False)
fill(db)
if len(sys.argv) > 3:
    db.checkpoint()
    db.schedule("task", id="behind the checkpoint", delay=60)
print("filled", flush=True)
if sys.stdin.readline():
    db.close()
    print("closed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("extra", [[], ["checkpoint"]], ids=["log", "index"])
def test_a_real_directory_stays_as_it_is(tmp_path: Path, extra: list[str]) -> None:
    def look() -> None:
        before = state_of(tmp_path)
        with wheeldb.open(tmp_path, readonly=True) as db:
            assert states(db) == ALL_STATES
            assert (db.get("behind the checkpoint") is None) == (not extra)
            assert db.check() == []
        with wheeldb.open(tmp_path, readonly=True) as one:
            # Two at a time in one process, and both can be used.
            with wheeldb.open(tmp_path, readonly=True) as other:
                assert states(other) == ALL_STATES
            assert states(one) == ALL_STATES
        after = state_of(tmp_path)
        # LMDB keeps its readers in a file of its own; that is no data.
        for files in (before, after):
            files.pop("index/lock.mdb", None)
        assert after == before

    tests = Path(__file__).parent
    with Child(OWNER, tmp_path, tests, *extra) as owner:
        assert owner.line() == "filled"
        look()
        with pytest.raises(LockedError):
            wheeldb.open(tmp_path)
        owner.kill()
    look()
    with wheeldb.open(tmp_path, driver=False) as db:
        assert db.recovery.reason == "unclean"
        assert db.check() == []


def test_a_reader_needs_no_lock_and_takes_none(bench: Bench) -> None:
    with read(bench) as one, read(bench) as other:
        look_at_everything(one)
        look_at_everything(other)
        bench.kill()
        bench.reopen()
    fill_again = bench.db.schedule("task", delay=1)
    assert fill_again.created


def test_a_reader_shows_the_moment_of_its_opening(bench: Bench) -> None:
    with read(bench) as db:
        assert db.get("new") is None
        bench.db.schedule("task", delay=60, id="new")
        bench.db.checkpoint()
        bench.db.cancel("later")
        assert db.get("new") is None
        assert states(db) == ALL_STATES
    with read(bench) as db:
        assert db.get("new") is not None
        assert db.get("later").state == TaskState.CANCELLED  # type: ignore[union-attr]


def test_a_reader_tells_how_much_is_proven(bench: Bench) -> None:
    last_lsn = bench.db.statistics().last_lsn
    with read(bench) as db:
        assert db.statistics().last_lsn == last_lsn
        assert db.durable_lsn <= last_lsn
    bench.db.poll()
    bench.clock.advance(0.1)
    bench.db.poll()
    with read(bench) as db:
        # The owner has written down how far its log is synced.
        assert db.durable_lsn >= last_lsn


def test_a_reader_tells_up_to_where_the_index_is(bench: Bench) -> None:
    bench.db.checkpoint()
    written = bench.db.statistics().checkpoint_lsn
    assert written > 0
    with read(bench) as reader:
        assert reader.statistics().checkpoint_lsn == written


def test_a_torn_end_is_passed_over_and_left_alone(bench: Bench) -> None:
    bench.disk.kill()
    (path,) = [name for name in bench.disk.dump() if name.endswith(".seg")]
    end = len(bench.disk.dump()[path].rstrip(b"\0"))
    bench.disk.corrupt(path, end - 3, 0xFF)
    before = bench.disk.dump()
    with read(bench) as db:
        assert db.recovery.torn_bytes > 0
        # The last change, the pause of a queue, is what was torn.
        assert states(db) == {**ALL_STATES, "held": TaskState.DUE}
    assert bench.disk.dump() == before
    bench.open()


def test_damage_is_told_and_left_alone(bench: Bench) -> None:
    bench.clock.advance(1)
    bench.db.poll()
    bench.db.close()
    (path,) = [name for name in bench.disk.dump() if name.endswith(".seg")]
    bench.disk.corrupt(path, 4096 + 200, 0xFF)
    bench.disk.unlink(f"{bench.path}/index/VOUCH")
    before = bench.disk.dump()
    with pytest.raises(CorruptionError):
        read(bench)
    assert bench.disk.dump() == before
    bench.disk.corrupt(path, 4096 + 200, 0xFF)
    bench.open()


# It refuses every change.


def test_every_change_is_refused_and_says_why(bench: Bench) -> None:
    def batch(db: wheeldb.WheelDB) -> None:
        with db.batch() as batch:
            batch.schedule("task", delay=1)

    changes: list[Callable[[wheeldb.WheelDB], object]] = [
        lambda db: db.schedule("task", delay=1),
        lambda db: db.schedule_many([NewTask("task", delay=1)]),
        batch,
        lambda db: db.cancel("later"),
        lambda db: db.reschedule("later", delay=1),
        lambda db: db.revive("dead"),
        lambda db: db.revive(queue="default"),
        lambda db: db.run_now("later"),
        lambda db: db.pause("later"),
        lambda db: db.pause(queue="default"),
        lambda db: db.resume("asleep"),
        lambda db: db.resume(queue="held"),
        lambda db: db.lease(),
        lambda db: db.lease(wait=None),
        lambda db: db.poll(),
        lambda db: db.next_in(),
        lambda db: db.checkpoint(),
        lambda db: db.snapshot(),
        lambda db: db.backup("/backup"),
    ]
    with read(bench) as db:
        for position, change in enumerate(changes):
            try:
                with pytest.raises(io.UnsupportedOperation, match="readonly=True"):
                    change(db)
            except BaseException as error:
                error.add_note(f"change {position} of the list")
                raise
        look_at_everything(db)


def test_waiting_for_what_has_ended_returns_and_for_the_rest_is_refused(
    bench: Bench,
) -> None:
    with read(bench) as db:
        assert db.wait("done").state == TaskState.DONE
        assert db.wait("dead").state == TaskState.DEAD
        # Nothing will ever change in what a reader shows.
        with pytest.raises(io.UnsupportedOperation, match="readonly=True"):
            db.wait("later")
        with pytest.raises(io.UnsupportedOperation, match="readonly=True"):
            db.watch()


def test_a_closed_reader_says_so(bench: Bench) -> None:
    db = read(bench)
    db.close()
    with pytest.raises(ClosedError):
        db.get("later")
    db.close()


def test_an_empty_directory_is_not_made_a_store(tmp_path: Path) -> None:
    with pytest.raises(wheeldb.FormatError):
        wheeldb.open(tmp_path, readonly=True)
    assert os.listdir(tmp_path) == []


def test_a_new_store_can_be_read() -> None:
    disk, clock = CrashableDisk(), ManualClock()
    wheeldb.open("/store", disk=disk, clock=clock, driver=False).close()
    with wheeldb.open("/store", disk=disk, clock=clock, readonly=True) as db:
        assert list(db.tasks()) == []
        assert db.check() == []


def test_a_reader_leaves_no_file_open(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path, driver=False) as owner:
        fill(owner)
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(3):
            wheeldb.open(tmp_path, readonly=True).close()
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert owner.check() == []
        owner.schedule("task", delay=1)
