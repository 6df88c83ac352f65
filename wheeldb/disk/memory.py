"""`MemoryDisk`: files that live as long as the object, for stores at ``":memory:"``.

    disk = MemoryDisk(MemoryIndex)
    disk.make_directory(":memory:")
    handle = disk.open(":memory:/FORMAT", create=True)
    disk.pwrite(handle, b"wheeldb", 0)

It keeps the contracts of `wheeldb.disk.seam.Disk` for as long as the process lives, and
promises nothing beyond: a sync has nothing to do. Every path is below one root that
always exists, so a leading slash makes no difference. Reserved room takes no memory.

It can't crash, fail or fill up; for tests of that there is
`wheeldb.testing.CrashableDisk`.
"""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from wheeldb.disk.naming import judge_places, judge_replacing, names_of
from wheeldb.disk.seam import Data, FileInfo, LockHeld

__all__ = ("MemoryDisk", "MemoryDiskLock")

# Far from the descriptors of the process: a mix-up is EBADF, not another file.
_FIRST_HANDLE = 2_000_000


@dataclass(slots=True, eq=False)
class _File:
    number: int
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, eq=False)
class _Directory:
    number: int
    entries: "dict[str, _Node]" = field(default_factory=dict)


_Node: TypeAlias = _File | _Directory


@dataclass(slots=True)
class _Handle:
    file: _File
    path: str
    is_readonly: bool


class MemoryDisk:
    """A disk in memory. Handles and inode numbers are never used again.

    Args:
        make_index: Makes the index of a path that has none yet.

    Attributes:
        index_factory: As in `Disk`; gives the same index for the same path each time.
    """

    def __init__(self, make_index: Callable[[str], object]) -> None:
        self.index_factory: Callable[[str], object] | None = self._index_at
        self._make_index = make_index
        self._indexes: dict[str, object] = {}
        # Reentrant, because a signal handler may call in the middle.
        self._mutex = threading.RLock()
        self._numbers = 1
        self._root = _Directory(self._numbers)
        self._handles: dict[int, _Handle] = {}
        self._next_handle = _FIRST_HANDLE
        self._locks: dict[int, MemoryDiskLock] = {}

    # Files.

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        readonly: bool = False,
    ) -> int:
        """Open a file and return a handle."""
        assert create or not exclusive, "exclusive without create"
        assert not (create and readonly), "create with readonly"
        with self._mutex:
            if create and self._find(path) is None:
                file = self._create(path)
            elif exclusive:
                raise _error(errno.EEXIST, path)
            else:
                file = self._file(path)
            handle = self._next_handle
            self._next_handle += 1
            self._handles[handle] = _Handle(file, path, readonly)
            return handle

    def close(self, handle: int, /) -> None:
        """Close a handle."""
        with self._mutex:
            self._opened(handle)
            del self._handles[handle]

    def pread(self, handle: int, size: int, offset: int, /) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""
        with self._mutex:
            opened = self._opened(handle)
            if size < 0 or offset < 0:
                raise _error(errno.EINVAL, opened.path)
            return bytes(opened.file.data[offset : offset + size])

    def pwrite(self, handle: int, data: Data, offset: int, /) -> int:
        """Write all of `data`; a hole in front of it reads as zeros."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            if offset < 0:
                raise _error(errno.EINVAL, opened.path)
            held = opened.file.data
            if data and offset > len(held):
                held.extend(bytes(offset - len(held)))
            held[offset : offset + len(data)] = data
            return len(data)

    def size(self, handle: int) -> int:
        """Return the file's length."""
        with self._mutex:
            return len(self._opened(handle).file.data)

    def truncate(self, handle: int, size: int, /) -> None:
        """Cut the file or extend it with zeros."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            if size < 0:
                raise _error(errno.EINVAL, opened.path)
            held = opened.file.data
            if size < len(held):
                del held[size:]
            else:
                held.extend(bytes(size - len(held)))

    def allocate(self, handle: int, offset: int, size: int, /) -> bool:
        """Return True: memory is taken when it is written."""
        with self._mutex:
            opened = self._opened(handle, writable=True)
            if offset < 0 or size <= 0:
                raise _error(errno.EINVAL, opened.path)
            return True

    def sync_data(self, handle: int, /) -> None:
        """Do nothing with an open file."""
        with self._mutex:
            self._opened(handle)

    def sync(self, handle: int, /) -> None:
        """Do nothing with an open file."""
        with self._mutex:
            self._opened(handle)

    def drop_cache(self, handle: int) -> None:
        """Do nothing: there is no other place to read from."""

    # Names.

    def sync_directory(self, path: str) -> None:
        """Do nothing with a directory that exists."""
        with self._mutex:
            self._directory(path)

    def rename(self, source: str, target: str, /) -> None:
        """Rename, replacing a file or an empty directory."""
        with self._mutex:
            source_parent, source_name = self._parent(source)
            target_parent, target_name = self._parent(target)
            moved = source_parent.entries.get(source_name)
            if moved is None:
                raise _error(errno.ENOENT, source)
            judge_places(source, target)
            replaced = target_parent.entries.get(target_name)
            if replaced is moved:
                return
            if replaced is not None:
                judge_replacing(
                    target,
                    moves_directory=isinstance(moved, _Directory),
                    entries_count=len(replaced.entries)
                    if isinstance(replaced, _Directory)
                    else None,
                )
            target_parent.entries[target_name] = moved
            del source_parent.entries[source_name]

    def unlink(self, path: str, /) -> None:
        """Remove a file's name; open handles keep the file."""
        with self._mutex:
            self._file(path)
            parent, name = self._parent(path)
            del parent.entries[name]

    def make_directory(self, path: str) -> None:
        """Make a directory unless it exists."""
        with self._mutex:
            found = self._find(path)
            if found is None:
                parent, name = self._parent(path)
                parent.entries[name] = _Directory(self._number())
            elif isinstance(found, _File):
                raise _error(errno.EEXIST, path)

    def remove_directory(self, path: str, /) -> None:
        """Remove an empty directory."""
        with self._mutex:
            if self._directory(path).entries:
                raise _error(errno.ENOTEMPTY, path)
            parent, name = self._parent(path)
            del parent.entries[name]

    def info(self, path: str) -> FileInfo | None:
        """Return what the path leads to, None if there is nothing."""
        with self._mutex:
            try:
                found = self._find(path)
            except NotADirectoryError:
                return None
            if found is None:
                return None
            return FileInfo(
                size=len(found.data) if isinstance(found, _File) else 0,
                device=0,
                inode=found.number,
                is_directory=isinstance(found, _Directory),
                owner=os.geteuid(),
            )

    # The medium.

    def file_system(self, path: str, /) -> str:
        """Return "memory"."""
        return "memory"

    def is_flash(self, path: str) -> bool | None:
        """Return False."""
        return False

    def lock(
        self, path: str, *, attempts: int = 5, delay_ms: int = 50
    ) -> "MemoryDiskLock":
        """Take the lock on a file, or raise at once: the holder isn't dying."""
        assert attempts >= 1, f"attempts is {attempts}"
        with self._mutex:
            found = self._find(path)
            file = self._create(path) if found is None else self._file(path)
            if file.number in self._locks:
                raise LockHeld(path, self._locks[file.number].holder, is_ours=True)
            lock = MemoryDiskLock(self, file, path)
            self._locks[file.number] = lock
            file.data.clear()
            return lock

    # The ways in.

    def _index_at(self, path: str) -> object:
        key = "/".join(names_of(path))
        with self._mutex:
            if key not in self._indexes:
                self._indexes[key] = self._make_index(path)
            return self._indexes[key]

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _opened(self, handle: int, *, writable: bool = False) -> _Handle:
        opened = self._handles.get(handle)
        if opened is None:
            raise _error(errno.EBADF, f"handle {handle}")
        if writable and opened.is_readonly:
            raise _error(errno.EBADF, opened.path)
        return opened

    def _find(self, path: str) -> _Node | None:
        found: _Node | None = self._root
        for name in names_of(path):
            if not isinstance(found, _Directory):
                raise _error(errno.ENOTDIR, path)
            found = found.entries.get(name)
            if found is None:
                return None
        return found

    def _file(self, path: str) -> _File:
        found = self._find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        if isinstance(found, _Directory):
            raise _error(errno.EISDIR, path)
        return found

    def _directory(self, path: str) -> _Directory:
        found = self._find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        if isinstance(found, _File):
            raise _error(errno.ENOTDIR, path)
        return found

    def _parent(self, path: str) -> tuple[_Directory, str]:
        names = names_of(path)
        if not names:
            raise _error(errno.EBUSY, path)
        return self._directory("/".join(names[:-1])), names[-1]

    def _create(self, path: str) -> _File:
        parent, name = self._parent(path)
        file = _File(self._number())
        parent.entries[name] = file
        return file

    def _write_holder(self, lock: "MemoryDiskLock", text: str) -> None:
        with self._mutex:
            assert self._locks.get(lock.file.number) is lock, (
                f"{lock.path} was released"
            )
            lock.holder = text
            lock.file.data[:] = text.encode("utf-8", "replace") + b"\n"

    def _release(self, lock: "MemoryDiskLock") -> None:
        with self._mutex:
            if self._locks.get(lock.file.number) is lock:
                del self._locks[lock.file.number]

    # Last, because its name hides the builtin in the annotations behind it.

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with self._mutex:
            return sorted(self._directory(path).entries)


class MemoryDiskLock:
    """A lock on a `MemoryDisk`. Made by its `lock` only."""

    def __init__(self, disk: MemoryDisk, file: _File, path: str) -> None:
        self.file = file
        self.path = path
        self.holder = ""
        self._disk = disk

    def write(self, text: str) -> None:
        """Replace the line that tells people who holds the lock."""
        self._disk._write_holder(self, text)

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        self._disk._release(self)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
