"""Every error that wheeldb raises on purpose, grouped by the moment it can occur.

Our exception hierarchy:

    WheelDBError
    ├── ClosedError(RuntimeError)      the handle is closed, or a parent process's
    ├── LockedError                    opening: another owner has the directory
    ├── NoOwner                        connecting: nobody has it open
    ├── FormatError                    opening: not a store, or one of a newer release
    ├── CorruptionError                opening, reading: damage on disk, with its place
    ├── StorageFullError(OSError)      writing: no room, nothing was accepted
    ├── IndexUnavailable(OSError)      the index can't be written nor rebuilt for now
    ├── CommitUnknown                  writing: a write or sync failed, outcome unknown
    ├── StorePoisoned                  after that: reopen
    ├── TaskError                      one call about one task was refused
    │   ├── TaskNotFound(KeyError)
    │   ├── TaskExists(ValueError)
    │   ├── StaleVersion(ValueError)
    │   ├── PayloadTooLarge(ValueError)
    │   ├── QueueFull
    │   ├── LeaseLost
    │   └── BatchRefused
    ├── Compacted(LookupError)         watching: the events asked for are gone
    ├── ClockError
    │   ├── ClockDriftExceeded         a peer's stamp lies too far ahead
    │   └── TimeSyncError
    └── PeerError

A refused call (``TaskError``, ``StorageFullError``, ``IndexUnavailable``,
``TypeError``, ``ValueError``) has written nothing.  Classes carry fields, not only
text.  This module knows nothing of the rest of wheeldb.
"""

from collections.abc import Sequence

__all__ = (
    "BatchRefused",
    "ClockDriftExceeded",
    "ClockError",
    "ClosedError",
    "CommitUnknown",
    "Compacted",
    "CorruptionError",
    "FormatError",
    "IndexUnavailable",
    "LeaseLost",
    "LockedError",
    "NoOwner",
    "PayloadTooLarge",
    "PeerError",
    "QueueFull",
    "StaleVersion",
    "StorageFullError",
    "StorePoisoned",
    "TaskError",
    "TaskExists",
    "TaskNotFound",
    "TimeSyncError",
    "WheelDBError",
)


class WheelDBError(Exception):
    """The root of every error that wheeldb raises on purpose."""


# These can be raised when a store is opened, connected to or closed.


class ClosedError(WheelDBError, RuntimeError):
    """Raised when a call reaches a closed store, or one opened before a fork."""


class LockedError(WheelDBError):
    """Raised when another process, or another handle here, owns the directory.

    Attributes:
        path: The store's directory.
        holder: What the owner wrote about itself, for people; the kernel's lock alone
            decides.
    """

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is open in {holder or 'another process'}; "
            "use wheeldb.connect(path) to reach it"
        )
        self.path = path
        self.holder = holder


class NoOwner(WheelDBError):
    """Raised when nobody has the store open that a client wants to reach."""


class FormatError(WheelDBError):
    """Raised when a directory is not a store, or one written by a newer release."""


class CorruptionError(WheelDBError):
    """Raised when damage on disk is found that no crash can explain.

    Attributes:
        reason: What is wrong.
        path: The damaged file.
        offset: The byte at which the damage was met, or ``None``.
        lsn: The log position it concerns, or ``None``.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        lsn: int | None = None,
    ) -> None:
        place = [path or ""]
        if offset is not None:
            place.append(f"at byte {offset}")
        if lsn is not None:
            place.append(f"(LSN {lsn})")
        where = " ".join(part for part in place if part)
        super().__init__(
            f"{where + ': ' if where else ''}{reason}; nothing was changed. "
            "`wheeldb check DIR` lists the damage, `wheeldb replay DIR --salvage --to "
            "NEWDIR` saves what can be saved"
        )
        self.reason = reason
        self.path = path
        self.offset = offset
        self.lsn = lsn


# These can be raised when something is written.


class StorageFullError(WheelDBError, OSError):
    """Raised when there is no room for the change; nothing was accepted.

    Cancelling, rejecting, giving back and finishing work on: room for them was
    reserved when their task was accepted.
    """


class IndexUnavailable(WheelDBError, OSError):
    """Raised when the index is damaged and the disk refuses a new one.

    The log is whole and nothing is lost. What is in memory goes on, tasks that are
    there can be finished; no new task is taken. A call that needs the index tries
    again to rebuild it: once the disk takes files, that is all.
    """


class CommitUnknown(WheelDBError):
    """Raised when a write or sync failed, so nobody knows what is on disk.

    Attributes:
        ids: The task ids of the call, whose outcome is unknown: reopen and look.
    """

    def __init__(self, message: str, ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class StorePoisoned(WheelDBError):
    """Raised by every write after a failed one: the handle is dead, reopen the store.

    A failed sync is final.  Linux marks the pages clean, so that a second try would
    report success for data that is lost (PostgreSQL wiki, "Fsync Errors").
    """


# These are refusals of one call; nothing was written.


class TaskError(WheelDBError):
    """The root of refusals that concern one task.

    Attributes:
        index: The position in a call about many tasks, or ``None``.
    """

    index: int | None = None


class TaskNotFound(TaskError, KeyError):
    """Raised when no task has that id, or it is done and was not to be remembered."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class TaskExists(TaskError, ValueError):
    """Raised when the id is taken by a task that was scheduled otherwise.

    Attributes:
        existing: The task that has the id (a ``wheeldb.Task``).
    """

    def __init__(self, message: str, existing: object = None) -> None:
        super().__init__(message)
        self.existing = existing


class StaleVersion(TaskError, ValueError):
    """Raised when the id is known with a higher version than the one given."""


class PayloadTooLarge(TaskError, ValueError):
    """Raised when a payload, or the frame that many of them need, is over its limit."""


class QueueFull(TaskError):
    """Raised when the store or the queue holds as many tasks or bytes as it may."""


class LeaseLost(TaskError):
    """Raised when the fence is stale: the task was given to another, or taken away."""


class BatchRefused(TaskError):
    """Raised at the end of a ``batch()`` block one of whose calls was refused.

    Attributes:
        index: The position of the refused call in the batch.
        outcome: What it came to, where an ``expect`` failed; otherwise ``None`` and
            the refusal is the ``__cause__``.
    """

    def __init__(self, message: str, index: int, outcome: object = None) -> None:
        super().__init__(message)
        self.index = index
        self.outcome = outcome


# These can be raised when reading.


class Compacted(WheelDBError, LookupError):
    """Raised when events are asked for that the log no longer holds.

    Attributes:
        oldest_lsn: The first log position that can still be read.
    """

    def __init__(self, oldest_lsn: int) -> None:
        super().__init__(
            f"the log begins at LSN {oldest_lsn}; read the state first, then watch "
            "from there"
        )
        self.oldest_lsn = oldest_lsn


# These concern time and peers.


class ClockError(WheelDBError):
    """The root of errors about time."""


class ClockDriftExceeded(ClockError):
    """Raised when a foreign stamp lies further ahead than the bound allows."""


class TimeSyncError(ClockError):
    """Raised when no usable answer came from the time servers."""


class PeerError(WheelDBError):
    """Raised when another node breaks the protocol or cannot be trusted."""
