"""What happened, what happens, and how it ended: `history`, `events`, `watch`, `wait`.

Goal: each durable event is told once, in order, with its author and its details, to
everybody who asks; what isn't durable is told to nobody; what the log no longer has is
said to be gone. Method: a store on a disk in memory; threads that wait are released by
the change itself, and each test joins them.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from threading import Thread
from typing import Generic, TypeVar

import pytest
from field_helpers import Bench

import wheeldb
from wheeldb.errors import ClosedError, Compacted, TaskExists, TaskNotFound
from wheeldb.model import Event, NewTask, Retry, TaskState
from wheeldb.testing import CrashableDisk, ManualClock

Answer = TypeVar("Answer")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store that is checked and closed at the end."""
    with Bench(author="gateway") as bench:
        yield bench


@pytest.fixture
def driven() -> Iterator[Bench]:
    """The same with a driver: without one nothing is waited for."""
    with Bench(driver=True) as bench:
        yield bench


class Asking(Generic[Answer]):
    """A call made in a thread, and its answer."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._call = call
        self._answers: list[Answer] = []
        self._errors: list[BaseException] = []
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:
            self._errors.append(error)

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> Answer:
        """Wait for the call's end, and return or raise what it came to."""
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "it still waits"
        if self._errors:
            raise self._errors[0]
        return self._answers[0]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


# History.


def test_a_tasks_life_is_told_in_order(bench: Bench) -> None:
    db = bench.db
    receipt = db.schedule(
        "valve.close",
        {"valve": 7},
        delay=60,
        id="valve",
        tags=["blue"],
        retry=Retry(max_attempts=2),
    )
    db.reschedule("valve", delay=30)
    db.pause("valve")
    db.resume("valve", now=True)
    (lease,) = db.lease()
    lease.renew()
    lease.save({"step": 1})
    lease.nack(ValueError("stuck"), retry_in=5)
    bench.clock.advance(5)
    (lease,) = db.lease()
    lease.release()
    (lease,) = db.lease()
    lease.ack({"closed": True})
    history = db.history("valve")
    assert kinds(history) == [
        *("scheduled", "rescheduled", "paused", "resumed", "leased", "renewed"),
        *("saved", "nacked", "leased", "released", "leased", "acked"),
    ]
    assert history.is_complete
    assert [event.lsn for event in history] == sorted({event.lsn for event in history})
    assert [event.hlc for event in history] == sorted({event.hlc for event in history})
    assert {event.id for event in history} == {"valve"}
    assert history[0].lsn == receipt.lsn
    assert history[0].fields["name"] == "valve.close"
    assert history[0].fields["payload"] == {"valve": 7}
    assert history[0].fields["tags"] == ["blue"]
    assert history[6].fields["cursor"] == {"step": 1}
    assert history[7].fields["error"] == "ValueError: stuck"
    assert history[-1].fields["result"] == {"closed": True}
    assert (history[-1].at - history[0].at).total_seconds() == 5


def test_each_event_names_its_author(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", delay=0, id="known", lease=1, retry=Retry(max_attempts=2))
    db.lease()
    bench.clock.advance(1)
    db.poll()
    assert [(event.kind, event.by) for event in db.history("known")] == [
        ("scheduled", "gateway"),
        ("leased", "gateway"),
        ("lease_expired", "wheel"),
    ]
    bench.options["author"] = "operator"
    bench.reopen().cancel("known")
    assert db.history is not None
    assert bench.db.history("known")[-1].by == "operator"


def test_one_task_of_many_is_told_alone(bench: Bench) -> None:
    db = bench.db
    receipts = db.schedule_many(
        [NewTask("task", number, delay=0) for number in range(10)]
    )
    leases = db.lease(limit=10)
    db.ack_many(leases)
    for number, receipt in enumerate(receipts):
        history = db.history(receipt.id)
        assert kinds(history) == ["scheduled", "leased", "acked"]
        assert history[0].fields["payload"] == number
        assert {event.id for event in history} == {receipt.id}
        assert history[0].lsn == receipt.lsn
        assert history[1].lsn == leases[number].fence


def test_a_generated_id_is_told_as_long_as_the_log_has_it(bench: Bench) -> None:
    receipt = bench.db.schedule("task", delay=0)
    assert bench.started() == [receipt.id]
    assert bench.db.get(receipt.id) is None
    for open_again in (bench.stay, bench.reopen, bench.kill):
        open_again()
        history = bench.db.history(receipt.id)
        assert kinds(history) == ["scheduled", "leased", "acked"]
        assert history.is_complete


def test_an_id_used_again_is_told_with_all_its_lives(bench: Bench) -> None:
    db = bench.db
    db.schedule("first", delay=60, id="thing")
    db.schedule("second", delay=60, id="thing", if_exists="replace")
    db.cancel("thing")
    db.schedule("third", delay=60, id="thing", if_exists="replace")
    db.schedule("other", delay=60, id="other")
    history = db.history("thing")
    assert [event.fields["name"] for event in history if event.kind == "scheduled"] == [
        "first",
        "second",
        "third",
    ]
    assert kinds(history).count("cancelled") == 1
    assert history[1].fields["replaces"] == history[0].lsn


def test_nothing_is_told_of_what_nobody_knows(bench: Bench) -> None:
    history = bench.db.history("unknown")
    assert history == []
    assert not history.is_complete
    assert bench.db.history("tffffffffffffff") == []


def test_history_says_when_its_beginning_is_gone() -> None:
    with Bench(segment_bytes=2**16) as bench:
        db = bench.db
        db.schedule("task", delay=3_600, id="old")
        lose_the_beginning(bench)
        db.reschedule("old", delay=1)
        history = db.history("old")
        assert kinds(history) == ["rescheduled"]
        assert not history.is_complete
        assert history.oldest_lsn > 2
        db.schedule("task", delay=1, id="new")
        assert db.history("new").is_complete


def test_an_archive_keeps_the_beginning() -> None:
    with Bench(segment_bytes=2**16, archive=True) as bench:
        db = bench.db
        db.schedule("task", delay=3_600, id="old")
        lose_the_beginning(bench)
        archived = bench.disk.list(f"{bench.path}/archive")
        assert archived == sorted(archived)
        assert archived != []


def lose_the_beginning(bench: Bench) -> None:
    """Write so much, and so many snapshots, that the oldest segments go."""
    for _ in range(3):
        for _ in range(5):
            bench.db.schedule("fill", b"x" * 30_000, delay=0)
        bench.started()
        bench.db.snapshot()


# Events.


def test_all_events_are_told_once_and_in_order(bench: Bench) -> None:
    db = bench.db
    db.schedule_many([NewTask("task", delay=0)] * 5)
    bench.started()
    db.schedule("task", delay=1, id="known")
    events = list(db.events())
    lsns = [event.lsn for event in events]
    assert lsns == sorted(set(lsns))
    assert lsns[-1] == db.durable_lsn
    assert kinds(events).count("scheduled") == 6
    assert kinds(events).count("acked") == 5
    middle = lsns[len(lsns) // 2]
    assert list(db.events(middle)) == [event for event in events if event.lsn > middle]
    assert list(db.events(lsns[-1])) == []


def test_an_event_that_is_not_synced_is_not_told() -> None:
    with Bench(durability="written") as bench:
        db = bench.db
        db.schedule("task", delay=60, id="written")
        assert "scheduled" not in kinds(list(db.events(db.durable_lsn)))
        assert db.statistics().last_lsn > db.durable_lsn
        told = [event.id for event in db.events()]
        assert "written" not in told
        db.poll()
        bench.clock.advance(0.1)
        db.poll()
        assert "written" in [event.id for event in db.events()]


# Watch.


def test_a_watch_goes_on_where_the_log_ends(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", delay=60, id="before")
    watch = db.watch()
    seen = []
    for event in watch:
        seen.append(event)
        if event.id == "before":
            break
    assert seen == list(db.events())
    asking = Asking(lambda: next(watch))
    assert asking.is_waiting
    db.schedule("task", delay=60, id="after")
    event = asking.answer()
    assert (event.id, event.kind) == ("after", "scheduled")


def test_a_watch_reads_what_has_come_and_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, lengths, read = bench.db, [], bench.disk.pread
    db.schedule_many([NewTask("task", b"x" * 30_000, delay=60)] * 100)
    watch = db.watch()
    assert kinds(list(islice(watch, 101))) == ["opened"] + ["scheduled"] * 100

    def counted(handle: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return read(handle, length, offset)

    monkeypatch.setattr(bench.disk, "pread", counted)
    for number in range(10):
        db.schedule("task", delay=60, id=f"task {number}")
        assert next(watch).id == f"task {number}"
    assert sum(lengths) <= 10 * 2**16


def test_a_watch_tells_what_is_synced_and_nothing_else() -> None:
    with Bench(durability="written") as bench:
        db = bench.db
        watch = db.watch(db.durable_lsn)
        asking = Asking(lambda: next(watch))
        db.schedule("task", delay=60, id="written")
        assert db.durable_lsn < db.statistics().last_lsn
        assert asking.is_waiting
        db.schedule("task", delay=60, id="synced", durability="fsync")
        # The sync covers what was written before, too.
        assert asking.answer().id == "written"
        assert next(watch).id == "synced"


def test_many_watches_see_the_same(bench: Bench) -> None:
    db = bench.db
    start = db.durable_lsn
    askings = [Asking(lambda: list(islice(db.watch(start), 60))) for _ in range(3)]
    for number in range(20):
        db.schedule("task", delay=0, id=f"task {number}")
        with db.lease() as (lease,):
            lease.ack()
    # A lease is synced by the next call that is; the last ack has seen to it.
    first, *others = [asking.answer() for asking in askings]
    assert kinds(first) == ["scheduled", "leased", "acked"] * 20
    assert all(other == first for other in others)
    lsns = [event.lsn for event in first]
    assert lsns == sorted(set(lsns))


def test_a_watch_from_far_ahead_waits_for_it(bench: Bench) -> None:
    db = bench.db
    asking = Asking(lambda: next(db.watch(db.durable_lsn + 2)))
    for _ in range(3):
        db.schedule("task", delay=60)
    assert asking.answer().lsn == db.durable_lsn


def test_a_watch_from_where_the_log_no_longer_is_says_so() -> None:
    with Bench(segment_bytes=2**16) as bench:
        db = bench.db
        behind = db.watch(0)
        assert next(behind).kind == "opened"
        lose_the_beginning(bench)
        with pytest.raises(Compacted) as caught:
            next(db.watch(0))
        oldest_lsn = caught.value.oldest_lsn
        assert str(oldest_lsn) in str(caught.value)
        assert next(db.watch(oldest_lsn - 1)).lsn >= oldest_lsn
        # Who was slower than the log's end finds out, too, and misses nothing unsaid.
        with pytest.raises(Compacted):
            list(islice(behind, 1_000))


def test_a_watch_over_a_reopening_misses_nothing(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", delay=60, id="one")
    seen = [event.lsn for event in db.events()]
    db = bench.kill()
    db.schedule("task", delay=60, id="two")
    more = list(db.events(seen[-1]))
    assert kinds(more)[0] == "opened"
    assert [event.id for event in more][-1] == "two"
    assert more[0].lsn > seen[-1]


def test_closing_ends_a_watch(bench: Bench) -> None:
    db = bench.db
    watch = db.watch(db.durable_lsn)
    asking = Asking(lambda: list(watch))
    db.schedule("task", delay=60)
    db.close()
    with pytest.raises(ClosedError):
        asking.answer()
    bench.open()


# Wait.


def end_by_ack(bench: Bench) -> None:
    (lease,) = bench.db.lease()
    lease.ack({"answer": 42})


def end_by_reject(bench: Bench) -> None:
    (lease,) = bench.db.lease()
    lease.reject("no use")


def end_by_nack(bench: Bench) -> None:
    (lease,) = bench.db.lease()
    lease.nack("no use")


def end_by_cancel(bench: Bench) -> None:
    for task in bench.db.tasks():
        bench.db.cancel(task.id)


def end_by_cancel_while_leased(bench: Bench) -> None:
    (lease,) = bench.db.lease()
    assert bench.db.cancel(lease.id) == "leased"
    lease.nack("too late")


def end_by_expiry(bench: Bench) -> None:
    bench.clock.advance(10)
    assert bench.db.lease() == []


ENDS = [
    (end_by_ack, TaskState.DONE),
    (end_by_reject, TaskState.DEAD),
    (end_by_nack, TaskState.DEAD),
    (end_by_cancel, TaskState.CANCELLED),
    (end_by_cancel_while_leased, TaskState.CANCELLED),
    (end_by_expiry, TaskState.EXPIRED),
]


@pytest.mark.parametrize(
    ("end", "state"), ENDS, ids=lambda value: getattr(value, "__name__", str(value))
)
@pytest.mark.parametrize("task_id", ["mine", None], ids=["mine", "generated"])
def test_waiting_ends_with_the_task(
    driven: Bench, task_id: str | None, end: Callable[[Bench], None], state: TaskState
) -> None:
    db = driven.db
    once = Retry(max_attempts=1)
    if task_id is None:
        receipt = db.schedule("task", delay=0, expires=5, retry=once)
    else:
        receipt = db.schedule("task", delay=0, id=task_id, expires=5, retry=once)
    asking = Asking(lambda: db.wait(receipt.id))
    until_it_waits(driven, asking)
    end(driven)
    task = asking.answer()
    assert (task.id, task.name, task.state) == (receipt.id, "task", state)
    if state == TaskState.DEAD:
        assert task.error == "no use"
    else:
        assert task.finished_at is not None
    if state == TaskState.DONE:
        assert task.result == {"answer": 42}
    # Who begins to wait later gets the same answer for ids that are remembered.
    if task_id is not None or state == TaskState.DEAD:
        assert db.wait(receipt.id).state == state
    else:
        with pytest.raises(TaskNotFound):
            db.wait(receipt.id)


def until_it_waits(bench: Bench, asking: Asking[wheeldb.Task]) -> None:
    """Return once a thread waits for the end of a task."""
    engine = bench.db._engine
    while asking.is_waiting:
        with engine.lock:
            if engine.state.awaited:
                return
    asking.answer()
    raise AssertionError("it did not wait")


def test_a_retry_is_no_end(driven: Bench) -> None:
    db = driven.db
    db.schedule("task", delay=0, id="known")
    asking = Asking(lambda: db.wait("known"))
    until_it_waits(driven, asking)
    (lease,) = db.lease()
    lease.nack("once more", retry_in=0)
    assert asking.is_waiting
    (lease,) = db.lease()
    lease.ack()
    assert asking.answer().state == TaskState.DONE


def test_a_replaced_task_is_waited_for_under_its_id(driven: Bench) -> None:
    db = driven.db
    db.schedule("first", delay=60, id="thing")
    asking = Asking(lambda: db.wait("thing"))
    until_it_waits(driven, asking)
    db.schedule("second", delay=0, id="thing", if_exists="replace")
    assert asking.is_waiting
    assert driven.started() == ["thing"]
    task = asking.answer()
    assert (task.name, task.state) == ("second", TaskState.DONE)


def test_an_ack_that_was_refused_is_no_end(driven: Bench) -> None:
    db = driven.db
    db.schedule("taken", delay=900, id="next")
    db.schedule("first", delay=0, id="thing")
    asking = Asking(lambda: db.wait("thing"))
    until_it_waits(driven, asking)
    (lease,) = db.lease()
    with pytest.raises(TaskExists):
        lease.ack(then=[NewTask("other", delay=1, id="next")])
    db.schedule("second", delay=0, id="thing", if_exists="replace")
    assert driven.started() == ["thing"]
    task = asking.answer()
    assert (task.name, task.state) == ("second", TaskState.DONE)


def test_waiting_has_a_limit(bench: Bench) -> None:
    bench.db.schedule("task", delay=60, id="known")
    for timeout in (0, -1, 0.0):
        with pytest.raises(TimeoutError, match="known"):
            bench.db.wait("known", timeout=timeout)


def test_waiting_for_nothing_is_refused(bench: Bench) -> None:
    with pytest.raises(TaskNotFound):
        bench.db.wait("unknown")
    with pytest.raises(TaskNotFound):
        bench.db.wait("tffffffffffffff")


def test_closing_ends_the_waiting(driven: Bench) -> None:
    db = driven.db
    db.schedule("task", delay=60, id="known")
    askings = [Asking(lambda: db.wait("known")) for _ in range(3)]
    until_it_waits(driven, askings[0])
    db.close()
    for asking in askings:
        with pytest.raises(ClosedError):
            asking.answer()
    driven.open()


def test_closing_ends_a_lease_that_waits() -> None:
    disk = CrashableDisk()
    db = wheeldb.open("/store", disk=disk, clock=ManualClock())
    askings = [Asking(lambda: db.lease(wait=None)) for _ in range(3)]
    db.close()
    for asking in askings:
        with pytest.raises(ClosedError):
            asking.answer()


def test_a_hundred_ends_are_all_seen() -> None:
    """Begin to wait at any moment of the task's life, with generated ids."""
    disk = CrashableDisk()
    with wheeldb.open("/store", disk=disk, clock=ManualClock()) as db:

        def work() -> int:
            done = 0
            while done < 100:
                for lease in db.lease(limit=5, wait=None):
                    lease.ack()
                    done += 1
            return done

        worker = Asking(work)
        states = []
        for _ in range(100):
            receipt = db.schedule("task", delay=0)
            try:
                states.append(db.wait(receipt.id, timeout=None).state)
            except TaskNotFound:
                # It was done before the waiting began.
                states.append(TaskState.DONE)
        assert worker.answer() == 100
        assert states == [TaskState.DONE] * 100
        assert db.check() == []


def test_every_event_names_its_task() -> None:
    with Bench() as bench:
        db = bench.db
        db.schedule("a", delay=0, id="given")
        (lease,) = db.lease()
        lease.ack()
        generated = db.schedule("a", delay=0).id
        (lease,) = db.lease()
        lease.ack()
        start = db.statistics().last_lsn
        db.schedule("a", delay=60, id="waits")
        db.reschedule("waits", delay=30)

        named = [(event.kind, event.id) for event in db.events() if event.id]
        assert named == [
            ("scheduled", "given"),
            ("leased", "given"),
            ("acked", "given"),
            ("scheduled", generated),
            ("leased", generated),
            ("acked", generated),
            ("scheduled", "waits"),
            ("rescheduled", "waits"),
        ]
        # Behind the scheduling, the store itself tells.
        assert [event.id for event in db.events(start + 1)] == ["waits"]
        number = db.history("given")[0].lsn
        assert db.history(f"t{number:014x}") == []
        assert {event.id for event in db.history("given")} == {"given"}
        assert {event.id for event in db.history(generated)} == {generated}
