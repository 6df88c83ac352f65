"""Openings of the log.

Goal: whatever a power cut leaves, the next opening finds every acknowledged frame, adds
nothing, and gives a log that survives the next cut; a cut within the opening, and one
within the opening after that, change nothing of it. Method: the power is cut before
every operation of an opening, for every kind of crash, twice in a row; and whole lives
of a log are drawn and compared with their ledger.
"""

import errno
import os.path
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_helpers import (
    ASIDE,
    DATABASE,
    HONEST_PROFILES,
    LOG,
    OPENED,
    Appender,
    Row,
    last_segment,
    make_disk,
    open_log,
    options,
    rows,
    scan_log,
)

from wheeldb.disk import OsDisk
from wheeldb.errors import CorruptionError
from wheeldb.log.aside import ASIDE_FILES_MAX
from wheeldb.log.frame import FrameType, lsn_bound
from wheeldb.log.reader import LogScan
from wheeldb.log.repair import Opening, create, repair
from wheeldb.log.segment import LogSyncError, list_segments
from wheeldb.testing import CrashableDisk, PowerCut


def torn_log(seed: int = 0) -> tuple[CrashableDisk, list[Row]]:
    """Return a log with a proven and an unproven part and a torn tail; its rows."""
    disk = make_disk(seed)
    log, _, _ = open_log(disk)
    for index in range(3):
        log.append(bytes([index]) * 700)
    log.append(b"", count=0, kind=FrameType.WATERMARK)
    log.append(b"unproven", count=2, kind=FrameType.UNSYNCED)
    log.append(b"unsynced", kind=FrameType.UNSYNCED)
    found = list(log.written)
    handle = disk.open(last_segment(disk))
    disk.pwrite(handle, b"torn" * 300, log.writer.position.offset)
    disk.sync(handle)
    disk.kill()
    return disk, found


# What one opening does.


def test_a_torn_tail_is_left_behind() -> None:
    disk, written = torn_log()
    _, end_before, _ = scan_log(disk)
    torn = last_segment(disk)
    log, frames, repaired = open_log(disk, seed=1)

    assert repaired is not None
    assert rows(frames) == written
    assert end_before.watermark == 4
    assert not repaired.is_clean
    assert (repaired.torn_path, repaired.torn_offset) == (torn, end_before.offset)
    assert repaired.torn_bytes == 1200
    assert repaired.reason == "there is no frame of this segment"
    assert repaired.segments == 1
    assert repaired.sealed_frames == 2
    # The tail is kept, the old segment ends with its block, the new one goes on.
    assert repaired.aside == os.path.join(ASIDE, os.path.basename(torn) + ".torn")
    assert disk.dump()[repaired.aside] == b"torn" * 300
    info = disk.info(torn)
    assert info is not None
    assert info.size % 4096 == 0
    assert info.size < end_before.watermark_offset + 4096
    log.append(b"new")
    found, end, scan = scan_log(disk)
    assert rows(found) == [*written, *log.written]
    assert scan.segments[1].header.predecessor_bytes == end_before.watermark_offset
    assert end.torn_bytes == 0


def test_numbers_jump_over_what_may_have_been_handed_out() -> None:
    disk, _ = torn_log()
    _, end, _ = scan_log(disk)
    assert end.bound_highest == lsn_bound(end.last_lsn)
    log, _, _ = open_log(disk)
    assert log.writer.last_lsn == end.bound_highest
    frames, end, _ = scan_log(disk)
    assert frames[-1].header.is_opened
    assert frames[-1].header.watermark == 4
    assert end.watermark == end.last_lsn == log.writer.last_lsn


def test_a_clean_end_goes_on_with_the_next_number() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"one")
    log.append(b"two")
    written = log.written
    log.close()
    log, _, repaired = open_log(disk, seed=1)

    assert repaired is not None
    assert repaired.is_clean
    assert repaired.aside is None
    assert log.writer.last_lsn == 4
    # Whatever the old segment can't prove stands in the new one, the footer too.
    frames, end, scan = scan_log(disk)
    assert rows(frames) == written
    assert repaired.sealed_frames == 1
    assert not end.is_clean
    assert len(scan.segments) == 2


def test_a_power_cut_within_closing_costs_nothing() -> None:
    # The footer has arrived, and on flash what lay beside it in its block is damaged.
    disk = make_disk()
    log, _, _ = open_log(disk, block_align=True)
    log.append(b"one")
    log.append(b"two")
    disk.crash_at(3)
    with pytest.raises(PowerCut):
        log.close()
    assert disk.operations[-1].name == "pwrite"
    disk.crash("all")
    _, end, _ = scan_log(disk)
    assert end.is_clean
    disk.corrupt(last_segment(disk), end.offset + 100, 0x5A)

    check_opening(disk, log.written)


def test_openings_without_work_do_not_grow() -> None:
    disk = make_disk()
    for seed in range(6):
        log, _, _ = open_log(disk, seed=seed)
        log.close()
    _, _, scan = scan_log(disk)
    assert len(scan.segments) == 6
    assert {segment.file_bytes for segment in scan.segments} == {8192}


def test_an_opening_after_a_crash_right_after_an_opening() -> None:
    disk, written = torn_log()
    for seed in range(3):
        _, frames, repaired = open_log(disk, seed=seed + 1)
        assert rows(frames) == written
        assert repaired is not None
        # What the first opening has sealed is proven by the segment's name.
        assert repaired.sealed_frames == (2 if seed == 0 else 0)
        disk.crash("none")
    assert rows(scan_log(disk)[0]) == written


def test_what_a_failed_sync_forgot_is_written_again() -> None:
    """The kernel marks pages clean after an error, and the next sync succeeds."""
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"acknowledged")
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.append(b"unknown")
    disk.kill()
    # Let the reader see the page cache, as where dropping it has no effect.
    disk.drop_cache = lambda handle: None  # type: ignore[method-assign]
    _, frames, _ = open_log(disk, seed=1)
    assert rows(frames) == log.written
    disk.crash("none")
    assert rows(scan_log(disk)[0]) == log.written


def test_what_a_failed_sync_forgot_is_not_read_from_the_cache() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"acknowledged")
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.append(b"gone")
    disk.kill()
    _, frames, _ = open_log(disk, seed=1)
    assert rows(frames) == log.acknowledged


def test_a_hole_is_sealed_again_as_one() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    placed = log.writer.place(
        FrameType.SYNCED,
        b"from elsewhere",
        first_lsn=500,
        count=1,
        hlc=0,
        watermark=1,
        bound=lsn_bound(500),
        is_opened=True,
    )
    log.writer.write(placed)
    disk.kill()
    open_log(disk, seed=1)
    frames, _, _ = scan_log(disk)
    assert [frame.header.first_lsn for frame in frames[:2]] == [1, 500]
    assert frames[1].header.is_opened
    assert frames[1].segment == 2


def test_opening_on_a_full_disk_changes_nothing() -> None:
    disk, written = torn_log()
    before = disk.dump()
    disk.fail("pwrite", errno.ENOSPC, nth=2)
    with pytest.raises(OSError, match="No space"):
        open_log(disk)
    assert disk.dump() == before
    _, frames, _ = open_log(disk)
    assert rows(frames) == written


def test_no_room_for_the_torn_bytes_does_not_stop_an_opening() -> None:
    disk, written = torn_log()
    disk.fail("pwrite", errno.ENOSPC, nth=5)
    log, _, repaired = open_log(disk)
    assert repaired is not None
    assert repaired.aside is None
    assert disk.list(ASIDE) == []
    log.append(b"new")
    assert rows(scan_log(disk)[0]) == [*written, *log.written]


@pytest.mark.parametrize(
    ("nth", "error"),
    # The old segment, the new one, the copy of the torn bytes, the cut.
    [(1, LogSyncError), (2, LogSyncError), (3, OSError), (4, LogSyncError)],
)
def test_a_failed_sync_stops_an_opening(nth: int, error: type[OSError]) -> None:
    disk, written = torn_log()
    disk.fail("sync_data", errno.EIO, nth=nth)
    with pytest.raises(error, match="Input/output") as caught:
        open_log(disk)
    assert type(caught.value) is error
    _, frames, _ = open_log(disk, seed=1)
    assert rows(frames) == written


def test_a_few_torn_tails_are_kept() -> None:
    disk = make_disk()
    for index in range(ASIDE_FILES_MAX + 3):
        log, _, _ = open_log(disk, seed=index)
        log.append(b"x")
        handle = disk.open(last_segment(disk))
        disk.pwrite(handle, bytes([index + 1]) * 50, log.writer.position.offset)
        disk.sync(handle)
        disk.kill()
    open_log(disk, seed=99)
    kept = [disk.dump()[os.path.join(ASIDE, name)] for name in disk.list(ASIDE)]
    assert kept == [bytes([index]) * 50 for index in range(4, 8)]


def test_create_can_follow_a_number() -> None:
    disk = make_disk()
    opening = Opening(first_lsn=2**32, count=1, hlc=5, payload=b"restored")
    writer = create(
        disk,
        LOG,
        database=DATABASE,
        incarnation=2,
        opening=opening,
        options=options(),
        previous_lsn=700,
    )
    assert writer.last_lsn == 2**32
    disk.crash("none")
    frames, end, _ = scan_log(disk, from_lsn=700)
    assert [frame.payload for frame in frames] == [b"restored"]
    assert end.watermark == 2**32
    with pytest.raises(CorruptionError, match="older segments are missing"):
        scan_log(disk, from_lsn=699)


def test_a_number_that_was_taken_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="not above"):
        create(
            make_disk(),
            LOG,
            database=DATABASE,
            incarnation=1,
            opening=Opening(first_lsn=5, count=1, hlc=0, payload=b""),
            options=options(),
            previous_lsn=5,
        )


def test_on_a_real_disk(tmp_path: Path) -> None:
    disk = OsDisk()
    directory, aside = str(tmp_path / "log"), str(tmp_path / "aside")
    disk.make_directory(directory)
    chosen = options(segment_bytes=3 * 4096)
    opening = Opening(first_lsn=1, count=1, hlc=1, payload=OPENED)
    writer = create(
        disk,
        directory,
        database=DATABASE,
        incarnation=1,
        opening=opening,
        options=chosen,
    )
    log = Appender(disk, writer)
    for index in range(30):
        log.append(bytes([index]) * 1000)
    disk.pwrite(writer.fd, b"torn", writer.position.offset)
    writer.close()
    scan = LogScan(disk, directory, database=DATABASE, sync_first=True)
    assert rows(list(scan)) == log.written
    opening = Opening(first_lsn=scan.end.bound_highest, count=1, hlc=9, payload=OPENED)
    repaired = repair(disk, directory, aside, scan, opening=opening, options=chosen)
    assert repaired.torn_bytes == 4
    assert repaired.aside is not None
    assert Path(repaired.aside).read_bytes() == b"torn"
    assert repaired.writer.retire(20) != ()
    repaired.writer.close()
    scan = LogScan(disk, directory, database=DATABASE, from_lsn=20)
    assert rows(list(scan)) == [row for row in log.written if row[0] > 20]


# Power cuts within openings.


def cut_everywhere(
    start: Callable[[int], tuple[CrashableDisk, list[Row]]], profile: str, depth: int
) -> int:
    """Cut the power before every operation of an opening, and of the one after that.

    Returns how many operations the first opening has.
    """
    operation = 0
    opened = False
    while not opened:
        operation += 1
        disk, written = start(operation)
        opened = cut_one_opening(disk, operation, profile, seed=1)
        second = 0
        again = depth < 2
        while not again:
            second += 1
            twice = disk.clone()
            again = cut_one_opening(twice, second, profile, seed=2)
            check_opening(twice, written)
        check_opening(disk, written)
    return operation


def cut_one_opening(
    disk: CrashableDisk, operation: int, profile: str, *, seed: int
) -> bool:
    disk.crash_at(operation)
    try:
        open_log(disk, seed=seed)
    except PowerCut:
        disk.crash(profile)
        return False
    disk.crash(profile)
    return True


def check_opening(disk: CrashableDisk, written: list[Row]) -> None:
    """Open, write, lose power again: everything is there."""
    log, frames, _ = open_log(disk, seed=3)
    assert rows(frames) == written
    log.append(b"later")
    log.append(b"and later")
    expected = [*written, *log.written]
    disk.crash("none")
    log, frames, _ = open_log(disk, seed=4)
    assert rows(frames) == expected
    _, end, scan = scan_log(disk)
    assert end.torn_bytes == 0
    # Nothing is left over: each file is a segment that ends with its block.
    assert len(disk.list(LOG)) == len(scan.segments)
    for segment in scan.segments:
        if segment.successor is not None:
            assert segment.file_bytes < segment.successor.predecessor_bytes + 4096


@pytest.mark.parametrize("profile", ["none", "subset", "torn"])
def test_an_opening_cut_anywhere(profile: str) -> None:
    assert cut_everywhere(torn_log, profile, 1) > 10


@pytest.mark.slow
@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_an_opening_cut_anywhere_twice(profile: str) -> None:
    assert cut_everywhere(torn_log, profile, 2) > 10


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_creation_cut_anywhere(profile: str) -> None:
    def empty(seed: int) -> tuple[CrashableDisk, list[Row]]:
        return make_disk(seed), []

    assert cut_everywhere(empty, profile, 2) > 5


@pytest.mark.parametrize("profile", ["none", "subset", "torn"])
def test_a_clean_opening_cut_anywhere(profile: str) -> None:
    def closed(seed: int) -> tuple[CrashableDisk, list[Row]]:
        disk = make_disk(seed)
        log, _, _ = open_log(disk)
        log.append(b"one")
        log.append(b"two")
        log.close()
        disk.kill()
        return disk, log.written

    assert cut_everywhere(closed, profile, 1) > 5


# Whole lives of a log.

STEPS = st.one_of(
    st.tuples(st.just("synced"), st.integers(0, 3000)),
    st.tuples(st.just("unsynced"), st.integers(0, 3000)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("watermark"), st.just(0)),
    st.tuples(st.just("rotate"), st.just(0)),
    st.tuples(st.just("full"), st.integers(0, 3000)),
    st.tuples(st.just("cut"), st.integers(1, 12)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
)


class Life:
    """A log over many openings, with the ledger of what must and what may be there."""

    def __init__(self, profile: str, seed: int, *, block_align: bool) -> None:
        self.profile = profile
        self.disk = make_disk(seed)
        self.block_align = block_align
        self.openings = 0
        self.kept: list[Row] = []
        self.highest = 0
        self.log = self.reopen()

    def reopen(self) -> Appender:
        self.openings += 1
        log, frames, _ = open_log(
            self.disk,
            seed=self.openings,
            segment_bytes=3 * 4096,
            block_align=self.block_align,
        )
        self.kept = rows(frames)
        assert log.writer.last_lsn > self.highest, "a number was handed out twice"
        assert log.writer.check() == []
        return log

    def run(self, step: str, size: int) -> None:
        log = self.log
        payload = bytes([len(log.written) % 255 + 1]) * size
        if step == "synced":
            log.append(payload)
        elif step == "unsynced":
            log.append(payload, kind=FrameType.UNSYNCED)
        elif step == "watermark":
            log.append(b"", count=0, kind=FrameType.WATERMARK)
        elif step == "sync":
            log.sync()
        elif step == "rotate":
            log.rotate()
        elif step == "full":
            self.write_without_room(payload)
        elif step == "cut":
            self.disk.crash_at(size)
        elif step == "close":
            log.close()
            self.end(must=log.written)
        else:
            self.end(crash=step == "crash")

    def write_without_room(self, payload: bytes) -> None:
        writer = self.log.writer
        if writer.must_rotate(len(payload)):
            self.log.rotate()
        placed = writer.place(
            FrameType.SYNCED,
            payload,
            first_lsn=writer.last_lsn + 1,
            count=1,
            hlc=0,
            watermark=self.log.durable_lsn,
            bound=lsn_bound(writer.last_lsn + 1),
        )
        self.disk.fail("pwrite", "short")
        self.disk.fail("pwrite", errno.ENOSPC, nth=2)
        try:
            writer.write(placed)
        except OSError:
            writer.undo_write(placed)

    def end(self, *, crash: bool = False, must: list[Row] | None = None) -> None:
        """End the process or lose power, open again, compare with the ledger."""
        log = self.log
        before = self.kept
        if crash:
            self.disk.crash(self.profile)
            must = log.acknowledged
        else:
            self.disk.kill()
            # A killed process loses nothing that was written.
            must = log.written if must is None else must
        self.highest = max(self.highest, log.writer.last_lsn)
        self.log = self.reopen()
        assert self.kept[: len(before)] == before
        found = self.kept[len(before) :]
        assert found[: len(must)] == must
        assert found == log.written[: len(found)]


def live(
    profile: str, seed: int, steps: list[tuple[str, int]], *, block_align: bool
) -> None:
    life = Life(profile, seed, block_align=block_align)
    for step, size in steps:
        try:
            life.run(step, size)
        except PowerCut:
            life.disk.heal()
            life.end(crash=True)
    life.disk.heal()
    life.end(crash=True)


@settings(max_examples=100)
@given(
    profile=st.sampled_from(HONEST_PROFILES),
    seed=st.integers(0, 2**16),
    steps=st.lists(STEPS, max_size=25),
    block_align=st.booleans(),
)
@example(
    profile="none",
    seed=0,
    steps=[("synced", 5), ("unsynced", 5), ("crash", 0), ("synced", 5), ("crash", 0)],
    block_align=False,
)
def test_lives(
    profile: str, seed: int, steps: list[tuple[str, int]], block_align: bool
) -> None:
    live(profile, seed, steps, block_align=block_align)


@pytest.mark.slow
@settings(max_examples=3000)
@given(
    profile=st.sampled_from(HONEST_PROFILES),
    seed=st.integers(0, 2**16),
    steps=st.lists(STEPS, min_size=5, max_size=60),
    block_align=st.booleans(),
)
def test_long_lives(
    profile: str, seed: int, steps: list[tuple[str, int]], block_align: bool
) -> None:
    live(profile, seed, steps, block_align=block_align)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**16), steps=st.lists(STEPS, max_size=25))
def test_lives_on_media_that_damage_whole_blocks(
    seed: int, steps: list[tuple[str, int]]
) -> None:
    live("block", seed, steps, block_align=True)


def test_the_opened_payload_is_the_callers() -> None:
    disk = make_disk()
    open_log(disk)
    frames, _, _ = scan_log(disk)
    assert [frame.payload for frame in frames] == [OPENED]
    assert [name.number for name in list_segments(disk, LOG)] == [1]
