"""Faults that others had with ids, duplicates, cancels and payloads.

Goal: an id means one task on every path; the same request is the same task and another
one is refused; what was cancelled or has ended never starts; what goes in comes out.
Method: a disk in memory and a clock moved by hand; threads where the fault was a race.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from threading import Barrier, Thread
from typing import cast

import pytest
from field_helpers import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from wheeldb.errors import (
    BatchRefused,
    LeaseLost,
    PayloadTooLarge,
    StaleVersion,
    TaskExists,
    TaskNotFound,
)
from wheeldb.model import CancelOutcome, NewTask, Receipt, Retry, Task, TaskState
from wheeldb.payload import pack_payload

YEAR = 365 * 86_400
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store that is checked and closed at the end."""
    with Bench() as bench:
        yield bench


def known(bench: Bench, task_id: str) -> Task:
    """Return a task that has to be there."""
    task = bench.db.get(task_id)
    assert task is not None, f"{task_id!r} is unknown"
    return task


# The same id on every path.


def by_schedule(bench: Bench, tasks: list[NewTask]) -> list[Receipt]:
    return [
        bench.db.schedule(task.name, task.payload, **task.options) for task in tasks
    ]


def by_schedule_many(bench: Bench, tasks: list[NewTask]) -> list[Receipt]:
    return list(bench.db.schedule_many(tasks))


def by_batch(bench: Bench, tasks: list[NewTask]) -> list[Receipt]:
    with bench.db.batch() as batch:
        for task in tasks:
            batch.schedule(task.name, task.payload, **task.options)
    return cast("list[Receipt]", batch.results)


def by_many_in_batch(bench: Bench, tasks: list[NewTask]) -> list[Receipt]:
    with bench.db.batch() as batch:
        batch.schedule_many(tasks)
    return list(cast("list[list[Receipt]]", batch.results)[0])


def by_ack(bench: Bench, tasks: list[NewTask]) -> list[Receipt]:
    bench.db.schedule("first", delay=0, queue="other")
    with bench.db.lease("other") as (lease,):
        lease.ack(then=tasks)
    return []


PATHS = [by_schedule, by_schedule_many, by_batch, by_many_in_batch, by_ack]


@pytest.mark.parametrize("other", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("one", PATHS, ids=lambda path: path.__name__)
def test_an_id_is_one_task_on_every_path(
    bench: Bench,
    one: Callable[[Bench, list[NewTask]], list[Receipt]],
    other: Callable[[Bench, list[NewTask]], list[Receipt]],
) -> None:
    # taskforcesh/bullmq#458: the call for many ignored the ids, and jobs were doubled.
    tasks = [
        NewTask("task", {"number": number}, delay=60, id=f"id {number}")
        for number in range(20)
    ]
    first = one(bench, tasks)
    again = other(bench, tasks)
    assert all(receipt.created for receipt in first)
    assert not any(receipt.created for receipt in again)
    assert [receipt.id for receipt in first or again] == [
        f"id {number}" for number in range(20)
    ] or (one is other is by_ack)
    if first and again:
        assert [receipt.lsn for receipt in first] == [receipt.lsn for receipt in again]
        assert [receipt.due_at for receipt in first] == [
            receipt.due_at for receipt in again
        ]
    assert bench.db.statistics().pending_count == 20
    bench.clock.advance(60)
    assert sorted(bench.started()) == sorted(f"id {number}" for number in range(20))


def test_an_id_twice_in_one_call_is_one_task(bench: Bench) -> None:
    task = NewTask("task", delay=60, id="twice")
    one, other = bench.db.schedule_many([task, task])
    assert (one.created, other.created) == (True, False)
    assert one.lsn == other.lsn
    different = NewTask("task", delay=61, id="twice")
    with pytest.raises(TaskExists) as caught:
        bench.db.schedule_many([NewTask("task", delay=1), different])
    assert caught.value.index == 1
    with pytest.raises(TaskExists):
        bench.db.schedule_many(
            [NewTask("task", delay=1, id="new"), NewTask("task", delay=2, id="new")]
        )
    assert bench.db.get("new") is None
    assert bench.db.statistics().pending_count == 1


def together(count: int, call: Callable[[int], object]) -> list[object]:
    """Make a call in as many threads at once; return answers and errors in order."""
    answers: list[object] = [None] * count
    start = Barrier(count)

    def run(place: int) -> None:
        start.wait()
        try:
            answers[place] = call(place)
        except Exception as error:
            answers[place] = error

    threads = [Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_the_same_id_from_many_threads_is_one_task(bench: Bench) -> None:
    for number in range(5):
        task_id = f"id {number}"

        def submit(_: int, task_id: str = task_id) -> Receipt:
            return bench.db.schedule("task", delay=60, id=task_id)

        answers = together(16, submit)
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert len(receipts) == 16
        assert sum(receipt.created for receipt in receipts) == 1
        assert len({(receipt.lsn, receipt.due_at) for receipt in receipts}) == 1
    assert bench.db.statistics().pending_count == 5


# Another request under the same id.

ORIGINAL: dict[str, object] = {
    "delay": 7_200,
    "id": "order",
    "tags": ["blue"],
    "headers": {"trace": "1"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"delay": 7_201},
        {"delay": 7_200.001},
        {"queue": "other"},
        {"priority": 1},
        {"tags": ["red"]},
        {"tags": ["blue", "blue"]},
        {"headers": {"trace": "2"}},
        {"lease": 31},
        {"expires": 60},
        {"retry": Retry(max_attempts=4)},
        {"at_most_once": True},
        {"name": "other"},
        {"payload": {"amount": 10.0}},
        {"payload": {"amount": 10, "more": None}},
        {"payload": None},
    ],
    ids=lambda change: "-".join(map(str, [*change, *change.values()]))[:40],
)
def test_another_request_under_an_id_is_a_conflict(
    bench: Bench, change: dict[str, object]
) -> None:
    # taskforcesh/bullmq#1287, OptimalBits/bull#2236: it was dropped in silence, so a
    # new delay never took effect. square/connect-api-examples#135: a key with another
    # payload returned the old result.
    db = bench.db
    original = {"name": "pay", "payload": {"amount": 10}, **ORIGINAL}
    first = db.schedule(**original)  # type: ignore[arg-type]
    bench.clock.advance(1)
    same = db.schedule(**original)  # type: ignore[arg-type]
    assert (same.created, same.lsn, same.due_at) == (False, first.lsn, first.due_at)
    with pytest.raises(TaskExists, match="order") as caught:
        db.schedule(**{**original, **change})  # type: ignore[arg-type]
    existing = caught.value.existing
    assert isinstance(existing, Task)
    assert (existing.id, existing.payload, existing.lsn) == (
        *("order", {"amount": 10}),
        first.lsn,
    )
    kept = db.schedule(**{**original, **change, "if_exists": "keep"})  # type: ignore[arg-type]
    assert (kept.created, kept.lsn, kept.due_at) == (False, first.lsn, first.due_at)
    moved = db.schedule(**{**original, **change, "if_exists": "replace"})  # type: ignore[arg-type]
    assert moved.created
    assert moved.lsn > first.lsn
    assert db.statistics().pending_count == 1


def test_a_finished_request_is_the_same_until_it_is_forgotten() -> None:
    with Bench(retention=3_600) as bench:
        db = bench.db

        def order(delay: float = 1, **options: object) -> Receipt:
            return db.schedule("pay", delay=delay, id="order", **options)  # type: ignore[arg-type]

        first = order()
        bench.clock.advance(1)
        assert bench.started() == ["order"]
        for open_again in (bench.stay, bench.reopen, bench.kill):
            open_again()
            db = bench.db
            again = order()
            assert (again.created, again.state) == (False, TaskState.DONE)
            assert again.lsn >= first.lsn
            with pytest.raises(TaskExists):
                order(2)
            assert order(2, if_exists="keep").state == TaskState.DONE
        bench.clock.advance(3_599)
        assert not order().created
        bench.clock.advance(1)
        assert order().created
        bench.clock.advance(1)
        assert bench.started() == ["order"]


def test_the_same_request_is_the_same_in_every_state(bench: Bench) -> None:
    db = bench.db

    def order() -> Receipt:
        return db.schedule("pay", delay=10, id="order")

    states = [order().state]
    bench.clock.advance(10)
    db.poll()
    states.append(order().state)
    (lease,) = db.lease()
    states.append(order().state)
    lease.reject("no money")
    states.append(order().state)
    db.revive("order")
    db.pause("order")
    states.append(order().state)
    db.cancel("order")
    states.append(order().state)
    assert states == [
        *(TaskState.SCHEDULED, TaskState.DUE, TaskState.LEASED),
        *(TaskState.DEAD, TaskState.PAUSED, TaskState.CANCELLED),
    ]


def test_a_replaced_task_is_swapped_in_one_step(bench: Bench) -> None:
    db = bench.db
    db.schedule("pay", 1, delay=0, id="order")
    (lease,) = db.lease()
    db.schedule("pay", 2, delay=5, id="order", if_exists="replace")
    settlings: list[Callable[[], None]] = [
        *(lease.ack, lease.renew, lease.release),
        lambda: lease.nack("no"),
    ]
    for settle in settlings:
        with pytest.raises(LeaseLost):
            settle()
    assert known(bench, "order").payload == 2
    bench.kill()
    bench.clock.advance(5)
    (lease,) = bench.db.lease()
    assert (lease.payload, lease.attempt) == (2, 1)
    lease.ack()


def test_versions_of_an_id_only_rise(bench: Bench) -> None:
    db = bench.db
    db.schedule("pay", 2, delay=60, id="order", version=2)
    for if_exists in ("same", "keep", "replace"):
        with pytest.raises(StaleVersion):
            db.schedule("pay", 1, delay=60, id="order", version=1, if_exists=if_exists)
    assert not db.schedule("pay", 2, delay=60, id="order", version=2).created
    db.schedule("pay", 3, delay=0, id="order", version=3)
    (lease,) = db.lease()
    receipt = db.schedule("pay", 4, delay=60, id="order", version=4)
    assert receipt.state == TaskState.LEASED
    assert known(bench, "order").due_in == 60
    lease.ack()
    task = known(bench, "order")
    assert (task.state, task.payload, task.version) == (TaskState.SCHEDULED, 4, 4)
    bench.clock.advance(60)
    assert bench.started() == ["order"]
    for open_again in (bench.stay, bench.reopen, bench.kill):
        open_again()
        with pytest.raises(StaleVersion):
            bench.db.schedule("pay", 1, delay=60, id="order", version=1)
    assert bench.db.schedule("pay", 5, delay=60, id="order", version=5).created


# Cancelled means never started.


def test_what_was_cancelled_never_starts(bench: Bench) -> None:
    # rq/rq#1669, python-arq/arq#394, python-arq/arq#405: it was taken out of one
    # structure only, and ran.
    random = Random(1669)
    ids = [f"id {number}" for number in range(200)]
    bench.db.schedule_many([NewTask("task", delay=5, id=task_id) for task_id in ids])
    cancelled: set[str] = set()
    for task_id in random.sample(ids, 120):
        bench.clock.advance(random.choice((0, 0.01, 0.05)))
        if random.random() < 0.1:
            bench.db.poll()
        if random.random() < 0.1:
            bench.db.checkpoint()
        assert bench.db.cancel(task_id) == CancelOutcome.CANCELLED
        cancelled.add(task_id)
        if random.random() < 0.1:
            bench.kill()
    bench.clock.advance(5)
    started = bench.started()
    assert len(started) == len(set(started))
    assert set(started) == set(ids) - cancelled
    bench.kill()
    bench.clock.advance(YEAR)
    assert bench.started() == []


@pytest.mark.parametrize("rounds", [30, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_cancel_and_a_start_at_once_have_one_winner(rounds: int) -> None:
    # kagkarlsson/db-scheduler#786, kagkarlsson/db-scheduler#422: a cancel between the
    # look and the deletion ended in "this is a bug".
    with Bench(durability="written") as bench:
        db = bench.db
        for number in range(rounds):
            task_id = f"id {number}"
            db.schedule("task", delay=1, id=task_id)
            bench.clock.advance(1)

            def work(place: int, task_id: str = task_id) -> object:
                if place == 0:
                    return db.cancel(task_id)
                if place == 1:
                    try:
                        return db.reschedule(task_id, delay=0)
                    except TaskNotFound as error:
                        return error
                return [lease.id for lease in db.lease()]

            outcome, moved, first, second = together(4, work)
            starts = cast("list[str]", first) + cast("list[str]", second)
            assert outcome in (CancelOutcome.CANCELLED, CancelOutcome.LEASED)
            assert isinstance(moved, Receipt | TaskNotFound), moved
            if outcome == CancelOutcome.CANCELLED:
                assert starts == []
                assert known(bench, task_id).state == TaskState.CANCELLED
            else:
                assert starts == [task_id]
            # Whoever won: from here on it can't start.
            assert db.lease() == []


def test_the_end_of_a_one_shot_is_the_end(bench: Bench) -> None:
    # openclaw/openclaw#13878: only "ok" counted as done, and whatever else had come of
    # a reminder came again at each restart.
    db = bench.db
    once = Retry(max_attempts=1)
    for task_id in ("done", "failed", "rejected", "cancelled", "cancelled later"):
        db.schedule("task", delay=0, id=task_id, retry=once)
    generated = {
        end: db.schedule("task", delay=0, retry=once).id for end in ("done", "failed")
    }
    leases = {lease.id: lease for lease in db.lease(limit=7)}
    leases["done"].ack()
    leases[generated["done"]].ack()
    leases["failed"].nack("no")
    leases[generated["failed"]].nack("no")
    leases["rejected"].reject("no")
    leases["cancelled later"].release()
    db.cancel("cancelled")
    leases["cancelled"].nack("too late")
    db.cancel("cancelled later")
    db.schedule("task", at=START, expires=1, id="expired")
    bench.clock.advance(1)
    assert bench.started() == []
    for number in range(6):
        if number % 2:
            bench.reopen()
        else:
            bench.kill()
        bench.clock.advance(3_600)
        assert bench.started() == []
    ends = {task_id: known(bench, task_id).state for task_id in ("done", "expired")}
    assert ends == {"done": TaskState.DONE, "expired": TaskState.EXPIRED}
    # What is dead is kept, and comes back only when it is told to.
    assert {task.id for task in bench.db.tasks(state="dead")} == {
        *("failed", "rejected", generated["failed"])
    }
    assert bench.db.revive(queue="default") == 3
    assert sorted(bench.started()) == sorted(
        ["failed", "rejected", generated["failed"]]
    )


# One bad item.


@pytest.mark.parametrize(
    "bad",
    [
        NewTask("task", delay=1, id="x" * 256),
        NewTask("task", b"x" * 70_000, delay=1),
        NewTask("task", {"when": START}, delay=1),
        NewTask("task", delay=1, id="taken"),
    ],
    ids=["id", "too large", "type", "taken"],
)
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_item_of_many_stores_none_and_is_named(
    bench: Bench, bad: NewTask, place: int
) -> None:
    # ThoughtRiver/lmdb-embeddings#4, mikedilger/gossip#447: one long key failed a whole
    # import, and nobody could say how far it had got.
    db = bench.db
    db.schedule("task", delay=60, id="taken")
    before = db.statistics()
    tasks = [NewTask("task", delay=1, id=f"id {number}") for number in range(1_000)]
    tasks[place] = bad
    with pytest.raises((TypeError, ValueError)) as caught:
        db.schedule_many(tasks)
    assert getattr(caught.value, "index", None) == place
    after = db.statistics()
    assert (after.last_lsn, after.pending_count) == (before.last_lsn, 1)
    assert all(db.get(f"id {number}") is None for number in range(1_000))


def test_a_refused_batch_names_the_call_and_changes_nothing(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", delay=60, id="taken")
    before = db.statistics().last_lsn

    def taken() -> None:
        with db.batch() as batch:
            batch.schedule("task", delay=1, id="new")
            batch.cancel("taken")
            batch.schedule("task", delay=2, id="new")

    with pytest.raises(BatchRefused) as caught:
        taken()
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, TaskExists)

    def unexpected() -> None:
        with db.batch() as batch:
            batch.schedule("task", delay=1, id="new")
            batch.cancel("unknown", expect=CancelOutcome.CANCELLED)

    with pytest.raises(BatchRefused) as caught:
        unexpected()
    assert (caught.value.index, caught.value.outcome) == (1, CancelOutcome.UNKNOWN)

    def interrupted() -> None:
        with db.batch() as batch:
            batch.cancel("taken")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert db.statistics().last_lsn == before
    assert known(bench, "taken").state == TaskState.SCHEDULED
    assert db.get("new") is None


# Many at one due time, long ids, large payloads.


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.slow)])
def test_many_at_one_instant_with_long_ids_all_start_once(count: int) -> None:
    # jnwatson/py-lmdb#310, jnwatson/py-lmdb#152: an index of sorted duplicates took no
    # values of more than 511 bytes.
    with Bench(window_max=100, payload_bytes_max=2_000) as bench:
        ids = [f"{number:_>255}" for number in range(count)]
        payload = b"x" * 1_997
        for start in range(0, count, 1_000):
            bench.db.schedule_many(
                [
                    NewTask("task", payload, at=START + timedelta(hours=1), id=task_id)
                    for task_id in ids[start : start + 1_000]
                ]
            )
        bench.reopen()
        bench.clock.advance(3_599.999)
        assert bench.started() == []
        bench.clock.advance(0.001)
        (first,) = bench.db.lease()
        assert (first.id, first.payload) == (ids[0], payload)
        first.ack()
        bench.kill()
        assert bench.started() == ids[1:]


# What goes in comes out.

PAYLOADS: list[object] = [
    None,
    True,
    False,
    0,
    -1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**31),
    -(2**63),
    0.1,
    -0.0,
    float("inf"),
    5e-324,
    "",
    "nul \0 within",
    "e\u0301 and \u00e9",
    "\U0001f6b0",
    b"",
    b"\xff\x00\xfe",
    [],
    {},
    {"": ""},
    {"list": [1, [2, [3, {"deep": b"bytes"}]]], "none": None},
]


def same(one: object, other: object) -> bool:
    """Return whether two values are equal, and of the same types throughout."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(
            same(one[key], other[key]) for key in one
        )
    return repr(one) == repr(other)


def test_a_payload_comes_back_equal_and_of_the_same_type(bench: Bench) -> None:
    # msgpack/msgpack-python#71, msgpack/msgpack-python#221: 32-bit values came back as
    # -1, and what did not fit was first noticed when it was read.
    nested: object = "core"
    for _ in range(63):
        nested = [nested]
    payloads = [*PAYLOADS, nested, PAYLOADS]
    ids = [bench.db.schedule("task", payload, delay=1).id for payload in payloads]
    for open_again in (bench.stay, bench.reopen, bench.kill):
        open_again()
        for task_id, payload in zip(ids, payloads, strict=True):
            assert same(known(bench, task_id).payload, payload)
    bench.clock.advance(1)
    with bench.db.lease(limit=len(ids)) as leases:
        for lease, payload in zip(leases, payloads, strict=True):
            assert same(lease.payload, payload)
            lease.save(payload)
    for lease, payload in zip(bench.db.lease(limit=len(ids)), payloads, strict=True):
        assert same(lease.cursor, payload)
        lease.ack()


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=25)
@given(json_like)
def test_any_payload_comes_back(payload: object) -> None:
    with Bench() as bench:
        receipt = bench.db.schedule("task", payload, delay=1, id="known")
        assert same(known(bench, "known").payload, payload)
        again = bench.db.schedule("task", payload, delay=1, id="known")
        assert (again.created, again.lsn) == (False, receipt.lsn)


def test_what_is_changed_after_the_call_does_not_change_the_task(bench: Bench) -> None:
    payload: dict[str, list[int]] = {"list": [1]}
    receipt = bench.db.schedule("task", payload, delay=1)
    payload["list"].append(2)
    task = known(bench, receipt.id)
    assert task.payload == {"list": [1]}
    cast("dict[str, list[int]]", task.payload)["list"].append(3)
    assert known(bench, receipt.id).payload == {"list": [1]}


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("size", [1, 4_096, 16_384, 65_536])
def test_sizes_at_buffer_edges_are_exact_or_refused(
    bench: Bench, size: int, offset: int
) -> None:
    # amphp/beanstalk#26, beanstalkd/beanstalkd#141: around 16 and 64 KiB payloads were
    # cut, or put the connection out of step.
    payload = Random(size + offset).randbytes(size + offset)
    if size + offset + 3 > 65_536:
        with pytest.raises(PayloadTooLarge):
            bench.db.schedule("task", payload, delay=1)
        return
    receipt = bench.db.schedule("task", payload, delay=1)
    assert known(bench, receipt.id).payload == payload
    bench.kill()
    assert known(bench, receipt.id).payload == payload


def test_a_payload_of_exactly_the_limit_is_taken(bench: Bench) -> None:
    exact = b"x" * (65_536 - 3)
    assert len(pack_payload(exact, 65_536)) == 65_536
    receipt = bench.db.schedule("task", exact, delay=1)
    with pytest.raises(PayloadTooLarge, match="65537 bytes"):
        bench.db.schedule("task", exact + b"x", delay=1)
    with pytest.raises(PayloadTooLarge):
        bench.db.schedule("task", exact * 10, delay=1)
    assert known(bench, receipt.id).payload == exact


# Dates far away.


@pytest.mark.parametrize(
    "instant",
    [
        datetime(1901, 12, 13, 20, 45, 52, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        datetime(2100, 2, 28, 23, 59, 59, 1_000, tzinfo=UTC),
        datetime(2262, 4, 11, 23, 47, 17, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
    ids=str,
)
def test_a_far_date_is_exact_everywhere(bench: Bench, instant: datetime) -> None:
    # msgpack/msgpack-python#451: a date of 2100 came back as one of 1963.
    db = bench.db
    payload = {"text": instant.isoformat(), "seconds": instant.timestamp()}
    db.schedule("task", payload, at=instant, id="far")
    db.schedule("task", delay=60, id="moved")
    db.reschedule("moved", at=instant)

    def everywhere() -> None:
        for task_id in ("far", "moved"):
            assert known(bench, task_id).due_at == instant
        assert known(bench, "far").payload == payload
        behind = instant + timedelta(milliseconds=1)
        due = [task.id for task in bench.db.tasks(due_before=behind)]
        assert due == ["far", "moved"]
        assert list(bench.db.tasks(due_before=instant)) == []

    everywhere()
    bench.db.checkpoint()
    everywhere()
    bench.reopen()
    everywhere()
    bench.db.snapshot()
    bench.kill()
    everywhere()
    bench.disk.indexes.clear()
    bench.kill()
    everywhere()
