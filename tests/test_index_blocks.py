"""Blocks and runs: many untouched tasks in one row of the index each.

Goal: whoever reads the index can't tell whether a task is in a block or in a row of its
own, in whatever order tasks come, change and go; and no damage of a block or a run goes
unseen. Method: a state machine that schedules, changes and ends tasks in a bare state,
writes checkpoints into both kinds of index, and holds each against a dictionary; then
every byte of a block and of a run is flipped, and rows are lost or brought back behind
the store's back.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import wheeldb
from wheeldb import NewTask
from wheeldb.disk import OsDisk
from wheeldb.engine.checkpoint import changes_of, freeze, thaw
from wheeldb.engine.columns import Columns
from wheeldb.engine.digests import Digests
from wheeldb.engine.lanes import LANE_FIRST
from wheeldb.engine.row import DEAD, Row
from wheeldb.engine.snapshots import load_what_is_left
from wheeldb.engine.state import State
from wheeldb.errors import CorruptionError
from wheeldb.events import F, unpack_fields
from wheeldb.index import Block, Index, IndexDamaged, LmdbIndex, MemoryIndex, open_index
from wheeldb.index.blocks import BLOCK_BYTES_MAX, BLOCK_TASKS_MIN
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    BLOCK,
    COARSE_MS,
    DUE,
    FORMAT_NAME,
    META,
    NEAR_MS,
    RUN,
    TASK,
    block_field,
    due_key,
    number_key,
    pack_row,
)
from wheeldb.index.runs import RUN_ENTRIES_MIN, DueGroups, Run
from wheeldb.replay import replay
from wheeldb.testing import CrashableDisk, ManualClock

LANE = LANE_FIRST
FAR_MS = 2 * COARSE_MS


def some_columns(
    dues_ms: list[int], *, first: int = 9, payload: bytes = b"\xc0", **options: object
) -> Columns:
    columns = Columns("a", [payload] * len(dues_ms), dues_ms, **options)  # type: ignore[arg-type]
    columns.first = first
    return columns


class Store:
    """A state, its index and what the index must hold, without a log."""

    def __init__(self, index: Index) -> None:
        self.state = State(index)
        self.digests = Digests()

    def schedule(self, columns: Columns) -> None:
        self.state.insert(columns)

    def checkpoint(self, now_ms: int = 0) -> None:
        state = self.state
        frozen = freeze(state, (now_ms, now_ms))
        changes = changes_of(frozen, state.lanes, self.digests, [], state.index)
        state.index.apply(changes)
        thaw(state)

    def end(self, number: int) -> None:
        row = self.state.lookup(number)
        assert row is not None
        self.state.remove(row)

    def change(self, number: int, lsn: int, due_ms: int, *, is_dead: bool) -> None:
        old = self.state.lookup(number)
        assert old is not None
        new = old.copy(lsn)
        new.due_ms = due_ms
        if is_dead:
            new.state = DEAD
        self.state.put(old, new)

    def counts(self) -> dict[str, int]:
        with self.state.index.snapshot() as view:
            return {table: view.count(table) for table in (TASK, BLOCK, DUE, RUN)}


# What is read, against a dictionary.


class BlockMachine(RuleBasedStateMachine):
    """Schedules, changes and ends tasks; after each checkpoint all must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="wheeldb-blocks-")
        self.lmdb = LmdbIndex.create(f"{self.directory}/index", disk=OsDisk())
        self.stores = [Store(self.lmdb), Store(MemoryIndex())]
        self.lsn = 8
        self.now_ms = 5_000
        # Due time and id by number: what there is, and as of the last checkpoint.
        self.tasks: dict[int, tuple[int, str | None]] = {}
        self.written: dict[int, tuple[int, str | None]] = {}
        self.dead: set[int] = set()

    @rule(
        count=st.integers(1, 140),
        seed=st.integers(0, 2**16),
        span_ms=st.sampled_from([0, 3 * NEAR_MS, COARSE_MS, 9 * COARSE_MS]),
        payload_bytes=st.sampled_from([0, 20, 20, 150, 3_000]),
        has_ids=st.booleans(),
    )
    def schedule(
        self, count: int, seed: int, span_ms: int, payload_bytes: int, has_ids: bool
    ) -> None:
        random = Random(seed)
        first = self.lsn + 1
        dues_ms = [self.now_ms + random.randint(0, span_ms) for _ in range(count)]
        ids = [
            f"x{first + at}" if has_ids and random.random() < 0.8 else None
            for at in range(count)
        ]
        payload = b"\xc4\x00" + bytes(payload_bytes)
        for store in self.stores:
            columns = some_columns(
                list(dues_ms), first=first, payload=payload, ids=list(ids)
            )
            store.schedule(columns)
        self.tasks |= {
            first + at: (due_ms, task_id)
            for at, (due_ms, task_id) in enumerate(zip(dues_ms, ids, strict=True))
        }
        self.lsn += count

    def some_of_them(self, seed: int, part: float) -> list[int]:
        """Draw neighbours: that empties blocks, and makes holes in others."""
        random = Random(seed)
        numbers = sorted(self.tasks)
        start = random.randrange(len(numbers))
        near = numbers[start : start + 100]
        return [number for number in near if random.random() < part]

    @precondition(lambda self: self.tasks)
    @rule(seed=st.integers(0, 2**16), part=st.sampled_from([0.02, 0.5, 0.95, 1.0]))
    def end(self, seed: int, part: float) -> None:
        for number in self.some_of_them(seed, part):
            for store in self.stores:
                store.end(number)
            del self.tasks[number]
            self.dead.discard(number)

    @precondition(lambda self: self.tasks)
    @rule(
        seed=st.integers(0, 2**16),
        part=st.sampled_from([0.02, 0.5, 1.0]),
        later_ms=st.sampled_from([0, 1, COARSE_MS, 5 * COARSE_MS]),
        is_dead=st.booleans(),
    )
    def change(self, seed: int, part: float, later_ms: int, is_dead: bool) -> None:
        for number in self.some_of_them(seed, part):
            if number in self.dead:
                continue
            self.lsn += 1
            due_ms, task_id = self.tasks[number]
            for store in self.stores:
                store.change(number, self.lsn, due_ms + later_ms, is_dead=is_dead)
            self.tasks[number] = due_ms + later_ms, task_id
            if is_dead:
                self.dead.add(number)

    @rule(later_ms=st.sampled_from([0, 9_000, 3 * COARSE_MS]))
    def checkpoint(self, later_ms: int) -> None:
        self.now_ms += later_ms
        for store in self.stores:
            store.checkpoint(self.now_ms)
        self.written = dict(self.tasks)
        self.compare()

    def compare(self) -> None:
        """Hold everything that can be read against the dictionary."""
        numbers = sorted(self.written)
        for store in self.stores:
            with store.state.index.snapshot() as view:
                assert view.check() == []
                assert store.digests.differences(view.digests()) == []
                rows = view.tasks(-1, 10_000)
                assert [row[0] for row in rows] == numbers
                for number, lsn, body in rows:
                    row = Row.unpack(number, lsn, body)
                    assert (row.due_ms, row.id) == self.written[number]
                    assert view.task(number) == (lsn, body)
                self.compare_from_the_middle(view, numbers)
                waiting = [number for number in numbers if number not in self.dead]
                self.compare_dues(view, waiting)
        assert self.stores[0].counts() == self.stores[1].counts()

    @staticmethod
    def compare_from_the_middle(
        view: wheeldb.index.Snapshot, numbers: list[int]
    ) -> None:
        for after in numbers[:: max(len(numbers) // 5, 1)]:
            found = [row[0] for row in view.tasks(after, 7)]
            assert found == [one for one in numbers if one > after][:7]

    def compare_dues(self, view: wheeldb.index.Snapshot, waiting: list[int]) -> None:
        rows = view.due(LANE, None, 10_000)
        assert rows == sorted(rows)
        assert {number: due_ms for _, number, due_ms in rows} == {
            number: self.written[number][0] for number in waiting
        }
        assert len(rows) == len(waiting)
        for field, _, due_ms in rows:
            # What `refill` relies on.
            assert due_ms - due_ms % COARSE_MS <= field <= due_ms
        for place in range(0, len(rows), max(len(rows) // 5, 1)):
            field, number, _ = rows[place]
            assert view.due(LANE, (field, number), 7) == rows[place + 1 : place + 8]
            assert view.due(LANE, (field, number - 1), 7) == rows[place : place + 7]
            until = [row for row in rows if row[0] <= field]
            assert view.due(LANE, None, 10_000, until=field) == until
        assert view.due(LANE + 1, None, 10) == []
        assert view.due(LANE - 1, None, 10) == []

    @invariant()
    def lookups_know_better_than_the_index(self) -> None:
        for number in list(self.tasks)[::17]:
            row = self.stores[0].state.lookup(number)
            assert row is not None
            assert row.due_ms == self.tasks[number][0]

    def teardown(self) -> None:
        self.checkpoint(0)
        self.lmdb.close()
        shutil.rmtree(self.directory)


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        BlockMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_blocks_are_like_rows() -> None:
    run_machine(examples=4, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_blocks_are_like_rows_for_long() -> None:
    run_machine(examples=80, steps=40)


# What goes into blocks.


@pytest.fixture
def store() -> Store:
    return Store(MemoryIndex())


def test_a_thousand_untouched_tasks_are_few_rows(store: Store) -> None:
    store.schedule(some_columns([1_000 + n // 20 for n in range(1_000)]))
    store.checkpoint()

    assert store.counts() == {TASK: 0, BLOCK: 16, DUE: 0, RUN: 8}


def test_few_tasks_have_rows_of_their_own(store: Store) -> None:
    store.schedule(some_columns([5_000] * (BLOCK_TASKS_MIN - 1)))
    store.checkpoint()

    assert store.counts() == {TASK: 7, BLOCK: 0, DUE: 7, RUN: 0}


def test_long_payloads_have_rows_of_their_own(store: Store) -> None:
    columns = some_columns([5_000] * 40)
    columns.payloads[20] = bytes(10_000)
    store.schedule(columns)
    store.checkpoint()
    counts = store.counts()

    assert counts[TASK] == BLOCK_TASKS_MIN
    assert counts[BLOCK] >= 2
    index = store.state.index
    assert isinstance(index, MemoryIndex)
    with index.snapshot() as view:
        sizes = [len(body) for _, _, body in view.block_rows(-1, 100)]
        assert len(view.task_rows(-1, 100)) == BLOCK_TASKS_MIN
        assert len(view.tasks(-1, 100)) == 40
    assert max(sizes) <= BLOCK_BYTES_MAX


def test_scattered_tasks_have_rows_of_their_own(store: Store) -> None:
    store.schedule(some_columns([5_000] * 640))
    for number in range(9, 649):
        if number % 16:
            store.end(number)
    store.checkpoint()

    assert store.counts() == {TASK: 40, BLOCK: 0, DUE: 40, RUN: 0}


def test_lone_due_times_have_rows_of_their_own(store: Store) -> None:
    lonely = [FAR_MS + n * COARSE_MS for n in range(8)]
    store.schedule(some_columns(lonely + [50 * COARSE_MS] * RUN_ENTRIES_MIN))
    store.checkpoint()

    assert store.counts() == {TASK: 0, BLOCK: 1, DUE: 8, RUN: 1}
    store.end(9)
    store.end(17)
    store.checkpoint()
    with store.state.index.snapshot() as view:
        assert view.check() == []
        assert store.digests.differences(view.digests()) == []


def test_a_row_behind_a_block_is_none_of_its_tasks(store: Store) -> None:
    store.schedule(some_columns([5_000] * 10))
    store.schedule(some_columns([5_000] * 2, first=19))
    store.checkpoint()
    assert store.counts() == {TASK: 2, BLOCK: 1, DUE: 2, RUN: 1}

    store.end(19)
    store.end(9)
    store.checkpoint()

    assert store.counts() == {TASK: 1, BLOCK: 1, DUE: 1, RUN: 1}
    with store.state.index.snapshot() as view:
        assert view.check() == []
        assert view.task(19) is None
        assert view.block_at(19) is None
        assert store.digests.differences(view.digests()) == []


def test_a_block_goes_with_its_last_task(store: Store) -> None:
    store.schedule(some_columns([5_000] * 10))
    store.checkpoint()
    for number in range(9, 19):
        assert store.counts()[BLOCK] == store.counts()[RUN] == 1
        store.end(number)
        store.checkpoint()

    assert store.counts() == {TASK: 0, BLOCK: 0, DUE: 0, RUN: 0}
    assert store.digests.stored() == Digests().stored()


def test_a_task_that_was_touched_leaves_its_block_and_its_bytes(store: Store) -> None:
    store.schedule(some_columns([5_000] * 10, payload=b"secret"))
    store.checkpoint()
    store.change(12, 100, 7_000, is_dead=False)
    store.checkpoint()

    assert store.counts() == {TASK: 1, BLOCK: 1, DUE: 1, RUN: 1}
    with store.state.index.snapshot() as view:
        [(first, _, body)] = view.block_rows(-1, 10)
        block = Block.from_body(first, body)
        assert block is not None
        assert block.numbers() == [9, 10, 11, 13, 14, 15, 16, 17, 18]
        assert body.count(b"secret") == 9
        run = view.run_at(LANE, 0, 12)
        assert run is not None
        assert 12 not in run.numbers()


def test_a_change_that_was_rolled_back_leaves_an_untouched_row(store: Store) -> None:
    # As an undo does: the old row stands in the hot table again.
    store.schedule(some_columns([5_000] * 10))
    store.checkpoint()
    old = store.state.lookup(12)
    assert old is not None
    store.change(12, 100, 7_000, is_dead=False)
    store.state.active.rows[12] = old
    store.checkpoint()
    assert store.counts() == {TASK: 1, BLOCK: 1, DUE: 1, RUN: 1}

    store.end(12)
    store.checkpoint()

    assert store.counts() == {TASK: 0, BLOCK: 1, DUE: 0, RUN: 1}
    with store.state.index.snapshot() as view:
        assert view.check() == []
        assert store.digests.differences(view.digests()) == []


def test_a_body_out_of_a_block_is_that_of_the_row() -> None:
    columns = some_columns(
        [5_000, 6_000],
        timelines=1,
        ids=["x", None],
        digests=[b"d", None],
        shared={F.PRIORITY: 3},
    )
    columns.created_ms = 77
    block = Block(9, FAR_MS, *columns.split())

    for number in (9, 10):
        fields = unpack_fields(columns.row(number).pack())
        assert unpack_fields(block.body(number)) == fields


@given(st.integers(0, 2**48), st.integers(0, 2**48))
def test_a_due_field_of_a_block_is_near_its_due_time(due_ms: int, far_ms: int) -> None:
    field = block_field(due_ms, far_ms)
    width = COARSE_MS if due_ms >= far_ms else NEAR_MS

    assert field == due_ms - due_ms % width
    assert field >= due_ms - due_ms % COARSE_MS


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.sampled_from([FAR_MS - 1, FAR_MS]) | st.integers(0, 30 * COARSE_MS),
        ),
        unique_by=lambda one: one[0],
    )
)
def test_groups_of_due_times_hold_each_once(tasks: list[tuple[int, int]]) -> None:
    groups = DueGroups()
    groups.add(LANE, FAR_MS, sorted(tasks))
    rows = groups.rows()
    found = []
    for key, value in rows.runs:
        run = Run.unpack(key, value)
        assert run is not None
        assert len(run.entries()) >= RUN_ENTRIES_MIN
        found += [(number, due_ms, run.field) for number, due_ms in run.entries()]
    for key, value in rows.singles:
        number = int.from_bytes(key[12:])
        found.append((number, int.from_bytes(value[:8]), int.from_bytes(key[4:12])))

    assert sorted(found) == sorted(
        (number, due_ms, block_field(due_ms, FAR_MS)) for number, due_ms in tasks
    )


def test_numbers_too_far_apart_make_no_run() -> None:
    groups = DueGroups()
    groups.add(LANE, FAR_MS, [(1, 5), (2, 5), (2**40, 5)])

    assert len(groups.rows().singles) == 3


# Damage.


@pytest.fixture
def filled(store: Store) -> MemoryIndex:
    """An index with one block and one run."""
    store.schedule(some_columns([5_000 + n for n in range(12)], ids=["x"] * 12))
    store.checkpoint()
    assert store.counts() == {TASK: 0, BLOCK: 1, DUE: 0, RUN: 1}
    assert isinstance(store.state.index, MemoryIndex)
    return store.state.index


def only_row(index: MemoryIndex, table: str) -> tuple[bytes, bytes]:
    with index.snapshot() as view:
        [row] = view.scan(table, b"")
    return row


def test_every_byte_of_a_block_is_checked(filled: MemoryIndex) -> None:
    key, value = only_row(filled, BLOCK)
    reads: list[Callable[[wheeldb.index.Snapshot], object]] = [
        lambda view: view.task(9),
        lambda view: view.task(15),
        lambda view: view.task(300),
        lambda view: view.tasks(-1, 5),
        lambda view: view.tasks(15, 5),
        lambda view: view.block_rows(-1, 5),
        lambda view: view.digests(),
    ]
    for offset in range(len(value)):
        filled.corrupt(BLOCK, key, offset=offset, xor=0x10)
        with filled.snapshot() as view:
            for read in reads:
                with pytest.raises(IndexDamaged, match="table block fails its check"):
                    read(view)
            assert len(view.check()) == 1
        filled.corrupt(BLOCK, key, offset=offset, xor=0x10)
    for size in range(len(value)):
        assert Block.unpack(key, value[:size]) is None
    assert Block.unpack(number_key(8), value) is None


def test_every_byte_of_a_run_is_checked(filled: MemoryIndex) -> None:
    key, value = only_row(filled, RUN)
    reads: list[Callable[[wheeldb.index.Snapshot], object]] = [
        lambda view: view.due(LANE, None, 5),
        lambda view: view.due(LANE, (0, 12), 5),
        lambda view: view.run_at(LANE, 0, 12),
        lambda view: view.digests(),
    ]
    for offset in range(len(value)):
        filled.corrupt(RUN, key, offset=offset, xor=0x10)
        with filled.snapshot() as view:
            for read in reads:
                with pytest.raises(IndexDamaged, match="table run fails its check"):
                    read(view)
            assert len(view.check()) == 1
        filled.corrupt(RUN, key, offset=offset, xor=0x10)
    for size in range(len(value)):
        assert Run.unpack(key, value[:size]) is None
    assert Run.unpack(due_key(LANE, 0, 8), value) is None


NO_BLOCKS = [
    b"\xc1",
    b"\x90",
    b"\x80",
    b"\x93\x00\x80\x80",
    b"\x93\x00\x80\x81\x04\x05",
    b"\x93\x00\x80\x81\x04\xa2ab",
]


@pytest.mark.parametrize("body", NO_BLOCKS)
def test_what_does_not_decode_is_damage(body: bytes, filled: MemoryIndex) -> None:
    key = number_key(9)
    assert Block.from_body(9, body) is None
    filled.apply(Changes(block_rows=[(key, pack_row(key, 9, body))]))

    with filled.snapshot() as view, pytest.raises(IndexDamaged):
        view.task(9)


def test_columns_of_different_lengths_are_damage() -> None:
    block = Block(9, 0, {}, {4: [b"", b""], 6: [1, 2, 3]})

    assert Block.from_body(9, block.pack()) is None


def test_check_finds_a_task_in_a_block_and_in_a_row(filled: MemoryIndex) -> None:
    filled.apply(Changes(put_tasks=[(12, 12, b"")], put_due=[(LANE, 0, 12, 5)]))

    with filled.snapshot() as view:
        assert view.check() == ["task 12 is in a block and has a row of its own"]


def test_check_finds_blocks_that_overlap(filled: MemoryIndex) -> None:
    other = Block(15, 0, {}, {4: [b""]})
    filled.apply(Changes(block_rows=[other.row(other.pack())]))

    with filled.snapshot() as view:
        assert "block 15 begins below 21, where the last one ends" in view.check()


def test_check_finds_runs_that_overlap(filled: MemoryIndex) -> None:
    groups = DueGroups()
    groups.add(LANE, FAR_MS, [(15, 5), (16, 5), (17, 5)])
    filled.apply(Changes(run_rows=groups.rows().runs))

    with filled.snapshot() as view:
        assert f"run {LANE}/0/15 is not behind the one before" in view.check()


def test_check_finds_a_run_without_its_tasks(filled: MemoryIndex) -> None:
    filled.apply(Changes(delete_blocks=[9]))

    with filled.snapshot() as view:
        findings = view.check()
    assert f"due time {LANE}/0 names task 9: no such" in findings
    assert (
        "0 tasks and 12 due times: not every task has exactly one due time" in findings
    )


def test_check_finds_an_empty_block(filled: MemoryIndex) -> None:
    other = Block(40, 0, {}, {4: [None]})
    filled.apply(Changes(block_rows=[other.row(other.pack())]))

    with filled.snapshot() as view:
        assert view.check() == ["block 40 is empty"]


# In a store.


@pytest.fixture
def disk() -> CrashableDisk:
    disk = CrashableDisk(seed=1)
    disk.make_directory("store")
    return disk


def open_store(disk: CrashableDisk) -> wheeldb.WheelDB:
    return wheeldb.open("store", disk=disk, clock=ManualClock(), driver=False)


@pytest.fixture
def db(disk: CrashableDisk) -> Iterator[wheeldb.WheelDB]:
    with open_store(disk) as db:
        db.schedule_many([NewTask("a", n, delay=60, id=f"task-{n}") for n in range(70)])
        db.checkpoint()
        yield db


def rows_of(disk: CrashableDisk, table: str) -> dict[bytes, bytes]:
    [index] = disk.indexes.values()
    with index.snapshot() as view:
        return dict(view.scan(table, b""))


@pytest.mark.parametrize("table", [BLOCK, RUN])
def test_a_row_that_is_lost_in_silence_shows(
    db: wheeldb.WheelDB, disk: CrashableDisk, table: str
) -> None:
    [index] = disk.indexes.values()
    key = next(iter(rows_of(disk, table)))
    del index._tables[table].values[key]
    index._tables[table].keys.remove(key)

    assert any(f"table {table} has" in one.what for one in db.check())
    if table == BLOCK:
        with pytest.raises(
            CorruptionError, match="lost or changed rows of table block"
        ):
            db.snapshot()


@pytest.mark.parametrize("table", [BLOCK, RUN])
def test_a_row_that_comes_back_as_it_was_shows(
    db: wheeldb.WheelDB, disk: CrashableDisk, table: str
) -> None:
    [index] = disk.indexes.values()
    before = rows_of(disk, table)
    db.cancel("task-5")
    db.checkpoint()
    after = rows_of(disk, table)
    [key] = [key for key, value in before.items() if after[key] != value]
    index._tables[table].values[key] = before[key]

    # Also if it is written anew since.
    for task_id in ("task-6", "task-7"):
        assert any(f"of rows, {len(before)}" in one.what for one in db.check())
        db.cancel(task_id)
        db.checkpoint()


def test_a_snapshot_takes_blocks_along(
    disk: CrashableDisk, db: wheeldb.WheelDB
) -> None:
    db.cancel("task-5")
    db.schedule("b", delay=5, id="alone")
    shown = [(task.id, task.payload, task.number) for task in db.tasks()]
    db.snapshot()
    blocks = rows_of(disk, BLOCK)
    db.close()
    disk.indexes.clear()

    with open_store(disk) as again:
        assert "rebuilt from snapshot" in again.recovery.index
        assert [(t.id, t.payload, t.number) for t in again.tasks()] == shown
        assert again.check() == []
        assert rows_of(disk, BLOCK) == blocks
        again.cancel("task-6")
        again.checkpoint()
        assert again.check() == []


def test_what_is_left_of_a_snapshot_has_whole_blocks(
    disk: CrashableDisk, db: wheeldb.WheelDB
) -> None:
    db.schedule_many([NewTask("a", "y" * 90, delay=60) for _ in range(10_000)])
    db.snapshot()
    [path] = [path for path in disk.dump() if path.endswith(".snap")]
    database = db._engine.database
    disk.corrupt(path, len(disk.dump()[path]) * 3 // 4, 0xFF)
    store = Store(MemoryIndex())

    damage = load_what_is_left(
        disk, path, store.state, store.digests, database=database
    )

    assert damage is not None
    assert 70 < store.state.pending_count < 10_070
    with store.state.index.snapshot() as view:
        tasks = view.tasks(-1, 40_000)
        assert len(tasks) == store.state.pending_count
        size = sum(len(Row.unpack(*task).payload) for task in tasks)
        assert size == store.state.payload_bytes
        assert view.check() == []
        assert store.digests.differences(view.digests()) == []


@pytest.mark.parametrize("salvage", [False, True])
def test_a_replay_makes_the_same_store(
    disk: CrashableDisk, db: wheeldb.WheelDB, salvage: bool
) -> None:
    db.cancel("task-5")
    db.snapshot()
    db.reschedule("task-6", delay=600)
    ids = [task.id for task in db.tasks()]

    replay("store", to="other", salvage=salvage, disk=disk, clock=ManualClock())

    with wheeldb.open("other", disk=disk, clock=ManualClock(), driver=False) as other:
        assert [task.id for task in other.tasks()] == ids
        assert other.check() == []


def test_an_index_of_the_format_before_is_rebuilt(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path / "store", driver=False) as db:
        db.schedule_many([NewTask("a", n, delay=60) for n in range(20)])
    path = tmp_path / "store" / "index"
    shutil.rmtree(path)
    path.mkdir()
    key = FORMAT_NAME.encode()
    with lmdb.open(str(path), max_dbs=5) as old:
        for name in (TASK, DUE, "id", "finished", META):
            old.open_db(name.encode())
        with old.begin(write=True, db=old.open_db(META.encode())) as transaction:
            transaction.put(key, pack_row(key, 0, b"1"))
    reasons: list[str] = []

    found = open_index(
        str(path), disk=OsDisk(), vouched=True, readonly=True,
        on_verdict=lambda verdict: reasons.append(verdict.reason),
    )  # fmt: skip

    assert found is None
    assert reasons == ["index format b'1'"]
    with wheeldb.open(tmp_path / "store", driver=False) as db:
        assert "index format b'1'" in db.recovery.index
        assert len(list(db.tasks())) == 20
        assert db.check() == []
