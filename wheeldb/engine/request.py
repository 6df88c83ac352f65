"""What callers ask for, judged and packed in their own threads.

``Request.build`` turns ``NewTask`` values into columns.  Everything that can be judged
without looking at the state is judged here, so that a bad argument fails its own
caller only, before anything is written: types, ranges, sizes, time.

Seconds become whole milliseconds, rounded up; a due time is now, rounded down, plus
what the rounding cut off, plus the delay: nothing is early by rounding.

    build([NewTask("valve.close", {"valve": 7}, delay=900, id="valve-7")], now, limits)
    columns: names "valve.close", dues now + 900_000, ids ["valve-7"], digests [8 bytes]

The digest is that of the arguments as given (a delay stays a delay), so that the same
call made later is the same request.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TypeVar

import msgpack

from wheeldb.engine.columns import Columns
from wheeldb.errors import PayloadTooLarge
from wheeldb.events import ELAPSED, WALL, F
from wheeldb.model import Exponential, Fixed, Linear, NewTask, Retry
from wheeldb.payload import pack_payload

__all__ = (
    "DUE_MS_MAX",
    "Limits",
    "Moment",
    "Request",
    "build",
    "delay_ms",
    "instant_ms",
    "judge_id",
    "judge_text",
    "lookup_id",
    "span_ms",
)

# The last millisecond of the year 9999.
DUE_MS_MAX = 253_402_300_799_999
ID_BYTES_MAX = 255
LEASE_MS_MAX = 366 * 86_400_000
TAGS_MAX = 32
HEADERS_BYTES_MAX = 8_192
REQUEST_BYTES_MAX = 32 * 2**20

IF_EXISTS = ("same", "keep", "replace")
DURABILITIES = ("fsync", "written")

_Value = TypeVar("_Value")

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GENERATED = re.compile(r"t[0-9a-f]{14}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store accepts."""

    payload_bytes_max: int
    batch_max: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Now on both timelines, and the millisecond that rounding cut off."""

    elapsed_ms: int
    wall_ms: int
    cut_ms: int


class Request:
    """Tasks to be scheduled together: columns, and how to treat ids that exist."""

    __slots__ = ("columns", "durability", "if_exists", "packed")

    def __init__(
        self, columns: Columns, if_exists: list[str] | str, durability: str | None
    ) -> None:
        self.columns = columns
        self.if_exists = if_exists
        self.durability = durability
        # Without ids nothing about them depends on the state: packed right away.
        self.packed = columns.pack() if columns.ids is None else None

    def __len__(self) -> int:
        """Return how many tasks it asks for."""
        return self.columns.count

    @property
    def ids(self) -> list[str]:
        """The ids that callers gave."""
        ids = self.columns.ids or ()
        return [task_id for task_id in ids if task_id is not None]

    @property
    def size(self) -> int:
        """About how many bytes it adds to a frame."""
        return 16 * self.columns.count + sum(map(len, self.columns.payloads))

    def if_exists_at(self, position: int) -> str:
        """Return what is to happen if the id of one task exists."""
        if type(self.if_exists) is str:
            return self.if_exists
        return self.if_exists[position]


def build(
    tasks: Sequence[NewTask], moment: Moment, limits: Limits, *, many: bool
) -> Request:
    """Return the request that ``tasks`` make.

    Raises:
        TypeError: For an argument of the wrong type, or not exactly one of ``delay``
            and ``at``.
        ValueError: For one out of its range.
        PayloadTooLarge: For a payload, or all of them together, over the limit.

        With ``many``, the error's ``index`` tells which task it was.
    """
    builder = _Builder(moment, limits.payload_bytes_max)
    position = 0
    try:
        for task in tasks:
            builder.add(task)
            position += 1
    except (TypeError, ValueError) as error:
        if many:
            error.index = position  # type: ignore[union-attr]
            error.add_note(f"in task {position} of the call")
        raise
    return builder.request()


class _Builder:
    """Collects tasks into columns, one list each, folded where all are the same."""

    def __init__(self, moment: Moment, payload_bytes_max: int) -> None:
        self._moment = moment
        self._payload_bytes_max = payload_bytes_max
        self._names: list[str] = []
        self._payloads: list[bytes] = []
        self._dues: list[int] = []
        self._timelines: list[int] = []
        self._ids: list[str | None] = []
        self._digests: list[bytes | None] = []
        self._options: list[dict[int, object] | None] = []
        self._if_exists: list[str] = []
        self._durability: str | None = None
        self._bytes = 0

    def add(self, task: NewTask) -> None:
        """Judge one task and add it."""
        if type(task) is not NewTask:
            raise TypeError(f"a {type(task).__name__} is not a NewTask")
        name, options = task.name, task.options
        judge_text(name, "the task's name", ID_BYTES_MAX)
        packed = pack_payload(task.payload, self._payload_bytes_max)
        self._bytes += len(packed)
        if self._bytes > REQUEST_BYTES_MAX:
            raise PayloadTooLarge(
                f"the payloads of one call take over {REQUEST_BYTES_MAX} bytes; "
                "schedule them in several calls"
            )
        moment = self._moment
        match options:
            case {"delay": delay, **others}:
                wait_ms = delay_ms(delay)
                due_ms = moment.elapsed_ms
                if wait_ms > 0:
                    due_ms += wait_ms + moment.cut_ms
                timeline, given = ELAPSED, wait_ms
            case {"at": at, **others}:
                due_ms = given = instant_ms(at, "at")
                timeline = WALL
            case _:
                others = None
        if others is None or "at" in others:
            raise TypeError("give exactly one of delay and at")
        if due_ms > DUE_MS_MAX:
            raise ValueError(f"the due time lies behind the year 9999: {task!r:.200}")
        self._names.append(name)
        self._payloads.append(packed)
        self._dues.append(due_ms)
        self._timelines.append(timeline)
        if others:
            self._add_options(task, packed, timeline, given, others)
        else:
            self._ids.append(None)
            self._digests.append(None)
            self._options.append(None)
            self._if_exists.append("same")

    def _add_options(
        self,
        task: NewTask,
        packed: bytes,
        timeline: int,
        given: int,
        options: dict[str, object],
    ) -> None:
        fields: dict[int, object] = {}
        for key, value in options.items():
            if key not in _OPTIONS:
                raise TypeError(f"schedule() has no argument {key!r}")
            rule = _OPTIONS[key]
            if rule is not None:
                number, convert = rule
                converted = convert(value)
                if converted is not None:
                    fields[number] = converted
        task_id = options.get("id")
        if task_id is not None:
            judge_id(task_id)
        if_exists = options.get("if_exists", "same")
        if if_exists not in IF_EXISTS:
            raise ValueError(f"if_exists is {if_exists!r}; it is one of {IF_EXISTS}")
        durability = options.get("durability")
        if durability is not None:
            if durability not in DURABILITIES:
                raise ValueError(
                    f"durability is {durability!r}; for one call it is one of "
                    f"{DURABILITIES}"
                )
            if self._durability != "fsync":
                self._durability = durability  # type: ignore[assignment]
        self._ids.append(task_id)  # type: ignore[arg-type]
        self._if_exists.append(if_exists)  # type: ignore[arg-type]
        self._options.append(fields or None)
        digest = None
        if task_id is not None:
            digest = _digest(task.name, packed, timeline, given, fields)
        self._digests.append(digest)

    def request(self) -> Request:
        """Return what was added, columns folded."""
        shared, single = _fold_options(self._options)
        has_ids = any(task_id is not None for task_id in self._ids)
        columns = Columns(
            _fold(self._names),
            self._payloads,
            _fold(self._dues),
            _fold(self._timelines),
            self._ids if has_ids else None,
            shared,
            single,
            self._digests if has_ids else None,
        )
        return Request(columns, _fold(self._if_exists), self._durability)


def _fold(values: list[_Value]) -> _Value | list[_Value]:
    """Return the one value of them all, or the list."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def _fold_options(
    options: list[dict[int, object] | None],
) -> tuple[dict[int, object] | None, dict[int, dict[int, object]] | None]:
    """Return the options that all tasks share, and those of single ones."""
    first = options[0]
    if options.count(first) == len(options):
        return first, None
    return None, {
        position: fields for position, fields in enumerate(options) if fields
    }


def _digest(
    name: str, packed: bytes, timeline: int, given: int, fields: dict[int, object]
) -> bytes:
    """Return eight bytes that stand for the arguments of a request."""
    canonical = msgpack.packb([name, packed, timeline, given, sorted(fields.items())])
    return blake2b(canonical, digest_size=8).digest()


# Time.


def span_ms(seconds: object, what: str) -> int:
    """Return seconds, a number or a ``timedelta``, as milliseconds, rounded up.

    Raises:
        TypeError: If it is neither.
        ValueError: If it is not finite.
    """
    if isinstance(seconds, timedelta):
        return -(-seconds // _MILLISECOND)
    kind = type(seconds)
    if kind is int:
        return seconds * 1000  # type: ignore[operator]
    if kind is not float:
        raise TypeError(
            f"{what} is a {kind.__name__}; seconds are a float, an int or a timedelta"
        )
    if not math.isfinite(seconds):  # type: ignore[arg-type]
        raise ValueError(f"{what} is {seconds}; seconds are finite")
    # A tenth of a second is a little more than 0.1: without the rounding to
    # nanoseconds it would count 101 ms.
    return math.ceil(round(seconds * 1000, 6))  # type: ignore[operator]


def delay_ms(seconds: object) -> int:
    """Return a delay in milliseconds; zero and less is zero.

    Raises:
        TypeError, ValueError: As ``span_ms``, or if it ends behind the year 9999.
    """
    wait_ms = span_ms(seconds, "delay")
    if wait_ms > DUE_MS_MAX:
        raise ValueError(f"a delay of {seconds!r} ends behind the year 9999")
    return max(wait_ms, 0)


def instant_ms(instant: object, what: str) -> int:
    """Return an aware ``datetime`` as Unix milliseconds, rounded up.

    Raises:
        TypeError: If it is no ``datetime``.
        ValueError: If it has no time zone.
    """
    if not isinstance(instant, datetime):
        raise TypeError(
            f"{what} is a {type(instant).__name__}; instants are aware datetimes"
        )
    if instant.utcoffset() is None:
        raise ValueError(
            f"{what} is {instant.isoformat()}, which names no time zone; give "
            "tzinfo=UTC or another zone"
        )
    return -(-(instant - _EPOCH) // _MILLISECOND)


# Text.


def judge_text(text: object, what: str, bytes_max: int) -> None:
    """Raise unless it is a ``str`` of 1 to ``bytes_max`` bytes of UTF-8."""
    if type(text) is not str:
        raise TypeError(f"{what} is a {type(text).__name__}, not a str")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"{what} is not Unicode text: {error.reason}") from error
    if not 1 <= size <= bytes_max:
        raise ValueError(
            f"{what} has {size} bytes of UTF-8; it has to have 1 to {bytes_max}"
        )


def judge_id(task_id: object) -> None:
    """Raise unless it can be a caller's id."""
    judge_text(task_id, "the id", ID_BYTES_MAX)
    if _GENERATED.match(task_id):  # type: ignore[arg-type]
        raise ValueError(
            f"the id {task_id!r} has the form of generated ids; choose another"
        )


def lookup_id(task_id: object) -> int | str:
    """Return the number that a generated id stands for, or the caller's id itself.

    Raises:
        TypeError: If it is no ``str``.
    """
    if type(task_id) is not str:
        raise TypeError(f"the id is a {type(task_id).__name__}, not a str")
    if _GENERATED.match(task_id):
        return int(task_id[1:], 16)
    return task_id


# Options: their field, and how their value becomes the field's.


def _integer(what: str, low: int, high: int) -> Callable[[object], int | None]:
    def convert(value: object) -> int | None:
        if type(value) is not int:
            raise TypeError(f"{what} is a {type(value).__name__}, not an int")
        if not low <= value <= high:
            raise ValueError(f"{what} is {value}; it lies between {low} and {high}")
        return value or None  # zero is the default

    return convert


def _queue(value: object) -> str | None:
    judge_text(value, "the queue", ID_BYTES_MAX)
    return None if value == "default" else value  # type: ignore[return-value]


def _retry(value: object) -> list[object] | None:
    if value is None:
        return None
    if not isinstance(value, Retry):
        raise TypeError(f"retry is a {type(value).__name__}, not a wheeldb.Retry")
    if type(value.max_attempts) is not int or value.max_attempts < 1:
        raise ValueError(f"max_attempts is {value.max_attempts!r}; it is at least 1")
    names = [f"{error.__module__}.{error.__qualname__}" for error in value.on]
    match value.backoff:
        case Exponential(base, cap):
            numbers = ["exponential", base, cap]
        case Linear(step, cap):
            numbers = ["linear", step, cap]
        case Fixed(wait):
            numbers = ["fixed", wait]
        case other:
            raise TypeError(
                f"backoff is a {type(other).__name__}; it is an Exponential, Linear "
                "or Fixed"
            )
    for number in numbers[1:]:
        if type(number) not in (int, float) or not 0 <= number < math.inf:
            raise ValueError(f"a back-off of {number!r} seconds is not a finite time")
    return [value.max_attempts, *numbers, names]


def _lease(value: object) -> int:
    lease_ms = span_ms(value, "lease")
    if not 1 <= lease_ms <= LEASE_MS_MAX:
        raise ValueError(f"a lease of {value!r} seconds; it lasts 1 ms to a year")
    return lease_ms


def _expires(value: object) -> int | list[int] | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return [instant_ms(value, "expires")]
    expires_ms = span_ms(value, "expires")
    if not 0 <= expires_ms <= DUE_MS_MAX:
        raise ValueError(f"expires is {value!r} seconds; it is zero or more")
    return expires_ms


def _tags(value: object) -> list[str] | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("tags are a list or tuple of str")
    for tag in value:
        judge_text(tag, "a tag", ID_BYTES_MAX)
    if len(value) > TAGS_MAX:
        raise ValueError(f"{len(value)} tags; a task has at most {TAGS_MAX}")
    return list(value) or None


def _headers(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"headers are a {type(value).__name__}, not a mapping")
    size = 0
    for key, text in value.items():
        judge_text(key, "a header's name", ID_BYTES_MAX)
        if type(text) is not str:
            raise TypeError(f"the header {key!r} is a {type(text).__name__}, not a str")
        try:
            size += len(key) + len(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"the header {key!r} is not Unicode text") from error
    if size > HEADERS_BYTES_MAX:
        raise ValueError(f"{size} bytes of headers; at most {HEADERS_BYTES_MAX}")
    return dict(value) or None


def _flag(value: object) -> bool | None:
    if type(value) is not bool:
        raise TypeError(f"at_most_once is a {type(value).__name__}, not a bool")
    return value or None


_OPTIONS: dict[str, tuple[int, Callable[[object], object]] | None] = {
    "id": None,
    "if_exists": None,
    "durability": None,
    "version": (F.VERSION, _integer("version", 0, 2**53 - 1)),
    "queue": (F.QUEUE, _queue),
    "priority": (F.PRIORITY, _integer("priority", -128, 127)),
    "retry": (F.RETRY, _retry),
    "lease": (F.LEASE, _lease),
    "expires": (F.EXPIRES, _expires),
    "tags": (F.TAGS, _tags),
    "headers": (F.HEADERS, _headers),
    "at_most_once": (F.AT_MOST_ONCE, _flag),
}
