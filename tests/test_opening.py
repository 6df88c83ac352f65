"""Opening, cut short: whatever breaks it off, nothing stays open or locked."""

import errno
import os
from pathlib import Path

import pytest

import wheeldb
from wheeldb.clock import Waiter
from wheeldb.clock.system import SystemClock
from wheeldb.log.segment import LogSyncError
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.testing.lock import MemoryLock


class ClockWithoutWaiter(SystemClock):
    """A clock of a process that has no descriptors left by the time it is needed."""

    def waiter(self) -> Waiter:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def descriptors() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_an_opening_without_a_driver_in_the_end_lets_go_of_every_file(
    tmp_path: Path,
) -> None:
    with wheeldb.open(tmp_path / "store") as db:
        db.schedule("a", delay=60, id="kept")
    before = descriptors()

    with pytest.raises(OSError, match="Too many open files"):
        wheeldb.open(tmp_path / "store", clock=ClockWithoutWaiter())

    assert descriptors() == before
    with wheeldb.open(tmp_path / "store") as db:
        assert db.get("kept") is not None
        assert db.check() == []


class InterruptedDisk(CrashableDisk):
    """A disk on which the first owner is interrupted as it has just got the lock."""

    is_calm = False

    def lock(self, path: str, **options: int) -> MemoryLock:
        lock = super().lock(path, **options)
        if not self.is_calm:
            self.is_calm = True
            lock.write = _interrupt  # type: ignore[method-assign]
        return lock


def _interrupt(text: str) -> None:
    raise KeyboardInterrupt


def test_who_is_interrupted_with_the_lock_in_hand_gives_it_back() -> None:
    disk, clock = InterruptedDisk(), ManualClock()
    with pytest.raises(KeyboardInterrupt):
        wheeldb.open("/store", disk=disk, clock=clock, driver=False)

    wheeldb.open("/store", disk=disk, clock=clock, driver=False).close()


def new_store(disk: CrashableDisk) -> wheeldb.WheelDB:
    return wheeldb.open("/store", disk=disk, clock=ManualClock(), driver=False)


@pytest.mark.parametrize("name", ["snapshots/next.tmp", "FORMAT.tmp", "log/next.tmp"])
def test_what_a_crash_left_half_done_goes(name: str) -> None:
    disk = CrashableDisk()
    new_store(disk).schedule("a", id="kept", delay=60)
    disk.crash("none")
    disk.load({f"/store/{name}": bytes(10_000)})

    db = new_store(disk)

    assert f"/store/{name}" not in disk.dump()
    assert db.get("kept") is not None


def test_on_a_full_disk_it_is_the_first_to_go() -> None:
    disk = CrashableDisk()
    db = new_store(disk)
    db.schedule("a", id="kept", delay=60)
    db.close()
    disk.load({"/store/snapshots/next.tmp": bytes(100_000)})
    ballast = disk.info("/store/log/ballast")
    assert ballast is not None
    disk.full(10**12)
    disk.full(10**12 - disk.free_bytes())

    db = new_store(disk)

    assert "next.tmp" not in disk.list("/store/snapshots")
    assert disk.info("/store/log/ballast") == ballast
    assert db.get("kept") is not None


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_a_failed_sync_is_not_tried_again_without_room_either(operation: str) -> None:
    # The kernel calls what it could not write clean: the next sync would say yes to it.
    disk = CrashableDisk()
    new_store(disk).schedule("a", id="kept", delay=60)
    disk.crash("all")
    disk.fail(operation, errno.ENOSPC, path="/store/log")

    with pytest.raises(LogSyncError):
        new_store(disk)

    disk.crash("none")
    assert new_store(disk).get("kept") is not None


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_without_the_directory_of_its_log_is_refused(readonly: bool) -> None:
    disk = CrashableDisk()
    new_store(disk).close()
    files = {p: d for p, d in disk.dump().items() if "/log/" not in p}
    other = CrashableDisk()
    other.load(files)

    with pytest.raises(wheeldb.CorruptionError, match="/store/log: the directory is"):
        wheeldb.open("/store", disk=other, clock=ManualClock(), readonly=readonly)
