"""``wheeldb.open``: from a path and options to a store that runs.

In this order, so that a refusal has changed nothing: the options are judged, the
directory is looked at (kind, owner, file system, what lies in it), its lock is taken,
and only then is anything written.  One owner per directory; the kernel's lock decides,
what is written into LOCK is for people::

    pid 4711 (python gateway.py, since 2026-12-01T14:03:22+00:00)

Whoever is refused reads the same with the time on the clock of the wall: "since
14:03:22", with the date unless it is today's.
"""

import contextlib
import errno
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from wheeldb import recovery
from wheeldb.care import SEGMENTS_MANY, take_snapshot, wants_snapshot
from wheeldb.clock import Clock
from wheeldb.clock.system import SystemClock
from wheeldb.closing import close_engine
from wheeldb.disk import (
    NETWORK_FILE_SYSTEMS,
    NO_ROOM,
    Disk,
    Lock,
    LockHeld,
    OsDisk,
    UnsyncedDisk,
)
from wheeldb.disk.memory import MemoryDisk
from wheeldb.driver import Driver
from wheeldb.engine.decide import Bounds
from wheeldb.engine.engine import Thresholds
from wheeldb.engine.moment import span_ms
from wheeldb.engine.readonly import ReadonlyEngine
from wheeldb.engine.rebuilding import rebuild_index
from wheeldb.engine.upkeep import Upkeep
from wheeldb.engine.values import instant
from wheeldb.entropy import system_entropy
from wheeldb.errors import (
    CorruptionError,
    FormatError,
    LockedError,
    StorageFullError,
)
from wheeldb.index import MemoryIndex
from wheeldb.layout import RELEASE, Layout, judge_path, read_format
from wheeldb.log.segment import Entropy, LogSyncError
from wheeldb.log.snapshot import remove_unfinished
from wheeldb.recovery import Options
from wheeldb.report import readonly_report
from wheeldb.settings import Settings
from wheeldb.store import WheelDB

__all__ = (
    "OpenOptions",
    "open_store",
    "recovery_options",
    "system_entropy",
)

MEMORY = ":memory:"
COMMAND_CHARS_MAX = 100

# Errors for want of room that more room does not cure. After a failed sync the kernel
# calls clean what it has not written, and the next one would say yes to that.
_FINAL = (StorageFullError, LogSyncError)

_SINCE = re.compile(r"since (\S+)\)$")
# What a creation that was cut short may have left, and what a system puts into the root
# of a file system.
_NAMES = frozenset(
    {"LOCK", "FORMAT", "FORMAT.tmp", "log", "index", "snapshots", "aside", "lost+found"}
)


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of ``open``; ``Settings`` explains those not named here.

    Attributes:
        create: Make the store if there is none.
        readonly: Take no lock, change nothing, see the state up to the log's end.
        clock: The clock seam, for tests.
        disk: The disk seam, for tests.
        entropy: The source of random bytes, for tests.
        driver: ``False``: nothing runs by itself; call ``poll``.
    """

    create: bool
    readonly: bool
    durability: str
    profile: str
    node: str | None
    clock: Clock | None
    disk: Disk | None
    entropy: Entropy | None
    driver: bool
    window_max: int
    segment_bytes: int
    payload_bytes_max: int
    batch_max: int
    tasks_max: int | None
    bytes_max: int | None
    retention: float
    retention_max: int
    archive: bool
    reserve: bool
    elapsed_mark: float
    recoveries_max: int
    shutdown_budget: float
    author: str


def open_store(path: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> WheelDB:
    """Open a store, or make it, and start its driver.

    Args:
        path: The store's directory, or ``":memory:"`` for one that is gone when it is
            closed.
        **options: See ``OpenOptions``.

    Raises:
        TypeError, ValueError: For an option or a path that can't be right.
        LockedError: Somebody has it open.
        FormatError: It is not a store, or one of a newer release.
        CorruptionError: There is damage that no crash explains; nothing was changed.
        FileNotFoundError: There is no store and ``create`` is false.
        PermissionError, NotADirectoryError, OSError: As the system says.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "wheeldb does not support Windows")
    chosen = dict(options)
    create = _flag("create", chosen.pop("create", True))
    readonly = _flag("readonly", chosen.pop("readonly", False))
    has_driver = _flag("driver", chosen.pop("driver", True))
    clock: Clock = chosen.pop("clock", None) or SystemClock()  # type: ignore[assignment]
    disk: Disk | None = chosen.pop("disk", None)  # type: ignore[assignment]
    entropy: Entropy = chosen.pop("entropy", None) or system_entropy  # type: ignore[assignment]
    unknown = chosen.keys() - Settings.__dataclass_fields__.keys()
    if unknown:
        raise TypeError(f"open() has no option {min(unknown)!r}")
    settings = Settings(**chosen)  # type: ignore[arg-type]
    text = os.fspath(path)
    if type(text) is not str:
        raise TypeError(f"the path is a {type(text).__name__}, not a str")
    if not text:
        raise ValueError("the path is empty; a store needs a directory of its own")
    if text == MEMORY:
        disk = disk or MemoryDisk(MemoryIndex)
        text = "/memory"
        disk.make_directory(text)
    if disk is None:
        disk = UnsyncedDisk() if settings.durability == "memory" else OsDisk()
        text = os.path.abspath(text)
    judge_path(text)
    layout = Layout(path=text)
    if readonly:
        return _open_readonly(disk, layout, clock, entropy, settings)
    _prepare_directory(disk, layout, create)
    lock = _lock(disk, layout, clock)
    room = _giving_room(disk, layout)
    try:
        while True:
            try:
                return _open_locked(
                    disk, layout, clock, entropy, settings, lock, create, has_driver
                )
            except OSError as error:
                if error.errno not in NO_ROOM or isinstance(error, _FINAL):
                    raise
                for _ in room:
                    break
                else:
                    raise StorageFullError(
                        error.errno,
                        f"no room to open {layout.path}; free some",
                        layout.path,
                    ) from error
    except BaseException:
        lock.release()
        raise


def _giving_room(disk: Disk, layout: Layout) -> Iterator[None]:
    """Free what an opening before has set apart; yield after each piece.

    First what a crash left of a snapshot, which nobody needs. Then the ballast, as for
    anything that ends no task. Then the reserve, since no task is ended in a store that
    doesn't open. A power cut may have left either with its blocks and without length.
    """
    is_there = disk.info(layout.snapshots) is not None
    if is_there and remove_unfinished(disk, layout.snapshots):
        yield
    for path in (layout.ballast, layout.reserve):
        if disk.info(path) is not None:
            handle = disk.open(path)
            try:
                disk.truncate(handle, 0)
            finally:
                disk.close(handle)
            yield


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{name} is a {type(value).__name__}, not a bool")
    return value


def _open_locked(
    disk: Disk,
    layout: Layout,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    lock: Lock,
    create: bool,
    has_driver: bool,
) -> WheelDB:
    chosen = recovery_options(disk, layout, entropy, settings)
    database = read_format(disk, layout)
    if database is None:
        # Looked at before the lock was taken; a race may have changed it.
        _require_empty(disk, layout, create)
        recovered = recovery.create_store(disk, layout, clock, chosen)
    else:
        _require_log(disk, layout)
        recovered = recovery.open_store(disk, layout, database, clock, chosen)
        # What a crash left of a snapshot may be as large as the store.
        remove_unfinished(disk, layout.snapshots)
    engine, driver = recovered.engine, None
    # Before the driver reads the index for the first time.
    engine.mend = partial(rebuild_index, engine)
    try:
        upkeep = Upkeep(
            engine,
            elapsed_mark_ms=span_ms(settings.elapsed_mark, "elapsed_mark"),
            snapshot=partial(take_snapshot, engine, archive=settings.archive),
            wants_snapshot=partial(wants_snapshot, engine),
        )
        # Each opening begins a segment: a process that dies young again and again
        # never closes, and would leave ever more of them.
        upkeep.is_snapshot_due = recovered.report.segments > SEGMENTS_MANY
        if has_driver:
            driver = Driver(upkeep, clock.waiter())
        return WheelDB(engine, upkeep, driver, settings, recovered.report, lock.release)
    except BaseException:
        if driver is not None:
            driver.stop()
        close_engine(engine, None, settings)
        raise


def recovery_options(
    disk: Disk, layout: Layout, entropy: Entropy, settings: Settings
) -> Options:
    """Return what recovery needs to know."""
    is_flash = settings.profile == "flash"
    if settings.profile == "auto":
        # Unknown devices are taken for flash: it costs a block, not a task.
        is_flash = disk.is_flash(layout.path) is not False
    return Options(
        entropy=entropy,
        segment_bytes=settings.segment_bytes,
        block_align=is_flash,
        window_max=settings.window_max,
        bounds=Bounds(
            tasks_max=settings.tasks_max,
            bytes_max=settings.bytes_max,
            retention_ms=span_ms(settings.retention, "retention"),
            retention_max=settings.retention_max,
            recoveries_max=settings.recoveries_max,
        ),
        thresholds=Thresholds(),
        reserve=settings.reserve,
        release=RELEASE,
        node=settings.node,
        elapsed_mark_ms=span_ms(settings.elapsed_mark, "elapsed_mark"),
    )


def _open_readonly(
    disk: Disk, layout: Layout, clock: Clock, entropy: Entropy, settings: Settings
) -> WheelDB:
    info = disk.info(layout.path)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, "there is no store", layout.path)
    if not info.is_directory:
        raise NotADirectoryError(errno.ENOTDIR, "a store is a directory", layout.path)
    database = read_format(disk, layout)
    if database is None:
        raise FormatError(f"{layout.path} is not a wheeldb store")
    _require_log(disk, layout)
    folded, keeper = recovery.read_store(
        disk,
        layout,
        database,
        clock,
        recovery_options(disk, layout, entropy, settings),
    )
    engine = ReadonlyEngine(
        disk,
        layout.path,
        database,
        clock,
        keeper,
        folded.state,
        folded.scan,
        folded.digests,
        folded.checkpoint_lsn,
    )
    return WheelDB(
        engine,
        None,
        None,
        settings,
        readonly_report(folded, engine),
        lambda: None,
    )


# The directory and its lock.


def _prepare_directory(disk: Disk, layout: Layout, create: bool) -> None:
    """Look at the directory, make it if need be, and refuse what can't be used."""
    path = layout.path
    info = disk.info(path)
    if info is None:
        if not create:
            raise FileNotFoundError(errno.ENOENT, "there is no store", path)
        parent = posixpath.dirname(path) or "."
        if disk.info(parent) is not None:
            _require_local(disk, parent, path)
        disk.make_directory(path)
        info = disk.info(path)
    assert info is not None, f"{path} was made and is not there"
    if not info.is_directory:
        raise NotADirectoryError(errno.ENOTDIR, "a store is a directory", path)
    if isinstance(disk, OsDisk) and info.owner != os.geteuid():
        raise PermissionError(
            errno.EPERM,
            f"the directory belongs to uid {info.owner}, this is uid {os.geteuid()}; "
            "open it as its owner",
            path,
        )
    _require_local(disk, path, path)
    if read_format(disk, layout) is None:
        # Before a lock file is put where it does not belong.
        _require_empty(disk, layout, create)


def _require_local(disk: Disk, directory: str, path: str) -> None:
    name = disk.file_system(directory)
    if name in NETWORK_FILE_SYSTEMS:
        raise OSError(
            errno.ENOTSUP,
            f"a store can't live on {name}: neither locks nor syncs are reliable over "
            "a network; choose a local directory",
            path,
        )


def _require_empty(disk: Disk, layout: Layout, create: bool) -> None:
    """Refuse to make a store where something else lies."""
    if not create:
        raise FileNotFoundError(errno.ENOENT, "there is no store", layout.path)
    others = [name for name in disk.list(layout.path) if name not in _NAMES]
    if others:
        raise FormatError(
            f"{layout.path} is no wheeldb store and not empty (there is "
            f"{others[0]!r}); choose another directory"
        )


def _require_log(disk: Disk, layout: Layout) -> None:
    """Refuse a store that has lost the directory of its log, and say so."""
    if disk.info(layout.log) is None:
        raise CorruptionError(
            "the directory is missing, although FORMAT says that there is a store",
            path=layout.log,
        )


# The lock.


def _lock(disk: Disk, layout: Layout, clock: Clock) -> Lock:
    """Take the lock and write down who has it.

    Raises:
        LockedError: Somebody has it.
    """
    now = instant(clock.read().wall_ms).astimezone()
    try:
        lock = disk.lock(f"{layout.path}/LOCK")
    except LockHeld as held:
        raise LockedError(layout.path, _told(held.holder, now)) from held
    since = now.isoformat(timespec="seconds")
    try:
        lock.write(f"pid {os.getpid()} ({_command()}, since {since})")
    except BaseException as error:
        # The text is for people; on a full disk the store opens without it.
        if not isinstance(error, OSError) or error.errno not in NO_ROOM:
            lock.release()
            raise
    return lock


def _command() -> str:
    """Return what runs here, without its arguments: they may hold secrets."""
    script = sys.argv[0] if sys.argv else ""
    directory, name = os.path.split(script)
    if name == "__main__.py":
        name = f"-m {os.path.basename(directory)}"
    text = f"python {name}".strip()[:COMMAND_CHARS_MAX]
    return "".join(char if char.isprintable() else "?" for char in text)


def _told(holder: str, now: datetime) -> str:
    """Return a holder's text with its instant as people here say it."""
    found = _SINCE.search(holder)
    if found is None:
        return holder
    with contextlib.suppress(ValueError):
        since = datetime.fromisoformat(found[1]).astimezone(now.tzinfo)
        shown = since.strftime("%H:%M:%S")
        if since.date() != now.date():
            shown = since.strftime("%Y-%m-%d %H:%M:%S")
        return f"{holder[: found.start()]}since {shown})"
    return holder
