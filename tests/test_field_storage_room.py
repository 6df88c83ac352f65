"""Faults that other stores had on full and failing disks, and with their index.

Goal: an error of the disk reaches whoever asked, and nobody else succeeds on top of it;
a full disk is an answer, and room is found again without a restart; the index may fill
up, be old or be mixed up after a power cut without costing a task; and readers of every
kind, in great number, killed or asleep, neither change nor swell what they read.
Method: a disk in memory that fails on demand, a tmpfs, real processes, LMDB's own file.
Each test names the public threads whose fault it looks for.
"""

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from field_helpers import Bench, Child
from recovery_helpers import HONEST_PROFILES, ids_of

import wheeldb
from tools.soak.room import mount, unmount
from wheeldb.errors import CommitUnknown, StorageFullError, StorePoisoned
from wheeldb.index.tables import LmdbIndex
from wheeldb.model import NewTask
from wheeldb.testing import ManualClock

MIB = 2**20
SEGMENT_BYTES = 2**16


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB, of which all is used before long."""
    place = tmp_path / "small"
    place.mkdir()
    refusal = mount(place, 12 * MIB)
    if refusal:
        pytest.skip(f"no tmpfs can be mounted here: {refusal}")
    try:
        # What somebody else has there, and removes in the end.
        (place / "filler").write_bytes(bytes(5 * MIB))
        yield place
    finally:
        unmount(place)


# Errors of the disk.


@pytest.mark.parametrize("operation", ["pwrite", "sync_data"])
@pytest.mark.parametrize("nth", [1, 2, 3, 30])
def test_after_one_error_nothing_is_acknowledged_that_is_not_there(
    operation: str, nth: int
) -> None:
    # beanstalkd/beanstalkd#536: after one error of the log, logging was off for the
    # rest of the process's life, and only the first client heard of it.
    bench = Bench()
    acknowledged, said = set(), []
    bench.disk.fail(operation, errno.EIO, nth)
    for number in range(100):
        try:
            bench.db.schedule("task", delay=60, id=f"task {number}")
            acknowledged.add(f"task {number}")
        except (CommitUnknown, StorePoisoned) as error:
            said.append(type(error))
    # The outcome of one is unknown; from then on everybody is refused.
    assert said == [CommitUnknown] + [StorePoisoned] * (len(said) - 1)
    assert len(said) == 100 - len(acknowledged) > 0
    with pytest.raises(StorePoisoned):
        bench.db.poll()
    bench.db.close()
    db = bench.kill()
    assert acknowledged <= set(ids_of(db))
    assert len(set(ids_of(db)) - acknowledged) <= 1
    assert db.schedule("task", delay=60).created
    assert db.check() == []


def test_a_disk_that_turns_read_only_is_told_and_left_alone() -> None:
    # MichaIng/DietPi#6613, MichaIng/DietPi#3647: the card failed, the kernel mounted it
    # read-only, and the software went on as if nothing had happened. Here the store is
    # poisoned by the first write that fails: what was durable can still be looked at,
    # nothing is leased any more, and it waits for the next opening.
    bench = Bench()
    ids = [f"task {number}" for number in range(100)]
    bench.db.schedule_many([NewTask("task", delay=60, id=i) for i in ids])
    for operation in ("pwrite", "sync_data", "sync", "truncate", "rename", "unlink"):
        bench.disk.fail(operation, errno.EROFS, forever=True)
    with pytest.raises(CommitUnknown):
        bench.db.schedule("task", delay=60, id="new")
    before = len(bench.disk.operations)
    for _ in range(50):
        bench.clock.advance(10)
        with pytest.raises(StorePoisoned) as caught:
            bench.db.lease(limit=10)
        with pytest.raises(StorePoisoned):
            bench.db.schedule("task", delay=60)
        with pytest.raises(StorePoisoned):
            bench.db.poll()
    assert "open it again" in str(caught.value)
    assert len(bench.disk.operations) == before, "it goes on trying"
    assert bench.db.get("task 7") is not None
    assert ids_of(bench.db) == sorted(ids)
    bench.db.close()
    with pytest.raises(OSError, match=r"[Rr]ead-only"):
        bench.open()
    bench.disk.heal()
    assert bench.open().recovery.reason == "unclean"
    assert set(bench.started()) - {"new"} == set(ids)


def test_the_driver_of_a_disk_that_turned_read_only_comes_to_rest() -> None:
    # MichaIng/DietPi#6613: no loop of failing and trying again; who waits is told.
    bench = Bench(driver=True)
    bench.db.schedule_many([NewTask("task", delay=60 + n) for n in range(100)])
    bench.disk.fail("pwrite", errno.EROFS, forever=True)
    with pytest.raises(CommitUnknown):
        bench.db.schedule("task", delay=60)
    before = len(bench.disk.operations)
    for _ in range(20):
        bench.clock.advance(10)
        with pytest.raises(StorePoisoned):
            bench.db.lease(wait=None)
    assert len(bench.disk.operations) == before
    bench.db.close()


# A full disk.


@pytest.mark.slow
def test_a_full_disk_refuses_and_takes_tasks_again_without_a_restart(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # influxdata/influxdb#9923, influxdata/influxdb#24460, influxdata/influxdb#23126,
    # facebook/rocksdb#11643, facebook/rocksdb#9876: writes failed until the restart, or
    # were kept in memory, shown from there, and lost.
    clock = ManualClock()
    options: wheeldb.OpenOptions = {
        "clock": clock, "driver": False, "durability": "written",
        "segment_bytes": SEGMENT_BYTES,
    }  # fmt: skip
    acknowledged = set()
    with wheeldb.open(small / "store", **options) as db:
        refused_count = number = 0
        while refused_count < 300:
            number += 1
            try:
                db.schedule("task", "x" * 2_000, delay=10**6, id=f"full {number}")
                acknowledged.add(f"full {number}")
            except StorageFullError:
                refused_count += 1
                clock.advance(1)
                db.poll()
        # What was refused is not shown from memory either.
        assert set(ids_of(db)) == acknowledged
        (small / "filler").unlink()
        clock.advance(5)
        db.poll()
        for number in range(1_000):
            db.schedule("task", "x" * 500, delay=10**6, id=f"free {number}")
            acknowledged.add(f"free {number}")
        assert set(ids_of(db)) == acknowledged
        assert db.check() == []
    with wheeldb.open(small / "store", **options) as db:
        assert set(ids_of(db)) == acknowledged
        assert db.check() == []
    assert len(caplog.records) <= 10


FILL_UP = """
import sys, wheeldb
db = wheeldb.open(sys.argv[1], segment_bytes=65536)
number = 0
while True:
    try:
        db.schedule("task", "x" * 1000, delay=3600, id=f"task {number}")
    except wheeldb.StorageFullError:
        break
    print(f"task {number}", flush=True)
    number += 1
print("full", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_what_a_full_disk_leaves_behind_does_not_stop_the_next_start(
    small: Path,
) -> None:
    # influxdata/influxdb#7488: files without a byte, made while the disk was full, were
    # taken for damaged ones at the next start. jnwatson/py-lmdb#161: a put on a full
    # file system through a writable map was a SIGBUS; this process lives on.
    acknowledged = set()
    with Child(FILL_UP, small / "store") as child:
        while (line := child.line()) != "full":
            assert line.startswith("task "), line
            acknowledged.add(line)
        assert child.process.poll() is None
        child.kill()
    (small / "filler").unlink()
    # A segment gets its name once its header is synced: an empty one can't be left
    # behind, and is damage where there is one.
    log = small / "store" / "log"
    assert all(path.stat().st_size >= 4_096 for path in log.glob("*.seg"))
    with wheeldb.open(small / "store", driver=False) as db:
        assert set(ids_of(db)) == acknowledged
        assert len(acknowledged) > 500
        assert db.check() == []
    (log / "next.tmp").touch()
    with wheeldb.open(small / "store", driver=False) as db:
        assert set(ids_of(db)) == acknowledged
        assert db.check() == []


INDEX_FULL = """
import sys, wheeldb
db = wheeldb.open(sys.argv[1], driver=False, durability="written")
count = 0
try:
    while True:
        db.schedule_many([wheeldb.NewTask("task", "x" * 500, delay=3600)] * 100)
        count += 100
        db.checkpoint()
except (wheeldb.StorageFullError, OSError) as error:
    print(type(error).__name__, flush=True)
print(count, db.statistics().pending_count, flush=True)
sys.stdin.readline()
for task in db.tasks(limit=count // 2):
    db.cancel(task.id)
db.checkpoint()
print(db.check(), flush=True)
db.close()
print("closed", flush=True)
"""


@pytest.mark.slow
def test_an_index_whose_map_is_larger_than_the_disk_is_an_error_not_a_signal(
    small: Path,
) -> None:
    # jnwatson/py-lmdb#161: the map was larger than the file system, which ran full
    # while the index was written.
    with Child(INDEX_FULL, small / "store") as child:
        assert child.line() in ("StorageFullError", "OSError")
        count, pending = map(int, child.line().split())
        assert count <= pending <= count + 100
        child.tell()
        assert child.line() == "[]"
        assert child.line() == "closed"
        assert child.end()[1] == 0
    with wheeldb.open(small / "store", driver=False) as db:
        assert db.statistics().pending_count == pending - count // 2
        assert db.check() == []


# The index.


@pytest.mark.slow
def test_a_map_that_is_full_grows_and_nobody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # clibs/lmdb#1, phiresky/ripgrep-all#101, igor53627/mdbx-rs#273: the map had a fixed
    # size; beyond it tasks were refused, and once the database was unreadable.
    build = LmdbIndex.build

    def build_small(path: str, **options: object) -> LmdbIndex:
        return build(path, **{**options, "map_bytes": MIB})  # type: ignore[arg-type]

    monkeypatch.setattr(LmdbIndex, "build", build_small)
    ids = set()
    with wheeldb.open(tmp_path, driver=False, durability="written") as db:
        for number in range(60):
            made = [
                NewTask("task", "x" * 500, delay=60, id=f"{number} {n}")
                for n in range(200)
            ]
            ids |= {receipt.id for receipt in db.schedule_many(made)}
            db.checkpoint()
        assert db.statistics().index_bytes > 4 * MIB
        assert db.check() == []
    with wheeldb.open(tmp_path, driver=False) as db:
        assert set(ids_of(db)) == ids
        assert db.check() == []


@pytest.mark.slow
def test_an_index_of_mixed_pages_after_a_power_cut_costs_nothing(
    tmp_path: Path,
) -> None:
    # application-research/estuary#497, zingolabs/zaino#1299,
    # nimiq/core-rs-albatross#750, erthink/ReOpenLDAP#1: the database ran without syncs,
    # its meta page reached the disk before the pages that it names, and after a crash
    # it was corrupt. The cut here leaves any mixture of an older file and the last.
    draw = Random(4)
    clock = ManualClock()
    acknowledged: set[str] = set()
    words = set()
    options: wheeldb.OpenOptions = {
        "clock": clock, "driver": False, "durability": "written"
    }  # fmt: skip
    for number in range(15):
        clock.reboot(off=10)
        db = wheeldb.open(tmp_path, **options)
        words.add(db.recovery.index)
        assert set(ids_of(db)) == acknowledged, f"round {number}: {db.recovery}"
        data = tmp_path / "index" / "data.mdb"
        old = b""
        for turn in range(4):
            made = [
                NewTask("task", "x" * 300, delay=600, id=f"{number} {turn} {n}")
                for n in range(30)
            ]
            acknowledged |= {receipt.id for receipt in db.schedule_many(made)}
            for task_id in draw.sample(sorted(acknowledged), 20):
                db.cancel(task_id)
                acknowledged.discard(task_id)
            db.checkpoint()
            if turn == draw.randrange(3):
                old = data.read_bytes()
        new = data.read_bytes()
        db._engine.committer.close()
        db._engine.state.index.close()
        db._release_lock()
        pages = [
            (old if draw.random() < 0.3 else new)[at : at + 4_096]
            for at in range(0, len(new), 4_096)
        ]
        data.write_bytes(b"".join(pages))
    assert len(words) > 1, words


@pytest.mark.slow
@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_cuts_under_load_leave_the_acknowledged_set(profile: str) -> None:
    # application-research/estuary#497: the same with the log, whose pages are dropped
    # and torn, and with checkpoints in between.
    draw = Random(5)
    bench = Bench(segment_bytes=SEGMENT_BYTES, reserve=False)
    acknowledged: set[str] = set()
    for number in range(40):
        for turn in range(draw.randrange(1, 8)):
            bench.db.schedule("task", "x" * 900, delay=600, id=f"{number} {turn}")
            acknowledged.add(f"{number} {turn}")
            if draw.random() < 0.2:
                bench.db.checkpoint()
        for task_id in draw.sample(sorted(acknowledged), min(4, len(acknowledged))):
            bench.db.cancel(task_id)
            acknowledged.discard(task_id)
        bench.disk.crash(profile)
        bench.clock.reboot(off=10)
        assert set(ids_of(bench.open())) == acknowledged
        assert bench.db.recovery.duration >= 0
    assert bench.db.check() == []
