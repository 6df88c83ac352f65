"""What stands before every operation of a `CrashableDisk`: power, faults, the count.

    faults = Faults()
    faults.fail("sync_data", errno.EIO, nth=2, forever=False, path="")
    faults.enter("sync_data", "/log/1.seg", is_change=True)    # counted, nothing due
    faults.enter("sync_data", "/log/1.seg", is_change=True)    # returns errno.EIO

It decides *that* a call fails; what a failing call does to the files is the disk's.
"""

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("AFTER_FAILED_SYNC", "Faults", "Operation", "PowerCut", "disk_error")

# What a file system does once a sync has failed, all seen by Rebello et al., "Can
# Applications Recover from fsync Failures?", USENIX ATC 2020. Everywhere the pages
# count as clean, so that no later sync writes them.
AFTER_FAILED_SYNC = (
    "keep",  # ext4 and XFS: readers see the new bytes, until `drop_caches` or a crash
    "evict",  # the same, and the pages are gone when the file is opened next
    "revert",  # Btrfs: readers see the old bytes at once
    "late",  # ext4 with data=journal: this sync succeeds, the next one fails
)

_OPERATIONS = frozenset(
    {
        "allocate", "close", "index", "info", "list", "lock", "make_directory",
        "open", "pread", "pwrite", "remove_directory", "rename", "size", "sync",
        "sync_data", "sync_directory", "truncate", "unlink",
    }
)  # fmt: skip


class PowerCut(BaseException):
    """The power is gone; until `crash`, every operation raises this.

    Not an `Exception`: code that handles errors must not get to handle this one.
    """


class Operation(NamedTuple):
    """One call that changed the disk or made something durable."""

    name: str
    path: str


@dataclass(slots=True, kw_only=True)
class _Fault:
    operation: str
    error: int | str
    left: int
    is_forever: bool
    path: str


def disk_error(number: int, path: str) -> OSError:
    """Return the error that a system call on this path would raise."""
    return OSError(number, os.strerror(number), path)


class Faults:
    """The armed faults, the power and the operations so far.

    Attributes:
        operations: Every operation that `crash_at` counts.
        calls: How often each operation was called, those that change nothing included.
        hits: Every call that a fault has met.
        is_cut: Whether the power is gone.
        watcher: Is called before each of those operations.
    """

    def __init__(self) -> None:
        self.watcher: Callable[[Operation], None] | None = None
        self.operations: list[Operation] = []
        self.calls: Counter[str] = Counter()
        self.hits: list[Operation] = []
        self.is_cut = False
        self._operations_left: int | None = None
        self._faults: list[_Fault] = []

    def crash_at(self, operation: int) -> None:
        """Cut the power before the n-th operation from now."""
        if operation < 1:
            raise ValueError(f"operation {operation}: the next one is 1")
        self._operations_left = operation

    def restore_power(self) -> None:
        """Switch the power on and disarm `crash_at`; faults stay."""
        self.is_cut = False
        self._operations_left = None

    def fail(
        self, operation: str, error: int | str, *, nth: int, forever: bool, path: str
    ) -> None:
        """Arm a fault; see `CrashableDisk.fail`."""
        if operation not in _OPERATIONS:
            raise ValueError(f"no operation {operation!r}: {sorted(_OPERATIONS)}")
        may_be_short = operation in {"pread", "pwrite"}
        if isinstance(error, str) and not (error == "short" and may_be_short):
            raise ValueError(f"{operation} can't fail with {error!r}")
        if nth < 1:
            raise ValueError(f"nth is {nth}: the next call is 1")
        self._faults.append(
            _Fault(
                operation=operation,
                error=error,
                left=nth,
                is_forever=forever,
                path=path,
            )
        )

    def heal(self) -> None:
        """Disarm every fault."""
        self._faults.clear()

    def copy(self, *, with_operations: bool) -> "Faults":
        """Return the same faults and cut for another disk, without the watcher."""
        twin = Faults()
        twin._faults = [replace(fault) for fault in self._faults]
        if with_operations:
            twin.operations = self.operations.copy()
            twin.is_cut, twin._operations_left = self.is_cut, self._operations_left
        return twin

    def check_power(self, what: str) -> None:
        """Raise `PowerCut` if the power is gone."""
        if self.is_cut:
            raise PowerCut(f"no power for {what}")

    def enter(self, name: str, path: str, *, is_change: bool) -> int | str | None:
        """Count an operation and return the fault that is due, None for none.

        Raises:
            PowerCut: in place of the operation, which then isn't counted.
        """
        if is_change and not self.is_cut and self.watcher is not None:
            self.watcher(Operation(name, path))
        if is_change and not self.is_cut and self._operations_left is not None:
            self._operations_left -= 1
            self.is_cut = self._operations_left == 0
        self.check_power(f"{name} of {path}")
        self.calls[name] += 1
        if is_change:
            self.operations.append(Operation(name, path))
        due = None
        for fault in list(self._faults):
            if fault.operation == name and fault.path in path:
                fault.left -= 1
                if fault.left <= 0 and due is None:
                    due = fault.error
                    self.hits.append(Operation(name, path))
                    if not fault.is_forever:
                        self._faults.remove(fault)
        return due
