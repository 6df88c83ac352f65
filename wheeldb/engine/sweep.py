"""The sweep: does every waiting task below the horizons have its entry?

It walks the tasks by number, a stretch at a time, and looks for waiting ones that
belong into the window and are not in it.  What it finds is placed, counted and so comes
due after all; the counter must stay 0, for a timer that loses tasks is what the window
may never be.  The upkeep sweeps one stretch after each checkpoint, ``check`` all.
"""

from itertools import islice

from wheeldb.engine.engine import Engine
from wheeldb.engine.lanes import LANE_FIRST
from wheeldb.engine.listing import unfinished_rows
from wheeldb.engine.row import SCHEDULED, Row
from wheeldb.engine.window import entry_of

__all__ = ("STRETCH_COUNT", "sweep")

STRETCH_COUNT = 2_000


def sweep(
    engine: Engine, *, after: int = 0, count: int | None = None, mend: bool
) -> tuple[list[int], int]:
    """Look at ``count`` tasks above a number, all of them with ``None``.

    Args:
        engine: The engine.
        after: The number behind which to begin.
        count: How many to look at.
        mend: Whether to place what was lost.

    Returns:
        The numbers of lost tasks, and where to go on: 0 when the end was reached.
    """
    with engine.lock:
        entries = set(engine.window.entries())
    seen = 0
    suspects = []
    for row in islice(unfinished_rows(engine, after), count):
        after = row.number
        seen += 1
        if _belongs(engine, row, entries):
            suspects.append(row.number)
    lost = _still_lost(engine, suspects, mend=mend) if suspects else []
    engine.sweep_lost += len(lost)
    return lost, after if seen == count else 0


def _still_lost(engine: Engine, suspects: list[int], *, mend: bool) -> list[int]:
    """The rows were read after the entries: only what is still so is a loss."""
    lost = []
    with engine.lock:
        window = engine.window
        entries = set(window.entries())
        undos = list(engine.committer.undos())
        for number in suspects:
            row = engine.state.view(number, undos)
            if row is not None and _belongs(engine, row, entries):
                lost.append(number)
                if mend:
                    window.place(engine.state.lanes.of_row(row), row.due_ms, row.number)
    return lost


def _belongs(engine: Engine, row: Row, entries: set[int]) -> bool:
    """Return whether a row should have an entry and has none."""
    if row.state != SCHEDULED or row.paused:
        return False
    window = engine.window
    lane = engine.state.lanes.of_row(row)
    if lane < LANE_FIRST or lane in window.closed:
        return False
    horizon = window.horizons.get(lane)
    if horizon is not None and (max(row.due_ms, 0), row.number) >= horizon:
        return False
    return entry_of(row.due_ms, lane, row.number) not in entries
