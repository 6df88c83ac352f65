"""Faults that other timers had, tried on the store.

Goal: delays at every boundary, timers that are moved, cancelled and counted, and a
population of near and far ones over months behave as a plain sorted list would. Method:
a clock moved by hand, a disk in memory, and a model: a dict from id to due time. Each
test names the public threads whose fault it looks for.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from field_helpers import Bench
from hypothesis import given
from hypothesis import strategies as st

import wheeldb
from wheeldb.errors import QueueFull
from wheeldb.model import CancelOutcome, NewTask, Retry, TaskState

DAY = 86_400
YEAR = 365 * DAY
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store that is checked and closed at the end."""
    with Bench() as bench:
        yield bench


# Boundaries.

EDGES_MS = sorted(
    {0, 1, 2, 3}
    | {2**power + step for power in range(8, 33) for step in (-1, 0, 1)}
    | {2**power + step for power in (36, 40, 47) for step in (-1, 0, 1)}
)


def milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def test_no_delay_at_an_edge_is_early_lost_or_changed(bench: Bench) -> None:
    # tokio-rs/tokio#5183, tokio-rs/tokio#6634, tokio-rs/tokio#2408, netty/netty#7760:
    # far deadlines crashed, or overflowed and fired at once.
    db = bench.db
    receipts = db.schedule_many(
        [
            NewTask("task", edge, delay=milliseconds(edge), id=f"edge {edge}")
            for edge in EDGES_MS
        ]
    )
    for edge, receipt in zip(EDGES_MS, receipts, strict=True):
        assert receipt.due_at == START + milliseconds(edge)
    now_ms = 0
    waiting = dict.fromkeys(EDGES_MS)
    for edge in EDGES_MS:
        if edge > 2**36:
            break
        # A millisecond before, nothing; at the very one, this one and no other.
        if edge > now_ms + 1:
            bench.clock.advance((edge - 1 - now_ms) / 1000)
            now_ms = edge - 1
            assert bench.started() == []
        db.poll()
        if edge > now_ms:
            assert db.next_in() == (edge - now_ms) / 1000
        bench.clock.advance((edge - now_ms) / 1000)
        now_ms = edge
        assert bench.started() == [f"edge {edge}"]
        del waiting[edge]
        if edge in (255, 65_536, 2**24, 2**32):
            db = bench.reopen()
        if edge in (256, 65_537, 2**24 + 1, 2**32 + 1):
            db = bench.kill()
    for edge in waiting:
        task = db.get(f"edge {edge}")
        assert task is not None
        assert task.due_in == (edge - now_ms) / 1000
        assert db.cancel(task.id) == CancelOutcome.CANCELLED
    assert list(db.tasks()) == []
    assert db.next_in() is None


@pytest.mark.parametrize(
    "delay_ms",
    [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30],
)
def test_a_delay_beyond_the_calendar_is_refused(bench: Bench, delay_ms: int) -> None:
    with pytest.raises(ValueError, match="9999"):
        bench.db.schedule("task", delay=delay_ms / 1000)
    with pytest.raises(ValueError, match="9999"):
        bench.db.schedule("task", delay=delay_ms // 1000)
    assert list(bench.db.tasks()) == []


def test_the_longest_delay_of_the_calendar_is_kept(bench: Bench) -> None:
    left = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - START
    receipt = bench.db.schedule("task", delay=left, id="far")
    assert receipt.due_at == START + left
    bench.clock.advance(YEAR)
    assert bench.started() == []
    for open_again in (bench.reopen, bench.kill):
        task = open_again().get("far")
        assert task is not None
        assert task.due_at == START + left


@pytest.mark.parametrize("delay", [-1, -0.0, -1e-9, -1e300, 0, timedelta.min])
def test_no_delay_is_due_at_once_and_not_before(
    bench: Bench, delay: float | timedelta
) -> None:
    # sindresorhus/delay#57: what is below zero has one meaning.
    receipt = bench.db.schedule("task", delay=delay)
    assert receipt.due_at == START
    assert bench.db.next_in() == 0
    assert bench.started() == [receipt.id]
    assert bench.started() == []


@pytest.mark.parametrize("days", [24.8, 24.9, 25, 49.7, 49.8, 50])
def test_a_delay_of_weeks_is_no_delay_of_nothing(bench: Bench, days: float) -> None:
    # sindresorhus/delay#57, denysdovhan/wtfjs#61: above 24.8 days it fired at once.
    receipt = bench.db.schedule("task", delay=days * DAY)
    assert bench.started() == []
    bench.clock.advance(days * DAY - 0.002)
    assert bench.started() == []
    bench.clock.advance(0.002)
    assert bench.started() == [receipt.id]


@given(st.floats(min_value=0, max_value=1e6), st.integers(min_value=0, max_value=999))
def test_rounding_makes_nothing_early(delay: float, offset_us: int) -> None:
    with Bench() as bench:
        bench.clock.advance(offset_us / 1e6)
        asked = START + timedelta(microseconds=offset_us) + timedelta(seconds=delay)
        receipt = bench.db.schedule("task", delay=delay)
        assert receipt.due_at is not None
        # A timedelta holds microseconds, so the sum may be half of one off.
        late = receipt.due_at - asked
        if delay >= 0.001:
            assert timedelta(microseconds=-1) <= late
        # Each clock has a millisecond that its rounding may have cut off.
        assert late < timedelta(milliseconds=3)


# A mixed population.


def live_with_a_model(
    seed: int, timers: int, steps: int, restarts: int, days: int
) -> None:
    """Let months go by over timers near and far, and compare with a dict."""
    # RussellLuo/timingwheel#19: among timers of months and years, one of eight days
    # fired on the next day, now and then.
    random = Random(seed)
    with Bench(window_max=100) as bench:
        due_ms: dict[str, int] = {}
        now_ms = 0
        count = 0

        def draw_ms() -> int:
            return round(10 ** random.uniform(3, 11.5))

        def add(many: int) -> None:
            nonlocal count
            tasks = []
            for _ in range(many):
                task_id, wait_ms = f"timer {count}", draw_ms()
                count += 1
                due_ms[task_id] = now_ms + wait_ms
                tasks.append(NewTask("timer", delay=milliseconds(wait_ms), id=task_id))
            bench.db.schedule_many(tasks)

        add(timers)
        reopen_at = set(random.sample(range(steps), restarts))
        for step in range(steps):
            for task_id in random.sample(sorted(due_ms), min(len(due_ms), 6)):
                if random.random() < 0.3:
                    assert bench.db.cancel(task_id) == CancelOutcome.CANCELLED
                    del due_ms[task_id]
                else:
                    wait_ms = draw_ms()
                    bench.db.reschedule(task_id, delay=milliseconds(wait_ms))
                    due_ms[task_id] = now_ms + wait_ms
            add(random.randrange(6))
            if step in reopen_at:
                random.choice((bench.reopen, bench.kill))()
            jump_ms = round(days * DAY * 1000 / steps * random.uniform(0, 2))
            now_ms += jump_ms
            bench.clock.advance(jump_ms / 1000)
            due = sorted(
                (due, int(task_id.removeprefix("timer ")))
                for task_id, due in due_ms.items()
                if due <= now_ms
            )
            started = bench.started()
            expected = [f"timer {number}" for _, number in due]
            assert started == expected, f"seed {seed}, step {step}"
            for task_id in started:
                del due_ms[task_id]
            pending = {
                task.id: round((task.due_in or 0) * 1000) + now_ms
                for task in bench.db.tasks()
            }
            assert pending == due_ms, f"seed {seed}, step {step}"
            next_in = bench.db.next_in()
            assert (next_in is None) == (not due_ms)
            if next_in is not None:
                assert next_in * 1000 <= min(due_ms.values()) - now_ms
            if random.random() < 0.2:
                bench.db.checkpoint()


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_population_fires_as_a_sorted_list_would(seed: int) -> None:
    live_with_a_model(seed, timers=600, steps=15, restarts=4, days=400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_large_mixed_population_fires_as_a_sorted_list_would(seed: int) -> None:
    live_with_a_model(seed + 100, timers=10_000, steps=60, restarts=20, days=400)


# Moved timers.


def test_a_moved_timer_can_still_be_cancelled(bench: Bench) -> None:
    # zeromicro/go-zero#205: after a move, a cancel no longer found it, and it fired.
    db = bench.db
    db.schedule("task", delay=8, id="moved")
    bench.clock.advance(6)
    db.poll()
    db.reschedule("moved", delay=7)
    bench.clock.advance(3)
    assert bench.started() == []
    assert db.cancel("moved") == CancelOutcome.CANCELLED
    for _ in range(30):
        bench.clock.advance(1)
        assert bench.started() == []
    assert db.statistics().pending_count == 0


@pytest.mark.parametrize("poll_between", [False, True])
def test_a_timer_moved_about_fires_once_at_its_last_due_time(
    bench: Bench, poll_between: bool
) -> None:
    # twisted/twisted#1232: moved later it still fired at the old time; moved earlier it
    # left an orphan behind.
    db = bench.db
    db.schedule("task", delay=60, id="moved")
    for delay in (120, 5, 60, 60, 3 * DAY, 0, 1, 400 * DAY, 1):
        db.reschedule("moved", delay=delay)
        if poll_between and delay:
            db.poll()
        assert db.statistics().pending_count == 1
    bench.clock.advance(0.999)
    assert bench.started() == []
    bench.clock.advance(0.001)
    assert bench.started() == ["moved"]
    bench.clock.advance(500 * DAY)
    assert bench.started() == []


moves = st.one_of(
    st.tuples(st.just("delay"), st.sampled_from([0, 1, 5, 60, 60.001, 3 * DAY, YEAR])),
    st.tuples(st.just("at"), st.sampled_from([-5, 0, 1, 60, 3 * DAY])),
    st.tuples(st.just("advance"), st.sampled_from([0, 0.999, 1, 59, DAY])),
    st.tuples(st.sampled_from(["poll", "reopen", "kill", "checkpoint"]), st.just(0)),
    st.tuples(st.sampled_from(["replace", "run_now", "pause", "resume"]), st.just(0)),
)


@given(st.lists(moves, max_size=25))
def test_whatever_moves_a_timer_its_last_due_time_holds(
    story: list[tuple[str, float]],
) -> None:
    with Bench() as bench:
        now, due, is_paused = 0.0, 60.0, False
        bench.db.schedule("task", delay=60, id="moved")
        for word, value in story:
            db = bench.db
            if word == "delay":
                db.reschedule("moved", delay=value)
                due = now + value
            elif word == "at":
                db.reschedule("moved", at=START + timedelta(seconds=now + value))
                due = now + value
            elif word == "advance":
                bench.clock.advance(value)
                now += value
            elif word == "replace":
                db.schedule("task", delay=60, id="moved", if_exists="replace")
                due, is_paused = now + 60, False
            elif word == "run_now":
                db.run_now("moved")
                due = min(due, now)
            elif word in ("pause", "resume"):
                getattr(db, word)("moved")
                is_paused = word == "pause"
            else:
                getattr(bench if word in ("reopen", "kill") else db, word)()
            assert bench.db.statistics().pending_count == 1
        if is_paused:
            bench.db.resume("moved")
        if bench.db.get("moved").state != TaskState.DUE:  # type: ignore[union-attr]
            assert bench.started() == []
            bench.clock.advance(max(due - now, 0))
        assert bench.started() == ["moved"]
        bench.clock.advance(2 * YEAR)
        assert bench.started() == []


# Counters and limits.


@pytest.mark.parametrize("limit", [None, 11])
def test_cancelling_what_is_just_coming_due_counts_once(limit: int | None) -> None:
    # netty/netty#14959: cancelling a timer of the bucket that was being processed
    # counted twice, and a limit could be exceeded.
    with Bench(tasks_max=limit) as bench:
        db = bench.db
        ids = [db.schedule("task", delay=1).id for _ in range(11)]
        bench.clock.advance(1)
        (lease,) = db.lease()
        assert lease.id == ids[0]
        for task_id in ids[1:]:
            assert db.cancel(task_id) == CancelOutcome.CANCELLED
        assert db.statistics().pending_count == 1
        for _ in range(10):
            db.schedule("task", delay=5)
        if limit is not None:
            with pytest.raises(QueueFull):
                db.schedule("task", delay=5)
        lease.ack()
        assert db.statistics().pending_count == 10
        db.schedule("task", delay=5)
        bench.clock.advance(5)
        assert len(bench.started()) == 11
        assert db.statistics().pending_count == 0
        assert db.statistics().ready_count == 0


def test_a_limit_holds_against_many_at_once() -> None:
    # netty/netty#5647, beanstalkd/beanstalkd#56: timers without a limit took all the
    # memory.
    with Bench(tasks_max=300, durability="written") as bench:
        db = bench.db
        accepted: list[list[str]] = [[] for _ in range(8)]
        refused = [0] * 8

        def submit(place: int) -> None:
            for _ in range(100):
                try:
                    accepted[place].append(db.schedule("task", delay=60).id)
                except QueueFull:
                    refused[place] += 1

        threads = [Thread(target=submit, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = {task_id for part in accepted for task_id in part}
        assert len(ids) == 300
        assert sum(refused) == 500
        assert {task.id for task in db.tasks()} == ids
        # All or nothing, also at the limit.
        one, other = sorted(ids)[:2]
        db.cancel(one)
        with pytest.raises(QueueFull):
            db.schedule_many([NewTask("task", delay=1)] * 2)
        db.cancel(other)
        assert len(db.schedule_many([NewTask("task", delay=1)] * 2)) == 2
        # Taking another's place needs no room.
        with pytest.raises(QueueFull):
            db.schedule("task", delay=1, id="new")
        bench.clock.advance(60)
        assert len(bench.started()) == 300
        db.schedule("task", delay=1, id="new")
        bench.reopen()
        assert bench.db.statistics().pending_count == 1


def test_a_limit_of_bytes_counts_what_is_there() -> None:
    with Bench(bytes_max=10_000) as bench:
        db = bench.db
        ids = [db.schedule("task", b"x" * 997, delay=1).id for _ in range(10)]
        with pytest.raises(QueueFull):
            db.schedule("task", b"x", delay=1)
        db.cancel(ids[0])
        db.schedule("task", b"x" * 900, delay=1)
        db = bench.kill()
        with pytest.raises(QueueFull):
            db.schedule("task", b"x" * 900, delay=1)
        bench.clock.advance(1)
        assert len(bench.started()) == 10
        assert db.statistics().payload_bytes == 0


# Memory and disk.


def resident_bytes() -> int:
    """Return how much memory this process takes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def directory_bytes(path: Path) -> int:
    """Return how much room the files of a directory take."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*"))


def schedule_and_cancel(db: wheeldb.WheelDB, count: int) -> None:
    """Schedule tasks for next year, a thousand at a time, and cancel them all."""
    payload = b"x" * 1_024
    for _ in range(count // 1_000):
        receipts = db.schedule_many([NewTask("task", payload, delay=YEAR)] * 1_000)
        with db.batch() as batch:
            for receipt in receipts:
                batch.cancel(receipt.id, expect=CancelOutcome.CANCELLED)


def test_cancelled_timers_leave_nothing_in_memory(bench: Bench) -> None:
    # netty/netty#2541, MagicStack/uvloop#239: cancelled timers were kept until they
    # would have been due.
    db = bench.db
    for _ in range(3):
        schedule_and_cancel(db, 1_000)
        db.checkpoint()
        statistics = db.statistics()
        assert statistics.pending_count == 0
        assert statistics.payload_bytes == 0
        assert statistics.window_count == 0
        assert statistics.finished_count == 0
        rows = dict(statistics.index_rows)
        del rows["meta"]
        assert not any(rows.values()), rows


@pytest.mark.slow
def test_cancelled_timers_release_memory_and_disk(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path, durability="written") as db:
        schedule_and_cancel(db, 50_000)
        db.snapshot()
        # Room is kept ready in the index, the log and beside it; what counts is that
        # 300 MiB of payloads add nothing to it.
        memory, disk = resident_bytes(), directory_bytes(tmp_path)
        schedule_and_cancel(db, 300_000)
        db.snapshot()
        db.snapshot()
        assert resident_bytes() - memory < 20 * 2**20
        assert directory_bytes(tmp_path) - disk < 20 * 2**20
        assert directory_bytes(tmp_path) < 96 * 2**20
        assert db.check() == []


# Expiry.


def end_attempt(bench: Bench, lease: wheeldb.Lease, end: str) -> None:
    """End an attempt so that another one follows."""
    if end == "nack":
        lease.nack("no", retry_in=20)
    elif end == "release":
        lease.release(20)
    elif end == "kill":
        bench.kill()
    else:
        bench.clock.advance(lease.remaining)
        bench.db.poll()


@pytest.mark.parametrize("end", ["nack", "release", "kill", "lease runs out"])
@pytest.mark.parametrize("kind", ["delay", "at"])
def test_another_attempt_does_not_put_off_the_expiry(
    bench: Bench, end: str, kind: str
) -> None:
    due = {"delay": 10} if kind == "delay" else {"at": START + timedelta(seconds=10)}
    bench.db.schedule("task", id="known", expires=60, lease=15, **due)
    bench.clock.advance(10)
    for passed in (0, 20):
        bench.clock.advance(passed)
        leases = bench.db.lease()
        assert [lease.id for lease in leases] == ["known"]
        end_attempt(bench, leases[0], end)
    now = datetime.fromtimestamp(bench.clock.read().wall_ms / 1000, tz=UTC)
    expired_at = START + timedelta(seconds=70)
    bench.clock.advance(max((expired_at - now).total_seconds() - 0.001, 0))
    assert bench.reopen().get("known").state == TaskState.DUE  # type: ignore[union-attr]
    bench.clock.advance(0.001)
    bench.db.poll()
    assert bench.db.lease() == []
    assert bench.db.get("known").state == TaskState.EXPIRED  # type: ignore[union-attr]


def test_another_due_time_puts_off_the_expiry(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", id="known", delay=0, expires=60)
    (lease,) = db.lease()
    lease.nack("no", retry_in=1)
    db.reschedule("known", delay=100)
    bench.clock.advance(159.999)
    (lease,) = db.lease()
    lease.release()
    bench.clock.advance(0.001)
    assert db.lease() == []


# Cancel in every state.


def test_a_cancel_says_what_it_found_and_never_raises(bench: Bench) -> None:
    # camunda/camunda#762: cancelling a timer that had run raised.
    db = bench.db
    once = Retry(max_attempts=1)
    for task_id in ("done", "dead", "running"):
        db.schedule("task", delay=0, id=task_id, retry=once)
    leases = {lease.id: lease for lease in db.lease(limit=3)}
    leases["done"].ack()
    leases["dead"].nack("no use")
    running = leases["running"]
    db.schedule("task", delay=0, id="expired", expires=1)
    db.schedule("task", delay=60, id="pending")
    db.schedule("task", delay=60, id="paused")
    db.pause("paused")
    generated = db.schedule("task", delay=0).id
    bench.clock.advance(1)
    assert bench.started() == [generated]
    expected = {
        "pending": (CancelOutcome.CANCELLED, CancelOutcome.CANCELLED),
        "paused": (CancelOutcome.CANCELLED, CancelOutcome.CANCELLED),
        "running": (CancelOutcome.LEASED, CancelOutcome.LEASED),
        "done": (CancelOutcome.FINISHED, CancelOutcome.FINISHED),
        "expired": (CancelOutcome.FINISHED, CancelOutcome.FINISHED),
        "dead": (CancelOutcome.CANCELLED, CancelOutcome.CANCELLED),
        generated: (CancelOutcome.FINISHED, CancelOutcome.FINISHED),
        "unknown": (CancelOutcome.UNKNOWN, CancelOutcome.UNKNOWN),
        "tffffffffffffff": (CancelOutcome.UNKNOWN, CancelOutcome.UNKNOWN),
    }
    found = {task_id: (db.cancel(task_id), db.cancel(task_id)) for task_id in expected}
    assert found == expected
    # The attempt that ran when it was cancelled is the last one.
    running.nack("again")
    assert db.cancel("running") == CancelOutcome.CANCELLED
    bench.clock.advance(YEAR)
    assert bench.started() == []


def test_a_cancel_that_ends_the_attempt_too(bench: Bench) -> None:
    db = bench.db
    db.schedule("task", delay=0, id="running")
    (lease,) = db.lease()
    assert db.cancel("running", running=True) == CancelOutcome.CANCELLED
    with pytest.raises(wheeldb.LeaseLost):
        lease.ack()
    assert db.get("running").state == TaskState.CANCELLED  # type: ignore[union-attr]
