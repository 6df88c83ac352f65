"""Opening: from what lies in a directory to an engine that is ready.

::

    FORMAT ─► index, if it is vouched for ─► log behind its checkpoint ─► repair
              else: new index, filled          folded into the state      `opened`
              from the newest snapshot

The log and the snapshots are the truth, the index is a cache of them.  It is used
unchecked only after a clean close, or when the same boot of the machine goes on and the
file is still where it was (``VOUCH`` beside it says so): what a killed process wrote,
the page cache still has.  Otherwise a child process verifies it, or it is rebuilt.

An opening for writing begins with a synced ``opened`` event that takes a number which
cannot have been handed out, names the clock's anchor, and ends the attempts of the
process before.  Reading only changes nothing on the disk and takes no lock.

This module opens; it does not serve.  ``replay`` (salvage, to a point in time) builds
new stores in ``replay.py``.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Continuation, Timekeeper
from wheeldb.disk import Disk, read_exactly, replace_file
from wheeldb.engine import attempts
from wheeldb.engine.checkpoint import (
    DIGESTS_NAME,
    TABLES_NAME,
    changes_of,
    freeze,
    thaw,
)
from wheeldb.engine.commit import Committer
from wheeldb.engine.decide import Bounds, Decider
from wheeldb.engine.digests import Digests
from wheeldb.engine.engine import Engine, Thresholds
from wheeldb.engine.fold import Fact, apply
from wheeldb.engine.row import Row
from wheeldb.engine.snapshots import load_snapshot
from wheeldb.engine.state import State
from wheeldb.engine.tables import pack_tables, unpack_tables
from wheeldb.engine.window import Window
from wheeldb.errors import CorruptionError, FormatError, StorageFullError
from wheeldb.events import F, Kind, iterate_events, pack_fields, unpack_fields
from wheeldb.index import Index, MemoryIndex, create_index, open_index
from wheeldb.log.reader import LogScan
from wheeldb.log.repair import Opening, Repaired, WriterOptions, create, repair
from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import Entropy
from wheeldb.log.snapshot import list_snapshots

__all__ = (
    "FORMAT_VERSION",
    "Layout",
    "Options",
    "Recovered",
    "RecoveryReport",
    "create_store",
    "open_store",
    "read_format",
    "read_store",
    "readonly_report",
    "write_vouch",
)

FORMAT_VERSION = 1
OPENINGS_STEP = 2**32
HOUR_MS = 3_600_000
# 2026-01-01T00:00:00Z.
EPOCH_2026_MS = 1_767_225_600_000
RECOVERIES_MAX_NEW_BOOT = 10
ELAPSED_MARK_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The names inside a store's directory."""

    path: str

    @property
    def format(self) -> str:
        return f"{self.path}/FORMAT"

    @property
    def log(self) -> str:
        return f"{self.path}/log"

    @property
    def index(self) -> str:
        return f"{self.path}/index"

    @property
    def snapshots(self) -> str:
        return f"{self.path}/snapshots"

    @property
    def aside(self) -> str:
        return f"{self.path}/aside"

    @property
    def archive(self) -> str:
        return f"{self.path}/archive"

    @property
    def vouch(self) -> str:
        return f"{self.path}/index/VOUCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an opening needs to know of the caller's options."""

    entropy: Entropy
    segment_bytes: int
    block_align: bool
    window_max: int
    bounds: Bounds
    thresholds: Thresholds
    reserve: bool
    release: str
    verify_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What an opening found and did.

    Attributes:
        segments: Segments of the log.
        events: Events folded behind the checkpoint.
        torn_bytes: Bytes of an incomplete last write, kept in ``aside/``.
        torn_at: Their file and offset, or ``None``.
        index: How the index was come by, in a few words.
        reason: Why the log ended as it did: ``"new"``, ``"clean"``, ``"unclean"``.
        interrupted: Attempts cut short by the end of the process before.
        off_time: Seconds for which the store was not open; ``None`` if unknown.
        clock: How far the wall clock is believed, and why.
        snapshot_age: Seconds since the newest snapshot, or ``None``.
        duration: Seconds that the opening took.
    """

    segments: int
    events: int
    torn_bytes: int
    torn_at: str | None
    index: str
    reason: str
    interrupted: int
    off_time: float | None
    clock: str
    snapshot_age: float | None
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """An opened store."""

    engine: Engine
    report: RecoveryReport


@dataclass(slots=True)
class _Folded:
    """The state of a store behind its last whole frame, and how it was come by."""

    state: State
    digests: Digests
    checkpoint_lsn: int
    index_word: str
    scan: LogScan
    events: int = 0
    snapshot_hlc: int = 0
    log_bytes: int = field(default=0)


# FORMAT.


def read_format(disk: Disk, layout: Layout) -> bytes | None:
    """Return the database's UUID, ``None`` if there is no store.

    Raises:
        FormatError: If the directory is something else, or of a newer release.
    """
    if disk.info(layout.format) is None:
        return None
    handle = disk.open(layout.format, readonly=True)
    try:
        text = disk.pread(handle, 4096, 0)
    finally:
        disk.close(handle)
    try:
        name, format_line, database_line = text.decode("ascii").splitlines()[:3]
        word, version = format_line.split()
        database = bytes.fromhex(database_line.removeprefix("database "))
        if (name, word, len(database)) != ("wheeldb", "format", 16):
            raise ValueError(name)
        number = int(version)
    except ValueError as error:
        raise FormatError(
            f"{layout.format} is not that of a wheeldb store; is {layout.path} the "
            "right directory?"
        ) from error
    if number > FORMAT_VERSION:
        raise FormatError(
            f"{layout.path} has format {number}, this release knows {FORMAT_VERSION}; "
            "open it with the release that wrote it. Nothing was changed"
        )
    return database


def create_store(
    disk: Disk, layout: Layout, clock: Clock, options: Options
) -> Recovered:
    """Make a new store in a directory that exists and is locked.

    FORMAT comes last and is the commit: without it the directory is not a store, and
    the next opening begins again.

    Raises:
        OSError: As the disk says.
    """
    start_ns = clock.process_ns()
    for directory in (layout.log, layout.index, layout.snapshots, layout.aside):
        disk.make_directory(directory)
    for name in disk.list(layout.log):
        disk.unlink(f"{layout.log}/{name}")
    database = options.entropy.bytes(16)
    index = create_index(layout.index, disk=disk)
    state = State(index)
    keeper = Timekeeper(build_ms=clock.build_ms)
    reading = clock.read()
    keeper.open(reading, clock.boot_id, clock.time_namespace, None)
    hlc = HybridClock()
    decider = _decider(state, keeper, options)
    decider.begin(keeper.now(reading), hlc.now(reading.wall_ms))
    decider.author = "library"
    decider.emit(_opened(disk, layout, keeper, clock, options, 1, "new", 0, True))
    hlc.restore(decider.stamp - 1)
    opening = Opening(
        first_lsn=1,
        count=1,
        hlc=state.last_hlc,
        payload=b"".join(decider.parts),
    )
    writer = create(
        disk,
        layout.log,
        database=database,
        incarnation=1,
        opening=opening,
        options=_writer_options(options),
    )
    digests = Digests()
    _write_index(state, digests, (0, 0))
    write_vouch(disk, layout, clock, closed_lsn=None)
    disk.sync_directory(layout.path)
    text = f"wheeldb\nformat {FORMAT_VERSION}\ndatabase {database.hex()}\n"
    replace_file(disk, layout.format, text.encode())
    parent = layout.path.rpartition("/")[0] or "."
    disk.sync_directory(parent)
    engine = _assemble(
        disk, layout, database, clock, keeper, hlc, state, decider, writer, digests,
        options, checkpoint_lsn=state.last_lsn,
    )  # fmt: skip
    now = keeper.now(reading)
    report = RecoveryReport(
        segments=0,
        events=0,
        torn_bytes=0,
        torn_at=None,
        index="new",
        reason="new",
        interrupted=0,
        off_time=None,
        clock=f"{now.trust}: {now.reason}",
        snapshot_age=None,
        duration=(clock.process_ns() - start_ns) / 1e9,
    )
    return Recovered(engine=engine, report=report)


def open_store(
    disk: Disk, layout: Layout, database: bytes, clock: Clock, options: Options
) -> Recovered:
    """Open a store for writing; its directory is locked.

    Raises:
        CorruptionError: If there is damage that no crash explains; nothing changed.
        FormatError: If something in it was written by a newer release.
        OSError: As the disk says.
    """
    start_ns = clock.process_ns()
    for directory in (layout.index, layout.snapshots, layout.aside):
        disk.make_directory(directory)
    folded = _fold_all(disk, layout, database, clock, options, readonly=False)
    state, end = folded.state, folded.scan.end
    keeper = Timekeeper(build_ms=clock.build_ms)
    reading = clock.read()
    continuation = keeper.open(
        reading, clock.boot_id, clock.time_namespace, state.anchor
    )
    hlc = HybridClock(max(state.last_hlc, end.hlc_highest, folded.snapshot_hlc))
    is_same_boot = (
        state.anchor is not None and state.anchor.boot_id == clock.boot_id
    )
    reason = "clean" if end.is_clean else "unclean"
    had_lsn = state.last_lsn
    first_lsn = had_lsn + 1
    if not end.is_clean:
        first_lsn = max(first_lsn, end.bound_highest)
    interrupted = sorted(state.leased.values(), key=lambda row: row.number)
    state.last_lsn = first_lsn - 1
    decider = _decider(state, keeper, options)
    decider.begin(keeper.now(reading), hlc.now(reading.wall_ms))
    decider.author = "library"
    decider.emit(
        _opened(
            disk, layout, keeper, clock, options, state.incarnation, reason, had_lsn,
            end.is_clean or is_same_boot,
        )  # fmt: skip
    )
    attempts.interrupt(decider, interrupted,
        options.bounds.recoveries_max if is_same_boot else RECOVERIES_MAX_NEW_BOOT,
    )
    hlc.restore(decider.stamp - 1)
    opening = Opening(
        first_lsn=first_lsn,
        count=state.last_lsn - first_lsn + 1,
        hlc=state.last_hlc,
        payload=b"".join(decider.parts),
    )
    repaired = repair(
        disk,
        layout.log,
        layout.aside,
        folded.scan,
        opening=opening,
        options=_writer_options(options),
    )
    write_vouch(disk, layout, clock, closed_lsn=None)
    engine = _assemble(
        disk, layout, database, clock, keeper, hlc, state, decider, repaired.writer,
        folded.digests, options, checkpoint_lsn=folded.checkpoint_lsn,
    )  # fmt: skip
    report = _report(
        folded, repaired, keeper, continuation, reason, len(interrupted),
        (clock.process_ns() - start_ns) / 1e9, engine,
    )  # fmt: skip
    return Recovered(engine=engine, report=report)


def read_store(
    disk: Disk, layout: Layout, database: bytes, clock: Clock, options: Options
) -> tuple[State, Digests, LogScan, Timekeeper]:
    """Fold a store without changing anything or taking its lock.

    Raises:
        CorruptionError, FormatError, OSError: As ``open_store``.
    """
    folded = _fold_all(disk, layout, database, clock, options, readonly=True)
    keeper = Timekeeper(build_ms=clock.build_ms)
    keeper.open(
        clock.read(), clock.boot_id, clock.time_namespace, folded.state.anchor
    )
    return folded.state, folded.digests, folded.scan, keeper


# Folding.


def _fold_all(
    disk: Disk,
    layout: Layout,
    database: bytes,
    clock: Clock,
    options: Options,
    *,
    readonly: bool,
) -> _Folded:
    """Bring the state to the log's last whole frame."""
    words: list[str] = []
    vouched, closed_lsn = _read_vouch(disk, layout, clock)
    index = open_index(
        layout.index,
        disk=disk,
        vouched=vouched,
        verify_timeout_s=options.verify_timeout_s,
        readonly=readonly,
        aside=layout.aside,
        on_verdict=lambda verdict: words.append(verdict.reason),
    )
    folded = None
    if index is not None:
        if readonly and not isinstance(index, MemoryIndex):
            index = _Pinned(index)
        folded = _from_index(index, words[0])
    if folded is None:
        folded = _from_snapshot(disk, layout, database, words[0], readonly=readonly)
    state = folded.state
    scan = LogScan(
        disk,
        layout.log,
        database=database,
        from_lsn=folded.checkpoint_lsn,
        sync_first=not readonly,
    )
    folded.scan = scan
    for frame in scan:
        header = frame.header
        if (
            not readonly
            and header.watermark >= state.last_lsn
            and len(state.active) >= options.thresholds.entries
        ):
            # Everything so far is proven durable: the index may take it.
            _write_index(state, folded.digests, (0, 0))
            folded.checkpoint_lsn = state.last_lsn
        folded.events += _fold_frame(state, header.first_lsn, header.hlc, frame.payload)
    if closed_lsn is not None and not scan.end.is_clean:
        raise CorruptionError(
            "the store was closed cleanly, but its log does not end with a footer",
            path=scan.end.segment.path,
            offset=scan.end.offset,
            lsn=closed_lsn,
        )
    return folded


def _fold_frame(state: State, first_lsn: int, hlc: int, payload: bytes) -> int:
    """Apply a frame's events; a jump of numbers in front of it is legal here."""
    state.last_lsn = first_lsn - 1
    events = 0
    for _, record in iterate_events(payload):
        apply(state, Fact.from_record(record), state.last_lsn + 1, hlc + events)
        events += 1
    return events


def _from_index(index: Index, word: str) -> _Folded | None:
    """Return the state at the index's checkpoint, ``None`` if it names none."""
    state = State(index)
    with index.snapshot() as snapshot:
        tables = snapshot.meta(TABLES_NAME)
        stored = snapshot.meta(DIGESTS_NAME)
        if tables is None or stored is None:
            index.close()
            return None
        unpack_tables(state, tables)
        digests = Digests(unpack_fields(stored)[F.DIGESTS])  # type: ignore[arg-type]
        _load_leased(state, snapshot)
    return _Folded(
        state=state,
        digests=digests,
        checkpoint_lsn=state.last_lsn,
        index_word=f"used: {word}",
        scan=None,  # type: ignore[arg-type]
    )


def _load_leased(state: State, snapshot: object) -> None:
    from wheeldb.engine.lanes import LANE_LEASED

    after = None
    while True:
        piece = snapshot.due(LANE_LEASED, after, 1_000)  # type: ignore[attr-defined]
        for _, number, _ in piece:
            found = snapshot.task(number)  # type: ignore[attr-defined]
            if found is not None:
                state.leased[number] = Row.unpack(number, *found)
        if len(piece) < 1_000:
            return
        after = piece[-1][:2]


def _from_snapshot(
    disk: Disk, layout: Layout, database: bytes, word: str, *, readonly: bool
) -> _Folded:
    """Return the state of the newest snapshot, in a new index."""
    index: Index
    if readonly:
        index = MemoryIndex()
    else:
        index = create_index(layout.index, disk=disk)
    state = State(index)
    digests = Digests()
    names = (
        list_snapshots(disk, layout.snapshots)
        if disk.info(layout.snapshots) is not None
        else []
    )
    failure: CorruptionError | None = None
    for name in names:
        try:
            load_snapshot(
                disk,
                f"{layout.snapshots}/{name.file_name}",
                state,
                digests,
                database=database,
            )
        except CorruptionError as error:
            failure = failure or error
            index.close()
            index = MemoryIndex() if readonly else create_index(layout.index, disk=disk)
            state, digests = State(index), Digests()
            continue
        return _Folded(
            state=state,
            digests=digests,
            checkpoint_lsn=state.last_lsn,
            index_word=f"rebuilt from snapshot {name.file_name}: {word}",
            scan=None,  # type: ignore[arg-type]
            snapshot_hlc=state.last_hlc,
        )
    return _Folded(
        state=state,
        digests=digests,
        checkpoint_lsn=0,
        index_word=f"rebuilt from the log: {word}",
        scan=None,  # type: ignore[arg-type]
    )


def _write_index(state: State, digests: Digests, now: tuple[int, int]) -> None:
    """Write the hot table into the index, while nobody else is there."""
    frozen = freeze(state, now)
    changes = changes_of(frozen, state.lanes, digests, [])
    changes.meta[TABLES_NAME] = pack_tables(state)
    changes.meta[DIGESTS_NAME] = pack_fields({F.DIGESTS: digests.stored()})
    state.index.apply(changes)
    thaw(state)


class _Pinned:
    """An index seen through one view only: that of the moment it was opened."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._view = index.snapshot()
        self._snapshot = self._view.__enter__()

    def snapshot(self) -> "_Pinned":
        return self

    def __enter__(self) -> object:
        return self._snapshot

    def __exit__(self, *details: object) -> None:
        pass

    def close(self) -> None:
        self._view.__exit__(None, None, None)
        self._index.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._index, name)


# Pieces of an opening.


def _decider(state: State, keeper: Timekeeper, options: Options) -> Decider:
    window = Window(state.lanes, options.window_max, 0, 0)
    return Decider(state, window, options.bounds)


def _opened(
    disk: Disk,
    layout: Layout,
    keeper: Timekeeper,
    clock: Clock,
    options: Options,
    incarnation: int,
    reason: str,
    after: int,
    knows_starts: bool,
) -> Fact:
    reading = clock.read()
    anchor = keeper.anchor(reading)
    fields: dict[int, object] = {
        F.INCARNATION: incarnation,
        F.ANCHOR: anchor.to_fields(),
        F.PLACE: list(_place(disk, layout)),
        F.AFTER: after,
        F.CLEAN: reason == "clean",
        F.REASON: reason,
        F.RELEASE: options.release,
    }
    if not knows_starts:
        # Leases are written, not synced: the last ones may be lost with the power, and
        # an elapsed mark is at most that old.
        now = keeper.now(reading)
        fields[F.DOUBT] = [
            now.elapsed_ms + 2 * ELAPSED_MARK_MS,
            max(now.wall_ms, reading.wall_ms),
        ]
    return Fact(Kind.OPENED, 1, fields)


def _place(disk: Disk, layout: Layout) -> tuple[int, int]:
    """Return device and inode of the directory: a copy lies elsewhere."""
    info = disk.info(layout.path)
    return (0, 0) if info is None else (info.device, info.inode)


def _writer_options(options: Options) -> WriterOptions:
    return WriterOptions(
        entropy=options.entropy,
        segment_bytes=options.segment_bytes,
        block_align=options.block_align,
    )


def _assemble(
    disk: Disk,
    layout: Layout,
    database: bytes,
    clock: Clock,
    keeper: Timekeeper,
    hlc: HybridClock,
    state: State,
    decider: Decider,
    writer: object,
    digests: Digests,
    options: Options,
    *,
    checkpoint_lsn: int,
) -> Engine:
    now = keeper.now(clock.read())
    window = Window(state.lanes, options.window_max, now.elapsed_ms, now.wall_ms)
    decider.window = window
    reserve = ballast = None
    if options.reserve:
        reserve = Reserve(disk, f"{layout.log}/reserve")
        ballast = Ballast(disk, f"{layout.log}/ballast", options.segment_bytes)
    committer = Committer(
        state,
        window,
        decider,
        writer,  # type: ignore[arg-type]
        clock,
        keeper,
        hlc,
        durable_lsn=writer.last_lsn,  # type: ignore[attr-defined]
        reserve=reserve,
        ballast=ballast,
    )
    # Every lane begins unloaded; the window fills up in steps.
    for lane in state.lanes.numbers.values():
        window.open_lane(lane)
    engine = Engine(
        disk=disk,
        path=layout.path,
        database=database,
        clock=clock,
        keeper=keeper,
        hlc=hlc,
        state=state,
        window=window,
        decider=decider,
        committer=committer,
        digests=digests,
        thresholds=options.thresholds,
        checkpoint_lsn=checkpoint_lsn,
        entropy=options.entropy,
    )
    if reserve is not None:
        decider.reserve = _reserving(reserve)
    engine.queue_changed()
    return engine


def _reserving(reserve: Reserve) -> Callable[[int], None]:
    def ensure(tasks: int) -> None:
        try:
            reserve.ensure(tasks)
        except OSError as error:
            raise StorageFullError(
                error.errno,
                f"no room to reserve for {tasks} tasks; nothing was accepted. Free some",
            ) from error

    return ensure


def readonly_report(scan: LogScan, engine: Engine) -> RecoveryReport:
    """Return what a reader has found."""
    now, end = engine.now(), scan.end
    return RecoveryReport(
        segments=len(scan.segments),
        events=end.frames,
        torn_bytes=end.torn_bytes,
        torn_at=f"{end.segment.path} at byte {end.torn_offset}"
        if end.torn_bytes
        else None,
        index="read only",
        reason="clean" if end.is_clean else "unclean",
        interrupted=0,
        off_time=None,
        clock=f"{now.trust}: {now.reason}",
        snapshot_age=None,
        duration=0.0,
    )


def _report(
    folded: _Folded,
    repaired: Repaired,
    keeper: Timekeeper,
    continuation: Continuation,
    reason: str,
    interrupted: int,
    duration: float,
    engine: Engine,
) -> RecoveryReport:
    now = engine.now()
    torn_at = None
    if repaired.torn_path is not None:
        torn_at = f"{repaired.torn_path} at byte {repaired.torn_offset}"
    return RecoveryReport(
        segments=repaired.segments,
        events=folded.events,
        torn_bytes=repaired.torn_bytes,
        torn_at=torn_at,
        index=folded.index_word,
        reason=reason,
        interrupted=interrupted,
        off_time=None if continuation.off_ms is None else continuation.off_ms / 1000,
        clock=f"{now.trust}: {now.reason}",
        snapshot_age=None,
        duration=duration,
    )


# VOUCH: who opened the index last, and how that ended.


def write_vouch(
    disk: Disk, layout: Layout, clock: Clock, *, closed_lsn: int | None
) -> None:
    """Write down beside the index who opened it, and how that ended."""
    vouch = {
        "boot_id": clock.boot_id,
        "boottime_ms": clock.read().boottime_ms,
        "closed_lsn": closed_lsn,
        "place": list(_place(disk, layout)),
        "time_namespace": clock.time_namespace,
    }
    replace_file(disk, layout.vouch, json.dumps(vouch, sort_keys=True).encode())


def _read_vouch(disk: Disk, layout: Layout, clock: Clock) -> tuple[bool, int | None]:
    """Return whether the index may be used unchecked, and where a close ended."""
    info = disk.info(layout.vouch)
    if info is None or info.size > 4096:
        return False, None
    handle = disk.open(layout.vouch, readonly=True)
    try:
        text = read_exactly(disk, handle, info.size, 0)
    finally:
        disk.close(handle)
    try:
        vouch = json.loads(text)
        if list(vouch["place"]) != list(_place(disk, layout)):
            return False, None
        closed_lsn = vouch["closed_lsn"]
        if closed_lsn is not None:
            return True, int(closed_lsn)
        return (
            vouch["boot_id"] == clock.boot_id
            and vouch["time_namespace"] == clock.time_namespace
            and int(vouch["boottime_ms"]) <= clock.read().boottime_ms
        ), None
    except (ValueError, KeyError, TypeError):
        return False, None
