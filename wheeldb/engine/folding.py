"""From index, snapshots and log to the state at the log's end.

::

    index, if it is any good ─┐
    or a new one, filled from ├─► state at LSN n ─► log behind n ─► state at its end
    the newest whole snapshot ┘

The log and the snapshots are the truth, the index is a cache of them.  It is given up,
and everything folded once more without it, if

- LMDB, a row's checksum or a child process calls it damaged,
- its rows are not those that the events make (the digests of a child that read it all),
- it belongs to another store, is older than the log reaches back, or is not the one
  that the log's footer speaks of,
- an event concerns a task that it should have and has not.

Damage of the log itself, or an end of the log below what index, snapshots and the last
close have proven to be durable, is refused with its place; nothing has been written
then.  This module writes nothing but a new index.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from wheeldb.clock.hlc import physical_ms
from wheeldb.disk import Disk
from wheeldb.engine.checkpoint import (
    DIGESTS_NAME,
    TABLES_NAME,
    changes_of,
    freeze,
    thaw,
)
from wheeldb.engine.decoding import decode_row
from wheeldb.engine.digests import Digests
from wheeldb.engine.fold import apply_record
from wheeldb.engine.lanes import LANE_LEASED
from wheeldb.engine.snapshots import load_snapshot
from wheeldb.engine.state import State
from wheeldb.engine.tables import pack_tables, unpack_tables
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.events import F, iterate_events, pack_fields, unpack_fields
from wheeldb.index import Index, MemoryIndex, create_index, open_index
from wheeldb.index.changes import Changes
from wheeldb.index.opening import set_aside
from wheeldb.index.snapshot import IndexStatistics, Snapshot
from wheeldb.index.vet import Verdict
from wheeldb.layout import Layout
from wheeldb.log.frame import Frame, lsn_bound
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import list_segments
from wheeldb.log.snapshot import list_snapshots, open_snapshot

__all__ = (
    "DATABASE_NAME",
    "FoldOptions",
    "Folded",
    "KnownSnapshot",
    "fold_frame",
    "fold_store",
    "new_index",
    "write_index",
)

DATABASE_NAME = "database"
# A reader beside the owner begins again when a file is retired under it.
READ_ATTEMPTS = 4
_LEASED_PIECE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """How to fold.

    Attributes:
        is_vouched: Whether the index may be opened without being read first.
        proven_lsn: What a clean close has proven to be durable.
        entries_max: How many changed entries may gather in memory.
        payload_bytes_max: And how many bytes of payload.
        verify_timeout_s: How long a child process may read the index.
        is_readonly: Change nothing.
    """

    is_vouched: bool
    proven_lsn: int
    entries_max: int
    payload_bytes_max: int
    verify_timeout_s: float
    is_readonly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSnapshot:
    """A snapshot whose header is whole."""

    file_name: str
    lsn: int
    hlc: int
    bound: int
    file_bytes: int


@dataclass(slots=True, kw_only=True)
class Folded:
    """The state behind the log's last whole frame, and how it was come by.

    Attributes:
        state: The state.
        digests: What its index holds.
        checkpoint_lsn: Up to where the index is.
        index_word: How the index was come by.
        is_rebuilt: Whether the index is a new one.
        is_verified: Whether it was read from end to end.
        scan: The log, read to its end.
        events: How many events were folded.
        snapshots: The snapshots, newest first.
    """

    state: State
    digests: Digests
    checkpoint_lsn: int
    index_word: str
    is_rebuilt: bool
    is_verified: bool
    scan: LogScan
    events: int
    snapshots: list[KnownSnapshot]

    @property
    def bound(self) -> int:
        """The highest LSN bound in log, snapshots and index."""
        return max(
            self.scan.end.bound_highest,
            lsn_bound(self.checkpoint_lsn),
            *(snapshot.bound for snapshot in self.snapshots),
        )

    @property
    def hlc(self) -> int:
        """The highest stamp in log, snapshots and index."""
        return max(
            self.scan.end.hlc_highest,
            self.state.last_hlc,
            *(snapshot.hlc for snapshot in self.snapshots),
        )

    def snapshot_age_ms(self, wall_ms: int) -> int | None:
        """Return how old the newest snapshot is."""
        if not self.snapshots:
            return None
        return max(0, wall_ms - physical_ms(self.snapshots[0].hlc))


class _Unfit(Exception):
    """The index is of no use; the text says why."""


def fold_store(
    disk: Disk, layout: Layout, database: bytes, options: FoldOptions
) -> Folded:
    """Bring the state to the log's last whole frame.

    Raises:
        CorruptionError: If there is damage that no crash explains.
        FormatError: If something was written by a newer release, or another store.
        OSError: As the disk says.
    """
    for _ in range(READ_ATTEMPTS - 1 if options.is_readonly else 0):
        with contextlib.suppress(FileNotFoundError):
            return _Folder(disk, layout, database, options).fold()
    return _Folder(disk, layout, database, options).fold()


class _Folder:
    """One attempt."""

    def __init__(
        self, disk: Disk, layout: Layout, database: bytes, options: FoldOptions
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._database = database
        self._options = options
        self._snapshots = _known_snapshots(
            disk, layout, database, sync_first=not options.is_readonly
        )

    def fold(self) -> Folded:
        index, verdict = self._open_index()
        word = verdict.reason
        if index is not None:
            try:
                return self._from_index(index, verdict)
            except _Unfit as unfit:
                word = str(unfit)
                index.close()
            except CorruptionError as error:
                index.close()
                if _is_below(error.path, self._layout.log):
                    raise
                word = error.reason
            except BaseException:
                index.close()
                raise
        return self._from_snapshots(word)

    # With the index.

    def _open_index(self) -> tuple[Index | None, Verdict]:
        verdicts: list[Verdict] = []
        index = open_index(
            self._layout.index,
            disk=self._disk,
            vouched=self._options.is_vouched,
            verify_timeout_s=self._options.verify_timeout_s,
            readonly=self._options.is_readonly,
            on_verdict=verdicts.append,
        )
        if index is not None and self._options.is_readonly:
            index = _PinnedIndex(index)
        return index, verdicts[-1]

    def _from_index(self, index: Index, verdict: Verdict) -> Folded:
        state = State(index)
        with index.snapshot() as view:
            tables, stored = view.meta(TABLES_NAME), view.meta(DIGESTS_NAME)
            if tables is None or stored is None:
                raise _Unfit("it was never filled")
            if view.meta(DATABASE_NAME) != self._database:
                raise _Unfit("it belongs to another store")
            unpack_tables(state, tables)
            digests = Digests(unpack_fields(stored)[F.DIGESTS])  # type: ignore[arg-type]
            _load_leased(state, view)
        if verdict.digests is not None:
            differences = digests.differences(dict(verdict.digests))
            if differences:
                raise _Unfit("; ".join(differences))
        segments = list_segments(self._disk, self._layout.log)
        if segments and state.last_lsn + 1 < segments[0].first_lsn:
            raise _Unfit(
                f"it ends at LSN {state.last_lsn}, the log begins at "
                f"{segments[0].first_lsn}"
            )
        folded = Folded(
            state=state,
            digests=digests,
            checkpoint_lsn=state.last_lsn,
            index_word=f"used: {verdict.reason}",
            is_rebuilt=False,
            is_verified=verdict.digests is not None,
            scan=self._scan(state.last_lsn),
            events=0,
            snapshots=self._snapshots,
        )
        before = folded.checkpoint_lsn, digests.stored()
        self._fold_log(folded)
        self._compare_with_footer(folded, *before)
        return folded

    def _compare_with_footer(
        self, folded: Folded, checkpoint_lsn: int, stored: dict[str, list[int]]
    ) -> None:
        footer = folded.scan.end.footer
        if footer is None:
            return
        fields = unpack_fields(footer.payload)
        if fields.get(F.CHECKPOINT) != checkpoint_lsn:
            raise _Unfit(
                f"it ends at LSN {checkpoint_lsn}, by the log's footer at "
                f"{fields.get(F.CHECKPOINT)}"
            )
        if Digests(fields.get(F.DIGESTS)).stored() != stored:  # type: ignore[arg-type]
            raise _Unfit("it does not hold what the log's footer says")

    # Without it.

    def _from_snapshots(self, word: str) -> Folded:
        if not self._options.is_readonly:
            # Damage of the log is to be found before anything is written.
            newest_lsn = self._snapshots[0].lsn if self._snapshots else 0
            self._scan(newest_lsn).finish()
            set_aside(self._layout.index, self._layout.aside, disk=self._disk)
        failure: CorruptionError | None = None
        for snapshot in self._snapshots:
            state, digests = State(self._new_index()), Digests()
            path = f"{self._layout.snapshots}/{snapshot.file_name}"
            try:
                load_snapshot(self._disk, path, state, digests, database=self._database)
            except CorruptionError as error:
                failure = failure or error
                state.index.close()
                continue
            except BaseException:
                state.index.close()
                raise
            word = f"rebuilt from snapshot {snapshot.file_name}: {word}"
            return self._finish(state, digests, word)
        segments = list_segments(self._disk, self._layout.log)
        if failure is not None and segments and segments[0].first_lsn > 1:
            raise failure
        word = f"rebuilt from the log: {word}"
        return self._finish(State(self._new_index()), Digests(), word)

    def _finish(self, state: State, digests: Digests, word: str) -> Folded:
        try:
            folded = Folded(
                state=state,
                digests=digests,
                checkpoint_lsn=state.last_lsn,
                index_word=word,
                is_rebuilt=True,
                is_verified=True,
                scan=self._scan(state.last_lsn),
                events=0,
                snapshots=self._snapshots,
            )
            self._fold_log(folded)
        except BaseException:
            state.index.close()
            raise
        return folded

    def _new_index(self) -> Index:
        if self._options.is_readonly:
            return MemoryIndex()
        return new_index(self._disk, self._layout.index, self._database)

    # The log.

    def _scan(self, from_lsn: int) -> LogScan:
        proven = [snapshot.lsn for snapshot in self._snapshots]
        return LogScan(
            self._disk,
            self._layout.log,
            database=self._database,
            from_lsn=from_lsn,
            proven_lsn=max(self._options.proven_lsn, *proven, 0),
            sync_first=not self._options.is_readonly,
        )

    def _fold_log(self, folded: Folded) -> None:
        state, options = folded.state, self._options
        for frame in folded.scan:
            header = frame.header
            is_full = state.active.is_full(
                options.entries_max, options.payload_bytes_max
            )
            # The index may take what is proven to be durable.
            if (
                is_full
                and not options.is_readonly
                and header.watermark >= state.last_lsn
            ):
                write_index(state, folded.digests)
                folded.checkpoint_lsn = state.last_lsn
            try:
                folded.events += fold_frame(
                    state, header.first_lsn, header.hlc, frame.payload
                )
                if state.last_lsn != header.last_lsn:
                    raise FormatError(
                        f"the events of the frame at LSN {header.first_lsn} end at "
                        f"{state.last_lsn}, by its header at {header.last_lsn}"
                    )
            except CorruptionError as error:
                if not folded.is_rebuilt:
                    raise  # the index may be to blame
                raise CorruptionError(
                    error.reason,
                    path=_path_of(folded.scan, frame),
                    offset=frame.offset,
                    lsn=error.lsn,
                ) from error


def new_index(disk: Disk, path: str, database: bytes) -> Index:
    """Return an empty index that knows whose it is.

    Raises:
        IndexDamaged: If LMDB refuses.
        OSError: As the disk says.
    """
    index = create_index(path, disk=disk)
    try:
        index.apply(Changes(meta={DATABASE_NAME: database}))
    except BaseException:
        index.close()
        raise
    return index


def write_index(state: State, digests: Digests) -> None:
    """Write the hot table into the index, while nobody else is there.

    Raises:
        IndexDamaged: If LMDB refuses.
    """
    anchor = state.anchor
    now = (0, 0) if anchor is None else (anchor.elapsed_ms, anchor.wall_ms)
    frozen = freeze(state, now)
    changes = changes_of(frozen, state.lanes, digests, [], state.index)
    changes.meta[TABLES_NAME] = pack_tables(state)
    changes.meta[DIGESTS_NAME] = pack_fields({F.DIGESTS: digests.stored()})
    state.index.apply(changes)
    thaw(state)


def fold_frame(state: State, first_lsn: int, hlc: int, payload: bytes) -> int:
    """Apply a frame's events; a jump of numbers in front of it is legal here.

    Raises:
        CorruptionError: If an event concerns a task that there is not.
        FormatError: If an event is of a newer release.
    """
    state.last_lsn = first_lsn - 1
    events = 0
    for _, record in iterate_events(payload):
        apply_record(state, record, state.last_lsn + 1, hlc + events)
        events += 1
    return events


def _known_snapshots(
    disk: Disk, layout: Layout, database: bytes, *, sync_first: bool
) -> list[KnownSnapshot]:
    """Return the snapshots with a whole header, newest first."""
    if disk.info(layout.snapshots) is None:
        return []
    known = []
    for name in list_snapshots(disk, layout.snapshots, sync_first=sync_first):
        path = f"{layout.snapshots}/{name.file_name}"
        try:
            with open_snapshot(disk, path, database=database) as reader:
                info = disk.info(path)
                known.append(
                    KnownSnapshot(
                        file_name=name.file_name,
                        lsn=reader.lsn,
                        hlc=reader.hlc,
                        bound=reader.bound,
                        file_bytes=info.size if info is not None else 0,
                    )
                )
        except CorruptionError:
            # One that can't be read proves nothing; `check` names it.
            continue
    return known


def _load_leased(state: State, view: Snapshot) -> None:
    after: tuple[int, int] | None = None
    while True:
        piece = view.due(LANE_LEASED, after, _LEASED_PIECE)
        for _, number, _ in piece:
            found = view.task(number)
            if found is None:
                raise _Unfit(f"the row of task {number} is missing")
            state.leased[number] = decode_row(number, *found)
        if len(piece) < _LEASED_PIECE:
            return
        after = piece[-1][:2]


def _path_of(scan: LogScan, frame: Frame) -> str | None:
    paths = [one.path for one in scan.segments if one.header.number == frame.segment]
    return paths[0] if paths else None


def _is_below(path: str | None, directory: str) -> bool:
    return path is not None and (path == directory or path.startswith(directory + "/"))


class _PinnedIndex:
    """An index as a reader sees it: through one view, that of its opening.

    The owner goes on writing beside it, and what the reader has folded on top would not
    fit to a newer view.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._stack = contextlib.ExitStack()
        # One in memory belongs to its disk, and to the owner that has it open.
        if not isinstance(index, MemoryIndex):
            self._stack.callback(index.close)
        self._view = self._stack.enter_context(index.snapshot())

    @property
    def path(self) -> str:
        return self._index.path

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._lend()

    @contextlib.contextmanager
    def _lend(self) -> Iterator[Snapshot]:
        yield self._view

    def apply(self, changes: Changes) -> None:
        raise AssertionError("a reader's index is never written")

    def statistics(self) -> IndexStatistics:
        return self._index.statistics()

    def keep_room(self, room_bytes: int = 0) -> bool:
        return True

    def close(self) -> None:
        self._stack.close()
