"""The `Disk` protocol: every system call on files, and what is built on it.

A handle is an int, as in the system calls. A path is a `str`. Every failure is an
`OSError` with its errno; nothing is retried, logged or swallowed here unless a method's
contract says so. In particular a failed sync is final: the kernel may have marked the
pages clean, and a second sync would then report success for data that is gone
(https://wiki.postgresql.org/wiki/Fsync_Errors).

What a power cut keeps, as every caller has to assume:

- of written bytes: any part, in 512-byte sectors, until a sync of the file returned;
- of a created or removed name: either, until a sync of its directory returned;
- a rename inside one directory happens whole or not at all.

The protocol does not buffer, does not count and does not know what the bytes mean.
"""

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = (
    "NETWORK_FILE_SYSTEMS",
    "NO_ROOM",
    "Data",
    "Disk",
    "FileInfo",
    "Lock",
    "LockHeld",
    "replace_file",
    "write_all",
)

Data: TypeAlias = bytes | bytearray | memoryview

# Where locks or syncs may not reach the machine that holds the bytes. FUSE is among
# them because virtiofs and sshfs answer to its name and can't be told from a local one.
NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "coda", "fuse", "gpfs", "lustre", "nfs", "smb"}
)

# The error numbers of a disk that is full, for everybody or for this user.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What a directory entry leads to."""

    size: int
    device: int
    inode: int
    is_directory: bool
    owner: int


class LockHeld(Exception):
    """Somebody else has the lock; `holder` is what they wrote into the file.

    The text is information for people and may be stale, empty or garbage. That the lock
    is held is the kernel's word. `is_ours` says that the holder is this very process.
    """

    def __init__(self, path: str, holder: str, *, is_ours: bool) -> None:
        where = "this process" if is_ours else "another process"
        super().__init__(f"{path} is locked by {where}: {holder or '(no text)'}")
        self.path = path
        self.holder = holder
        self.is_ours = is_ours


class Lock(Protocol):
    """A lock that is held, until `release` or the end of the process."""

    def write(self, text: str) -> None:
        """Replace the line that tells people who holds the lock.

        Raises:
            OSError: the file could not be written; the lock is held all the same.
        """

    def release(self) -> None:
        """Give the lock up. A second call, or one in a forked child, does nothing."""


class Disk(Protocol):
    """Every system call on files that wheeldb makes. All methods are thread-safe."""

    # Where the index of a store on this disk lives when LMDB can't reach the disk: a
    # function from the index's path to the index. None: LMDB opens the path itself.
    index_factory: Callable[[str], object] | None

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        readonly: bool = False,
    ) -> int:
        """Open a file for reading and writing and return its handle.

        - `create`: make it (mode 0600) if it is missing; its name is durable only after
          `sync_directory`.
        - `exclusive`, with `create`: fail with EEXIST if it exists.
        - `readonly`: a write through the handle fails with EBADF.
        - The handle is never 0, 1 or 2, where a stray write to standard error would hit
          the file (https://www.sqlite.org/howtocorrupt.html, section 1.1), and no child
          process inherits it over exec.
        """

    def close(self, handle: int, /) -> None:
        """Close a handle. It is gone even if an error is raised."""

    def pread(self, handle: int, size: int, offset: int, /) -> bytes:
        """Return up to `size` bytes at `offset`, fewer only at the end of the file."""

    def pwrite(self, handle: int, data: Data, offset: int, /) -> int:
        """Write at `offset`, extending the file, and return the count; may be short."""

    def size(self, handle: int) -> int:
        """Return the file's length in bytes."""

    def truncate(self, handle: int, size: int, /) -> None:
        """Cut the file, or extend it with a hole that reads as zeros."""

    def allocate(self, handle: int, offset: int, size: int, /) -> bool:
        """Reserve room for `size` bytes at `offset` without changing the file's length.

        Returns False where the file system can't; raises ENOSPC where there is no room.
        """

    def sync_data(self, handle: int, /) -> None:
        """Make the file's bytes and length durable.

        On Linux the attribute *is* the C function, so that its result can be stored by
        another C call before any signal handler runs.
        """

    def sync(self, handle: int, /) -> None:
        """Make the file's bytes, length and other metadata durable."""

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals in a directory durable."""

    def rename(self, source: str, target: str, /) -> None:
        """Rename, replacing the target. Sync both directories to make it durable."""

    def unlink(self, path: str, /) -> None:
        """Remove a file's name."""

    def make_directory(self, path: str) -> None:
        """Make a directory (mode 0700). One that exists is fine; its parent must."""

    def remove_directory(self, path: str, /) -> None:
        """Remove an empty directory."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def info(self, path: str) -> FileInfo | None:
        """Return what the path leads to, None if there is nothing."""

    def drop_cache(self, handle: int) -> None:
        """Ask that later reads come from the medium. Best effort, never an error."""

    def file_system(self, path: str, /) -> str:
        """Return the file system's name: "ext4", "nfs", "tmpfs", …, or "unknown"."""

    def is_flash(self, path: str) -> bool | None:
        """Return whether the path lies on SD, eMMC or raw flash; None: can't be told.

        Such media may damage bytes *beside* those being written when power fails.
        """

    def lock(self, path: str, *, attempts: int = 5, delay_ms: int = 50) -> Lock:
        """Take the exclusive lock on a file, which is created once and never removed.

        Tries `attempts` times, `delay_ms` apart, since the kernel may still be closing
        the files of a holder that has just died.

        Raises:
            LockHeld: somebody has it, in this process or another.
            OSError: the file can't be opened, or was replaced while being locked.
        """


def write_all(disk: Disk, handle: int, data: Data, offset: int) -> None:
    """Write every byte at `offset`, going on after short writes.

    Raises:
        OSError: as the disk says; then any part may have been written.
    """
    written = disk.pwrite(handle, data, offset)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        count = disk.pwrite(handle, view[written:], offset + written)
        if count <= 0:
            message = f"nothing written at offset {offset + written}"
            raise OSError(errno.EIO, message)
        written += count


def replace_file(disk: Disk, path: str, data: Data) -> None:
    """Give a file new content, durably, so that a reader finds the old or the new one.

    The steps and their order are those of an atomic replacement: write aside as
    `path`.tmp, sync, rename, sync the directory.

    Raises:
        OSError: as the disk says. If the directory's sync failed, the new content is in
            place and may be lost with the power; before that, the old one is untouched.
    """
    aside = path + ".tmp"
    # What a crash left is removed, not overwritten: where a rename is a link and an
    # unlink, both names may be left, and this one may be the file's second.
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(aside)
    handle = disk.open(aside, create=True, exclusive=True)
    try:
        write_all(disk, handle, data, 0)
        disk.sync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        raise
    finally:
        disk.close(handle)
    disk.rename(aside, path)
    disk.sync_directory(posixpath.dirname(path) or os.curdir)
