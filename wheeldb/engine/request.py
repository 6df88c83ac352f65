"""What callers ask for, judged and packed in their own threads.

``build`` turns ``NewTask`` values into the columns of a ``Request``.  Everything that
can be judged without looking at the state is judged here, so that a bad argument fails
its own caller only, before anything is written: types, ranges, sizes, time.

    build([NewTask("valve.close", {"valve": 7}, delay=900, id="valve-7")], now, limits)
    columns: names "valve.close", dues now + 900_000, ids ["valve-7"], digests [8 bytes]

The digest is that of the arguments as given (a delay stays a delay), so that the same
call made later is the same request.

There are two ways to the same columns.  The careful one takes task by task and knows
what is wrong with which.  The quick one takes column by column what programs schedule
by the thousand: flat payloads and nothing but a delay, in numbers; of anything else it
says nothing, and leaves it to the careful one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias, TypeVar

import msgpack

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.columns import Columns
from wheeldb.engine.moment import (
    DUE_MS_MAX,
    delay_ms,
    instant_ms,
    round_up_ms,
)
from wheeldb.engine.names import ID_BYTES_MAX, judge_id, judge_text
from wheeldb.engine.options import OPTIONS
from wheeldb.errors import PayloadTooLarge
from wheeldb.events import ELAPSED, WALL, Kind, pack_event
from wheeldb.model import NewTask
from wheeldb.payload import pack_flat, pack_payload

__all__ = ("Limits", "Request", "build", "build_one", "judge_size")

# A call is one frame: what a frame may hold, and room for its author and an ack.
REQUEST_BYTES_MAX = 32 * 2**20 - 2**16
# The most that the columns add to a task's texts, payload and options.
_TASK_BYTES = 64

IF_EXISTS = ("same", "keep", "replace")
DURABILITIES = ("fsync", "written")

_Value = TypeVar("_Value")

_SCHEDULED = Kind.SCHEDULED


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store accepts."""

    payload_bytes_max: int
    batch_max: int


class Request:
    """Tasks to be scheduled together: columns, and how to treat ids that exist."""

    __slots__ = (
        "columns",
        "durability",
        "ids",
        "if_exists",
        "offset_ms",
        "packed",
        "size",
    )

    def __init__(
        self,
        columns: Columns,
        if_exists: list[str] | str,
        durability: str | None,
        offset_ms: int,
    ) -> None:
        self.columns = columns
        self.if_exists = if_exists
        self.durability = durability
        # Of the moment from which its delays were reckoned.
        self.offset_ms = offset_ms
        # The ids that callers gave.
        self.ids: Sequence[str] = ()
        # Without ids nothing about them depends on the state: their event is packed
        # right away.
        self.packed: bytes | None = None
        # How many bytes it adds to a frame, at most.
        if columns.ids is None:
            self.packed = packed = _pack(columns)
            self.size = len(packed) if columns.count else 0
        else:
            self.ids = [task_id for task_id in columns.ids if task_id is not None]
            self.size = _size(columns)
        if self.size > REQUEST_BYTES_MAX:
            judge_size(self.size)

    def __len__(self) -> int:
        """Return how many tasks it asks for."""
        return self.columns.count

    def catch_up(self, offset_ms: int) -> None:
        """Move its delays along if off-time was added since they were reckoned."""
        late_ms = offset_ms - self.offset_ms
        if late_ms > 0:
            self.offset_ms = offset_ms
            self.columns.move_delays(late_ms)
            if self.packed is not None:
                self.packed = _pack(self.columns)

    def if_exists_at(self, position: int) -> str:
        """Return what is to happen if the id of one task exists."""
        if type(self.if_exists) is str:
            return self.if_exists
        return self.if_exists[position]


def judge_size(size: int) -> None:
    """Raise for a call that is larger than a frame may be.

    Raises:
        PayloadTooLarge: Then.
    """
    if size > REQUEST_BYTES_MAX:
        raise PayloadTooLarge(
            f"one call takes {size} bytes, {REQUEST_BYTES_MAX} are allowed; make "
            "several of it"
        )


def _pack(columns: Columns) -> bytes:
    """Return the bytes of the event that schedules them."""
    return pack_event(_SCHEDULED, columns.count, columns.pack())


def _size(columns: Columns) -> int:
    """Return how many bytes the columns take when they are packed, at most."""
    texts = [task_id for task_id in columns.ids or () if task_id is not None]
    texts += [columns.names] if type(columns.names) is str else columns.names
    size = _TASK_BYTES * (columns.count + 1) + columns.payload_bytes
    size += sum(len(text) if text.isascii() else 4 * len(text) for text in texts)
    for options in (columns.shared, columns.single):
        if options:
            size += len(msgpack.packb(options))
    return size


def build_one(
    name: str, payload: object, options: Mapping[str, object], now: Now, limits: Limits
) -> Request:
    """Return the request that the arguments of one ``NewTask`` make.

    Raises:
        TypeError: For an argument of the wrong type, or not exactly one of ``delay``
            and ``at``.
        ValueError: For one out of its range.
        PayloadTooLarge: For a payload over the limit.
    """
    name, packed, due_ms, timeline, task_id, digest, fields, if_exists, durability = (
        _judge(name, payload, options, now, limits.payload_bytes_max)
    )
    ids: list[str | None] | None = None
    digests: list[bytes | None] | None = None
    if task_id is not None:
        ids, digests = [task_id], [digest]
    columns = Columns(name, [packed], due_ms, timeline, ids, fields, None, digests)
    return Request(columns, if_exists, durability, now.offset_ms)


def build(tasks: Sequence[NewTask], now: Now, limits: Limits) -> Request:
    """Return the request that ``tasks`` make.

    Raises:
        TypeError, ValueError: As ``build_one``; ``index`` tells which task it was.
        PayloadTooLarge: For a payload, or all of them together, over the limit.
    """
    columns = _plain_columns(tasks, now, limits)
    if columns is not None:
        return Request(columns, "same", None, now.offset_ms)
    judged: list[_Judged] = []
    size = 0
    try:
        for task in tasks:
            if type(task) is not NewTask:
                raise TypeError(f"a {type(task).__name__} is not a NewTask")
            one = _judge(
                task.name, task.payload, task.options, now, limits.payload_bytes_max
            )
            size += len(one[1])
            judge_size(size)
            judged.append(one)
    except (TypeError, ValueError) as error:
        error.index = len(judged)  # type: ignore[union-attr]
        error.add_note(f"in task {len(judged)} of the call")
        raise
    return _request(judged, now.offset_ms)


def _plain_columns(
    tasks: Sequence[NewTask], now: Now, limits: Limits
) -> Columns | None:
    """Return the columns of tasks that are all plain, as the careful way makes them.

    ``None`` if one is not, or if anything is wrong with any.
    """
    if set(map(type, tasks)) != {NewTask}:
        return None
    options = [task.options for task in tasks]
    delays = [given.get("delay") for given in options]
    names = [task.name for task in tasks]
    if (
        set(map(len, options)) != {1}
        or not _NUMBERS.issuperset(map(type, delays))
        or set(map(type, names)) != {str}
    ):
        return None
    try:
        for name in set(names):
            judge_text(name, "the task's name", ID_BYTES_MAX)
        waits_ms = round_up_ms(delays)  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return None
    payloads = pack_flat([task.payload for task in tasks], limits.payload_bytes_max)
    if payloads is None or sum(map(len, payloads)) > REQUEST_BYTES_MAX:
        return None
    now_ms = now.elapsed_ms
    base_ms = now_ms + now.cut_ms
    if base_ms + max(waits_ms) > DUE_MS_MAX:
        return None
    dues = [base_ms + wait_ms if wait_ms > 0 else now_ms for wait_ms in waits_ms]
    return Columns(_fold(names), payloads, _fold(dues))


_NUMBERS = frozenset((int, float))


# One task, judged and packed: name, payload, due time, timeline, id, digest, options,
# what to do if the id exists, durability.
_Judged: TypeAlias = tuple[
    str,
    bytes,
    int,
    int,
    str | None,
    bytes | None,
    dict[int, object] | None,
    str,
    str | None,
]


def _judge(
    name: object,
    payload: object,
    options: Mapping[str, object],
    now: Now,
    payload_bytes_max: int,
) -> _Judged:
    text = judge_text(name, "the task's name", ID_BYTES_MAX)
    packed = pack_payload(payload, payload_bytes_max)
    delay, at = options.get("delay"), options.get("at")
    if (delay is None) == (at is None):
        raise TypeError("give exactly one of delay and at")
    if at is not None:
        timeline, given_ms = WALL, instant_ms(at, "at")
        due_ms = given_ms
    else:
        timeline, given_ms = ELAPSED, delay_ms(delay)
        due_ms = now.elapsed_ms
        if given_ms:
            due_ms += given_ms + now.cut_ms
    if due_ms > DUE_MS_MAX:
        raise ValueError(
            f"the due time lies behind the year 9999: {text!r}, {options!r:.200}"
        )
    if len(options) == 1:  # the due time
        return text, packed, due_ms, timeline, None, None, None, "same", None
    task_id, if_exists, durability = _judge_terms(options)
    fields = _fields_of(options)
    digest = None
    if task_id is not None:
        digest = _digest(text, packed, timeline, given_ms, fields)
    return (
        text,
        packed,
        due_ms,
        timeline,
        task_id,
        digest,
        fields or None,
        if_exists,
        durability,
    )


def _request(judged: list[_Judged], offset_ms: int) -> Request:
    """Return what was judged as one request, columns folded."""
    if not judged:
        return Request(Columns([], [], []), "same", None, offset_ms)
    names, payloads, dues, timelines, ids, digests, fields, if_exists, durabilities = (
        map(list, zip(*judged, strict=True))
    )
    shared, single = _fold_options(fields)
    has_ids = ids.count(None) < len(ids)
    columns = Columns(
        _fold(names),
        payloads,
        _fold(dues),
        _fold(timelines),
        ids if has_ids else None,
        shared,
        single,
        digests if has_ids else None,
    )
    # They share a frame: the strongest promise holds for all, and the store's own is at
    # least as strong as "written".
    durability = None
    if "fsync" in durabilities:
        durability = "fsync"
    elif durabilities.count("written") == len(durabilities):
        durability = "written"
    return Request(columns, _fold(if_exists), durability, offset_ms)


def _judge_terms(options: Mapping[str, object]) -> tuple[str | None, str, str | None]:
    """Return the id, and how and how firmly the task is to be scheduled."""
    task_id = options.get("id")
    if task_id is not None:
        task_id = judge_id(task_id)
    if_exists = options.get("if_exists", "same")
    if if_exists not in IF_EXISTS:
        raise ValueError(f"if_exists is {if_exists!r}; it is one of {IF_EXISTS}")
    durability = options.get("durability")
    if durability is not None and durability not in DURABILITIES:
        raise ValueError(
            f"durability is {durability!r}; for one call it is one of {DURABILITIES}"
        )
    return task_id, if_exists, durability


def _fields_of(options: Mapping[str, object]) -> dict[int, object]:
    """Return the options that are kept with the task, as fields."""
    fields: dict[int, object] = {}
    for key, value in options.items():
        if key not in OPTIONS:
            raise TypeError(f"schedule() has no argument {key!r}")
        rule = OPTIONS[key]
        if rule is not None:
            number, convert = rule
            converted = convert(value)
            if converted is not None:
                fields[number] = converted
    return fields


def _fold(values: list[_Value]) -> _Value | list[_Value]:
    """Return the one value of them all, or the list."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return values


def _fold_options(
    options: list[dict[int, object] | None],
) -> tuple[dict[int, object] | None, dict[int, dict[int, object]] | None]:
    """Return the options that all tasks share, and those of single ones."""
    if options.count(options[0]) == len(options):
        return options[0], None
    return None, {position: fields for position, fields in enumerate(options) if fields}


def _digest(
    name: str, packed: bytes, timeline: int, given: int, fields: dict[int, object]
) -> bytes:
    """Return eight bytes that stand for the arguments of a request."""
    canonical = msgpack.packb([name, packed, timeline, given, sorted(fields.items())])
    return blake2b(canonical, digest_size=8).digest()
