"""Lanes: the numbers of (timeline, queue, priority), and where a row's due key lies.

Each unfinished task has one due key in the index, in one lane.  The first sixteen
lanes hold what does not wait for a time; every other lane is a (timeline, queue,
priority), numbered when its first task is scheduled and never given away::

    0 leased   1 dead   2 paused by id   3 parked   16, 17, … waiting for their time

So one queue's flood, or one paused queue, never lies between another queue's tasks.
Lanes in ``expiring`` have held a task with an expiry; who ends what has expired looks
at the tasks of no other lane.
"""

from bisect import insort
from collections.abc import Sequence

from wheeldb.engine.row import DEAD, LEASED, PARKED, QUEUE_DEFAULT, Row
from wheeldb.index.keys import COARSE_MS, due_field

__all__ = (
    "LANES_MAX",
    "LANE_DEAD",
    "LANE_FIRST",
    "LANE_LEASED",
    "LANE_PARKED",
    "LANE_PAUSED",
    "Lanes",
    "field_in_index",
    "field_to_write",
)

LANE_LEASED, LANE_DEAD, LANE_PAUSED, LANE_PARKED = 0, 1, 2, 3
LANE_FIRST = 16
# A wheel entry has 16 bits for its lane.
LANES_MAX = 1 << 16


class Lanes:
    """The numbers that were given out, in the order of first use."""

    __slots__ = ("expiring", "keys", "numbers", "queues")

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, str, int], int] = {}
        self.keys: list[tuple[int, str, int]] = []
        # The lanes of each queue by priority, those of the same one by number.
        self.queues: dict[str, list[int]] = {}
        # Lanes that have held a task with an expiry: only there is one looked for.
        self.expiring: frozenset[int] = frozenset()

    def number(self, key: tuple[int, str, int]) -> int:
        """Return the lane of a key, the next free one if it has none yet."""
        lane = self.numbers.get(key)
        if lane is None:
            lane = LANE_FIRST + len(self.keys)
            self.keys.append(key)
            self.numbers[key] = lane
            insort(self.queues.setdefault(key[1], []), lane, key=self._priority)
        return lane

    def key(self, lane: int) -> tuple[int, str, int]:
        """Return the (timeline, queue, priority) of a lane."""
        return self.keys[lane - LANE_FIRST]

    def of_queue(self, queue: str) -> Sequence[int]:
        """Return the lanes of a queue, by priority; each lease asks for them."""
        return self.queues.get(queue, ())

    def _priority(self, lane: int) -> int:
        return self.key(lane)[2]

    def note_expiry(self, lane: int) -> None:
        """Note that a lane has a task with an expiry."""
        if lane not in self.expiring:
            # A new set: an undo puts the old one back.
            self.expiring |= {lane}

    def stored(self) -> list[list[object]]:
        """Return them as they stand among the store's tables."""
        return [
            [*key, True] if lane in self.expiring else [*key]
            for lane, key in enumerate(self.keys, LANE_FIRST)
        ]

    def restore(self, stored: list[list[object]]) -> None:
        """Give the lanes out again that ``stored`` returned."""
        for timeline, queue, priority, *expires in stored:
            lane = self.number((timeline, queue, priority))  # type: ignore[arg-type]
            if expires:
                self.note_expiry(lane)

    def cut(self, count: int) -> None:
        """Forget all but the first ``count`` lanes."""
        end = LANE_FIRST + count
        for key in self.keys[count:]:
            # An interrupted `number` may have left what comes later undone.
            self.numbers.pop(key, None)
        for queue in {key[1] for key in self.keys[count:]} & self.queues.keys():
            self.queues[queue] = [lane for lane in self.queues[queue] if lane < end]
            if not self.queues[queue]:
                del self.queues[queue]
        del self.keys[count:]

    def of_row(self, row: Row) -> int:
        """Return the lane in which a row's due key lies."""
        if row.state == LEASED:
            return LANE_LEASED
        if row.state == DEAD:
            return LANE_DEAD
        if row.paused:
            return LANE_PAUSED
        if row.state == PARKED:
            return LANE_PARKED
        options = row.options
        if not options:
            return self.number((row.timeline, QUEUE_DEFAULT, 0))
        return self.number((row.timeline, row.queue, row.priority))


def field_to_write(lane: int, due_ms: int, now: tuple[int, int], timeline: int) -> int:
    """Return the due field under which a row is put into the index now."""
    if lane < LANE_FIRST:
        return 0
    return due_field(max(due_ms, 0), now[timeline])


def field_in_index(lane: int, row: Row) -> int:
    """Return the due field of a row that was read from the index, unless in a block."""
    if lane < LANE_FIRST:
        return 0
    due_ms = max(row.due_ms, 0)
    return due_ms - due_ms % COARSE_MS if row.coarse else due_ms
