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

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.columns import Columns
from wheeldb.engine.decide import Decider
from wheeldb.engine.fold import Fact
from wheeldb.engine.request import Request
from wheeldb.engine.row import LEASED, Finished, Row
from wheeldb.errors import QueueFull, StaleVersion, TaskError, TaskExists
from wheeldb.events import F, Kind

__all__ = ("Scheduled", "schedule")


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


def schedule(decider: Decider, request: Request) -> Scheduled:
    """Schedule a request's tasks.

    Raises:
        TaskExists, StaleVersion, QueueFull: As ``if_exists`` and ``version`` say.
    """
    columns = request.columns
    result = Scheduled(columns.count, decider.now)
    if columns.ids is None:
        _require_room(decider, columns)
        fact = Fact(
            Kind.SCHEDULED,
            columns.count,
            {},
            columns=columns,
            packed=request.packed,
        )
        decider.emit(fact)
        result.columns = columns
        return result
    plan = _Plan()
    for position, task_id in enumerate(columns.ids):
        if task_id is None:
            plan.chosen.append(position)
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
    earlier = plan.by_id.get(task_id)
    new = request.columns.row_at(position)
    standing = (
        request.columns.row_at(earlier)
        if earlier is not None
        else decider.find(task_id)
    )
    if standing is None:
        plan.choose(position, task_id)
        return
    verdict = _verdict(decider, new, standing, request.if_exists_at(position))
    if verdict == "keep":
        if earlier is not None:
            plan.repeats[position] = earlier
        else:
            result.standing[position] = (standing, False)
            decider.rests_on = max(decider.rests_on, standing.lsn)
    elif earlier is not None:
        plan.chosen.remove(earlier)
        plan.repeats[earlier] = position
        plan.replaces[position] = plan.replaces.pop(earlier, 0)
        plan.choose(position, task_id)
    elif verdict == "supersede":
        plan.supersedes[position] = standing.number
    else:
        if isinstance(standing, Row):
            plan.replaces[position] = standing.number
        plan.choose(position, task_id)


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
    if plan.chosen:
        chosen = columns
        if len(plan.chosen) < columns.count:
            plan.chosen.sort()
            chosen = columns.select(plan.chosen)
            result.positions = plan.chosen
        _require_room(decider, chosen, len(plan.replaces))
    for position, number in plan.supersedes.items():
        definition = columns.row_at(position)
        fields: dict[int, object] = {
            F.NAME: definition.name,
            F.PAYLOAD: definition.payload,
            F.TIMELINE: definition.timeline,
            F.DUE: definition.due_ms,
            **definition.options,
        }
        decider.emit(Fact(Kind.SUPERSEDED, 1, {F.NUMBER: number, F.DEFINITION: fields}))
        row = decider.state.lookup(number)
        assert row is not None, f"task {number} is gone"
        result.standing[position] = (row, True)
    if plan.chosen:
        new_positions = {old: new for new, old in enumerate(plan.chosen)}
        replaces = {
            new_positions[position]: number
            for position, number in plan.replaces.items()
            if number
        }
        fact = Fact(
            Kind.SCHEDULED,
            chosen.count,
            {F.REPLACES: replaces},
            columns=chosen,
            packed=chosen.pack(replaces),
        )
        decider.emit(fact)
        result.columns = chosen
    for position, source in plan.repeats.items():
        if source in plan.supersedes:
            result.standing[position] = (result.standing[source][0], False)
            continue
        assert result.columns is not None, "a repeated task was scheduled"
        index = plan.chosen.index(source)
        row = result.columns.row(result.columns.first + index)
        result.standing[position] = (row, False)


def _require_room(decider: Decider, columns: Columns, replaced: int = 0) -> None:
    bounds, state = decider.bounds, decider.state
    count = state.pending_count + columns.count - replaced
    if bounds.tasks_max is not None and count > bounds.tasks_max:
        raise QueueFull(
            f"{state.pending_count} tasks are pending and {columns.count} more were "
            f"asked for; tasks_max is {bounds.tasks_max}"
        )
    decider.reserve(count)
    if bounds.bytes_max is not None:
        size = sum(map(len, columns.payloads))
        if state.payload_bytes + size > bounds.bytes_max:
            raise QueueFull(
                f"payloads of {state.payload_bytes} bytes are pending and {size} "
                f"more were asked for; bytes_max is {bounds.bytes_max}"
            )


class _Plan:
    """What a request with ids comes to, before anything is changed."""

    def __init__(self) -> None:
        self.chosen: list[int] = []
        self.by_id: dict[str, int] = {}
        self.replaces: dict[int, int] = {}
        self.supersedes: dict[int, int] = {}
        self.repeats: dict[int, int] = {}

    def choose(self, position: int, task_id: str) -> None:
        self.chosen.append(position)
        self.by_id[task_id] = position
