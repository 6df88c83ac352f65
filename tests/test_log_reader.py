"""The reading end of the log.

Goal: damage is refused with its exact place, a torn tail never is, and nothing is ever
read wrong. Method: a small log is cut at every byte, zeroed from every byte and has its
bits flipped; each result is compared with what was written. The cases of the decision
table in `wheeldb.log.tail` follow one by one.

Zeroed and half-written tails are what etcd-io/etcd#6515, etcd-io/etcd#11488 and
peter-wangxu/persist-queue#56 report; skipping damage in the middle without a word is
google/leveldb#251.
"""

import errno
import os.path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_helpers import (
    ASIDE,
    DATABASE,
    LOG,
    Appender,
    last_segment,
    make_disk,
    open_log,
    rows,
    scan_log,
)

from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.frame import (
    HEADER_BYTES,
    Frame,
    FrameType,
    frame_bytes,
    lsn_bound,
    pack_frame,
)
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import list_segments, pack_segment_header
from wheeldb.testing.disk import CrashableDisk

PAYLOADS = [b"", b"a", b"zeros" + bytes(600) + b"inside", b"four" * 9, b"x" * 77]


def small_log(*, block_align: bool = False) -> tuple[CrashableDisk, Appender]:
    """Return a log of one segment: `opened`, then a synced frame for each payload."""
    disk = make_disk()
    log, _, _ = open_log(disk, block_align=block_align)
    for payload in PAYLOADS:
        log.append(payload)
    log.writer.cut()
    return disk, log


def content(disk: CrashableDisk) -> bytes:
    return disk.dump()[last_segment(disk)]


def replace(disk: CrashableDisk, data: bytes) -> None:
    disk.load({last_segment(disk): data})


def ends_of(frames: list[Frame]) -> list[int]:
    return [frame.end for frame in frames]


# A tail that was cut or zeroed.


@pytest.mark.parametrize("block_align", [False, True])
def test_cut_at_every_byte(block_align: bool) -> None:
    disk, log = small_log(block_align=block_align)
    frames, whole, _ = scan_log(disk)
    data = content(disk)
    sealed = whole.segment.header.sealed_bytes
    # Every length that ends in a frame, some in headers and gaps.
    in_frames = {n for f in frames for n in range(f.offset, f.end + 1)}
    for length in sorted(in_frames | set(range(0, len(data), 61))):
        replace(disk, data[:length])
        if length < sealed:
            with pytest.raises(CorruptionError):
                scan_log(disk)
            continue
        found, end, _ = scan_log(disk)
        assert found == [frame for frame in frames if frame.end <= length]
        assert end.offset == max(frame.end for frame in found)
        assert end.last_lsn == found[-1].header.last_lsn
        rest = data[end.torn_offset : length].rstrip(b"\0")
        assert end.torn_bytes == len(rest)
        assert (end.reason is None) == (not rest)
    assert rows(frames) == log.written


def test_zeros_from_every_byte() -> None:
    disk, _ = small_log()
    frames, whole, _ = scan_log(disk)
    data = content(disk)
    for start in range(whole.segment.header.sealed_bytes, whole.offset + 1):
        replace(disk, data[:start] + bytes(4096 + len(data) - start))
        found, end, _ = scan_log(disk)
        # The padding of a frame is zero anyway.
        assert found == [
            frame
            for frame in frames
            if frame.offset + HEADER_BYTES + frame.header.length <= start
            or data[start : frame.end].strip(b"\0") == b""
        ]
        assert end.torn_bytes == len(data[end.torn_offset : start].rstrip(b"\0"))


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 700, b"WHEELDB\x01" * 90, b"\1" + bytes(9)]
)
def test_garbage_behind_the_end_is_a_torn_tail(garbage: bytes) -> None:
    disk, _ = small_log()
    frames, whole, _ = scan_log(disk)
    replace(disk, content(disk)[: whole.offset] + garbage)
    found, end, _ = scan_log(disk)
    assert found == frames
    assert end.torn_offset == whole.offset
    assert end.torn_bytes == len(garbage.rstrip(b"\0"))
    assert end.reason is not None


# Bits that flipped.


def check_flip(
    disk: CrashableDisk, frames: list[Frame], data: bytes, byte: int, mask: int
) -> None:
    """Flip bits of one byte: the scan is exact, or refuses, or loses the last frame."""
    flipped = bytearray(data)
    flipped[byte] ^= mask
    replace(disk, bytes(flipped))
    last = frames[-1]
    refusal: CorruptionError | None = None
    try:
        found, end, _ = scan_log(disk)
    except CorruptionError as error:
        refusal = error
    if refusal is not None:
        assert byte < last.offset
        assert refusal.path == last_segment(disk)
        # The place named is that of the damaged frame, or the header's.
        hit = [f for f in frames if f.offset <= byte < f.end]
        assert refusal.offset == (hit[0].offset if hit else 0)
        return
    if found != frames:
        assert found == frames[:-1]
        assert last.offset <= byte < last.end
        assert end.torn_offset == last.offset
        assert end.torn_bytes > 0


@pytest.mark.parametrize("block_align", [False, True])
def test_a_flipped_bit_in_every_byte(block_align: bool) -> None:
    disk, _ = small_log(block_align=block_align)
    frames, whole, _ = scan_log(disk)
    data = content(disk)
    step = 37 if block_align else 1
    for byte in range(4000 if not block_align else 0, whole.offset, step):
        check_flip(disk, frames, data, byte, 1 << byte % 8)


@pytest.mark.slow
def test_every_flipped_bit() -> None:
    disk, _ = small_log()
    frames, whole, _ = scan_log(disk)
    data = content(disk)
    # The segment's header has a test of its own.
    for bit in range(4096 * 8, whole.offset * 8):
        check_flip(disk, frames, data, bit // 8, 1 << bit % 8)


@settings(max_examples=60)
@given(
    start=st.integers(0, 6000),
    garbage=st.binary(min_size=1, max_size=600),
)
def test_overwritten_anywhere(start: int, garbage: bytes) -> None:
    disk, _ = small_log()
    frames, _, _ = scan_log(disk)
    data = content(disk)
    start %= len(data)
    replace(disk, data[:start] + garbage + data[start + len(garbage) :])
    try:
        found, _, _ = scan_log(disk)
    except CorruptionError:
        return
    assert found == frames[: len(found)]
    assert len(found) >= len(frames) - 1 or start + len(garbage) > frames[-1].offset


# The decision table.


def test_damage_in_the_middle_names_file_offset_and_number() -> None:
    disk, _ = small_log()
    frames, _, _ = scan_log(disk)
    broken = frames[2]
    disk.corrupt(last_segment(disk), broken.offset + HEADER_BYTES, 0x10)
    with pytest.raises(CorruptionError, match="payload's checksum") as caught:
        scan_log(disk)
    assert caught.value.path == last_segment(disk)
    assert caught.value.offset == broken.offset
    assert caught.value.lsn == broken.header.first_lsn
    assert f"a frame at byte {frames[-1].offset} says" in caught.value.reason


def test_writes_that_landed_out_of_order_are_a_torn_tail() -> None:
    disk, log = small_log()
    for payload in (b"lost", b"landed", b"landed, too"):
        log.append(payload, kind=FrameType.UNSYNCED)
    frames, whole, _ = scan_log(disk)
    lost = frames[-3]
    data = content(disk)
    hole = bytes(lost.end - lost.offset)
    replace(disk, data[: lost.offset] + hole + data[lost.end :])
    found, end, _ = scan_log(disk)

    assert found == frames[:-3]
    assert end.torn_offset == lost.offset
    assert end.torn_bytes > frames[-1].offset - lost.offset
    # Numbers of the discarded frames may be known outside; their bounds are not lost.
    assert end.bound_highest == whole.bound_highest
    assert end.hlc_highest == whole.hlc_highest


def test_an_empty_watermark_closes_the_window() -> None:
    disk, log = small_log()
    frames, _, _ = scan_log(disk)
    log.append(b"", count=0, kind=FrameType.WATERMARK)
    assert scan_log(disk)[0] == frames
    assert scan_log(disk)[1].watermark == log.writer.last_lsn
    disk.corrupt(last_segment(disk), frames[-1].offset + 70, 1)
    with pytest.raises(CorruptionError) as caught:
        scan_log(disk)
    assert caught.value.offset == frames[-1].offset
    assert caught.value.lsn == frames[-1].header.first_lsn


def test_a_known_number_makes_a_missing_end_damage() -> None:
    disk, log = small_log()
    frames, _, _ = scan_log(disk)
    last = frames[-1]
    replace(disk, content(disk)[: last.offset])
    found, _, _ = scan_log(disk, proven_lsn=last.header.last_lsn - 1)
    assert found == frames[:-1]
    with pytest.raises(CorruptionError, match="LSN 6 is known") as caught:
        scan_log(disk, proven_lsn=log.writer.last_lsn)
    assert caught.value.offset == last.offset
    # A snapshot's number is known in the same way.
    with pytest.raises(CorruptionError, match="LSN 6 is known"):
        scan_log(disk, from_lsn=log.writer.last_lsn)


def test_bytes_behind_a_footer_are_a_torn_tail() -> None:
    disk, log = small_log()
    log.close()
    before = content(disk)
    replace(disk, before + bytes(100) + b"x")

    frames, end, _ = scan_log(disk)

    assert rows(frames) == log.written
    assert end.is_clean
    assert end.torn_offset + end.torn_bytes == len(before) + 101


def test_damage_in_front_of_a_footer_is_refused() -> None:
    disk, log = small_log()
    frames, _, _ = scan_log(disk)
    log.close()
    disk.corrupt(last_segment(disk), frames[-1].offset + 1, 0xFF)
    with pytest.raises(CorruptionError) as caught:
        scan_log(disk)
    assert caught.value.offset == frames[-1].offset


def test_a_damaged_footer_loses_only_the_footer() -> None:
    disk, log = small_log()
    log.close()
    _, end, _ = scan_log(disk)
    assert end.footer is not None
    disk.corrupt(last_segment(disk), end.footer.offset + 30, 1)
    frames, end, _ = scan_log(disk)
    assert rows(frames) == log.written
    assert not end.is_clean


def test_an_older_segment_may_not_end_early() -> None:
    disk, log = small_log()
    first = last_segment(disk)
    frames, whole, _ = scan_log(disk)
    log.rotate()
    log.append(b"next")
    data = disk.dump()[first]
    handle = disk.open(first)
    disk.pwrite(handle, bytes(8), frames[-1].offset)
    with pytest.raises(CorruptionError, match="not the last segment") as caught:
        scan_log(disk)
    assert caught.value.path == first
    assert caught.value.offset == frames[-1].offset
    disk.pwrite(handle, data, 0)
    disk.truncate(handle, whole.offset - 8)
    with pytest.raises(CorruptionError, match="its successor says") as caught:
        scan_log(disk)
    assert caught.value.path == first


def test_bytes_behind_a_named_end_are_ignored() -> None:
    disk, log = small_log()
    first = last_segment(disk)
    _, whole, _ = scan_log(disk)
    log.rotate()
    log.append(b"next")
    handle = disk.open(first)
    disk.pwrite(handle, b"\xff" * 5000, whole.offset)
    assert rows(scan_log(disk)[0]) == log.written


def test_a_hole_in_the_numbers_is_refused() -> None:
    disk, log = small_log()
    _, end, _ = scan_log(disk)
    frame = pack_frame(
        end.segment.header.salt,
        FrameType.SYNCED,
        b"too far",
        first_lsn=end.last_lsn + 2,
        count=1,
        previous_crc=log.writer.position.previous_crc,
        hlc=0,
        watermark=end.last_lsn,
        bound=lsn_bound(end.last_lsn + 2),
    )
    replace(disk, content(disk)[: end.offset] + frame)
    found, end, _ = scan_log(disk)
    assert rows(found) == log.written
    assert end.reason == "the frame's LSN is not the next one"


def test_a_valid_frame_that_follows_another_is_not_taken() -> None:
    disk, log = small_log()
    _, end, _ = scan_log(disk)
    frame = pack_frame(
        end.segment.header.salt,
        FrameType.SYNCED,
        b"stale",
        first_lsn=end.last_lsn + 1,
        count=1,
        previous_crc=log.writer.position.previous_crc ^ 1,
        hlc=0,
        watermark=end.last_lsn,
        bound=lsn_bound(end.last_lsn + 1),
    )
    replace(disk, content(disk)[: end.offset] + frame)
    found, end, _ = scan_log(disk)
    assert rows(found) == log.written
    assert end.reason == "the frame does not follow the one before it"


def test_stale_bytes_of_another_segment_are_a_torn_tail() -> None:
    disk, log = small_log()
    stale = content(disk)
    log.rotate()
    log.append(b"fresh")
    _, end, _ = scan_log(disk)
    replace(disk, content(disk)[: end.offset] + stale[4096:])
    frames, _, _ = scan_log(disk)
    assert rows(frames) == log.written


# Headers and files.


def test_no_segment_at_all() -> None:
    with pytest.raises(CorruptionError, match="no segment") as caught:
        scan_log(make_disk())
    assert caught.value.path == LOG


def three_segments() -> tuple[CrashableDisk, Appender]:
    disk, log = small_log()
    for index in range(2):
        log.rotate()
        log.append(bytes([index]) * 10)
    return disk, log


def segment_paths(disk: CrashableDisk) -> list[str]:
    return [os.path.join(LOG, name.file_name) for name in list_segments(disk, LOG)]


def test_a_missing_segment_in_the_middle() -> None:
    disk, _ = three_segments()
    paths = segment_paths(disk)
    disk.unlink(paths[1])
    with pytest.raises(CorruptionError, match="next segment is number 3") as caught:
        scan_log(disk)
    assert caught.value.path == paths[0]


def test_a_missing_segment_at_the_begin() -> None:
    disk, log = three_segments()
    disk.unlink(segment_paths(disk)[0])
    with pytest.raises(CorruptionError, match="older segments are missing") as caught:
        scan_log(disk, from_lsn=5)
    assert caught.value.lsn == 6
    frames, _, _ = scan_log(disk, from_lsn=6)
    assert rows(frames) == [row for row in log.written if row[0] > 6]


def test_a_missing_segment_at_the_end_needs_a_known_number() -> None:
    disk, log = three_segments()
    disk.unlink(segment_paths(disk)[2])
    assert rows(scan_log(disk)[0]) == log.written[:-1]
    with pytest.raises(CorruptionError, match="end of the log is missing"):
        scan_log(disk, proven_lsn=log.durable_lsn)


def test_a_renamed_segment() -> None:
    disk, _ = three_segments()
    path = segment_paths(disk)[2]
    disk.rename(path, os.path.join(LOG, "00000003-0000000000000099.seg"))
    with pytest.raises(CorruptionError, match=os.path.basename(path)):
        scan_log(disk)


def test_another_end_than_the_successor_names() -> None:
    disk, _ = three_segments()
    path = segment_paths(disk)[1]
    _, _, scan = scan_log(disk)
    header = scan.segments[1].header._replace(predecessor_crc=1)
    handle = disk.open(path)
    disk.pwrite(handle, pack_segment_header(header), 0)
    with pytest.raises(CorruptionError, match="does not end as 00000002-") as caught:
        scan_log(disk)
    assert caught.value.path == segment_paths(disk)[0]


def test_a_segment_of_another_database() -> None:
    disk, _ = small_log()
    with pytest.raises(FormatError, match="belongs to database 0001"):
        LogScan(disk, LOG, database=bytes(16))
    assert LogScan(disk, LOG, database=None).finish().last_lsn == 6
    assert LogScan(disk, LOG, database=DATABASE).finish().last_lsn == 6


def test_a_frame_of_a_newer_format(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = small_log()
    monkeypatch.setattr("wheeldb.log.frame.FRAME_FORMAT", 2)
    log.append(b"from the future")
    monkeypatch.undo()
    with pytest.raises(FormatError, match="another format"):
        scan_log(disk)


def test_a_medium_that_cannot_read() -> None:
    disk, _ = small_log()
    disk.fail("pread", errno.EIO, nth=2)
    with pytest.raises(CorruptionError, match="medium cannot read") as caught:
        scan_log(disk)
    assert caught.value.path == last_segment(disk)


def test_the_end_is_known_at_the_end() -> None:
    disk, _ = small_log()
    scan = LogScan(disk, LOG, database=None)
    with pytest.raises(RuntimeError, match="iterated to its end"):
        _ = scan.end
    assert scan.finish() is scan.end
    assert scan.finish() is scan.end


# What is read.


def test_only_what_is_wanted_is_read() -> None:
    disk, log = three_segments()
    disk.corrupt(segment_paths(disk)[0], 4096 + 100, 1)
    with pytest.raises(CorruptionError):
        scan_log(disk, from_lsn=5)
    frames, end, _ = scan_log(disk, from_lsn=6)
    assert rows(frames) == [row for row in log.written if row[0] > 6]
    assert end.bound_highest == lsn_bound(end.last_lsn)
    frames, _, _ = scan_log(disk, from_lsn=7)
    assert rows(frames) == [row for row in log.written if row[0] > 7]


def test_a_frame_that_covers_a_wanted_number_comes_whole() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.append(b"2, 3, 4", count=3)
    log.append(b"5, 6", count=2)
    assert rows(scan_log(disk, from_lsn=3)[0]) == [(2, b"2, 3, 4"), (5, b"5, 6")]
    assert rows(scan_log(disk, from_lsn=4)[0]) == [(5, b"5, 6")]
    assert rows(scan_log(disk, from_lsn=6)[0]) == []


def test_bounds_survive_a_rotation_without_frames() -> None:
    disk, log = small_log()
    log.rotate()
    _, end, _ = scan_log(disk, from_lsn=6)
    assert end.bound_highest == lsn_bound(6)
    assert end.hlc_highest == log.hlc
    assert end.last_lsn == end.watermark == 6


def test_frames_over_the_pieces_in_which_files_are_read() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    for size in (700_000, 348_000, 2**20, 2**20 - 64, 3 * 2**20 + 5, 1, 900_000, 0):
        log.append(bytes([size % 251]) * size)
    assert rows(scan_log(disk)[0]) == log.written


def test_a_later_frame_is_found_over_the_border_of_two_pieces() -> None:
    disk, log = small_log()
    _, end, _ = scan_log(disk)
    torn = end.offset
    log.append(b"gone")
    # The next frame's header lies across the border of the pieces of the search.
    filler = 2**20 - (log.writer.position.offset - torn) - frame_bytes(0) - 32
    log.append(b"f" * filler)
    log.append(b"watermark")
    disk.corrupt(last_segment(disk), torn, 1)
    broken = content(disk)
    header_offset = torn + 2**20 - 32
    assert broken[header_offset : header_offset + 8] == end.segment.header.salt
    # Only that one frame is left to tell.
    start = torn + 16
    replace(
        disk, broken[:start] + bytes(header_offset - start) + broken[header_offset:]
    )
    with pytest.raises(CorruptionError, match=f"a frame at byte {header_offset}"):
        scan_log(disk)


def test_a_log_that_grows_while_it_is_read() -> None:
    """A reader beside the owner sees a hole first and valid frames behind it next."""
    disk, log = small_log()
    _, end, _ = scan_log(disk)

    seen = 0
    pread = disk.pread

    def growing_pread(handle: int, size: int, offset: int) -> bytes:
        nonlocal seen
        data = pread(handle, size, offset)
        if offset + size > end.offset and offset >= 4096 and not seen:
            seen = 1
            log.append(b"one more")
            log.append(b"and another")
        return data

    disk.pread = growing_pread  # type: ignore[method-assign]
    frames, grown, _ = scan_log(disk)
    assert seen
    assert rows(frames) == log.written
    assert grown.last_lsn == log.writer.last_lsn


def test_aside_is_not_touched_by_reading() -> None:
    disk, _ = small_log()
    replace(disk, content(disk) + b"torn")
    before = disk.dump()
    scan_log(disk)
    assert disk.dump() == before
    assert disk.list(ASIDE) == []
