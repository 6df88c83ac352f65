"""A store as a plain dictionary: what the public contract says, and nothing else.

It knows no log, index, window or event. Each method does at once what the call of the
same name promises, or raises the name of the refusal; times are milliseconds, and the
present comes in with ``at``. Tests hold the real store against it.

    model.at(now)
    model.schedule(Asked("a", delay_ms=500, id="x"), number=7)
    model.tasks[7].state        "scheduled", or "due" to `shown` half a second later
"""

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, field, replace

from wheeldb.clock.timekeeper import Now

ELAPSED, WALL = "elapsed", "wall"


class Refused(Exception):
    """The call is refused; `args[0]` is the name of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of one `schedule`, in milliseconds."""

    name: str = "job"
    payload: object = None
    delay_ms: int | None = None
    at_ms: int | None = None
    id: str | None = None
    version: int = 0
    if_exists: str = "same"
    queue: str = "default"
    priority: int = 0
    expires_ms: int | None = None
    expires_at_ms: int | None = None
    at_most_once: bool = False
    lease_ms: int = 30_000
    attempts_max: int = 3

    @property
    def key(self) -> "Asked":
        """What makes two requests the same."""
        delay_ms = None if self.delay_ms is None else max(self.delay_ms, 0)
        return replace(self, if_exists="same", delay_ms=delay_ms)


@dataclass(slots=True)
class Kept:
    """One unfinished task."""

    number: int
    asked: Asked
    timeline: str
    due_ms: int
    state: str = "scheduled"
    attempts: int = 0
    recoveries: int = 0
    fence: int = 0
    until_ms: int = 0
    behind: tuple[str, int] | None = None
    # Set once another attempt has moved the due time from which it was reckoned.
    expiry: tuple[str, int] | None = None
    is_cancelled: bool = False
    is_paused: bool = False
    cursor: object = None
    error: str | None = None


@dataclass(slots=True)
class Ended:
    """A finished task whose caller gave its id."""

    number: int
    asked: Asked
    state: str
    fence: int
    attempts: int
    recoveries: int
    result: object
    # Set when the store has shown it.
    finished_ms: int | None = None
    # Whether its retention was over once: it may have been forgotten then.
    was_old: bool = False


@dataclass(slots=True)
class StoreModel:
    """All of them, by number and id."""

    tasks: dict[int, Kept] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    paused_queues: set[str] = field(default_factory=set)
    retention_ms: int = 86_400_000
    elapsed_ms: int = 0
    wall_ms: int = 0
    boottime_ms: int = 0
    is_believed: bool = True

    def copy(self) -> "StoreModel":
        """Return an independent copy."""
        other = copy(self)
        other.tasks = {number: copy(task) for number, task in self.tasks.items()}
        other.ended = {id_: copy(ended) for id_, ended in self.ended.items()}
        other.numbers = set(self.numbers)
        other.paused_queues = set(self.paused_queues)
        return other

    def at(self, now: Now) -> None:
        """Let it be now."""
        self.elapsed_ms = now.elapsed_ms
        self.wall_ms = now.wall_ms
        self.boottime_ms = now.boottime_ms
        self.is_believed = now.trust != "untrusted"
        for ended in self.ended.values():
            if ended.finished_ms is not None and self.is_believed:
                age_ms = self.wall_ms - ended.finished_ms
                ended.was_old = ended.was_old or age_ms >= self.retention_ms

    # What is there.

    def live(self, task_id: str | None) -> Kept | None:
        """Return the unfinished task under an id, the caller's or a generated one."""
        if task_id is None:
            return None
        for task in self.tasks.values():
            if self.id_of(task) == task_id:
                return task
        return None

    def remembered(self, task_id: str | None) -> Ended | None:
        """Return the finished task under a caller's id, within its retention."""
        ended = self.ended.get(task_id or "")
        if ended is None:
            return None
        if ended.finished_ms is None or not self.is_believed:
            return ended
        is_kept = self.wall_ms - ended.finished_ms < self.retention_ms
        return ended if is_kept else None

    @staticmethod
    def id_of(task: Kept) -> str:
        return task.asked.id or f"t{task.number:014x}"

    def now_ms(self, timeline: str) -> int:
        return self.wall_ms if timeline == WALL else self.elapsed_ms

    def is_due(self, task: Kept) -> bool:
        return task.due_ms <= self.now_ms(task.timeline)

    def is_waiting(self, task: Kept) -> bool:
        """Return whether nothing but its time keeps it from being leased."""
        return (
            task.state == "scheduled"
            and not task.is_paused
            and task.asked.queue not in self.paused_queues
        )

    def shown(self, task: Kept) -> str:
        """Return the state that callers see."""
        if task.state != "scheduled":
            return task.state
        if not self.is_waiting(task):
            return "paused"
        return "due" if self.is_due(task) else "scheduled"

    def is_expired(self, task: Kept) -> bool:
        asked = task.asked
        if asked.expires_at_ms is not None:
            return self.wall_ms >= asked.expires_at_ms
        expiry = self._expiry(task)
        return expiry is not None and self.now_ms(expiry[0]) >= expiry[1]

    @staticmethod
    def _expiry(task: Kept) -> tuple[str, int] | None:
        """Return when a task expires that has seconds for it."""
        if task.expiry is None and task.asked.expires_ms is not None:
            return task.timeline, task.due_ms + task.asked.expires_ms
        return task.expiry

    # Scheduling and changing.

    def schedule(self, asked: Asked, number: int) -> tuple[Kept | Ended, bool]:
        """Return what stands under the id, and whether this call put it there."""
        timeline, due_ms = self._due(asked.delay_ms, asked.at_ms)
        standing = self.live(asked.id) or self.remembered(asked.id)
        if standing is not None:
            old = standing.asked.version
            if asked.version < old:
                raise Refused("StaleVersion")
            if asked.version > old:
                if isinstance(standing, Kept) and standing.state == "leased":
                    standing.asked = asked
                    standing.behind = (timeline, due_ms)
                    standing.is_cancelled = False
                    return standing, True
            elif asked.if_exists != "replace":
                if asked.if_exists == "keep" or asked.key == standing.asked.key:
                    return standing, False
                raise Refused("TaskExists")
            if isinstance(standing, Kept):
                del self.tasks[standing.number]
        if asked.id is not None:
            self.ended.pop(asked.id, None)
        task = Kept(number, asked, timeline, due_ms)
        self.tasks[number] = task
        self.numbers.add(number)
        return task, True

    def _due(self, delay_ms: int | None, at_ms: int | None) -> tuple[str, int]:
        if delay_ms is None:
            assert at_ms is not None, "neither delay nor instant"
            return WALL, at_ms
        return ELAPSED, self.elapsed_ms + max(delay_ms, 0)

    def cancel(self, task_id: str, *, running: bool = False) -> str:
        task = self.live(task_id)
        if task is None:
            ended = self.remembered(task_id)
            if ended is not None:
                return "cancelled" if ended.state == "cancelled" else "finished"
            generated = {f"t{number:014x}" for number in self.numbers}
            return "finished" if task_id in generated else "unknown"
        if task.state == "leased" and not running:
            task.is_cancelled = True
            return "leased"
        self._end(task, "cancelled")
        return "cancelled"

    def reschedule(self, task_id: str, delay_ms: int | None, at_ms: int | None) -> None:
        self._move(task_id, *self._due(delay_ms, at_ms))

    def run_now(self, task_id: str) -> None:
        self._move(task_id, ELAPSED, self.elapsed_ms).is_paused = False

    def _move(self, task_id: str, timeline: str, due_ms: int) -> Kept:
        task = self._found(task_id)
        if task.state == "leased":
            task.behind = (timeline, due_ms)
            return task
        if task.state == "dead":
            task.attempts = task.recoveries = 0
        self._wait(task, timeline, due_ms)
        task.fence = 0
        return task

    def revive(self, task_id: str) -> int:
        task = self._found(task_id)
        if task.state != "dead":
            return 0
        self._wait(task, ELAPSED, self.elapsed_ms)
        task.attempts = task.recoveries = task.fence = 0
        return 1

    def pause(self, task_id: str) -> None:
        self._found(task_id).is_paused = True

    def resume(self, task_id: str, *, now: bool) -> None:
        task = self._found(task_id)
        task.is_paused = False
        if now and task.state == "scheduled":
            self._wait(task, ELAPSED, self.elapsed_ms)
            task.fence = 0

    def resume_queue(
        self,
        queue: str,
        between: Callable[[], None] = lambda: None,
        *,
        now: bool,
    ) -> None:
        """Let a queue go on; `between` is called wherever a crash may come between."""
        self.paused_queues.discard(queue)
        for task in list(self.tasks.values()) if now else ():
            if task.asked.queue == queue and self.shown(task) == "scheduled":
                between()
                self.run_now(self.id_of(task))

    def _found(self, task_id: str) -> Kept:
        task = self.live(task_id)
        if task is None:
            raise Refused("TaskNotFound")
        return task

    # Attempts.

    def candidates(self, queues: list[str], names: list[str] | None) -> list[Kept]:
        """Return what may be leased now, in order."""
        found = [
            task
            for task in self.tasks.values()
            if self.is_waiting(task)
            and self.is_due(task)
            and not self.is_expired(task)
            and task.asked.queue in queues
            and (names is None or task.asked.name in names)
        ]
        return sorted(
            found,
            key=lambda task: (
                task.asked.priority,
                task.due_ms - self.now_ms(task.timeline),
                task.number,
            ),
        )

    def lease(self, task: Kept, fence: int) -> None:
        task.state = "leased"
        task.attempts += 1
        task.fence = fence
        task.until_ms = self.boottime_ms + task.asked.lease_ms

    def held(self, number: int, fence: int, *, late: bool = True) -> Kept:
        """Return the task of an attempt; `late`: also if its lease has run out."""
        task = self.tasks.get(number)
        if task is None or task.fence != fence:
            raise Refused("LeaseLost")
        if not late and task.state != "leased":
            raise Refused("LeaseLost")
        return task

    def ack(
        self,
        number: int,
        fence: int,
        task_id: str,
        result: object = None,
        then: list[tuple[Asked, int]] | None = None,
    ) -> list[tuple[Kept | Ended, bool]]:
        """Return what became of the follow-ups, nothing if they were dropped."""
        try:
            task = self.held(number, fence)
        except Refused:
            ended = self.remembered(task_id)
            if ended is not None and (ended.number, ended.fence, ended.state) == (
                number,
                fence,
                "done",
            ):
                return []
            raise
        is_cancelled = task.is_cancelled
        if not self._goes_on(task):
            self._end(task, "done", result)
        if is_cancelled:
            return []
        return [self.schedule(asked, new_number) for asked, new_number in then or ()]

    def nack(self, number: int, fence: int, error: str, retry_ms: int) -> None:
        task = self.held(number, fence)
        if self._is_over(task):
            return
        task.fence = 0
        task.error = error
        if task.attempts < task.asked.attempts_max and not task.asked.at_most_once:
            self._try_again(task, self.elapsed_ms + retry_ms)
        else:
            task.state = "dead"

    def release(self, number: int, fence: int, delay_ms: int) -> None:
        task = self.held(number, fence, late=False)
        if self._is_over(task):
            return
        task.fence = 0
        task.attempts -= 1
        task.state = "scheduled"
        if delay_ms:
            self._try_again(task, self.elapsed_ms + delay_ms)

    def reject(self, number: int, fence: int, reason: str) -> None:
        task = self.held(number, fence)
        if self._is_over(task):
            return
        task.fence = 0
        task.state = "dead"
        task.error = reason

    def renew(self, number: int, fence: int, lease_ms: int | None) -> None:
        task = self.held(number, fence, late=False)
        task.until_ms = self.boottime_ms + (lease_ms or task.asked.lease_ms)

    def save(self, number: int, fence: int, cursor: object) -> None:
        self.held(number, fence, late=False).cursor = cursor

    # Time and death.

    def poll(self) -> None:
        """End what has run out: leases, then tasks that nobody started in time."""
        for task in list(self.tasks.values()):
            if task.state == "leased" and task.until_ms <= self.boottime_ms:
                if self._is_over(task):
                    continue
                is_used_up = task.attempts >= task.asked.attempts_max
                if task.asked.at_most_once or is_used_up:
                    task.state, task.error = "dead", "lease expired"
                else:
                    self._try_again(task, self.elapsed_ms)

    def expire(self, unseen: Collection[int] = ()) -> None:
        """End the due tasks whose expiry has come, but those not seen to be due yet."""
        for task in list(self.tasks.values()):
            if task.number in unseen:
                continue
            if self.is_waiting(task) and self.is_due(task) and self.is_expired(task):
                self._end(task, "expired")

    def interrupt(self, recoveries_max: int) -> None:
        """End the attempts of a process that has ended."""
        for task in list(self.tasks.values()):
            if task.state == "leased":
                if self._is_over(task):
                    continue
                task.fence = 0
                task.attempts -= 1
                is_used_up = task.recoveries >= recoveries_max
                task.recoveries += 1
                if task.asked.at_most_once or is_used_up:
                    task.state, task.error = "dead", "interrupted"
                else:
                    self._try_again(task, self.elapsed_ms)

    def give_back(self) -> None:
        """End the attempts of a process that ends in good order."""
        for task in list(self.tasks.values()):
            if task.state == "leased" and not task.asked.at_most_once:
                if self._is_over(task):
                    continue
                task.fence = 0
                task.attempts -= 1
                task.state = "scheduled"

    def _is_over(self, task: Kept) -> bool:
        """Return whether a cancel or a new due time that waited has the last word."""
        if task.is_cancelled:
            self._end(task, "cancelled")
            return True
        return self._goes_on(task)

    def _goes_on(self, task: Kept) -> bool:
        if task.behind is None or task.is_cancelled:
            return False
        self._wait(task, *task.behind)
        task.behind = None
        task.attempts = task.recoveries = task.fence = 0
        task.cursor = task.error = None
        return True

    @staticmethod
    def _wait(task: Kept, timeline: str, due_ms: int) -> None:
        task.state, task.timeline, task.due_ms = "scheduled", timeline, due_ms
        task.expiry = None

    def _try_again(self, task: Kept, due_ms: int) -> None:
        """Let it wait for another attempt; when it expires stays as it is."""
        expiry = self._expiry(task)
        self._wait(task, ELAPSED, due_ms)
        task.expiry = expiry

    def _end(self, task: Kept, state: str, result: object = None) -> None:
        del self.tasks[task.number]
        if task.asked.id is not None:
            self.ended[task.asked.id] = Ended(
                task.number,
                task.asked,
                state,
                task.fence,
                task.attempts,
                task.recoveries,
                result,
            )
