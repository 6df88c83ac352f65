"""Opening: from what lies in a directory to an engine that is ready.

::

    FORMAT ─► VOUCH ─► fold: index or snapshot, then the log ─► `opened` ─► repair
                       (engine/folding.py)                      (log/repair.py)

Which of the steps has changed what, when the power goes:

1. Names that a dead process left are made durable; VOUCH says that the index is open.
2. Folding reads.  It writes nothing but an index, which is a cache.
3. The ``opened`` event takes a number that cannot have been handed out, names the
   clock's anchor, and ends the attempts of the process before.  It becomes durable with
   the new segment that the repair begins: from here on the opening has happened.
4. VOUCH names that segment; nothing is accepted before.

A store is made in the same way, in a directory that exists; FORMAT comes last and is
the commit.  Reading only changes nothing on the disk and takes no lock.

This module opens; it does not serve.  ``replay.py`` and ``planting.py`` make stores of
what is left of others.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from wheeldb.clock import Clock, Reading
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Timekeeper
from wheeldb.disk import Disk
from wheeldb.engine import attempts
from wheeldb.engine.caution import Caution
from wheeldb.engine.commit import Committer
from wheeldb.engine.decide import Bounds, Decider
from wheeldb.engine.digests import Digests
from wheeldb.engine.engine import Engine, Thresholds
from wheeldb.engine.folding import (
    Folded,
    FoldOptions,
    fold_store,
    new_index,
    write_index,
)
from wheeldb.engine.opened import (
    JUMP,
    OpenedBy,
    doubt_after_cut,
    is_copy,
    jump_lsn,
    opened_fact,
)
from wheeldb.engine.state import State
from wheeldb.engine.window import Window
from wheeldb.errors import CorruptionError
from wheeldb.layout import Layout, mend_format, sync_names, write_format
from wheeldb.log.reader import LogScan
from wheeldb.log.repair import Opening, WriterOptions, create, repair
from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import Entropy, list_segments
from wheeldb.log.snapshot import list_snapshots
from wheeldb.log.spare import SpareBlock, put_back
from wheeldb.log.writer import LogWriter
from wheeldb.report import RecoveryReport, creation_report, opening_report
from wheeldb.vouch import (
    Vouch,
    place_of,
    read_vouch,
    require_last_segment,
    write_vouch,
)

__all__ = (
    "Options",
    "Recovered",
    "create_store",
    "open_store",
    "read_store",
)

RECOVERIES_MAX_NEW_BOOT = 10
ELAPSED_MARK_MS = 60_000


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
    node: str | None = None
    verify_timeout_s: float = 60.0
    elapsed_mark_ms: int = ELAPSED_MARK_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """An opened store."""

    engine: Engine
    report: RecoveryReport


def create_store(
    disk: Disk, layout: Layout, clock: Clock, options: Options
) -> Recovered:
    """Make a new store in a directory that exists and is locked.

    Ensures:
        A crash at any moment leaves either no FORMAT, and the next call begins again,
        or a whole store.

    Raises:
        CorruptionError: If there is a log with events: then FORMAT was lost.
        OSError: As the disk says.
    """
    start_ns = clock.process_ns()
    _require_unfinished(disk, layout)
    for directory in (layout.log, layout.index, layout.snapshots, layout.aside):
        disk.make_directory(directory)
    for name in disk.list(layout.log):
        disk.unlink(f"{layout.log}/{name}")
    database = options.entropy.bytes(16)
    with ExitStack() as undone:
        index = new_index(disk, layout.index, database)
        undone.callback(index.close)
        state = State(index)
        keeper = Timekeeper(build_ms=clock.build_ms)
        reading = clock.read()
        keeper.open(reading, clock.boot_id, clock.time_namespace, None)
        hlc = HybridClock()
        decider = _begin(state, keeper, hlc, reading, options)
        by = OpenedBy(
            incarnation=1,
            place=place_of(disk, layout.path),
            after_lsn=0,
            reason="new",
            release=options.release,
            node=options.node,
            doubt=None,
        )
        decider.emit(opened_fact(keeper, reading, by))
        writer = create(
            disk,
            layout.log,
            database=database,
            incarnation=1,
            opening=_opening(decider, hlc, first_lsn=1),
            options=_writer_options(options),
        )
        undone.callback(writer.close)
        digests = Digests()
        write_index(state, digests)
        note = partial(_vouch, disk, layout, clock, None, state.last_lsn, 0)
        note(writer.position.header.number)
        sync_names(disk, layout)
        write_format(disk, layout, database)
        engine = _assemble(
            disk, layout, database, clock, keeper, hlc, state, decider, writer,
            digests, options, checkpoint_lsn=state.last_lsn, note_segment=note,
        )  # fmt: skip
        undone.pop_all()
    report = creation_report(engine, (clock.process_ns() - start_ns) / 1e9)
    return Recovered(engine=engine, report=report)


def open_store(
    disk: Disk, layout: Layout, database: bytes, clock: Clock, options: Options
) -> Recovered:
    """Open a store for writing; its directory is locked.

    Raises:
        CorruptionError: If there is damage that no crash explains; no byte of the log
            or a snapshot was changed, but for a block that was kept (log/spare.py).
        FormatError: If something in it was written by a newer release.
        OSError: As the disk says.
    """
    start_ns = clock.process_ns()
    for directory in (layout.index, layout.snapshots, layout.aside):
        disk.make_directory(directory)
    sync_names(disk, layout)
    vouch = read_vouch(disk, layout)
    require_last_segment(disk, layout, vouch)
    put_back(disk, layout.log)
    is_vouched = vouch is not None and vouch.is_good(clock, place_of(disk, layout.path))
    starts = 0
    if vouch is not None and is_vouched and vouch.closed_lsn is None:
        starts = vouch.starts + 1
    # Before the index is opened: it may be the last thing that this process does.
    checkpoint_lsn, segment = 0, 0
    if vouch is not None:
        checkpoint_lsn, segment = vouch.checkpoint_lsn, vouch.segment
    _vouch(disk, layout, clock, vouch, checkpoint_lsn, starts, segment)
    with ExitStack() as undone:
        folded = fold_store(
            disk, layout, database, _fold_options(options, vouch, is_vouched)
        )
        undone.callback(folded.state.index.close)
        if folded.is_verified:
            starts = 0
        elif vouch is not None and vouch.checkpoint_lsn != folded.checkpoint_lsn:
            starts = min(starts, 1)
        mend_format(disk, layout, database)
        note = partial(
            _vouch, disk, layout, clock, vouch, folded.checkpoint_lsn, starts
        )
        engine, report = _open_folded(
            disk, layout, database, clock, options, folded, note, start_ns
        )
        undone.pop_all()
    return Recovered(engine=engine, report=report)


def _open_folded(
    disk: Disk,
    layout: Layout,
    database: bytes,
    clock: Clock,
    options: Options,
    folded: Folded,
    note_segment: Callable[[int], None],
    start_ns: int,
) -> tuple[Engine, RecoveryReport]:
    """Begin to write behind what was folded."""
    state, end = folded.state, folded.scan.end
    keeper = Timekeeper(build_ms=clock.build_ms)
    reading = clock.read()
    continuation = keeper.open(
        reading, clock.boot_id, clock.time_namespace, state.anchor
    )
    hlc = HybridClock(folded.hlc)
    is_same_boot = state.anchor is not None and state.anchor.boot_id == clock.boot_id
    place = place_of(disk, layout.path)
    reason = "clean" if end.is_clean else "unclean"
    by, first_lsn = _opened_by(
        folded, keeper, reading, place, reason, is_same_boot, options
    )
    interrupted = sorted(state.leased.values(), key=lambda row: row.number)
    state.last_lsn = first_lsn - 1
    keeper.note_opening(first_lsn)
    decider = _begin(state, keeper, hlc, reading, options)
    decider.emit(opened_fact(keeper, reading, by))
    attempts.interrupt(
        decider,
        interrupted,
        options.bounds.recoveries_max if is_same_boot else RECOVERIES_MAX_NEW_BOOT,
    )
    repaired = repair(
        disk,
        layout.log,
        layout.aside,
        folded.scan,
        opening=_opening(decider, hlc, first_lsn=first_lsn),
        options=_writer_options(options),
        incarnation=by.incarnation,
    )
    with ExitStack() as undone:
        undone.callback(repaired.writer.close)
        note_segment(repaired.writer.position.header.number)
        engine = _assemble(
            disk, layout, database, clock, keeper, hlc, state, decider,
            repaired.writer, folded.digests, options,
            checkpoint_lsn=folded.checkpoint_lsn, note_segment=note_segment,
        )  # fmt: skip
        undone.pop_all()
    if not end.is_clean and not is_same_boot:
        engine.caution = Caution(reading.boottime_ms)
    _remember_snapshot(engine, folded)
    duration = (clock.process_ns() - start_ns) / 1e9
    report = opening_report(
        folded, repaired, engine, continuation, by.reason, len(interrupted), duration
    )
    return engine, report


def _opened_by(
    folded: Folded,
    keeper: Timekeeper,
    reading: Reading,
    place: tuple[int, int],
    reason: str,
    is_same_boot: bool,
    options: Options,
) -> tuple[OpenedBy, int]:
    """Return what the opening says, and the number that it takes."""
    state, is_clean = folded.state, reason == "clean"
    incarnation, doubt = state.incarnation, None
    first_lsn = state.last_lsn + 1
    now = keeper.now(reading)
    if not is_clean:
        first_lsn = max(first_lsn, folded.bound)
        if not is_same_boot:
            doubt = doubt_after_cut(
                state.anchor, state.last_hlc, now, options.elapsed_mark_ms
            )
    if is_copy(state.place, place, is_same_boot=is_same_boot):
        # The other one may be at work, and may have started whatever was due.
        reason = "copy"
        incarnation += 1
        doubt = now.elapsed_ms, max(now.wall_ms, reading.wall_ms)
        first_lsn = jump_lsn(
            max(state.last_lsn, folded.bound), reading.wall_ms, options.entropy
        )
        incarnation = max(incarnation, first_lsn // JUMP)
    by = OpenedBy(
        incarnation=incarnation,
        place=place,
        after_lsn=state.last_lsn,
        reason=reason,
        release=options.release,
        node=options.node,
        doubt=doubt,
    )
    return by, first_lsn


def read_store(
    disk: Disk, layout: Layout, database: bytes, clock: Clock, options: Options
) -> tuple[Folded, Timekeeper]:
    """Fold a store without changing anything or taking its lock.

    Raises:
        CorruptionError, FormatError, OSError: As ``open_store``.
    """
    vouch = read_vouch(disk, layout)
    require_last_segment(disk, layout, vouch)
    is_vouched = vouch is not None and vouch.is_good(clock, place_of(disk, layout.path))
    fold_options = _fold_options(options, vouch, is_vouched, is_readonly=True)
    folded = fold_store(disk, layout, database, fold_options)
    keeper = Timekeeper(build_ms=clock.build_ms)
    keeper.open(clock.read(), clock.boot_id, clock.time_namespace, folded.state.anchor)
    return folded, keeper


# Pieces of an opening.


def _require_unfinished(disk: Disk, layout: Layout) -> None:
    """Refuse to make a store where one has lost its FORMAT.

    A creation that was cut short leaves one segment with the ``opened`` event at most.
    """
    segments = list_segments(disk, layout.log) if disk.info(layout.log) else []
    snapshots = (
        list_snapshots(disk, layout.snapshots) if (disk.info(layout.snapshots)) else []
    )
    if not segments and not snapshots:
        return
    if not snapshots and [name.number for name in segments] == [1]:
        end = LogScan(disk, layout.log, database=None).finish()
        if end.last_lsn <= 1:
            return
    raise CorruptionError(
        "the file is missing, although there is a log with events", path=layout.format
    )


def _fold_options(
    options: Options,
    vouch: Vouch | None,
    is_vouched: bool,
    *,
    is_readonly: bool = False,
) -> FoldOptions:
    return FoldOptions(
        is_vouched=is_vouched,
        proven_lsn=_proven_lsn(vouch),
        entries_max=options.thresholds.entries,
        payload_bytes_max=options.thresholds.payload_bytes,
        verify_timeout_s=options.verify_timeout_s,
        is_readonly=is_readonly,
    )


def _proven_lsn(vouch: Vouch | None) -> int:
    return max(vouch.closed_lsn or 0, vouch.proven_lsn) if vouch is not None else 0


def _vouch(
    disk: Disk,
    layout: Layout,
    clock: Clock,
    before: Vouch | None,
    checkpoint_lsn: int,
    starts: int,
    segment: int,
) -> None:
    """Write down that the index is open; what was proven stays so."""
    write_vouch(
        disk,
        layout,
        clock,
        closed_lsn=None,
        proven_lsn=_proven_lsn(before),
        checkpoint_lsn=checkpoint_lsn,
        starts=starts,
        segment=segment,
    )


def _begin(
    state: State,
    keeper: Timekeeper,
    hlc: HybridClock,
    reading: Reading,
    options: Options,
) -> Decider:
    """Return a decider for the events of an opening; nobody needs its window."""
    window = Window(state.lanes, options.window_max, 0, 0)
    decider = Decider(state, window, options.bounds)
    decider.begin(keeper.now(reading), hlc.now(reading.wall_ms))
    decider.author = "library"
    return decider


def _opening(decider: Decider, hlc: HybridClock, *, first_lsn: int) -> Opening:
    """Return the frame of what an opening has decided."""
    first_stamp = hlc.last
    hlc.restore(decider.stamp - 1)
    return Opening(
        first_lsn=first_lsn,
        count=decider.state.last_lsn - first_lsn + 1,
        hlc=first_stamp,
        payload=b"".join(decider.parts),
    )


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
    writer: LogWriter,
    digests: Digests,
    options: Options,
    *,
    checkpoint_lsn: int,
    note_segment: Callable[[int], None],
) -> Engine:
    now = keeper.now(clock.read())
    window = Window(state.lanes, options.window_max, now.elapsed_ms, now.wall_ms)
    decider.window = window
    reserve = ballast = spare = None
    if options.reserve:
        reserve = Reserve(disk, layout.reserve)
        ballast = Ballast(disk, layout.ballast, options.segment_bytes)
        if options.block_align:
            spare = SpareBlock(disk, layout.log)
    committer = Committer(
        state,
        window,
        decider,
        writer,
        clock,
        keeper,
        hlc,
        durable_lsn=writer.last_lsn,
        reserve=reserve,
        ballast=ballast,
        spare=spare,
        note_segment=note_segment,
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
    engine.queue_changed()
    return engine


def _remember_snapshot(engine: Engine, folded: Folded) -> None:
    """Let the log's growth be counted from the newest snapshot, not from now."""
    lsn = 0
    if folded.snapshots:
        lsn = folded.snapshots[0].lsn
        engine.snapshot_bytes = folded.snapshots[0].file_bytes
    log_bytes = sum(
        folded.scan.end.offset
        if segment.successor is None
        else segment.successor.predecessor_bytes
        for segment in folded.scan.segments
        if segment.successor is None or segment.successor.predecessor_last_lsn > lsn
    )
    engine.snapshot_frame_bytes = -log_bytes
