"""The values that callers see: tasks, receipts, states, retry policies.

A task is *scheduled* for a due time on one of two timelines, comes *due*, is *leased*
for one attempt, and ends:

    schedule                lease               ack
       │                      │                  │
       ▼        due time      ▼                  ▼
    scheduled ──────────► due ───────► leased ──────────► done
       ▲                                │  │ │
       │ nack with attempts left,       │  │ └─ reject, attempts used up ─► dead
       └── release, lease expired ──────┘  └─── cancelled meanwhile ─► cancelled

    scheduled ─► cancelled · expired · paused ─► scheduled · parked ─► scheduled
    dead ─► scheduled (revive)

Everything here is immutable and knows no clock, lock or file.  Instants are aware
``datetime`` values and durations seconds only at this public edge; inside, both are
integer milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

__all__ = (
    "CancelOutcome",
    "Event",
    "Exponential",
    "Finding",
    "Fixed",
    "Linear",
    "NewTask",
    "Receipt",
    "Retry",
    "Seconds",
    "Task",
    "TaskOptions",
    "TaskState",
)

Seconds: TypeAlias = float | timedelta


class TaskState(StrEnum):
    """Where a task is in its life."""

    SCHEDULED = "scheduled"
    DUE = "due"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PARKED = "parked"
    PAUSED = "paused"


class CancelOutcome(StrEnum):
    """What a cancel found."""

    CANCELLED = "cancelled"
    LEASED = "leased"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Waits of ``base``, twice that, four times that … seconds, at most ``cap``."""

    base: float
    cap: float = 10.0

    def seconds(self, attempt: int) -> float:
        """Return the wait after attempt number ``attempt``, which counts from 1."""
        # The exponent is bounded before it is used: 2.0 ** 1100 would overflow.
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, 1000))


@dataclass(frozen=True, slots=True)
class Linear:
    """Waits of ``step``, twice that, three times that … seconds, at most ``cap``."""

    step: float
    cap: float = 600.0

    def seconds(self, attempt: int) -> float:
        """Return the wait after attempt number ``attempt``, which counts from 1."""
        return min(self.cap, self.step * attempt)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A wait of ``wait`` seconds after every attempt."""

    wait: float

    def seconds(self, attempt: int) -> float:
        """Return the wait, whatever the attempt."""
        return self.wait


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a task may fail, and how long it waits in between.

    The wait is drawn evenly between zero and what ``backoff`` says ("full jitter"),
    seeded by task and attempt, so that a thousand tasks that failed together do not
    come back together and a replay waits the same time.

    Attributes:
        max_attempts: Starts in all; the failure of the last one makes the task dead.
        backoff: The longest wait after each attempt.
        on: The exceptions that may be retried; any other one makes the task dead.
    """

    max_attempts: int = 3
    backoff: Exponential | Linear | Fixed = field(
        default_factory=lambda: Exponential(1.0, cap=10.0)
    )
    on: tuple[type[BaseException], ...] = (Exception,)


class TaskOptions(TypedDict, total=False):
    """The keyword arguments of ``schedule``; what is left out has its default.

    Attributes:
        delay: Seconds of elapsed time from now; zero or less is due at once.
        at: The instant on the wall clock, an aware ``datetime``.
        id: The caller's own id, 1 to 255 bytes of UTF-8.
        version: A higher version of an id takes the place of a lower one.
        if_exists: ``"same"``, ``"keep"`` or ``"replace"``.
        queue: The queue, ``"default"`` unless given.
        priority: Lower numbers are leased first, 0 unless given, -128 to 127.
        retry: The retry policy.
        lease: Seconds an attempt may take before it counts as lost.
        expires: Seconds after the due time, or an instant, from which on the task
            is not started any more.
        tags: Words to find tasks by.
        headers: Text by text, carried along unread (trace context, routing).
        at_most_once: Never start again after an attempt was cut short.
        durability: ``"fsync"`` or ``"written"``, for this call alone.
    """

    delay: Seconds
    at: datetime
    id: str
    version: int
    if_exists: str
    queue: str
    priority: int
    retry: Retry
    lease: Seconds
    expires: Seconds | datetime
    tags: Sequence[str]
    headers: Mapping[str, str]
    at_most_once: bool
    durability: str


class NewTask:
    """A task to be scheduled, as a value: ``schedule``'s arguments, not yet judged.

    Only what was given is kept, so that defaults cost nothing on the way to the log
    and two requests are the same exactly if their arguments are.
    """

    __slots__ = ("name", "options", "payload")

    def __init__(
        self, name: str, payload: object = None, **options: Unpack[TaskOptions]
    ) -> None:
        self.name = name
        self.payload = payload
        self.options = options

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"NewTask({self.name!r}, {self.payload!r}{options})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NewTask):
            return NotImplemented
        return (self.name, self.payload, self.options) == (
            other.name,
            other.payload,
            other.options,
        )

    __hash__ = None  # type: ignore[assignment]  # payloads are lists and dicts


# One is made for every call, in a third of the time of a frozen dataclass.
class Receipt(NamedTuple):
    """What ``schedule`` returns once the promised durability is reached.

    Attributes:
        id: The task's id, the caller's or a generated one.
        due_at: When it is due; ``None`` for a delay while the clock is untrusted.
        lsn: The log position of the change, or of the task that was already there.
        created: Whether this call scheduled it.
        state: Where the task is now.
        version: The version that stands.
        durability: The level that was reached.
    """

    id: str
    due_at: datetime | None
    lsn: int
    created: bool
    state: TaskState
    version: int
    durability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task as it stood when it was read.

    Attributes:
        id: The caller's id, or the generated one.
        number: The log position at which it was scheduled; never reused.
        due_at: When it is due; an estimate for ``due_kind="elapsed"`` and ``None``
            there while the clock is untrusted.
        due_kind: ``"elapsed"`` or ``"wall"``: the timeline of the due time.
        due_in: Seconds until it is due, negative once overdue.
        held: Why it does not fire although it might be due, or ``None``.
        attempts: Starts that used up an attempt.
        recoveries: Starts cut short by the death of their process.
        result: What the ack brought, for ids that the caller gave.
        error: The last failure, or the reason of a dead task.
    """

    id: str
    number: int
    name: str
    queue: str
    payload: object
    state: TaskState
    version: int
    lsn: int
    due_at: datetime | None
    due_kind: str
    due_in: float | None
    held: str | None
    priority: int
    attempts: int
    recoveries: int
    tags: tuple[str, ...]
    headers: Mapping[str, str]
    created_at: datetime | None
    finished_at: datetime | None
    result: object
    error: str | None
    series: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One durable fact, as ``history`` and ``watch`` show it.

    Attributes:
        lsn: Its position in the log.
        hlc: Its stamp on the hybrid logical clock, one integer.
        at: The wall time within that stamp.
        by: Who caused it: the library, a command and its user, the wheel.
        kind: What happened, e.g. ``"scheduled"``.
        id: The task it concerns, or ``None``.
        fields: The details, by name.
    """

    lsn: int
    hlc: int
    at: datetime
    by: str
    kind: str
    id: str | None
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that ``check`` found wrong.

    Attributes:
        where: The room or file it concerns.
        what: What is wrong, as a sentence.
        path: The file, where there is one.
        lsn: The log position, where there is one.
    """

    where: str
    what: str
    path: str | None = None
    lsn: int | None = None
