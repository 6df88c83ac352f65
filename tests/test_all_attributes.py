"""The public face: what is promised is there, under its name and with its arguments.

Goal: a caller's program that was written against the documentation imports and calls
what it finds there; nothing public is left out of `__all__` and nothing in `__all__` is
missing or without a word of explanation. Method: the promised names and signatures
stand here as plain text and are compared with what the modules have.
"""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import wheeldb
import wheeldb.testing
from wheeldb.errors import WheelDBError
from wheeldb.layout import RELEASE

NAMES = """
    open restore replay WheelDB Batch Lease Leases History OpenOptions
    NewTask Task TaskState TaskOptions Receipt CancelOutcome Event Finding Statistics
    RecoveryReport ReplayReport Retry Exponential Fixed Linear
    WheelDBError ClosedError LockedError NoOwner FormatError CorruptionError
    StorageFullError IndexUnavailable CommitUnknown StorePoisoned TaskError
    TaskNotFound TaskExists StaleVersion PayloadTooLarge QueueFull LeaseLost
    BatchRefused Compacted ClockError ClockDriftExceeded TimeSyncError PeerError
"""

TESTING_NAMES = "ManualClock CrashableDisk PowerCut"

SIGNATURES = {
    "WheelDB.schedule": "(self, name, payload=None, **options)",
    "WheelDB.schedule_many": "(self, tasks)",
    "WheelDB.batch": "(self)",
    "WheelDB.cancel": "(self, id, *, running=False)",
    "WheelDB.reschedule": "(self, id, *, delay=None, at=None, expect_lsn=None)",
    "WheelDB.revive": "(self, id=None, *, queue=None, name=None, tag=None)",
    "WheelDB.run_now": "(self, id)",
    "WheelDB.pause": "(self, id=None, *, queue=None)",
    "WheelDB.resume": "(self, id=None, *, queue=None, now=False)",
    "WheelDB.wait": "(self, id, timeout=None)",
    "WheelDB.get": "(self, id)",
    "WheelDB.tasks": (
        "(self, *, state=None, queue=None, name=None, tag=None, series=None, "
        "due_before=None, limit=None, after=None)"
    ),
    "WheelDB.history": "(self, id)",
    "WheelDB.events": "(self, from_lsn=0)",
    "WheelDB.watch": "(self, from_lsn=0)",
    "WheelDB.lease": "(self, queue='default', *, limit=1, wait=0.0, names=None)",
    "WheelDB.ack_many": "(self, leases)",
    "WheelDB.poll": "(self, limit=None)",
    "WheelDB.next_in": "(self)",
    "WheelDB.statistics": "(self)",
    "WheelDB.check": "(self)",
    "WheelDB.checkpoint": "(self)",
    "WheelDB.snapshot": "(self)",
    "WheelDB.backup": "(self, dest)",
    "WheelDB.close": "(self)",
    "Batch.schedule": "(self, name, payload=None, **options)",
    "Batch.schedule_many": "(self, tasks)",
    "Batch.cancel": "(self, id, *, running=False, expect=None)",
    "Batch.reschedule": "(self, id, *, delay=None, at=None, expect_lsn=None)",
    "Lease.ack": "(self, result=None, then=())",
    "Lease.nack": "(self, error, retry_in=None)",
    "Lease.release": "(self, delay=0)",
    "Lease.reject": "(self, reason)",
    "Lease.renew": "(self, seconds=None)",
    "Lease.save": "(self, cursor)",
    "Lease.keep": "(self)",
    "NewTask": "(name, payload=None, **options)",
    "Retry": "(max_attempts=3, backoff=<factory>, on=(<class 'Exception'>,))",
    "Exponential": "(base, cap=10.0)",
    "Linear": "(step, cap=600.0)",
    "Fixed": "(wait)",
    "open": "(path, **options)",
}

TASK_FIELDS = """
    id name queue payload state version lsn due_at due_kind due_in held priority
    attempts recoveries tags headers created_at finished_at result error series
"""

LEASE_FIELDS = """
    id name payload queue due_at late attempt recoveries may_have_run fence cursor
    headers deadline remaining task
"""

OPEN_OPTIONS = """
    create readonly durability profile node clock disk entropy driver window_max
    segment_bytes payload_bytes_max batch_max tasks_max bytes_max retention
    retention_max archive reserve elapsed_mark recoveries_max shutdown_budget
"""

TASK_OPTIONS = """
    delay at id version if_exists queue priority retry lease expires tags headers
    at_most_once durability
"""

ALSO_IS = {
    "ClosedError": RuntimeError,
    "StorageFullError": OSError,
    "IndexUnavailable": OSError,
    "TaskNotFound": KeyError,
    "TaskExists": ValueError,
    "StaleVersion": ValueError,
    "PayloadTooLarge": ValueError,
    "Compacted": LookupError,
}


def modules() -> list[ModuleType]:
    """Return every module of the package."""
    names = [
        found.name
        for found in pkgutil.walk_packages(wheeldb.__path__, "wheeldb.")
        if not found.name.endswith("__main__")
    ]
    return [wheeldb, *map(importlib.import_module, names)]


def plain(signature: inspect.Signature) -> str:
    """Return a signature without its types."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


def find(path: str) -> object:
    found: object = wheeldb
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_every_promised_name_can_be_imported() -> None:
    assert set(wheeldb.__all__) >= set(NAMES.split())
    assert set(wheeldb.testing.__all__) >= set(TESTING_NAMES.split())


@pytest.mark.parametrize(("path", "signature"), SIGNATURES.items(), ids=SIGNATURES)
def test_every_promised_call_has_its_arguments(path: str, signature: str) -> None:
    found = find(path)
    assert callable(found)
    assert plain(inspect.signature(found)) == signature


def test_values_have_their_fields() -> None:
    assert set(wheeldb.Task.__dataclass_fields__) >= set(TASK_FIELDS.split())
    with wheeldb.open(":memory:", driver=False) as db:
        db.schedule("task", delay=0)
        (lease,) = db.lease()
        for name in LEASE_FIELDS.split():
            getattr(lease, name)
        for name in ("recovery", "path", "durable_lsn"):
            getattr(db, name)


def test_every_promised_option_is_taken() -> None:
    assert wheeldb.OpenOptions.__annotations__.keys() >= set(OPEN_OPTIONS.split())
    assert wheeldb.TaskOptions.__annotations__.keys() >= set(TASK_OPTIONS.split())


def test_errors_have_one_root_and_their_kind() -> None:
    errors = {
        name: value
        for name, value in vars(wheeldb).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert len(errors) >= 22
    for name, error in errors.items():
        assert issubclass(error, WheelDBError), name
        assert issubclass(error, ALSO_IS.get(name, Exception)), name
        assert error.__doc__, name


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_what_a_module_offers_is_there_once_and_explained(module: ModuleType) -> None:
    offered = getattr(module, "__all__", ())
    assert isinstance(offered, tuple)
    assert len(set(offered)) == len(offered)
    for name in offered:
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, f"{module.__name__}.{name}"
            if not value.__doc__.strip().startswith(f"{name}("):
                continue
            # What `dataclass` writes is no explanation.
            pytest.fail(f"{module.__name__}.{name} has no docstring")


def test_every_public_method_is_explained() -> None:
    for cls in (wheeldb.WheelDB, wheeldb.Batch, wheeldb.Lease, wheeldb.Leases):
        for name, method in vars(cls).items():
            if not name.startswith("_") and (
                inspect.isfunction(method) or isinstance(method, property)
            ):
                assert method.__doc__, f"{cls.__name__}.{name}"


def test_importing_it_starts_nothing_and_imports_no_loop() -> None:
    script = (
        "import sys, threading, wheeldb; "
        "print(threading.active_count(), "
        "sorted({'asyncio', 'anyio', 'trio', 'logging.config'} & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "1 []\n"


def test_stores_are_told_the_release_that_is_packaged() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")

    assert tomllib.loads(text)["project"]["version"] == RELEASE
