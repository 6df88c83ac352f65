"""`CrashableDisk`: without a crash it is a disk; power, faults and room do as told.

Goal: a test that runs on it can be believed. Method: a state machine does the same
calls on it and on the real disk and compares every answer, errno included; plain calls
for the rest. What survives a crash is tested beside the profiles.
"""

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wheeldb.disk import Disk, LockHeld, OsDisk
from wheeldb.testing import CrashableDisk, PowerCut
from wheeldb.testing.profiles import PROFILES


def raises_errno(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def put(disk: CrashableDisk, path: str, data: bytes, offset: int = 0) -> None:
    """Write through a handle of its own, without a sync."""
    handle = disk.open(path, create=True)
    disk.pwrite(handle, data, offset)
    disk.close(handle)


def sync(disk: CrashableDisk, path: str) -> None:
    """Sync a file through a handle of its own."""
    handle = disk.open(path)
    disk.sync_data(handle)
    disk.close(handle)


NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/f", "a/x"])
OFFSETS = st.sampled_from([0, 1, 511, 512, 700, 5000])


class SameAsARealDisk(RuleBasedStateMachine):
    """Every call has the same answer, or the same errno, on both disks."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.real = OsDisk()
        self.memory = CrashableDisk()
        self.handles: list[tuple[int, int]] = []

    def teardown(self) -> None:
        for real, _ in self.handles:
            self.real.close(real)
        shutil.rmtree(self.directory)

    def both(self, call: Callable[[Disk, str], object]) -> object:
        """Do one call on both disks and return the common answer."""
        answers: list[object] = []
        for disk, root in ((self.real, self.directory), (self.memory, "")):
            try:
                answers.append(call(disk, root + "/"))
            except OSError as error:
                answers.append(errno.errorcode[error.errno or 0])
        assert answers[0] == answers[1]
        return answers[0]

    @rule(name=NAMES, create=st.booleans(), exclusive=st.booleans())
    def open(self, name: str, create: bool, exclusive: bool) -> None:
        opened: list[int] = []

        def call(disk: Disk, root: str) -> None:
            how = {"create": create, "exclusive": create and exclusive}
            opened.append(disk.open(root + name, **how))

        self.both(call)
        if opened:
            self.handles.append((opened[0], opened[1]))

    def some(self, pick: int) -> Callable[[Disk], int]:
        real, memory = self.handles[pick % len(self.handles)]
        return lambda disk: real if disk is self.real else memory

    @rule(pick=st.integers(0, 9), offset=OFFSETS, data=st.binary(max_size=1500))
    def pwrite(self, pick: int, offset: int, data: bytes) -> None:
        if self.handles:
            handle = self.some(pick)
            self.both(lambda disk, _: disk.pwrite(handle(disk), data, offset))

    @rule(pick=st.integers(0, 9), size=OFFSETS)
    def truncate(self, pick: int, size: int) -> None:
        if self.handles:
            handle = self.some(pick)
            self.both(lambda disk, _: disk.truncate(handle(disk), size))

    @rule(pick=st.integers(0, 9))
    def sync(self, pick: int) -> None:
        if self.handles:
            handle = self.some(pick)
            self.both(lambda disk, _: disk.sync(handle(disk)))

    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        if self.handles:
            handle = self.some(pick)
            self.both(lambda disk, _: disk.close(handle(disk)))
            del self.handles[pick % len(self.handles)]

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        self.both(lambda disk, root: disk.rename(root + old, root + new))

    @rule(name=NAMES)
    def unlink(self, name: str) -> None:
        self.both(lambda disk, root: disk.unlink(root + name))

    @rule(name=NAMES)
    def make_directory(self, name: str) -> None:
        self.both(lambda disk, root: disk.make_directory(root + name))

    @rule(name=NAMES)
    def remove_directory(self, name: str) -> None:
        self.both(lambda disk, root: disk.remove_directory(root + name))

    @rule(name=NAMES)
    def sync_directory(self, name: str) -> None:
        self.both(lambda disk, root: disk.sync_directory(root + name))

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        def call(disk: Disk, root: str) -> object:
            info = disk.info(root + name)
            if info is None or info.is_directory:
                return info and info.owner
            return info.size, info.owner

        self.both(call)
        self.both(lambda disk, root: disk.list(root + name))

    @invariant()
    def open_files_are_the_same(self) -> None:
        for pick in range(len(self.handles)):
            handle = self.some(pick)
            self.both(lambda disk, _, h=handle: disk.size(h(disk)))  # type: ignore[misc]
            self.both(lambda disk, _, h=handle: disk.pread(h(disk), 9000, 300))  # type: ignore[misc]

    @invariant()
    def trees_are_the_same(self) -> None:
        found = {}
        for root, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(root, name)
                with open(path, "rb") as file:
                    found[path.removeprefix(self.directory)] = file.read()
        assert self.memory.dump() == found


TestSameAsARealDisk = SameAsARealDisk.TestCase
TestSameAsARealDisk.settings = settings(max_examples=40, stateful_step_count=30)


class TestPower:
    def test_cut_comes_before_the_operation(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old"})
        handle = disk.open("/a")
        lock = disk.lock("/a")
        disk.crash_at(2)
        disk.pwrite(handle, b"one", 0)

        with pytest.raises(PowerCut):
            disk.pwrite(handle, b"two", 0)

        was_cut = disk.is_cut
        assert not issubclass(PowerCut, Exception)
        calls: list[Callable[[], object]] = [
            lambda: disk.pread(handle, 1, 0),
            lambda: disk.close(handle),
            lambda: disk.open("/missing/b", create=True),
            lambda: disk.info("/a"),
            lambda: disk.list("/missing"),
            lambda: disk.sync_directory("/missing"),
            lambda: disk.unlink("/missing"),
            lambda: disk.lock("/b"),
            lambda: lock.write("me"),
        ]
        for call in calls:
            with pytest.raises(PowerCut):
                call()
        disk.crash("all")
        assert (was_cut, disk.is_cut) == (True, False)
        assert disk.dump() == {"/a": b"one"}

    def test_every_change_counts_and_no_look(self) -> None:
        disk = CrashableDisk()
        disk.make_directory("/d")
        disk.make_directory("/d")
        handle = disk.open("/d/a", create=True)
        disk.close(disk.open("/d/a", create=True))
        disk.pwrite(handle, b"x", 0)
        disk.pread(handle, 1, 0)
        disk.size(handle)
        disk.allocate(handle, 0, 4096)
        disk.truncate(handle, 0)
        disk.sync_data(handle)
        disk.sync(handle)
        disk.lock("/d/LOCK").write("me")
        disk.rename("/d/a", "/d/b")
        disk.sync_directory("/d")
        disk.unlink("/d/b")
        disk.list("/d")
        disk.info("/d/b")

        assert [f"{name} {path}" for name, path in disk.operations] == [
            "make_directory /d", "open /d/a", "pwrite /d/a", "allocate /d/a",
            "truncate /d/a", "sync_data /d/a", "sync /d/a", "lock /d/LOCK",
            "pwrite /d/LOCK", "rename /d/a", "sync_directory /d", "unlink /d/b",
        ]  # fmt: skip

    def test_crash_ends_handles_and_locks(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old", "/LOCK": b"from before"})
        handle = disk.open("/a")
        lock = disk.lock("/LOCK")
        lock.write("first")
        with pytest.raises(LockHeld, match="first"):
            disk.lock("/LOCK")

        disk.crash("none")

        with raises_errno(errno.EBADF):
            disk.pread(handle, 1, 0)
        assert disk.open("/a") != handle
        again = disk.lock("/LOCK")
        lock.release()
        with pytest.raises(LockHeld):
            disk.lock("/LOCK")
        again.release()
        disk.lock("/LOCK")

    def test_kill_keeps_the_cache_but_makes_nothing_durable(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old"})
        disk.lock("/LOCK")
        handle = disk.open("/a")
        disk.pwrite(handle, b"new", 0)
        disk.crash_at(1)
        with pytest.raises(PowerCut):
            disk.sync(handle)

        disk.kill()

        with raises_errno(errno.EBADF):
            disk.sync(handle)
        disk.lock("/LOCK")
        assert disk.dump()["/a"] == b"new"
        disk.crash("none")
        assert disk.dump() == {"/a": b"old"}

    def test_unlinked_file_lives_as_long_as_its_handle(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"data"})
        handle = disk.open("/a")
        disk.unlink("/a")
        for _ in range(9):
            disk.sync_directory("/")

        assert disk.pread(handle, 9, 0) == b"data"
        disk.close(handle)
        disk.crash("all")
        assert disk.dump() == {}

    def test_earlier_crash_disarms_the_later_cut(self) -> None:
        disk = CrashableDisk()
        disk.crash_at(2)
        disk.crash("none")

        put(disk, "/a", b"one")
        put(disk, "/a", b"two")

        assert disk.dump() == {"/a": b"two"}

    def test_wrong_arguments(self) -> None:
        disk = CrashableDisk()

        with pytest.raises(ValueError, match="operation 0"):
            disk.crash_at(0)
        with pytest.raises(ValueError, match="no crash profile 'some'"):
            disk.crash("some")


class TestChoices:
    @staticmethod
    def busy(seed: int) -> CrashableDisk:
        disk = CrashableDisk(seed)
        random = Random(5)
        for number in range(30):
            path = f"/{random.randrange(4)}"
            put(disk, path, random.randbytes(2000), random.randrange(3000))
            if number % 7 == 0:
                sync(disk, path)
                disk.sync_directory("/")
            if number % 11 == 0:
                disk.rename(path, "/5")
        return disk

    @pytest.mark.parametrize("profile", PROFILES)
    def test_same_seed_same_crash(self, profile: str) -> None:
        first, second = self.busy(1), self.busy(1)

        stories = first.crash(profile), second.crash(profile)

        assert stories[0] == stories[1]
        assert first.dump() == second.dump()
        if profile not in {"none", "all", "failed_sync"}:
            others = []
            for seed in range(2, 6):
                other = self.busy(seed)
                other.crash(profile)
                others.append(other.dump())
            assert any(other != first.dump() for other in others)

    def test_clone_is_independent_and_repeats(self) -> None:
        disk = self.busy(1)
        before = disk.dump()
        handle = disk.open("/1")

        first, second = disk.clone(), disk.clone()
        first.pwrite(handle, b"only here", 0)

        assert disk.dump() == second.dump() == before
        assert first.dump() != before
        second.crash("subset")
        third = disk.clone()
        third.crash("subset")
        assert second.dump() == third.dump()
        disk.crash("subset")
        assert disk.dump() == third.dump()

    def test_keep_tries_every_selection(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"-" * 1024})
        put(disk, "/a", b"x" * 1024)
        put(disk, "/b", b"")
        pending = disk.pending()
        images = set()

        for size in range(len(pending) + 1):
            for keep in itertools.combinations(range(len(pending)), size):
                image = disk.clone()
                story = image.crash("subset", keep=keep)
                assert len(story) == len(pending) - size
                images.add(str(image.dump()))

        assert pending == [
            "bytes 0–512 of /a",
            "bytes 512–1024 of /a",
            "naming b in /",
        ]
        assert len(images) == 8

    @pytest.mark.parametrize("profile", PROFILES)
    def test_second_crash_changes_nothing(self, profile: str) -> None:
        disk = self.busy(3)
        disk.crash(profile)
        found = disk.dump()

        assert disk.pending() == []
        assert disk.crash("none") == []
        assert disk.dump() == found
        disk.crash("lying_sync")
        assert disk.dump() == found


class TestFaults:
    def test_nth_call_once(self) -> None:
        disk = CrashableDisk()
        handle = disk.open("/a", create=True)
        disk.fail("pwrite", errno.EIO, nth=2)
        disk.pwrite(handle, b"1", 0)

        with raises_errno(errno.EIO):
            disk.pwrite(handle, b"2", 0)

        disk.pwrite(handle, b"3", 1)
        assert disk.dump() == {"/a": b"13"}

    def test_forever_until_healed(self) -> None:
        disk = CrashableDisk()
        disk.fail("open", errno.EROFS, nth=2, forever=True)
        disk.open("/a", create=True)

        for _ in range(3):
            with raises_errno(errno.EROFS):
                disk.open("/a")

        disk.crash("all")
        with raises_errno(errno.EROFS):
            disk.open("/a")
        disk.heal()
        put(disk, "/a", b"")

    def test_only_on_a_path(self) -> None:
        disk = CrashableDisk()
        disk.fail("open", errno.EACCES, path=".seg")

        put(disk, "/a", b"")

        with raises_errno(errno.EACCES):
            put(disk, "/1.seg", b"")

    def test_close_fails_and_closes(self) -> None:
        disk = CrashableDisk()
        handle = disk.open("/a", create=True)
        disk.fail("close", errno.EIO)

        with raises_errno(errno.EIO):
            disk.close(handle)

        with raises_errno(errno.EBADF):
            disk.close(handle)

    def test_short(self) -> None:
        disk = CrashableDisk()
        handle = disk.open("/a", create=True)
        disk.fail("pwrite", "short")
        disk.fail("pread", "short")

        assert disk.pwrite(handle, b"12345", 0) == 3
        assert disk.pread(handle, 2, 0) == b"1"
        assert disk.pread(handle, 2, 0) == b"12"

    @pytest.mark.parametrize(
        ("operation", "error", "nth"),
        [("fsync", errno.EIO, 1), ("open", "short", 1), ("pread", "long", 1),
         ("open", errno.EIO, 0)],
    )  # fmt: skip
    def test_wrong_arguments(self, operation: str, error: int | str, nth: int) -> None:
        with pytest.raises(ValueError, match=r"operation|can't fail|nth"):
            CrashableDisk().fail(operation, error, nth)

    def test_readonly_handle(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old"})
        handle = disk.open("/a", readonly=True)

        with raises_errno(errno.EBADF):
            disk.pwrite(handle, b"new", 0)


class TestRoom:
    def test_full(self) -> None:
        disk = CrashableDisk()
        disk.full(3 * 4096)
        handle = disk.open("/a", create=True)
        assert disk.pwrite(handle, b"x" * 4096, 0) == 4096

        assert disk.allocate(handle, 4096, 4096)
        assert disk.free_bytes() == 4096
        assert disk.pwrite(handle, b"x" * 10_000, 4096) == 8192

        with raises_errno(errno.ENOSPC):
            disk.pwrite(handle, b"x", 12_288)
        with raises_errno(errno.ENOSPC):
            disk.allocate(handle, 12_288, 1)
        disk.pwrite(handle, b"into room that is there", 5000)
        assert disk.free_bytes() == 0

    @pytest.mark.parametrize("how", ["truncate", "unlink", "replace", "lift"])
    def test_room_comes_back(self, how: str) -> None:
        disk = CrashableDisk()
        disk.full(8192)
        put(disk, "/a", b"x" * 8192)
        put(disk, "/b", b"")

        if how == "truncate":
            disk.truncate(disk.open("/a"), 1)
        elif how == "unlink":
            disk.unlink("/a")
        elif how == "replace":
            disk.rename("/b", "/a")
        else:
            disk.full(None)

        handle = disk.open("/c", create=True)
        assert disk.pwrite(handle, b"x" * 4096, 0) == 4096

    def test_open_file_without_a_name_still_takes_room(self) -> None:
        disk = CrashableDisk()
        disk.full(4096)
        handle = disk.open("/a", create=True)
        disk.pwrite(handle, b"x", 0)
        disk.unlink("/a")
        for _ in range(9):
            disk.sync_directory("/")

        assert disk.free_bytes() == 0
        disk.close(handle)
        assert disk.free_bytes() == 4096


class TestFiles:
    def test_load_and_dump(self) -> None:
        files = {"/a": b"", "/d/e/f": b"data"}
        disk = CrashableDisk()

        disk.load(files)
        disk.load({"/a": b"longer", "/d/e/f": b"d"})
        disk.load(files)

        assert disk.dump() == files
        disk.crash("none")
        assert disk.dump() == files
        assert disk.list("/d") == ["e"]

    def test_corrupt_survives(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"\x00\x00"})
        disk.corrupt("/a", 1, 0x81)
        disk.crash("none")

        assert disk.dump() == {"/a": b"\x00\x81"}
        for offset, xor in ((2, 1), (0, 0), (0, 256)):
            with pytest.raises(ValueError, match="can't change"):
                disk.corrupt("/a", offset, xor)

    def test_answers_about_the_medium(self) -> None:
        disk = CrashableDisk(flash=None, file_system="nfs")

        assert disk.is_flash("/") is None
        assert disk.clone().file_system("/") == "nfs"
        assert disk.free_bytes() > 1 << 30
