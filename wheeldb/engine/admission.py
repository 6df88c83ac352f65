"""Admission: which of a request's tasks are scheduled, and what becomes of their ids.

An id that exists is judged by its version first, then by ``if_exists``::

    lower version     StaleVersion
    higher version    takes its place; behind the attempt if one is running
    same version      "same": an identical request stands, another is TaskExists
                      "keep": whatever is there stands
                      "replace": swapped, whatever its state

Everything is judged before anything is emitted, so that a refusal in the middle has
changed nothing.
"""

from bisect import bisect_left
from collections.abc import Sequence

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.columns import Columns
from wheeldb.engine.decide import Decider
from wheeldb.engine.fold import Fact
from wheeldb.engine.lanes import LANE_FIRST, LANES_MAX
from wheeldb.engine.request import Request
from wheeldb.engine.row import LEASED, Finished, Row
from wheeldb.errors import QueueFull, StaleVersion, TaskError, TaskExists
from wheeldb.events import F, Kind, pack_event

__all__ = ("Scheduled", "schedule")


# Half of the lanes that there are: a retry may need its queue's lane on the other
# timeline, and can't be refused.
LANES_NEW_MAX = (LANES_MAX - LANE_FIRST) // 2

_SCHEDULED = Kind.SCHEDULED
_NO_FIELDS: dict[int, object] = {}


class Scheduled:
    """What became of the tasks of one request.

    Attributes:
        columns: The tasks that were scheduled, numbered; ``None`` if none was.
        positions: The request's position of each of them; ``None``: all, in order.
        now: When it was decided.
        standing: By position, what stands under the id of the others: a row (with
            whether this call put it there) or what is kept of a finished task.
    """

    __slots__ = ("columns", "count", "now", "positions", "standing")

    def __init__(self, count: int, now: Now) -> None:
        self.count = count
        self.now = now
        self.columns: Columns | None = None
        self.positions: list[int] | None = None
        self.standing: dict[int, tuple[Row | Finished, bool]] = {}

    def place_of(self, position: int) -> tuple[Columns, int]:
        """Return columns, and where there, of a task that was scheduled."""
        assert self.columns is not None, f"nothing was scheduled for task {position}"
        if self.positions is None:
            return self.columns, position
        return self.columns, bisect_left(self.positions, position)


def schedule(decider: Decider, request: Request) -> Scheduled:
    """Schedule a request's tasks.

    Raises:
        TaskExists, StaleVersion, QueueFull: As ``if_exists`` and ``version`` say.
    """
    now, columns = decider.now, request.columns
    if request.offset_ms != now.offset_ms:
        request.catch_up(now.offset_ms)
    result = Scheduled(columns.count, now)
    if columns.ids is None:
        _require_room(decider, columns)
        decider.emit(
            Fact(_SCHEDULED, columns.count, _NO_FIELDS, columns, request.packed)
        )
        result.columns = columns
        return result
    plan = _Plan()
    for position, task_id in enumerate(columns.ids):
        if task_id is None:
            plan.unnamed.append(position)
            continue
        try:
            _judge_id(decider, request, position, task_id, plan, result)
        except TaskError as refusal:
            refusal.index = position
            raise
    _grant(decider, request, plan, result)
    return result


def _judge_id(
    decider: Decider,
    request: Request,
    position: int,
    task_id: str,
    plan: "_Plan",
    result: Scheduled,
) -> None:
    """Judge one task, as if those before it in the call were scheduled already."""
    earlier = plan.final.get(task_id)
    new = request.columns.row_at(position)
    standing: Row | Finished | None
    if earlier is None:
        standing = decider.find(task_id)
    else:
        standing = request.columns.row_at(earlier)
        if task_id in plan.supersedes:
            standing.state = LEASED
    if standing is not None:
        verdict = _verdict(decider, new, standing, request.if_exists_at(position))
        if verdict == "keep":
            if earlier is not None:
                plan.repeats.append(position)
            else:
                result.standing[position] = (standing, False)
                decider.rests_on = max(decider.rests_on, standing.lsn)
            return
        if earlier is not None:
            plan.repeats.append(earlier)
            if verdict == "replace" and task_id in plan.supersedes:
                plan.replaces[task_id] = plan.supersedes.pop(task_id)
        elif verdict == "supersede":
            plan.supersedes[task_id] = standing.number
        elif isinstance(standing, Row):
            plan.replaces[task_id] = standing.number
    plan.final[task_id] = position


def _verdict(
    decider: Decider, new: Row, standing: Row | Finished, if_exists: str
) -> str:
    """Return "keep", "replace" or "supersede", or raise."""
    if new.version < standing.version:
        raise StaleVersion(
            f"{new.id!r} is known with version {standing.version}, given was "
            f"{new.version}; nothing was changed"
        )
    is_leased = isinstance(standing, Row) and standing.state == LEASED
    if new.version > standing.version:
        return "supersede" if is_leased else "replace"
    if if_exists == "replace":
        return "replace"
    if if_exists == "keep" or new.digest == standing.digest:
        return "keep"
    raise TaskExists(
        f"{new.id!r} was scheduled with other arguments; give if_exists="
        '"replace" to put this in its place, "keep" to leave it, or a higher '
        "version",
        decider.existing(standing),
    )


def _grant(
    decider: Decider, request: Request, plan: "_Plan", result: Scheduled
) -> None:
    columns = request.columns
    positions = plan.new_positions()
    if positions:
        chosen = columns
        if len(positions) < columns.count:
            chosen = columns.select(positions)
            result.positions = positions
    given = columns.select([*positions, *map(plan.final.get, plan.supersedes)])  # type: ignore[list-item]
    _require_room(decider, given, [*plan.replaces.values(), *plan.supersedes.values()])
    for task_id, number in plan.supersedes.items():
        position = plan.final[task_id]
        _supersede(decider, number, columns.row_at(position))
        row = decider.state.lookup(number)
        assert row is not None, f"task {number} is gone"
        result.standing[position] = (row, True)
    index_of = {position: index for index, position in enumerate(positions)}
    if positions:
        replaces = {
            index_of[plan.final[task_id]]: number
            for task_id, number in plan.replaces.items()
        }
        fact = Fact(
            _SCHEDULED,
            chosen.count,
            {F.REPLACES: replaces},
            columns=chosen,
            packed=pack_event(_SCHEDULED, chosen.count, chosen.pack(replaces)),
        )
        decider.emit(fact)
        result.columns = chosen
    for position in plan.repeats:
        assert columns.ids is not None, "what is repeated has an id"
        source = plan.final[columns.ids[position]]  # type: ignore[index]
        if source in index_of:
            result.standing[position] = (chosen.row_at(index_of[source]), False)
        else:
            result.standing[position] = (result.standing[source][0], False)


def _supersede(decider: Decider, number: int, definition: Row) -> None:
    fields: dict[int, object] = {
        F.NAME: definition.name,
        F.PAYLOAD: definition.payload,
        F.TIMELINE: definition.timeline,
        F.DUE: definition.due_ms,
        **definition.options,
    }
    decider.emit(Fact(Kind.SUPERSEDED, 1, {F.NUMBER: number, F.DEFINITION: fields}))


def _require_room(
    decider: Decider, columns: Columns, displaced: Sequence[int] = ()
) -> None:
    """Raise unless the store may hold these tasks, once others gave their place."""
    bounds, state = decider.bounds, decider.state
    added = columns.count - len(displaced)
    count = state.pending_count + added
    if bounds.tasks_max is not None and count > bounds.tasks_max and added > 0:
        raise QueueFull(
            f"{state.pending_count} tasks are pending and {added} more were asked "
            f"for; tasks_max is {bounds.tasks_max}"
        )
    if bounds.bytes_max is not None:
        size = columns.payload_bytes
        for number in displaced:
            row = state.lookup(number)
            assert row is not None, f"task {number} is gone"
            size -= len(row.payload)
        if state.payload_bytes + size > bounds.bytes_max and size > 0:
            raise QueueFull(
                f"payloads of {state.payload_bytes} bytes are pending and {size} "
                f"more were asked for; bytes_max is {bounds.bytes_max}"
            )
    if len(state.lanes.keys) + columns.count > LANES_NEW_MAX:
        _require_lanes(decider, columns)
    decider.reserve(count)


def _require_lanes(decider: Decider, columns: Columns) -> None:
    lanes = decider.state.lanes
    count = 1 if columns.is_uniform() else columns.count
    keys = {columns.lane_key(position) for position in range(count)}
    new_count = len(keys - lanes.numbers.keys())
    if new_count and len(lanes.keys) + new_count > LANES_NEW_MAX:
        raise QueueFull(
            f"{len(lanes.keys)} combinations of queue and priority were used, and "
            f"{new_count} more asked for; there are {LANES_NEW_MAX} at most, for each "
            "keeps its number for good: use fewer queues"
        )


class _Plan:
    """What a request with ids comes to, before anything is changed.

    An id may occur several times in one call. Its tasks are judged one after the other,
    and only the last one that is not refused or the same again is put in place.
    """

    def __init__(self) -> None:
        # Positions without an id; by id, the position that stands in the end.
        self.unnamed: list[int] = []
        self.final: dict[str, int] = {}
        # By id: the number of the task whose place it takes, at once, or behind the
        # running attempt.
        self.replaces: dict[str, int] = {}
        self.supersedes: dict[str, int] = {}
        # Positions whose id another position stands for.
        self.repeats: list[int] = []

    def new_positions(self) -> list[int]:
        """Return the positions of tasks that get a number of their own, in order."""
        named = [
            position
            for task_id, position in self.final.items()
            if task_id not in self.supersedes
        ]
        return sorted(self.unnamed + named)
