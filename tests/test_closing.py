"""A close that meets a failing disk tells it, or everything is on the disk.

Goal: who has closed a store without an error may pull the plug. Method: a store with
tasks that are written and not synced is closed on a disk one of whose operations fails;
then everything that is not durable is lost.
"""

import errno

import pytest

import wheeldb
from wheeldb.testing import CrashableDisk, ManualClock

IDS = ("a", "b", "c")
# The steps of a close, as the test below counts them.
STEPS = (("pwrite", 3), ("sync_data", 4), ("truncate", 1))


def written_store() -> tuple[wheeldb.WheelDB, CrashableDisk, ManualClock]:
    """Return a store with three tasks that a power cut would take."""
    disk, clock = CrashableDisk(seed=1), ManualClock()
    disk.make_directory("store")
    db = wheeldb.open(
        "store", disk=disk, clock=clock, driver=False, durability="written"
    )
    for task_id in IDS:
        db.schedule("task", delay=900, id=task_id)
    return db, disk, clock


def after_a_power_cut(disk: CrashableDisk, clock: ManualClock) -> list[str]:
    """Return the tasks that are still there."""
    disk.heal()
    disk.crash("none")
    clock.reboot(off=1)
    with wheeldb.open("store", disk=disk, clock=clock, driver=False) as db:
        assert db.check() == []
        return [task.id for task in db.tasks()]


def test_a_close_takes_the_steps_that_are_made_to_fail_here() -> None:
    db, disk, _ = written_store()
    before = len(disk.operations)

    db.close()

    names = [
        operation.name
        for operation in disk.operations[before:]
        if operation.path.startswith("store/log")
    ]
    assert [(name, names.count(name)) for name, _ in STEPS] == [*STEPS]


@pytest.mark.parametrize(
    ("operation", "nth"),
    [(name, n) for name, count in STEPS for n in range(1, count + 1)],
)
@pytest.mark.parametrize("forever", [False, True])
def test_an_error_in_the_log_is_told(operation: str, nth: int, forever: bool) -> None:
    db, disk, clock = written_store()
    disk.fail(operation, errno.EIO, nth, forever, path="store/log")

    with pytest.raises((wheeldb.CommitUnknown, wheeldb.StorePoisoned)):
        db.close()

    # It is closed all the same, and what was synced before the error is there.
    with pytest.raises(wheeldb.ClosedError):
        db.get("a")
    assert set(after_a_power_cut(disk, clock)) in ({*IDS}, set())


@pytest.mark.parametrize("operation", ["pwrite", "open", "sync", "rename", "index"])
def test_a_close_without_an_error_has_lost_nothing(operation: str) -> None:
    db, disk, clock = written_store()
    disk.fail(operation, errno.ENOSPC, forever=True)

    db.close()

    assert after_a_power_cut(disk, clock) == [*IDS]


@pytest.mark.parametrize("nth", range(1, dict(STEPS)["sync_data"] + 1))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_without_room_is_told_as_any_other(nth: int, code: int) -> None:
    # Blocks that are found only when they are written back, as with delayed allocation.
    db, disk, clock = written_store()
    disk.fail("sync_data", code, nth, path="store/log")

    with pytest.raises((wheeldb.CommitUnknown, wheeldb.StorePoisoned)):
        db.close()

    assert set(after_a_power_cut(disk, clock)) in ({*IDS}, set())


def test_a_store_that_was_poisoned_before_is_closed_in_silence() -> None:
    db, disk, _ = written_store()
    disk.fail("sync_data", errno.EIO, path="store/log")
    with pytest.raises(wheeldb.CommitUnknown):
        db.schedule("task", delay=900, durability="fsync")

    db.close()
