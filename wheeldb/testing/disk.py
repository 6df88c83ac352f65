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

There are no links, permissions or times, and no call takes time.
"""

import copy
import errno
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from wheeldb.disk import Data, FileInfo, LockHeld
from wheeldb.index import MemoryIndex
from wheeldb.testing.faults import Faults, Operation, PowerCut, disk_error
from wheeldb.testing.pieces import BLOCK_BYTES, Directory, File
from wheeldb.testing.profiles import PROFILES
from wheeldb.testing.tree import Tree

__all__ = ("CrashableDisk", "MemoryLock", "Operation", "PowerCut")

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

    Attributes:
        index_factory: As in `Disk`; makes an index in memory for each path.
        indexes: The indexes on this disk, by path. What was applied to one is durable.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        flash: bool | None = False,
        file_system: str = "memory",
    ) -> None:
        self.index_factory: Callable[[str], object] | None = self._make_index
        self.indexes: dict[str, object] = {}
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
        """Evict clean pages: what a failed sync lost is gone for readers, too."""
        with self._mutex:
            self._opened(handle).file.forget_failed()

    def file_system(self, path: str) -> str:
        """Return the name given to the constructor."""
        return self._file_system

    def is_flash(self, path: str) -> bool | None:
        """Return the answer given to the constructor."""
        return self._flash

    def lock(self, path: str, *, attempts: int = 5, delay_ms: int = 50) -> "MemoryLock":
        """Take the lock on a file, creating it; there is nothing to wait for."""
        with self._mutex:
            found = self._find(path)
            self._enter("lock", path, is_change=found is None)
            file = self._tree.create(path) if found is None else self._tree.file(path)
            if file.number in self._locks:
                holder = self._locks[file.number].holder
                raise LockHeld(path, holder, is_ours=True)
            lock = MemoryLock(self, file, path)
            self._locks[file.number] = lock
            if file.cached.size:
                self._tree.resize(file, 0)
            return lock

    # Crashing.

    def crash(
        self,
        profile: str = "subset",
        *,
        keep: Collection[int] | None = None,
        random: Random | None = None,
    ) -> list[str]:
        """Cut the power and switch it on again: the disk holds what survived.

        Handles and locks of before are gone. Armed faults and the capacity stay.

        Args:
            profile: What may survive; see `wheeldb.testing.profiles`.
            keep: Exactly these survive, by their index in `pending()`, for trying all
                selections of a few. Whether a rename may split is the profile's.
            random: Chooses in place of the disk's seed (Hypothesis' `randoms()`).

        Returns:
            What was lost, torn or damaged, in words.
        """
        if profile not in PROFILES:
            message = f"no crash profile {profile!r}; choose from {list(PROFILES)}"
            raise ValueError(message)
        with self._mutex:
            story = self._tree.crash(profile, random or self._random, keep)
            self._forget_process()
            return story

    def crash_at(self, operation: int) -> None:
        """Cut the power before the n-th operation from now; 1 is the next one."""
        with self._mutex:
            self._faults.crash_at(operation)

    def kill(self) -> None:
        """End the process: handles and locks go, written bytes and names stay.

        What wasn't synced is still not durable and may go with the next crash.
        """
        with self._mutex:
            self._tree.unpin_all()
            self._forget_process()

    def restart(self) -> None:
        """Go on after `crash_at` as if only the process had died, as `kill` does."""
        self.kill()

    def _forget_process(self) -> None:
        self._handles.clear()
        self._locks.clear()
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
            other = CrashableDisk(
                seed or 0, flash=self._flash, file_system=self._file_system
            )
            if seed is None:
                other._random.setstate(self._random.getstate())
            if self.index_factory != self._make_index:
                other.index_factory = self.index_factory
            copied = copy.deepcopy(
                (self._tree, self._handles, self._faults, self.indexes)
            )
            other._tree, other._handles, other._faults, other.indexes = copied
            other._next_handle = self._next_handle
            return other

    def _make_index(self, path: str) -> object:
        return self.indexes.setdefault(path, MemoryIndex(path))

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
        without writing it, readers see it until `drop_cache`, and a crash may lose it.

        Args:
            operation: A method of the protocol, such as "sync_data".
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
        if fault is None:
            self._tree.sync(inode)
        else:
            inode.fail_sync()
            _raise(fault, path)

    def _write_holder(self, lock: "MemoryLock", text: str) -> None:
        with self._mutex:
            self._enter("pwrite", lock.path)
            line = text.encode("utf-8", "replace") + b"\n"
            self._tree.write(lock.file, line, 0, lock.path)
            self._tree.resize(lock.file, len(line))

    def _release(self, lock: "MemoryLock") -> None:
        with self._mutex:
            if self._locks.get(lock.file.number) is lock:
                del self._locks[lock.file.number]

    # Last, because its name hides the builtin in the annotations behind it.

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with self._mutex:
            self._enter("list", path, is_change=False)
            return sorted(self._tree.directory(path).cached.inodes)


class MemoryLock:
    """A lock on a `CrashableDisk`. A crash or kill ends it."""

    def __init__(self, disk: CrashableDisk, file: File, path: str) -> None:
        self.file = file
        self.path = path
        self.holder = ""
        self._disk = disk

    def write(self, text: str) -> None:
        """Replace the line that tells people who holds the lock."""
        self._disk._write_holder(self, text)
        self.holder = text

    def release(self) -> None:
        """Give the lock up; nothing if it is gone already."""
        self._disk._release(self)


def _raise(fault: int | str | None, path: str) -> None:
    if isinstance(fault, int):
        raise disk_error(fault, path)
