"""Closing a store: leases back, sync, checkpoint, snapshot if it is due, footer.

First what was written is synced: who has closed a store may pull the plug.  After a
footer the next opening reads nothing but the log's end.  The rest is not needed for
correctness: a store that is killed instead opens with everything acknowledged.  On a
poisoned store nothing is written any more.
"""

import contextlib

from wheeldb.care import take_snapshot, wants_last_snapshot
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.engine import Engine
from wheeldb.engine.moment import span_ms
from wheeldb.engine.upkeep import Upkeep
from wheeldb.errors import CorruptionError, IndexUnavailable, StorageFullError
from wheeldb.events import F, pack_fields
from wheeldb.layout import Layout
from wheeldb.settings import Settings
from wheeldb.vouch import write_vouch

__all__ = ("close_engine",)


def close_engine(engine: Engine, upkeep: Upkeep | None, settings: Settings) -> None:
    """Sync, write down what makes the next opening quick, and let go of every file.

    Raises:
        CommitUnknown, StorePoisoned: The log has failed just now.
    """
    try:
        if upkeep is not None and engine.committer.poison is None:
            engine.committer.sync()
            _finish(engine, upkeep, settings)
    finally:
        engine.committer.close()
        with contextlib.suppress(CorruptionError):
            engine.state.index.close()


def _finish(engine: Engine, upkeep: Upkeep, settings: Settings) -> None:
    with contextlib.suppress(StorageFullError, IndexUnavailable, CorruptionError):
        # On a full disk there is no footer: the next opening replays the log's tail.
        if engine.state.leased:
            engine.commit(
                attempts.give_back, synced=True, need=Need.RESERVE, author="wheel"
            )
        upkeep.anchor()
        checkpoint = engine.checkpoint()
        budget_s = span_ms(settings.shutdown_budget, "shutdown_budget") / 1000
        if wants_last_snapshot(engine, budget_s):
            # Without a new one, the ones before and the log do as well.
            with contextlib.suppress(OSError):
                take_snapshot(engine, archive=settings.archive)
            checkpoint = engine.checkpoint()
        footer = {
            F.CHECKPOINT: checkpoint.lsn,
            F.DIGESTS: engine.digests.stored(),
        }
        lsn = engine.committer.write_footer(pack_fields(footer))
        # Only now: whoever reads it takes the footer for durable.  Without it the next
        # opening reads the index in a child process first.
        with contextlib.suppress(OSError):
            write_vouch(
                engine.disk,
                Layout(path=engine.path),
                engine.clock,
                closed_lsn=lsn,
                proven_lsn=lsn,
                checkpoint_lsn=checkpoint.lsn,
                starts=0,
                segment=engine.committer.writer.position.header.number,
            )
