"""A damaged index is replaced while the store runs, and nothing is lost by it."""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver_helpers import Driven

import wheeldb
from wheeldb import NewTask, TaskState
from wheeldb.disk import OsDisk
from wheeldb.index import Index, IndexDamaged, MemoryIndex
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    BLOCK,
    DUE,
    FINISHED,
    NEAR_MS,
    RUN,
    TASK,
    due_key,
    number_key,
)
from wheeldb.testing import CrashableDisk, ManualClock

COUNT = 300


@pytest.fixture
def disk() -> CrashableDisk:
    disk = CrashableDisk(seed=1)
    disk.make_directory("store")
    return disk


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[COUNT, 1], ids=["blocks", "rows"])
def db(
    request: pytest.FixtureRequest, disk: CrashableDisk, clock: ManualClock
) -> Iterator[wheeldb.WheelDB]:
    """A store whose tasks go into blocks, or into rows of their own."""
    with wheeldb.open(
        "store", disk=disk, clock=clock, driver=False, window_max=100
    ) as db:
        tasks = [NewTask("a", n, delay=60 + n, id=f"task-{n}") for n in range(COUNT)]
        for start in range(0, COUNT, request.param):
            db.schedule_many(tasks[start : start + request.param])
        db.cancel("task-7")
        yield db
        assert db.check() == []


def damage(disk: CrashableDisk, table: str, key: bytes) -> None:
    [index] = disk.indexes.values()
    assert isinstance(index, MemoryIndex)
    index.corrupt(table, key, offset=-1, xor=0x10)


def damage_task(disk: CrashableDisk, number: int) -> None:
    """Damage the row or the block that a task is in."""
    [index] = disk.indexes.values()
    with index.snapshot() as view:
        block = view.block_at(number)
    if block is None:
        damage(disk, TASK, number_key(number))
    else:
        damage(disk, BLOCK, number_key(block.first))


def damage_due(disk: CrashableDisk, lane: int, due_ms: int, number: int) -> None:
    """Damage the row or the run that a task's due time is in."""
    [index] = disk.indexes.values()
    with index.snapshot() as view:
        run = view.run_at(lane, due_ms - due_ms % NEAR_MS, number)
    if run is None:
        damage(disk, DUE, due_key(lane, due_ms, number))
    else:
        damage(disk, RUN, run.key)


def replace_in_a_batch(db: wheeldb.WheelDB, task_id: str) -> None:
    with db.batch() as batch:
        batch.cancel(task_id)
        batch.schedule("a", delay=60)


def number_of(db: wheeldb.WheelDB, task_id: str) -> int:
    task = db.get(task_id)
    assert task is not None
    return task.number


@pytest.mark.parametrize("takes_snapshot", [False, True])
def test_a_damaged_row_is_read_after_a_rebuild(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    caplog: pytest.LogCaptureFixture,
    takes_snapshot: bool,
) -> None:
    number = number_of(db, "task-250")
    if takes_snapshot:
        db.snapshot()
    db.checkpoint()
    damage_task(disk, number)

    with caplog.at_level(logging.WARNING, logger="wheeldb"):
        task = db.get("task-250")

    assert task is not None
    assert task.payload == 250
    assert "rebuilt" in caplog.text
    assert db.statistics().index_rebuilds == 1


def test_a_change_to_a_damaged_row_is_made_once(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    damage_task(disk, number)
    before = db.statistics().last_lsn

    assert db.cancel("task-250") == "cancelled"

    assert db.statistics().last_lsn == before + 1
    assert db.statistics().pending_count == COUNT - 2


def test_every_task_fires_although_due_keys_are_damaged(
    db: wheeldb.WheelDB, disk: CrashableDisk, clock: ManualClock
) -> None:
    number = number_of(db, "task-250")
    due_ms = 60_000 + 250_000
    db.checkpoint()
    lane = db._engine.state.lanes.numbers[(0, "default", 0)]
    damage_due(disk, lane, due_ms, number)

    clock.advance(60 + COUNT)
    seen: list[object] = []
    while leases := db.lease(limit=50):
        seen += [lease.payload for lease in leases]
        db.ack_many(leases)

    assert seen == [n for n in range(COUNT) if n != 7]


# Bytes that are nothing, no map, and a map that lacks a task's fields.
UNDECODABLE = [b"\xc1", b"\x90", b"\x80"]


@pytest.mark.parametrize("body", UNDECODABLE, ids=["nothing", "no map", "empty"])
@pytest.mark.parametrize(
    "use",
    [
        lambda db: db.get("task-250"),
        lambda db: db.cancel("task-250"),
        lambda db: db.schedule("a", delay=1, id="task-250", if_exists="replace"),
        lambda db: list(db.tasks()),
        lambda db: [db.lease(limit=COUNT) for _ in range(COUNT)],
    ],
    ids=["get", "cancel", "replace", "list", "lease"],
)
def test_a_row_that_does_not_decode_is_a_damaged_index(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    clock: ManualClock,
    use: Callable[[wheeldb.WheelDB], object],
    body: bytes,
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    db._engine.state.index.apply(Changes(put_tasks=[(number, number, body)]))
    clock.advance(60 + COUNT)

    use(db)

    assert db.statistics().index_rebuilds == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda db: db.get("task-7"),
        lambda db: db.schedule("a", delay=1, id="task-7", if_exists="replace"),
        lambda db: list(db.tasks(state="cancelled")),
    ],
    ids=["get", "replace", "list"],
)
def test_so_is_a_finished_one(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    use: Callable[[wheeldb.WheelDB], object],
) -> None:
    task = db.get("task-7")
    assert task is not None
    db.checkpoint()
    db._engine.state.index.apply(Changes(put_finished=[(task.lsn, UNDECODABLE[0])]))

    use(db)

    assert db.statistics().index_rebuilds == 1


def test_what_finished_is_known_after_a_rebuild(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    task = db.get("task-7")
    assert task is not None
    db.checkpoint()
    damage(disk, FINISHED, number_key(task.lsn))

    assert db.cancel("task-7") == "cancelled"
    assert [task.id for task in db.tasks(state="cancelled")] == ["task-7"]


def test_listing_goes_on_over_a_rebuild(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    damage_task(disk, number)

    assert len(list(db.tasks())) == COUNT - 1


def test_a_rebuild_waits_for_nobody_to_lose_a_change(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    db.reschedule("task-249", delay=5)
    damage_task(disk, number)

    assert db.get("task-250") is not None

    moved = db.get("task-249")
    assert moved is not None
    assert moved.due_in == 5.0


def test_damage_of_the_log_as_well_is_refused(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    damage_task(disk, number)
    [segment] = [path for path in disk.dump() if path.endswith(".seg")]
    disk.corrupt(segment, 4096 + 200, 0xFF)

    with pytest.raises(wheeldb.CorruptionError):
        db.get("task-250")

    disk.corrupt(segment, 4096 + 200, 0xFF)
    assert db.get("task-250") is not None


def test_a_damaged_file_of_lmdb_is_replaced(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path / "store", driver=False) as db:
        db.schedule_many(
            [NewTask("a", f"<payload {n:04}>", delay=3600) for n in range(2_000)]
        )
        db.checkpoint()
        path = tmp_path / "store" / "index" / "data.mdb"
        data = path.read_bytes()
        at = data.index(b"<payload 1234>")
        with path.open("r+b") as file:
            file.seek(at + 3)
            file.write(b"X")

        payloads = [task.payload for task in db.tasks()]

        assert payloads == [f"<payload {n:04}>" for n in range(2_000)]
        assert db.check() == []
        assert (tmp_path / "store" / "aside" / "index-bad.mdb").exists()
    with wheeldb.open(tmp_path / "store", driver=False) as db:
        assert db.statistics().pending_count == 2_000


def test_a_lease_that_meets_damage_half_way_loses_none_of_what_it_had_taken(
    db: wheeldb.WheelDB, disk: CrashableDisk, clock: ManualClock
) -> None:
    number = number_of(db, "task-20")
    db.checkpoint()
    clock.advance(60 + 40)
    db.poll()
    damage_task(disk, number)

    leases = db.lease(limit=30)

    assert db.statistics().index_rebuilds == 1
    assert [lease.payload for lease in leases] == [n for n in range(31) if n != 7]


# The disk refuses a new index as well.


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_store_goes_on_while_no_index_can_be_written(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    code: int,
    nth: int,
) -> None:
    db.schedule("a", id="kept", delay=1)
    disk.fail("index", code, forever=True)
    for _ in range(nth):
        with pytest.raises(wheeldb.IndexUnavailable) as caught:
            db.checkpoint()
        assert caught.value.errno == code
    before = db.statistics()

    with pytest.raises(wheeldb.IndexUnavailable):
        db.schedule("a", delay=60)
    with pytest.raises(wheeldb.IndexUnavailable):
        replace_in_a_batch(db, "task-8")
    assert db.statistics() == before
    clock.advance(1)
    [lease] = db.lease()
    lease.ack()
    assert db.cancel("task-9") == "cancelled"
    kept = db.get("kept")
    assert kept is not None
    assert kept.state == TaskState.DONE
    assert caplog.text.count("no new tasks are taken") == 1

    disk.heal()
    db.schedule("a", delay=60, id="new")
    assert db.get("new") is not None
    assert db.statistics().index_rebuilds == 1


def test_without_room_for_a_new_index_the_disk_counts_as_full(
    db: wheeldb.WheelDB, disk: CrashableDisk
) -> None:
    disk.fail("index", errno.ENOSPC, forever=True)

    for use in (db.checkpoint, lambda: db.schedule("a", delay=1)):
        with pytest.raises(wheeldb.StorageFullError) as caught:
            use()
        assert caught.value.errno == errno.ENOSPC

    disk.heal()
    db.schedule("a", delay=1)


def test_what_is_in_a_damaged_index_alone_is_refused_until_there_is_a_new_one(
    db: wheeldb.WheelDB, disk: CrashableDisk, clock: ManualClock
) -> None:
    number = number_of(db, "task-250")
    db.checkpoint()
    damage_task(disk, number)
    disk.fail("index", errno.EIO, forever=True)

    with pytest.raises(wheeldb.IndexUnavailable):
        db.get("task-250")
    clock.advance(60 + COUNT)
    assert db.poll() > 0
    assert db.next_in() != 0

    disk.heal()
    clock.advance(10)
    db.poll()
    seen: list[object] = []
    while leases := db.lease(limit=50):
        seen += [lease.payload for lease in leases]
        db.ack_many(leases)
    assert seen == [n for n in range(COUNT) if n != 7]


def test_a_rebuild_that_failed_rests_ten_times_as_long_as_it_took(
    db: wheeldb.WheelDB, disk: CrashableDisk, clock: ManualClock
) -> None:
    engine = db._engine
    disk.fail("index", errno.EIO, forever=True)
    with pytest.raises(wheeldb.IndexUnavailable):
        db.checkpoint()
    engine.index_retry_ms = engine.reading().boottime_ms + 1_000
    disk.heal()

    with pytest.raises(wheeldb.IndexUnavailable):
        db.schedule("a", delay=1)
    clock.advance(1)
    db.schedule("a", delay=1)


@pytest.mark.parametrize(
    "write",
    [lambda db: db.snapshot(), lambda db: db.backup("backup")],
    ids=["snapshot", "backup"],
)
def test_a_snapshot_that_meets_damage_is_written_from_a_new_index(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    write: Callable[[wheeldb.WheelDB], object],
) -> None:
    number = number_of(db, "task-20")
    db.checkpoint()
    damage_task(disk, number)

    write(db)

    assert db.statistics().index_rebuilds == 1
    assert len(list(db.tasks())) == COUNT - 1


@pytest.mark.parametrize(
    "use",
    [
        lambda db: db.cancel("task-20"),
        lambda db: db.get("task-20"),
        lambda db: db.schedule("a", delay=1, id="task-20", if_exists="replace"),
    ],
    ids=["cancel", "get", "replace"],
)
def test_an_index_that_is_damaged_again_at_once_is_unavailable(
    db: wheeldb.WheelDB,
    disk: CrashableDisk,
    use: Callable[[wheeldb.WheelDB], object],
) -> None:
    engine = db._engine
    number = number_of(db, "task-20")
    db.checkpoint()
    damage_task(disk, number)
    mend = engine.mend

    def mend_in_vain(index: Index, found: IndexDamaged) -> None:
        mend(index, found)
        damage_task(disk, number)

    engine.mend = mend_in_vain
    with pytest.raises(wheeldb.IndexUnavailable):
        use(db)
    engine.mend = mend
    use(db)


@pytest.mark.parametrize("retry_ms", [0, 10**15], ids=["tried again", "at rest"])
def test_what_is_refused_for_want_of_an_index_leaves_nothing_in_memory(
    db: wheeldb.WheelDB, disk: CrashableDisk, retry_ms: int
) -> None:
    engine = db._engine
    disk.fail("index", errno.EIO, forever=True)
    with pytest.raises(wheeldb.IndexUnavailable):
        db.checkpoint()

    for _ in range(3):
        engine.index_retry_ms = retry_ms
        with pytest.raises(wheeldb.IndexUnavailable):
            db.schedule("a", delay=60)

    # A traceback would hold all that its frames know: payloads, a folded state.
    known = engine.index_damage
    assert known is not None
    assert (known.__traceback__, known.__cause__, known.__context__) == (None,) * 3
    disk.heal()
    engine.index_retry_ms = 0


def test_a_store_that_is_closed_without_an_index_opens_with_everything(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    with wheeldb.open("store", disk=disk, clock=clock, driver=False) as db:
        db.schedule("a", id="kept", delay=60)
        disk.fail("index", errno.EROFS, forever=True)
    disk.heal()
    with wheeldb.open("store", disk=disk, clock=clock, driver=False) as db:
        assert db.get("kept") is not None
        assert db.check() == []


class RefusingDisk(OsDisk):
    """A directory in which one operation on the index fails."""

    refused: tuple[str, int] | None = None

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._meet("rename", source)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._meet("sync_directory", path)
        super().sync_directory(path)

    def make_directory(self, path: str) -> None:
        self._meet("make_directory", path)
        super().make_directory(path)

    def _meet(self, operation: str, path: str) -> None:
        if self.refused is None or "/index" not in path:
            return
        name, code = self.refused
        if name == operation:
            raise OSError(code, "refused", path)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["rename", "sync_directory", "make_directory"])
def test_lmdbs_bad_file_stays_open_until_the_new_one_is(
    tmp_path: Path, operation: str, code: int
) -> None:
    disk, path = RefusingDisk(), tmp_path / "store" / "index"
    with wheeldb.open(tmp_path / "store", disk=disk, driver=False) as db:
        db.schedule_many(
            [NewTask("a", f"<payload {n:04}>", delay=3600) for n in range(2_000)]
        )
        db.checkpoint()
        db.schedule("a", id="kept", delay=3600)
        number = next(iter(db.tasks())).number
        index = db._engine.state.index
        index.apply(Changes(put_tasks=[(number, number, UNDECODABLE[0])]))
        disk.refused = operation, code

        for _ in range(2):
            with pytest.raises(OSError, match=r"no room|can't be rebuilt") as caught:
                list(db.tasks())
            assert caught.value.errno == code
            assert isinstance(
                caught.value, (wheeldb.StorageFullError, wheeldb.IndexUnavailable)
            )
            db._engine.index_retry_ms = 0
        assert db.get("kept") is not None
        assert db.statistics().pending_count == 2_001
        assert not (path / "new.mdb").exists()
        assert not (path / "new.mdb-lock").exists()

        disk.refused = None
        db.schedule("a", delay=3600)
        assert db.check() == []
        assert len(list(db.tasks())) == 2_002
    with wheeldb.open(tmp_path / "store", driver=False) as db:
        assert db.statistics().pending_count == 2_002
        assert db.check() == []


def test_the_driver_tries_again_every_ten_seconds_and_starts_tasks_meanwhile() -> None:
    with Driven() as driven:
        db = driven.db
        db.schedule("a", delay=100, id="due")
        db.schedule("a", delay=3600, id="later")
        driven.disk.fail("index", errno.EIO, forever=True)
        driven.let_pass(70)
        with pytest.raises(wheeldb.IndexUnavailable):
            db.schedule("a", delay=1)

        woken = driven.wakeups
        driven.let_pass(60)
        # Tries and their ends, the task, and the elapsed mark.
        assert driven.wakeups - woken < 30
        [lease] = db.lease()
        assert lease.id == "due"
        lease.ack()

        driven.disk.heal()
        driven.let_pass(10)
        assert db.statistics().index_rebuilds == 1
        assert driven.db._driver is not None
        assert driven.db._driver.failure is None
        db.schedule("a", delay=1)
