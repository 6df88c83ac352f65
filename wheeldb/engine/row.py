"""Rows: one unfinished task, and the little that is kept of a finished one.

A ``Row`` is never changed in place once the state holds it: who changes a task copies
its row, changes the copy and puts that (so that an undo needs nothing but the old
reference).  Its bytes are one msgpack map from the field numbers of ``events.F`` to
values, defaults left out; a task due at 900,000 ms of elapsed time::

    {3: "valve.close", 4: b"\\x81\\xa5valve\\x07", 6: 900000, 28: 1767225600000}

Fields that this release does not know stay in ``options`` and are written back.
"""

from wheeldb.events import ELAPSED, F, pack_fields, unpack_fields

__all__ = (
    "DEAD",
    "LEASED",
    "PARKED",
    "SCHEDULED",
    "Finished",
    "Row",
    "generated_id",
    "headers_of",
)

# Durable states of a row.  Due and paused are seen, not stored: a scheduled row whose
# time has come, and one whose ``paused`` flag (or whose queue's) is set.
SCHEDULED, LEASED, DEAD, PARKED = 1, 2, 3, 4

LEASE_MS_DEFAULT = 30_000
QUEUE_DEFAULT = "default"


def generated_id(number: int) -> str:
    """Return the id of a task whose caller gave none: a function of its number."""
    return f"t{number:014x}"


class Row:
    """One unfinished task: what it is, and how it fares."""

    __slots__ = (  # noqa: RUF023  # by what they are about
        # What it is; from the scheduling event.
        "number",
        "id",
        "name",
        "payload",
        "timeline",
        "due_ms",
        "created_ms",
        "options",
        # How it fares; from what happened since.
        "lsn",
        "state",
        "attempts",
        "recoveries",
        "fence",
        "until_ms",
        "holder",
        "behind",
        "cancelled",
        "paused",
        "may_have_run",
        "cursor",
        "error",
        # Where it stands in the index: whether its due key is rounded down.
        "coarse",
    )

    def __init__(
        self,
        number: int,
        name: str,
        payload: bytes,
        timeline: int,
        due_ms: int,
        created_ms: int,
        *,
        id: str | None = None,  # the contract's word
        options: dict[int, object] | None = None,
    ) -> None:
        self.number = number
        self.id = id
        self.name = name
        self.payload = payload
        self.timeline = timeline
        self.due_ms = due_ms
        self.created_ms = created_ms
        self.options: dict[int, object] = options if options is not None else {}
        self.lsn = number
        self.state = SCHEDULED
        self.attempts = 0
        self.recoveries = 0
        self.fence = 0
        self.until_ms = 0
        self.holder = 0
        self.behind: tuple[int, int] | None = None
        self.cancelled = False
        self.paused = False
        self.may_have_run = False
        self.cursor: bytes | None = None
        self.error: str | None = None
        self.coarse = False

    def copy(self, lsn: int) -> "Row":
        """Return a copy that was last changed at ``lsn``."""
        new = Row.__new__(Row)
        new.number = self.number
        new.id = self.id
        new.name = self.name
        new.payload = self.payload
        new.timeline = self.timeline
        new.due_ms = self.due_ms
        new.created_ms = self.created_ms
        new.options = self.options
        new.lsn = lsn
        new.state = self.state
        new.attempts = self.attempts
        new.recoveries = self.recoveries
        new.fence = self.fence
        new.until_ms = self.until_ms
        new.holder = self.holder
        new.behind = self.behind
        new.cancelled = self.cancelled
        new.paused = self.paused
        new.may_have_run = self.may_have_run
        new.cursor = self.cursor
        new.error = self.error
        new.coarse = False
        return new

    @property
    def task_id(self) -> str:
        """The caller's id, or the generated one."""
        return self.id if self.id is not None else generated_id(self.number)

    @property
    def queue(self) -> str:
        return self.options.get(F.QUEUE, QUEUE_DEFAULT)  # type: ignore[return-value]

    @property
    def priority(self) -> int:
        return self.options.get(F.PRIORITY, 0)  # type: ignore[return-value]

    @property
    def version(self) -> int:
        return self.options.get(F.VERSION, 0)  # type: ignore[return-value]

    @property
    def digest(self) -> bytes | None:
        return self.options.get(F.DIGEST)  # type: ignore[return-value]

    @property
    def lease_ms(self) -> int:
        return self.options.get(F.LEASE, LEASE_MS_DEFAULT)  # type: ignore[return-value]

    def expired_at(self) -> tuple[int, int] | None:
        """Return (timeline, instant) from which on it is not started, or ``None``."""
        expires = self.options.get(F.EXPIRES)
        if expires is None:
            return None
        if type(expires) is int:
            return self.timeline, self.due_ms + expires
        if len(expires) == 3:  # type: ignore[arg-type]
            # Another attempt moved the due time: this was reckoned from the one before.
            return expires[0], expires[1]  # type: ignore[index]
        return 1, expires[0]  # type: ignore[index]

    def pack(self, *, coarse: bool = False) -> bytes:
        """Return the row's bytes, defaults left out.

        Args:
            coarse: Whether the index keeps it under a due key that is rounded down.
        """
        fields: dict[int, object] = {F.NAME: self.name, F.PAYLOAD: self.payload}
        if self.id is not None:
            fields[F.ID] = self.id
        if self.timeline != ELAPSED:
            fields[F.TIMELINE] = self.timeline
        fields[F.DUE] = self.due_ms
        fields[F.CREATED] = self.created_ms
        if self.options:
            fields.update(self.options)
        if self.lsn != self.number:  # something happened since it was scheduled
            self._pack_progress(fields)
        if coarse:
            fields[F.COARSE] = True
        return pack_fields(fields)

    def _pack_progress(self, fields: dict[int, object]) -> None:
        progress = (
            (F.STATE, self.state, SCHEDULED),
            (F.ATTEMPTS, self.attempts, 0),
            (F.RECOVERIES, self.recoveries, 0),
            (F.FENCE, self.fence, 0),
            (F.UNTIL, self.until_ms, 0),
            (F.HOLDER, self.holder, 0),
            (F.BEHIND, self.behind, None),
            (F.CANCELLED, self.cancelled, False),
            (F.PAUSED, self.paused, False),
            (F.MAY_HAVE_RUN, self.may_have_run, False),
            (F.CURSOR, self.cursor, None),
            (F.ERROR, self.error, None),
        )
        fields.update(
            {number: value for number, value, default in progress if value != default}
        )

    @classmethod
    def unpack(cls, number: int, lsn: int, packed: bytes) -> "Row":
        """Return the row that ``packed`` holds."""
        fields = unpack_fields(packed)
        take = fields.pop
        row = cls(
            number,
            take(F.NAME),  # type: ignore[arg-type]
            take(F.PAYLOAD),  # type: ignore[arg-type]
            take(F.TIMELINE, ELAPSED),  # type: ignore[arg-type]
            take(F.DUE),  # type: ignore[arg-type]
            take(F.CREATED),  # type: ignore[arg-type]
            id=take(F.ID, None),  # type: ignore[arg-type]
        )
        row.lsn = lsn
        row.coarse = take(F.COARSE, False)  # type: ignore[assignment]
        if lsn != number:
            row.state = take(F.STATE, SCHEDULED)  # type: ignore[assignment]
            row.attempts = take(F.ATTEMPTS, 0)  # type: ignore[assignment]
            row.recoveries = take(F.RECOVERIES, 0)  # type: ignore[assignment]
            row.fence = take(F.FENCE, 0)  # type: ignore[assignment]
            row.until_ms = take(F.UNTIL, 0)  # type: ignore[assignment]
            row.holder = take(F.HOLDER, 0)  # type: ignore[assignment]
            behind = take(F.BEHIND, None)
            if behind is not None:
                timeline, due_ms = behind  # type: ignore[misc]
                row.behind = (timeline, due_ms)  # type: ignore[has-type]
            row.cancelled = take(F.CANCELLED, False)  # type: ignore[assignment]
            row.paused = take(F.PAUSED, False)  # type: ignore[assignment]
            row.may_have_run = take(F.MAY_HAVE_RUN, False)  # type: ignore[assignment]
            row.cursor = take(F.CURSOR, None)  # type: ignore[assignment]
            row.error = take(F.ERROR, None)  # type: ignore[assignment]
        row.options = fields
        return row


def headers_of(row: Row) -> dict[str, str]:
    """Return what the caller passed along."""
    headers: dict[str, str] = row.options.get(F.HEADERS, {})  # type: ignore[assignment]
    return dict(headers)


class Finished:
    """What is kept of a finished task whose caller gave its id."""

    __slots__ = ("fields", "lsn")

    def __init__(self, lsn: int, fields: dict[int, object]) -> None:
        self.lsn = lsn
        self.fields = fields

    @property
    def id(self) -> str:
        return self.fields[F.ID]  # type: ignore[return-value]

    @property
    def number(self) -> int:
        return self.fields[F.NUMBER]  # type: ignore[return-value]

    @property
    def state(self) -> str:
        return self.fields[F.STATE]  # type: ignore[return-value]

    @property
    def version(self) -> int:
        return self.fields.get(F.VERSION, 0)  # type: ignore[return-value]

    @property
    def digest(self) -> bytes | None:
        return self.fields.get(F.DIGEST)  # type: ignore[return-value]

    @property
    def fence(self) -> int:
        return self.fields.get(F.FENCE, 0)  # type: ignore[return-value]

    @property
    def finished_ms(self) -> int:
        return self.fields[F.FINISHED]  # type: ignore[return-value]

    def pack(self) -> bytes:
        """Return its bytes."""
        return pack_fields(self.fields)

    @classmethod
    def unpack(cls, lsn: int, packed: bytes) -> "Finished":
        """Return what ``packed`` holds."""
        return cls(lsn, unpack_fields(packed))
