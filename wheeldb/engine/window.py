"""The window: the tasks that come due first, in two wheels and in ready heaps.

Of all pending tasks only the earliest are in memory, about ``window_max`` of them::

    index, by lane and due time                wheels                    ready
    lane 16  ├── loaded ──┤─ not loaded ─►     elapsed ○ ─ advance ─►    lane 16 ▤▤
    lane 17  ├──── loaded ────┤─ … ─►          wall    ○ ─ advance ─►    lane 17 ▤
                              ▲
                              horizon of lane 17

A lane's *horizon* is a (due time, number): every waiting task of the lane that is less
is in the window; ``None`` means that all are.  When the wheel of its timeline reaches
the horizon, or the window runs low, ``refill.py`` loads the next slice.

An entry is the int of ``wheel.py``: due time, lane, task number.  Entries are hints.
They may outlive what they stand for (a task cancelled, moved or leased), so who takes
one looks at the row; what may never happen is that a waiting task below the horizon has
no entry.  ``sweep`` compares, and its counter must stay 0.

A change that is cut short (a Ctrl-C may fall between any two bytecodes) would leave a
broken wheel.  So it then lets go of everything, and is loaded anew: ``reset``.

The window knows no lock, clock or file; its owner holds the state's lock.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from heapq import heappop, heappush
from typing import Concatenate, ParamSpec, TypeVar

from wheeldb.engine.columns import Columns
from wheeldb.engine.lanes import LANE_FIRST, Lanes
from wheeldb.engine.row import SCHEDULED, Row
from wheeldb.events import ELAPSED, WALL
from wheeldb.wheel import DUE_SHIFT, Wheel

__all__ = (
    "READY_LOW",
    "Horizon",
    "Window",
    "entry_due",
    "entry_lane",
    "entry_number",
    "entry_of",
)

Horizon = tuple[int, int]

# With fewer ready entries than that, a lane whose horizon has come is loaded on.
READY_LOW = 512

# Entries that were taken before anybody looked at when their tasks expire.
STALE_FRESH_MAX = 1_000

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")

LANE_SHIFT = 53
_NUMBER_MASK = (1 << LANE_SHIFT) - 1
_LANE_MASK = (1 << (DUE_SHIFT - LANE_SHIFT)) - 1


def entry_of(due_ms: int, lane: int, number: int) -> int:
    """Return the entry of a task; a due time before 1970 counts as 1970."""
    return ((due_ms if due_ms > 0 else 0) << DUE_SHIFT) | (lane << LANE_SHIFT) | number


def entry_due(entry: int) -> int:
    """Return the due time of an entry."""
    return entry >> DUE_SHIFT


def entry_lane(entry: int) -> int:
    """Return the lane of an entry."""
    return entry >> LANE_SHIFT & _LANE_MASK


def entry_number(entry: int) -> int:
    """Return the task number of an entry."""
    return entry & _NUMBER_MASK


def _firsts(entries: Iterable[int]) -> Iterable[int]:
    """Return the earliest entry of each lane: within a lane they order as ints do."""
    firsts: dict[int, int] = {}
    for entry in entries:
        lane = entry >> LANE_SHIFT & _LANE_MASK
        if lane not in firsts or entry < firsts[lane]:
            firsts[lane] = entry
    return firsts.values()


def _whole_or_reset(
    change: Callable[Concatenate["Window", _Arguments], _Answer],
) -> Callable[Concatenate["Window", _Arguments], _Answer]:
    """Let a change that does not come to its end empty the window."""

    @wraps(change)
    def guarded(
        self: "Window", /, *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> _Answer:
        try:
            return change(self, *args, **options)
        except BaseException:
            self.reset()
            raise

    return guarded


class Window:
    """The earliest waiting tasks, by lane."""

    def __init__(
        self, lanes: Lanes, entries_max: int, elapsed_ms: int, wall_ms: int
    ) -> None:
        self.lanes = lanes
        self.entries_max = entries_max
        # Once it holds more, it is trimmed to `entries_max`.
        self._size_max = entries_max + entries_max // 4
        self.wheels = (Wheel(max(elapsed_ms, 0)), Wheel(max(wall_ms, 0)))
        self.ready: dict[int, list[int]] = {}
        # Lanes whose waiting tasks are not all in the window, and from where on.
        self.horizons: dict[int, Horizon] = {}
        # Lanes that nobody may take from now, and that hold nothing.
        self.closed: set[int] = set()
        # A lane of one of these is closed when it is first met.
        self.paused_queues: frozenset[str] = frozenset()
        self.ready_count = 0
        # Ready entries that stand for nothing any more, by lane; a few were taken.
        self._gone: dict[int, set[int]] = {}
        # Ready entries of lanes where tasks expire, not yet looked at.
        self._fresh: list[int] = []

    def __len__(self) -> int:
        """Return how many entries the window holds."""
        elapsed, wall = self.wheels
        return elapsed.size + wall.size + self.ready_count

    # Keeping up with the state.

    def reset(self) -> None:
        """Let go of every entry; each lane is to be loaded from its beginning."""
        elapsed, wall = self.wheels
        self.wheels = (Wheel(elapsed.now_ms), Wheel(wall.now_ms))
        self.ready = {}
        self.ready_count = 0
        self._gone = {}
        self._fresh = []
        self.horizons = dict.fromkeys(list(self.lanes.numbers.values()), (-1, 0))

    def reconcile(
        self, touched: Iterable[tuple[Row | None, Row | None] | Columns]
    ) -> None:
        """Place anew what the state changed; doing it twice changes nothing."""
        try:  # `_whole_or_reset`, spelled out: every commit comes this way
            for change in touched:
                if type(change) is Columns:
                    self._place_columns(change)
                    continue
                old, new = change  # type: ignore[misc]
                if old is not None and old.state == SCHEDULED:
                    self._take_back(old)
                if new is not None and new.state == SCHEDULED:
                    lane = self.lanes.of_row(new)
                    if lane >= LANE_FIRST:
                        self._place(lane, new.due_ms, new.number)
            self._trim()
        except BaseException:
            self.reset()
            raise

    @_whole_or_reset
    def place(self, lane: int, due_ms: int, number: int) -> None:
        """Give a waiting task its entry, if it lies below the lane's horizon."""
        self._place(lane, due_ms, number)

    def _place(self, lane: int, due_ms: int, number: int) -> None:
        if lane in self.closed or (self.paused_queues and self._is_closed(lane)):
            return
        if due_ms < 0:
            due_ms = 0
        horizon = self.horizons.get(lane)
        if horizon is None or (due_ms, number) < horizon:
            timeline = self.lanes.key(lane)[0]
            # `entry_of`, spelled out to spare a call.
            self.wheels[timeline].insert(
                (due_ms << DUE_SHIFT) | (lane << LANE_SHIFT) | number
            )

    def _place_columns(self, columns: Columns) -> None:
        first, lane, dues = columns.first, columns.lane, columns.dues
        if lane is None:
            for position in range(columns.count):
                lane = self.lanes.number(columns.lane_key(position))
                self._place(lane, columns.due(position), first + position)
            return
        if columns.count == 1 and type(dues) is int:
            self._place(lane, dues, first)
            return
        if self._is_closed(lane):
            return
        horizon_ms = self.horizons.get(lane, (1 << 62, 0))[0]
        base = (lane << LANE_SHIFT) | first
        wheel = self.wheels[self.lanes.key(lane)[0]]
        if type(dues) is int:
            if dues <= horizon_ms:
                base |= max(dues, 0) << DUE_SHIFT
                wheel.insert_many(range(base, base + columns.count))
        else:
            # One at the horizon's own millisecond may be placed without need; that
            # does no harm.
            wheel.insert_many(
                [
                    ((due_ms if due_ms > 0 else 0) << DUE_SHIFT) + entry
                    for entry, due_ms in enumerate(dues, base)  # type: ignore[arg-type]
                    if due_ms <= horizon_ms
                ]
            )

    def _take_back(self, old: Row) -> None:
        lane = self.lanes.of_row(old)
        if lane >= LANE_FIRST:
            entry = entry_of(old.due_ms, lane, old.number)
            if not self.wheels[old.timeline].cancel(entry):
                self._note_gone(lane, entry)

    def _note_gone(self, lane: int, entry: int) -> None:
        """Note that a ready entry is stale; let go of them when they are half."""
        heap = self.ready.get(lane)
        if heap is None:
            return
        gone = self._gone.setdefault(lane, set())
        gone.add(entry)
        if 2 * len(gone) > len(heap):
            self._set_heap(lane, [entry for entry in heap if entry not in gone])

    def _is_closed(self, lane: int) -> bool:
        if lane in self.closed:
            return True
        if self.paused_queues and self.lanes.key(lane)[1] in self.paused_queues:
            self.closed.add(lane)
            return True
        return False

    # Time goes on.

    @_whole_or_reset
    def advance(self, elapsed_ms: int, wall_ms: int, limit: int) -> int:
        """Move what is due from the wheels to the ready heaps; return how many."""
        moved = 0
        for timeline, now_ms in ((ELAPSED, elapsed_ms), (WALL, wall_ms)):
            wheel = self.wheels[timeline]
            if now_ms < wheel.now_ms:
                if timeline == ELAPSED:
                    continue
                self._set_back(now_ms)
            due = wheel.advance(now_ms, limit - moved)
            for entry in due:
                self._make_ready(entry)
            moved += len(due)
        return moved

    def _set_back(self, wall_ms: int) -> None:
        """Rebuild the wall wheel alone, after the wall clock was set back."""
        wheel = self.wheels[WALL]
        entries = list(wheel.entries())
        for lane, heap in list(self.ready.items()):
            if self.lanes.key(lane)[0] == WALL:
                early = [entry for entry in heap if entry_due(entry) > wall_ms]
                if early:
                    entries += early
                    self._set_heap(
                        lane, [entry for entry in heap if entry_due(entry) <= wall_ms]
                    )
        wheel.clear(max(wall_ms, 0))
        wheel.insert_many(entries)

    @_whole_or_reset
    def make_ready(self, entry: int) -> None:
        """Put an entry that is due into its lane's heap."""
        self._make_ready(entry)

    def _make_ready(self, entry: int) -> None:
        lane = entry_lane(entry)
        heappush(self.ready.setdefault(lane, []), entry)
        self.ready_count += 1
        if lane in self._gone:
            self._gone[lane].discard(entry)
        if lane in self.lanes.expiring:
            self._fresh.append(entry)

    def take_fresh(self, limit: int) -> list[int]:
        """Return entries that became ready and whose tasks may expire.

        Each comes once, but for those that wait while most others were taken.
        """
        if len(self._fresh) > self.ready_count + STALE_FRESH_MAX:
            self._fresh = list(self.expiring())
        fresh, self._fresh = self._fresh[:limit], self._fresh[limit:]
        return fresh

    def expiring(self) -> Iterator[int]:
        """Yield the ready entries of lanes where tasks expire."""
        for lane in self.lanes.expiring:
            yield from self.ready.get(lane, ())

    def has_fresh(self) -> bool:
        """Return whether ``take_fresh`` has any."""
        return bool(self._fresh)

    @_whole_or_reset
    def take(self, lane: int) -> int | None:
        """Remove and return the first ready entry of a lane."""
        heap = self.ready.get(lane)
        if not heap:
            return None
        entry = heappop(heap)
        self.ready_count -= 1
        if not heap:
            del self.ready[lane]
            self._gone.pop(lane, None)
        return entry

    def first_ready(self, lane: int) -> int | None:
        """Return the first ready entry of a lane; it stays."""
        heap = self.ready.get(lane)
        return heap[0] if heap else None

    # Horizons.

    @_whole_or_reset
    def close_lane(self, lane: int) -> None:
        """Let go of a lane's entries; nothing is loaded until it is opened."""
        self.closed.add(lane)
        self._drop(lane)

    def open_lane(self, lane: int) -> None:
        """Let a lane be loaded again, from its beginning."""
        self.closed.discard(lane)
        self.horizons[lane] = (-1, 0)

    def _drop(self, lane: int) -> None:
        wheel = self.wheels[self.lanes.key(lane)[0]]
        for entry in [entry for entry in wheel.entries() if entry_lane(entry) == lane]:
            wheel.cancel(entry)
        self._set_heap(lane, [])

    def forget_lanes(self) -> None:
        """Forget lanes whose number was taken back and may go to another key."""
        end = LANE_FIRST + len(self.lanes.keys)
        self.closed = {lane for lane in self.closed if lane < end}
        for lane in [lane for lane in self.horizons if lane >= end]:
            del self.horizons[lane]

    def _set_heap(self, lane: int, entries: list[int]) -> None:
        self._gone.pop(lane, None)
        self.ready_count += len(entries) - len(self.ready.get(lane, ()))
        if entries:
            self.ready[lane] = sorted(entries)
        else:
            self.ready.pop(lane, None)

    # Room.

    def share(self) -> int:
        """Return how many entries a lane that is not wholly loaded gets at a time.

        Twice that for each such lane is half of the room: what is loaded then is not
        given up at once, and loaded again.
        """
        return max(self.entries_max // (4 * max(len(self.horizons), 1)), 1)

    def runs_low(self, lane: int) -> bool:
        """Return whether a lane has few ready entries left."""
        stale = len(self._gone.get(lane, ()))
        ready = len(self.ready.get(lane, ())) - stale
        return ready < min(self.share(), READY_LOW)

    @_whole_or_reset
    def trim(self) -> None:
        """Give up the latest entries if there are too many for the room there is."""
        self._trim()

    def _trim(self) -> None:
        elapsed, wall = self.wheels
        if elapsed.size + wall.size + self.ready_count <= self._size_max:
            return
        if self.ready_count > self.entries_max:
            self._trim_ready()
        for wheel in self.wheels:
            keep = len(wheel) * self.entries_max // max(len(self), 1)
            for entry in _firsts(wheel.trim(keep)):
                self._pull_horizon(entry)
        # Entries of a lane behind its new horizon may still be there; they stay right.

    def _trim_ready(self) -> None:
        keep = max(self.entries_max // (2 * len(self.ready)), 1)
        for lane, heap in list(self.ready.items()):
            if len(heap) > keep:
                gone = self._gone.get(lane, set())
                entries = sorted(entry for entry in heap if entry not in gone)
                if len(entries) > keep:
                    self._pull_horizon(entries[keep])
                self._set_heap(lane, entries[:keep])

    def _pull_horizon(self, entry: int) -> None:
        """Let a lane end in front of an entry that is given up."""
        lane = entry_lane(entry)
        key = (entry_due(entry), entry_number(entry))
        horizon = self.horizons.get(lane)
        if horizon is None or key < horizon:
            self.horizons[lane] = key

    def entries(self) -> Iterator[int]:
        """Yield every entry."""
        for wheel in self.wheels:
            yield from wheel.entries()
        for heap in self.ready.values():
            yield from heap

    def check(self) -> list[str]:
        """Return what is wrong within the window."""
        findings = [finding for wheel in self.wheels for finding in wheel.check()]
        ready_count = sum(map(len, self.ready.values()))
        if ready_count != self.ready_count:
            findings.append(
                f"{ready_count} entries are ready, counted are {self.ready_count}"
            )
        findings += [
            f"closed lane {lane} has ready entries"
            for lane in self.closed
            if lane in self.ready
        ]
        return findings
