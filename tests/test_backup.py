"""Backups, and stores that are made of them."""

import errno
from functools import partial
from pathlib import Path

import pytest
from log_helpers import SeededEntropy
from recovery_helpers import (
    HONEST_PROFILES,
    STORE,
    flip,
    ids_of,
    open_store,
    run_until_cut,
    tasks_of,
)

import wheeldb
from wheeldb import CorruptionError, FormatError, WheelDB
from wheeldb.backup import backup_store, restore
from wheeldb.testing import CrashableDisk, ManualClock

BACKUP, RESTORED = "/backup", "/restored"


@pytest.fixture
def disk() -> CrashableDisk:
    return CrashableDisk(7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(elapsed=1_000.0)


def filled(disk: CrashableDisk, clock: ManualClock) -> WheelDB:
    db = open_store(disk, clock)
    for n in range(30):
        db.schedule("a", n, id=f"id-{n}", delay=0 if n < 4 else 60)
    db.schedule("generated", delay=60)
    leases = db.lease(limit=2)
    leases[0].ack()
    return db


def restored(
    disk: CrashableDisk, clock: ManualClock, dest: str = RESTORED, seed: int = 1
) -> None:
    restore(BACKUP, dest, disk=disk, clock=clock, entropy=SeededEntropy(seed))


def test_a_backup_of_a_running_store_restores_to_what_it_was(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    before = tasks_of(db)
    backup_store(db._engine, BACKUP)
    db.schedule("a", id="after", delay=60)
    db.cancel("id-7")

    restored(disk, clock)

    other = open_store(disk, clock, RESTORED)
    assert [(t.id, t.payload, t.due_at) for t in tasks_of(other)] == [
        (t.id, t.payload, t.due_at) for t in before
    ]
    assert other.get("id-0") is not None, "a finished id is remembered"
    assert other.check() == []
    assert ids_of(db) != ids_of(other), "the original has gone on"
    other.close()
    assert open_store(disk, clock, RESTORED).recovery.reason == "clean"


def test_what_was_due_may_have_run(disk: CrashableDisk, clock: ManualClock) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="due", delay=1)
    db.schedule("a", id="later", delay=100)
    backup_store(db._engine, BACKUP)
    clock.advance(5)

    restored(disk, clock)

    other = open_store(disk, clock, RESTORED)
    clock.advance(200)
    leases = {lease.id: lease.may_have_run for lease in other.lease(limit=9)}
    assert leases == {"due": True, "later": False}


def test_two_restores_hand_out_different_fences(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", delay=0)
    backup_store(db._engine, BACKUP)
    fences = {db.lease()[0].fence}
    incarnations = {db._engine.state.incarnation}

    for number in range(4):
        restored(disk, clock, f"{RESTORED}{number}", seed=number)
        other = open_store(disk, clock, f"{RESTORED}{number}")
        fences.add(other.lease()[0].fence >> 32)
        incarnations.add(other._engine.state.incarnation)
        assert other._engine.database == db._engine.database

    assert len(fences) == len(incarnations) == 5


def test_numbers_follow_the_hours(disk: CrashableDisk, clock: ManualClock) -> None:
    db = open_store(disk, clock)
    backup_store(db._engine, BACKUP)
    clock.advance(1_000_000 * 3_600)

    restored(disk, clock)

    other = open_store(disk, clock, RESTORED)
    assert 1_000_000 << 32 <= other._engine.state.last_lsn < 2**53


def test_a_backup_of_a_restored_store(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    ids = ids_of(db)
    for number in range(4):
        backup_store(db._engine, f"{BACKUP}{number}")
        lsn = db._engine.state.last_lsn
        db.close()
        dest = f"{RESTORED}{number}"
        restore(
            f"{BACKUP}{number}",
            dest,
            disk=disk,
            clock=clock,
            entropy=SeededEntropy(number),
        )
        db = open_store(disk, clock, dest)
        assert ids_of(db) == ids
        assert db._engine.state.last_lsn > lsn
        assert db.check() == []


def test_a_backup_is_not_opened(disk: CrashableDisk, clock: ManualClock) -> None:
    backup_store(filled(disk, clock)._engine, BACKUP)
    before = {name: data for name, data in disk.dump().items() if BACKUP in name}

    for readonly in (False, True):
        with pytest.raises(FormatError, match="is a backup"):
            open_store(disk, clock, BACKUP, readonly=readonly)

    after = {name: data for name, data in disk.dump().items() if BACKUP in name}
    assert after == before


def test_only_a_backup_is_restored(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    db.close()
    for path in (STORE, "/nowhere"):
        with pytest.raises(FormatError, match="is no backup"):
            restore(path, RESTORED, disk=disk, clock=clock)
    assert disk.info(RESTORED) is None


def test_nothing_is_written_over(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    backup_store(db._engine, BACKUP)
    disk.make_directory("/there")
    for call in (
        partial(backup_store, db._engine, BACKUP),
        partial(backup_store, db._engine, "/there"),
        partial(restored, disk, clock, STORE),
        partial(restored, disk, clock, "/there"),
    ):
        with pytest.raises(FileExistsError):
            call()


INSIDE = ["x", "log/x", "snapshots/x", "x/y/z", "aside/x"]


@pytest.mark.parametrize("inner", INSIDE)
def test_nothing_is_made_inside_a_store_or_a_backup(
    disk: CrashableDisk, clock: ManualClock, inner: str
) -> None:
    db = filled(disk, clock)
    backup_store(db._engine, BACKUP)
    for directory in (f"{STORE}/x", f"{STORE}/x/y"):
        disk.make_directory(directory)
    before = disk.dump()
    for path in (STORE, BACKUP):
        dest = f"{path}/{inner}.new"
        for call in (
            partial(backup_store, db._engine, dest),
            partial(restored, disk, clock, dest),
            partial(wheeldb.replay, STORE, dest, disk=disk, clock=clock),
            partial(wheeldb.replay, STORE, dest, salvage=True, disk=disk, clock=clock),
        ):
            with pytest.raises(ValueError, match=f"inside the store or backup {path};"):
                call()
    assert disk.dump() == before


def test_nor_inside_what_is_left_of_a_store(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    filled(disk, clock).close()
    disk.unlink(f"{STORE}/FORMAT")
    with pytest.raises(ValueError, match="inside the store"):
        wheeldb.replay(STORE, f"{STORE}/new", salvage=True, disk=disk, clock=clock)


def test_nor_through_a_symbolic_link(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "s" / "aside")
    with wheeldb.open(tmp_path / "s", clock=clock, driver=False) as db:
        for dest in (tmp_path / "link" / "b", tmp_path / "s" / ".." / "s" / "b"):
            with pytest.raises(ValueError, match="inside the store"):
                db.backup(dest)
        db.backup(tmp_path / "s" / ".." / "b")


@pytest.mark.parametrize("offset", [10, 4_100, 4_200, -10])
def test_a_damaged_backup_is_refused(
    disk: CrashableDisk, clock: ManualClock, offset: int
) -> None:
    backup_store(filled(disk, clock)._engine, BACKUP)
    (name,) = disk.list(f"{BACKUP}/snapshots")
    path = f"{BACKUP}/snapshots/{name}"
    flip(disk, path, offset)

    with pytest.raises(CorruptionError) as caught:
        restored(disk, clock)

    assert caught.value.path == path
    assert disk.list("/") == ["backup", "store"]


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_crash_leaves_no_backup_or_a_whole_one(profile: str) -> None:
    operation, is_made = 0, False
    while not is_made:
        operation += 1
        disk, clock = CrashableDisk(operation), ManualClock()
        db = filled(disk, clock)
        ids = ids_of(db)
        is_made = run_until_cut(
            disk, operation, partial(backup_store, db._engine, BACKUP)
        )
        disk.crash(profile)
        if disk.info(BACKUP) is None:
            assert not is_made
            backup_store(open_store(disk, clock)._engine, BACKUP)
        restored(disk, clock)
        assert ids_of(open_store(disk, clock, RESTORED)) == ids, operation
    assert operation > 10


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_crash_leaves_no_restored_store_or_a_whole_one(profile: str) -> None:
    original, clock = CrashableDisk(), ManualClock()
    db = filled(original, clock)
    ids = ids_of(db)
    backup_store(db._engine, BACKUP)
    operation, is_made = 0, False
    while not is_made:
        operation += 1
        disk = original.clone(seed=operation)
        is_made = run_until_cut(disk, operation, partial(restored, disk, clock))
        disk.crash(profile)
        if disk.info(RESTORED) is None:
            assert not is_made
            restored(disk, clock)
        assert ids_of(open_store(disk, clock, RESTORED)) == ids, operation
        assert not disk.list("/")[0].endswith(".planting")
    assert operation > 15


@pytest.mark.parametrize("name", ["open", "pwrite", "sync_data", "sync", "rename"])
def test_a_failure_leaves_nothing_and_the_store_goes_on(
    disk: CrashableDisk, clock: ManualClock, name: str
) -> None:
    db = filled(disk, clock)
    disk.fail(name, errno.ENOSPC, path=BACKUP)

    with pytest.raises(OSError, match="No space"):
        backup_store(db._engine, BACKUP)

    assert disk.list("/") == ["store"]
    db.schedule("a", id="after", delay=1)
    backup_store(db._engine, BACKUP)


def test_on_the_real_disk(tmp_path: Path, clock: ManualClock) -> None:
    with wheeldb.open(tmp_path / "s", clock=clock, driver=False) as db:
        db.schedule("a", id="x", delay=60)
        backup_store(db._engine, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "r", clock=clock)

    with wheeldb.open(tmp_path / "r", clock=clock, driver=False) as db:
        assert ids_of(db) == ["x"]
        assert db.check() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "r", "s"]
