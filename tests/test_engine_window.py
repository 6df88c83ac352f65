"""A window of a hundred entries before thousands of tasks: none is lost or overtakes.

What is due is compared with a sorted list, through checkpoints at any moment, steps of
the wall clock, paused queues and cancels.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from field_helpers import Bench

import wheeldb
from wheeldb import NewTask, QueueFull
from wheeldb.engine import admission, refill
from wheeldb.engine.engine import Engine, Thresholds
from wheeldb.engine.lanes import LANE_FIRST, Lanes
from wheeldb.engine.row import Row
from wheeldb.engine.window import Window, entry_number
from wheeldb.events import ELAPSED, WALL, F

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = (START - EPOCH) // timedelta(milliseconds=1)
HOUR_MS = 3_600_000


class Crowd(Bench):
    """A store with a small window, and its tasks as a plain dict."""

    def __init__(self, seed: int, entries: int = 400) -> None:
        self.entries = entries
        super().__init__(window_max=100, reserve=False)
        self.random = Random(seed)
        # By number: priority, timeline, due time, queue.
        self.tasks: dict[int, tuple[int, int, int, str]] = {}

    def open(self) -> wheeldb.WheelDB:
        db = super().open()
        db._engine.thresholds = Thresholds(entries=self.entries)
        return db

    def now_ms(self, timeline: int) -> int:
        now = self.db._engine.now()
        return now.wall_ms if timeline == WALL else now.elapsed_ms

    def fill(self, count: int, span_ms: int) -> None:
        """Schedule tasks on both timelines, in two queues, with two priorities."""
        new, kept = [], []
        for _ in range(count):
            timeline = self.random.choice([ELAPSED, WALL])
            due_ms = self.now_ms(timeline) + self.random.randrange(span_ms)
            queue = self.random.choice(["default", "other"])
            priority = self.random.choice([0, 0, 3])
            if timeline == WALL:
                at = EPOCH + timedelta(milliseconds=due_ms)
                new.append(NewTask("a", queue=queue, priority=priority, at=at))
            else:
                delay = timedelta(milliseconds=due_ms - self.now_ms(ELAPSED))
                new.append(NewTask("a", queue=queue, priority=priority, delay=delay))
            kept.append((priority, timeline, due_ms, queue))
        for receipt, one in zip(self.db.schedule_many(new), kept, strict=True):
            self.tasks[receipt.lsn] = one

    def due(self, *queues: str) -> list[int]:
        """Return what is due, in the order in which it is to be leased."""
        found = [
            (priority, due_ms - self.now_ms(timeline), number)
            for number, (priority, timeline, due_ms, queue) in self.tasks.items()
            if due_ms <= self.now_ms(timeline) and queue in queues
        ]
        return [number for *_, number in sorted(found)]

    def take_all(self, *queues: str) -> None:
        """Lease and ack everything that is due, and see that it is just that."""
        expected = self.due(*queues)
        taken: list[int] = []
        while leases := self.db.lease(queues, limit=self.random.randint(1, 40)):
            taken += [lease.number for lease in leases]
            assert not self.db.ack_many(leases)
            assert len(self.db._engine.window) <= 150
        assert taken == expected
        for number in taken:
            del self.tasks[number]


@pytest.mark.parametrize("seed", range(2))
def test_thousands_come_in_order(seed: int) -> None:
    with Crowd(seed) as crowd:
        for _ in range(3):
            crowd.fill(500, 30 * HOUR_MS)
        while crowd.tasks:
            crowd.clock.advance(crowd.random.choice([600, 7_200, 40_000]))
            crowd.take_all("default", "other")
            if crowd.random.random() < 0.3:
                crowd.db.checkpoint()
        assert crowd.db.statistics().pending_count == 0


@pytest.mark.parametrize("seed", range(4))
def test_they_come_in_order_while_all_else_goes_on(seed: int) -> None:
    with Crowd(seed, entries=60) as crowd:
        random = crowd.random
        for _ in range(40):
            match random.randrange(8):
                case 0 | 1:
                    crowd.fill(random.randint(1, 120), random.choice([10, 9 * HOUR_MS]))
                case 2:
                    crowd.clock.advance(random.choice([0.001, 1, 1_800, 30_000]))
                case 3:
                    crowd.clock.step_wall(random.choice([-90_000, -1, 3_600, 50_000]))
                case 4:
                    for number in random.sample(
                        list(crowd.tasks), len(crowd.tasks) // 10
                    ):
                        crowd.db.cancel(f"t{number:014x}")
                        del crowd.tasks[number]
                case 5:
                    crowd.db.pause(queue="other")
                    crowd.fill(30, HOUR_MS)
                    crowd.clock.advance(600)
                    crowd.take_all("default")
                    crowd.db.resume(queue="other")
                case 6:
                    random.choice([crowd.reopen, crowd.kill, crowd.db.checkpoint])()
                case 7:
                    crowd.db.poll(random.choice([None, 1, 70]))
            crowd.take_all("default", "other")
            assert crowd.db._engine.window.check() == []
        assert crowd.db.statistics().sweep_lost == 0


def test_a_flood_of_one_queue_hides_no_other() -> None:
    with Bench(window_max=100) as bench:
        bench.db._engine.thresholds = Thresholds(entries=1_000)
        for _ in range(5):
            bench.db.schedule_many([NewTask("a", delay=0)] * 1_000)
            bench.db.poll()
        receipt = bench.db.schedule("b", delay=1, queue="quiet")
        bench.clock.advance(1)
        (lease,) = bench.db.lease("quiet")
        assert lease.id == receipt.id
        assert len(bench.db._engine.window) <= 125


def test_a_paused_queue_takes_no_room() -> None:
    with Bench(window_max=100) as bench:
        bench.db.pause(queue="idle")
        bench.db.schedule_many(
            [
                NewTask("a", delay=0, queue="idle", priority=number % 5)
                for number in range(500)
            ]
        )
        bench.db.poll()
        assert len(bench.db._engine.window) == 0
        assert bench.db.next_in() is None
        bench.db.resume(queue="idle")
        taken = []
        while leases := bench.db.lease("idle", limit=30):
            taken += [lease.task.priority for lease in leases]
            bench.db.ack_many(leases)
        assert len(taken) == 500
        assert taken == sorted(taken)


def test_stale_entries_hide_nothing_that_is_not_loaded() -> None:
    with Bench(window_max=100) as bench:
        bench.db._engine.thresholds = Thresholds(entries=10)
        receipts = bench.db.schedule_many([NewTask("a", delay=0)] * 400)
        bench.db.checkpoint()
        bench.reopen()
        bench.db.poll()
        for receipt in receipts[:300]:
            bench.db.cancel(receipt.id)
        assert len(bench.started(limit=7)) == 100


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Calls that are made between the two halves of loading a slice, first to last."""
    calls: list[object] = []
    scan = refill.Slice.scan

    def scan_and_call(self: refill.Slice) -> None:
        scan(self)
        if calls:
            calls.pop(0)()  # type: ignore[operator]

    monkeypatch.setattr(refill.Slice, "scan", scan_and_call)
    yield calls
    assert not calls, "a slice was loaded for each"


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3])
def test_changes_while_a_slice_is_loaded(
    between: list[object], checkpoints: int
) -> None:
    with Crowd(1) as crowd:
        db = crowd.db
        for _ in range(3):
            crowd.fill(100, 10)
            db.checkpoint()
        crowd.fill(50, 10)
        crowd.reopen()
        db = crowd.db

        def change() -> None:
            gone = list(crowd.tasks)[::7]
            for number in gone:
                db.cancel(f"t{number:014x}")
                del crowd.tasks[number]
            crowd.fill(20, 10)
            for number in list(crowd.tasks)[::11]:
                receipt = db.reschedule(f"t{number:014x}", delay=0.005)
                priority, _, _, queue = crowd.tasks[number]
                assert receipt.lsn > number
                due_ms = crowd.now_ms(ELAPSED) + 5
                crowd.tasks[number] = (priority, ELAPSED, due_ms, queue)
            for _ in range(checkpoints):
                db.checkpoint()
                crowd.fill(5, 10)

        between += [change] * 6
        crowd.clock.advance(1)
        db.poll()
        crowd.take_all("default", "other")
        crowd.clock.advance(1)
        crowd.take_all("default", "other")
        assert not crowd.tasks


def test_in_a_coarse_bucket_the_exact_time_counts() -> None:
    with Bench(window_max=100) as bench:
        bench.db._engine.thresholds = Thresholds(entries=50)
        random = Random(5)
        far_ms = 40 * HOUR_MS
        # All of one bucket, more than fit into the window.
        due = [far_ms + random.randrange(2**20) for _ in range(600)]
        receipts = bench.db.schedule_many(
            [NewTask("a", delay=timedelta(milliseconds=one)) for one in due]
        )
        bench.reopen()
        view = bench.db._engine.state.index.snapshot()
        with view as snapshot:
            fields = [field for field, *_ in snapshot.due(LANE_FIRST, None, 1_000)]
        assert len(set(fields)) == 1
        by_id = {one.id: at for one, at in zip(receipts, due, strict=True)}
        bench.clock.advance(far_ms / 1000)
        taken: list[int] = []
        while True:
            for lease in bench.db.lease(limit=9):
                taken.append(by_id[lease.id])
                lease.ack()
            wait = bench.db.next_in()
            if wait is None:
                break
            bench.clock.advance(max(wait, 5))
        assert taken == sorted(due)


# The window alone.


def a_row(number: int, due_ms: int, **fields: object) -> Row:
    options = {F.QUEUE: fields["queue"]} if "queue" in fields else {}
    return Row(number, "a", b"", ELAPSED, due_ms, 0, options=options)


def a_window(entries_max: int = 100) -> Window:
    return Window(Lanes(), entries_max, 0, START_MS)


def test_stale_ready_entries_are_let_go() -> None:
    window = a_window()
    rows = [a_row(number, 5) for number in range(1, 11)]
    window.reconcile([(None, row) for row in rows])
    window.advance(10, START_MS, 100)
    assert window.ready_count == 10
    window.reconcile([(row, None) for row in rows[:6]])
    assert window.ready_count == 4
    assert window.check() == []
    taken = [window.take(LANE_FIRST) for _ in range(4)]
    assert [entry_number(entry) for entry in taken if entry] == [7, 8, 9, 10]
    assert window.take(LANE_FIRST) is None


def test_an_entry_that_is_ready_again_is_not_stale() -> None:
    window = a_window()
    rows = [a_row(number, 5) for number in range(1, 11)]
    window.reconcile([(None, row) for row in rows])
    window.advance(10, START_MS, 100)
    window.reconcile([(rows[0], None), (None, rows[0])])
    window.advance(10, START_MS, 100)
    numbers = set()
    while (entry := window.take(LANE_FIRST)) is not None:
        numbers.add(entry_number(entry))
    assert numbers == set(range(1, 11))


def test_ready_heaps_are_trimmed_and_loaded_again() -> None:
    window = a_window()
    window.reconcile([(None, a_row(number, 5)) for number in range(1, 61)])
    window.advance(10, START_MS, 1_000)
    window.reconcile([(None, a_row(number, 6)) for number in range(61, 127)])
    window.advance(10, START_MS, 1_000)
    window.reconcile([(None, a_row(number, 3)) for number in range(200, 230)])
    assert len(window) <= 100
    ((lane, horizon),) = window.horizons.items()
    entries = {entry_number(entry) for entry in window.entries()}
    # What lies below the horizon is there.
    assert {number for number in range(1, 61) if (5, number) < horizon} <= entries
    assert window.first_ready(lane) is not None
    assert window.check() == []


def test_a_lane_whose_number_was_taken_back_is_forgotten() -> None:
    window = a_window()
    window.paused_queues = frozenset({"p"})
    window.reconcile([(None, a_row(1, 5, queue="p"))])
    assert window.closed == {LANE_FIRST}
    window.lanes.cut(0)
    window.forget_lanes()
    window.reconcile([(None, a_row(2, 5, queue="q"))])
    assert window.advance(10, START_MS, 10) == 1


def test_the_sweep_finds_and_mends_a_lost_entry() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=5, id="a")
        engine: Engine = bench.db._engine
        (entry,) = engine.window.entries()
        engine.window.wheels[ELAPSED].cancel(entry)
        (finding,) = bench.db.check()
        assert "has no entry" in finding.what
        bench.db._access.tending().tidy()
        assert bench.db.check() == []
        assert bench.db.statistics().sweep_lost > 0
        bench.clock.advance(5)
        assert bench.started() == ["a"]


def test_lanes_are_not_given_out_beyond_the_bits_of_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "LANES_NEW_MAX", 6)
    with Bench() as bench:
        db = bench.db
        db.schedule_many([NewTask("a", delay=0, queue=f"q{n}") for n in range(4)])
        db.schedule("a", delay=0, queue="q0", priority=1)
        new = [NewTask("a", delay=0, queue=queue) for queue in ("q1", "q8", "q9")]
        with pytest.raises(QueueFull):
            db.schedule_many(new)
        assert db.statistics().pending_count == 5
        db.schedule_many(new[:2])
        with pytest.raises(QueueFull):
            db.schedule("a", at=START, queue="q0")
        # What has its lane goes on.
        db.schedule_many([NewTask("a", delay=0, queue="q8")] * 10)
        # And a retry is not refused: it may take the other half.
        (lease,) = db.lease("q0", limit=1)
        lease.nack("no", retry_in=5)
        bench.reopen()
        assert len(bench.db.lease([f"q{n}" for n in range(9)], limit=50)) == 16
