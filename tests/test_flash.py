"""Media that damage what lies beside a write, such as SD cards.

Goal: what was acknowledged survives a power cut in the middle of any later call, though
the 4,096 bytes around an unsynced write may be damaged.
Method: a disk notes where the log's last frame ends at each sync; no later write may
touch that block. And the power is cut in such calls, which may damage the surroundings.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import pytest

import wheeldb
from wheeldb.log.spare import put_back
from wheeldb.testing import CrashableDisk, ManualClock, PowerCut

BLOCK_BYTES = 4096


class WatchedDisk(CrashableDisk):
    """Notes each write into a block that a sync has covered."""

    def __init__(self) -> None:
        super().__init__(flash=True)
        self.ends: dict[int, int] = {}
        self.synced: dict[int, int] = {}
        self.again: list[tuple[int, int]] = []

    def pwrite(
        self, handle: int, data: bytes | bytearray | memoryview, offset: int
    ) -> int:
        if bytes(data).strip(b"\0"):
            if offset // BLOCK_BYTES <= self.synced.get(handle, -1):
                self.again.append((handle, offset))
            self.ends[handle] = offset + len(data)
        return super().pwrite(handle, data, offset)

    def sync_data(self, handle: int) -> None:
        super().sync_data(handle)
        if handle in self.ends:
            self.synced[handle] = (self.ends[handle] - 1) // BLOCK_BYTES


def test_no_call_writes_an_acknowledged_block_again() -> None:
    clock, disk = ManualClock(), WatchedDisk()
    db = wheeldb.open("/store", clock=clock, disk=disk, driver=False)
    disk.again.clear()
    for number in range(8):
        db.schedule("due", delay=0, id=f"due-{number}")
        db.schedule("later", delay=3600, id=f"later-{number}")
    leases = db.lease(limit=8)
    settles: list[Callable[[wheeldb.Lease], None]] = [
        lambda lease: lease.ack(),
        lambda lease: lease.release(),
        lambda lease: lease.reject("no"),
        lambda lease: lease.nack("no", retry_in=9),
    ]
    for number, lease in enumerate(leases):
        settles[number // 2](lease)
        db.cancel(f"later-{number}")
    assert disk.again == []


def cancel(db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
    db.cancel("later")


def ack(db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
    lease.ack()


@pytest.mark.parametrize("call", [cancel, ack])
@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_takes_nothing_that_was_acknowledged(
    call: Callable[[wheeldb.WheelDB, wheeldb.Lease], None], seed: int
) -> None:
    clock, disk = ManualClock(), CrashableDisk(seed=seed, flash=True)
    db = wheeldb.open("/store", clock=clock, disk=disk, driver=False)
    db.schedule("due", delay=0, id="done")
    db.schedule("due", delay=0, id="running")
    db.schedule("later", delay=3600, id="later")
    db.schedule("later", delay=3600, id="cancelled")
    done, running = db.lease(limit=2)
    done.ack()
    db.cancel("cancelled")
    db.schedule("later", delay=3600, id="kept")
    disk.crash_at(2)
    with suppress(PowerCut):
        call(db, running)
    assert disk.is_cut
    disk.crash("block")
    clock.reboot(off=1)
    db = wheeldb.open("/store", clock=clock, disk=disk, driver=False)
    tasks = map(db.get, ("done", "cancelled", "kept"))
    states = [None if task is None else task.state for task in tasks]
    assert states == ["done", "cancelled", "scheduled"]


def full_store(disk: CrashableDisk, clock: ManualClock) -> wheeldb.WheelDB:
    """Return a store on a full disk, whose frames share blocks."""
    db = wheeldb.open("/store", clock=clock, disk=disk, driver=False)
    for number in range(12):
        db.schedule("later", delay=3600, id=f"later-{number}")
    disk.full(10**12)
    disk.full(10**12 - disk.free_bytes())
    with suppress(wheeldb.StorageFullError):
        for _ in range(10_000):
            db.schedule("filler", "x" * 3_000, delay=3600)
    while not db._engine.committer.room.is_tight:
        # What needs no new block is padded, as long as there are blocks with zeros.
        db.cancel(next(db.tasks(name="filler")).id)
    return db


@pytest.mark.parametrize("operation", range(1, 9))
@pytest.mark.parametrize("seed", range(20))
def test_nor_on_a_full_disk_where_frames_share_their_blocks(
    operation: int, seed: int
) -> None:
    clock, disk = ManualClock(), CrashableDisk(seed=seed, flash=True)
    db = full_store(disk, clock)
    numbers = iter(range(12))
    for number in islice(numbers, 5):
        db.cancel(f"later-{number}")
    assert db._engine.committer.writer.position.offset % BLOCK_BYTES
    disk.crash_at(operation)
    with suppress(PowerCut):
        for number in numbers:
            db.cancel(f"later-{number}")
    assert disk.is_cut
    disk.crash("block")
    clock.reboot(off=1)

    db = wheeldb.open("/store", clock=clock, disk=disk, driver=False)

    left = {task.id for task in db.tasks(name="later")} - {f"later-{number}"}
    assert left == {f"later-{n}" for n in range(number + 1, 12)}
    disk.full(None)
    assert db.check() == []


def test_a_copy_of_a_block_is_put_back_once_and_of_another_segment_never() -> None:
    clock, disk = ManualClock(), CrashableDisk(flash=True)
    db = full_store(disk, clock)
    db.cancel("later-0")
    db.cancel("later-1")
    position = db._engine.committer.writer.position
    path = db._engine.committer.writer.path
    begin = position.offset // BLOCK_BYTES * BLOCK_BYTES
    disk.crash("none")
    assert not put_back(disk, "/store/log")
    disk.corrupt(path, begin, 8)

    assert put_back(disk, "/store/log")
    assert not put_back(disk, "/store/log")
    wheeldb.open("/store", clock=clock, disk=disk, driver=False)
    disk.crash("none")
    disk.corrupt(path, begin, 8)
    assert not put_back(disk, "/store/log")


def test_a_disk_without_room_for_copies_still_gives_leases_their_block() -> None:
    clock, disk = ManualClock(), CrashableDisk(flash=True)
    disk.fail("pwrite", errno.ENOSPC, forever=True, path="log/spare")
    db = full_store(disk, clock)
    held = disk.info("/store/log/ballast")
    clock.advance(3600)
    for _ in range(20):
        # Not synced: nobody was promised what stands in their block.
        assert len(db.lease()) == 1
    assert db._engine.committer.writer.position.offset % BLOCK_BYTES
    assert disk.info("/store/log/ballast") == held


def crashed() -> tuple[CrashableDisk, ManualClock]:
    """Return what a crash has left, with a copy of the last block."""
    clock, disk = ManualClock(), CrashableDisk(flash=True)
    db = full_store(disk, clock)
    db.cancel("later-0")
    db.cancel("later-1")
    disk.crash("none")
    disk.full(None)
    return disk, clock


def test_a_block_that_cannot_be_read_is_put_back() -> None:
    disk, _ = crashed()
    disk.fail("pread", errno.EIO, nth=2, path=".seg")
    assert put_back(disk, "/store/log")
    assert not put_back(disk, "/store/log")


def test_a_copy_that_cannot_be_read_is_none() -> None:
    disk, clock = crashed()
    disk.fail("pread", errno.EIO, path="log/spare")
    with wheeldb.open("/store", clock=clock, disk=disk, driver=False) as db:
        assert db.get("later-2") is not None


def test_a_segment_that_cannot_be_read_is_damage() -> None:
    disk, clock = crashed()
    disk.fail("pread", errno.EIO, forever=True, path=".seg")
    with pytest.raises(wheeldb.CorruptionError, match="cannot read"):
        wheeldb.open("/store", clock=clock, disk=disk, driver=False)
