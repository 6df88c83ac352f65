"""Replay: to the end, to a point, into a new store, and past damage."""

import errno
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from log_helpers import SeededEntropy
from recovery_helpers import (
    HONEST_PROFILES,
    STORE,
    WALL,
    cut,
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
from wheeldb import Compacted, CorruptionError, FormatError, NewTask, WheelDB
from wheeldb.replay import ReplayReport, replay
from wheeldb.testing import CrashableDisk, ManualClock

NEW = "/new"


class ChoosingEntropy(SeededEntropy):
    """Chooses a given one of the numbers that a new store may begin with."""

    def __init__(self, choice: int) -> None:
        super().__init__(1)
        self._choice = choice.to_bytes(2, "big")

    def bytes(self, count: int, /) -> bytes:
        return self._choice if count == 2 else super().bytes(count)


@pytest.fixture
def disk() -> CrashableDisk:
    return CrashableDisk(7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def filled(
    disk: CrashableDisk, clock: ManualClock, *, archive: bool = False
) -> WheelDB:
    """Return a store with 300 tasks in about three segments, one event each."""
    db = open_store(disk, clock, archive=archive)
    for n in range(300):
        clock.advance(1)
        db.schedule("a", b"x" * 300, id=f"id-{n}", delay=3_600)
    return db


def salvaged(disk: CrashableDisk, clock: ManualClock) -> tuple[ReplayReport, WheelDB]:
    """Salvage into a new store, and open it."""
    report = replay(
        STORE, NEW, salvage=True, disk=disk, clock=clock, entropy=SeededEntropy(9)
    )
    db = open_store(disk, clock, NEW)
    assert db.check() == []
    assert report.to == NEW
    assert sum(report.tasks.values()) == db.statistics().pending_count
    return report, db


def test_it_only_reports(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    db.cancel("id-3")
    db.run_now("id-4")
    db.run_now("id-5")
    db.lease(limit=2)[0].reject("bad")
    before = disk.dump()

    report = replay(STORE, disk=disk, clock=clock)

    assert report == ReplayReport(
        segments=len(segments_of(disk)),
        events=report.events,
        last_lsn=db._engine.state.last_lsn,
        tasks={"scheduled": 297, "leased": 1, "dead": 1},
        torn_bytes=0,
        dropped=(),
        to=None,
    )
    assert report.events >= 306
    assert disk.dump() == before


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_a_new_store_equals_the_old_one(
    disk: CrashableDisk, clock: ManualClock, has_snapshots: bool
) -> None:
    db = filled(disk, clock)
    for n in range(3):
        if has_snapshots:
            db.snapshot()
        db.cancel(f"id-{n}")
    disk.indexes.clear()  # it plays no part

    report = replay(STORE, NEW, disk=disk, clock=clock, entropy=SeededEntropy(9))

    other = open_store(disk, clock, NEW)
    assert report.dropped == ()
    assert len(tasks_of(other)) == 297
    assert other.get("id-1") is not None, "finished ids are remembered"
    assert other.check() == []
    assert other.lease() == []
    assert other._engine.state.last_lsn >= 2**32
    assert (report.events < 300) == has_snapshots


def test_until_an_lsn(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    lsn = db.schedule("a", id="last wanted", delay=60).lsn
    db.cancel("id-0")
    db.schedule_many([NewTask("a", delay=1) for _ in range(5)])

    report = replay(STORE, NEW, lsn, disk=disk, clock=clock)

    ids = ids_of(open_store(disk, clock, NEW))
    assert report.last_lsn == lsn
    assert "last wanted" in ids
    assert "id-0" in ids
    # An event about five tasks is one: all of it or nothing.
    assert replay(STORE, until=lsn + 4, disk=disk, clock=clock).last_lsn == lsn + 1
    assert replay(STORE, until=lsn + 6, disk=disk, clock=clock).last_lsn == lsn + 6
    assert replay(STORE, until=0, disk=disk, clock=clock).events == 0


def test_until_an_instant(disk: CrashableDisk, clock: ManualClock) -> None:
    filled(disk, clock)

    report = replay(STORE, until=WALL + timedelta(seconds=100), disk=disk, clock=clock)

    assert report.tasks == {"scheduled": 100}


@pytest.mark.parametrize(
    ("until", "error"),
    [
        (-1, ValueError),
        (datetime(2026, 1, 1), ValueError),  # noqa: DTZ001
        ("yesterday", TypeError),
        (1.0, TypeError),
        (True, TypeError),
    ],
)
def test_until_is_judged(
    disk: CrashableDisk, clock: ManualClock, until: object, error: type[Exception]
) -> None:
    open_store(disk, clock)
    with pytest.raises(error, match="until"):
        replay(STORE, NEW, until=until, disk=disk, clock=clock)  # type: ignore[arg-type]
    assert disk.info(NEW) is None


@pytest.mark.parametrize("salvage", [False, True])
def test_an_earlier_state_numbers_on_from_above_what_came_after_it(
    disk: CrashableDisk, clock: ManualClock, salvage: bool
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="x", delay=0)
    until = db.durable_lsn
    db.close()
    copy = CrashableDisk()
    copy.make_directory("/elsewhere")  # another inode for the store's directory
    copy.load(disk.dump())
    db = open_store(copy, clock, entropy=ChoosingEntropy(4_000))
    fence = db.lease()[0].fence
    assert fence > 4_000 * 2**32
    db.close()

    replay(
        STORE,
        NEW,
        until,
        salvage,
        disk=copy,
        clock=clock,
        entropy=ChoosingEntropy(0),
    )

    assert open_store(copy, clock, NEW).lease()[0].fence > fence


def test_until_before_what_is_left(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    db.snapshot()
    db.schedule("a", delay=1)
    db.snapshot()
    assert "0000000000000001.seg" not in segments_of(disk)[0]

    with pytest.raises(Compacted):
        replay(STORE, until=50, disk=disk, clock=clock)


def test_with_an_archive_any_point_is_left(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock, archive=True)
    db.snapshot()
    db.schedule("a", delay=1)
    db.snapshot()
    assert disk.list(f"{STORE}/archive")

    assert replay(STORE, until=50, disk=disk, clock=clock).tasks == {"scheduled": 49}
    assert replay(STORE, disk=disk, clock=clock).tasks == {"scheduled": 301}


def test_a_torn_tail_is_counted(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    path = segments_of(disk)[-1]
    end = db._engine.committer.writer.position.offset
    disk.kill()
    write(disk, path, b"torn", end)

    for salvage in (False, True):
        report = replay(STORE, salvage=salvage, disk=disk, clock=clock)
        assert (report.torn_bytes, report.dropped) == (4, ())
        assert report.tasks == {"scheduled": 300}


def test_the_owner_may_take_snapshots_meanwhile(
    disk: CrashableDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = filled(disk, clock)
    db.snapshot()
    module = sys.modules["wheeldb.replay"]  # the package has a function of that name
    verify = module.verify_snapshot
    snapshots_to_take = [2]

    def slow(*arguments: Any, **options: Any) -> Any:
        info = verify(*arguments, **options)
        while snapshots_to_take[0]:
            snapshots_to_take[0] -= 1
            db.schedule_many([NewTask("more", delay=60) for _ in range(300)])
            db.snapshot()
        return info

    db.schedule_many([NewTask("more", delay=60) for _ in range(300)])
    db.snapshot()
    monkeypatch.setattr(module, "verify_snapshot", slow)
    report = replay(STORE, disk=disk, clock=clock)
    assert report.dropped == ()
    assert report.tasks == {"scheduled": 1200}


def test_refusals(disk: CrashableDisk, clock: ManualClock) -> None:
    filled(disk, clock)
    with pytest.raises(FileNotFoundError):
        replay("/nowhere", disk=disk, clock=clock)
    with pytest.raises(FileExistsError):
        replay(STORE, STORE, disk=disk, clock=clock)
    disk.make_directory("/empty")
    with pytest.raises(FormatError, match="not a wheeldb store"):
        replay("/empty", disk=disk, clock=clock)


# Salvage.


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_broken_frame_costs_its_own_events(
    disk: CrashableDisk, clock: ManualClock, segment: int
) -> None:
    filled(disk, clock)
    disk.kill()
    path = segments_of(disk)[segment]
    flip(disk, path, 4_500)
    before = disk.dump()
    with pytest.raises(CorruptionError) as caught:
        replay(STORE, NEW, disk=disk, clock=clock)
    assert disk.info(NEW) is None

    report, db = salvaged(disk, clock)

    error = caught.value
    (dropped,) = report.dropped
    assert dropped.startswith(f"{error.path}: bytes {error.offset}–")
    assert dropped.endswith(f"LSN {error.lsn} is lost")
    assert len(ids_of(db)) == 299
    assert {name: disk.dump()[name] for name in before} == before


def test_every_bit_is_saved_or_reported(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    for n in range(6):
        db.schedule("a", id=f"id-{n}", delay=60)
    disk.kill()
    path = segments_of(disk)[-1]
    end = db._engine.committer.writer.position.offset
    original = read(disk, path)
    for offset in range(0, end, 7):
        if 112 <= offset < 4_096:
            continue  # padding of the header
        flip(disk, path, offset)
        report = replay(STORE, salvage=True, disk=disk, clock=clock)
        saved = report.tasks.get("scheduled", 0)
        # The last frame may have been torn.
        assert saved == 6 or report.dropped or report.torn_bytes, offset
        assert saved >= 5, offset
        write(disk, path, original)


def test_a_missing_segment(disk: CrashableDisk, clock: ManualClock) -> None:
    filled(disk, clock)
    disk.kill()
    names = [path.rpartition("-")[2] for path in segments_of(disk)]
    first, behind = int(names[1][:16]), int(names[2][:16])
    disk.unlink(segments_of(disk)[1])
    with pytest.raises(CorruptionError, match="missing"):
        replay(STORE, disk=disk, clock=clock)

    report, db = salvaged(disk, clock)

    assert report.dropped == (
        f"segment 2 is missing; LSN {first}–{behind - 1} are lost",
    )
    assert len(ids_of(db)) == 300 - (behind - first)


def test_sectors_that_answer_eio(disk: CrashableDisk, clock: ManualClock) -> None:
    filled(disk, clock)
    disk.kill()
    path = segments_of(disk)[0]
    # The whole piece fails once, then one of its blocks.
    disk.fail("pread", errno.EIO, nth=2, path=path)
    disk.fail("pread", errno.EIO, nth=6, path=path)

    report, db = salvaged(disk, clock)

    assert any("the medium cannot read them" in text for text in report.dropped)
    assert any(f"{path}: bytes 12288–16384" in text for text in report.dropped)
    assert 280 <= len(ids_of(db)) < 300


@pytest.mark.parametrize("name", ["FORMAT", "VOUCH"])
def test_small_files_that_can_not_be_read_cost_nothing(
    disk: CrashableDisk, clock: ManualClock, name: str
) -> None:
    filled(disk, clock)
    disk.kill()
    path = f"{STORE}/FORMAT" if name == "FORMAT" else f"{STORE}/index/VOUCH"
    disk.fail("pread", errno.EIO, forever=True, path=path)

    report, db = salvaged(disk, clock)

    assert report.dropped == ()
    assert len(ids_of(db)) == 300
    if name == "FORMAT":
        with pytest.raises(CorruptionError, match="cannot read"):
            wheeldb.open(STORE, disk=disk, clock=clock, driver=False)
    else:
        wheeldb.open(STORE, disk=disk, clock=clock, driver=False).close()


def test_a_file_that_can_not_be_read_at_all(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    filled(disk, clock)
    disk.kill()
    path = segments_of(disk)[1]
    size = len(read(disk, path))
    disk.fail("pread", errno.EIO, forever=True, path=path)

    report, db = salvaged(disk, clock)

    texts = [text for text in report.dropped if path in text]
    assert f"{path}: bytes 0–{size}: the medium cannot read them" in texts[0]
    assert len(texts) == 3, "its bytes, its header, its frames"
    assert len({text.rpartition("; ")[2] for text in texts}) == 1
    assert 100 < len(ids_of(db)) < 200


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_lost_segment_header_costs_nothing(
    disk: CrashableDisk, clock: ManualClock, segment: int
) -> None:
    filled(disk, clock)
    disk.kill()
    path = segments_of(disk)[segment]
    write(disk, path, bytes(4_096))

    report, db = salvaged(disk, clock)

    assert len(ids_of(db)) == 300
    assert [text for text in report.dropped if "header" not in text] == []
    assert report.dropped[0].endswith("no event is lost by it")


def test_a_lost_end_is_reported(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    end = db._engine.committer.writer.position.offset
    for n in range(3):
        db.schedule("a", id=f"lost-{n}", delay=60)
    last_lsn = db._engine.state.last_lsn
    db.checkpoint()
    db.close()
    cut(disk, segments_of(disk)[-1], end)

    report, db = salvaged(disk, clock)

    assert len(ids_of(db)) == 300
    assert "the end of the log is missing; LSN 302–" in report.dropped[-1]
    assert report.last_lsn < last_lsn


def test_events_about_lost_tasks_are_dropped_and_told(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    offsets = []
    for n in range(4):
        offsets.append(db._engine.committer.writer.position.offset)
        db.schedule("a", id=f"id-{n}", delay=0)
    leases = db.lease(limit=4)
    db.ack_many([leases[1], leases[2]])
    leases[3].release(delay=5)
    disk.kill()
    numbers = [lease.task.number for lease in leases]
    flip(disk, segments_of(disk)[-1], offsets[1] + 70)

    report, db = salvaged(disk, clock)

    lost = numbers[1]
    assert f"LSN {lost} is lost" in report.dropped[-1] + report.dropped[0]
    about = [text for text in report.dropped if f"task {lost}, which" in text]
    assert len(about) == 2, report.dropped  # its lease and its ack
    # The rest of the same events counts.
    assert {(task.id, task.state) for task in db.tasks()} == {
        ("id-0", "due"),
        ("id-3", "scheduled"),
    }
    assert all(lease.may_have_run for lease in db.lease(limit=9))


def test_an_id_that_came_back_while_its_end_was_lost(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", 1, id="x", delay=60)
    offset = db._engine.committer.writer.position.offset
    db.cancel("x")
    db.schedule("a", 2, id="x", delay=60, if_exists="replace")
    disk.kill()
    flip(disk, segments_of(disk)[-1], offset + 66)

    report, db = salvaged(disk, clock)

    assert [(task.id, task.payload) for task in db.tasks()] == [("x", 2)]
    assert any("its end is lost" in text for text in report.dropped)


def test_a_damaged_newest_snapshot(disk: CrashableDisk, clock: ManualClock) -> None:
    db = filled(disk, clock)
    db.snapshot()
    db.schedule("a", id="between", delay=60)
    newest = str(db.snapshot())
    disk.kill()
    flip(disk, newest, 9_000)

    assert replay(STORE, disk=disk, clock=clock).tasks == {"scheduled": 301}
    report, db = salvaged(disk, clock)

    assert len(ids_of(db)) == 301
    assert report.dropped[0].startswith(f"{newest}: bytes from ")


def test_what_is_left_of_the_only_snapshots(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = filled(disk, clock)
    paths = [str(db.snapshot()) for _ in range(2)]
    db.schedule("a", id="behind", delay=60)
    disk.kill()
    assert "0000000000000001.seg" not in segments_of(disk)[0]
    for path in paths:
        flip(disk, path, len(read(disk, path)) - 200)
    with pytest.raises(CorruptionError):
        replay(STORE, disk=disk, clock=clock)

    report, db = salvaged(disk, clock)

    assert len(report.dropped) >= 2
    assert "behind" in ids_of(db)


@pytest.mark.parametrize("how", ["missing", "garbage", "blank"])
def test_without_a_format(disk: CrashableDisk, clock: ManualClock, how: str) -> None:
    database = filled(disk, clock)._engine.database
    disk.kill()
    if how == "missing":
        disk.unlink(f"{STORE}/FORMAT")
    elif how == "blank":
        cut(disk, f"{STORE}/FORMAT", 0)
    else:
        write(disk, f"{STORE}/FORMAT", b"\xfe" * 40)
        with pytest.raises(FormatError):
            replay(STORE, salvage=True, disk=disk, clock=clock)
        return

    report, db = salvaged(disk, clock)

    assert report.dropped == ()
    assert db._engine.database == database
    assert len(ids_of(db)) == 300


def test_a_repaired_tail_does_not_come_back(
    disk: CrashableDisk, clock: ManualClock
) -> None:
    db = open_store(disk, clock)
    db.schedule("a", id="kept", delay=60)
    end = db._engine.committer.writer.position.offset
    db.schedule("a", id="torn", delay=60)
    disk.kill()
    flip(disk, segments_of(disk)[-1], end + 70)
    open_store(disk, clock)
    disk.kill()

    report, db = salvaged(disk, clock)

    assert report.dropped == ()
    assert ids_of(db) == ["kept"]


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_crash_leaves_no_new_store_or_a_whole_one(profile: str) -> None:
    original, clock = CrashableDisk(), ManualClock()
    db = open_store(original, clock)
    for n in range(5):
        db.schedule("a", id=f"id-{n}", delay=60)
    original.kill()
    operation, is_made = 0, False
    while not is_made:
        operation += 1
        disk = original.clone(seed=operation)
        is_made = run_until_cut(
            disk, operation, partial(replay, STORE, NEW, disk=disk, clock=clock)
        )
        disk.crash(profile)
        if disk.info(NEW) is None:
            assert not is_made
            replay(STORE, NEW, disk=disk, clock=clock)
        assert len(ids_of(open_store(disk, clock, NEW))) == 5, operation
    assert operation > 15


def test_on_the_real_disk(tmp_path: Path, clock: ManualClock) -> None:
    with wheeldb.open(tmp_path / "s", clock=clock, driver=False) as db:
        db.schedule("a", id="x", at=datetime(2030, 1, 1, tzinfo=UTC))
        # The owner is at work meanwhile.
        report = replay(tmp_path / "s", tmp_path / "new", clock=clock)

    assert report.to == str(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "s"]
    with wheeldb.open(tmp_path / "new", clock=clock, driver=False) as db:
        assert ids_of(db) == ["x"]
        assert db.check() == []
