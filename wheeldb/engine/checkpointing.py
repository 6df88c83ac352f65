"""Writing a checkpoint while the store runs: what ``checkpoint.py`` does, under locks.

::

    with turn and pen    settle and sync the log, swap the hot table out: ``Freezing``
    with nobody's lock   write the frozen table into the index; intake goes on
    with the lock        drop it: the index answers for it now
    afterwards           CHECKPOINTED in the log vouches for what the index holds

A checkpoint that did not come to its end (no room, an interrupt) leaves its
``Freezing`` with the engine, and the next one goes on with that.
"""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wheeldb.engine.checkpoint import (
    DIGESTS_NAME,
    TABLES_NAME,
    changes_of,
    forgotten_rows,
    freeze,
    thaw,
)
from wheeldb.engine.tables import pack_tables
from wheeldb.events import F, Kind, pack_fields

if TYPE_CHECKING:
    from wheeldb.engine.digests import Digests
    from wheeldb.engine.engine import Engine
    from wheeldb.engine.hot import HotTable

__all__ = ("Checkpoint", "Freezing", "write_checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint came to: its LSN, what it wrote, what the index must hold."""

    lsn: int
    hlc: int
    rows: int
    tables: bytes
    digests: "Digests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freezing:
    """What was true when the hot table was swapped out."""

    lsn: int
    hlc: int
    tables: bytes
    frame_bytes: int


def write_checkpoint(engine: "Engine") -> Checkpoint:
    """Write the hot table into the index; return once that is durable.

    Raises:
        StorePoisoned: If the log has failed: nothing unproven goes into the index.
        IndexDamaged: If LMDB refuses.
        OSError: If there is no room.
    """
    state = engine.state
    with engine.checkpointing:
        freezing, frozen = engine.freezing, state.frozen
        if freezing is None or frozen is None:
            freezing, frozen = _freeze(engine)
        digests = engine.digests.copy()
        forgotten = forgotten_rows(state.index, frozen.forgotten_through)
        changes = changes_of(frozen, state.lanes, digests, forgotten, state.index)
        changes.meta[TABLES_NAME] = freezing.tables
        changes.meta[DIGESTS_NAME] = pack_fields({F.DIGESTS: digests.stored()})
        state.index.apply(changes)
        with engine.lock:
            thaw(state)
            engine.digests = digests
            engine.checkpoint_lsn = freezing.lsn
            engine.freezing = None
        engine.checkpoints += 1
        engine.checkpoint_frame_bytes = freezing.frame_bytes
        if engine.committer.room.is_kept:
            # If there is none, the next checkpoint tries again.
            with contextlib.suppress(OSError):
                state.index.keep_room()
    engine.note(
        Kind.CHECKPOINTED,
        {F.CHECKPOINT: freezing.lsn, F.DIGESTS: digests.stored()},
        synced=False,
    )
    return Checkpoint(
        lsn=freezing.lsn,
        hlc=freezing.hlc,
        rows=len(frozen),
        tables=freezing.tables,
        digests=digests,
    )


def _freeze(engine: "Engine") -> "tuple[Freezing, HotTable]":
    committer, state = engine.committer, engine.state
    with committer.turn, committer.pen:
        committer.settle_all()
        with engine.lock:
            now = engine.now()
            freezing = engine.freezing = Freezing(
                lsn=state.last_lsn,
                hlc=state.last_hlc,
                tables=pack_tables(state),
                frame_bytes=committer.writer.position.frame_bytes,
            )
            if engine.keeper.is_owed:
                engine.unpaid.update(state.active.rows)
            return freezing, freeze(state, (now.elapsed_ms, now.wall_ms))
