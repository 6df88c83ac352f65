"""The writing end of the log.

Goal: what lands is read back in order; every step can be interrupted anywhere and begun
again; a full disk costs nothing that was accepted. Method: frames written and read
through the real reader on a disk in memory, interrupts raised at every bytecode of the
writer, power cuts before every operation of a rotation and a removal.
"""

import errno
import os.path
import sys
from collections.abc import Callable
from types import FrameType as PythonFrame

import pytest
from log_helpers import (
    HONEST_PROFILES,
    LOG,
    STORE,
    Appender,
    last_segment,
    make_disk,
    open_log,
    rows,
    scan_log,
)

from wheeldb.disk import Data
from wheeldb.log.frame import Frame, FrameType, frame_bytes, lsn_bound
from wheeldb.log.segment import SEGMENT_HEADER_BYTES, LogSyncError, list_segments
from wheeldb.log.writer import LogWriter, Placed
from wheeldb.testing import CrashableDisk, PowerCut


class WatchedDisk(CrashableDisk):
    """Remembers the range of every write, and after which ones a sync came."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []
        self.syncs_at: list[int] = []
        for path in (STORE, LOG):
            self.make_directory(path)

    def pwrite(self, handle: int, data: Data, offset: int) -> int:
        self.writes.append((offset, offset + len(data)))
        return super().pwrite(handle, data, offset)

    def sync_data(self, handle: int) -> None:
        self.syncs_at.append(len(self.writes))
        super().sync_data(handle)


def place(writer: LogWriter, payload: bytes, **more: int) -> Placed:
    first_lsn = writer.last_lsn + 1
    return writer.place(
        FrameType.SYNCED,
        payload,
        first_lsn=first_lsn,
        count=1,
        hlc=9,
        watermark=more.get("watermark", 0),
        bound=lsn_bound(first_lsn),
    )


def test_frames_are_read_back_in_order() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    for index in range(50):
        log.append(b"x" * (index * 37), count=index % 3 + 1)
    frames, end, _ = scan_log(disk)

    assert rows(frames) == log.written
    assert end.last_lsn == log.writer.last_lsn
    assert end.watermark == frames[-2].header.last_lsn
    assert end.torn_bytes == 0
    assert log.writer.check() == []


def test_placing_changes_nothing_and_landing_twice_once() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    writer = log.writer
    before = writer.position
    placed = place(writer, b"one")
    again = place(writer, b"one")

    assert placed == again
    assert writer.position is before
    for _ in range(2):
        writer.write(placed)
        writer.landed(placed)
    assert writer.position is placed.after
    assert placed.last_lsn == writer.last_lsn == 2
    second = place(writer, b"two")
    writer.write(second)
    writer.landed(second)
    # An answer that comes late must not turn the cursor back.
    writer.landed(placed)
    assert writer.position is second.after
    assert rows(scan_log(disk)[0]) == [(2, b"one"), (3, b"two")]


def test_a_wrong_number_is_a_mistake_of_the_caller() -> None:
    log, _, _ = open_log(make_disk())
    with pytest.raises(AssertionError, match="LSN 5 does not follow 1"):
        log.writer.place(
            FrameType.SYNCED, b"", first_lsn=5, count=1, hlc=0, watermark=0, bound=9
        )


def test_a_taken_over_opened_frame_may_jump() -> None:
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
    log.writer.landed(placed)
    frames, end, _ = scan_log(disk)
    assert [frame.header.first_lsn for frame in frames] == [1, 500]
    assert end.last_lsn == 500


def test_zeros_are_written_ahead_once_in_a_while() -> None:
    disk = WatchedDisk()
    log, _, _ = open_log(disk, segment_bytes=3 * 2**20)
    log.append(b"a")
    assert disk.size(log.writer.fd) == 2**20
    log.append(b"b")
    assert disk.size(log.writer.fd) == 2**20
    log.append(bytes(2**20))
    assert disk.size(log.writer.fd) == 2 * 2**20
    assert rows(scan_log(disk)[0]) == log.written
    statistics = log.writer.statistics()
    assert statistics.bytes_written == sum(end - start for start, end in disk.writes)
    assert statistics.frames == 4


def test_rotation_keeps_chain_and_numbers() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, segment_bytes=3 * 4096)
    for index in range(40):
        log.append(bytes([index]) * 1000)
    frames, end, scan = scan_log(disk)

    assert len(scan.segments) > 4
    assert rows(frames) == log.written
    assert all(s.file_bytes <= 3 * 4096 for s in scan.segments)
    salts = {segment.header.salt for segment in scan.segments}
    assert len(salts) == len(scan.segments)
    # What was synced before the name was given needs no watermark.
    assert end.segment.header.sealed_lsn == end.segment.header.first_lsn - 1
    assert log.writer.statistics().rotations == len(scan.segments) - 1


def test_rotating_an_empty_segment_does_nothing() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"a")
    assert log.writer.rotate() == 2
    position = log.writer.position
    assert log.writer.rotate() == 2
    assert log.writer.position is position


def test_the_old_descriptor_outlives_one_rotation() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    first = log.writer.fd
    log.rotate()
    log.writer.sync_data(first)
    log.append(b"a")
    log.rotate()
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.writer.sync_data(first)
    log.append(b"b")
    assert rows(scan_log(disk)[0]) == log.written


def test_a_frame_larger_than_a_segment_gets_its_own() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, segment_bytes=3 * 4096)
    log.append(b"small")
    log.append(b"l" * 50_000)
    assert log.writer.must_rotate(1)
    log.append(b"small again")
    frames, _, scan = scan_log(disk)

    assert rows(frames) == log.written
    sizes = [s.file_bytes for s in scan.segments]
    assert sizes[1] >= SEGMENT_HEADER_BYTES + frame_bytes(50_000)
    assert len(sizes) == 3


def test_a_block_with_acknowledged_bytes_is_never_written_again() -> None:
    disk = WatchedDisk()
    log, _, _ = open_log(disk, block_align=True)
    disk.writes.clear()
    disk.syncs_at.clear()
    for index in range(20):
        log.append(b"u" * 50, kind=FrameType.UNSYNCED)
        log.append(b"u" * 50, kind=FrameType.UNSYNCED)
        log.append(b"s" * (index * 300), kind=FrameType.SYNCED)
        log.append(b"", count=0, kind=FrameType.WATERMARK)
    acknowledged = 0
    for index, (start, end) in enumerate(disk.writes):
        if index in disk.syncs_at:
            acknowledged = max(e for _, e in disk.writes[:index] if e < 2**20)
        # The zeros ahead begin in the block of the frame that they came with.
        if end != 2**20:
            assert start // 4096 > (acknowledged - 1) // 4096
    assert rows(scan_log(disk)[0]) == log.written
    # Two unsynced frames in a row share a block, nothing else does.
    assert log.writer.position.offset < 20 * 4 * 4096 + 20 * 20 * 300


def test_an_unsynced_frame_leaves_the_block_that_a_sync_has_reached() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, block_align=True)
    log.append(b"one", kind=FrameType.UNSYNCED)
    log.sync()
    end = log.writer.position.offset
    log.append(b"two", kind=FrameType.UNSYNCED)
    frames, _, _ = scan_log(disk)
    assert rows(frames) == log.written
    assert log.writer.position.offset > end + -end % 4096


def test_frames_without_alignment_follow_at_once() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, block_align=True)
    log.append(b"padded")
    end = log.writer.position.offset
    log.append(b"not padded", align=False)
    assert log.writer.position.offset == end + frame_bytes(10)
    log.append(b"padded")
    assert rows(scan_log(disk)[0]) == log.written


def full_disk(log: Appender, disk: CrashableDisk) -> None:
    """Let the next write be cut short and then find no room."""
    disk.fail("pwrite", "short")
    disk.fail("pwrite", errno.ENOSPC, nth=2)


@pytest.mark.parametrize("block_align", [False, True])
@pytest.mark.parametrize("length", [10, 5000, 2 * 2**20])
def test_a_write_without_room_is_rolled_back(length: int, block_align: bool) -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, block_align=block_align)
    log.append(b"before")
    placed = place(log.writer, b"\xee" * length, watermark=log.durable_lsn)
    full_disk(log, disk)
    with pytest.raises(OSError, match="No space"):
        log.writer.write(placed)

    assert log.writer.undo_write(placed)
    assert log.writer.undo_write(placed)
    _, end, _ = scan_log(disk)
    assert end.torn_bytes == 0
    log.append(b"after")
    assert rows(scan_log(disk)[0]) == log.written


def test_what_cannot_be_undone_is_overwritten_later() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"before")
    placed = place(log.writer, b"\xee" * 3000)
    full_disk(log, disk)
    with pytest.raises(OSError, match="No space"):
        log.writer.write(placed)
    disk.fail("pwrite", errno.EIO)
    assert not log.writer.undo_write(placed)
    log.append(b"after")
    frames, end, _ = scan_log(disk)
    assert rows(frames) == log.written
    assert end.torn_bytes > 0


def test_taking_back_never_cuts_inside_a_block() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk, segment_bytes=4200)
    log.append(b"before")
    end = log.writer.position.offset
    assert end % 4096 != 0
    placed = place(log.writer, b"\xee" * 9000, watermark=log.durable_lsn)
    full_disk(log, disk)
    with pytest.raises(OSError, match="No space"):
        log.writer.write(placed)
    assert log.writer.undo_write(placed)
    assert disk.size(log.writer.fd) == 8192
    assert disk.dump()[last_segment(disk)][end:] == bytes(8192 - end)


def test_zeros_ahead_need_no_room() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    disk.fail("pwrite", errno.ENOSPC, nth=2)
    log.append(b"a")
    log.append(b"b")
    assert rows(scan_log(disk)[0]) == log.written


def test_another_error_of_a_write_is_raised() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    disk.fail("pwrite", errno.EIO, nth=2)
    with pytest.raises(OSError, match="Input/output"):
        log.append(b"a")


def test_a_rotation_without_room_leaves_the_old_segment() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"before")
    disk.fail("pwrite", errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as caught:
        log.rotate()
    assert not isinstance(caught.value, LogSyncError)
    log.append(b"in the old one")
    log.rotate()
    log.append(b"in the new one")
    frames, _, scan = scan_log(disk)
    assert rows(frames) == log.written
    assert len(scan.segments) == 2


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_sync_of_a_rotation_is_told_apart(call: str, nth: int) -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"before")
    disk.fail(call, errno.EIO, nth=nth)
    if (call, nth) == ("sync_directory", 2):
        log.rotate()
        return
    with pytest.raises(LogSyncError):
        log.rotate()


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_rotation_survives_a_cut_before_each_operation(profile: str) -> None:
    operation = 1
    rotated = False
    while not rotated:
        for seed in range(3):
            disk = make_disk(seed)
            log, _, _ = open_log(disk)
            log.append(b"acknowledged")
            log.append(b"unsynced", kind=FrameType.UNSYNCED)
            disk.crash_at(operation)
            try:
                log.rotate()
                rotated = True
            except PowerCut:
                pass
            disk.crash(profile)
            found = rows(scan_log(disk, sync_first=True)[0])
            assert log.acknowledged == found[: len(log.acknowledged)]
            assert found == log.written[: len(found)]
            again, _, _ = open_log(disk, seed=seed + 1)
            again.append(b"later")
            disk.crash("none")
            final = rows(scan_log(disk)[0])
            assert final == [*found, *again.written]
        operation += 1
    assert operation > 6


def segments_and_first(log: Appender) -> list[int]:
    return [name.number for name in list_segments(log.disk, LOG)]


def filled(disk: CrashableDisk) -> Appender:
    """Return a log of five segments with two frames each: LSNs 1–2, 3–4, …"""
    log, _, _ = open_log(disk)
    log.append(b"1")
    for index in range(4):
        log.rotate()
        log.append(bytes([index]))
        log.append(bytes([index]))
    return log


@pytest.mark.parametrize(
    ("before_lsn", "gone"),
    [(0, ()), (2, ()), (3, (1,)), (4, (1,)), (7, (1, 2, 3)), (10**6, (1, 2, 3, 4))],
)
def test_only_segments_below_are_retired(
    before_lsn: int, gone: tuple[int, ...]
) -> None:
    disk = make_disk()
    log = filled(disk)
    assert log.writer.retire(before_lsn) == gone
    assert segments_and_first(log) == [n for n in range(1, 6) if n not in gone]
    disk.crash("none")
    assert [name.number for name in list_segments(disk, LOG)] == [
        n for n in range(1, 6) if n not in gone
    ]
    frames, _, _ = scan_log(disk, from_lsn=2 * len(gone))
    assert rows(frames) == [row for row in log.written if row[0] > 2 * len(gone)]


def test_retired_segments_go_to_the_archive() -> None:
    disk = make_disk()
    log = filled(disk)
    archive = os.path.join(STORE, "archive")
    disk.make_directory(archive)
    disk.sync_directory(STORE)
    assert log.writer.retire(5, archive=archive) == (1, 2)
    disk.crash("none")
    kept = [name.number for name in list_segments(disk, archive)]
    assert kept == [1, 2]
    assert [name.number for name in list_segments(disk, LOG)] == [3, 4, 5]


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_a_cut_while_retiring_leaves_no_hole(profile: str) -> None:
    operation = 1
    done = False
    while not done:
        disk = make_disk(operation)
        log = filled(disk)
        disk.crash_at(operation)
        try:
            log.writer.retire(7)
            done = True
        except PowerCut:
            pass
        disk.crash(profile)
        frames, _, _ = scan_log(disk, from_lsn=6)
        assert rows(frames) == [row for row in log.written if row[0] > 6]
        operation += 1


def interrupt_at(opcode: int, call: Callable[[], object]) -> bool:
    """Run a call with a KeyboardInterrupt before the n-th bytecode of the writer.

    Returns whether the call came to its end before that.
    """
    left = opcode

    def trace(frame: PythonFrame, event: str, argument: object) -> object:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("log/writer.py", "log/segment.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return True


def test_a_commit_is_taken_up_after_an_interrupt_anywhere() -> None:
    opcode = 0
    finished = False
    while not finished:
        opcode += 1
        disk = make_disk()
        log, _, _ = open_log(disk)
        writer = log.writer
        placed = place(writer, b"one", watermark=1)

        def commit(writer: LogWriter = writer, placed: Placed = placed) -> None:
            writer.write(placed)
            writer.landed(placed)

        finished = interrupt_at(opcode, commit)
        commit()
        log.append(b"two")
        assert rows(scan_log(disk)[0]) == [(2, b"one"), (3, b"two")], opcode
    assert opcode > 30


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), pytest.param(13)]
)
def test_a_rotation_is_taken_up_after_an_interrupt_anywhere(step: int) -> None:
    opcode = 1
    finished = False
    while not finished:
        disk = make_disk()
        log, _, _ = open_log(disk)
        log.append(b"one")
        finished = interrupt_at(opcode, log.writer.rotate)
        log.rotate()
        log.append(b"two")
        disk.crash("none")
        frames, _, scan = scan_log(disk)
        assert rows(frames) == [(2, b"one"), (3, b"two")], opcode
        assert len(scan.segments) == 2, opcode
        opcode += step
    assert opcode > 100


def test_check_sees_a_file_that_was_cut() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"one")
    end = log.writer.position.offset
    handle = disk.open(last_segment(disk))
    disk.truncate(handle, end - 1)
    assert log.writer.check() == [
        f"{last_segment(disk)} has {end - 1} bytes, but its frames end at {end}"
    ]


def test_check_sees_a_frame_behind_the_end() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.writer.write(place(log.writer, b"not landed"))
    assert len(log.writer.check()) == 1


def test_closing_cuts_the_zeros() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"one")
    log.close()
    info = disk.info(last_segment(disk))
    assert info is not None
    assert info.size == 2 * 4096
    frames, end, _ = scan_log(disk)
    assert rows(frames) == log.written
    assert isinstance(end.footer, Frame)
    assert end.footer.payload == b"closed"
