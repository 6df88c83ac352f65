"""Snapshots: read back exactly as written, or refused, and no crash makes a broken one.

Goal: what is under a snapshot's name is whole, and a reader that ends without an error
has given every payload unchanged. Method: round trips; every bit flip, cut, swap and
append of a small file; a crash before every operation, under every profile, and an
error in every operation, after which the old set must be there or the new one.
"""

import errno
import os.path
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_helpers import DATABASE, HONEST_PROFILES, SeededEntropy

from wheeldb.disk import Disk
from wheeldb.disk.memory import MemoryDisk
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.index import MemoryIndex
from wheeldb.log.frame import (
    FRAME_FORMAT,
    LSN_MAX,
    OPENED,
    PAYLOAD_BYTES_MAX,
    FrameType,
    header_checksum,
    pack_frame,
)
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    TEMPORARY_NAME,
    pack_segment_header,
)
from wheeldb.log.snapshot import (
    SNAPSHOT_MAGIC,
    SnapshotInfo,
    SnapshotName,
    SnapshotReader,
    list_snapshots,
    open_snapshot,
    remove_snapshots,
    verify_snapshot,
    write_snapshot,
)
from wheeldb.testing import CrashableDisk, PowerCut

DIRECTORY = "/snapshots"
OLD, NEW = 100, 200
OLD_PAYLOADS = [b"old", b"", b"o" * 600]
NEW_PAYLOADS = [b"new state", b"n" * 1500, b"last"]

# The header's fields and their checksum; padding up to a block behind them.
HEADER_USED_BYTES = 112


def raises_errno(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def path_of(lsn: int) -> str:
    """Return where the snapshot of an LSN lies."""
    return os.path.join(DIRECTORY, SnapshotName(lsn).file_name)


def write(
    disk: Disk, lsn: int, payloads: Iterable[bytes], *, seed: int = 0
) -> SnapshotInfo:
    """Write a snapshot of the store under test."""
    return write_snapshot(
        disk,
        DIRECTORY,
        database=DATABASE,
        incarnation=3,
        lsn=lsn,
        hlc=70 + lsn,
        bound=min(5_000 + lsn, LSN_MAX),
        entropy=SeededEntropy(seed + lsn),
        payloads=payloads,
    )


def read(disk: Disk, lsn: int) -> list[bytes]:
    """Return the payloads of a snapshot."""
    with open_snapshot(disk, path_of(lsn), database=DATABASE) as reader:
        return list(reader)


def snapshots(disk: Disk) -> dict[int, list[bytes]]:
    """Return every snapshot on the disk; each must be whole."""
    return {name.lsn: read(disk, name.lsn) for name in list_snapshots(disk, DIRECTORY)}


def make_memory() -> MemoryDisk:
    """Return a disk in memory with an empty directory for snapshots."""
    disk = MemoryDisk(MemoryIndex)
    disk.make_directory(DIRECTORY)
    return disk


def make_crashable(seed: int = 0) -> CrashableDisk:
    """Return a disk that holds the old snapshot, durably, and what a crash left."""
    disk = CrashableDisk(seed)
    disk.load({f"{DIRECTORY}/{TEMPORARY_NAME}": b"left by a crash" * 700})
    write(disk, OLD, OLD_PAYLOADS)
    disk.load({f"{DIRECTORY}/{TEMPORARY_NAME}": b"left by a crash" * 700})
    return disk


def errno_of(call: Callable[[], object]) -> int | None:
    """Return the number of the `OSError` that a call raises, None if it doesn't."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def contents(disk: Disk, path: str) -> bytes:
    """Return a file's bytes."""
    handle = disk.open(path, readonly=True)
    data = disk.pread(handle, disk.size(handle), 0)
    disk.close(handle)
    return data


class Altered:
    """One snapshot whose bytes are put there anew for each look."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.disk = make_memory()
        self.info = write(self.disk, OLD, payloads)
        self.data = contents(self.disk, self.info.path)
        self._handle = self.disk.open(self.info.path)

    def put(self, data: bytes) -> None:
        """Let the file hold `data`."""
        self.disk.truncate(self._handle, 0)
        self.disk.pwrite(self._handle, data, 0)

    def refusal(self) -> CorruptionError | None:
        """Return with which error the file is refused."""
        try:
            verify_snapshot(self.disk, self.info.path, database=DATABASE)
        except CorruptionError as error:
            return error
        return None

    def flips_that_pass(self, offset: int, bits: Iterable[int]) -> list[int]:
        """Return which flipped bits of one byte go unnoticed."""
        passed = []
        for bit in bits:
            byte = bytes((self.data[offset] ^ 1 << bit,))
            self.disk.pwrite(self._handle, byte, offset)
            if self.refusal() is None:
                passed.append(bit)
        self.disk.pwrite(self._handle, self.data[offset : offset + 1], offset)
        return passed


class TestRoundTrip:
    def test_all_that_was_written(self) -> None:
        disk = make_memory()

        info = write(disk, NEW, iter(NEW_PAYLOADS))

        assert info == SnapshotInfo(
            path=path_of(NEW),
            database=DATABASE,
            incarnation=3,
            lsn=NEW,
            hlc=70 + NEW,
            bound=5_000 + NEW,
            frames=3,
            file_bytes=len(contents(disk, path_of(NEW))),
        )
        assert disk.list(DIRECTORY) == ["0000000000000200.snap"]
        assert verify_snapshot(disk, info.path, database=DATABASE) == info
        assert verify_snapshot(disk, info.path, database=None) == info
        with open_snapshot(disk, info.path, database=DATABASE) as reader:
            fields = (reader.path, reader.database, reader.incarnation)
            assert fields == (info.path, DATABASE, 3)
            assert (reader.lsn, reader.hlc, reader.bound) == (NEW, 70 + NEW, 5_200)
            assert list(reader) == NEW_PAYLOADS
            assert list(reader) == NEW_PAYLOADS
            assert reader.finish() == info

    def test_empty(self) -> None:
        disk = make_memory()

        info = write(disk, 0, [])

        assert info.frames == 0
        assert read(disk, 0) == []

    @given(
        payloads=st.lists(
            st.one_of(
                st.binary(max_size=200),
                st.integers(0, 2**20 + 100).map(lambda size: b"x" * size),
            ),
            max_size=6,
        )
    )
    def test_any_payloads(self, payloads: list[bytes]) -> None:
        disk = make_memory()

        info = write(disk, NEW, payloads)

        assert read(disk, NEW) == payloads
        assert info.frames == len(payloads)

    def test_short_reads_and_writes(self) -> None:
        disk = make_crashable()
        disk.fail("pwrite", "short", forever=True)
        disk.fail("pread", "short", forever=True)

        write(disk, NEW, NEW_PAYLOADS)

        assert snapshots(disk) == {NEW: NEW_PAYLOADS, OLD: OLD_PAYLOADS}

    def test_writing_and_reading_stream(self) -> None:
        disk = CrashableDisk()
        disk.load({f"{DIRECTORY}/x": b""})
        sizes: list[int] = []
        piece = 2**18

        def payloads() -> Iterator[bytes]:
            for _ in range(20):
                yield bytes(piece)
                info = disk.info(f"{DIRECTORY}/{TEMPORARY_NAME}")
                assert info is not None
                sizes.append(info.size)

        write(disk, NEW, payloads())

        # Behind the writer is never more than one piece and one frame.
        for count, size in enumerate(sizes, start=1):
            assert count * piece - size < 2**20 + 2 * piece, (count, size)
        with open_snapshot(disk, path_of(NEW), database=DATABASE) as reader:
            iterator = iter(reader)
            next(iterator)
            disk.corrupt(path_of(NEW), 19 * piece, 1)
            # What was not read yet is not in memory either.
            with pytest.raises(CorruptionError, match="payload's checksum"):
                list(iterator)

    def test_payload_too_long(self) -> None:
        disk = make_crashable()

        with pytest.raises(ValueError, match="a frame holds at most"):
            write(disk, NEW, [b"first", bytes(PAYLOAD_BYTES_MAX + 1)])

        assert snapshots(disk) == {OLD: OLD_PAYLOADS}

    def test_reader_closes_its_file(self) -> None:
        disk = make_memory()
        info = write(disk, NEW, NEW_PAYLOADS)
        with open_snapshot(disk, info.path, database=DATABASE) as reader:
            pass

        with raises_errno(errno.EBADF):
            list(reader)

    @pytest.mark.parametrize("is_good", [True, False])
    def test_no_handle_stays_open(self, is_good: bool) -> None:
        opened: set[int] = set()

        class Counting(MemoryDisk):
            def open(self, path: str, **how: bool) -> int:
                handle = super().open(path, **how)
                opened.add(handle)
                return handle

            def close(self, handle: int, /) -> None:
                super().close(handle)
                opened.remove(handle)

        disk = Counting(MemoryIndex)
        disk.make_directory(DIRECTORY)
        path = write(disk, NEW, NEW_PAYLOADS).path
        if not is_good:
            handle = disk.open(path)
            disk.pwrite(handle, b"x", 0)
            disk.close(handle)
            with pytest.raises(CorruptionError):
                open_snapshot(disk, path, database=DATABASE)
        else:
            verify_snapshot(disk, path, database=DATABASE)

        assert opened == set()

    def test_missing_file(self) -> None:
        with pytest.raises(FileNotFoundError):
            open_snapshot(make_memory(), path_of(1), database=None)


class TestDamage:
    def test_every_bit_flip_is_refused(self) -> None:
        altered = Altered([b"some payload", b"x", b""])
        size = len(altered.data)
        used = [*range(HEADER_USED_BYTES), *range(SEGMENT_HEADER_BYTES, size)]
        # One bit is enough in what is compared with zero.
        padding = range(HEADER_USED_BYTES, SEGMENT_HEADER_BYTES)
        cases = [(offset, range(8)) for offset in used]
        cases += [(offset, range(offset % 8, offset % 8 + 1)) for offset in padding]

        passed = {
            offset: bits
            for offset, choice in cases
            if (bits := altered.flips_that_pass(offset, choice))
        }

        assert passed == {}
        assert altered.refusal() is None

    @pytest.mark.slow
    def test_every_bit_flip_of_a_larger_snapshot_is_refused(self) -> None:
        altered = Altered([bytes(range(n)) for n in range(1, 30)])

        for offset in range(len(altered.data)):
            assert altered.flips_that_pass(offset, range(8)) == [], offset

    @pytest.mark.parametrize("value", [0x00, 0xFF])
    def test_every_byte_set_is_refused(self, value: int) -> None:
        altered = Altered(NEW_PAYLOADS)
        used = [*range(HEADER_USED_BYTES)]
        used += range(SEGMENT_HEADER_BYTES, len(altered.data))

        for offset in used:
            if altered.data[offset] != value:
                data = bytearray(altered.data)
                data[offset] = value
                altered.put(bytes(data))
                assert altered.refusal() is not None, offset

    def test_every_cut_is_refused(self) -> None:
        altered = Altered(NEW_PAYLOADS)

        for size in range(len(altered.data)):
            altered.put(altered.data[:size])
            assert altered.refusal() is not None, size

    @pytest.mark.parametrize("tail", [b"\0", b"x", bytes(8), bytes(5000)])
    def test_more_behind_the_end_is_refused(self, tail: bytes) -> None:
        altered = Altered(NEW_PAYLOADS)

        altered.put(altered.data + tail)

        refusal = altered.refusal()
        assert refusal is not None
        assert "behind the end" in refusal.reason
        assert refusal.offset == len(altered.data)

    def test_zeroed_tails_are_refused(self) -> None:
        altered = Altered(NEW_PAYLOADS)
        size = len(altered.data)

        for start in range(0, size - 8, 8):
            altered.put(altered.data[:start].ljust(size, b"\0"))
            assert altered.refusal() is not None, start

    def test_frames_of_one_file_cannot_change_places(self) -> None:
        altered = Altered([b"one 1234", b"two 1234"])
        begin, size = SEGMENT_HEADER_BYTES, 72
        one = altered.data[begin : begin + size]
        two = altered.data[begin + size : begin + 2 * size]
        rest = altered.data[begin + 2 * size :]

        head = altered.data[:begin]
        # In each case every frame's own checksums are right.
        for frames in ((two, one, rest), (two, rest), (one, one, rest), (one, rest)):
            altered.put(b"".join((head, *frames)))
            refusal = altered.refusal()
            assert refusal is not None
            assert "does not follow" in refusal.reason

    def test_damage_has_its_place(self) -> None:
        altered = Altered([b"first", b"second", b"third"])
        data = bytearray(altered.data)
        second = SEGMENT_HEADER_BYTES + 72
        data[second + 64] ^= 1
        altered.put(bytes(data))

        refusal = altered.refusal()

        assert refusal is not None
        assert refusal.path == path_of(OLD)
        assert (refusal.offset, refusal.lsn) == (second, OLD)
        assert "payload's checksum" in refusal.reason
        with open_snapshot(altered.disk, path_of(OLD), database=DATABASE) as reader:
            payloads = iter(reader)
            # What comes out before the damage is right.
            assert next(payloads) == b"first"
            with pytest.raises(CorruptionError):
                next(payloads)

    def test_missing_end_is_said(self) -> None:
        altered = Altered([b"first"])

        altered.put(altered.data[: SEGMENT_HEADER_BYTES + 72])

        refusal = altered.refusal()
        assert refusal is not None
        assert "the end is missing" in refusal.reason

    def test_medium_that_cannot_read(self) -> None:
        disk = make_crashable()
        disk.fail("pread", errno.EIO, forever=True)

        with pytest.raises(CorruptionError, match="cannot read"):
            open_snapshot(disk, path_of(OLD), database=DATABASE)

    def test_name_of_another_lsn(self) -> None:
        disk = make_memory()
        write(disk, OLD, OLD_PAYLOADS)
        disk.rename(path_of(OLD), path_of(NEW))

        with pytest.raises(CorruptionError, match="name of another LSN"):
            open_snapshot(disk, path_of(NEW), database=DATABASE)

        # A copy may be called anything.
        disk.rename(path_of(NEW), f"{DIRECTORY}/copy")
        assert verify_snapshot(disk, f"{DIRECTORY}/copy", database=None).lsn == OLD

    def test_another_database(self) -> None:
        disk = make_memory()
        info = write(disk, OLD, OLD_PAYLOADS)

        with pytest.raises(FormatError, match="belongs to database"):
            open_snapshot(disk, info.path, database=bytes(16))

    def test_segment_under_a_snapshots_name(self) -> None:
        altered = Altered([b"first"])
        with open_snapshot(altered.disk, path_of(OLD), database=None) as reader:
            header = reader.header

        block = pack_segment_header(header)
        altered.put(block + altered.data[SEGMENT_HEADER_BYTES:])

        refusal = altered.refusal()
        assert refusal is not None
        assert "instead of" in refusal.reason


class TestForged:
    """Files whose checksums are right, as a mistake of a writer would make them."""

    def build(
        self, make: Callable[[SnapshotReader, int], list[bytes]]
    ) -> CorruptionError | None:
        """Return how frames behind a good header and one good frame are refused."""
        altered = Altered([b"first"])
        kept = altered.data[: SEGMENT_HEADER_BYTES + 72]
        previous = header_checksum(kept[SEGMENT_HEADER_BYTES:])
        with open_snapshot(altered.disk, path_of(OLD), database=None) as reader:
            frames = make(reader, previous)
        altered.put(kept + b"".join(frames))
        return altered.refusal()

    @staticmethod
    def frame(
        reader: SnapshotReader,
        previous: int,
        kind: FrameType,
        *,
        payload: bytes = b"forged",
        first_lsn: int = OLD + 1,
        count: int = 0,
        flags: int = 0,
    ) -> bytes:
        return pack_frame(
            reader.header.salt,
            kind,
            payload,
            first_lsn=first_lsn,
            count=count,
            previous_crc=previous,
            hlc=0,
            watermark=0,
            bound=0,
            flags=flags,
        )

    @pytest.mark.parametrize(
        ("kind", "count", "flags"),
        [
            (FrameType.WATERMARK, 0, 0),
            (FrameType.UNSYNCED, 0, 0),
            (FrameType.SYNCED, 1, 0),
            (FrameType.SYNCED, 0, OPENED),
        ],
    )
    def test_frame_of_a_log(self, kind: FrameType, count: int, flags: int) -> None:
        refusal = self.build(
            lambda reader, previous: [
                self.frame(reader, previous, kind, count=count, flags=flags)
            ]
        )

        assert refusal is not None
        assert "none of a snapshot" in refusal.reason

    def test_gap_in_front_of_a_frame(self) -> None:
        def make(reader: SnapshotReader, previous: int) -> list[bytes]:
            gap = bytes(SEGMENT_HEADER_BYTES - 72)
            return [gap, self.frame(reader, previous, FrameType.SYNCED)]

        refusal = self.build(make)

        assert refusal is not None
        assert "gap" in refusal.reason

    def test_end_that_says_something_else(self) -> None:
        for payload in (b"", bytes(24), b"x" * 24):
            refusal = self.build(
                lambda reader, previous, end=payload: [  # type: ignore[misc]
                    self.frame(reader, previous, FrameType.FOOTER, payload=end)
                ]
            )

            assert refusal is not None
            assert "what its end says" in refusal.reason

    def test_frame_of_a_newer_format(self) -> None:
        altered = Altered([b"first"])
        block = bytearray(altered.data)
        # The header's checksum covers the format, so it has to be made anew.
        begin = SEGMENT_HEADER_BYTES
        block[begin + 9] = FRAME_FORMAT + 1
        crc = zlib.crc32(block[begin : begin + 60])
        struct.pack_into("<I", block, begin + 60, crc)
        altered.put(bytes(block))

        with pytest.raises(FormatError, match="another format"):
            verify_snapshot(altered.disk, path_of(OLD), database=DATABASE)


class TestCrash:
    @pytest.mark.parametrize("profile", HONEST_PROFILES)
    def test_at_every_operation_the_old_set_or_the_new_one(self, profile: str) -> None:
        finished = False
        cut = 0
        while not finished:
            cut += 1
            for seed in range(3):
                disk = make_crashable(seed)
                disk.crash_at(cut)
                try:
                    write(disk, NEW, NEW_PAYLOADS)
                    finished = True
                except PowerCut:
                    pass
                disk.crash(profile)

                found = snapshots(disk)
                assert found.pop(OLD) == OLD_PAYLOADS, (cut, seed)
                assert found in ({}, {NEW: NEW_PAYLOADS}), (cut, seed)
                if finished:
                    assert found, (cut, seed)

                # Whatever was left, the next one works.
                write(disk, NEW + 1, NEW_PAYLOADS, seed=50)
                disk.crash("none")
                assert snapshots(disk)[NEW + 1] == NEW_PAYLOADS
        assert cut > 5, cut

    @pytest.mark.parametrize("profile", HONEST_PROFILES)
    def test_same_lsn_again(self, profile: str) -> None:
        finished = False
        cut = 0
        while not finished:
            cut += 1
            disk = make_crashable(cut)
            disk.crash_at(cut)
            try:
                write(disk, OLD, NEW_PAYLOADS, seed=9)
                finished = True
            except PowerCut:
                pass
            disk.crash(profile)

            (found,) = snapshots(disk).values()
            assert found == NEW_PAYLOADS or (found == OLD_PAYLOADS and not finished)

    @pytest.mark.parametrize("profile", HONEST_PROFILES)
    def test_removing_at_every_operation(self, profile: str) -> None:
        finished = False
        cut = 0
        while not finished:
            cut += 1
            disk = make_crashable(cut)
            for lsn in range(NEW, NEW + 4):
                write(disk, lsn, NEW_PAYLOADS)
            disk.crash_at(cut)
            try:
                remove_snapshots(disk, DIRECTORY)
                finished = True
            except PowerCut:
                pass
            disk.crash(profile)

            found = snapshots(disk)
            assert {NEW + 2, NEW + 3} <= set(found), cut
            if finished:
                assert set(found) == {NEW + 2, NEW + 3}, cut

    def test_name_given_by_a_process_that_died(self) -> None:
        found = []
        for sync_first in (False, True):
            disk = make_crashable()
            write(disk, NEW, NEW_PAYLOADS)
            steps = [operation.name for operation in disk.operations]
            disk = make_crashable()
            # All but the last step, which syncs the directory.
            before = len(disk.operations)
            disk.crash_at(len(steps) - before)
            with pytest.raises(PowerCut):
                write(disk, NEW, NEW_PAYLOADS)
            disk.kill()

            names = list_snapshots(disk, DIRECTORY, sync_first=sync_first)
            assert [name.lsn for name in names] == [NEW, OLD]
            disk.crash("none")
            found.append(list(snapshots(disk)))

        assert steps[-1] == "sync_directory"
        assert found == [[OLD], [NEW, OLD]]


# What `write_snapshot` calls; `drop_cache` never fails.
CALLS = (
    "close", "info", "open", "pread", "pwrite", "rename", "size", "sync_data",
    "sync_directory", "truncate",
)  # fmt: skip


class TestErrors:
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_error_leaves_the_old_set(self, call: str, number: int) -> None:
        failures = 0
        while True:
            disk = make_crashable()
            disk.fail(call, number, nth=failures + 1)
            raised = errno_of(lambda disk=disk: write(disk, NEW, NEW_PAYLOADS))  # type: ignore[misc]
            if raised is None:
                break
            failures += 1
            assert raised == number, failures
            assert snapshots(disk) == {OLD: OLD_PAYLOADS}, failures
            # It fails before anything is begun, or clears up behind itself.
            if call != "info":
                assert disk.list(DIRECTORY) == [SnapshotName(OLD).file_name], failures

            disk.heal()
            write(disk, NEW, NEW_PAYLOADS)
            disk.crash("none")
            assert snapshots(disk) == {OLD: OLD_PAYLOADS, NEW: NEW_PAYLOADS}, failures
        assert failures, call

    def test_error_that_lasts_is_the_first_one(self) -> None:
        disk = make_crashable()
        disk.fail("sync_data", errno.EIO)
        disk.fail("unlink", errno.EROFS, forever=True)

        with raises_errno(errno.EIO):
            write(disk, NEW, NEW_PAYLOADS)

        assert snapshots(disk) == {OLD: OLD_PAYLOADS}
        write(disk, NEW, NEW_PAYLOADS)
        assert snapshots(disk) == {OLD: OLD_PAYLOADS, NEW: NEW_PAYLOADS}

    def test_no_room(self) -> None:
        disk = make_crashable()
        disk.full(12 * 4096)

        with raises_errno(errno.ENOSPC):
            write(disk, NEW, [bytes(4096)] * 20)

        assert snapshots(disk) == {OLD: OLD_PAYLOADS}
        # The room is free again.
        write(disk, NEW, NEW_PAYLOADS)

    def test_unsynced_name_is_taken_back_but_not_the_one_it_replaced(self) -> None:
        disk = make_crashable()
        disk.fail("sync_directory", errno.EIO)

        with raises_errno(errno.EIO):
            write(disk, OLD, NEW_PAYLOADS, seed=9)

        assert snapshots(disk) == {OLD: NEW_PAYLOADS}
        disk.crash("none")
        assert snapshots(disk) == {OLD: OLD_PAYLOADS}

    def test_what_is_read_back_is_damaged(self) -> None:
        class Decaying(CrashableDisk):
            def drop_cache(self, handle: int) -> None:
                self.corrupt(f"{DIRECTORY}/{TEMPORARY_NAME}", 5000, 4)

        disk = Decaying()
        disk.load({f"{DIRECTORY}/x": b""})

        with raises_errno(errno.EIO) as caught:
            write(disk, NEW, NEW_PAYLOADS)

        assert isinstance(caught.value.__cause__, CorruptionError)
        assert disk.list(DIRECTORY) == ["x"]

    def test_payloads_that_raise(self) -> None:
        disk = make_crashable()

        def payloads() -> Iterator[bytes]:
            yield b"first"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write(disk, NEW, payloads())

        assert disk.list(DIRECTORY) == [SnapshotName(OLD).file_name]


class TestNames:
    def test_newest_first_and_others_passed_over(self) -> None:
        disk = make_memory()
        for name in (
            TEMPORARY_NAME,
            "0000000000000300.snap.tmp",
            "300.snap",
            "00000000000000300.snap",
            "0000000000000300.snap.bak",
            "00000001-0000000000000001.seg",
        ):
            disk.close(disk.open(f"{DIRECTORY}/{name}", create=True))
        for lsn in (7, 2**53 - 2, 100):
            write(disk, lsn, [b"x"])
            # The writer uses the temporary name and takes it along.
            disk.close(disk.open(f"{DIRECTORY}/{TEMPORARY_NAME}", create=True))

        names = list_snapshots(disk, DIRECTORY)

        assert [name.lsn for name in names] == [2**53 - 2, 100, 7]
        assert names[0].file_name == "9007199254740990.snap"

    @pytest.mark.parametrize("keep", [1, 2, 3, 9])
    def test_remove(self, keep: int) -> None:
        disk = make_memory()
        for lsn in (3, 20, 1, 10):
            write(disk, lsn, [b"x"])
        for name in (TEMPORARY_NAME, "other.tmp", "notes"):
            disk.close(disk.open(f"{DIRECTORY}/{name}", create=True))

        gone = remove_snapshots(disk, DIRECTORY, keep)

        kept = [20, 10, 3, 1][:keep]
        assert [name.lsn for name in list_snapshots(disk, DIRECTORY)] == kept
        assert [name.lsn for name in gone] == [1, 3, 10, 20][: max(0, 4 - keep)]
        assert "notes" in disk.list(DIRECTORY)
        assert not [name for name in disk.list(DIRECTORY) if name.endswith(".tmp")]

    def test_nothing_to_remove_is_no_change(self) -> None:
        disk = CrashableDisk()
        disk.load({f"{DIRECTORY}/x": b""})
        write(disk, NEW, NEW_PAYLOADS)
        count = len(disk.operations)

        assert remove_snapshots(disk, DIRECTORY) == ()
        assert len(disk.operations) == count

    def test_format_on_disk(self) -> None:
        disk = make_memory()

        write(disk, OLD, [b"payload"])

        data = contents(disk, path_of(OLD))
        assert data[:8] == SNAPSHOT_MAGIC == b"WHEELSN\x01"
        assert len(data) == 4096 + (64 + 8) + (64 + 24)
        assert int.from_bytes(data[-24:-16], "little") == 1
        assert int.from_bytes(data[-16:-8], "little") == 4096 + 72
