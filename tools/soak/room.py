"""A small file system that can be filled to the last block, and emptied again.

Root gets a tmpfs of its own: there the index, which reaches the disk past the store's
`Disk`, runs full as well. Everybody else gets a directory and a disk that answers
ENOSPC as long as a file named `FULL` lies beside the store.

A mount is undone whatever happens here; that of a process which was killed is found and
undone by the next one.
"""

import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Protocol

from wheeldb.disk import OsDisk
from wheeldb.disk.seam import Data

__all__ = (
    "MountedRoom",
    "QuotaDisk",
    "QuotaRoom",
    "Room",
    "mount",
    "new_room",
    "remove_stale",
    "unmount",
)

SOURCE = "wheeldb-soak"
# Log, snapshots, index and the room kept behind it come to a third of that.
SIZE_BYTES = 256 * 2**20
STEP_BYTES = 2**20
FLAG = "FULL"


class Room(Protocol):
    """Where a store lives."""

    @property
    def path(self) -> Path:
        """The directory for the store."""

    @property
    def flag(self) -> Path | None:
        """The file whose presence means that there is no room; None: real blocks."""

    def fill(self) -> None:
        """Take all room there is."""

    def free(self) -> None:
        """Give it back; does nothing if it was not taken."""

    def close(self) -> None:
        """Leave what lies there in place where that is possible; undo the rest."""


def new_room(directory: Path) -> Room:
    """Return a room in an existing directory: a mounted one if that is allowed."""
    remove_stale()
    if mount(directory, SIZE_BYTES):
        return QuotaRoom(directory)
    return MountedRoom(directory)


def mount(directory: Path, size_bytes: int) -> str:
    """Mount a tmpfs on a directory; return why that can't be, empty if it was done."""
    if os.geteuid() != 0:
        return "only root may mount"
    source = f"{SOURCE}-{os.getpid()}"
    mounted = subprocess.run(
        [
            *("mount", "-t", "tmpfs", "-o", f"size={size_bytes}"),
            *(source, str(directory)),
        ],
        capture_output=True,
        check=False,
        text=True,
    )
    return mounted.stderr.strip() if mounted.returncode else ""


def unmount(directory: Path) -> None:
    """Undo a mount; what lies there is gone."""
    subprocess.run(["umount", "-l", str(directory)], check=True)


def remove_stale() -> None:
    """Undo the mounts of processes that are gone."""
    try:
        mounts = Path("/proc/mounts").read_text("utf-8")
    except OSError:
        return
    for pid, place in re.findall(rf"^{SOURCE}-(\d+) (\S+) tmpfs", mounts, re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            subprocess.run(["umount", "-l", place], check=False)


class MountedRoom:
    """A tmpfs."""

    flag: Path | None = None

    def __init__(self, mount_point: Path) -> None:
        self._mount_point = mount_point
        self._filler = mount_point / "filler"

    @property
    def path(self) -> Path:
        """The directory for the store."""
        return self._mount_point / "store"

    def fill(self) -> None:
        """Take all room there is, also what is given back while it is taken."""
        with self._filler.open("ab") as file:
            size = STEP_BYTES
            while size >= 4_096:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), size)
                    file.seek(0, os.SEEK_END)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Undo the mount; what lies there is gone."""
        unmount(self._mount_point)


class QuotaRoom:
    """A directory, and a file that says that it is full."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.flag: Path | None = directory / FLAG

    @property
    def path(self) -> Path:
        """The directory for the store."""
        return self._directory / "store"

    def fill(self) -> None:
        """Say that there is no room."""
        (self._directory / FLAG).touch()

    def free(self) -> None:
        """Say that there is room."""
        (self._directory / FLAG).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what lies there."""
        self.free()


class QuotaDisk(OsDisk):
    """The real disk, full as long as a file exists."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    # Methods here, C functions there: nothing interrupts this worker's writes.
    def pwrite(self, handle: int, data: Data, offset: int, /) -> int:  # type: ignore[override]
        """Write, within the length that the file has while there is no room."""
        if offset + len(data) > os.fstat(handle).st_size:
            self._require_room()
        return os.pwrite(handle, data, offset)

    def allocate(self, handle: int, offset: int, size: int, /) -> bool:
        """Reserve room, if there is some."""
        self._require_room()
        return OsDisk.allocate(handle, offset, size)

    def _require_room(self) -> None:
        if os.path.exists(self._flag):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._flag)
