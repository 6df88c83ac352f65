"""The lock file of a directory: one owner, by the kernel's word.

The lock is flock(2) on a file that is created once and never removed: removing it while
somebody holds it would give two owners two files under one name. It belongs to the open
file description, so it goes with the process however that dies, and it isn't dropped
when another part of the program opens and closes the file, as a POSIX record lock is
(https://www.sqlite.org/howtocorrupt.html, section 2.2). What stands in the file is for
people only; any content, of any age, is a free lock if the kernel says so.

A forked child shares the description and would keep the directory locked for as long as
it lives, so the child closes its copy at once.

This module doesn't wait for a lock and doesn't know what it protects.
"""

import contextlib
import errno
import fcntl
import os
import select
import threading

from wheeldb.disk.seam import LockHeld

__all__ = ("OsLock", "lock_file", "open_above_standard")

_HOLDER_BYTES_MAX = 4096

# Locks held by this process by (device, inode): one store reached under two names is
# found even where flock is emulated by a lock that a process can take twice.
_held: dict[tuple[int, int], "OsLock"] = {}
# Held over each fork as well, so that a child never copies a lock in the making.
# Reentrant, because a signal handler may fork in the middle.
_guard = threading.RLock()


class OsLock:
    """A lock that is held. Made by `lock_file` only."""

    def __init__(self, path: str, handle: int, key: tuple[int, int]) -> None:
        self.path = path
        self.holder = ""
        self._handle = handle
        self.key = key

    def write(self, text: str) -> None:
        """Replace the line that tells people who holds the lock."""
        line = text.encode("utf-8", "replace")[: _HOLDER_BYTES_MAX - 1] + b"\n"
        with _guard:
            assert self._handle >= 0, f"{self.path} was released"
            self.holder = text
            os.pwrite(self._handle, line, 0)
            os.ftruncate(self._handle, len(line))

    def release(self) -> None:
        """Give the lock up; the file stays. A second call does nothing."""
        with _guard:
            if self._handle < 0:
                return
            handle, self._handle = self._handle, -1
            _held.pop(self.key, None)
            os.close(handle)

    def _abandon(self) -> None:
        """Close a forked child's copy; the parent's lock is not touched.

        Closing is the right call here: an explicit unlock would act on the description
        that the parent shares.
        """
        handle, self._handle = self._handle, -1
        with contextlib.suppress(OSError):
            os.close(handle)


def lock_file(path: str, *, attempts: int, delay_ms: int) -> OsLock:
    """Take the lock on a file, as `Disk.lock` says."""
    assert attempts >= 1, f"attempts is {attempts}"
    for _ in range(attempts - 1):
        try:
            return _try_lock(path)
        except LockHeld as error:
            if error.is_ours:
                raise
        # A wait without a clock; a signal handler may raise out of it.
        select.select((), (), (), delay_ms / 1000)
    return _try_lock(path)


def _try_lock(path: str) -> OsLock:
    with _guard:
        # Looked at before it is opened: where flock is emulated, closing a second
        # descriptor would drop the lock that the first one holds.
        with contextlib.suppress(FileNotFoundError):
            ours = _held.get(_key_of(os.stat(path)))
            if ours is not None:
                raise LockHeld(path, ours.holder, is_ours=True)
        handle = open_above_standard(path, os.O_RDWR | os.O_CREAT)
        try:
            lock = OsLock(path, handle, _lock_handle(handle, path))
        except BaseException:
            os.close(handle)
            raise
        _held[lock.key] = lock
        return lock


def _lock_handle(handle: int, path: str) -> tuple[int, int]:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockHeld(path, _read_holder(handle), is_ours=False) from None
    key = _key_of(os.fstat(handle))
    if _key_of(os.stat(path)) != key:
        text = "lock file was replaced while it was being locked; try again"
        raise OSError(errno.ESTALE, text, path)
    # What an earlier holder wrote must not be taken for the new one's word.
    os.ftruncate(handle, 0)
    return key


def _key_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _read_holder(handle: int) -> str:
    text = os.pread(handle, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace")
    return text.partition("\n")[0].strip("\0 \r")


def open_above_standard(path: str, flags: int) -> int:
    """Open a file at a descriptor that is none of 0, 1, 2, mode 0600, close-on-exec."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if handle > 2:
        return handle
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(handle)


def _after_fork_in_child() -> None:
    for lock in _held.values():
        lock._abandon()
    _held.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire,
    after_in_parent=_guard.release,
    after_in_child=_after_fork_in_child,
)
