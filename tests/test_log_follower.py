"""Reading a log on as it grows.

Goal: each durable frame is given once, over any number of looks and segments; a look
costs what has come since; what is missing or damaged is said. Method: looks between
the appends of a small log; a disk that counts what is read of it.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_helpers import (
    DATABASE,
    LOG,
    Appender,
    last_segment,
    make_disk,
    open_log,
    rows,
)

from wheeldb.errors import Compacted, CorruptionError, FormatError
from wheeldb.log.follower import LogFollower
from wheeldb.log.frame import HEADER_BYTES, FrameType
from wheeldb.log.segment import list_segments
from wheeldb.testing.disk import CrashableDisk


def begin(segment_bytes: int = 2**16) -> tuple[CrashableDisk, Appender]:
    disk = make_disk()
    log, _, _ = open_log(disk, segment_bytes=segment_bytes)
    return disk, log


def follow(disk: CrashableDisk, from_lsn: int = 0) -> LogFollower:
    return LogFollower(disk, LOG, database=DATABASE, from_lsn=from_lsn)


STEPS = st.lists(
    st.sampled_from(["synced", "unsynced", "large", "empty", "rotate", "look"]),
    max_size=30,
)


@given(STEPS, st.integers(0, 10))
def test_each_durable_frame_is_given_once(steps: list[str], from_lsn: int) -> None:
    disk, log = begin()
    follower = follow(disk, from_lsn)
    seen = []
    for number, step in enumerate([*steps, "look"]):
        payload = b"%d" % number
        if step == "synced":
            log.append(payload)
        elif step == "unsynced":
            log.append(payload, kind=FrameType.UNSYNCED)
        elif step == "large":
            log.append(payload * 20_000)
        elif step == "empty":
            log.append(b"", count=0)
        elif step == "rotate":
            log.rotate()
        else:
            seen += rows(list(follower.frames(log.durable_lsn)))
    assert seen == [row for row in log.acknowledged if row[0] > from_lsn]


def test_a_look_reads_what_has_come_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, log = begin(segment_bytes=16 * 2**20)
    for _ in range(40):
        log.append(bytes(100_000))
    follower = follow(disk)
    assert len(list(follower.frames(log.durable_lsn))) == 41
    log.append(b"one more")
    lengths, read = [], disk.pread

    def counted(handle: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return read(handle, length, offset)

    monkeypatch.setattr(disk, "pread", counted)
    assert len(list(follower.frames(log.durable_lsn))) == 1
    assert sum(lengths) <= 2**16


def test_it_begins_in_the_segment_that_it_needs() -> None:
    disk, log = begin()
    for number in range(30):
        log.append(b"%d" % number * 5_000)
    names = list_segments(disk, LOG)
    assert len(names) > 3
    disk.unlink(f"{LOG}/{names[0].file_name}")
    assert follow(disk).is_cut
    assert follow(disk).oldest_lsn == names[1].first_lsn
    for from_lsn in range(names[1].first_lsn - 1, log.durable_lsn):
        follower = follow(disk, from_lsn)
        assert not follower.is_cut
        first = next(follower.frames(log.durable_lsn))
        assert first.header.first_lsn == from_lsn + 1


def test_numbers_left_out_by_an_opening_are_not_missing() -> None:
    disk, log = begin()
    log.append(b"before")
    seen_lsn = log.durable_lsn
    disk.kill()
    log, _, _ = open_log(disk)
    before, *_ = list_segments(disk, LOG)
    assert log.durable_lsn > seen_lsn + 1
    disk.unlink(f"{LOG}/{before.file_name}")
    follower = follow(disk, seen_lsn)
    assert not follower.is_cut
    assert len(list(follower.frames(log.durable_lsn))) == 1


def test_what_is_retired_in_front_of_it_is_compacted() -> None:
    disk, log = begin()
    follower = follow(disk)
    assert len(list(follower.frames(log.durable_lsn))) == 1
    for number in range(30):
        log.append(b"%d" % number * 5_000)
    names = list_segments(disk, LOG)
    for name in names[:-1]:
        disk.unlink(f"{LOG}/{name.file_name}")
    with pytest.raises(Compacted) as caught:
        list(follower.frames(log.durable_lsn))
    assert caught.value.oldest_lsn == names[-1].first_lsn


@pytest.mark.parametrize("ends_empty", [False, True])
def test_what_is_retired_behind_it_was_read(ends_empty: bool) -> None:
    disk, log = begin()
    log.append(b"last of the segment")
    follower = follow(disk)
    assert len(list(follower.frames(log.durable_lsn))) == 2
    if ends_empty:
        log.append(b"", count=0)
    log.rotate()
    log.append(b"first of the next one")
    before, _ = list_segments(disk, LOG)
    disk.unlink(f"{LOG}/{before.file_name}")
    assert len(list(follower.frames(log.durable_lsn))) == 1
    log.append(b"and so on")
    assert len(list(follower.frames(log.durable_lsn))) == 1


@pytest.mark.parametrize("is_followed", [False, True])
def test_damage_is_refused_with_its_place(is_followed: bool) -> None:
    disk, log = begin()
    end = log.writer.position.offset
    log.append(b"durable")
    path = last_segment(disk)
    # Not the padding behind it.
    for offset in range(end, end + HEADER_BYTES + len(b"durable")):
        again = disk.clone()
        follower = follow(again)
        if is_followed:
            assert len(list(follower.frames(1))) == 1
        handle = again.open(path)
        (byte,) = again.pread(handle, 1, offset)
        again.pwrite(handle, bytes([byte ^ 1]), offset)
        with pytest.raises((CorruptionError, FormatError)) as caught:
            list(follower.frames(log.durable_lsn))
        if isinstance(caught.value, CorruptionError):
            assert (caught.value.path, caught.value.offset) == (path, end)


def test_an_end_that_is_missing_is_damage() -> None:
    disk, log = begin()
    log.append(b"durable")
    with pytest.raises(CorruptionError, match="durable"):
        list(follow(disk).frames(log.durable_lsn + 1))


def test_no_log_is_damage() -> None:
    with pytest.raises(CorruptionError, match="no segment"):
        follow(make_disk())


def test_a_segment_ends_where_the_next_one_says() -> None:
    disk, log = begin()
    log.append(b"first")
    path = last_segment(disk)
    log.rotate()
    log.append(b"second")
    handle = disk.open(path)
    disk.truncate(handle, disk.size(handle) - 4_096)
    with pytest.raises(CorruptionError) as caught:
        list(follow(disk).frames(log.durable_lsn))
    assert caught.value.path == path
