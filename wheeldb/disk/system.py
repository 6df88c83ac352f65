"""`OsDisk`: the disk of the operating system, one system call per method.

    disk = OsDisk()
    handle = disk.open("store/FORMAT", readonly=True)
    disk.pread(handle, 8, 0)

The contracts stand at `wheeldb.disk.seam.Disk`. The methods on the path of a commit
(`pread`, `pwrite`, `sync_data`) are the C functions themselves: no Python frame, so no
place where an exception from a signal handler could fall between the kernel's answer
and the caller. For the same reason nothing is counted here.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Callable

from wheeldb.disk.device import file_system_name, is_flash_device, reserve_blocks
from wheeldb.disk.lock import OsLock, lock_file, open_above_standard
from wheeldb.disk.seam import FileInfo

if sys.platform == "darwin":
    import fcntl

__all__ = ("OsDisk", "UnsyncedDisk")

if sys.platform == "darwin":

    def _full_sync(handle: int) -> None:
        # fsync on macOS leaves the bytes in the drive's own cache.
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)


class OsDisk:
    """The real disk. Stateless but for the locks of the process."""

    index_factory: Callable[[str], object] | None = None

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    allocate = staticmethod(reserve_blocks)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    remove_directory = staticmethod(os.rmdir)
    file_system = staticmethod(file_system_name)
    if sys.platform == "darwin":
        sync_data = staticmethod(_full_sync)
        sync = staticmethod(_full_sync)
    else:
        sync_data = staticmethod(os.fdatasync)
        sync = staticmethod(os.fsync)

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        readonly: bool = False,
    ) -> int:
        """Open a file and return a descriptor above 2."""
        assert create or not exclusive, "exclusive without create"
        assert not (create and readonly), "create with readonly"
        flags = os.O_RDONLY if readonly else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return open_above_standard(path, flags)

    def size(self, handle: int) -> int:
        """Return the file's length."""
        return os.fstat(handle).st_size

    def sync_directory(self, path: str) -> None:
        """Sync the directory through a descriptor of its own."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        finally:
            os.close(handle)

    def make_directory(self, path: str) -> None:
        """Make a directory of mode 0700 unless it exists."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def info(self, path: str) -> FileInfo | None:
        """Return what the path leads to, through links; None if there is nothing."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileInfo(
            size=status.st_size,
            device=status.st_dev,
            inode=status.st_ino,
            is_directory=stat.S_ISDIR(status.st_mode),
            owner=status.st_uid,
        )

    def drop_cache(self, handle: int) -> None:
        """Advise the kernel that the cached pages aren't needed."""
        if sys.platform != "darwin":
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_flash(self, path: str) -> bool | None:
        """Return whether the path's device is flash; None: can't be told."""
        return is_flash_device(os.stat(path).st_dev)

    def lock(self, path: str, *, attempts: int = 5, delay_ms: int = 50) -> OsLock:
        """Take the exclusive lock on a file."""
        return lock_file(path, attempts=attempts, delay_ms=delay_ms)


def _no_sync(fd: object) -> None:
    """Do nothing."""


class UnsyncedDisk(OsDisk):
    """The same without syncs, for stores that need not outlive the machine.

    After a power cut files may hold less than they were said to, in any order.
    """

    sync_data = staticmethod(_no_sync)
    sync = staticmethod(_no_sync)

    def sync_directory(self, path: str) -> None:
        """Do nothing."""
