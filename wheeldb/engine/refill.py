"""Loading a lane's next slice from the index into the window.

Three steps, so that the state's lock is held while nothing is read from the disk::

    begin   under the lock: choose a lane, open a view of the index, and in the same
            moment note the hot tables that lie over it
    scan    without it: read the index from the horizon on
    finish  under it: lay the hot tables over, place the slice, move the horizon

Due times are rounded down in the index's keys, far ones to ``COARSE_MS``, near ones of
tasks in blocks to ``NEAR_MS``; the exact time stands in the value.  Of the widths only
this is relied on: a due field is no higher than the exact time, and no lower than the
multiple of ``COARSE_MS`` below it.  So a slice is not what stands first: with the
horizon at 5,000, a width of 1,000 and room for two ::

    key    5000   5000   5000   6000            the scan reads until no key
    exact  5900   5100   5400   6700            can be less than what it keeps
           ────   keep   keep
    new horizon: (5900, its number)

A due field that has more than fits is read again for each slice of it; nothing has to
be written for that.

Assumes, for ``finish``: every change since ``begin`` is in the hot tables of then or of
now.  It is not if two checkpoints began meanwhile; then the slice is dropped and the
next one tried.
"""

from contextlib import AbstractContextManager

from wheeldb.engine.columns import Columns
from wheeldb.engine.hot import HotTable
from wheeldb.engine.row import SCHEDULED
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo
from wheeldb.engine.window import Horizon, Window
from wheeldb.index.keys import COARSE_MS
from wheeldb.index.snapshot import Snapshot

__all__ = ("Slice", "begin", "wants_more")

SLICE_COUNT = 2_000
_PIECE_COUNT = 1_000
_NUMBER_END = 2**53


def wants_more(window: Window, now: tuple[int, int]) -> int | None:
    """Return the lane that has to be loaded next, ``None`` if none has.

    - A lane whose horizon has come, and that has few ready entries left, comes first.
    - Otherwise, while the window is less than half full, the lane whose horizon is the
      nearest.
    """
    best: tuple[int, int] | None = None
    has_room = len(window) < window.entries_max // 2
    for lane, horizon in window.horizons.items():
        if lane in window.closed:
            continue
        ahead_ms = horizon[0] - now[window.lanes.key(lane)[0]]
        if ahead_ms <= 0:
            if not window.runs_low(lane):
                continue
        elif not has_room:
            continue
        if best is None or ahead_ms < best[0]:
            best = (ahead_ms, lane)
    return None if best is None else best[1]


class Slice:
    """One lane's next entries, on their way from the index."""

    def __init__(
        self,
        state: State,
        window: Window,
        lane: int,
        capacity: int,
        view: AbstractContextManager[Snapshot],
    ) -> None:
        self._state = state
        self._window = window
        self._lane = lane
        self._capacity = capacity
        self._horizon: Horizon = window.horizons[lane]
        self._view = view
        self._snapshot = view.__enter__()
        self._tables: list[HotTable] = [
            table for table in (state.active, state.frozen) if table is not None
        ]
        self._found: list[Horizon] = []
        self._limit: Horizon | None = None

    def scan(self) -> None:
        """Read the index; call it without the lock."""
        try:
            self._scan(self._snapshot)
        finally:
            self._view.__exit__(None, None, None)

    def _scan(self, snapshot: Snapshot) -> None:
        low, capacity, found = self._horizon, self._capacity, self._found
        limit: Horizon | None = None
        floor = max(low[0], 0)
        first_field = floor - floor % COARSE_MS
        # The last key before that: no task has this number.
        after = (first_field - 1, _NUMBER_END) if first_field else None
        while True:
            piece = snapshot.due(self._lane, after, _PIECE_COUNT)
            for field, number, exact_ms in piece:
                if limit is not None and field > limit[0]:
                    break
                key = (exact_ms, number)
                if key >= low and (limit is None or key < limit):
                    found.append(key)
                    if len(found) >= 2 * capacity:
                        found.sort()
                        limit = found[capacity]
                        del found[capacity:]
            else:
                if len(piece) == _PIECE_COUNT:
                    after = piece[-1][:2]
                    continue
            break
        found.sort()
        if len(found) > capacity:
            limit = found[capacity]
            del found[capacity:]
        self._limit = limit

    def finish(self, undos: list[Undo]) -> bool:
        """Place the slice; call it under the lock.  Return whether it counted.

        Args:
            undos: What is not shown yet: of that the window hears when it is.
        """
        state, window, lane = self._state, self._window, self._lane
        if lane in window.closed or window.horizons.get(lane) != self._horizon:
            return False
        if state.active is not self._tables[0] and state.frozen is not self._tables[0]:
            return False
        tables = [
            table for table in (state.active, state.frozen) if table is not None
        ] + self._tables
        changed: set[int] = set()
        for table in tables:
            changed.update(table.rows)
        if self._limit is None:
            del window.horizons[lane]
        else:
            window.horizons[lane] = self._limit
        for due_ms, number in self._found:
            if number not in changed:
                window.place(lane, due_ms, number)
        self._place_hot(tables, undos)
        window.trim()
        return True

    def _place_hot(self, tables: list[HotTable], undos: list[Undo]) -> None:
        """Place what the hot tables have in the slice; the first to know wins."""
        state, window, lane, low = self._state, self._window, self._lane, self._horizon
        seen: set[int] = set()
        for table in tables:
            for number, entry in table.rows.items():
                if number in seen:
                    continue
                seen.add(number)
                if undos:
                    entry = state.view(number, undos)
                if entry is None:
                    continue
                if type(entry) is Columns:
                    position = number - entry.first
                    due_ms = max(entry.due(position), 0)
                    if (due_ms, number) >= low and lane == state.lanes.number(
                        entry.lane_key(position)
                    ):
                        window.place(lane, due_ms, number)
                elif (
                    entry.state == SCHEDULED  # type: ignore[union-attr]
                    and (max(entry.due_ms, 0), number) >= low  # type: ignore[union-attr]
                    and state.lanes.of_row(entry) == lane  # type: ignore[arg-type]
                ):
                    window.place(lane, entry.due_ms, number)  # type: ignore[union-attr]


def _wants_due(window: Window, now: tuple[int, int], lanes: list[int]) -> int | None:
    """Return one of the lanes whose next tasks are due and not loaded, if one fits."""
    if len(window) >= window.entries_max:
        return None
    for lane in lanes:
        horizon = window.horizons.get(lane)
        if horizon is None or lane in window.closed:
            continue
        if horizon[0] <= now[window.lanes.key(lane)[0]]:
            return lane
    return None


def begin(
    state: State,
    window: Window,
    now: tuple[int, int],
    lanes: list[int] | None = None,
) -> Slice | None:
    """Return the slice to load next, or ``None``; call it under the lock.

    Args:
        state: What it is loaded from.
        window: What it is loaded into.
        now: The present on both timelines.
        lanes: Only what is due in these, even if enough is ready.
    """
    if lanes is None:
        lane = wants_more(window, now)
    else:
        lane = _wants_due(window, now, lanes)
    if lane is None:
        return None
    capacity = min(window.share(), SLICE_COUNT)
    return Slice(state, window, lane, capacity, state.index.snapshot())
