"""`CrashableDisk`: a disk in memory that can lose power, fail and fill up.

It implements the whole `Disk` protocol, so storage code runs on it unchanged, wheeldb's
or anybody's. The same calls and the same seed give the same disk, crashes included.

    disk = CrashableDisk(seed=7)
    disk.make_directory("/data")
    handle = disk.open("/data/log", create=True)
    disk.pwrite(handle, b"hello", 0)
    disk.sync(handle)                 # the bytes are safe, the name isn't
    disk.crash("none")
    assert disk.info("/data/log") is None

A power cut comes between two calls: `crash(profile)` now, or `crash_at(n)` before the
n-th operation from now, which raises `PowerCut` until `crash` decides what survived
(`wheeldb.testing.profiles` describes the choices). Cutting before operation n + 1 with
"subset" or "torn" gives every state in the middle of operation n. `kill` ends the
process only: what was written is still there.

To try many cuts of one run, don't run again for each: `watch` the operations, choose an
`image` at any of them, and go on with `after(image)`, another disk. `crash_sweep` in
`wheeldb.testing.sweep` does that for a whole program.

There are no links, permissions or times, and no call takes time.
"""

import copy
import errno
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from wheeldb.disk import Data, FileInfo, LockHeld
from wheeldb.index import IndexDamaged
from wheeldb.testing.faults import (
    AFTER_FAILED_SYNC,
    Faults,
    Operation,
    disk_error,
)
from wheeldb.testing.images import Image
from wheeldb.testing.index import INDEX_FATES, CrashableIndex
from wheeldb.testing.lock import MemoryLock
from wheeldb.testing.pieces import BLOCK_BYTES, Directory, File
from wheeldb.testing.profiles import PROFILES
from wheeldb.testing.tree import Tree

__all__ = ("CrashableDisk",)

# Far from the descriptors of the process: a mix-up is EBADF, not another file.
_FIRST_HANDLE = 1_000_000


@dataclass(slots=True)
class _Handle:
    file: File
    path: str
    is_readonly: bool


class CrashableDisk:
    """A disk in memory whose power can be cut.

    Args:
        seed: Decides every random choice.
        flash: What `is_flash` answers.
        file_system: What `file_system` answers.
        failed_sync: What a failed sync leaves, one of `AFTER_FAILED_SYNC`.

    Attributes:
        index_factory: As in `Disk`; makes an index in memory for each path.
        indexes: The indexes on this disk, by path. What was applied to one is durable,
            unless a crash is told otherwise (`wheeldb.testing.index`).
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        flash: bool | None = False,
        file_system: str = "memory",
        failed_sync: str = "keep",
    ) -> None:
        if failed_sync not in AFTER_FAILED_SYNC:
            raise ValueError(f"failed_sync {failed_sync!r}: {AFTER_FAILED_SYNC}")
        self.index_factory: Callable[[str], object] | None = self._make_index
        self.indexes: dict[str, CrashableIndex] = {}
        self._failed_sync = failed_sync
        # Inodes whose last sync has failed unsaid, and the error that is owed.
        self._owed: dict[int, int] = {}
        self._random = Random(seed)
        self._flash = flash
        self._file_system = file_system
        self._mutex = threading.RLock()
        self._tree = Tree()
        self._handles: dict[int, _Handle] = {}
        self._next_handle = _FIRST_HANDLE
        self._locks: dict[int, MemoryLock] = {}
        self._faults = Faults()

    @property
    def operations(self) -> Sequence[Operation]:
        """Every operation so far, as `crash_at` counts them."""
        return self._faults.operations

    @property
    def is_cut(self) -> bool:
        """Whether the power is gone."""
        return self._faults.is_cut

    # The protocol.

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        readonly: bool = False,
    ) -> int:
        """Open a file and return a handle that is never used again."""
        assert create or not exclusive, "exclusive without create"
        assert not (create and readonly), "create with readonly"
        with self._mutex:
            found = self._find(path)
            self._enter("open", path, is_change=create and found is None)
            if found is None and create:
                file = self._tree.create(path)
            elif exclusive:
                raise disk_error(errno.EEXIST, path)
            else:
                file = self._tree.file(path)
            if self._failed_sync == "evict":
                file.forget_failed()
            handle = self._next_handle
            self._next_handle += 1
            self._handles[handle] = _Handle(file, path, readonly)
            self._tree.pin(file)
            return handle

    def close(self, handle: int) -> None:
        """Close a handle, also when a fault is raised."""
        with self._mutex:
            opened = self._opened(handle)
            fault = self._faults.enter("close", opened.path, is_change=False)
            del self._handles[handle]
            self._tree.unpin(opened.file)
            _raise(fault, opened.path)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Return up to `size` bytes; a "short" fault halves them."""
        with self._mutex:
            opened = self._opened(handle)
            fault = self._faults.enter("pread", opened.path, is_change=False)
            if fault == "short":
                size -= size // 2
            else:
                _raise(fault, opened.path)
            if size < 0 or offset < 0:
                raise disk_error(errno.EINVAL, opened.path)
            return opened.file.cached.read(size, offset)

    def pwrite(self, handle: int, data: Data, offset: int) -> int:
        """Write what there is room for; a "short" fault halves it."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            fault = self._faults.enter("pwrite", opened.path, is_change=True)
            copied = bytes(data)
            if fault == "short":
                copied = copied[: len(copied) - len(copied) // 2]
            else:
                _raise(fault, opened.path)
            return self._tree.write(opened.file, copied, offset, opened.path)

    def size(self, handle: int) -> int:
        """Return the file's length as a reader sees it."""
        with self._mutex:
            opened = self._opened(handle)
            self._enter("size", opened.path, is_change=False)
            return opened.file.cached.size

    def truncate(self, handle: int, size: int) -> None:
        """Cut or extend the file; room beyond the new end is given back."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            self._enter("truncate", opened.path)
            if size < 0:
                raise disk_error(errno.EINVAL, opened.path)
            self._tree.resize(opened.file, size)

    def allocate(self, handle: int, offset: int, size: int) -> bool:
        """Reserve room below the capacity."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            self._enter("allocate", opened.path)
            self._tree.allocate(opened.file, offset, size, opened.path)
            return True

    def sync_data(self, handle: int) -> None:
        """Make the file's bytes and length durable."""
        with self._mutex:
            opened = self._opened(handle)
            self._sync("sync_data", opened.file, opened.path)

    def sync(self, handle: int) -> None:
        """Make the file's bytes and length durable."""
        with self._mutex:
            opened = self._opened(handle)
            self._sync("sync", opened.file, opened.path)

    def sync_directory(self, path: str) -> None:
        """Make the directory's names durable, and no file's bytes."""
        with self._mutex:
            self._find(path)
            self._sync("sync_directory", self._tree.directory(path), path)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing a file or an empty directory."""
        with self._mutex:
            self._enter("rename", source)
            self._tree.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name; open handles keep the file."""
        with self._mutex:
            self._enter("unlink", path)
            self._tree.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make a directory unless it exists."""
        with self._mutex:
            found = self._find(path)
            self._enter("make_directory", path, is_change=found is None)
            if found is None:
                self._tree.make_directory(path)
            elif isinstance(found, File):
                raise disk_error(errno.EEXIST, path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        with self._mutex:
            self._enter("remove_directory", path)
            self._tree.remove_directory(path)

    def info(self, path: str) -> FileInfo | None:
        """Return what the path leads to; inode numbers are never used again."""
        with self._mutex:
            self._enter("info", path, is_change=False)
            try:
                found = self._tree.find(path)
            except NotADirectoryError:
                return None
            if found is None:
                return None
            return FileInfo(
                size=found.cached.size if isinstance(found, File) else BLOCK_BYTES,
                device=1,
                inode=found.number,
                is_directory=isinstance(found, Directory),
                owner=os.geteuid(),
            )

    def drop_cache(self, handle: int) -> None:
        """Evict a file's clean pages, see `drop_caches`."""
        with self._mutex:
            self._opened(handle).file.forget_failed()

    def file_system(self, path: str) -> str:
        """Return the name given to the constructor."""
        return self._file_system

    def is_flash(self, path: str) -> bool | None:
        """Return the answer given to the constructor."""
        return self._flash

    def lock(self, path: str, *, attempts: int = 5, delay_ms: int = 50) -> MemoryLock:
        """Take the lock on a file, creating it; there is nothing to wait for."""
        with self._mutex:
            found = self._find(path)
            self._enter("lock", path, is_change=found is None)
            file = self._tree.create(path) if found is None else self._tree.file(path)
            if file.number in self._locks:
                holder = self._locks[file.number].holder
                raise LockHeld(path, holder, is_ours=True)
            lock = MemoryLock(path, file, self._write_holder, self._release)
            self._locks[file.number] = lock
            if file.cached.size:
                self._tree.resize(file, 0)
            return lock

    # Crashing.

    def crash(
        self,
        profile: str | Image = "subset",
        *,
        keep: Collection[int] | None = None,
        random: Random | None = None,
        index: str = "new",
    ) -> list[str]:
        """Cut the power and switch it on again: the disk holds what survived.

        Handles and locks of before are gone. Armed faults and the capacity stay.

        Args:
            profile: What may survive; see `wheeldb.testing.profiles`. Or an image.
            keep: Exactly these survive, by their index in `pending()`, for trying all
                selections of a few. Whether a rename may split is the profile's.
            random: Chooses in place of the disk's seed (Hypothesis' `randoms()`).
            index: What becomes of every index; see `wheeldb.testing.index`.

        Returns:
            What was lost, torn or damaged, in words.
        """
        with self._mutex:
            image = profile
            if isinstance(image, str):
                image = self.image(image, keep=keep, random=random, index=index)
            story = self.describe(image)
            self._tree = self._tree.after(image)
            self.indexes = self._indexes_after(image, self)
            self._forget_process()
            return story

    def image(
        self,
        profile: str = "subset",
        *,
        keep: Collection[int] | None = None,
        random: Random | None = None,
        index: str = "new",
    ) -> Image:
        """Choose what a power cut would leave now; the arguments are those of `crash`.

        It is for this disk as it stands, or a clone: for `crash`, `after`, `describe`.
        """
        if profile not in PROFILES:
            raise ValueError(f"no crash profile {profile!r}: {list(PROFILES)}")
        if index not in INDEX_FATES:
            raise ValueError(f"no fate of an index {index!r}: {INDEX_FATES}")
        with self._mutex:
            random = random or self._random
            image = self._tree.image(profile, random, keep)
            if index == "new":
                return image
            fates = tuple((p, index, random.getrandbits(32)) for p in self.indexes)
            return replace(image, indexes=fates)

    def unsafe_count(self) -> int:
        """Return how many pieces a crash may lose now, the length of `pending`."""
        with self._mutex:
            return self._tree.unsafe_count()

    def describe(self, image: Image) -> list[str]:
        """Return in words what an image loses, tears and damages."""
        with self._mutex:
            story = self._tree.describe(image)
        return story + [f"index {path}: {fate}" for path, fate, _ in image.indexes]

    def after(self, image: Image, *, seed: int = 0) -> "CrashableDisk":
        """Return another disk as it is after that cut; this one stays as it is."""
        with self._mutex:
            other = self._twin(seed)
            other._tree = self._tree.after(image)
            other._faults = self._faults.copy(with_operations=False)
            other.indexes = self._indexes_after(image, other)
            return other

    def _indexes_after(
        self, image: Image, disk: "CrashableDisk"
    ) -> dict[str, CrashableIndex]:
        fates = {path: (fate, Random(seed)) for path, fate, seed in image.indexes}
        return {
            path: index.after(*fates.get(path, ("new", Random(0))), disk._enter_index)
            for path, index in self.indexes.items()
        }

    def watch(self, watcher: Callable[[Operation], None] | None) -> None:
        """Let a function be called before each operation that counts for `crash_at`.

        It may look at this disk and choose images.
        """
        self._faults.watcher = watcher

    def settle(self) -> None:
        """Make everything durable, as if the disk had been at rest for long."""
        with self._mutex:
            self._tree.settle()
            self.indexes = self._indexes_after(Image(profile="all"), self)

    def crash_at(self, operation: int) -> None:
        """Cut the power before the n-th operation from now; 1 is the next one."""
        with self._mutex:
            self._faults.crash_at(operation)

    def drop_caches(self) -> None:
        """Evict all clean pages: what failed syncs lost is gone for readers, too."""
        with self._mutex:
            self._tree.forget_failed()

    def kill(self) -> None:
        """End the process: handles and locks go, written bytes and names stay.

        What wasn't synced is still not durable and may go with the next crash.
        """
        with self._mutex:
            self._tree.unpin_all()
            self._forget_process()

    def _forget_process(self) -> None:
        self._handles.clear()
        self._locks.clear()
        self._owed.clear()
        self._faults.restore_power()

    def pending(self, profile: str = "subset") -> list[str]:
        """Return in words what a crash may lose now, oldest first."""
        with self._mutex:
            return self._tree.pending(split_names=profile == "split_rename")

    def clone(self, *, seed: int | None = None) -> "CrashableDisk":
        """Return an independent copy, to try several crashes of one moment.

        Handles work on it as they do here; locks are not copied. Without a seed its
        next random choices are those of this disk.
        """
        with self._mutex:
            other = self._twin(seed or 0)
            if seed is None:
                other._random.setstate(self._random.getstate())
            copied = copy.deepcopy((self._tree, self._handles))
            other._tree, other._handles = copied
            other._faults = self._faults.copy(with_operations=True)
            other._owed = self._owed.copy()
            other.indexes = {
                path: index.clone(other._enter_index)
                for path, index in self.indexes.items()
            }
            return other

    def _twin(self, seed: int) -> "CrashableDisk":
        """Return a disk of the same make."""
        other = CrashableDisk(
            seed,
            flash=self._flash,
            file_system=self._file_system,
            failed_sync=self._failed_sync,
        )
        if self.index_factory != self._make_index:
            other.index_factory = self.index_factory
        other._next_handle = self._next_handle
        return other

    def _make_index(self, path: str) -> CrashableIndex:
        if path not in self.indexes:
            self.indexes[path] = CrashableIndex(path, self._enter_index)
        return self.indexes[path]

    def _enter_index(self, path: str) -> None:
        with self._mutex:
            fault = self._faults.enter("index", path, is_change=True)
        if isinstance(fault, int):
            # As LMDB's errors are told.
            raise IndexDamaged(os.strerror(fault), path=path, code=fault)

    # Failing.

    def fail(
        self,
        operation: str,
        error: int | str,
        nth: int = 1,
        forever: bool = False,
        *,
        path: str = "",
    ) -> None:
        """Make the nth call of an operation from now fail, or all from then on.

        A failed sync marks what was pending clean, as kernels do: later syncs succeed
        without writing it, and a crash may lose it. What readers see until then is up
        to `failed_sync`.

        Args:
            operation: A method of the protocol, such as "sync_data", or "index": a
                commit of an index.
            error: An errno, or "short" for half a `pread` or `pwrite`.
            nth: 1 is the next call.
            forever: Whether it goes on failing, until `heal`.
            path: Count and fail only calls on paths that contain this.
        """
        with self._mutex:
            self._faults.fail(operation, error, nth=nth, forever=forever, path=path)

    def heal(self) -> None:
        """Disarm every fault and lift the capacity."""
        with self._mutex:
            self._faults.heal()
            self._tree.bytes_max = None

    def full(self, bytes_max: int | None) -> None:
        """Set the capacity. Beyond it, writes and reservations raise ENOSPC.

        Room is counted in 4,096-byte blocks; a write into reserved room succeeds, one
        that only partly fits is short. None lifts the limit.
        """
        with self._mutex:
            self._tree.bytes_max = bytes_max

    def free_bytes(self) -> int:
        """Return the room below the capacity."""
        with self._mutex:
            return self._tree.room()

    # Looking and preparing.

    def dump(self) -> dict[str, bytes]:
        """Return every file a reader sees, by absolute path."""
        with self._mutex:
            return {
                path: inode.cached.read(inode.cached.size, 0)
                for path, inode in self._tree.walk()
                if isinstance(inode, File)
            }

    def load(self, files: Mapping[str, bytes]) -> None:
        """Put files on the disk, durably, with the directories they need."""
        with self._mutex, self._tree.durably():
            for path, data in files.items():
                self._tree.load(path, data)

    def corrupt(self, path: str, offset: int, xor: int) -> None:
        """Flip bits of one byte, durably, as decay does: xor it with 1–255."""
        with self._mutex:
            file = self._tree.file(path)
            byte = file.cached.read(1, offset)
            if not byte or not 0 < xor < 256:
                message = f"can't change byte {offset} of {path} with {xor}"
                raise ValueError(message)
            with self._tree.durably():
                self._tree.write(file, bytes((byte[0] ^ xor,)), offset, path)

    # Each call's way in.

    def _enter(self, name: str, path: str, *, is_change: bool = True) -> None:
        """Count an operation; raise if the power goes or a fault is due."""
        _raise(self._faults.enter(name, path, is_change=is_change), path)

    def _find(self, path: str) -> File | Directory | None:
        self._faults.check_power(path)
        return self._tree.find(path)

    def _opened(self, handle: int, *, writable: bool = False) -> _Handle:
        self._faults.check_power(f"handle {handle}")
        opened = self._handles.get(handle)
        if opened is None:
            raise disk_error(errno.EBADF, f"handle {handle}")
        if writable and opened.is_readonly:
            raise disk_error(errno.EBADF, opened.path)
        return opened

    def _sync(self, name: str, inode: File | Directory, path: str) -> None:
        fault = self._faults.enter(name, path, is_change=True)
        owed = self._owed.pop(inode.number, None)
        if fault is None and owed is None:
            self._tree.sync(inode)
            return
        inode.fail_sync()
        if self._failed_sync == "revert":
            inode.forget_failed()
        if self._failed_sync == "late" and isinstance(fault, int):
            self._owed[inode.number] = fault
            fault = None
        _raise(fault if owed is None else owed, path)

    def _write_holder(self, lock: MemoryLock, text: str) -> None:
        with self._mutex:
            self._enter("pwrite", lock.path)
            line = text.encode("utf-8", "replace") + b"\n"
            self._tree.write(lock.file, line, 0, lock.path)
            self._tree.resize(lock.file, len(line))

    def _release(self, lock: MemoryLock) -> None:
        with self._mutex:
            if self._locks.get(lock.file.number) is lock:
                del self._locks[lock.file.number]

    # Last, because its name hides the builtin in the annotations behind it.

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with self._mutex:
            self._enter("list", path, is_change=False)
            return sorted(self._tree.directory(path).cached.inodes)


def _raise(fault: int | str | None, path: str) -> None:
    if isinstance(fault, int):
        raise disk_error(fault, path)
