"""What each level of durability loses when a process or the power goes.

Goal: the table in the README, row by row. Method: calls 10 ms apart on a simulated
disk, then a kill, which leaves what was written, or a power cut, which leaves what was
synced, or any part of the rest.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import wheeldb
from wheeldb.testing import CrashableDisk, ManualClock

Level = Literal["fsync", "written"]

ROOT = Path(__file__).parent.parent
STEP_S, LOST_S_MAX = 0.01, 0.05
IDS = [f"task-{number:02}" for number in range(30)]


def left_of(level: Level, accident: str, seed: int = 1) -> list[str]:
    """Schedule tasks at one level; return which are there after an accident."""
    clock, disk = ManualClock(), CrashableDisk(seed=seed)
    disk.make_directory("store")
    db = wheeldb.open("store", clock=clock, disk=disk, driver=False, durability=level)
    for name in IDS:
        clock.advance(STEP_S)
        db.poll()
        db.schedule("a", delay=3_600, id=name)
    if accident == "kill":
        disk.kill()
    else:
        disk.crash(accident)
        clock.reboot(off=1)
    db = wheeldb.open("store", clock=clock, disk=disk, driver=False)
    return sorted(task.id for task in db.tasks())


@pytest.mark.parametrize("level", ["fsync", "written"])
def test_a_killed_process_loses_nothing(level: Level) -> None:
    assert left_of(level, "kill") == IDS


@pytest.mark.parametrize("accident", ["none", "all", "prefix", "subset"])
def test_a_power_cut_takes_nothing_that_was_synced(accident: str) -> None:
    assert left_of("fsync", accident) == IDS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("accident", ["none", "prefix", "subset"])
def test_of_what_was_written_it_takes_the_last_moments(
    accident: str, seed: int
) -> None:
    left = left_of("written", accident, seed)

    assert left == IDS[: len(left)], "a hole"
    assert len(IDS) - len(left) <= LOST_S_MAX / STEP_S


def test_the_last_moments_can_be_lost() -> None:
    assert len(left_of("written", "none")) < len(IDS)


WORK = """
import os, signal, sys
import wheeldb

db = wheeldb.open(sys.argv[1], durability="memory")
for name in sys.argv[2:]:
    db.schedule("a", delay=3_600, id=name)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing_that_nobody_has_synced(tmp_path: Path) -> None:
    # A simulated disk is synced at every level; it is the real one that is spared.
    path = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(path), *IDS], cwd=ROOT, check=False
    )

    assert done.returncode == -signal.SIGKILL
    with wheeldb.open(path, driver=False) as db:
        assert sorted(task.id for task in db.tasks()) == IDS
