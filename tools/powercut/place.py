"""A scratch directory for one run, with all that is mounted in it, always cleaned up.

    wheeldb-powercut-XXXXXXXX/
        lock        held as long as the run lives: where it is free, the rest is stale
        ext4/       for each file system of the run:
            recorder    pid of the last recorder
            fuse/       its mount
            disk/       the file system under test

Mounts outlive the process that made them. So everything that a run starts is ended by
its own `ExitStack`, also on SIGINT and SIGTERM, which are turned into an exception; and
whoever starts next clears what a killed run has left: unmounts what lies below its
directory, innermost first, ends its recorder and removes the files. Loop devices are
made by mount(8), which has them let go of their file by themselves at the unmount.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

__all__ = (
    "Interrupted",
    "clear_stale",
    "mounts_below",
    "scratch_place",
    "signals_raised",
    "unmount",
)

PREFIX = "wheeldb-powercut-"
UNMOUNT_ATTEMPTS = 50


class Interrupted(BaseException):
    """SIGINT or SIGTERM came; no error, so that nobody who waits for those takes it."""


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Interrupted`; later ones don't count."""
    is_raised = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_raised
        if not is_raised:
            is_raised = True
            raise Interrupted(signal.Signals(number).name)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def scratch_place(parent: str | None) -> Iterator[Path]:
    """Yield a new scratch directory; clear stale ones first, and this one last.

    Args:
        parent: Where to make it; ``None`` takes memory (/dev/shm) where there is some,
            since what the images hold is worth nothing after the run.
    """
    if parent is None:
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    clear_stale(parent)
    place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
    finally:
        _clear(place)
        os.close(lock)


def clear_stale(parent: str) -> list[Path]:
    """Clear what killed runs have left below a directory; return their places."""
    stale = []
    for place in sorted(Path(parent).glob(f"{PREFIX}*")):
        try:
            lock = os.open(place / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # It is being made or being removed at this moment.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            _clear(place)
            stale.append(place)
        finally:
            os.close(lock)
    return stale


def mounts_below(place: Path) -> list[str]:
    """Return the mount points below a directory, the latest first."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    return [point for point in reversed(points) if point.startswith(f"{place}/")]


def unmount(point: str) -> None:
    """Unmount; wait a while for those who still use it, then take it away from them."""
    for _ in range(UNMOUNT_ATTEMPTS):
        done = subprocess.run(["umount", point], capture_output=True, check=False)
        if done.returncode == 0 or not os.path.ismount(point):
            return
        time.sleep(0.1)
    subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _clear(place: Path) -> None:
    for point in mounts_below(place):
        unmount(point)
    for noted in place.rglob("recorder"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(noted.read_text())
            # Its mount is gone, so it ends by itself; or another has the number by now.
            if str(place) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(place, ignore_errors=True)
