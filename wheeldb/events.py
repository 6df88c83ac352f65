"""Every durable fact, and its bytes.

State is a fold over events: nothing is durable that is not one of these, and nothing
changes state but applying one.  A frame of the log carries, as one msgpack stream::

    by                           who caused all of them (one string)
    [kind, count, fields]        an event
    [kind, count, fields]        …

``count`` is how many log positions (LSNs) the event takes: one per task it covers, so
that a call about a thousand tasks is one event.  The first position is implied by
what stands before it in the frame, whose header names the first of all.  ``fields``
is a map from the small numbers of ``F`` to values; what has its default is left out.
Two rules let releases read each other:

- A field that this release does not know is kept, and written again with its row.
- A kind that it does not know is refused (``FormatError``): a fact that cannot be
  applied cannot be skipped either.

One task scheduled for 15 minutes from now, id ``valve-7``::

    "library"
    [2, 1, {3: "valve.close", 4: [b"\\x81\\xa5valve\\x07"], 6: [900000], 2: ["valve-7"],
            64: {10: b"…"}}]

``SCHEDULED`` holds columns: names, payloads, due times, ids, each a list or, where all
tasks have the same one, a single value; the rarer options are in ``SHARED`` (for all)
and ``SINGLE`` (by position).  The other kinds that cover several tasks list their
``NUMBER``s, with columns beside them.

A field's number is never given to another meaning, nor a kind's.  Those marked
"reserved" are written by no release yet.  This module knows the bytes of events, not
what they do to the state.
"""

from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgpack

from wheeldb.errors import FormatError
from wheeldb.unpacking import iterate_whole, unpack_whole

__all__ = (
    "ELAPSED",
    "FIELD_NAMES",
    "RESERVED_KINDS",
    "WALL",
    "EventRecord",
    "F",
    "Kind",
    "iterate_events",
    "pack_author",
    "pack_event",
    "pack_fields",
    "unpack_fields",
)

# The two timelines, as they stand in fields.
ELAPSED, WALL = 0, 1

# No event takes as many log positions as its frame can't count.
LSN_COUNT_MAX = 2**32


class F:
    """The numbers of fields, in events and in rows alike."""

    # What a task is: set when it is scheduled.
    NUMBER = 1
    ID = 2
    NAME = 3
    PAYLOAD = 4
    TIMELINE = 5
    DUE = 6
    QUEUE = 7
    PRIORITY = 8
    VERSION = 9
    DIGEST = 10
    RETRY = 11
    LEASE = 12
    TIMEOUT = 13  # reserved
    EXPIRES = 14
    MISFIRE = 15  # reserved
    OVERLAP = 16  # reserved
    IF_UNSURE = 17  # reserved
    CLOCK_ERROR_MAX = 18  # reserved
    TAGS = 19
    HEADERS = 20
    ORDERING_KEY = 21  # reserved
    CONCURRENCY_KEY = 22  # reserved
    AT_MOST_ONCE = 23
    UNIQUE = 24  # reserved
    ON_FAILURE = 25  # reserved
    SERIES = 26  # reserved
    OCCURRENCE = 27  # reserved: the nominal instant within a series
    CREATED = 28

    # How it fares: set by what happens to it.
    STATE = 32
    ATTEMPTS = 33
    RECOVERIES = 34
    FENCE = 35
    UNTIL = 36
    HOLDER = 37  # reserved: who holds the lease, if not this process
    CURSOR = 38
    ERROR = 39
    RESULT = 40
    BEHIND = 41
    CANCELLED = 42
    MAY_HAVE_RUN = 43
    FINISHED = 44
    REASON = 45
    LSN = 46  # reserved
    PAUSED = 47
    HANDLER_VERSION = 48  # reserved: the route that an attempt took
    HELD = 49  # reserved: why a firing was let through or held back
    COARSE = 50  # its due key in the index is rounded down

    # The shape of an event.
    SHARED = 64
    SINGLE = 65
    REPLACES = 66
    DEFINITION = 67
    EPOCH = 68  # reserved: the lease epoch of a take-over
    NODE = 69  # of an opening: what the owner calls the store

    # The store itself: openings, anchors, checkpoints, snapshots.
    INCARNATION = 80
    ANCHOR = 81  # a map by name, see `clock.timekeeper.Anchor`
    AFTER = 88
    CLEAN = 89
    PLACE = 90
    DOUBT = 91
    RELEASE = 92
    BOUND = 93  # reserved
    CHECKPOINT = 96
    ROWS = 97
    DIGESTS = 98
    LANES = 99
    QUEUES = 100
    THROUGH = 101
    PATH = 102
    BYTES = 103
    CHECKSUM = 104  # reserved
    TASK_ROWS = 106
    FINISHED_ROWS = 107
    BLOCK_ROWS = 113
    HLC = 108
    DATABASE = 109  # reserved
    CAUSE = 110  # reserved
    POLICY = 111  # reserved: queues' limits, routes, breakers
    VALUE = 112  # reserved: registers and counters of peers


FIELD_NAMES = {
    number: name.lower() for name, number in vars(F).items() if type(number) is int
}


class Kind(IntEnum):
    """What happened."""

    OPENED = 1
    SCHEDULED = 2
    SUPERSEDED = 3
    CANCELLED = 4
    RESCHEDULED = 5
    REVIVED = 6
    STARTED_NOW = 7
    PAUSED = 8
    RESUMED = 9
    LEASED = 10
    ACKED = 11
    NACKED = 12
    RELEASED = 13
    REJECTED = 14
    RENEWED = 15
    SAVED = 16
    LEASE_EXPIRED = 17
    INTERRUPTED = 18
    EXPIRED = 19
    QUEUE_PAUSED = 20
    QUEUE_RESUMED = 21
    ANCHORED = 22
    CHECKPOINTED = 23
    SNAPSHOT_TAKEN = 24
    FORGOTTEN = 25

    # Within snapshots alone.
    STATE = 40
    STATE_FINISHED = 41
    STATE_TABLES = 42
    STATE_BLOCKS = 46


# Numbers that are given away, though no release writes them yet: a log that has one
# comes from a newer release, and the refusal can say what it is about.
RESERVED_KINDS = {
    26: "series set",
    27: "series ended",
    28: "occurrences skipped",
    29: "parked",
    30: "unparked",
    31: "let through by an unsure clock",
    32: "queue configured",
    33: "queue removed",
    34: "policy set",
    35: "promoted",
    36: "taken over",
    37: "clock stepped",
    38: "clock confirmed",
    39: "recurrence counted",
    43: "state of a series",
    44: "state of a policy",
    45: "state of a peer's view",
    48: "view merged",
    49: "counter raised",
    50: "member added",
    51: "member removed",
    52: "saga step",
    53: "outbox relayed",
    54: "measured",
}


class EventRecord(NamedTuple):
    """An event as it stands in the log, its fields by number."""

    kind: int
    lsn_count: int
    fields: dict[int, object]


def pack_fields(fields: dict[int, object]) -> bytes:
    """Return the bytes of a map of fields."""
    # `packb` takes three times as long to say the same.
    packed: bytes = msgpack.Packer().pack(fields)
    return packed


def unpack_fields(packed: bytes) -> dict[int, object]:
    """Return the map of fields that ``packed`` holds.

    Raises:
        FormatError: If it is not one.  Its checksum was right, so that is a bug or
            another release's doing, never a torn write.
    """
    fields = unpack_whole(packed)
    if type(fields) is not dict:
        raise FormatError(f"fields are a {type(fields).__name__}, not a map")
    return fields


def pack_event(kind: int, count: int, fields: bytes) -> bytes:
    """Return the bytes of one event, whose fields are packed already."""
    return _head(kind, count) + fields


@lru_cache(maxsize=256)
def _head(kind: int, count: int) -> bytes:
    packed = msgpack.packb(count)
    assert isinstance(packed, bytes)
    # 0x93 opens an array of three; every kind is below 128 and so its own byte.
    return b"\x93" + kind.to_bytes(1, "big") + packed


@lru_cache(maxsize=256)
def pack_author(by: str) -> bytes:
    """Return the bytes that open a frame's payload: who caused what follows."""
    packed = msgpack.packb(by)
    assert isinstance(packed, bytes)
    return packed


def iterate_events(payload: bytes) -> Iterator[tuple[str, EventRecord]]:
    """Yield each event of a frame's payload with its author.

    A string between events names the author of those that follow.

    Raises:
        FormatError: If the payload does not decode, or an event's kind is unknown.
    """
    by = ""
    for item in iterate_whole(payload):
        if type(item) is str:
            by = item
            continue
        yield by, _event(item)


def _event(item: object) -> EventRecord:
    match item:
        case [int(kind), int(count), dict(fields)] if 0 <= count < LSN_COUNT_MAX:
            if kind not in _KINDS:
                name = RESERVED_KINDS.get(kind, "unknown")
                raise FormatError(
                    f"the log has an event of kind {kind} ({name}), which this release "
                    "can't apply; open the store with the release that wrote it"
                )
            return EventRecord(kind, count, fields)
    raise FormatError(f"an event has the shape {type(item).__name__}, not [kind, …]")


_KINDS = frozenset(int(kind) for kind in Kind)
