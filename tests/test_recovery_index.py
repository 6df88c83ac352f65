"""The index is a cache: whatever happens to it, the state is exact."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from log_helpers import SeededEntropy
from recovery_helpers import (
    STORE,
    flip,
    ids_of,
    open_store,
    segments_of,
    tasks_of,
)

import wheeldb
from wheeldb import NewTask, Task, WheelDB
from wheeldb.index import MemoryIndex
from wheeldb.index.keys import number_key
from wheeldb.layout import Layout
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.vouch import STARTS_MAX, read_vouch


@pytest.fixture
def disk() -> CrashableDisk:
    return CrashableDisk(7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(elapsed=1_000.0)


def filled(disk: CrashableDisk, clock: ManualClock, many: int = 20) -> WheelDB:
    """Return a store with tasks in every state, some of them in the index.

    `many` of them come in one call: what happens to them before a checkpoint, and what
    after, decides which of them are in a block.
    """
    db = open_store(disk, clock)
    db.schedule_many([NewTask("b", n, id=f"many-{n}", delay=90) for n in range(many)])
    for n in range(40):
        db.schedule("a", n, id=f"id-{n}", delay=0 if n < 10 else 60, tags=[f"t{n}"])
    db.schedule("generated", delay=60)
    leases = db.lease(limit=6)
    leases[0].ack()
    leases[1].nack("broken", retry_in=5)
    leases[2].reject("bad")
    db.checkpoint()
    leases[3].ack({"done": True})
    for n in range(0, many, 5):
        db.cancel(f"many-{n}")
        db.reschedule(f"many-{n + 1}", delay=6_000)
    db.cancel("id-30")
    db.cancel("id-31")
    db.pause("id-20")
    db.pause(queue="other")
    db.schedule("a", id="id-30", delay=7, if_exists="replace")
    return db


def digests_of(db: WheelDB) -> dict[str, list[int]]:
    db.checkpoint()
    return db._engine.digests.stored()


def index_of(disk: CrashableDisk) -> MemoryIndex:
    index = disk.indexes[f"{STORE}/index"]
    assert isinstance(index, MemoryIndex)
    return index


def reopened(disk: CrashableDisk, clock: ManualClock) -> tuple[WheelDB, list[Task]]:
    disk.kill()
    db = open_store(disk, clock)
    assert db.check() == []
    return db, tasks_of(db)


def test_log_alone_snapshot_and_index_give_the_same(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    filled(disk, clock)
    from_log, from_snapshot = disk.clone(), disk.clone()
    from_log.indexes.clear()
    from_snapshot.kill()
    helper = open_store(from_snapshot, clock)
    helper.snapshot()
    from_snapshot.indexes.clear()

    _, expected = reopened(disk, clock)
    db_log, tasks_log = reopened(from_log, clock)
    db_snapshot, tasks_snapshot = reopened(from_snapshot, clock)

    assert db_log.recovery.index.startswith("rebuilt from the log")
    assert db_snapshot.recovery.index.startswith("rebuilt from snapshot")
    assert tasks_log == expected
    # One opening more has ended the leases once more; nothing else differs.
    assert [task.id for task in tasks_snapshot] == [task.id for task in expected]
    for ended in ("id-0", "id-3", "id-31"):
        assert db_log.get(ended) == db_snapshot.get(ended) is not None
    assert digests_of(db_log)["id"] == digests_of(db_snapshot)["id"]


def test_a_rebuild_gives_the_same_digests(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    filled(disk, clock, many=0)
    twin = disk.clone()
    twin.indexes.clear()

    with_index, tasks = reopened(disk, clock)
    without, tasks_without = reopened(twin, clock)

    assert with_index.recovery.index.startswith("used")
    assert tasks == tasks_without
    assert digests_of(with_index) == digests_of(without)


def test_a_rebuild_may_have_other_blocks_and_the_same_tasks(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    filled(disk, clock)
    twin = disk.clone()
    twin.indexes.clear()

    with_index, tasks = reopened(disk, clock)
    without, tasks_without = reopened(twin, clock)

    assert tasks == tasks_without
    digests, digests_without = digests_of(with_index), digests_of(without)
    assert digests["block"][0] == digests_without["block"][0] == 1
    for table in ("id", "finished"):
        assert digests[table] == digests_without[table]


def test_a_snapshot_followed_by_nothing_equals_the_store(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    db.snapshot()
    before = digests_of(db)
    db.close()
    disk.indexes.clear()

    db = open_store(disk, clock)

    assert db.recovery.index.startswith("rebuilt from snapshot")
    assert digests_of(db)["task"][0] == before["task"][0]
    assert digests_of(db)["finished"] == before["finished"]


# What LMDB does not notice.


def test_rows_lost_without_a_trace_are_found_by_their_digest(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    number = next(task.number for task in tasks_of(db) if task.id == "id-35")
    disk.kill()
    index = index_of(disk)
    table = index._tables["task"]
    del table.values[number_key(number)]
    table.keys.remove(number_key(number))

    db = open_store(disk, clock)

    assert "the events make" in db.recovery.index
    assert db.recovery.index.startswith("rebuilt")
    assert "id-35" in ids_of(db)
    assert db.check() == []


def test_a_damaged_row_is_found(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    number = next(task.number for task in tasks_of(db) if task.id == "id-35")
    disk.kill()
    index_of(disk).corrupt("task", number_key(number), offset=20, xor=4)

    db = open_store(disk, clock)

    assert db.recovery.index.startswith("rebuilt")
    assert "id-35" in ids_of(db)
    assert db.check() == []


def test_an_index_of_another_store_is_not_used(clock: ManualClock) -> None:
    disks = []
    for seed in (1, 2):
        disk = CrashableDisk(seed)
        db = open_store(disk, clock, entropy=SeededEntropy(seed))
        db.schedule("a", id=f"of-{seed}", delay=60)
        db.close()
        disks.append(disk)
    disks[0].indexes = disks[1].indexes

    db = open_store(disks[0], clock)

    assert "another store" in db.recovery.index
    assert ids_of(db) == ["of-1"]


def test_an_index_older_than_the_log_is_not_used(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="first", delay=60)
    db.checkpoint()
    old = disk.clone().indexes
    for generation in range(3):
        for n in range(150):
            db.schedule("a", b"x" * 400, id=f"{generation}-{n}", delay=60)
        db.snapshot()
    disk.kill()
    assert "0000000000000001.seg" not in segments_of(disk)[0]
    disk.indexes = old

    db = open_store(disk, clock)

    assert "the log begins at" in db.recovery.index
    assert len(ids_of(db)) == 451
    assert db.check() == []


def test_an_index_that_is_not_the_footers_is_not_used(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="one", delay=60)
    db.checkpoint()
    old = disk.clone().indexes
    db.schedule("a", id="two", delay=60)
    db.close()
    disk.indexes = old

    db = open_store(disk, clock)

    assert "footer" in db.recovery.index
    assert ids_of(db) == ["one", "two"]


def test_a_damaged_snapshot_leaves_the_one_before(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    db.snapshot()
    db.schedule("a", id="between", delay=60)
    newest = db.snapshot()
    ids = ids_of(db)
    disk.kill()
    disk.indexes.clear()
    flip(disk, str(newest), 4_200)

    db = open_store(disk, clock)

    assert ids_of(db) == ids
    assert [finding.where for finding in db.check()] == ["snapshot"]


def test_readers_change_nothing_and_see_the_same(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    before, files = tasks_of(db), disk.dump()

    reader = open_store(disk, clock, readonly=True)

    assert tasks_of(reader) == before
    db.schedule("a", id="after", delay=1)
    db.checkpoint()
    assert tasks_of(reader) == before
    reader.close()
    assert db.get("after") is not None, "the owner's index is still open"
    db.close()
    assert set(files) <= set(disk.dump())


# Who vouches.


OPEN_AND_DIE = """
import os, sys, wheeldb
db = wheeldb.open(sys.argv[1], driver=False, reserve=False)
sys.stdout.write(db.recovery.index)
sys.stdout.flush()
if "checkpoint" in sys.argv:
    db.schedule("a", delay=60)
    db.checkpoint()
os._exit(9)
"""


def open_and_die(path: Path, *words: str) -> str:
    """Open a store in a process of its own, which dies; return what it relied on."""
    program = [sys.executable, "-c", OPEN_AND_DIE, str(path), *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(program, env=environment, capture_output=True, check=False)
    assert child.returncode == 9, child.stderr.decode()
    return child.stdout.decode()


@pytest.mark.slow
def test_an_index_is_not_vouched_for_again_and_again(tmp_path: Path) -> None:
    # A page that kills whoever reads it would do so at each start.
    path = tmp_path / "s"
    assert open_and_die(path) == "new"

    relied_on = [open_and_die(path) for _ in range(STARTS_MAX + 2)]

    vouched, verified = "used: vouched for", "used: read in a child process"
    assert relied_on == [*[vouched] * STARTS_MAX, verified, vouched]


@pytest.mark.slow
def test_a_checkpoint_shows_that_the_index_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "s"
    open_and_die(path)

    relied_on = {open_and_die(path, "checkpoint") for _ in range(STARTS_MAX + 3)}

    assert relied_on == {"used: vouched for"}


@pytest.mark.parametrize("change", ["boot", "place", "boottime"])
def test_a_vouch_ends_with_the_boot_and_the_place(
    disk: CrashableDisk, clock: ManualClock, change: str
) -> None:
    open_store(disk, clock)
    vouch = read_vouch(disk, Layout(path=STORE))
    assert vouch is not None
    place = vouch.place
    assert vouch.is_good(clock, place)
    if change == "boot":
        clock.reboot()
    elif change == "place":
        place = (place[0], place[1] + 1)
    else:
        clock = ManualClock(elapsed=10.0)

    assert not vouch.is_good(clock, place)


def test_a_vouch_of_a_clean_close_goes_with_the_inode(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    open_store(disk, clock).close()
    vouch = read_vouch(disk, Layout(path=STORE))
    assert vouch is not None
    device, inode = vouch.place
    clock.reboot()

    # A device may have another number after a reboot.
    assert vouch.is_good(clock, (device + 1, inode))
    assert not vouch.is_good(clock, (device, inode + 1))


# The real thing.


def lmdb_store(path: Path, clock: ManualClock) -> list[str]:
    db = wheeldb.open(path, clock=clock, driver=False, reserve=False)
    payload = random.Random(1).randbytes(900)
    db.schedule_many(
        [wheeldb.NewTask("a", payload, id=f"id-{n}", delay=60) for n in range(800)]
    )
    db.checkpoint()
    db.cancel("id-3")
    ids = ids_of(db)
    db.close()
    return ids


def damage_lmdb(data: Path, how: str) -> None:
    content = bytearray(data.read_bytes())
    if how == "empty":
        content.clear()
    elif how == "meta page":
        content[4_096:8_192] = bytes(4_096)
    elif how == "cut to half":
        del content[len(content) // 2 :]
    elif how == "zeroed half":
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    elif how == "flipped bit":
        content[content.index(b"id-400") + 1] ^= 1
    data.write_bytes(content)


# Each of these kills the process, or goes unseen, if LMDB opens the file unasked.
@pytest.mark.parametrize(
    "how", ["empty", "meta page", "cut to half", "zeroed half", "flipped bit", "gone"]
)
def test_any_damage_to_the_lmdb_file_leaves_the_state_exact(
    tmp_path: Path, clock: ManualClock, how: str
) -> None:
    ids = lmdb_store(tmp_path / "s", clock)
    data = tmp_path / "s/index/data.mdb"
    # Nobody vouches: as after a power cut.
    (tmp_path / "s/index/VOUCH").unlink()
    if how == "gone":
        data.unlink()
    else:
        damage_lmdb(data, how)

    with wheeldb.open(tmp_path / "s", clock=clock, driver=False) as db:
        assert db.recovery.index.startswith("rebuilt"), db.recovery.index
        assert ids_of(db) == ids
        assert db.check() == []


def test_a_refusal_leaves_even_a_bad_index_where_it_is(
    tmp_path: Path, clock: ManualClock
) -> None:
    lmdb_store(tmp_path / "s", clock)
    (tmp_path / "s/index/VOUCH").unlink()
    damage_lmdb(tmp_path / "s/index/data.mdb", "meta page")
    segment = next((tmp_path / "s/log").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[20_000] ^= 1
    segment.write_bytes(data)
    index = (tmp_path / "s/index/data.mdb").read_bytes()

    with pytest.raises(wheeldb.CorruptionError, match="checksum is wrong"):
        wheeldb.open(tmp_path / "s", clock=clock, driver=False)

    assert (tmp_path / "s/index/data.mdb").read_bytes() == index
    assert list((tmp_path / "s/aside").iterdir()) == []


def test_a_refusal_lets_go_of_a_sound_index(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "s"
    wheeldb.open(path, clock=clock, driver=False, reserve=False).close()
    segment = max((path / "log").glob("*.seg"))
    sound = segment.read_bytes()
    damaged = bytearray(sound)
    damaged[4_096 + 70] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(wheeldb.CorruptionError):
        wheeldb.open(path, clock=clock, driver=False, reserve=False)
    segment.write_bytes(sound)

    with wheeldb.open(path, clock=clock, driver=False, reserve=False) as db:
        assert db.recovery.index.startswith("used")


def test_a_sound_lmdb_file_is_verified_and_used(
    tmp_path: Path, clock: ManualClock
) -> None:
    ids = lmdb_store(tmp_path / "s", clock)
    (tmp_path / "s/index/VOUCH").unlink()

    with wheeldb.open(tmp_path / "s", clock=clock, driver=False) as db:
        assert db.recovery.index == "used: read in a child process"
        assert ids_of(db) == ids
        assert db.check() == []
