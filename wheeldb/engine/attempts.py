"""Attempts: begun by a lease; ended by ack, nack, release, reject; or cut short.

Who would settle an attempt shows its fence.  It is good as long as the row has it: no
other attempt was started, and the task was neither replaced nor ended.  A lease that
ran out leaves its fence, so that a late ack is taken if nobody else took the task.
"""

from collections.abc import Callable, Sequence
from heapq import heappush

from wheeldb.engine import admission
from wheeldb.engine.decide import Decider
from wheeldb.engine.fold import Fact
from wheeldb.engine.moment import DUE_MS_MAX
from wheeldb.engine.names import lookup_id
from wheeldb.engine.policy import is_last_attempt, max_attempts, retry_wait_ms
from wheeldb.engine.request import Request
from wheeldb.engine.row import DEAD, LEASED, SCHEDULED, Row
from wheeldb.engine.window import entry_due, entry_number
from wheeldb.errors import LeaseLost
from wheeldb.events import ELAPSED, WALL, F, Kind

__all__ = (
    "ack",
    "ack_many",
    "expire_leases",
    "expire_tasks",
    "give_back",
    "held",
    "interrupt",
    "lease",
    "nack",
    "reject",
    "release",
    "renew",
    "save",
)

# How many ready tasks of a lane a lease that names handlers looks at to find one.
NAMES_SCAN_MAX = 1_000


def lease(
    decider: Decider, queues: Sequence[str], limit: int, names: frozenset[str] | None
) -> list[Row]:
    """Lease up to ``limit`` due tasks.

    Order: priority (lower first), then the most overdue, then the lower LSN. Where that
    goes on with tasks that are not loaded, the lease ends. With ``names`` it leaves
    such a lane to itself, and one with too many other tasks, and goes on with the next:
    what nobody asks for must not hide the rest.
    """
    lanes = [
        lane
        for queue in queues
        if queue not in decider.state.paused_queues
        for lane in decider.state.lanes.of_queue(queue)
    ]
    numbers: list[int] = []
    until: list[int] = []
    expired: list[int] = []
    passed_over: dict[int, list[int]] = {}
    boottime_ms = decider.now.boottime_ms
    seen: set[int] = set()
    while len(numbers) < limit:
        lane = _best_lane(decider, lanes)
        if lane is None:
            break
        entry = decider.window.first_ready(lane)
        others = passed_over.get(lane, ())
        if entry is None or len(others) >= NAMES_SCAN_MAX:
            if not others:
                break
            lanes.remove(lane)
            continue
        decider.taken.append(entry)
        decider.window.take(lane)
        row = decider.state.lookup(entry_number(entry))
        if row is None or not _is_current(decider, row, entry, lane):
            continue
        if row.number in seen:
            continue
        seen.add(row.number)
        if _is_expired(decider, row):
            expired.append(row.number)
        elif names is not None and row.name not in names:
            passed_over.setdefault(lane, []).append(entry)
        else:
            numbers.append(row.number)
            until.append(boottime_ms + row.lease_ms)
    for others in passed_over.values():
        for entry in others:
            decider.window.make_ready(entry)
    if expired:
        decider.emit(Fact(Kind.EXPIRED, len(expired), {F.NUMBER: expired}))
    if not numbers:
        return []
    fields: dict[int, object] = {F.NUMBER: numbers, F.UNTIL: until}
    decider.emit(Fact(Kind.LEASED, len(numbers), fields))
    for end in zip(until, numbers, strict=True):
        heappush(decider.lease_ends, end)
    return [decider.state.leased[number] for number in numbers]


def _best_lane(decider: Decider, lanes: list[int]) -> int | None:
    """Return the lane from which to take next, ``None`` if none has anything due.

    Where it goes on may not be loaded yet; nobody may overtake it.
    """
    best: tuple[int, int, int, int] | None = None
    window, now = decider.window, decider.now
    for lane in lanes:
        entry = window.first_ready(lane)
        if entry is not None:
            due_ms, number = entry_due(entry), entry_number(entry)
        elif lane in window.horizons:
            due_ms, number = window.horizons[lane]
        else:
            continue
        timeline, _, priority = window.lanes.key(lane)
        now_ms = now.elapsed_ms if timeline == ELAPSED else now.wall_ms
        key = (priority, due_ms - now_ms, number, lane)
        if due_ms <= now_ms and (best is None or key < best):
            best = key
    return None if best is None else best[3]


def _is_current(decider: Decider, row: Row, entry: int, lane: int) -> bool:
    return (
        row.state == SCHEDULED
        and max(row.due_ms, 0) == entry_due(entry)
        and decider.state.lanes.of_row(row) == lane
    )


def _is_expired(decider: Decider, row: Row) -> bool:
    at = row.expired_at()
    if at is None:
        return False
    now_ms = decider.now.wall_ms if at[0] == WALL else decider.now.elapsed_ms
    return now_ms >= at[1]


# Attempts: ended or prolonged.


def held(decider: Decider, number: int, fence: int, task_id: str) -> Row:
    """Return the row of an attempt whose fence is still good.

    Raises:
        LeaseLost: If another attempt started, or the task was replaced or ended.
    """
    row = decider.state.lookup(number)
    if row is None or not fence or row.fence != fence:
        raise LeaseLost(
            f"{task_id!r} is no longer leased under fence {fence}: it "
            + (
                "ended or was replaced"
                if row is None
                else "was given back, or to another attempt"
            )
        )
    return row


def _running(decider: Decider, number: int, fence: int, task_id: str) -> Row:
    """Return the same, of an attempt whose lease has not run out.

    That it ended can be told late; that it goes on can't, for its task is due again.
    """
    row = held(decider, number, fence, task_id)
    if row.state != LEASED:
        raise LeaseLost(
            f"the lease of {task_id!r} under fence {fence} has run out; lease it again"
        )
    return row


def ack(
    decider: Decider,
    number: int,
    fence: int,
    task_id: str,
    result: bytes | None,
    then: Request | None,
) -> admission.Scheduled | None:
    """Finish a task; schedule its follow-ups with it.

    Raises:
        LeaseLost: If the fence is stale.
        TaskExists, StaleVersion, QueueFull: If a follow-up is refused; the lease
            stays.
    """
    try:
        row = held(decider, number, fence, task_id)
    except LeaseLost:
        if _is_repeated_ack(decider, number, fence, task_id):
            return None
        raise
    fields: dict[int, object] = {F.NUMBER: [number]}
    if result is not None:
        fields[F.RESULT] = {0: result}
    fact = Fact(Kind.ACKED, 1, fields)
    if then is None or row.cancelled:
        decider.emit(fact)
        return None
    with decider.atomic():
        decider.emit(fact)
        return admission.schedule(decider, then)


def _is_repeated_ack(decider: Decider, number: int, fence: int, task_id: str) -> bool:
    if type(lookup_id(task_id)) is int:
        return False
    finished = decider.remembered(decider.state.finished_of(task_id), decider.now)
    if finished is None or (finished.number, finished.fence) != (number, fence):
        return False
    decider.rests_on = max(decider.rests_on, finished.lsn)
    return finished.state == "done"


def ack_many(decider: Decider, leases: Sequence[tuple[int, int, str]]) -> list[int]:
    """Finish what is still held; return the positions of what is lost."""
    numbers: list[int] = []
    lost: list[int] = []
    for position, (number, fence, task_id) in enumerate(leases):
        row = decider.state.lookup(number)
        if row is not None and row.fence == fence and fence:
            numbers.append(number)
        elif not _is_repeated_ack(decider, number, fence, task_id):
            lost.append(position)
    numbers = list(dict.fromkeys(numbers))
    if numbers:
        decider.emit(Fact(Kind.ACKED, len(numbers), {F.NUMBER: numbers}))
    return lost


def nack(
    decider: Decider,
    number: int,
    fence: int,
    task_id: str,
    error: str,
    retry_in_ms: int | None,
) -> Row | None:
    """Note a failed attempt: the task waits for the next, or is dead.

    Raises:
        LeaseLost: If the fence is stale.
    """
    row = held(decider, number, fence, task_id)
    fields: dict[int, object] = {F.NUMBER: [number], F.ERROR: error}
    if not is_last_attempt(row):
        wait_ms = retry_wait_ms(row) if retry_in_ms is None else retry_in_ms
        fields[F.DUE] = min(decider.now.elapsed_ms + wait_ms, DUE_MS_MAX)
    decider.emit(Fact(Kind.NACKED, 1, fields))
    return decider.state.lookup(number)


def release(
    decider: Decider, leases: Sequence[tuple[int, int, str]], delay_ms: int
) -> list[int]:
    """Give attempts back unused; return the positions of what was lost."""
    numbers, lost = [], []
    for position, (number, fence, task_id) in enumerate(leases):
        try:
            numbers.append(_running(decider, number, fence, task_id).number)
        except LeaseLost:
            lost.append(position)
    numbers = list(dict.fromkeys(numbers))
    if numbers:
        fields: dict[int, object] = {F.NUMBER: numbers}
        if delay_ms:
            fields[F.DUE] = min(decider.now.elapsed_ms + delay_ms, DUE_MS_MAX)
        decider.emit(Fact(Kind.RELEASED, len(numbers), fields))
    return lost


def give_back(decider: Decider) -> None:
    """Give back every attempt of this process, which ends in good order.

    No attempt is used, but how far each has come nobody knows: the next start is told.
    What may start only once is left to the next opening, which ends it.
    """
    numbers = sorted(
        number
        for number, row in decider.state.leased.items()
        if not row.options.get(F.AT_MOST_ONCE)
    )
    if numbers:
        fields: dict[int, object] = {F.NUMBER: numbers, F.MAY_HAVE_RUN: True}
        decider.emit(Fact(Kind.RELEASED, len(numbers), fields))


def reject(
    decider: Decider, number: int, fence: int, task_id: str, reason: str
) -> None:
    """Make a leased task dead.

    Raises:
        LeaseLost: If the fence is stale.
    """
    held(decider, number, fence, task_id)
    decider.emit(Fact(Kind.REJECTED, 1, {F.NUMBER: [number], F.REASON: reason}))


def renew(
    decider: Decider, number: int, fence: int, task_id: str, lease_ms: int | None
) -> int:
    """Restart a lease's clock; return until when it holds, in boottime.

    Raises:
        LeaseLost: If the fence is stale.
    """
    row = _running(decider, number, fence, task_id)
    until_ms = decider.now.boottime_ms + (lease_ms or row.lease_ms)
    decider.emit(Fact(Kind.RENEWED, 1, {F.NUMBER: [number], F.UNTIL: [until_ms]}))
    heappush(decider.lease_ends, (until_ms, number))
    return until_ms


def save(
    decider: Decider, number: int, fence: int, task_id: str, cursor: bytes
) -> None:
    """Keep a resume point for the next attempt.

    Raises:
        LeaseLost: If the fence is stale.
    """
    _running(decider, number, fence, task_id)
    decider.emit(Fact(Kind.SAVED, 1, {F.NUMBER: [number], F.CURSOR: cursor}))


# Attempts: cut short, or never begun.


def expire_tasks(decider: Decider, numbers: Sequence[int]) -> int:
    """End those of the tasks that wait, are due and have expired; return how many."""
    state, now = decider.state, decider.now
    expired = []
    for number in dict.fromkeys(numbers):
        row = state.lookup(number)
        if row is None or row.state != SCHEDULED or row.paused:
            continue
        now_ms = now.wall_ms if row.timeline == WALL else now.elapsed_ms
        if (
            row.due_ms <= now_ms
            and row.queue not in state.paused_queues
            and _is_expired(decider, row)
        ):
            expired.append(number)
    if expired:
        decider.emit(Fact(Kind.EXPIRED, len(expired), {F.NUMBER: expired}))
    return len(expired)


def expire_leases(decider: Decider, rows: Sequence[Row]) -> None:
    """End attempts whose lease has run out, if they are as they were seen."""
    _cut_short(
        decider,
        Kind.LEASE_EXPIRED,
        [row for row in rows if decider.state.leased.get(row.number) is row],
        lambda row: row.attempts >= max_attempts(row),
        "lease expired",
    )


def interrupt(decider: Decider, rows: Sequence[Row], recoveries_max: int) -> None:
    """End the attempts of a process that died; they count as recoveries."""
    _cut_short(
        decider,
        Kind.INTERRUPTED,
        rows,
        lambda row: row.recoveries >= recoveries_max,
        "interrupted",
    )


def _cut_short(
    decider: Decider,
    kind: Kind,
    rows: Sequence[Row],
    is_used_up: Callable[[Row], bool],
    reason: str,
) -> None:
    again: list[int] = []
    dead: list[int] = []
    for row in rows:
        once = row.options.get(F.AT_MOST_ONCE)
        (dead if once or is_used_up(row) else again).append(row.number)
    for numbers, outcome in ((again, SCHEDULED), (dead, DEAD)):
        if numbers:
            fields: dict[int, object] = {
                F.NUMBER: numbers,
                F.DUE: decider.now.elapsed_ms,
                F.STATE: outcome,
            }
            if outcome == DEAD:
                fields[F.REASON] = reason
            decider.emit(Fact(kind, len(numbers), fields))
