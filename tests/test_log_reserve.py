"""Room set apart.

Goal: what was promised when a task was accepted can be written on a full disk. Method:
a disk in memory with a capacity, filled by others to its last block.
"""

import errno
import os.path

import pytest
from log_helpers import LOG, Appender, make_disk, open_log, rows, scan_log

from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import list_segments
from wheeldb.testing.disk import CrashableDisk

RESERVE = os.path.join(LOG, "reserve")
BALLAST = os.path.join(LOG, "ballast")
MIB = 2**20


def fill(disk: CrashableDisk) -> None:
    """Let another program take all room that is left."""
    handle = disk.open("/other", create=True)
    offset = disk.size(handle)
    for size in (MIB, 4096):
        while True:
            try:
                written = disk.pwrite(handle, b"x" * size, offset)
            except OSError:
                break
            offset += written
    disk.close(handle)


def fill_log(log: Appender) -> None:
    """Write new tasks until there is no room for one more."""
    while True:
        try:
            log.append(b"t" * 5000)
        except OSError:
            log.written.pop()
            return


def test_room_grows_in_steps_and_shrinks_late() -> None:
    disk = make_disk()
    reserve = Reserve(disk, RESERVE)
    held = []
    for tasks in (0, 1, 8192, 8193, 200_000, 100_000, 1, 0):
        reserve.ensure(tasks)
        held.append(reserve.statistics().reserved_bytes // MIB)
        assert held[-1] * MIB >= tasks * 128
    assert held == [0, 1, 1, 2, 25, 25, 1, 1]


def test_a_task_is_refused_before_it_is_accepted() -> None:
    disk = make_disk()
    disk.full(5 * MIB)
    reserve = Reserve(disk, RESERVE)
    reserve.ensure(8192 * 3)
    with pytest.raises(OSError, match="No space") as caught:
        reserve.ensure(8192 * 9)
    assert caught.value.errno == errno.ENOSPC
    assert reserve.statistics().reserved_bytes == 3 * MIB
    assert reserve.statistics().wanted_bytes == 9 * MIB


def test_a_full_disk_still_takes_the_end_of_a_task() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"a task")
    disk.full(disk_used(disk) + 4 * MIB)
    reserve = Reserve(disk, RESERVE)
    reserve.ensure(1000)
    fill(disk)
    # Fill the segment's zeroed room, too.
    fill_log(log)
    assert reserve.give_back(10_000) == 12_288
    log.append(b"cancelled", align=False)
    assert reserve.statistics().reserved_bytes == MIB - 12_288
    assert rows(scan_log(disk)[0]) == log.written


def test_ballast_is_released_and_made_again() -> None:
    disk = make_disk()
    disk.full(6 * MIB)
    ballast = Ballast(disk, BALLAST, 2 * MIB)
    assert not ballast.is_held
    assert ballast.restore()
    assert ballast.restore()
    fill(disk)
    assert ballast.release()
    assert not ballast.release()
    assert disk.free_bytes() >= 2 * MIB
    fill(disk)
    assert not ballast.restore()
    disk.unlink("/other")
    assert ballast.restore()
    assert ballast.statistics().reserved_bytes == 2 * MIB


def test_what_an_earlier_life_held_can_be_released_at_once() -> None:
    disk = make_disk()
    disk.full(6 * MIB)
    Ballast(disk, BALLAST, 2 * MIB).restore()
    Reserve(disk, RESERVE).ensure(8192)
    fill(disk)
    disk.kill()
    assert Ballast(disk, BALLAST, 2 * MIB).release()
    assert Reserve(disk, RESERVE).give_back(4096) == 4096
    assert disk.free_bytes() >= 2 * MIB + 4096


def test_a_length_without_blocks_is_not_trusted() -> None:
    disk = make_disk()
    handle = disk.open(RESERVE, create=True)
    disk.truncate(handle, 3 * MIB)
    disk.full(6 * MIB)
    free = disk.free_bytes()
    Reserve(disk, RESERVE).ensure(1)
    assert disk.free_bytes() == free - 3 * MIB


def test_a_file_system_that_cannot_allocate() -> None:
    class Simple(CrashableDisk):
        def allocate(self, handle: int, offset: int, size: int) -> bool:
            return False

    disk = Simple()
    disk.make_directory("/store")
    disk.make_directory(LOG)
    reserve = Reserve(disk, RESERVE)
    reserve.ensure(10_000)
    assert not reserve.statistics().is_supported
    assert reserve.statistics().reserved_bytes == 0
    ballast = Ballast(disk, BALLAST, MIB)
    assert ballast.restore()
    assert not ballast.is_held


def test_another_error_is_raised() -> None:
    disk = make_disk()
    ballast = Ballast(disk, BALLAST, MIB)
    disk.fail("allocate", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        ballast.restore()


def test_the_files_are_no_segments() -> None:
    disk = make_disk()
    reserve, ballast = Reserve(disk, RESERVE), Ballast(disk, BALLAST, MIB)
    assert list_segments(disk, LOG) == []
    reserve.close()
    ballast.close()


def disk_used(disk: CrashableDisk) -> int:
    disk.full(2**40)
    return 2**40 - disk.free_bytes()
