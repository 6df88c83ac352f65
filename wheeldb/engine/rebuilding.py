"""A damaged index, replaced while the store is open.

The index is a cache, so damage that is met in it while the store runs is no reason to
stop: everything is folded once more from the newest whole snapshot and the log into a
new index beside, which then takes the place of the bad one::

    IndexDamaged ─► nothing is decided meanwhile (turn and pen are held)
                    sync the log ─► snapshot + log ─► index beside
                    the same tasks as in memory?  swap, say so, try again

What waits in memory keeps its place; due times that pass meanwhile are served late by
the time of the rebuild, about a second for 100,000 tasks.  The bad file is kept in
``aside/``.  If the snapshots or the log are damaged as well, that is refused, and the
store has to be closed and replayed.

If the disk refuses the new index, the bad one stays: what it still gives is checked row
by row.  What is in memory goes on, new tasks are refused, no checkpoint is written into
the bad one, and calls that need an index try again, for a tenth of the time at most::

    OSError, IndexDamaged ─► beside is removed; StorageFullError or IndexUnavailable
    a new task, a read that meets damage, a checkpoint ─► tried again ─► all as before
"""

import logging

from wheeldb.disk import Disk
from wheeldb.engine.digests import Digests
from wheeldb.engine.engine import Engine
from wheeldb.engine.folding import DATABASE_NAME, fold_frame, write_index
from wheeldb.engine.snapshots import load_snapshot
from wheeldb.engine.state import State
from wheeldb.errors import CorruptionError
from wheeldb.index import Index, LmdbIndex, MemoryIndex, set_aside
from wheeldb.index.changes import Changes
from wheeldb.index.refusal import refusal_of
from wheeldb.index.snapshot import IndexDamaged
from wheeldb.layout import Layout
from wheeldb.log.reader import LogScan
from wheeldb.log.snapshot import list_snapshots

__all__ = ("rebuild_index",)

_logger = logging.getLogger("wheeldb")

# A rebuild that failed is not tried again for so many times as long as it took.
REST_FACTOR = 10


def rebuild_index(engine: Engine, bad: Index, damage: IndexDamaged) -> None:
    """Replace a damaged index, unless somebody else has done so by now.

    Raises:
        CorruptionError: If snapshots and log do not make the same tasks.
        StorePoisoned: If the log has failed.
        StorageFullError: If there is no room for a new index.
        IndexUnavailable: If the disk refuses a new index otherwise.
    """
    with engine.checkpointing:
        if engine.state.index is not bad:
            return
        begun_ms, known = engine.reading().boottime_ms, engine.index_damage
        if known is not None and begun_ms < engine.index_retry_ms:
            raise refusal_of(known) from damage
        try:
            _replace(engine, bad)
        except (IndexDamaged, OSError) as error:
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                found = IndexDamaged(reason, path=bad.path, code=error.errno)
            else:
                found = error
            _go_on_without(engine, found, begun_ms)
            raise refusal_of(found) from error
    if known is not None:
        # What was in the index alone comes due now.
        engine.alarm()
    _logger.warning(
        "the index of %s was damaged and has been rebuilt from snapshot and log: %s",
        engine.path,
        damage.reason,
    )


def _replace(engine: Engine, bad: Index) -> None:
    committer, layout = engine.committer, Layout(path=engine.path)
    with committer.turn, committer.pen:
        committer.settle_all()
        beside, state, digests = _fold_beside(engine, layout)
        try:
            _require_same(engine.state, state)
            with engine.lock:
                # The bad one is open until the new one is: if that fails, it stays.
                index = _swap_in(engine.disk, layout, beside)
                engine.adopt(index, digests)
                engine.decider.reserve = committer.room.require
                if bad is not index:
                    bad.close()
        except BaseException:
            _discard(beside)
            raise


def _go_on_without(engine: Engine, damage: IndexDamaged, begun_ms: int) -> None:
    """Refuse new tasks, and leave the index alone, until it is rebuilt."""
    # What was raised holds its traceback, and with it all that was folded in vain.
    known = _anew(damage)

    def refuse(count: int) -> None:
        # Whoever meets this tries to rebuild it, and then asks again. One that is
        # raised twice would keep the frames, and so the payloads, of every caller.
        raise _anew(known)

    is_first = engine.index_damage is None
    with engine.lock:
        ended_ms = engine.reading().boottime_ms
        engine.index_damage = known
        engine.index_retry_ms = ended_ms + REST_FACTOR * (ended_ms - begun_ms)
        engine.decider.reserve = refuse
    if is_first:
        _logger.error(
            "the index of %s can't be rebuilt (%s); no new tasks are taken until it is",
            engine.path,
            damage.reason,
        )
        engine.alarm()


def _anew(damage: IndexDamaged) -> IndexDamaged:
    """Return the same damage, never raised yet."""
    return IndexDamaged(damage.reason, path=damage.path, code=damage.code)


def _discard(beside: Index) -> None:
    if isinstance(beside, LmdbIndex):
        beside.discard()
    else:
        beside.close()


def _fold_beside(engine: Engine, layout: Layout) -> tuple[Index, State, Digests]:
    """Return a new index with everything that is durable, and its state."""
    disk, database = engine.disk, engine.database
    failure: CorruptionError | None = None
    names = [*list_snapshots(disk, layout.snapshots), None]
    for name in names:
        index = _begin_beside(disk, layout, database)
        state, digests = State(index), Digests()
        try:
            if name is not None:
                path = f"{layout.snapshots}/{name.file_name}"
                load_snapshot(disk, path, state, digests, database=database)
            _fold_log(engine, layout, state, digests)
        except CorruptionError as error:
            # An older snapshot, or the log alone, may still do.
            failure = failure or error
            _discard(index)
            continue
        except BaseException:
            _discard(index)
            raise
        return index, state, digests
    assert failure is not None, "the log alone was tried"
    raise failure


def _begin_beside(disk: Disk, layout: Layout, database: bytes) -> Index:
    index: Index
    if disk.index_factory is None:
        index = LmdbIndex.build(layout.index, disk=disk)
    else:
        index = MemoryIndex()
    try:
        index.apply(Changes(meta={DATABASE_NAME: database}))
    except BaseException:
        _discard(index)
        raise
    return index


def _fold_log(engine: Engine, layout: Layout, state: State, digests: Digests) -> None:
    limits = engine.thresholds
    scan = LogScan(
        engine.disk, layout.log, database=engine.database, from_lsn=state.last_lsn
    )
    for frame in scan:
        if state.active.is_full(limits.entries, limits.payload_bytes):
            write_index(state, digests)
        header = frame.header
        fold_frame(state, header.first_lsn, header.hlc, frame.payload)
    write_index(state, digests)


def _require_same(known: State, folded: State) -> None:
    """Raise unless log and memory agree on what there is."""
    differences = [
        f"{name} is {getattr(folded, name)!r} by the log and {value!r} in memory"
        for name, value in (
            ("last_lsn", known.last_lsn),
            ("pending_count", known.pending_count),
            ("payload_bytes", known.payload_bytes),
        )
        if getattr(folded, name) != value
    ]
    if folded.lanes.keys != known.lanes.keys:
        differences.append("the lanes differ")
    if differences:
        raise CorruptionError(
            "the index is damaged, and the log does not make what is in memory: "
            + "; ".join(differences)
        )


def _swap_in(disk: Disk, layout: Layout, beside: Index) -> Index:
    if isinstance(beside, LmdbIndex):
        set_aside(layout.index, layout.aside, disk=disk)
        return beside.swap_in()
    # A simulated disk keeps its index by path: hand over what was folded.
    assert disk.index_factory is not None, "an index in memory needs a factory"
    placed = disk.index_factory(layout.index)
    assert isinstance(placed, MemoryIndex), f"index_factory made a {type(placed)}"
    assert isinstance(beside, MemoryIndex), f"built was a {type(beside)}"
    placed.take_over(beside)
    return placed
