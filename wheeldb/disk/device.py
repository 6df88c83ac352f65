"""What lies under a path: the file system's name, the kind of device, its room.

Linux tells the file system by a number in statfs(2), and the device behind st_dev by a
link in sysfs: /sys/dev/block/179:2 → …/mmc_host/mmc0/…/mmcblk0/mmcblk0p2 is the second
partition of an SD card. Other systems get "unknown" and None.

Nothing here decides: what to refuse and how to lay out the log is the caller's.
"""

import ctypes
import errno
import functools
import os
import re
import sys
from collections.abc import Callable

__all__ = ("file_system_name", "is_flash_device", "reserve_blocks")

# The numbers are those of the manual page statfs(2) and linux/magic.h.
_NAMES = {
    0x0000_3434: "nilfs",
    0x0000_4D44: "vfat",
    0x0000_517B: "smb",
    0x0000_6969: "nfs",
    0x0000_72B6: "jffs2",
    0x0000_EF53: "ext4",
    0x00C3_6400: "ceph",
    0x0102_1994: "tmpfs",
    0x0102_1997: "9p",
    0x0116_1970: "gfs2",
    0x0BD0_0BD0: "lustre",
    0x2011_BAB0: "exfat",
    0x2405_1905: "ubifs",
    0x2FC1_2FC1: "zfs",
    0x3153_464A: "jfs",
    0x4750_4653: "gpfs",
    0x5265_4973: "reiserfs",
    0x5346_414F: "afs",
    0x5346_544E: "ntfs",
    0x5846_5342: "xfs",
    0x6165_676C: "pstore",
    0x6573_5546: "fuse",
    0x6B41_4653: "afs",
    0x7366_746E: "ntfs",
    0x7371_7368: "squashfs",
    0x7375_7245: "coda",
    0x7461_636F: "ocfs2",
    0x786F_4256: "vboxsf",
    0x794C_7630: "overlay",
    0x8584_58F6: "ramfs",
    0x9123_683E: "btrfs",
    0xBACB_ACBC: "vmhgfs",
    0xCA45_1A4E: "bcachefs",
    0xE0F5_E1E2: "erofs",
    0xF2F5_2010: "f2fs",
    0xFE53_4D42: "smb",
    0xFF53_4D42: "cifs",
}

_FALLOC_KEEP_SIZE = 1
# Larger than struct statfs on every architecture; only its first word is read.
_STATFS_BYTES = 512

# Names of block devices that keep their word about the bytes beside a write.
_DISK = re.compile(r"(sd|hd|vd|xvd|nvme|dasd)")
_FLASH = re.compile(r"(mmcblk|mtdblock|ubiblock)")


def file_system_name(path: str) -> str:
    """Return the name of the path's file system, "unknown" where it can't be told.

    Raises:
        OSError: the path can't be looked up.
    """
    statfs = _libc_function("statfs")
    if statfs is None or not sys.platform.startswith("linux"):
        return "unknown"
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    magic = ctypes.c_ulong.from_buffer(buffer).value & 0xFFFF_FFFF
    return _NAMES.get(magic, "unknown")


def is_flash_device(device: int, *, sys_block: str = "/sys/dev/block") -> bool | None:
    """Return whether a device number is SD, eMMC or raw flash; None: can't be told.

    A device made of others (LVM, RAID, encryption) is flash if one of them is. A disk
    on USB may be a card reader, and a loop device may lie on anything: None.
    """
    entry = os.path.join(sys_block, f"{os.major(device)}:{os.minor(device)}")
    if not os.path.exists(entry):
        return None
    return _is_flash_entry(os.path.realpath(entry))


def _is_flash_entry(entry: str) -> bool | None:
    name = os.path.basename(entry)
    if _FLASH.match(name):
        return True
    if os.path.exists(os.path.join(entry, "partition")):
        entry = os.path.dirname(entry)
    slaves = os.path.join(entry, "slaves")
    parts = sorted(os.listdir(slaves)) if os.path.isdir(slaves) else []
    if parts:
        answers = {
            _is_flash_entry(os.path.realpath(os.path.join(slaves, part)))
            for part in parts
        }
        if True in answers:
            return True
        return None if None in answers else False
    if _DISK.match(name) and "/usb" not in entry:
        return False
    return None


def reserve_blocks(handle: int, offset: int, size: int) -> bool:
    """Allocate blocks beyond a file's end and leave its length alone.

    `os.posix_fallocate` would change the length, and where the file system can't
    reserve it writes zeros instead; fallocate(2) with FALLOC_FL_KEEP_SIZE does neither.

    Returns:
        False where the kernel or the file system can't.

    Raises:
        OSError: there is no room, or the handle is bad.
    """
    fallocate = _libc_function("fallocate64") or _libc_function("fallocate")
    if fallocate is None or not sys.platform.startswith("linux"):
        return False
    arguments = (ctypes.c_int64(offset), ctypes.c_int64(size))
    while fallocate(handle, _FALLOC_KEEP_SIZE, *arguments) != 0:
        number = ctypes.get_errno()
        if number in {errno.EOPNOTSUPP, errno.ENOSYS}:
            return False
        if number != errno.EINTR:
            text = f"{os.strerror(number)} (allocating {size} bytes at {offset})"
            raise OSError(number, text)
    return True


@functools.cache
def _libc_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library that keeps errno, None if it has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return None
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found
