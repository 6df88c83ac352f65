"""Decisions: what is refused, and what becomes an event.

A ``Decider`` works for one group commit at a time, under the state's lock, against a
state that already holds everything numbered before.  Each method judges one call and
then either raises a refusal, having changed nothing, or emits the facts that grant it;
``emit`` gives a fact its numbers, applies it and keeps its bytes for the frame.

    decider.begin(now, stamp)
    decider.cancel("valve-7", running=False)      → CancelOutcome.CANCELLED
    decider.parts                                 → the bytes of one CANCELLED event

An answer that needs no event of its own may rest on one that is not durable yet;
``rests_on`` tells which.  What is taken from the window's ready heaps is in ``taken``,
so that an interrupted decision can be undone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wheeldb.clock.timekeeper import Now
from wheeldb.engine import undo as undoing
from wheeldb.engine.columns import Columns
from wheeldb.engine.fold import Fact, apply
from wheeldb.engine.policy import max_attempts, retry_wait_ms
from wheeldb.engine.request import Request, lookup_id
from wheeldb.engine.row import DEAD, LEASED, SCHEDULED, Finished, Row
from wheeldb.engine.state import State
from wheeldb.engine.window import Window, entry_due, entry_number
from wheeldb.errors import (
    LeaseLost,
    QueueFull,
    StaleVersion,
    TaskError,
    TaskExists,
    TaskNotFound,
)
from wheeldb.events import ELAPSED, WALL, F, Kind, pack_author
from wheeldb.model import CancelOutcome

__all__ = ("Bounds", "Decider", "Scheduled")

HERE, OUTSIDE = 0, 1
# How many ready tasks a lease that names handlers looks at to find one.
NAMES_SCAN_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that decisions keep."""

    tasks_max: int | None
    bytes_max: int | None
    retention_ms: int
    recoveries_max: int


class Scheduled:
    """What became of the tasks of one request.

    Attributes:
        columns: The tasks that were scheduled, numbered; ``None`` if none was.
        positions: The request's position of each of them; ``None``: all, in order.
        standing: By position, what stands under the id of the others: a row (with
            whether this call put it there) or what is kept of a finished task.
    """

    __slots__ = ("columns", "count", "positions", "standing")

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: Columns | None = None
        self.positions: list[int] | None = None
        self.standing: dict[int, tuple[Row | Finished, bool]] = {}


class Decider:
    """Judges calls, one after the other, for one group."""

    def __init__(
        self,
        state: State,
        window: Window,
        bounds: Bounds,
    ) -> None:
        self.state = state
        self.window = window
        self.bounds = bounds
        # Makes the public value of a task for a refusal that shows it.
        self.existing: Callable[[Row | Finished], object] = lambda kept: kept
        # Makes sure of the room that so many unfinished tasks need to end.
        self.reserve: Callable[[int], None] = lambda count: None
        self.parts: list[bytes] = []
        self.taken: list[int] = []
        self.rests_on = 0
        self.author = ""
        self._written_author: str | None = None
        self._stamp = 0

    def begin(self, now: Now, stamp: int) -> None:
        """Start a group: its moment and the stamp of its first event."""
        self.now = now
        self.parts = []
        self.taken = []
        self.rests_on = 0
        self._stamp = stamp
        self._written_author = None

    @property
    def stamp(self) -> int:
        """The stamp that the next event would get."""
        return self._stamp

    def emit(self, fact: Fact) -> int:
        """Number and apply a fact and keep its bytes; return its first LSN."""
        lsn = self.state.last_lsn + 1
        if self.author != self._written_author:
            self.parts.append(pack_author(self.author))
            self._written_author = self.author
        self.parts.append(fact.pack())
        apply(self.state, fact, lsn, self._stamp)
        self._stamp += 1
        return lsn

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """All or nothing: what is refused within takes back everything within."""
        state, outer = self.state, self.state.undo
        inner = undoing.mark(state)
        parts_count, author = len(self.parts), self._written_author
        state.undo = inner
        try:
            yield
        except BaseException:
            undoing.roll_back(state, inner)
            del self.parts[parts_count:]
            self._written_author = author
            raise
        finally:
            state.undo = outer
            if outer is not None:
                undoing.merge(outer, inner)

    # Finding the task that an id means.

    def find(self, task_id: str) -> Row | Finished | None:
        """Return what stands under an id, as callers give it."""
        key = lookup_id(task_id)
        if type(key) is int:
            row = self.state.lookup(key)
            return row if row is not None and row.id is None else None
        number = self.state.number_of(key)  # type: ignore[arg-type]
        if number:
            return self.state.lookup(number)
        return self.remembered(self.state.finished_of(key), self.now)  # type: ignore[arg-type]

    def _row(self, task_id: str) -> Row:
        found = self.find(task_id)
        if isinstance(found, Row):
            return found
        raise TaskNotFound(
            f"no unfinished task has the id {task_id!r}"
            + (f"; it is {found.state}" if found is not None else "")
        )

    def remembered(self, finished: Finished | None, now: Now) -> Finished | None:
        """Return a finished task unless its id has been forgotten by now."""
        if finished is None:
            return None
        age_ms = now.wall_ms - finished.finished_ms
        return finished if age_ms < self.bounds.retention_ms else None

    # Scheduling.

    def schedule(self, request: Request) -> Scheduled:
        """Schedule a request's tasks.

        Raises:
            TaskExists, StaleVersion, QueueFull: As ``if_exists`` and ``version`` say.
        """
        columns = request.columns
        result = Scheduled(columns.count)
        if columns.ids is None:
            self._require_room(columns)
            fact = Fact(
                Kind.SCHEDULED,
                columns.count,
                {},
                columns=columns,
                packed=request.packed,
            )
            self.emit(fact)
            result.columns = columns
            return result
        plan = _Plan()
        for position, task_id in enumerate(columns.ids):
            if task_id is None:
                plan.chosen.append(position)
                continue
            try:
                self._judge_id(request, position, task_id, plan, result)
            except TaskError as refusal:
                refusal.index = position
                raise
        self._grant(request, plan, result)
        return result

    def _judge_id(
        self,
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
            else self.find(task_id)
        )
        if standing is None:
            plan.choose(position, task_id)
            return
        verdict = self._verdict(new, standing, request.if_exists_at(position))
        if verdict == "keep":
            if earlier is not None:
                plan.repeats[position] = earlier
            else:
                result.standing[position] = (standing, False)
                self.rests_on = max(self.rests_on, standing.lsn)
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

    def _verdict(self, new: Row, standing: Row | Finished, if_exists: str) -> str:
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
            self.existing(standing),
        )

    def _grant(self, request: Request, plan: "_Plan", result: Scheduled) -> None:
        columns = request.columns
        if plan.chosen:
            chosen = columns
            if len(plan.chosen) < columns.count:
                plan.chosen.sort()
                chosen = columns.select(plan.chosen)
                result.positions = plan.chosen
            self._require_room(chosen, len(plan.replaces))
        for position, number in plan.supersedes.items():
            definition = columns.row_at(position)
            fields: dict[int, object] = {
                F.NAME: definition.name,
                F.PAYLOAD: definition.payload,
                F.TIMELINE: definition.timeline,
                F.DUE: definition.due_ms,
                **definition.options,
            }
            self.emit(
                Fact(Kind.SUPERSEDED, 1, {F.NUMBER: number, F.DEFINITION: fields})
            )
            row = self.state.lookup(number)
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
            self.emit(fact)
            result.columns = chosen
        for position, source in plan.repeats.items():
            if source in plan.supersedes:
                result.standing[position] = (result.standing[source][0], False)
                continue
            assert result.columns is not None, "a repeated task was scheduled"
            index = plan.chosen.index(source)
            row = result.columns.row(result.columns.first + index)
            result.standing[position] = (row, False)

    def _require_room(self, columns: Columns, replaced: int = 0) -> None:
        bounds, state = self.bounds, self.state
        count = state.pending_count + columns.count - replaced
        if bounds.tasks_max is not None and count > bounds.tasks_max:
            raise QueueFull(
                f"{state.pending_count} tasks are pending and {columns.count} more were "
                f"asked for; tasks_max is {bounds.tasks_max}"
            )
        self.reserve(count)
        if bounds.bytes_max is not None:
            size = sum(map(len, columns.payloads))
            if state.payload_bytes + size > bounds.bytes_max:
                raise QueueFull(
                    f"payloads of {state.payload_bytes} bytes are pending and {size} "
                    f"more were asked for; bytes_max is {bounds.bytes_max}"
                )

    # Changing what is scheduled.

    def cancel(self, task_id: str, *, running: bool) -> CancelOutcome:
        """Cancel a task; while it is leased, that attempt is its last."""
        found = self.find(task_id)
        if isinstance(found, Finished):
            self.rests_on = max(self.rests_on, found.lsn)
            if found.state == "cancelled":
                return CancelOutcome.CANCELLED
            return CancelOutcome.FINISHED
        if found is None:
            key = lookup_id(task_id)
            if type(key) is int and 0 < key <= self.state.last_lsn:
                return CancelOutcome.FINISHED
            return CancelOutcome.UNKNOWN
        fields: dict[int, object] = {F.NUMBER: [found.number]}
        if found.state != LEASED or running:
            self.emit(Fact(Kind.CANCELLED, 1, fields))
            return CancelOutcome.CANCELLED
        if found.cancelled:
            self.rests_on = max(self.rests_on, found.lsn)
        else:
            self.emit(Fact(Kind.CANCELLED, 1, {**fields, F.CANCELLED: True}))
        return CancelOutcome.LEASED

    def reschedule(
        self, task_id: str, timeline: int, due_ms: int, expect_lsn: int | None
    ) -> Row:
        """Give a task another due time; behind the running attempt if there is one.

        Raises:
            TaskNotFound: If there is no such unfinished task.
            StaleVersion: If it was changed after ``expect_lsn``.
        """
        row = self._row(task_id)
        if expect_lsn is not None and row.lsn != expect_lsn:
            raise StaleVersion(
                f"{task_id!r} was last changed at LSN {row.lsn}, not {expect_lsn}; "
                "get it again and decide anew"
            )
        fields: dict[int, object] = {F.NUMBER: [row.number], F.DUE: due_ms}
        if timeline != ELAPSED:
            fields[F.TIMELINE] = timeline
        self.emit(Fact(Kind.RESCHEDULED, 1, fields))
        return self._now_standing(row.number)

    def revive(self, task_id: str) -> bool:
        """Make a dead task due at once, with all its attempts; False if it lives.

        Raises:
            TaskNotFound: If there is no such unfinished task.
        """
        row = self._row(task_id)
        if row.state != DEAD:
            return False
        fields = {F.NUMBER: [row.number], F.DUE: self.now.elapsed_ms}
        self.emit(Fact(Kind.REVIVED, 1, fields))
        return True

    def run_now(self, task_id: str) -> Row:
        """Make a task due at once, whatever it waits for.

        Raises:
            TaskNotFound: If there is no such unfinished task.
        """
        row = self._row(task_id)
        fields = {F.NUMBER: [row.number], F.DUE: self.now.elapsed_ms}
        self.emit(Fact(Kind.STARTED_NOW, 1, fields))
        return self._now_standing(row.number)

    def pause(self, task_id: str) -> None:
        """Keep a task from being started until it is resumed.

        Raises:
            TaskNotFound: If there is no such unfinished task.
        """
        row = self._row(task_id)
        if row.paused:
            self.rests_on = max(self.rests_on, row.lsn)
        else:
            self.emit(Fact(Kind.PAUSED, 1, {F.NUMBER: [row.number]}))

    def resume(self, task_id: str, *, now: bool) -> None:
        """Let a paused task be started again, with ``now`` at once.

        Raises:
            TaskNotFound: If there is no such unfinished task.
        """
        row = self._row(task_id)
        if not row.paused and not now:
            self.rests_on = max(self.rests_on, row.lsn)
            return
        fields: dict[int, object] = {F.NUMBER: [row.number]}
        if now:
            fields[F.DUE] = self.now.elapsed_ms
        self.emit(Fact(Kind.RESUMED, 1, fields))

    def pause_queue(self, queue: str) -> bool:
        """Keep a queue's tasks from being started; return whether that is new."""
        if queue in self.state.paused_queues:
            return False
        self.emit(Fact(Kind.QUEUE_PAUSED, 1, {F.QUEUE: queue}))
        return True

    def resume_queue(self, queue: str) -> bool:
        """Let a paused queue go on; return whether it was paused."""
        if queue not in self.state.paused_queues:
            return False
        self.emit(Fact(Kind.QUEUE_RESUMED, 1, {F.QUEUE: queue}))
        return True

    def _now_standing(self, number: int) -> Row:
        row = self.state.lookup(number)
        assert row is not None, f"task {number} is gone"
        return row

    # Attempts: begun.

    def lease(
        self, queues: Sequence[str], limit: int, names: frozenset[str] | None
    ) -> list[Row]:
        """Lease up to ``limit`` due tasks.

        Order: priority (lower first), then the most overdue, then the lower LSN.
        """
        lanes = [
            lane
            for queue in queues
            if queue not in self.state.paused_queues
            for lane in self.state.lanes.of_queue(queue)
        ]
        numbers: list[int] = []
        until: list[int] = []
        expired: list[int] = []
        passed_over: list[int] = []
        boottime_ms = self.now.boottime_ms
        seen: set[int] = set()
        while len(numbers) < limit and len(passed_over) < NAMES_SCAN_MAX:
            lane = self._best_lane(lanes)
            if lane is None:
                break
            entry = self.window.first_ready(lane)
            assert entry is not None, f"lane {lane} has nothing ready"
            self.taken.append(entry)
            self.window.take(lane)
            row = self.state.lookup(entry_number(entry))
            if row is None or not self._is_current(row, entry, lane):
                continue
            if row.number in seen:
                continue
            seen.add(row.number)
            if self._is_expired(row):
                expired.append(row.number)
            elif names is not None and row.name not in names:
                passed_over.append(entry)
            else:
                numbers.append(row.number)
                until.append(boottime_ms + row.lease_ms)
        for entry in passed_over:
            self.window.make_ready(entry)
        if expired:
            self.emit(Fact(Kind.EXPIRED, len(expired), {F.NUMBER: expired}))
        if not numbers:
            return []
        fields: dict[int, object] = {F.NUMBER: numbers, F.UNTIL: until}
        self.emit(Fact(Kind.LEASED, len(numbers), fields))
        return [self.state.leased[number] for number in numbers]

    def _best_lane(self, lanes: list[int]) -> int | None:
        best: tuple[int, int, int, int] | None = None
        window, now = self.window, self.now
        for lane in lanes:
            entry = window.first_ready(lane)
            if entry is not None:
                timeline, _, priority = window.lanes.key(lane)
                now_ms = now.elapsed_ms if timeline == ELAPSED else now.wall_ms
                key = (
                    priority,
                    entry_due(entry) - now_ms,
                    entry_number(entry),
                    lane,
                )
                if best is None or key < best:
                    best = key
        return None if best is None else best[3]

    def _is_current(self, row: Row, entry: int, lane: int) -> bool:
        return (
            row.state == SCHEDULED
            and max(row.due_ms, 0) == entry_due(entry)
            and self.state.lanes.of_row(row) == lane
        )

    def _is_expired(self, row: Row) -> bool:
        at = row.expired_at()
        if at is None:
            return False
        now_ms = self.now.wall_ms if at[0] == WALL else self.now.elapsed_ms
        return now_ms >= at[1]

    # Attempts: ended or prolonged.

    def held(self, number: int, fence: int, task_id: str) -> Row:
        """Return the row of an attempt whose fence is still good.

        Raises:
            LeaseLost: If another attempt started, or the task was replaced or ended.
        """
        row = self.state.lookup(number)
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

    def ack(
        self,
        number: int,
        fence: int,
        task_id: str,
        result: bytes | None,
        then: Request | None,
    ) -> Scheduled | None:
        """Finish a task; schedule its follow-ups with it.

        Raises:
            LeaseLost: If the fence is stale.
            TaskExists, StaleVersion, QueueFull: If a follow-up is refused; the lease
                stays.
        """
        try:
            row = self.held(number, fence, task_id)
        except LeaseLost:
            if self._is_repeated_ack(number, fence, task_id):
                return None
            raise
        fields: dict[int, object] = {F.NUMBER: [number]}
        if result is not None:
            fields[F.RESULT] = {0: result}
        fact = Fact(Kind.ACKED, 1, fields)
        if then is None or row.cancelled:
            self.emit(fact)
            return None
        with self.atomic():
            self.emit(fact)
            return self.schedule(then)

    def _is_repeated_ack(self, number: int, fence: int, task_id: str) -> bool:
        if type(lookup_id(task_id)) is int:
            return False
        finished = self.remembered(self.state.finished_of(task_id), self.now)
        if finished is None or (finished.number, finished.fence) != (number, fence):
            return False
        self.rests_on = max(self.rests_on, finished.lsn)
        return finished.state == "done"

    def ack_many(self, leases: Sequence[tuple[int, int, str]]) -> list[int]:
        """Finish what is still held; return the positions of what is lost."""
        numbers: list[int] = []
        lost: list[int] = []
        for position, (number, fence, task_id) in enumerate(leases):
            row = self.state.lookup(number)
            if row is not None and row.fence == fence and fence:
                numbers.append(number)
            elif not self._is_repeated_ack(number, fence, task_id):
                lost.append(position)
        numbers = list(dict.fromkeys(numbers))
        if numbers:
            self.emit(Fact(Kind.ACKED, len(numbers), {F.NUMBER: numbers}))
        return lost

    def nack(
        self,
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
        row = self.held(number, fence, task_id)
        fields: dict[int, object] = {F.NUMBER: [number], F.ERROR: error}
        if row.attempts < max_attempts(row) and not row.options.get(F.AT_MOST_ONCE):
            wait_ms = retry_wait_ms(row) if retry_in_ms is None else retry_in_ms
            fields[F.DUE] = self.now.elapsed_ms + wait_ms
        self.emit(Fact(Kind.NACKED, 1, fields))
        return self.state.lookup(number)

    def release(
        self, leases: Sequence[tuple[int, int, str]], delay_ms: int
    ) -> list[int]:
        """Give attempts back unused; return the positions of what was lost."""
        numbers, lost = [], []
        for position, (number, fence, task_id) in enumerate(leases):
            try:
                numbers.append(self.held(number, fence, task_id).number)
            except LeaseLost:
                lost.append(position)
        if numbers:
            fields: dict[int, object] = {F.NUMBER: numbers}
            if delay_ms:
                fields[F.DUE] = self.now.elapsed_ms + delay_ms
            self.emit(Fact(Kind.RELEASED, len(numbers), fields))
        return lost

    def reject(self, number: int, fence: int, task_id: str, reason: str) -> None:
        """Make a leased task dead.

        Raises:
            LeaseLost: If the fence is stale.
        """
        self.held(number, fence, task_id)
        self.emit(Fact(Kind.REJECTED, 1, {F.NUMBER: [number], F.REASON: reason}))

    def renew(
        self, number: int, fence: int, task_id: str, lease_ms: int | None
    ) -> int:
        """Restart a lease's clock; return until when it holds, in boottime.

        Raises:
            LeaseLost: If the fence is stale.
        """
        row = self.held(number, fence, task_id)
        until_ms = self.now.boottime_ms + (lease_ms or row.lease_ms)
        self.emit(Fact(Kind.RENEWED, 1, {F.NUMBER: [number], F.UNTIL: [until_ms]}))
        return until_ms

    def save(self, number: int, fence: int, task_id: str, cursor: bytes) -> None:
        """Keep a resume point for the next attempt.

        Raises:
            LeaseLost: If the fence is stale.
        """
        self.held(number, fence, task_id)
        self.emit(Fact(Kind.SAVED, 1, {F.NUMBER: [number], F.CURSOR: cursor}))

    # Attempts: cut short.

    def expire_leases(self, rows: Sequence[Row]) -> None:
        """End attempts whose lease has run out, if they are as they were seen."""
        self._cut_short(
            Kind.LEASE_EXPIRED,
            [row for row in rows if self.state.leased.get(row.number) is row],
            lambda row: row.attempts >= max_attempts(row),
            "lease expired",
        )

    def interrupt(self, rows: Sequence[Row], recoveries_max: int) -> None:
        """End the attempts of a process that died; they count as recoveries."""
        self._cut_short(
            Kind.INTERRUPTED,
            rows,
            lambda row: row.recoveries >= recoveries_max,
            "interrupted",
        )

    def _cut_short(
        self,
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
                    F.DUE: self.now.elapsed_ms,
                    F.STATE: outcome,
                }
                if outcome == DEAD:
                    fields[F.REASON] = reason
                self.emit(Fact(kind, len(numbers), fields))


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
