"""The stage: a disk that is mounted, a command that runs on it, a record of both.

    mounted(place, filesystem, image)        an image, mounted as it is
    recorded(place, filesystem, image, …)    the same with the recorder beneath it
    run(command, directory, …)               a command, as after a start of the machine

A command that still runs when its time is up is killed with all its children.
"""

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.powercut.filesystems import Filesystem
from tools.powercut.place import unmount
from tools.powercut.recorder import DISK_NAME

__all__ = (
    "ROOT",
    "Ended",
    "Unmountable",
    "environment",
    "missing_for",
    "mounted",
    "recorded",
    "run",
)

ROOT = Path(__file__).parents[2]
RECORD_BYTES_MAX = 2**30
RECORDER_SECONDS_MAX = 10.0
RELEASE_SECONDS_MAX = 10.0

# A mount namespace of its own, in which the machine has another boot id; killed with
# its parent. What comes behind `--` is the command.
_REBOOTED = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--mount", "--", "sh", "-c"),
    'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"',
)


def missing_for(filesystem: Filesystem) -> str | None:
    """Return what this machine lacks to use a file system, ``None`` if nothing."""
    if not sys.platform.startswith("linux"):
        return "Linux"
    if os.geteuid() != 0:
        return "root"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(device, os.R_OK | os.W_OK):
            return device
    programs = ("fusermount3", "losetup", "mount", "setpriv", "unshare")
    for program in (*programs, filesystem.make[0]):
        if shutil.which(program) is None:
            return f"the program {program}"
    if importlib.util.find_spec("mfusepy") is None:
        return "the package mfusepy"
    return None


class Unmountable(Exception):
    """The kernel can't mount the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; `status` is None when its time was up."""

    status: int | None
    said: str
    lines: str


@contextlib.contextmanager
def mounted(place: Path, filesystem: Filesystem, image: Path) -> Iterator[Path]:
    """Yield the directory where an image is mounted.

    Raises:
        Unmountable: With the kernel's word.
    """
    directory = place / "disk"
    directory.mkdir(exist_ok=True)
    command = ["mount", "-t", filesystem.kind, "-o", f"loop,{filesystem.options}"]
    try:
        done = subprocess.run(
            [*command, image, directory], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unmountable(done.stderr.strip())
        yield directory
    finally:
        if os.path.ismount(directory):
            unmount(str(directory))
        _wait_for_release(image)


def _wait_for_release(image: Path) -> None:
    """Wait until no loop device has the image.

    A namespace of a process that has just ended keeps its copy of the mount for a
    moment, and two mounted images of one Btrfs are taken for one.
    """
    until = time.monotonic() + RELEASE_SECONDS_MAX
    while time.monotonic() < until:
        held = subprocess.run(
            ["losetup", "--noheadings", "--output", "NAME", "--associated", image],
            capture_output=True,
            check=False,
        )
        if not held.stdout.strip():
            return
        time.sleep(0.01)


@contextlib.contextmanager
def recorded(
    place: Path, filesystem: Filesystem, image: Path, record: Path
) -> Iterator[tuple[Path, int]]:
    """Yield the directory and the pipe for acknowledgements.

    The record is complete when the block has been left.
    """
    fuse = place / "fuse"
    fuse.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        pipe = stack.enter_context(open(writing, "wb", buffering=0))
        try:
            recorder = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tools.powercut.recorder"),
                    *(str(fuse), str(image), str(record)),
                    *(str(RECORD_BYTES_MAX), str(reading)),
                ],
                pass_fds=[reading],
                cwd=ROOT,
                # A Ctrl-C at the terminal is for the run, which ends this one in order.
                start_new_session=True,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(reading)
        stack.callback(_end_recorder, recorder, fuse)
        (place / "recorder").write_text(str(recorder.pid))
        _wait_for(recorder, fuse / DISK_NAME)
        directory = stack.enter_context(mounted(place, filesystem, fuse / DISK_NAME))
        # Before the unmount: it marks where the command's own time ends.
        stack.callback(pipe.close)
        yield directory, writing


def _wait_for(recorder: subprocess.Popen[bytes], disk: Path) -> None:
    until = time.monotonic() + RECORDER_SECONDS_MAX
    while not disk.exists():
        if recorder.poll() is not None or time.monotonic() > until:
            assert recorder.stderr is not None, "a pipe was asked for"
            recorder.kill()
            said = recorder.stderr.read().decode(errors="replace").strip()
            raise RuntimeError(f"the recorder does not serve: {said}")
        time.sleep(0.01)


def _end_recorder(recorder: subprocess.Popen[bytes], fuse: Path) -> None:
    if os.path.ismount(fuse):
        unmount(str(fuse))
    try:
        recorder.communicate(timeout=RECORDER_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        recorder.kill()
        recorder.communicate()


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a command: this checkout, compiled once for the run."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(place / "compiled"),
    }


def run(
    command: str,
    place: Path,
    directory: Path,
    *,
    seed: int,
    seconds_max: float,
    lines: str = "",
    output: int | None = None,
) -> Ended:
    """Run a command in the mounted directory, as after a start of the machine.

    Args:
        command: Shell words, with `{directory}` and `{seed}` to be filled in.
        place: The run's scratch directory.
        directory: The mounted one.
        seed: For `{seed}`.
        seconds_max: When it is killed.
        lines: Its standard input.
        output: Where its lines go; ``None`` collects them.
    """
    boot_id = place / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    words = [
        word.replace("{directory}", str(directory)).replace("{seed}", str(seed))
        for word in shlex.split(command)
    ]
    process = subprocess.Popen(
        [*_REBOOTED, str(boot_id), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(place),
        start_new_session=True,
    )
    try:
        given, said = process.communicate(lines, timeout=seconds_max)
        return Ended(status=process.returncode, said=said, lines=given or "")
    except subprocess.TimeoutExpired as expired:
        said = (expired.stderr or b"").decode(errors="replace")
        return Ended(status=None, said=said, lines="")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
