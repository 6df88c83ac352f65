"""What the tests of recovery share: a small store on a disk that can be damaged."""

from collections.abc import Callable
from datetime import UTC, datetime

from log_helpers import SeededEntropy

import wheeldb
from wheeldb import Task, WheelDB
from wheeldb.testing import CrashableDisk, ManualClock, PowerCut

STORE = "/store"
HONEST_PROFILES = ("none", "all", "prefix", "subset", "torn", "stale_tail")
WALL = datetime(2026, 1, 1, tzinfo=UTC)


def open_store(
    disk: CrashableDisk, clock: ManualClock, path: str = STORE, **options: object
) -> WheelDB:
    """Open a store without driver, with small segments and no reserve."""
    chosen: dict[str, object] = {
        "disk": disk,
        "clock": clock,
        "entropy": SeededEntropy(len(disk.operations)),
        "driver": False,
        "reserve": False,
        "profile": "disk",
        "segment_bytes": 65_536,
    }
    return wheeldb.open(path, **(chosen | options))  # type: ignore[arg-type]


def tasks_of(db: WheelDB) -> list[Task]:
    """Return every unfinished task; those of an elapsed timeline without estimates."""
    return sorted(db.tasks(), key=lambda task: task.number)


def ids_of(db: WheelDB) -> list[str]:
    """Return the ids of the unfinished tasks, sorted."""
    return sorted(task.id for task in db.tasks())


def read(disk: CrashableDisk, path: str) -> bytes:
    """Return a file's bytes."""
    handle = disk.open(path, readonly=True)
    try:
        return disk.pread(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def write(disk: CrashableDisk, path: str, data: bytes, offset: int = 0) -> None:
    """Overwrite bytes of a file, durably."""
    handle = disk.open(path)
    try:
        disk.pwrite(handle, data, offset)
        disk.sync(handle)
    finally:
        disk.close(handle)


def cut(disk: CrashableDisk, path: str, size: int) -> None:
    """Cut a file, durably."""
    handle = disk.open(path)
    try:
        disk.truncate(handle, size)
        disk.sync(handle)
    finally:
        disk.close(handle)


def flip(disk: CrashableDisk, path: str, offset: int) -> None:
    """Flip one bit; a negative offset counts from the end."""
    data = read(disk, path)
    offset %= len(data)
    write(disk, path, bytes((data[offset] ^ 1,)), offset)


def segments_of(disk: CrashableDisk, path: str = STORE) -> list[str]:
    """Return the paths of the segments, oldest first."""
    names = disk.list(f"{path}/log")
    return [f"{path}/log/{name}" for name in names if name.endswith(".seg")]


def files_of(disk: CrashableDisk, path: str = STORE) -> dict[str, bytes]:
    """Return what an opening must not change when it refuses."""
    own = (f"{path}/LOCK", f"{path}/index/VOUCH")
    return {
        name: data
        for name, data in disk.dump().items()
        if name.startswith(path + "/") and name not in own
    }


def run_until_cut(
    disk: CrashableDisk, operation: int, program: Callable[[], object]
) -> bool:
    """Run a program, with the power cut at an operation; return whether it ended."""
    disk.crash_at(operation)
    try:
        program()
    except PowerCut:
        return False
    return True
