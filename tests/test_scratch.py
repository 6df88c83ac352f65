"""What is folded for a report lies on the disk, and goes again."""

import tracemalloc
from pathlib import Path

import pytest

import wheeldb
from wheeldb import NewTask
from wheeldb.disk import OsDisk
from wheeldb.index.changes import Changes
from wheeldb.scratch import clear_away, scratch_index, temporary_directory
from wheeldb.testing import CrashableDisk


def make_store(path: Path, count: int) -> None:
    with wheeldb.open(path, driver=False, durability="written", reserve=False) as db:
        for first in range(0, count, 5_000):
            numbers = range(first, min(first + 5_000, count))
            db.schedule_many([NewTask("a", n, delay=3_600 + n) for n in numbers])
            db.poll()


def test_it_is_there_for_the_block_alone(tmp_path: Path) -> None:
    with scratch_index(OsDisk(), str(tmp_path)) as index:
        index.apply(Changes(put_tasks=[(1, 1, b"body")]))
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []

    def fail() -> None:
        with scratch_index(OsDisk(), str(tmp_path)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_cleared_away_where_nothing_is(tmp_path: Path) -> None:
    clear_away(OsDisk(), str(tmp_path / "none"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "c").touch()
    clear_away(OsDisk(), str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_it_lies_where_the_system_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary_directory(OsDisk()) == str(tmp_path)
    for elsewhere in (str(tmp_path / "none"), ""):
        monkeypatch.setenv("TMPDIR", elsewhere)
        assert temporary_directory(OsDisk()) in {"/var/tmp", "/tmp"}
    assert temporary_directory(CrashableDisk()) == "/tmp"


@pytest.mark.parametrize("salvage", [False, True])
def test_a_report_writes_nothing_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salvage: bool
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "work"))
    make_store(tmp_path / "store", 30)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "store").rglob("*")}
    report = wheeldb.replay(tmp_path / "store", salvage=salvage)
    assert report.tasks == {"scheduled": 30}
    assert list((tmp_path / "work").iterdir()) == []
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "store").rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("salvage", [False, True])
def test_the_memory_for_a_report_does_not_grow_with_the_store(
    tmp_path: Path, salvage: bool
) -> None:
    peaks = []
    for count in (50_000, 150_000):
        make_store(tmp_path / str(count), count)
        tracemalloc.start()
        wheeldb.replay(tmp_path / str(count), salvage=salvage)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A salvage also has a segment in memory.
    segment_bytes = 16 * 2**20 if salvage else 0
    assert peaks[1] < peaks[0] * 1.2 + segment_bytes, peaks
