"""The sweep: does every waiting task below the horizons have its entry?

It walks the tasks by number, a step at a time, and looks for waiting ones that belong
into the window and are not in it.  What it finds it places, and counts: the counter
must stay 0, for a timer that loses tasks is what the window may never be.
"""

from wheeldb.engine.engine import Engine
from wheeldb.engine.lanes import LANE_FIRST
from wheeldb.engine.listing import unfinished_rows
from wheeldb.engine.row import SCHEDULED
from wheeldb.engine.window import entry_of

__all__ = ("sweep",)


def sweep(engine: Engine, *, mend: bool) -> list[int]:
    """Return the numbers of waiting tasks that the window has lost."""
    window, state = engine.window, engine.state
    suspects: list[int] = []
    with engine.lock:
        entries = set(window.entries())
    for row in unfinished_rows(engine, 0):
        if row.state != SCHEDULED or row.paused:
            continue
        lane = state.lanes.of_row(row)
        horizon = window.horizons.get(lane)
        if lane < LANE_FIRST or lane in window.closed:
            continue
        if horizon is not None and (row.due_ms, row.number) >= horizon:
            continue
        if entry_of(row.due_ms, lane, row.number) not in entries:
            suspects.append(row.number)
    lost = []
    # The rows were read after the entries: only what is still so is a loss.
    with engine.lock:
        entries = set(window.entries()) if suspects else entries
        undos = list(engine.committer.undos())
        for number in suspects:
            row = state.view(number, undos)
            if row is None or row.state != SCHEDULED or row.paused:
                continue
            lane = state.lanes.of_row(row)
            horizon = window.horizons.get(lane)
            if lane in window.closed or (
                horizon is not None and (row.due_ms, row.number) >= horizon
            ):
                continue
            if entry_of(row.due_ms, lane, number) not in entries:
                lost.append(number)
                if mend:
                    window.place(lane, row.due_ms, number)
    engine.sweep_lost += len(lost)
    return lost
