"""The file systems that a run can use: how each is made and mounted.

    ext4                data=ordered, as distributions mount it
    ext4-writeback      data=writeback: a file's length may be ahead of its data
    xfs, btrfs          with their defaults

Each is made small, with its journal committed every second, so that a run of a few
seconds meets the kernel's own commits too.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ("FILESYSTEMS", "Filesystem", "make_filesystem")

# mkfs.xfs refuses less than 300 MiB. The files are sparse.
SIZE_BYTES = 320 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """One way to make and mount.

    Attributes:
        make: The command that makes it; the file is appended.
        kind: Its name in mount(8).
        options: The mount options. Discards are off: the recorder has no holes.
        whole: (offset, length) of superblocks that have no second copy to mount from.
            Each is checksummed and written as one block, which no journal guards.
    """

    make: tuple[str, ...]
    kind: str
    options: str
    whole: tuple[tuple[int, int], ...] = ()


_EXT4 = ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0", "-J", "size=8")
_EXT4_SUPERBLOCK = ((1024, 1024),)

FILESYSTEMS: Mapping[str, Filesystem] = {
    "ext4": Filesystem(
        make=_EXT4,
        kind="ext4",
        options="commit=1,nodiscard",
        whole=_EXT4_SUPERBLOCK,
    ),
    "ext4-writeback": Filesystem(
        make=_EXT4,
        kind="ext4",
        options="commit=1,nodiscard,data=writeback",
        whole=_EXT4_SUPERBLOCK,
    ),
    "xfs": Filesystem(
        make=("mkfs.xfs", "-q", "-f", "-K"),
        kind="xfs",
        # Images of one file system have one identity; they are mounted in turn.
        options="nouuid,nodiscard",
    ),
    "btrfs": Filesystem(
        make=("mkfs.btrfs", "-q", "-f", "-K"),
        kind="btrfs",
        options="commit=1,nodiscard",
        whole=((65_536, 4096),),
    ),
}


def make_filesystem(filesystem: Filesystem, path: str) -> None:
    """Make an empty file system in a new sparse file."""
    with open(path, "xb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run([*filesystem.make, path], check=True, capture_output=True)
