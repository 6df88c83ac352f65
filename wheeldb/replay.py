"""Replay: fold a store's log again, and report, or write what comes out to a new store.

    wheeldb.replay("gateway.wheeldb")                                # only reports
    wheeldb.replay("gateway.wheeldb", until=4_711, to="before")      # as of an LSN
    wheeldb.replay("broken.wheeldb", salvage=True, to="saved")       # past damage

It reads from the oldest snapshot on, so that the log vouches for what the newer ones
say; with ``archive`` kept, from the first event on.  Without ``salvage`` the first
damage is refused with its place.  With it the newest whole snapshot is the base, every
whole frame behind it is taken, and the report says precisely what is missing: files,
bytes, log positions, and events about tasks that are lost.

The old directory is only read, never written, and its lock is not taken: it may be
open.  The index plays no part; a replay is the proof that it needs to play none.  What
is folded lies in an index of its own, beside the new store or, for a report, in TMPDIR
or ``/var/tmp`` (``scratch.py``): memory does not grow with the store.  Only a salvage
has one whole segment of the log in memory at a time.
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wheeldb.backup import place_text
from wheeldb.care import STATE_NAMES
from wheeldb.clock import Clock
from wheeldb.clock.hlc import physical_ms
from wheeldb.clock.system import SystemClock
from wheeldb.disk import Disk, OsDisk
from wheeldb.engine.digests import Digests
from wheeldb.engine.fold import apply_record
from wheeldb.engine.folding import write_index
from wheeldb.engine.moment import number_text
from wheeldb.engine.snapshots import (
    load_snapshot,
    load_what_is_left,
    snapshot_payloads,
)
from wheeldb.engine.state import State
from wheeldb.engine.tables import pack_tables
from wheeldb.entropy import system_entropy
from wheeldb.errors import Compacted, CorruptionError, FormatError
from wheeldb.events import F, Kind, iterate_events
from wheeldb.layout import Layout, read_format
from wheeldb.log.frame import Frame, lsn_bound
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import Entropy, list_segments
from wheeldb.log.snapshot import (
    SnapshotName,
    list_snapshots,
    open_snapshot,
    verify_snapshot,
    write_snapshot,
)
from wheeldb.log.wreck import Wreck
from wheeldb.planting import Origin, Planting
from wheeldb.salvage import apply_what_fits
from wheeldb.scratch import scratch_index, temporary_directory
from wheeldb.vouch import read_vouch, require_last_segment

__all__ = ("ReplayReport", "replay")

# Entries of the hot table that go into the index at once.
ENTRIES_MAX = 25_000
PAYLOAD_BYTES_MAX = 8 * 2**20

# How often a replay begins anew because the owner has removed what it was reading.
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay read and left out.

    Attributes:
        segments: Files of the log, archived ones included.
        events: Events folded.
        last_lsn: The last log position of the state.
        tasks: Unfinished tasks by state.
        torn_bytes: An incomplete last write, which no opening would read either.
        dropped: What is missing and why, each with file, bytes and log positions.
        to: The new store, ``None`` if none was written.
    """

    segments: int
    events: int
    last_lsn: int
    tasks: Mapping[str, int]
    torn_bytes: int
    dropped: tuple[str, ...]
    to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Until:
    """Where to stop: behind an LSN and a wall time."""

    lsn: int
    wall_ms: int

    @classmethod
    def of(cls, until: int | datetime | None) -> "_Until":
        if until is None:
            return cls(lsn=2**53, wall_ms=2**48)
        if isinstance(until, datetime):
            if until.tzinfo is None:
                raise ValueError("until is a naive datetime; give it a time zone")
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            return cls(lsn=2**53, wall_ms=(until - epoch) // timedelta(milliseconds=1))
        if type(until) is not int:
            raise TypeError(
                f"until is a {type(until).__name__}, not an LSN or a datetime"
            )
        if until < 0:
            raise ValueError(f"until is {number_text(until)}; the log begins at 0")
        return cls(lsn=until, wall_ms=2**48)

    def has_passed(self, lsn: int, hlc: int) -> bool:
        return lsn > self.lsn or physical_ms(hlc) > self.wall_ms


def replay(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str] | None = None,
    until: int | datetime | None = None,
    salvage: bool = False,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> ReplayReport:
    """Fold a store's log again.

    Args:
        path: The store; it is only read.
        to: A new directory for a store of what comes out; ``None`` only reports.
        until: Stop behind this log position or instant.
        salvage: Go on past damage.
        disk: The disk seam, for tests.
        clock: The clock seam, for tests.
        entropy: The source of random bytes, for tests.

    Raises:
        TypeError, ValueError: If ``until`` is neither an LSN nor an aware datetime.
        FileNotFoundError: If there is nothing at ``path``.
        FileExistsError: If there is something at ``to``.
        ValueError: If ``to`` is not UTF-8, or lies inside a store or a backup.
        FormatError: If it is no store, or one of a newer release.
        CorruptionError: If it is damaged, and ``salvage`` was not asked for.
        Compacted: If the log does not reach back to ``until``.
        OSError: As the disk says; nothing stays at ``to``.
    """
    stop = _Until.of(until)
    disk = disk or OsDisk()
    layout = Layout(path=place_text(disk, path))
    if disk.info(layout.path) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no store", layout.path)
    for _ in range(ATTEMPTS_MAX - 1):
        oldest = _oldest(disk, layout)
        try:
            return _replay(disk, layout, to, stop, salvage, clock, entropy)
        except (CorruptionError, FileNotFoundError):
            # The owner may have taken a snapshot meanwhile, and removed what that made
            # superfluous.
            if _oldest(disk, layout) == oldest:
                raise
    return _replay(disk, layout, to, stop, salvage, clock, entropy)


def _oldest(disk: Disk, layout: Layout) -> tuple[str | None, str | None]:
    """Return the oldest snapshot and segment: what is removed first."""
    try:
        snapshots = list_snapshots(disk, layout.snapshots)
        segments = list_segments(disk, layout.log)
    except FileNotFoundError:
        return None, None
    return (
        snapshots[-1].file_name if snapshots else None,
        segments[0].file_name if segments else None,
    )


def _replay(
    disk: Disk,
    layout: Layout,
    to: str | os.PathLike[str] | None,
    stop: _Until,
    salvage: bool,
    clock: Clock | None,
    entropy: Entropy | None,
) -> ReplayReport:
    database = _database(disk, layout, salvage=salvage)
    if to is None:
        with scratch_index(disk, temporary_directory(disk)) as index:
            work = _Replay(disk, layout, database, stop, State(index))
            work.fold(salvage=salvage)
        return work.report(None)
    with Planting(disk, place_text(disk, to)) as planting:
        with scratch_index(disk, planting.layout.path) as index:
            work = _Replay(disk, layout, database, stop, State(index))
            work.fold(salvage=salvage)
            origin = work.write(planting.layout.snapshots, entropy or system_entropy)
        planting.begin_log(origin, clock or SystemClock(), entropy or system_entropy)
        planting.finish(origin.database)
    return work.report(planting.dest)


def _database(disk: Disk, layout: Layout, *, salvage: bool) -> bytes | None:
    """Return the store's UUID; a wreck may have to tell it itself."""
    try:
        database = read_format(disk, layout)
    except CorruptionError:
        if not salvage:
            raise
        return None
    if database is None and not salvage:
        raise FormatError(
            f"{layout.path} is not a wheeldb store; if it has lost its FORMAT, "
            "--salvage reads it all the same"
        )
    return database


class _Replay:
    """One replay into a state whose index is empty."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        database: bytes | None,
        stop: _Until,
        state: State,
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._database = database
        self._stop = stop
        self._state = state
        self._digests = Digests()
        self._dropped: list[str] = []
        self._segments = 0
        self._events = 0
        self._torn_bytes = 0
        self._bound = 0
        self._vouch = vouch = read_vouch(disk, layout)
        self._proven_lsn = (
            max(vouch.proven_lsn, vouch.closed_lsn or 0) if vouch is not None else 0
        )

    def report(self, to: str | None) -> ReplayReport:
        tasks: dict[str, int] = {}
        for (_, state), count in self._state.pending.items():
            if count:
                name = STATE_NAMES[state]
                tasks[name] = tasks.get(name, 0) + count
        return ReplayReport(
            segments=self._segments,
            events=self._events,
            last_lsn=self._state.last_lsn,
            tasks=tasks,
            torn_bytes=self._torn_bytes,
            dropped=tuple(self._dropped),
            to=to,
        )

    def fold(self, *, salvage: bool) -> None:
        if salvage:
            self._salvage()
        else:
            self._fold_whole()

    # A whole store.

    def _fold_whole(self) -> None:
        layout, lsns = self._layout, self._snapshot_lsns()
        archive = layout.archive if self._disk.info(layout.archive) else None
        first_lsn = self._first_lsn()
        if first_lsn > 1 and lsns:
            self._load_oldest(lsns, first_lsn)
        scan = LogScan(
            self._disk,
            layout.log,
            database=self._database,
            from_lsn=self._state.last_lsn,
            proven_lsn=max(self._proven_lsn, *lsns, 0),
            archive=archive,
        )
        self._segments = len(scan.segments)
        for frame in scan:
            if not self._fold_frame(frame):
                self._pass_over_the_rest()
                return
        require_last_segment(self._disk, layout, self._vouch)
        self._torn_bytes = scan.end.torn_bytes
        self._bound = scan.end.bound_highest

    def _load_oldest(self, lsns: list[int], first_lsn: int) -> None:
        """Load the oldest whole snapshot from which on the log is there."""
        damage: CorruptionError | None = None
        for lsn in reversed(lsns):
            if lsn + 1 < first_lsn:
                continue
            try:
                if self._load(lsn):
                    return
            except CorruptionError as error:
                damage = damage or error
                continue
            if damage is None:
                raise Compacted(lsn)
            break
        if damage is not None:
            raise damage

    def _load(self, lsn: int) -> bool:
        """Load a snapshot; return False if it lies behind the end.

        Raises:
            CorruptionError: If it is damaged; nothing was loaded.
        """
        path = self._snapshot_path(lsn)
        info = verify_snapshot(self._disk, path, database=self._database)
        if self._stop.has_passed(info.lsn, info.hlc):
            return False
        load_snapshot(
            self._disk, path, self._state, self._digests, database=info.database
        )
        return True

    def _snapshot_path(self, lsn: int) -> str:
        return f"{self._layout.snapshots}/{SnapshotName(lsn).file_name}"

    def _snapshot_lsns(self) -> list[int]:
        """Return the snapshots' LSNs, newest first."""
        if self._disk.info(self._layout.snapshots) is None:
            return []
        return [name.lsn for name in list_snapshots(self._disk, self._layout.snapshots)]

    def _first_lsn(self) -> int:
        """Return the first LSN that log and archive have, 1 if there are none."""
        return min(
            (
                name.first_lsn
                for directory in (self._layout.log, self._layout.archive)
                if self._disk.info(directory) is not None
                for name in list_segments(self._disk, directory)
            ),
            default=1,
        )

    def _fold_frame(self, frame: Frame) -> bool:
        """Apply a frame's events; return False at the end of what is wanted."""
        state, header = self._state, frame.header
        self._make_room()
        lsn = header.first_lsn
        for position, (_, record) in enumerate(iterate_events(frame.payload)):
            hlc = header.hlc + position
            if self._stop.has_passed(lsn + record.lsn_count - 1, hlc):
                return False
            apply_record(state, record, lsn, hlc)
            lsn = state.last_lsn + 1
            self._events += 1
        return True

    def _pass_over_the_rest(self) -> None:
        """Take note of the numbers behind the end: they were handed out, too.

        What is damaged there, or of a newer format, does not matter.
        """
        with contextlib.suppress(FormatError):
            rest = Wreck(
                self._disk,
                [self._layout.log],
                database=self._database,
                from_lsn=self._state.last_lsn,
                proven_lsn=0,
            )
            for frame in rest:
                self._bound = max(self._bound, frame.header.bound)

    def _make_room(self) -> None:
        """Let the index take what has gathered in memory."""
        if self._state.active.is_full(ENTRIES_MAX, PAYLOAD_BYTES_MAX):
            write_index(self._state, self._digests)

    # A wreck.

    def _salvage(self) -> None:
        lsns = self._snapshot_lsns()
        self._load_best(lsns)
        wreck = Wreck(
            self._disk,
            [self._layout.log, self._layout.archive],
            database=self._database,
            from_lsn=self._state.last_lsn,
            proven_lsn=max(self._proven_lsn, *lsns, 0),
        )
        self._database = self._database or wreck.database
        self._segments = wreck.segments
        is_complete = True
        for frame in wreck:
            if not self._salvage_frame(wreck, frame):
                is_complete = False
                self._pass_over_the_rest()
                break
        self._dropped += wreck.dropped
        if is_complete:
            try:
                require_last_segment(self._disk, self._layout, self._vouch)
            except CorruptionError as error:
                self._dropped.append(f"{error.path}: {error.reason}")
        self._torn_bytes = wreck.torn_bytes
        if is_complete and not self._events and not lsns and not wreck.segments:
            self._dropped.append(
                f"{self._layout.path}: there is neither log nor snapshot"
            )
        if self._state.anchor is None:
            self._dropped.append("no clock anchor is left: delays count from zero")

    def _load_best(self, lsns: list[int]) -> None:
        """Load the newest whole snapshot, or what is left of the newest one."""
        damaged = []
        for lsn in lsns:
            try:
                if self._load(lsn):
                    self._database = self._database or self._database_of(lsn)
                    return
            except CorruptionError as error:
                damaged.append(lsn)
                self._dropped.append(
                    f"{self._snapshot_path(lsn)}: bytes from {error.offset or 0} on: "
                    f"{error.reason}"
                )
        if self._first_lsn() == 1:
            return
        for lsn in damaged:
            with contextlib.suppress(CorruptionError):
                load_what_is_left(
                    self._disk,
                    self._snapshot_path(lsn),
                    self._state,
                    self._digests,
                    database=self._database,
                )
                self._database = self._database or self._database_of(lsn)
                return

    def _database_of(self, lsn: int) -> bytes:
        path = self._snapshot_path(lsn)
        with open_snapshot(self._disk, path, database=None) as reader:
            return reader.database

    def _salvage_frame(self, wreck: Wreck, frame: Frame) -> bool:
        """Apply what fits of a frame; return False at the end of what is wanted."""
        header = frame.header
        self._make_room()
        self._bound = max(self._bound, header.bound)
        lsn = header.first_lsn
        for position, (_, record) in enumerate(iterate_events(frame.payload)):
            hlc = header.hlc + position
            if self._stop.has_passed(lsn + record.lsn_count - 1, hlc):
                return False
            if record.kind == Kind.OPENED:
                fields: dict[int, Any] = record.fields
                wreck.note_hole(frame, fields[F.AFTER])
            where = f"{wreck.path_of(frame)}: byte {frame.offset}"
            self._dropped += [
                f"{where}: {text}"
                for text in apply_what_fits(self._state, record, lsn, hlc)
            ]
            lsn = self._state.last_lsn + 1
            self._events += 1
        return True

    # Writing it down.

    def write(self, directory: str, entropy: Entropy) -> Origin:
        """Write the state as a snapshot; return what a new store goes on from."""
        state = self._state
        write_index(state, self._digests)
        database = self._database or entropy.bytes(16)
        bound = max(self._bound, lsn_bound(state.last_lsn))
        with state.index.snapshot() as view:
            write_snapshot(
                self._disk,
                directory,
                database=database,
                incarnation=state.incarnation,
                lsn=state.last_lsn,
                hlc=state.last_hlc,
                bound=bound,
                entropy=entropy,
                payloads=snapshot_payloads(view, pack_tables(state), self._digests),
            )
        return Origin(
            database=database,
            incarnation=state.incarnation,
            anchor=state.anchor,
            lsn=state.last_lsn,
            bound=bound,
            hlc=state.last_hlc,
            reason="replayed",
        )
