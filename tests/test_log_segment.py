"""Segment files: names, headers, creation.

Goal: a segment's name always stands for a whole header, and a damaged or foreign header
is refused with its place. Method: every bit of a header flipped, and the power cut
before every operation of a creation.
"""

import errno
import os.path

import pytest
from log_helpers import DATABASE, HONEST_PROFILES, LOG, SeededEntropy, make_disk

from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    LogSyncError,
    SegmentHeader,
    SegmentName,
    block_end,
    build_segment,
    list_segments,
    new_salt,
    pack_segment_header,
    parse_segment_header,
)
from wheeldb.testing import CrashableDisk, PowerCut

HEADER = SegmentHeader(
    incarnation=3,
    database=DATABASE,
    number=12,
    salt=b"saltsalt",
    first_lsn=5001,
    predecessor_last_lsn=5000,
    predecessor_bytes=8192,
    sealed_lsn=5002,
    sealed_bytes=4296,
    bound=2**21,
    hlc=77,
    predecessor_crc=123456,
)
FRAMES = [b"first---" * 20, b"second--" * 5]
NAME = "00000012-0000000000005001.seg"


def test_another_spelling_of_a_name_is_passed_over() -> None:
    disk = make_disk()
    for name in (NAME, "0000000012-0000000000005001.seg", "0012-1.seg", "note.txt"):
        disk.close(disk.open(f"{LOG}/{name}", create=True))
    assert list_segments(disk, LOG) == [SegmentName(12, 5001)]


def test_header_round_trip() -> None:
    block = pack_segment_header(HEADER)
    assert len(block) == SEGMENT_HEADER_BYTES
    assert parse_segment_header(block, path="x") == HEADER
    assert HEADER.name.file_name == NAME


def test_every_flipped_bit_of_a_header_is_refused() -> None:
    block = pack_segment_header(HEADER)
    for bit in range(len(block) * 8):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as caught:
            parse_segment_header(bytes(flipped), path="log/x.seg")
        assert caught.value.path == "log/x.seg"
        assert caught.value.offset == 0


def test_a_short_header_is_refused() -> None:
    block = pack_segment_header(HEADER)
    for length in (0, 8, 111, 112, 4095):
        with pytest.raises(CorruptionError, match=f"{length} bytes of 4096"):
            parse_segment_header(block[:length], path="x")


def test_another_kind_of_file_is_refused() -> None:
    block = pack_segment_header(HEADER, magic=b"WHEELSNP")
    assert parse_segment_header(block, path="x", magic=b"WHEELSNP") == HEADER
    with pytest.raises(CorruptionError, match="WHEELSNP"):
        parse_segment_header(block, path="x")


def test_a_newer_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheeldb.log.segment.SEGMENT_FORMAT", 2)
    block = pack_segment_header(HEADER)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="log format 2"):
        parse_segment_header(block, path="x")


def test_other_files_are_passed_over() -> None:
    disk = make_disk()
    names = [
        "00000002-0000000000000009.seg",
        "00000010-0000000000000100.seg",
        "123456789-0000000000000200.seg",
        "next.tmp",
        "reserve",
        "00000002-0000000000000009.seg.torn",
        "2-9.seg",
    ]
    for name in names:
        disk.close(disk.open(os.path.join(LOG, name), create=True))
    assert list_segments(disk, LOG) == [
        SegmentName(2, 9),
        SegmentName(10, 100),
        SegmentName(123456789, 200),
    ]


def test_salts_are_never_zeros() -> None:
    class Zeros:
        def bytes(self, count: int) -> bytes:
            return b"\0" * count

    assert any(new_salt(Zeros()))
    assert new_salt(SeededEntropy(1)) != new_salt(SeededEntropy(2))


def test_block_end() -> None:
    assert [block_end(n) for n in (0, 1, 4095, 4096, 4097)] == [
        0,
        4096,
        4096,
        4096,
        8192,
    ]


def read_whole(disk: CrashableDisk) -> bytes:
    handle = disk.open(os.path.join(LOG, NAME), readonly=True)
    data = disk.pread(handle, 2**20, 0)
    disk.close(handle)
    return data


def test_a_segment_is_built_over_what_a_crash_left() -> None:
    disk = make_disk()
    left = disk.open(os.path.join(LOG, "next.tmp"), create=True)
    disk.pwrite(left, b"\xff" * 20_000, 0)
    fd, header = build_segment(disk, LOG, HEADER, FRAMES)

    frames = b"".join(FRAMES)
    assert header == HEADER._replace(sealed_bytes=4096 + len(frames))
    assert read_whole(disk) == pack_segment_header(header) + frames
    assert disk.size(fd) == header.sealed_bytes
    assert disk.list(LOG) == [NAME]


@pytest.mark.parametrize("profile", HONEST_PROFILES)
def test_creation_is_whole_or_not_at_all(profile: str) -> None:
    whole = pack_segment_header(HEADER._replace(sealed_bytes=4296)) + b"".join(FRAMES)
    operation = 1
    built = False
    while not built:
        for seed in range(4):
            disk = make_disk(seed)
            disk.crash_at(operation)
            try:
                build_segment(disk, LOG, HEADER, FRAMES)
                built = True
            except PowerCut:
                pass
            disk.crash(profile)
            if built or NAME in disk.list(LOG):
                assert read_whole(disk) == whole, f"cut before operation {operation}"
        operation += 1
    assert operation > 6


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_a_failed_sync_is_told_apart(call: str) -> None:
    disk = make_disk()
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(LogSyncError, match="reopen the store") as caught:
        build_segment(disk, LOG, HEADER, FRAMES)
    assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_leaves_nothing_behind() -> None:
    disk = make_disk()
    disk.fail("pwrite", errno.ENOSPC, nth=2)
    with pytest.raises(OSError, match="No space") as caught:
        build_segment(disk, LOG, HEADER, FRAMES)
    assert not isinstance(caught.value, LogSyncError)
    assert disk.list(LOG) == []
