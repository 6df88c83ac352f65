"""Opening an index that may be damaged, and putting a bad one aside.

    index = open_index(path, disk=disk, vouched=was_closed_cleanly, aside=aside)
    if index is None:
        index = create_index(path, disk=disk)      # and fill it from snapshot and log

While it is opened for writing, the file `OPENING` lies beside it, until the first read
has come back: should LMDB kill the process, the next opening finds the file and doesn't
try again.  A simulated disk brings its own index, by `Disk.index_factory`; LMDB can't
reach it.  What has to go into a new index is not known here.
"""

from collections.abc import Callable

from wheeldb.disk import Disk
from wheeldb.index.changes import Changes
from wheeldb.index.keys import FORMAT_NAME, INDEX_FORMAT
from wheeldb.index.memory import MemoryIndex
from wheeldb.index.snapshot import Index, IndexDamaged
from wheeldb.index.tables import DATA_FILE, LOCK_FILE, LmdbIndex
from wheeldb.index.vet import OPENING_FILE, Verdict, vet

__all__ = ("BAD_COPY_FILE", "create_index", "open_index", "set_aside")

# One bad copy is kept, for whoever wants to know what happened; the next replaces it.
BAD_COPY_FILE = "index-bad.mdb"


def open_index(
    path: str,
    *,
    disk: Disk,
    vouched: bool,
    verify_timeout_s: float = 60.0,
    readonly: bool = False,
    aside: str | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> Index | None:
    """Open the index in a directory, or return ``None``: it has to be rebuilt.

    Args:
        path: The index's directory.
        disk: Where it lies.
        vouched: See `vet`.
        verify_timeout_s: See `vet`.
        readonly: Change nothing, and leave a bad index where it is.
        aside: The directory for a bad index; ``None``: it stays and is written over.
        on_verdict: Is told why the index is used or isn't, once.

    Raises:
        OSError: As the disk says.
    """
    index: Index | None
    if disk.index_factory is not None:
        index, verdict = _open_memory(path, disk)
    else:
        verdict = vet(
            path, disk=disk, vouched=vouched, verify_timeout_s=verify_timeout_s
        )
        index, verdict = _open_lmdb(path, disk, verdict, readonly)
        if index is None and aside is not None and not readonly:
            set_aside(path, aside, disk=disk)
    if on_verdict is not None:
        on_verdict(verdict)
    return index


def create_index(path: str, *, disk: Disk) -> Index:
    """Make an empty index, durably, in place of any that is there, and open it.

    Raises:
        IndexDamaged: If LMDB refuses.
        OSError: As the disk says.
    """
    if disk.index_factory is None:
        index = LmdbIndex.create(path, disk=disk)
        # It spoke of the file that has just been replaced.
        if disk.info(f"{path}/{OPENING_FILE}") is not None:
            disk.unlink(f"{path}/{OPENING_FILE}")
        return index
    memory = _memory_index(path, disk)
    memory.clear()
    memory.reopen()
    memory.apply(Changes(meta={FORMAT_NAME: INDEX_FORMAT}))
    return memory


def set_aside(path: str, aside: str, *, disk: Disk) -> str | None:
    """Move the index's file out of the way and return its new path, if there was one.

    Raises:
        OSError: As the disk says.
    """
    copy = None
    if disk.info(f"{path}/{DATA_FILE}") is not None:
        disk.make_directory(aside)
        copy = f"{aside}/{BAD_COPY_FILE}"
        disk.rename(f"{path}/{DATA_FILE}", copy)
        disk.sync_directory(aside)
        disk.sync_directory(path)
    for name in (LOCK_FILE, OPENING_FILE):
        if disk.info(f"{path}/{name}") is not None:
            disk.unlink(f"{path}/{name}")
    return copy


def _open_lmdb(
    path: str, disk: Disk, verdict: Verdict, readonly: bool
) -> tuple[LmdbIndex | None, Verdict]:
    if not verdict.is_usable:
        return None, verdict
    marker = f"{path}/{OPENING_FILE}"
    # A reader must not make LMDB's lock file: it may belong to another user, whose next
    # opening would then fail.
    lock = not readonly or disk.info(f"{path}/{LOCK_FILE}") is not None
    if not readonly:
        disk.close(disk.open(marker, create=True))
    index = None
    try:
        index = LmdbIndex(path, disk=disk, readonly=readonly, lock=lock)
        index.probe()
    except IndexDamaged as damage:
        if index is not None:
            index.close()
        return None, Verdict(is_usable=False, reason=damage.reason)
    finally:
        # Whatever it was, it came back.
        if not readonly:
            disk.unlink(marker)
    return index, verdict


def _open_memory(path: str, disk: Disk) -> tuple[MemoryIndex | None, Verdict]:
    memory = _memory_index(path, disk)
    memory.reopen()
    try:
        with memory.snapshot() as view:
            if view.meta(FORMAT_NAME) is None:
                return None, Verdict(is_usable=False, reason="there is none")
            digests = view.digests()
    except IndexDamaged as damage:
        return None, Verdict(is_usable=False, reason=damage.reason)
    return memory, Verdict(is_usable=True, reason="in memory", digests=digests)


def _memory_index(path: str, disk: Disk) -> MemoryIndex:
    assert disk.index_factory is not None
    memory = disk.index_factory(path)
    assert isinstance(memory, MemoryIndex), f"index_factory made a {type(memory)}"
    return memory
