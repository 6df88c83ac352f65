"""wheeldb: a crash-safe delayed-task scheduler that lives inside your program.

::

    import wheeldb

    with wheeldb.open("gateway.wheeldb") as db:
        db.schedule("valve.close", {"valve": 7}, delay=900)

A call returns once its task is on disk.  The task comes due at its millisecond, and
survives a killed process, a pulled plug and a wrong clock.  One directory, no server.
"""

from wheeldb.backup import restore
from wheeldb.batch import Batch
from wheeldb.care import Statistics
from wheeldb.engine.history import History
from wheeldb.errors import (
    BatchRefused,
    ClockDriftExceeded,
    ClockError,
    ClosedError,
    CommitUnknown,
    Compacted,
    CorruptionError,
    FormatError,
    IndexUnavailable,
    LeaseLost,
    LockedError,
    NoOwner,
    PayloadTooLarge,
    PeerError,
    QueueFull,
    StaleVersion,
    StorageFullError,
    StorePoisoned,
    TaskError,
    TaskExists,
    TaskNotFound,
    TimeSyncError,
    WheelDBError,
)
from wheeldb.leases import Lease, Leases
from wheeldb.model import (
    CancelOutcome,
    Event,
    Exponential,
    Finding,
    Fixed,
    Linear,
    NewTask,
    Receipt,
    Retry,
    Task,
    TaskOptions,
    TaskState,
)
from wheeldb.opening import OpenOptions
from wheeldb.opening import open_store as open
from wheeldb.replay import ReplayReport, replay
from wheeldb.report import RecoveryReport
from wheeldb.store import WheelDB

__all__ = (
    "Batch",
    "BatchRefused",
    "CancelOutcome",
    "ClockDriftExceeded",
    "ClockError",
    "ClosedError",
    "CommitUnknown",
    "Compacted",
    "CorruptionError",
    "Event",
    "Exponential",
    "Finding",
    "Fixed",
    "FormatError",
    "History",
    "IndexUnavailable",
    "Lease",
    "LeaseLost",
    "Leases",
    "Linear",
    "LockedError",
    "NewTask",
    "NoOwner",
    "OpenOptions",
    "PayloadTooLarge",
    "PeerError",
    "QueueFull",
    "Receipt",
    "RecoveryReport",
    "ReplayReport",
    "Retry",
    "StaleVersion",
    "Statistics",
    "StorageFullError",
    "StorePoisoned",
    "Task",
    "TaskError",
    "TaskExists",
    "TaskNotFound",
    "TaskOptions",
    "TaskState",
    "TimeSyncError",
    "WheelDB",
    "WheelDBError",
    "open",
    "replay",
    "restore",
)
