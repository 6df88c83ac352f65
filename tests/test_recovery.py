"""Opening after what a crash may leave: creation, kills, power cuts, torn tails."""

import errno
import json
from functools import partial

import pytest
from log_helpers import SeededEntropy
from recovery_helpers import (
    HONEST_PROFILES,
    STORE,
    cut,
    files_of,
    flip,
    ids_of,
    open_store,
    read,
    run_until_cut,
    segments_of,
    tasks_of,
    write,
)

import wheeldb
from wheeldb import CorruptionError, FormatError, NewTask, TaskState, WheelDB
from wheeldb.log.frame import HEADER_BYTES
from wheeldb.testing import CrashableDisk, ManualClock


@pytest.fixture
def disk() -> CrashableDisk:
    return CrashableDisk(7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(elapsed=1_000.0)


def last_lsn(db: WheelDB) -> int:
    return db._engine.state.last_lsn


# Creation.


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_creation_leaves_no_store_or_a_whole_one(profile: str) -> None:
    operation, is_made = 0, False
    while not is_made:
        operation += 1
        disk, clock = CrashableDisk(operation), ManualClock()
        is_made = run_until_cut(disk, operation, partial(open_store, disk, clock))
        disk.crash(profile)
        is_store = disk.info(f"{STORE}/FORMAT") is not None

        db = open_store(disk, clock)

        assert (db.recovery.reason == "new") == (not is_store), operation
        db.schedule("a", id="first", delay=1)
        disk.crash("none")
        db = open_store(disk, clock)
        assert ids_of(db) == ["first"], operation
        assert db.check() == []
    assert operation > 20


def test_what_a_killed_creation_has_named_is_made_durable() -> None:
    operation, is_made = 0, False
    while not is_made:
        operation += 1
        disk, clock = CrashableDisk(), ManualClock()
        is_made = run_until_cut(disk, operation, partial(open_store, disk, clock))
        disk.kill()  # what it wrote is still in the page cache, and only there
        db = open_store(disk, clock)
        db.schedule("a", id="first", delay=1)
        disk.crash("none")

        assert ids_of(open_store(disk, clock)) == ["first"], operation


def test_a_creation_that_was_killed_twice_begins_again() -> None:
    disk, clock = CrashableDisk(), ManualClock()
    for operation in (25, 30, 20):
        run_until_cut(disk, operation, lambda: open_store(disk, clock))
        disk.kill()

    assert open_store(disk, clock).recovery.reason in ("new", "unclean")


def test_a_lost_format_makes_no_new_store(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="kept", delay=1)
    disk.kill()
    disk.unlink(f"{STORE}/FORMAT")
    before = files_of(disk)

    for _ in range(2):
        with pytest.raises(CorruptionError, match="FORMAT: the file is missing"):
            open_store(disk, clock)
        disk.kill()

    assert files_of(disk) == before


def test_a_store_whose_log_is_gone_is_refused(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", delay=1)
    db.close()
    for path in segments_of(disk):
        disk.unlink(path)

    with pytest.raises(CorruptionError, match="no segment"):
        open_store(disk, clock)


def syncs_leases(db: WheelDB) -> bool:
    return db._engine.syncs_leases


# Clean, killed, cut.


def test_open_after_a_clean_close(disk: CrashableDisk, clock: ManualClock) -> None:
    db = open_store(disk, clock)
    db.schedule("a", {"n": 1}, id="one", delay=60)
    before, lsn = tasks_of(db), last_lsn(db)
    db.close()
    clock.advance(10)

    db = open_store(disk, clock)

    report = db.recovery
    assert (report.reason, report.torn_bytes, report.interrupted) == ("clean", 0, 0)
    assert report.off_time == 10.0
    assert report.index.startswith("used")
    assert [task.id for task in tasks_of(db)] == [task.id for task in before]
    assert tasks_of(db)[0].due_in == 50.0
    assert lsn < last_lsn(db) < lsn + 10


@pytest.mark.parametrize("profile", [None, "none", "all", "subset"])
def test_open_after_a_kill_or_a_cut(
    disk: CrashableDisk, clock: ManualClock, profile: str | None
) -> None:
    db = open_store(disk, clock)
    for n in range(50):
        db.schedule("a", n, id=f"t{n}x", delay=60)

    before = tasks_of(db)
    lsn = last_lsn(db)

    if profile is None:
        disk.kill()
    else:
        disk.crash(profile)
        clock.reboot(off=5)

    db = open_store(disk, clock)

    assert db.recovery.reason == "unclean"
    assert [(t.id, t.payload, t.lsn) for t in tasks_of(db)] == [
        (t.id, t.payload, t.lsn) for t in before
    ]
    # Numbers handed out and lost are never handed out again.
    assert last_lsn(db) >= lsn + 2**20 - 1
    assert db.check() == []


def test_fences_rise_over_kills_cuts_and_closes(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=0)
    fences = []
    for number in range(6):
        (lease,) = db.lease()
        fences.append(lease.fence)
        if number % 3 == 0:
            disk.kill()
        elif number % 3 == 1:
            disk.crash("none")
            clock.reboot()
        else:
            lease.release()
            db.close()
        db = open_store(disk, clock, recoveries_max=100)
        clock.advance(1)

    assert fences == sorted(set(fences)), fences


def test_an_interrupted_attempt_counts_as_a_recovery(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=0)
    db.lease()
    disk.kill()

    db = open_store(disk, clock)

    task = db.get("x")
    assert task is not None
    assert (task.state, task.attempts, task.recoveries) == (TaskState.DUE, 0, 1)
    assert db.recovery.interrupted == 1
    assert db.lease()[0].may_have_run


def test_may_have_run_after_a_cut_is_said_of_what_was_due(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="due", delay=1)
    db.schedule("a", id="later", delay=3_600)
    clock.advance(2)
    db.lease()  # written, not synced
    disk.crash("none")
    clock.reboot(off=4_000)

    db = open_store(disk, clock)

    leases = {lease.id: lease for lease in db.lease(limit=2)}
    assert leases["due"].may_have_run
    assert not leases["later"].may_have_run


@pytest.mark.parametrize("elapsed_mark", [1, 60, 600])
def test_a_start_after_a_suspend_may_have_been_whatever_the_mark(
    disk: CrashableDisk, clock: ManualClock, elapsed_mark: int
) -> None:
    db = open_store(disk, clock, elapsed_mark=elapsed_mark)
    db.schedule("a", id="due", delay=50)
    clock.suspend(55)  # too short for an anchor before the start
    db.lease()  # written, not synced
    disk.crash("none")
    clock.reboot(off=60)

    db = open_store(disk, clock, elapsed_mark=elapsed_mark)

    assert db.lease()[0].may_have_run


def test_leases_are_synced_for_a_while_after_a_cut(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    assert not syncs_leases(db)
    disk.kill()
    db = open_store(disk, clock)
    assert not syncs_leases(db)
    disk.crash("none")
    clock.reboot()

    db = open_store(disk, clock)
    assert syncs_leases(db)
    clock.advance(599)
    assert syncs_leases(db)
    clock.advance(1)
    assert not syncs_leases(db)

    disk.crash("none")
    clock.reboot()
    db = open_store(disk, clock)
    db._engine.note_good_runs(999)
    assert syncs_leases(db)
    db._engine.note_good_runs(1)
    assert not syncs_leases(db)


# A copy.


def test_a_copy_is_a_new_incarnation_far_above(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=0)
    incarnation = db._engine.state.incarnation
    db.close()
    copy = CrashableDisk()
    copy.make_directory("/elsewhere")  # another inode for the store's directory
    copy.load(disk.dump())

    copied = open_store(copy, clock)

    assert copied.recovery.reason == "copy"
    assert copied._engine.state.incarnation > incarnation
    assert copied.lease()[0].fence >= 2**32
    copied.close()
    assert open_store(copy, clock).recovery.reason == "clean"
    # The original goes on as before.
    assert open_store(disk, clock).lease()[0].fence < 2**32


# Torn tails.


def torn_store() -> tuple[CrashableDisk, ManualClock, str, int, int]:
    """Return a store with 1,000 acknowledged tasks, and where one more was written."""
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock, segment_bytes=2**20)
    db.schedule_many([NewTask("a", n, id=f"id-{n}", delay=60) for n in range(1_000)])
    db.checkpoint()
    db._engine.committer.sync()
    path = segments_of(disk)[-1]
    start = db._engine.committer.writer.position.offset
    db.schedule("b", b"\0" * 600, id="last", delay=60)
    end = db._engine.committer.writer.position.offset
    disk.kill()
    return disk, clock, path, start, end


def tear(disk: CrashableDisk, path: str, how: str, place: int, end: int) -> bool:
    """Tear the last record at a place; return whether it is still whole."""
    before = read(disk, path)[:end]
    if how == "zeros":
        write(disk, path, bytes(end + 4_096 - place), place)
    else:
        cut(disk, path, place)
    return read(disk, path)[:end] == before


# Tails of zeros and of half a record: etcd-io/etcd#6515, #11488, #4903,
# apache/ignite#4714, peter-wangxu/persist-queue#56.
@pytest.mark.parametrize("how", ["zeros", "cut"])
def test_a_torn_last_record_costs_nothing_acknowledged(how: str) -> None:
    original, clock, path, start, end = torn_store()
    step = (end - start) // 12
    places = [*range(start, end, step), end]
    places += [n for n in range(start, end) if n % 512 == 0]
    for place in places:
        disk = original.clone()
        is_whole = tear(disk, path, how, place, end)
        db = open_store(disk, clock, segment_bytes=2**20)
        assert (db.get("last") is not None) == is_whole, place
        assert db.statistics().pending_count == 1_000 + is_whole, place
        # Nothing was appended behind the torn one.
        db.schedule("c", id="new", delay=1)
        disk.crash("none")
        db = open_store(disk, clock, segment_bytes=2**20)
        assert db.get("new") is not None
        assert db.statistics().pending_count == 1_001 + is_whole, place


@pytest.mark.slow
@pytest.mark.parametrize("how", ["zeros", "cut"])
def test_a_record_torn_at_every_byte_costs_nothing_acknowledged(how: str) -> None:
    original, clock, path, start, end = torn_store()
    for place in range(start, end + 1):
        disk = original.clone()
        is_whole = tear(disk, path, how, place, end)
        db = open_store(disk, clock, segment_bytes=2**20)
        assert (db.get("last") is not None) == is_whole, place
        assert db.statistics().pending_count == 1_000 + is_whole, place


def test_a_torn_tail_is_told_and_kept_aside() -> None:
    disk, clock, path, start, end = torn_store()
    write(disk, path, b"\xff", start + HEADER_BYTES + 100)

    report = open_store(disk, clock).recovery

    assert report.torn_at == f"{path} at byte {start}"
    assert 0 < report.torn_bytes <= end - start
    assert disk.list(f"{STORE}/aside") == [path.rpartition("/")[2] + ".torn"]


# Damage.


def damaged_store() -> tuple[CrashableDisk, ManualClock]:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    for n in range(300):
        db.schedule("a", b"x" * 300, id=f"id-{n}", delay=60)
    disk.kill()
    return disk, clock


# Others stop silently at the first bad record, or lose the whole queue:
# google/leveldb#251, peter-wangxu/persist-queue#142.
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_damage_before_the_end_is_refused_with_its_place(segment: int) -> None:
    disk, clock = damaged_store()
    path = segments_of(disk)[segment]
    place = 4_096 + (1_000 if segment == -1 else 20_000)
    flip(disk, path, place)
    disk.indexes.clear()
    before = files_of(disk)

    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            open_store(disk, clock)
        disk.kill()
        error = caught.value
        assert error.path == path
        assert error.offset is not None
        assert place - 600 < error.offset <= place
        assert error.lsn is not None
        assert "--salvage" in str(error)
        assert files_of(disk) == before


def test_a_log_that_ends_below_the_index_is_refused() -> None:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    end = db._engine.committer.writer.position.offset
    db.schedule("a", id="y", delay=1)
    db.checkpoint()
    path = segments_of(disk)[-1]
    disk.kill()
    cut(disk, path, end)

    with pytest.raises(CorruptionError, match="known to have been durable"):
        open_store(disk, clock)


def test_a_log_that_ends_below_a_snapshot_is_refused() -> None:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    end = db._engine.committer.writer.position.offset
    db.schedule("a", id="y", delay=1)
    db.snapshot()
    path = segments_of(disk)[-1]
    disk.kill()
    disk.indexes.clear()
    cut(disk, path, end)

    with pytest.raises(CorruptionError, match="known to have been durable"):
        open_store(disk, clock)


def test_a_damaged_snapshot_still_proves_what_was_durable() -> None:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    db.snapshot()
    end = db._engine.committer.writer.position.offset
    db.schedule("a", id="y", delay=1)
    newest = str(db.snapshot())
    path = segments_of(disk)[-1]
    disk.kill()
    disk.indexes.clear()
    cut(disk, path, end)
    flip(disk, newest, 4_200)

    for readonly in (True, False):
        with pytest.raises(CorruptionError, match="known to have been durable"):
            open_store(disk, clock, readonly=readonly)


def test_a_log_that_ends_below_a_clean_close_is_refused_again_and_again() -> None:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    end = db._engine.committer.writer.position.offset
    db.schedule("a", id="y", delay=1)
    db.close()
    disk.indexes.clear()
    cut(disk, segments_of(disk)[-1], end)

    for _ in range(3):
        with pytest.raises(CorruptionError, match="known to have been durable"):
            open_store(disk, clock)
        disk.kill()


def test_a_lost_footer_alone_is_no_loss() -> None:
    disk, clock = CrashableDisk(3), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    db.close()
    path = segments_of(disk)[-1]
    data = read(disk, path).rstrip(b"\0")
    flip(disk, path, len(data) - 1)

    db = open_store(disk, clock)

    assert db.recovery.reason == "unclean"
    assert ids_of(db) == ["x"]


# Side files: peter-wangxu/persist-queue#180, balena/python-pqueue#12,
# celery/celery#346, #4777, #8008.
@pytest.mark.parametrize("how", ["empty", "zeros", "garbage"])
@pytest.mark.parametrize("name", ["LOCK", "index/VOUCH", "FORMAT"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_side_files_may_be_blank(
    disk: CrashableDisk, clock: ManualClock, name: str, how: str, is_closed: bool
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    database = db._engine.database
    if is_closed:
        db.close()
    else:
        disk.kill()
    path = f"{STORE}/{name}"
    size = max(1, len(read(disk, path)))
    cut(disk, path, 0)
    if how != "empty":
        write(disk, path, bytes(size) if how == "zeros" else b"\xfe" * size)

    if (name, how) == ("FORMAT", "garbage"):
        with pytest.raises(FormatError, match="FORMAT"):
            open_store(disk, clock)
        return
    db = open_store(disk, clock)

    assert ids_of(db) == ["x"]
    assert db._engine.database == database
    db.close()
    assert read(disk, f"{STORE}/FORMAT").startswith(b"wheeldb\nformat 1\n")
    assert ids_of(open_store(disk, clock)) == ["x"]


def test_a_blank_format_is_also_read_without_writing(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=1)
    db.close()
    cut(disk, f"{STORE}/FORMAT", 0)
    before = disk.dump()

    assert ids_of(open_store(disk, clock, readonly=True)) == ["x"]
    assert disk.dump() == before


def test_files_of_another_store_are_refused(clock: ManualClock) -> None:
    one, other = CrashableDisk(1), CrashableDisk(2)
    for disk, seed in ((one, 1), (other, 2)):
        db = open_store(disk, clock, entropy=SeededEntropy(seed))
        db.schedule("a", id="x", delay=1)
        db.close()
    name = segments_of(other)[-1]
    write(one, name, read(other, name))

    with pytest.raises(FormatError, match="belongs to database"):
        open_store(one, clock)


# Crashes within recovery.


def crash_prone(seed: int) -> tuple[CrashableDisk, ManualClock, set[str]]:
    """Return a store whose power was cut amid its work, and what was acknowledged."""
    disk, clock = CrashableDisk(seed), ManualClock()
    db = open_store(disk, clock)
    acknowledged = {f"many-{n}" for n in range(12)}
    # A checkpoint takes them as a block, and what becomes of them out of it again.
    db.schedule_many([NewTask("a", n, id=f"many-{n}", delay=60) for n in range(14)])
    for n in range(12):
        db.schedule("a", b"x" * 200, id=f"id-{n}", delay=60)
        acknowledged.add(f"id-{n}")
        if n in (6, 9):
            db.cancel(f"many-{12 + n // 9}")
            db.reschedule(f"many-{n}", delay=600)
            db.checkpoint()
    db.poll()
    run_until_cut(disk, 2, lambda: db.schedule("a", b"y" * 700, id="unknown", delay=60))
    disk.crash(HONEST_PROFILES[seed % len(HONEST_PROFILES)])
    clock.reboot(off=1)
    return disk, clock, acknowledged


@pytest.mark.parametrize("seed", range(len(HONEST_PROFILES)))
def test_a_crash_at_every_operation_of_recovery(seed: int) -> None:
    original, clock, acknowledged = crash_prone(seed)
    expected: list[str] | None = None
    operation, is_open = 0, False
    while not is_open:
        operation += 1
        disk = original.clone(seed=operation)
        is_open = run_until_cut(disk, operation, partial(open_store, disk, clock))
        disk.crash(HONEST_PROFILES[operation % len(HONEST_PROFILES)])

        db = open_store(disk, clock)

        ids = ids_of(db)
        assert acknowledged <= set(ids) <= acknowledged | {"unknown"}, operation
        assert db.check() == [], operation
        db.schedule("b", id="after", delay=1)
        disk.crash("none")
        db = open_store(disk, clock)
        assert set(ids_of(db)) == {*ids, "after"}, operation
        expected = expected or ids
    assert operation > 10


def test_recovering_twice_is_recovering_once() -> None:
    for seed in range(len(HONEST_PROFILES)):
        disk, clock, _ = crash_prone(seed)
        once = tasks_of(open_store(disk, clock))
        disk.kill()
        twice = tasks_of(open_store(disk, clock))
        disk.crash("none")
        thrice = tasks_of(open_store(disk, clock))
        assert once == twice == thrice


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_an_error_at_every_step_of_recovery_is_raised_and_harmless(number: int) -> None:
    names = ("open", "pwrite", "sync", "sync_data", "sync_directory", "rename")
    for name in names:
        nth, failed = 0, True
        while failed:
            nth += 1
            disk, clock, acknowledged = crash_prone(1)
            disk.fail(name, number, nth)
            try:
                open_store(disk, clock)
                failed = False
            except (OSError, wheeldb.WheelDBError):
                pass
            if failed:
                disk.heal()
                # Everything was closed: the lock is free and nothing is held.
                db = open_store(disk, clock)
                assert acknowledged <= set(ids_of(db)), (name, nth)
                assert db.check() == [], (name, nth)
            if nth > 60:
                break


# Snapshots and the log they replace.


def test_the_report_tells_the_snapshots_age(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    assert db.recovery.snapshot_age is None
    db.schedule("a", delay=1)
    db.snapshot()
    db.close()
    clock.advance(90)

    assert open_store(disk, clock).recovery.snapshot_age == 90.0


def test_the_log_goes_only_when_two_generations_are_whole(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    oldest = []
    for generation in range(4):
        for n in range(150):
            db.schedule("a", b"x" * 400, id=f"{generation}-{n}", delay=60)
        path = db.snapshot()
        oldest.append(segments_of(disk)[0])
        if generation == 1:
            flip(disk, str(path), 5_000)

    # At the third the older one is damaged, and all stays; at the fourth both are
    # whole, and what lies before the older one goes.
    assert oldest[0] < oldest[1] == oldest[2] < oldest[3]
    assert len(disk.list(f"{STORE}/snapshots")) == 2


def test_a_closed_store_does_not_gather_segments_for_ever(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    for n in range(150):
        db = open_store(disk, clock)
        db.schedule("a", id=f"id-{n}", delay=60)
        db.close()

    assert len(segments_of(disk)) < 140
    assert len(ids_of(open_store(disk, clock))) == 150


def test_vouch_is_plain_json_with_a_checksum(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.close()

    line, _, _ = read(disk, f"{STORE}/index/VOUCH").partition(b"\n")

    assert json.loads(line)["closed_lsn"] >= 1


def test_a_process_that_dies_young_again_and_again_leaves_few_segments() -> None:
    disk, clock = CrashableDisk(seed=1), ManualClock()
    disk.make_directory("store")
    for number in range(200):
        db = wheeldb.open("store", disk=disk, clock=clock, driver=False, reserve=False)
        db.schedule("a", number, delay=3600, id=f"id-{number}")
        db.poll()
        disk.kill()
    segments = [name for name in disk.dump() if name.endswith(".seg")]
    assert len(segments) < 140

    db = wheeldb.open("store", disk=disk, clock=clock, driver=False, reserve=False)
    assert db.statistics().pending_count == 200
    assert db.check() == []
    db.close()


# The last segment, which no other one names.


def begun_by(step: str, disk: CrashableDisk, clock: ManualClock) -> WheelDB:
    """Return a store whose last segment was begun by a step, with a task in it."""
    db = open_store(disk, clock)
    name = segments_of(disk)[-1]
    while segments_of(disk)[-1] == name:
        db.schedule("a", "x" * 8_000, delay=60)
    if step.startswith("opening"):
        if step.endswith("close"):
            db.close()
        else:
            disk.crash("none")
            clock.reboot(off=1)
        db = open_store(disk, clock)
    return db


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize(
    "step", ["opening after a cut", "opening after a close", "rotation"]
)
def test_a_log_without_its_last_segment_is_refused_again_and_again(
    disk: CrashableDisk, clock: ManualClock, step: str, is_indexed: bool
) -> None:
    db = begun_by(step, disk, clock)
    db.schedule("a", id="acknowledged", delay=60)
    db.poll()
    disk.crash("none")
    clock.reboot(off=1)
    disk.unlink(segments_of(disk)[-1])
    if not is_indexed:
        disk.indexes.clear()

    for readonly in (True, False, False):
        with pytest.raises(CorruptionError, match=r"last segment .* missing"):
            open_store(disk, clock, readonly=readonly)
        disk.kill()


def test_after_a_close_the_last_segment_is_known(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    begun_by("rotation", disk, clock).close()
    disk.indexes.clear()
    disk.unlink(segments_of(disk)[-1])

    with pytest.raises(CorruptionError, match=r"last segment .* missing"):
        open_store(disk, clock)


def test_a_replay_tells_that_the_last_segment_is_gone(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = begun_by("rotation", disk, clock)
    lsn = last_lsn(db)
    disk.crash("none")
    disk.unlink(segments_of(disk)[-1])

    with pytest.raises(CorruptionError, match=r"last segment .* missing"):
        wheeldb.replay(STORE, disk=disk)
    [dropped] = wheeldb.replay(STORE, disk=disk, salvage=True, to="/saved").dropped
    assert "last segment" in dropped
    # What lies before it is not concerned.
    assert wheeldb.replay(STORE, disk=disk, until=2).last_lsn < lsn


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_rotation_that_can_not_be_noted_goes_on(
    disk: CrashableDisk, clock: ManualClock, code: int
) -> None:
    db = open_store(disk, clock)
    disk.fail("open", code, forever=True, path="VOUCH")
    for number in range(40):
        db.schedule("a", "x" * 5_000, delay=60, id=f"id-{number}")
    assert len(segments_of(disk)) > 2
    disk.heal()
    disk.crash("none")
    clock.reboot(off=1)

    assert len(ids_of(open_store(disk, clock))) == 40


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_crash_at_every_operation_of_a_rotation(profile: str) -> None:
    operation, is_through = 0, False
    while not is_through:
        operation += 1
        disk, clock = CrashableDisk(operation), ManualClock()
        db = open_store(disk, clock)
        for number in range(6):
            db.schedule("a", "x" * 5_000, delay=60, id=f"id-{number}")
        before = len(segments_of(disk))

        def rotate(db: WheelDB = db) -> None:
            for number in range(8):
                db.schedule("b", "x" * 5_000, delay=60, id=f"more-{number}")

        is_through = run_until_cut(disk, operation, rotate)
        assert not is_through or len(segments_of(disk)) > before
        disk.crash(profile)
        clock.reboot(off=1)

        found = ids_of(open_store(disk, clock))

        assert len([name for name in found if name.startswith("id-")]) == 6
