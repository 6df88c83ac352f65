"""What can't be right is refused by the call that brings it, and changes nothing.

Goal: every wrong argument raises TypeError or ValueError (or a child of it) in the
caller's own thread, writes nothing and leaves the store as usable as before; a
directory that can't hold a store is refused and looks afterwards as it did. Method: one
table per kind of argument, judged through every door it can come in by.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from field_helpers import Bench, Child

import wheeldb
from wheeldb.errors import (
    BatchRefused,
    ClosedError,
    FormatError,
    PayloadTooLarge,
    StorageFullError,
    TaskNotFound,
)
from wheeldb.model import Exponential, Fixed, NewTask, Retry
from wheeldb.testing import CrashableDisk, ManualClock

NAN, INFINITY = float("nan"), float("inf")
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
SURROGATE = "caf\udce9"


class Colour(IntEnum):
    """A value that would come back as a plain int."""

    RED = 1


def nested(depth: int) -> object:
    """Return lists within lists."""
    value: object = "core"
    for _ in range(depth):
        value = [value]
    return value


def holding_itself() -> list[object]:
    """Return a list that has no end."""
    endless: list[object] = []
    endless.append(endless)
    return endless


def numbered(values: Sequence[object]) -> list[str]:
    """Return names for the cases of a table: the place, and what it is about."""
    return [
        f"{place}-{next(reversed(value), 'none')}"
        if isinstance(value, dict) and all(type(key) is str for key in value)
        else f"{place}-{type(value).__name__}"
        for place, value in enumerate(values)
    ]


def each(name: str, *values: object, **others: object) -> list[dict[str, object]]:
    """Return one dict of arguments for each value of one of them."""
    return [{**others, name: value} for value in values]


BAD_OPTIONS: list[dict[str, object]] = [
    # Not exactly one due time.
    {},
    {"delay": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)},
    # Delays: the browsers' timers take Infinity, NaN and 25 days for zero
    # (sindresorhus/delay#57, observablehq/runtime#37).
    *each("delay", NAN, INFINITY, -INFINITY, True, "10", None, [1]),
    *each("delay", Decimal(1), 1e300, 1e308, 10**30, timedelta.max),
    # Instants.
    *each("at", NAIVE, "2026-01-01", 1, 1.5, None, date(2026, 1, 1)),
    # Ids.
    *each("id", "", "x" * 256, "ü" * 128, 7, b"x", delay=1),
    *each("id", SURROGATE, "t0123456789abcd", delay=1),
    # The rest.
    *each("version", -1, True, "1", 2**53, 1.0, delay=1),
    *each("if_exists", "overwrite", None, ["same"], delay=1),
    *each("queue", "", "q" * 256, 5, SURROGATE, delay=1),
    *each("priority", -129, 128, 1.5, True, delay=1),
    *each("lease", 0, -1, NAN, INFINITY, "x", 10**12, True, delay=1),
    *each("expires", -1, NAN, NAIVE, "x", 10**15, delay=1),
    *each("tags", "abc", [5], [""], ["x"] * 33, 5, delay=1),
    *each("tags", [SURROGATE], ["t" * 256], delay=1),
    *each("headers", [("a", "b")], {"a": 5}, {5: "a"}, delay=1),
    *each("headers", {"": "x"}, {"a": "x" * 9_000}, delay=1),
    *each("headers", {"a": SURROGATE}, {SURROGATE: "a"}, delay=1),
    *each("at_most_once", 1, "yes", None, delay=1),
    *each("durability", "memory", "sync", 1, delay=1),
    *each("retry", 3, {"max_attempts": 3}, "Retry", delay=1),
    *each(
        "retry",
        Retry(max_attempts=0),
        Retry(max_attempts=2.5),  # type: ignore[arg-type]
        Retry(max_attempts=2**70),
        Retry(backoff=5),  # type: ignore[arg-type]
        Retry(backoff=Fixed(-1)),
        Retry(backoff=Fixed("1")),  # type: ignore[arg-type]
        Retry(backoff=Exponential(NAN)),
        Retry(backoff=Exponential(1, cap=INFINITY)),
        Retry(backoff=Fixed(1e307)),
        Retry(backoff=Exponential(1, cap=10**400)),
        Retry(on=OSError),  # type: ignore[arg-type]
        Retry(on=("OSError",)),  # type: ignore[arg-type]
        Retry(on=(5,)),  # type: ignore[arg-type]
        delay=1,
    ),
    {"delay": 1, "delays": 2},
]

BAD_NAMES: list[object] = ["", "x" * 256, 5, None, SURROGATE, b"valve.close"]

# msgpack itself says "Integer value out of range" from deep inside, long after the call
# (msgpack/msgpack-python#71, #114, #221).
BAD_PAYLOADS: list[object] = [
    2**64,
    -(2**63) - 1,
    [1, {"deep": [2**64]}],
    (1, 2),
    {1: "int key"},
    {("a",): 1},
    {"a", "b"},
    Decimal("1.5"),
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(seconds=1),
    lambda: None,
    object(),
    Colour.RED,
    bytearray(b"x"),
    memoryview(b"x"),
    nested(65),
    nested(1_000),
    holding_itself(),
    SURROGATE,
    {"key": SURROGATE},
    {SURROGATE: "value"},
    1j,
]


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store that is checked and closed at the end."""
    with Bench() as bench:
        yield bench


def last_lsn(bench: Bench) -> int:
    return bench.db.statistics().last_lsn


def refused(bench: Bench, call: Callable[[], object]) -> BaseException:
    """Make a call that must be refused with nothing written, and return its error."""
    before = last_lsn(bench)
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert last_lsn(bench) == before, "something was written"
    assert not isinstance(caught.value, UnicodeError), "nobody has judged it"
    return caught.value


# Scheduling.


def through_every_door(bench: Bench, task: NewTask) -> None:
    """See one bad task refused by each call that can bring it."""
    db = bench.db
    good = NewTask("good", delay=1)
    refused(bench, lambda: db.schedule(task.name, task.payload, **task.options))
    error = refused(bench, lambda: db.schedule_many([good, good, task, good]))
    assert getattr(error, "index", None) == 2

    def batch() -> None:
        with db.batch() as batch:
            batch.schedule("good", delay=1)
            batch.schedule(task.name, task.payload, **task.options)

    refused(bench, batch)
    db.schedule("first", delay=0)
    (lease,) = db.lease()
    refused(bench, lambda: lease.ack(then=[task]))
    lease.ack()
    assert list(db.tasks()) == []


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=numbered(BAD_OPTIONS))
def test_a_bad_option_is_refused_and_nothing_is_written(
    bench: Bench, options: dict[str, object]
) -> None:
    through_every_door(bench, NewTask("task", None, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BAD_NAMES, ids=numbered(BAD_NAMES))
def test_a_bad_name_is_refused_and_nothing_is_written(
    bench: Bench, name: object
) -> None:
    through_every_door(bench, NewTask(name, delay=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", BAD_PAYLOADS, ids=numbered(BAD_PAYLOADS))
def test_a_bad_payload_is_refused_and_nothing_is_written(
    bench: Bench, payload: object
) -> None:
    through_every_door(bench, NewTask("task", payload, delay=1))


def test_the_place_of_a_bad_value_is_told(bench: Bench) -> None:
    bad = {"valves": [1, {"when": Decimal(1)}]}
    with pytest.raises(TypeError, match=r"payload\['valves'\]\[1\]\['when'\]"):
        bench.db.schedule("task", bad, delay=1)


def test_what_is_no_task_is_refused(bench: Bench) -> None:
    for bad in ({"name": "a"}, "a", None, 5):
        error = refused(bench, lambda bad=bad: bench.db.schedule_many([bad]))  # type: ignore[misc]
        assert getattr(error, "index", None) == 0


def test_more_tasks_than_a_call_may_bring_are_refused() -> None:
    with Bench(batch_max=10) as bench:
        tasks = [NewTask("task", delay=1) for _ in range(11)]
        refused(bench, lambda: bench.db.schedule_many(tasks))
        assert len(bench.db.schedule_many(tasks[:10])) == 10
        assert bench.db.schedule_many([]) == []


def test_no_tasks_are_scheduled_as_easily_as_some(bench: Bench) -> None:
    before = last_lsn(bench)
    assert bench.db.schedule_many([]) == []
    with bench.db.batch() as batch:
        batch.schedule_many([])
        batch.cancel("unknown")
    assert batch.results == [[], "unknown"]
    with bench.db.batch() as batch:
        pass
    assert batch.results == []
    assert last_lsn(bench) == before


def test_a_payload_may_have_exactly_the_limit() -> None:
    with Bench(payload_bytes_max=1_000) as bench:
        # A msgpack string of over 255 bytes has three bytes in front.
        receipt = bench.db.schedule("task", "x" * 997, delay=1)
        error = refused(bench, lambda: bench.db.schedule("task", "x" * 998, delay=1))
        assert isinstance(error, PayloadTooLarge)
        assert "1001 bytes" in str(error)
        assert "1000" in str(error)
        task = bench.db.get(receipt.id)
        assert task is not None
        assert task.payload == "x" * 997


def test_a_call_may_not_bring_more_than_a_frame_holds() -> None:
    with Bench(payload_bytes_max=2**20, segment_bytes=2**20) as bench:
        tasks = [NewTask("task", b"x" * 1_000_000, delay=1) for _ in range(34)]
        error = refused(bench, lambda: bench.db.schedule_many(tasks))
        assert isinstance(error, PayloadTooLarge)

        def batch() -> None:
            with bench.db.batch() as batch:
                for task in tasks:
                    batch.schedule(task.name, task.payload, **task.options)

        error = refused(bench, batch)
        assert isinstance(error, PayloadTooLarge)
        assert len(bench.db.schedule_many(tasks[:10])) == 10


def test_what_goes_with_the_payloads_counts_as_well() -> None:
    kinds = [
        {"headers": {f"header {number}": "x" * 1_000 for number in range(8)}},
        {"tags": [f"{number:0250}" for number in range(32)]},
    ]
    for kind in kinds:
        # All the same, so that they are written once.
        tasks = [NewTask("task", delay=1, **kind) for _ in range(5_000)]  # type: ignore[arg-type]
        with Bench(segment_bytes=2**20) as bench:
            bench.db.schedule("first", delay=0, id="first")
            (lease,) = bench.db.lease()
            assert len(bench.db.schedule_many(tasks)) == 5_000
            for number, task in enumerate(tasks):
                task.options["id"] = f"id {number}"
                task.options["priority"] = number % 9
            error = refused(bench, lambda: bench.db.schedule_many(tasks))  # noqa: B023
            assert isinstance(error, PayloadTooLarge)
            error = refused(bench, lambda: lease.ack(then=tasks))  # noqa: B023
            assert isinstance(error, PayloadTooLarge)
            lease.ack()


@pytest.mark.parametrize(
    "at",
    [
        datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        datetime(2100, 1, 1, 12, tzinfo=timezone(timedelta(hours=-12))),
        datetime(2262, 4, 11, 23, 47, 16, 854_000, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(1901, 12, 13, 20, 45, 51, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
    ids=str,
)
def test_an_instant_of_any_year_is_kept_exactly(bench: Bench, at: datetime) -> None:
    receipt = bench.db.schedule("task", at=at)
    assert receipt.due_at == at
    bench.reopen()
    assert bench.db.get(receipt.id).due_at == at  # type: ignore[union-attr]
    assert bench.kill().get(receipt.id).due_at == at  # type: ignore[union-attr]
    assert bench.started() == ([receipt.id] if at.year < 2026 else [])


@pytest.mark.parametrize(
    "at",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
        datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
    ],
    ids=str,
)
def test_an_instant_behind_the_year_9999_is_refused(bench: Bench, at: datetime) -> None:
    refused(bench, lambda: bench.db.schedule("task", at=at))


def test_an_instant_before_the_year_1_is_refused(bench: Bench) -> None:
    at = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
    refused(bench, lambda: bench.db.schedule("task", at=at))
    bench.db.schedule("task", delay=1, id="known")
    with pytest.raises(ValueError, match="before the year 1"):
        bench.db.reschedule("known", at=at)
    assert [task.id for task in bench.db.tasks()] == ["known"]


def test_a_negative_delay_of_any_size_is_due_at_once(bench: Bench) -> None:
    assert bench.db.schedule("task", delay=-1e308).state == "due"


# Every other call.


def bad_calls(bench: Bench) -> list[Callable[[], object]]:
    """Return calls with bad arguments about a store that has a task "known"."""
    db = bench.db
    calls: list[Callable[[], object]] = []
    for bad in (5, None, b"known", SURROGATE):
        calls += [
            lambda bad=bad: db.cancel(bad),  # type: ignore[misc]
            lambda bad=bad: db.get(bad),  # type: ignore[misc]
            lambda bad=bad: db.history(bad),  # type: ignore[misc]
            lambda bad=bad: db.wait(bad, timeout=0),  # type: ignore[misc]
            lambda bad=bad: db.run_now(bad),  # type: ignore[misc]
            lambda bad=bad: db.reschedule(bad, delay=1),  # type: ignore[misc]
            lambda bad=bad: db.pause(bad),  # type: ignore[misc]
            lambda bad=bad: db.resume(bad),  # type: ignore[misc]
            lambda bad=bad: db.revive(bad),  # type: ignore[misc]
            lambda bad=bad: db.lease([bad]),  # type: ignore[misc]
            lambda bad=bad: db.lease(names=[bad]),  # type: ignore[misc]
            lambda bad=bad: db.ack_many([bad]),  # type: ignore[misc]
        ]
    for other in (5, b"known", ["known"], True):
        calls += [
            lambda other=other: db.tasks(queue=other),  # type: ignore[misc]
            lambda other=other: db.tasks(name=other),  # type: ignore[misc]
            lambda other=other: db.tasks(tag=other),  # type: ignore[misc]
            lambda other=other: db.tasks(series=other),  # type: ignore[misc]
            lambda other=other: db.tasks(due_before=other),  # type: ignore[misc]
            lambda other=other: db.revive(queue=other),  # type: ignore[misc]
            lambda other=other: db.revive(name=other),  # type: ignore[misc]
            lambda other=other: db.revive(tag=other),  # type: ignore[misc]
        ]
    calls += [
        lambda: db.reschedule("known"),
        lambda: db.reschedule("known", delay=NAN),
        lambda: db.reschedule("known", delay=253_402_300_799),
        lambda: db.reschedule("known", at=NAIVE),
        lambda: db.reschedule("known", at=datetime.max.replace(tzinfo=UTC)),
        lambda: db.reschedule("known", delay=1, at=datetime(2027, 1, 1, tzinfo=UTC)),
        lambda: db.reschedule("known", delay=1, expect_lsn="x"),  # type: ignore[arg-type]
        lambda: db.pause(),
        lambda: db.pause("known", queue="default"),
        lambda: db.pause(queue=""),
        lambda: db.resume(queue=5),  # type: ignore[arg-type]
        lambda: db.revive(),
        lambda: list(db.tasks(state="nonsense")),
        lambda: list(db.tasks(limit="x")),  # type: ignore[arg-type]
        lambda: list(db.tasks(due_before=NAIVE)),
        lambda: list(db.tasks(after=1.5)),  # type: ignore[arg-type]
        lambda: list(db.tasks(after=SURROGATE)),
        lambda: db.ack_many("known"),  # type: ignore[arg-type]
        lambda: db.ack_many(5),  # type: ignore[arg-type]
        lambda: db.lease(""),
        lambda: db.lease([]),
        lambda: db.lease(5),  # type: ignore[arg-type]
        lambda: db.lease(limit=0),
        lambda: db.lease(limit=True),
        lambda: db.lease(limit=10_001),
        lambda: db.lease(wait=NAN),
        lambda: db.lease(wait="x"),  # type: ignore[arg-type]
        lambda: db.lease(names="task"),
        lambda: db.wait("known", timeout=NAN),
        lambda: db.poll("x"),  # type: ignore[arg-type]
        lambda: list(db.events("x")),  # type: ignore[arg-type]
        lambda: next(db.watch(1.5)),  # type: ignore[arg-type]
    ]
    return calls


def test_bad_arguments_of_every_call_are_refused_and_the_store_goes_on(
    bench: Bench,
) -> None:
    bench.db.schedule("task", id="known", delay=11)
    bench.clock.advance(10)
    for position, call in enumerate(bad_calls(bench)):
        try:
            refused(bench, call)
        except BaseException as error:
            error.add_note(f"call {position} of the list")
            raise
    bench.clock.advance(1)
    assert bench.started() == ["known"]


def test_bad_arguments_within_a_batch_refuse_it_and_the_store_goes_on(
    bench: Bench,
) -> None:
    db = bench.db
    db.schedule("task", id="known", delay=1)
    before = last_lsn(bench)
    for bad in (5, None, SURROGATE):
        for name in ("cancel", "run_now", "pause", "resume", "revive"):

            def attempt(name: str = name, bad: object = bad) -> None:
                with db.batch() as batch:
                    batch.schedule("task", delay=1)
                    getattr(batch, name)(bad)

            with pytest.raises((TypeError, ValueError, BatchRefused)) as caught:
                attempt()
            assert not isinstance(caught.value, UnicodeError), "nobody has judged it"
    assert last_lsn(bench) == before
    assert db.cancel("known") == "cancelled"


def test_bad_arguments_of_a_lease_leave_it_as_it_is(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", id="known", delay=0)
    (lease,) = db.lease()
    calls: list[Callable[[], object]] = [
        lambda: lease.ack(object()),
        lambda: lease.ack(then=[5]),  # type: ignore[list-item]
        lambda: lease.save(object()),
        lambda: lease.nack("no", retry_in=NAN),
        lambda: lease.nack("no", retry_in="x"),  # type: ignore[arg-type]
        lambda: lease.nack(5),  # type: ignore[arg-type]
        lambda: lease.release(INFINITY),
        lambda: lease.reject(5),  # type: ignore[arg-type]
        lambda: lease.renew(NAN),
        lambda: lease.renew(0),
        lambda: lease.renew(-5),
        lambda: lease.renew(10**12),
    ]
    for call in calls:
        refused(bench, call)
    lease.ack("result")
    assert db.get("known").result == "result"  # type: ignore[union-attr]


class Unspeakable(Exception):
    """An exception that can't even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        # A file name that is no UTF-8 comes out of os.listdir like this.
        OSError(errno.ENOENT, "No such file", SURROGATE),
        ValueError(SURROGATE),
        ValueError("x" * 100_000),
        ValueError("nul \0 and line\nbreak"),
        ValueError(),
        Unspeakable(),
        SURROGATE,
        "",
    ],
    ids=range(8),
)
def test_any_error_can_be_told(bench: Bench, error: BaseException | str) -> None:
    for end in ("nack", "reject", "block"):
        if end == "reject" and not isinstance(error, str):
            continue
        if end == "block" and isinstance(error, str):
            continue
        bench.db.schedule("task", id="known", delay=0, if_exists="replace")
        (lease,) = bench.db.lease()
        if end == "block":
            assert isinstance(error, BaseException)
            with pytest.raises(type(error)), lease:
                raise error
        else:
            getattr(lease, end)(error)
        task = bench.db.get("known")
        assert task is not None
        assert task.error is not None
        assert len(task.error) < 5_000
        bench.kill()


def test_an_error_says_what_was_raised(bench: Bench) -> None:
    bench.db.schedule("task", id="known", delay=0)
    (lease,) = bench.db.lease()
    lease.nack(ValueError(f"no file {SURROGATE}"))
    assert bench.db.get("known").error == r"ValueError: no file caf\udce9"  # type: ignore[union-attr]


# Odd ids: they are text, and nothing else is read into them.

ODD_IDS = [
    "x",
    "x" * 255,
    "ü" * 127,
    "\0first",
    "mid\0dle",
    "/",
    "..",
    "../../etc/passwd",
    "%2f",
    " ",
    " leading and trailing ",
    "\n",
    "\r\n\t",
    "\u202eright to left",
    "\u200b",
    "e\u0301",
    "\u00e9",
    "🚰",
    "\U0010ffff",
    "\ufeffid",
    "id@1767225600000",
    "T0123456789ABCD",
    "t0123456789abcde",
    "t0123456789abcd\n",
    "None",
    "'; DROP TABLE tasks; --",
]


@pytest.mark.parametrize("task_id", ODD_IDS, ids=numbered(ODD_IDS))
def test_an_odd_id_comes_back_as_it_went_in(bench: Bench, task_id: str) -> None:
    # beginning with NUL: coleifer/unqlite-python#70; empty: WebOfTrust/keripy#575
    db = bench.db
    assert db.schedule("task", delay=5, id=task_id).id == task_id
    assert [task.id for task in db.tasks()] == [task_id]
    db = bench.reopen()
    db = bench.kill()
    assert db.get(task_id).id == task_id  # type: ignore[union-attr]
    assert {event.id for event in db.history(task_id)} == {task_id}
    db.reschedule(task_id, delay=0)
    (lease,) = db.lease()
    assert lease.id == task_id
    lease.release(5)
    assert db.cancel(task_id) == "cancelled"
    assert db.get(task_id).state == "cancelled"  # type: ignore[union-attr]


def test_two_ids_that_look_alike_are_two(bench: Bench) -> None:
    db = bench.db
    receipts = [db.schedule("task", delay=5, id=task_id) for task_id in ODD_IDS]
    assert all(receipt.created for receipt in receipts)
    assert {task.id for task in bench.reopen().tasks()} == set(ODD_IDS)


def test_an_id_that_nobody_can_have_is_unknown(bench: Bench) -> None:
    assert bench.db.get("") is None
    assert bench.db.cancel("") == "unknown"
    assert bench.db.get("x" * 10_000) is None
    assert bench.db.cancel("x" * 10_000) == "unknown"
    assert bench.db.cancel("tffffffffffffff") == "unknown"
    with pytest.raises(TaskNotFound):
        bench.db.run_now("")


# Opening.

BAD_OPENINGS: list[dict[str, object]] = [
    *each("create", None, 1, "no"),
    *each("readonly", None, 1),
    *each("driver", None, 0),
    *each("durability", "sync", None, True),
    *each("profile", "ssd", None),
    *each("node", 5, "", SURROGATE, "x" * 256),
    *each("author", 5, "", None, SURROGATE, "x" * 256),
    *each("window_max", 99, 10_000_001, 1e3, True, None),
    *each("segment_bytes", 65_535, 2**30 + 1, None),
    *each("payload_bytes_max", 0, 16 * 2**20 + 1, "64K"),
    *each("batch_max", 0, 1_000_001, None),
    *each("tasks_max", -1, 2**53 + 1, 1.5),
    *each("bytes_max", -1, True),
    *each("retention_max", -1, None),
    *each("recoveries_max", -1, 1_000_001, None),
    *each("archive", 1, None),
    *each("reserve", 0, "yes"),
    *each("retention", -1, NAN, INFINITY, None, "60", True, 1e18),
    *each("elapsed_mark", -1, 0, 0.5, NAN, INFINITY, None, "60", True, 1e18),
    *each("shutdown_budget", -1, NAN, INFINITY, None, "60", True, 1e18),
    {"no_such_option": 1},
]


@pytest.mark.parametrize("options", BAD_OPENINGS, ids=numbered(BAD_OPENINGS))
def test_a_bad_option_of_open_is_named_and_nothing_is_made(
    options: dict[str, object],
) -> None:
    disk = CrashableDisk()
    (name,) = options
    with pytest.raises((TypeError, ValueError), match=name):
        wheeldb.open("/store", disk=disk, clock=ManualClock(), **options)  # type: ignore[arg-type]
    assert disk.info("/store") is None


@pytest.mark.parametrize("path", [5, None, b"/store", ""], ids=repr)
def test_a_bad_path_is_refused(path: object, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError)):
        wheeldb.open(path)  # type: ignore[arg-type]


def test_a_path_that_is_no_utf_8_is_refused_by_all_that_would_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/q\xff")
    with wheeldb.open(store) as db:
        db.backup(backup)
        before = state_of(tmp_path)
        calls: list[Callable[[], object]] = [
            lambda: wheeldb.open(odd),
            lambda: wheeldb.open(odd, readonly=True),
            lambda: wheeldb.open(f"{odd}/store"),
            lambda: wheeldb.open(odd, disk=CrashableDisk()),
            lambda: db.backup(odd),
            lambda: wheeldb.restore(backup, odd),
            lambda: wheeldb.replay(store, to=odd),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="is not UTF-8"):
                call()
        assert state_of(tmp_path) == before
    os.mkdir(odd)
    monkeypatch.chdir(odd)
    with pytest.raises(ValueError, match="is not UTF-8"):
        wheeldb.open("store")
    assert os.listdir(odd) == []


def state_of(directory: Path) -> list[tuple[str, bytes | None]]:
    """Return names and contents of everything in a directory."""
    return sorted(
        (str(path), path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    )


def descriptors() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_without_create_a_missing_store_stays_missing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(FileNotFoundError) as caught:
        wheeldb.open(path, create=False)
    assert caught.value.filename == str(path)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(FileNotFoundError):
        wheeldb.open(path, create=False)
    assert state_of(path) == []
    with pytest.raises(FileNotFoundError):
        wheeldb.open(tmp_path / "missing" / "store")
    with pytest.raises(FileNotFoundError):
        wheeldb.open(tmp_path / "missing", readonly=True)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_is_no_store(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"precious")
    with pytest.raises(NotADirectoryError):
        wheeldb.open(path, readonly=readonly)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("readonly", [False, True])
def test_a_directory_of_something_else_is_left_alone(
    tmp_path: Path, readonly: bool
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    before, files = state_of(tmp_path), descriptors()
    with pytest.raises(FormatError, match=str(tmp_path)):
        wheeldb.open(tmp_path, readonly=readonly)
    assert state_of(tmp_path) == before
    assert descriptors() == files


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"wheeldb\nformat 2\ndatabase " + b"0" * 32 + b"\n", "format 2"),
        (b"wheeldb\nformat 999999999\ndatabase " + b"0" * 32 + b"\n", "format 9"),
        (b"sqlite\nformat 1\ndatabase " + b"0" * 32 + b"\n", "not that of"),
        (b"wheeldb\nformat one\ndatabase " + b"0" * 32 + b"\n", "not that of"),
        (b"wheeldb\nformat 1\ndatabase xy\n", "not that of"),
        ("wheeldb\nformat 1\ndatabäse".encode(), "not that of"),
    ],
    ids=range(6),
)
def test_a_format_of_another_kind_or_age_is_refused(
    tmp_path: Path, text: bytes, message: str, readonly: bool
) -> None:
    wheeldb.open(tmp_path, driver=False).close()
    (tmp_path / "FORMAT").write_bytes(text)
    before, files = state_of(tmp_path), descriptors()
    with pytest.raises(FormatError, match=message):
        wheeldb.open(tmp_path, readonly=readonly)
    assert state_of(tmp_path) == before
    assert descriptors() == files


@pytest.mark.parametrize("name", ["nfs", "cifs", "9p", "fuse", "ceph"])
def test_a_network_file_system_is_refused(name: str) -> None:
    disk = CrashableDisk(file_system=name)
    with pytest.raises(OSError, match=name) as caught:
        wheeldb.open("/store", disk=disk, clock=ManualClock())
    assert caught.value.errno == errno.ENOTSUP
    assert disk.info("/store") is None
    disk.make_directory("/store")
    with pytest.raises(OSError, match=name):
        wheeldb.open("/store", disk=disk, clock=ManualClock())
    assert disk.list("/store") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir()
    os.chown(path, 65_534, 65_534)
    with pytest.raises(PermissionError, match="uid 65534"):
        wheeldb.open(path)
    assert state_of(path) == []


AS_NOBODY = """
import os, sys
import wheeldb
path, *locked = sys.argv[1:]
# While it may still read every module.
with wheeldb.open(path + ".first", driver=False) as db:
    db.schedule("task", delay=1)
wheeldb.open(path + ".first", readonly=True).close()
str(b"", "ascii")
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
os.makedirs(path, 0o700)
with wheeldb.open(path, driver=False) as db:
    db.schedule("task", delay=1, id="known")
for name in reversed(locked):
    name = os.path.join(path, name)
    os.chmod(name, 0o500 if os.path.isdir(name) else 0o400)
try:
    wheeldb.open(path, driver=False)
except OSError as error:
    print(type(error).__name__, error.filename)
else:
    print("opened")
with wheeldb.open(path, readonly=True) as db:
    print(db.get("known").id)
for name in locked:
    os.chmod(os.path.join(path, name), 0o700)
with wheeldb.open(path, driver=False) as db:
    print(db.get("known").id, db.check())
"""


@pytest.mark.parametrize(
    ("locked", "blamed"),
    [(["LOCK"], "LOCK"), (["", "LOCK"], "LOCK"), (["log"], "log/"), (["index"], "")],
    ids=str,
)
def test_a_store_that_may_only_be_read_is_refused_with_its_path(
    locked: list[str], blamed: str
) -> None:
    # Root may write anywhere: the child takes on another user first.
    parent = Path(tempfile.mkdtemp(dir="/tmp", prefix="wheeldb-"))
    try:
        parent.chmod(0o777)
        path = parent / "store"
        with Child(AS_NOBODY, path, *locked) as child:
            said, status = child.end()
        lines = said.splitlines()
        assert status == 0, said
        assert lines[0].startswith(f"PermissionError {path}/{blamed}"), said
        assert lines[1:] == ["known", "known []"]
    finally:
        shutil.rmtree(parent)


# A disk without room.


@pytest.mark.parametrize("blocks", range(0, 40, 3))
def test_a_store_is_made_whole_or_refused_on_a_full_disk(blocks: int) -> None:
    disk, clock = CrashableDisk(), ManualClock()
    disk.full(blocks * 4096)
    with contextlib.suppress(StorageFullError):
        wheeldb.open("/store", disk=disk, clock=clock, driver=False).close()
    disk.heal()
    with wheeldb.open("/store", disk=disk, clock=clock, driver=False) as db:
        db.schedule("task", delay=1)
        assert db.check() == []


def test_on_a_full_disk_new_tasks_are_refused_and_old_ones_end() -> None:
    with Bench(segment_bytes=2**16) as bench:
        db, disk = bench.db, bench.disk
        ids = [db.schedule("task", b"x" * 500, delay=1).id for _ in range(50)]
        disk.full(2**30)
        disk.full(2**30 - disk.free_bytes())
        before = db.statistics().pending_count
        accepted = 0
        for _ in range(1_000):
            try:
                db.schedule("task", b"x" * 500, delay=1)
            except StorageFullError:
                break
            accepted += 1
        assert accepted < 1_000
        assert db.statistics().pending_count == before + accepted
        for task_id in ids:
            assert db.cancel(task_id) == "cancelled"
        bench.clock.advance(1)
        assert len(bench.started(limit=10)) == accepted
        disk.heal()
        db.schedule("task", b"x" * 500, delay=1)


def test_a_closed_store_says_so(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", id="known", delay=0)
    (lease,) = db.lease()
    db.close()
    calls: list[Callable[[], object]] = [
        lambda: db.schedule("task", delay=1),
        lambda: db.schedule_many([NewTask("task", delay=1)]),
        lambda: db.batch(),
        lambda: db.cancel("known"),
        lambda: db.get("known"),
        lambda: db.tasks(),
        lambda: db.history("known"),
        lambda: db.events(),
        lambda: db.watch(),
        lambda: db.wait("known"),
        lambda: db.lease(),
        lambda: db.poll(),
        lambda: db.next_in(),
        lambda: db.statistics(),
        lambda: db.check(),
        lambda: db.checkpoint(),
        lambda: db.snapshot(),
        lambda: db.pause(queue="default"),
        lambda: db.resume("known"),
        lambda: db.revive("known"),
        lambda: db.run_now("known"),
        lambda: db.reschedule("known", delay=1),
        lambda: lease.ack(),
        lambda: lease.nack("no"),
        lambda: lease.release(),
        lambda: lease.renew(),
        lambda: lease.save(1),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    db.close()
    bench.open()
