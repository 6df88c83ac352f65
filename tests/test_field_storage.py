"""Faults that other stores had as they began, changed files and took snapshots.

Goal: a store that was hardly begun, one cut between two files and one whose newest
snapshot is gone open with everything acknowledged, or say what is wrong; and no old
task, no task that is moved for ever and no slow reader makes the log grow or skip.
Method: a disk in memory whose power is cut or whose calls fail, real processes that are
killed. Each test names the public threads whose fault it looks for.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from field_helpers import Bench, Child
from recovery_helpers import (
    HONEST_PROFILES,
    cut,
    files_of,
    ids_of,
    read,
    run_until_cut,
    segments_of,
    tasks_of,
    write,
)

import wheeldb
from wheeldb.errors import Compacted, CorruptionError, StorageFullError
from wheeldb.model import NewTask
from wheeldb.testing import CrashableDisk, ManualClock, PowerCut

SEGMENT_BYTES = 2**16
YEAR_S = 365 * 86_400


# Before the first task.

OPEN_AND_WAIT = """
import sys, wheeldb
print("starting", flush=True)
db = wheeldb.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
"""


def require_first_task(db: wheeldb.WheelDB, number: int) -> None:
    """Schedule into a store that nobody has used, and find nothing strange in it."""
    assert db.recovery.torn_bytes == 0
    assert not list(db.tasks())
    assert db.schedule("task", delay=60, id=f"first {number}").created
    assert db.cancel(f"first {number}") == wheeldb.CancelOutcome.CANCELLED
    assert db.check() == []


@pytest.mark.slow
def test_a_store_killed_before_its_first_task_takes_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # beanstalkd/beanstalkd#44, beanstalkd/beanstalkd#364: killed while its log was
    # empty, it failed at the first write, or warned of data that might be missing.
    draw = Random(1)
    caplog.set_level(logging.INFO)
    for number in range(12):
        path = tmp_path / f"store {number % 3}"
        with Child(OPEN_AND_WAIT, path) as child:
            assert child.line() == "starting"
            if draw.random() < 0.7:
                assert child.line() == "open"
            child.kill()
        if number >= 9:
            with wheeldb.open(path, driver=False) as db:
                require_first_task(db, number)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_store_cut_off_before_its_first_task_takes_one(profile: str) -> None:
    # beanstalkd/beanstalkd#44: the same with the power instead of the process.
    bench = Bench(segment_bytes=SEGMENT_BYTES)
    for number in range(20):
        bench.disk.crash(profile)
        bench.clock.reboot(off=10)
        require_first_task(bench.open(), number)
        bench.disk.crash(profile)
        bench.open()


# A first start that failed.


def left_over_of(disk: CrashableDisk) -> set[str]:
    """Return the files that were being written when something came in between."""
    return {path for path in disk.dump() if path.endswith(".tmp")}


def first_start(disk: CrashableDisk) -> wheeldb.WheelDB:
    return wheeldb.open("/data/store", disk=disk, driver=False)


def fresh_disk() -> CrashableDisk:
    disk = CrashableDisk()
    disk.make_directory("/data")
    return disk


@pytest.mark.slow
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EACCES"])
def test_after_a_first_start_that_failed_the_second_is_a_first_one(error: str) -> None:
    # etcd-io/etcd#10688: the first start failed at a sync and left a directory, which
    # the second took for an existing member and never became ready.
    disk = fresh_disk()
    first_start(disk).close()
    names = [operation.name for operation in disk.operations]
    whole = set(disk.dump())
    failed_count = 0
    for name in sorted(set(names)):
        for nth in range(1, names.count(name) + 1):
            disk = fresh_disk()
            disk.fail(name, getattr(errno, error), nth)
            try:
                first_start(disk).close()
            except (OSError, wheeldb.WheelDBError):
                failed_count += 1
            disk.heal()
            with first_start(disk) as db:
                require_first_task(db, nth)
            assert set(disk.dump()) >= whole, f"{name} {nth}"
            assert not left_over_of(disk), f"{name} {nth}"
    assert failed_count > 10


# From one segment to the next.


@pytest.mark.slow
def test_cuts_around_a_rotation_take_nothing_that_was_acknowledged() -> None:
    # etcd-io/etcd#6368: a new segment was renamed into place and its directory not
    # synced: a crash right after the acknowledgement lost the file.
    draw = Random(2)
    bench = Bench(segment_bytes=SEGMENT_BYTES, reserve=False)
    cuts_at_rotation = 0
    for number in range(200):
        before = len(bench.disk.operations)
        bench.disk.crash_at(draw.randrange(1, 25))
        acknowledged: set[str] = set()
        with suppress(PowerCut):
            for turn in range(3):
                # A segment holds one of them: each begins the next one.
                task_id = f"{number} {turn}"
                bench.db.schedule("task", "x" * 40_000, delay=60, id=task_id)
                acknowledged.add(task_id)
        cuts_at_rotation += any(
            operation.name == "rename" and "/log/" in operation.path
            for operation in bench.disk.operations[before:]
        )
        bench.disk.crash(draw.choice(HONEST_PROFILES))
        db = bench.open()
        found = {task.id for task in db.tasks()}
        assert found >= acknowledged, f"round {number}"
        assert len(found - acknowledged) <= 1
        for task_id in found:
            db.cancel(task_id)
        if number % 5 == 0:
            db.snapshot()
    assert cuts_at_rotation > 100


# Snapshots that are gone.


def damage_removed(disk: CrashableDisk, path: str) -> None:
    disk.unlink(path)


def damage_cut(disk: CrashableDisk, path: str) -> None:
    cut(disk, path, 100)


def damage_emptied(disk: CrashableDisk, path: str) -> None:
    cut(disk, path, 0)


def damage_zeroed(disk: CrashableDisk, path: str) -> None:
    write(disk, path, bytes(512), len(read(disk, path)) // 2)


DAMAGES = [damage_removed, damage_cut, damage_emptied, damage_zeroed]
Damage = Callable[[CrashableDisk, str], None]


def snapshots_of(disk: CrashableDisk) -> list[str]:
    """Return the paths of the snapshots, the newest first."""
    names = [name for name in disk.list("/store/snapshots") if name.endswith(".snap")]
    return [f"/store/snapshots/{name}" for name in sorted(names, reverse=True)]


def with_snapshots() -> Bench:
    """Return a store with three snapshots taken, of which two are kept."""
    bench = Bench(segment_bytes=SEGMENT_BYTES)
    for number in range(3):
        for turn in range(30):
            bench.db.schedule("task", "x" * 3_000, delay=60, id=f"{number} {turn}")
        bench.db.cancel(f"{number} 0")
        bench.db.snapshot()
    bench.db.schedule("task", delay=60, id="behind")
    assert len(snapshots_of(bench.disk)) == 2
    return bench


def lose_index(bench: Bench) -> None:
    """Take away the cache, so that snapshots and log have to do."""
    bench.disk.kill()
    for path in list(bench.disk.dump()):
        if path.startswith("/store/index/"):
            bench.disk.unlink(path)
    bench.disk.indexes.clear()


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_the_newest_snapshot_the_one_before_does(damage: Damage) -> None:
    # etcd-io/etcd#22340, etcd-io/etcd#12237, etcd-io/etcd#11949: the log mentioned a
    # snapshot that was not there, and each start ended in a panic.
    bench = with_snapshots()
    expected = tasks_of(bench.db)
    lose_index(bench)
    damage(bench.disk, snapshots_of(bench.disk)[0])
    assert [task.id for task in tasks_of(bench.open())] == [t.id for t in expected]
    assert [task.lsn for task in tasks_of(bench.db)] == [t.lsn for t in expected]
    if damage is damage_removed:
        assert bench.db.check() == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_any_snapshot_the_opening_is_refused_the_same_each_time(
    damage: Damage,
) -> None:
    # etcd-io/etcd#22340: where the log before it is gone, too, nothing may be guessed.
    bench = with_snapshots()
    lose_index(bench)
    for path in snapshots_of(bench.disk):
        damage(bench.disk, path)
    said = set()
    for _ in range(3):
        before = files_of(bench.disk)
        with pytest.raises(CorruptionError) as caught:
            bench.open()
        assert caught.value.path is not None
        assert "replay" in str(caught.value)
        said.add(str(caught.value))
        bench.disk.kill()
        assert files_of(bench.disk) == before
    assert len(said) == 1


# Snapshots that are being written.


def many_tasks() -> Bench:
    bench = Bench(segment_bytes=SEGMENT_BYTES)
    for number in range(4):
        bench.db.schedule_many(
            [
                NewTask("task", "x" * 100, delay=60, id=f"{number} {n}")
                for n in range(100)
            ]
        )
        if number in (0, 1):
            bench.db.snapshot()
    return bench


@pytest.mark.slow
@pytest.mark.parametrize("way", ["snapshot", "close"])
@pytest.mark.parametrize("profile", ["none", "all", "subset"])
def test_a_snapshot_cut_off_anywhere_leaves_one_that_is_whole(
    way: str, profile: str
) -> None:
    # uwplse/verdi-raft#51: the old snapshot was cut to nothing before the new one was
    # written, and a crash in between lost both.
    bench = many_tasks()
    expected = ids_of(bench.db)
    base = len(bench.disk.operations)
    getattr(bench.db, way)()
    count = len(bench.disk.operations) - base
    step = max(1, count // 25)
    for operation in range(1, count + 1, step):
        bench = many_tasks()
        assert not run_until_cut(bench.disk, operation, getattr(bench.db, way))
        bench.disk.crash(profile)
        lose_index(bench)
        assert snapshots_of(bench.disk)
        assert ids_of(bench.open()) == expected, operation
        # What was half written has one name, and the next one takes its place.
        assert left_over_of(bench.disk) <= {"/store/snapshots/next.tmp"}
        bench.db.snapshot()
        assert not left_over_of(bench.disk)
        assert bench.db.check() == []


def test_a_disk_that_runs_full_during_a_snapshot_leaves_the_old_ones() -> None:
    # uwplse/verdi-raft#51: the same, for want of room instead of power.
    nth = 0
    is_through = False
    while not is_through:
        nth += 1
        bench = many_tasks()
        expected = ids_of(bench.db)
        before = snapshots_of(bench.disk)
        bench.disk.fail("pwrite", errno.ENOSPC, nth, forever=True)
        try:
            bench.db.snapshot()
            is_through = True
        except (OSError, StorageFullError):
            assert set(before) <= set(snapshots_of(bench.disk))
        bench.disk.heal()
        assert bench.db.schedule("task", delay=60).created
        lose_index(bench)
        assert [i for i in ids_of(bench.open()) if " " in i] == expected
        assert not left_over_of(bench.disk)
    assert nth > 3


# What the log must not keep.


MIB = 2**20
# A log may grow to so much before it asks for a snapshot, and two generations are kept.
SNAPSHOT_BYTES = 16 * MIB


def bytes_of(path: Path) -> int:
    """Return the size of the store's files in blocks, as `du` counts them."""
    return sum(512 * file.stat().st_blocks for file in path.rglob("*"))


def require_plateau(sizes: list[int], written: int) -> None:
    """Require that the size did not follow what was written."""
    assert written > 6 * SNAPSHOT_BYTES, "too little to show anything"
    half = len(sizes) // 2
    assert max(sizes[half:]) <= max(sizes[:half]) + 4 * MIB
    # The index keeps 32 MiB of room behind its end.
    assert max(sizes) < 3 * SNAPSHOT_BYTES + 48 * MIB


@pytest.mark.slow
def test_tasks_that_are_moved_for_ever_do_not_make_the_store_grow(
    tmp_path: Path,
) -> None:
    # beanstalkd/beanstalkd#622: a fixed number of jobs, released with a delay over and
    # over, made the log grow without end.
    clock = ManualClock()
    sizes = []
    with wheeldb.open(
        tmp_path, clock=clock, driver=False, durability="written", segment_bytes=MIB
    ) as db:
        for number in range(20):
            db.schedule("task", delay=1, id=f"task {number}")
        for _ in range(120):
            clock.advance(61)
            db.poll()
            leases = db.lease(limit=20)
            assert len(leases) == 20
            for lease in leases:
                lease.save(b"x" * 60_000)
                lease.release(delay=1)
            sizes.append(bytes_of(tmp_path))
        assert len(list(db.tasks())) == 20
        require_plateau(sizes, written=db.statistics().log_bytes)
        assert db.check() == []


@pytest.mark.slow
def test_one_old_task_does_not_pin_the_log(tmp_path: Path) -> None:
    # beanstalkd/beanstalkd#43, beanstalkd/beanstalkd#359, beanstalkd/beanstalkd#570: a
    # single old job kept hundreds of gigabytes of log alive.
    clock = ManualClock()
    sizes = []
    options: wheeldb.OpenOptions = {
        "clock": clock, "driver": False, "durability": "written", "segment_bytes": MIB
    }  # fmt: skip
    with wheeldb.open(tmp_path, **options) as db:
        db.schedule("old", {"old": "x" * 1_000}, delay=5 * YEAR_S, id="old")
        for _ in range(120):
            db.schedule_many([NewTask("task", "x" * 10_000, delay=0)] * 100)
            leases = db.lease(limit=100)
            assert len(leases) == 100
            assert db.ack_many(leases) == []
            clock.advance(61)
            db.poll()
            sizes.append(bytes_of(tmp_path))
        require_plateau(sizes, written=db.statistics().log_bytes)
        assert db.check() == []
    with wheeldb.open(tmp_path, **options) as db:
        task = db.get("old")
        assert task is not None
        assert task.payload == {"old": "x" * 1_000}
        clock.advance(5 * YEAR_S)
        assert [lease.id for lease in db.lease(limit=10)] == ["old"]


# A reader that is slow.


def read_some(
    db: wheeldb.WheelDB, from_lsn: int, count: int
) -> Iterator[wheeldb.Event]:
    """Yield some events and stop reading in the middle, as a slow reader does."""
    for number, event in enumerate(db.events(from_lsn)):
        if number == count:
            return
        yield event


@pytest.mark.slow
def test_a_slow_reader_gets_every_event_once_over_many_segments() -> None:
    # thingsboard/thingsboard-gateway#284: the writer went on to new files, the reader
    # stayed in the old ones, and data piled up unread.
    draw = Random(3)
    seen: list[str] = []
    with Bench(segment_bytes=SEGMENT_BYTES, archive=True) as bench:
        from_lsn = 0
        written = 0
        while written < 3_000 or len(seen) < written:
            for _ in range(draw.randrange(100) if written < 3_000 else 0):
                bench.db.schedule("task", "x" * 800, delay=60, id=f"{written:06}")
                written += 1
            # The reader is far behind, and both are started again now and then.
            with wheeldb.open(
                bench.path, readonly=True, disk=bench.disk, clock=bench.clock
            ) as reader:
                for event in read_some(reader, from_lsn, draw.randrange(150)):
                    from_lsn = event.lsn
                    if event.kind == "scheduled":
                        assert event.id is not None
                        seen.append(event.id)
            if draw.random() < 0.1:
                draw.choice((bench.kill, bench.reopen))()
        assert len(segments_of(bench.disk)) > 30
    assert seen == [f"{number:06}" for number in range(written)]


def test_a_reader_too_far_behind_is_told_instead_of_led_over_a_gap() -> None:
    # thingsboard/thingsboard-gateway#284: the other way out of the limit. What two
    # snapshots have made superfluous is gone, and a reader that still wants it is told
    # from where on there is something.
    with Bench(segment_bytes=SEGMENT_BYTES) as bench:
        watcher = bench.db.watch(0)
        first = next(watcher)
        for _ in range(3):
            for _ in range(40):
                bench.db.schedule("task", "x" * 3_000, delay=60)
            bench.db.snapshot()
        with pytest.raises(Compacted) as caught:
            next(bench.db.watch(first.lsn))
        oldest_lsn = caught.value.oldest_lsn
        assert next(bench.db.watch(oldest_lsn - 1)).lsn == oldest_lsn
