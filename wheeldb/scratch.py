"""Scratch: an index that is filled, read once and thrown away.

::

    with scratch_index(disk, temporary_directory(disk)) as index:
        state = State(index)
        …                     # fold whatever there is: memory does not grow with it

It lies in a directory of its own, named by chance, so that nobody can have put
anything there before.  A process that is killed leaves it behind: the system clears its
places for such files, and whoever makes a new store clears that.  It takes about as
much room as the store's own index.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wheeldb.disk import Disk
from wheeldb.entropy import system_entropy
from wheeldb.index import Index, LmdbIndex, MemoryIndex

__all__ = ("clear_away", "scratch_index", "temporary_directory")


@contextmanager
def scratch_index(disk: Disk, directory: str) -> Iterator[Index]:
    """Keep an empty index for the length of a block.

    Raises:
        IndexDamaged: If LMDB refuses.
        OSError: As the disk says.
    """
    if disk.index_factory is not None:
        # A disk in memory: there is no other place.
        yield MemoryIndex()
        return
    path = f"{directory}/wheeldb-{system_entropy.bytes(8).hex()}"
    try:
        index = LmdbIndex.create(path, disk=disk)
        try:
            yield index
        finally:
            index.close()
    except BaseException:
        with suppress(OSError):
            clear_away(disk, path)
        raise
    clear_away(disk, path)


def temporary_directory(disk: Disk) -> str:
    """Return where files of passing worth lie: TMPDIR, or a place on a real disk."""
    chosen = os.environ.get("TMPDIR")
    for path in (chosen, "/var/tmp"):
        if path:
            info = disk.info(path)
            if info is not None and info.is_directory:
                return path
    return "/tmp"


def clear_away(disk: Disk, path: str) -> None:
    """Remove a file, or a directory with everything in it, if there is one.

    Raises:
        OSError: As the disk says.
    """
    info = disk.info(path)
    if info is None:
        return
    if not info.is_directory:
        disk.unlink(path)
        return
    for name in disk.list(path):
        clear_away(disk, f"{path}/{name}")
    disk.remove_directory(path)
