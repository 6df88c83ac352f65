"""Looking after an open store: numbers, verification, snapshots.

``check_store`` compares what should be the same: the log's frames with their checksums,
the rows of the index with the digests that the events make, the window with the rows
below its horizons, the counters with what they count.  It changes nothing and lists
what it finds; nothing found is an empty list.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from wheeldb.disk import NO_ROOM
from wheeldb.driver import Driver
from wheeldb.engine.engine import Engine
from wheeldb.engine.history import scan_frames
from wheeldb.engine.row import DEAD, LEASED, PARKED, SCHEDULED
from wheeldb.engine.snapshots import snapshot_payloads
from wheeldb.engine.sweep import sweep
from wheeldb.engine.upkeep import Upkeep
from wheeldb.errors import CorruptionError
from wheeldb.events import F, Kind
from wheeldb.log.frame import lsn_bound
from wheeldb.log.segment import list_segments
from wheeldb.log.snapshot import (
    SnapshotInfo,
    SnapshotName,
    list_snapshots,
    remove_snapshots,
    verify_snapshot,
    write_snapshot,
)
from wheeldb.model import Finding

__all__ = (
    "SEGMENTS_MANY",
    "STATE_NAMES",
    "Statistics",
    "check_store",
    "gather_statistics",
    "take_snapshot",
    "wants_last_snapshot",
    "wants_snapshot",
    "write_state",
)

SNAPSHOT_SMALL_BYTES = 16 * 2**20
LOG_SMALL_BYTES = 2**20
SEGMENTS_MANY = 64
# How long a snapshot may see the index as it was: as long as it does, the index gives
# no page free that has changed since, and its file grows.
VIEW_MS_MAX = 60_000
# For the estimate of how long a snapshot takes: a row without payload, and a slow disk.
ROW_BYTES = 200
SNAPSHOT_BYTES_PER_S = 5 * 2**20
STATE_NAMES = {
    SCHEDULED: "scheduled",
    LEASED: "leased",
    DEAD: "dead",
    PARKED: "parked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The numbers of a store.

    Attributes:
        pending: Unfinished tasks by queue and state.
        pending_count: All of them.
        payload_bytes: Their payloads.
        ready_count: Due tasks that are in memory, waiting to be leased.
        finished_count: Finished ids that are remembered.
        last_lsn: The last log position.
        durable_lsn: The last one proven durable.
        checkpoint_lsn: The one up to which the index is.
        log_segments: Files of the log.
        log_bytes: Bytes of frames written since the opening.
        bytes_written: Bytes written to the log since the opening, zeros included.
        syncs: Syncs of the log since the opening.
        tasks_scheduled: Tasks accepted since the opening.
        bytes_per_task: Log bytes per accepted task, ``None`` before the first: wear.
        syncs_per_task: Syncs per accepted task, likewise.
        checkpoints: Checkpoints since the opening.
        index_bytes: The index's file.
        index_rows: Its rows by table.
        index_rebuilds: How often it was damaged and replaced since the opening.
        window_count: Tasks in memory.
        finished_forgotten: Finished ids forgotten since the opening.
        leases_expired: Leases that ran out since the opening.
        tasks_expired: Tasks that nobody started in time, since the opening.
        wakeups: How often the driver woke up.
        snapshot_error: Why the last snapshot that was due could not be written; it is
            tried again, and what it would replace stays.
        sweep_lost: Tasks that a sweep found waiting without an entry; must stay 0.
        clock_trust: How far the wall clock is believed.
        lateness: Leases since the opening by how late they were, in ms.
    """

    pending: Mapping[str, Mapping[str, int]]
    pending_count: int
    payload_bytes: int
    ready_count: int
    finished_count: int
    last_lsn: int
    durable_lsn: int
    checkpoint_lsn: int
    log_segments: int
    log_bytes: int
    bytes_written: int
    syncs: int
    tasks_scheduled: int
    bytes_per_task: float | None
    syncs_per_task: float | None
    checkpoints: int
    index_bytes: int
    index_rows: Mapping[str, int]
    index_rebuilds: int
    window_count: int
    finished_forgotten: int
    leases_expired: int
    tasks_expired: int
    wakeups: int
    snapshot_error: str | None
    sweep_lost: int
    clock_trust: str
    lateness: Mapping[str, int]


def gather_statistics(
    engine: Engine, upkeep: Upkeep | None, driver: Driver | None
) -> Statistics:
    """Return the store's numbers as of now."""
    committer, state = engine.committer, engine.state
    with engine.lock:
        pending: dict[str, dict[str, int]] = {}
        for (queue, number), count in state.pending.items():
            if count:
                pending.setdefault(queue, {})[STATE_NAMES[number]] = count
        window_count, ready_count = len(engine.window), engine.window.ready_count
    index = engine.mended(lambda: state.index.statistics())
    log = committer.log_statistics()
    scheduled = engine.decider.scheduled_count
    return Statistics(
        pending=pending,
        pending_count=state.pending_count,
        payload_bytes=state.payload_bytes,
        ready_count=ready_count,
        finished_count=state.finished_count,
        last_lsn=state.last_lsn,
        durable_lsn=committer.durable_lsn,
        checkpoint_lsn=engine.checkpoint_lsn,
        log_segments=len(list_segments(engine.disk, f"{engine.path}/log")),
        log_bytes=log.frame_bytes,
        bytes_written=log.bytes_written,
        syncs=committer.syncs,
        tasks_scheduled=scheduled,
        bytes_per_task=log.bytes_written / scheduled if scheduled else None,
        syncs_per_task=committer.syncs / scheduled if scheduled else None,
        checkpoints=engine.checkpoints,
        index_bytes=index.bytes,
        index_rows=index.rows,
        index_rebuilds=engine.index_rebuilds,
        window_count=window_count,
        finished_forgotten=engine.forgotten_count,
        leases_expired=upkeep.leases_expired if upkeep is not None else 0,
        tasks_expired=engine.expired_count,
        wakeups=driver.wakeups if driver is not None else 0,
        snapshot_error=None
        if upkeep is None or upkeep.snapshot_error is None
        else str(upkeep.snapshot_error),
        sweep_lost=engine.sweep_lost,
        clock_trust=engine.now().trust,
        lateness=engine.lateness.counts(),
    )


def check_store(engine: Engine) -> list[Finding]:
    """Verify log, snapshots, index and memory against each other."""
    findings: list[Finding] = []
    committer = engine.committer
    committer.sync()
    try:
        for frame in scan_frames(engine, 0):
            if frame.header.last_lsn > committer.durable_lsn:
                break
    except CorruptionError as error:
        findings.append(_finding("log", error))
    for name in list_snapshots(engine.disk, f"{engine.path}/snapshots"):
        path = f"{engine.path}/snapshots/{name.file_name}"
        try:
            verify_snapshot(engine.disk, path, database=engine.database)
        except CorruptionError as error:
            findings.append(_finding("snapshot", error))
    findings += _check_index(engine)
    findings += _check_memory(engine)
    return findings


def _check_index(engine: Engine) -> list[Finding]:
    try:
        with engine.checkpointing, engine.state.index.snapshot() as view:
            digests = engine.digests
            found = view.digests()
            texts = view.check()
    except CorruptionError as error:
        return [_finding("index", error)]
    texts += digests.differences(found)
    return [Finding(where="index", what=text) for text in texts]


def _check_memory(engine: Engine) -> list[Finding]:
    texts = engine.committer.check_log()
    with engine.lock:
        texts += engine.window.check()
        texts += engine.state.check()
    lost, _ = sweep(engine, mend=False)
    texts += [f"task {number} waits and has no entry in the window" for number in lost]
    return [Finding(where="memory", what=text) for text in texts]


def _finding(where: str, error: CorruptionError) -> Finding:
    return Finding(
        where=where,
        what=error.reason
        if error.offset is None
        else f"{error.reason}, at byte {error.offset}",
        path=error.path,
        lsn=error.lsn,
    )


# Snapshots.


def take_snapshot(engine: Engine, *, archive: bool) -> str:
    """Write and verify a snapshot; remove what it makes superfluous; return its path.

    Two generations stay, and every segment since the older one.

    Raises:
        CorruptionError: If the index is not what the events make; nothing is removed.
        OSError: If it could not be written; nothing is removed.
    """
    with engine.snapshotting:
        try:
            info = write_state(engine, f"{engine.path}/snapshots")
        except OSError as error:
            # The snapshot lets segments go: worth the room kept for leases.
            if error.errno not in NO_ROOM or not engine.committer.give_up_ballast():
                raise
            info = write_state(engine, f"{engine.path}/snapshots")
        engine.note(
            Kind.SNAPSHOT_TAKEN,
            {
                F.CHECKPOINT: info.lsn,
                F.PATH: SnapshotName(info.lsn).file_name,
                F.BYTES: info.file_bytes,
            },
            synced=True,
        )
        engine.snapshot_bytes = info.file_bytes
        engine.snapshot_frame_bytes = engine.checkpoint_frame_bytes
        _remove_superfluous(engine, archive=archive)
        return info.path


def write_state(engine: Engine, directory: str) -> SnapshotInfo:
    """Write the state as of a checkpoint, taken now, as a snapshot.

    It reads every row: an index that is damaged is rebuilt, and it begins once more.

    Raises:
        CorruptionError: If the index is not what the events make; nothing stays.
        StorePoisoned: If the log has failed.
        StorageFullError, IndexUnavailable: If the index can't be rebuilt.
        TimeoutError: If the rows could not be written within a minute; nothing stays.
        OSError: If it could not be written; nothing stays.
    """
    with engine.snapshotting:
        # Whoever rebuilds the index must have left every view of it.
        return engine.mended(lambda: _write_view(engine, directory))


def _write_view(engine: Engine, directory: str) -> SnapshotInfo:
    with ExitStack() as view:
        with engine.checkpointing:
            checkpoint = engine.checkpoint()
            snapshot = view.enter_context(engine.state.index.snapshot())
            until_ms = engine.clock.read().boottime_ms + VIEW_MS_MAX
        payloads = snapshot_payloads(snapshot, checkpoint.tables, checkpoint.digests)
        return write_snapshot(
            engine.disk,
            directory,
            database=engine.database,
            incarnation=engine.state.incarnation,
            lsn=checkpoint.lsn,
            hlc=checkpoint.hlc,
            bound=lsn_bound(checkpoint.lsn),
            entropy=engine.entropy,
            payloads=_within_limit(engine, payloads, view, until_ms),
        )


def _within_limit(
    engine: Engine, payloads: Iterable[bytes], view: ExitStack, until_ms: int
) -> Iterator[bytes]:
    """Yield what is read from a view, and close that behind the last of it.

    Raises:
        TimeoutError: If it is later than ``until_ms`` on boottime.
    """
    for payload in payloads:
        if engine.clock.read().boottime_ms > until_ms:
            raise TimeoutError(
                "the snapshot was dropped: in "
                f"{VIEW_MS_MAX // 1000} seconds not all of it could be written, and "
                "the index is not held up for longer; write it to a faster disk, or "
                "again when this one has less to do"
            )
        yield payload
    view.close()


def _remove_superfluous(engine: Engine, *, archive: bool) -> None:
    """Remove what two whole generations make superfluous.

    As long as the older one is damaged, everything stays: the log before it may be what
    undoes the damage.  ``check`` names it.
    """
    disk, directory = engine.disk, f"{engine.path}/snapshots"
    names = list_snapshots(disk, directory)
    if len(names) < 2:
        return
    older = names[1]
    try:
        verify_snapshot(
            disk, f"{directory}/{older.file_name}", database=engine.database
        )
    except CorruptionError:
        return
    remove_snapshots(disk, directory)
    target = None
    if archive:
        target = f"{engine.path}/archive"
        disk.make_directory(target)
        disk.sync_directory(engine.path)
    engine.committer.retire(older.lsn + 1, archive=target)


def wants_snapshot(engine: Engine) -> bool:
    """Return whether the log has grown past the last snapshot's size."""
    return _log_growth(engine) > max(engine.snapshot_bytes, SNAPSHOT_SMALL_BYTES)


def wants_last_snapshot(engine: Engine, budget_s: float) -> bool:
    """Return whether a close is to write a snapshot, and has the time for it.

    Small stores write one once it saves a noticeable part of the next rebuild, large
    ones when the log has grown by a quarter of the last one; each opening begins a
    segment, and of those there must not be too many either.
    """
    state = engine.state
    size = state.payload_bytes + ROW_BYTES * (
        state.pending_count + state.finished_count
    )
    if size > budget_s * SNAPSHOT_BYTES_PER_S:
        return False
    segments = len(list_segments(engine.disk, f"{engine.path}/log"))
    return (
        _log_growth(engine) > max(engine.snapshot_bytes // 4, LOG_SMALL_BYTES)
        or segments > SEGMENTS_MANY
    )


def _log_growth(engine: Engine) -> int:
    frame_bytes = engine.committer.log_statistics().frame_bytes
    return frame_bytes - engine.snapshot_frame_bytes
