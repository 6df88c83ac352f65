"""Opening, cut short: whatever breaks it off, nothing stays open or locked."""

import errno
import os
from pathlib import Path

import pytest

import wheeldb
from wheeldb.clock import Waiter
from wheeldb.clock.system import SystemClock
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
