"""The seam between wheeldb and the file system.

Everything that touches a file (but LMDB) goes through a `Disk`: the real one is
`OsDisk`, and `wheeldb.testing.CrashableDisk` is one in memory that can lose power.

    disk = OsDisk()
    handle = disk.open("log/next.tmp", create=True)
    write_all(disk, handle, header, 0)
    disk.sync_data(handle)
    disk.rename("log/next.tmp", "log/00000001.seg")
    disk.sync_directory("log")

`seam` holds the protocol and what is built on it, `system` the real disk, `lock` its
lock file, `device` what can be learned about the medium. Nothing here knows what the
bytes mean.
"""

from wheeldb.disk.seam import (
    NETWORK_FILE_SYSTEMS,
    NO_ROOM,
    Data,
    Disk,
    FileInfo,
    Lock,
    LockHeld,
    replace_file,
    write_all,
)
from wheeldb.disk.system import OsDisk, UnsyncedDisk

__all__ = (
    "NETWORK_FILE_SYSTEMS",
    "NO_ROOM",
    "Data",
    "Disk",
    "FileInfo",
    "Lock",
    "LockHeld",
    "OsDisk",
    "UnsyncedDisk",
    "replace_file",
    "write_all",
)
