"""Closing a store: sync, checkpoint, snapshot if it is due, footer.

After a footer the next opening reads nothing but the log's end.  None of it is needed
for correctness: a store that is killed instead opens with everything acknowledged.  On
a poisoned store nothing is written any more.
"""

import contextlib

from wheeldb.care import take_snapshot, wants_snapshot
from wheeldb.engine.engine import Engine
from wheeldb.engine.upkeep import Upkeep
from wheeldb.errors import CorruptionError, StorageFullError, StorePoisoned
from wheeldb.events import F, pack_fields
from wheeldb.layout import Layout
from wheeldb.settings import Settings
from wheeldb.vouch import write_vouch

__all__ = ("close_engine",)


def close_engine(engine: Engine, upkeep: Upkeep | None, settings: Settings) -> None:
    """Write down what makes the next opening quick, and let go of every file."""
    try:
        if upkeep is not None and engine.committer.poison is None:
            _finish(engine, upkeep, settings)
    finally:
        engine.committer.close()
        with contextlib.suppress(CorruptionError):
            engine.state.index.close()


def _finish(engine: Engine, upkeep: Upkeep, settings: Settings) -> None:
    with contextlib.suppress(StorePoisoned, StorageFullError, CorruptionError):
        # On a full disk there is no footer: the next opening replays the log's tail.
        upkeep.anchor()
        checkpoint = engine.checkpoint()
        if wants_snapshot(engine):
            take_snapshot(engine, archive=settings.archive)
            checkpoint = engine.checkpoint()
        footer = {
            F.CHECKPOINT: checkpoint.lsn,
            F.DIGESTS: engine.digests.stored(),
        }
        lsn = engine.committer.write_footer(pack_fields(footer))
        # Only now: whoever reads it takes the footer for durable.
        write_vouch(
            engine.disk,
            Layout(path=engine.path),
            engine.clock,
            closed_lsn=lsn,
            proven_lsn=lsn,
            checkpoint_lsn=checkpoint.lsn,
            starts=0,
        )
