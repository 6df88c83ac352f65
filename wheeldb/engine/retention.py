"""Retention: finished ids are forgotten, the oldest first.

Of a finished task whose caller gave its id a small row is kept, so that the same
request made again is known to be done. It is forgotten when it is older than
``retention``, or when there are more than ``retention_max``: everything up to one LSN,
in one event::

    finished at LSN   100  140  200  210  300        retention_max = 2
                      ──── forgotten ───  kept       FORGOTTEN {THROUGH: 200, ROWS: 2}

It is done before a checkpoint, which then takes the rows out of the index; so there may
be more of them in between, as many as one checkpoint writes. An id that is older than
``retention`` is not seen any more (``Decider.remembered``), forgotten or not.
"""

from collections.abc import Sequence

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.checkpoint import FORGOTTEN_MAX
from wheeldb.engine.commit import Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.engine import Engine
from wheeldb.engine.fold import Fact
from wheeldb.engine.listing import finished_rows
from wheeldb.events import F, Kind

__all__ = ("forget_finished",)


def forget_finished(engine: Engine, now: Now) -> int:
    """Forget finished ids that are too old or too many; return how many.

    Raises:
        StorageFullError, StorePoisoned: As the log says; nothing is forgotten.
    """
    # No checkpoint may end meanwhile: only the hot table tells what was dropped.
    with engine.checkpointing:
        lsns = _oldest(engine, now)
        if not lsns:
            return 0
        count = engine.commit(
            lambda decider: _forget(decider, lsns),
            synced=False,
            need=Need.RESERVE,
            author="wheel",
        )
        engine.forgotten_count += count
        return count


def _oldest(engine: Engine, now: Now) -> list[int]:
    """Return the finishing LSNs of what is to be forgotten, in order."""
    bounds = engine.decider.bounds
    excess = engine.state.finished_count - bounds.retention_max
    lsns: list[int] = []
    for kept in finished_rows(engine):
        if len(lsns) >= excess and not bounds.is_old(kept, now):
            break
        lsns.append(kept.lsn)
        if len(lsns) == FORGOTTEN_MAX:
            break
    return lsns


def _forget(decider: Decider, lsns: Sequence[int]) -> int:
    state = decider.state
    if lsns[-1] <= state.forgotten_through:
        return 0
    # An id that was scheduled anew since they were listed counts no more.
    count = sum(1 for lsn in lsns if not state.has_dropped(lsn))
    fields: dict[int, object] = {
        F.THROUGH: lsns[-1],
        F.ROWS: state.finished_count - count,
    }
    decider.emit(Fact(Kind.FORGOTTEN, 1, fields))
    return count
