"""The disk in memory does what a disk does, without a medium below.

Goal: a store at ":memory:" runs on the same code as one on a real disk. Method: a state
machine does the same calls on it and on `CrashableDisk`, which is itself compared with
the real disk, and compares every answer, errno included; plain tests for locks, index
and threads, and the store's own files written through the seam's helpers.
"""

import errno
import sys
from collections.abc import Callable
from threading import Thread

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from log_helpers import open_log, rows

from wheeldb.disk import Disk, LockHeld, replace_file
from wheeldb.disk.memory import MemoryDisk
from wheeldb.index import Changes, MemoryIndex, create_index, open_index
from wheeldb.testing import CrashableDisk

NAMES = st.sampled_from(
    ["a", "/b", "d", "d/a", "./d//e", "d/e/f", "a/x", "/", "d/../b"]
)
OFFSETS = st.sampled_from([0, 1, 511, 700, 5000, -1])


def raises_errno(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(MemoryIndex)


class SameAsACrashableDisk(RuleBasedStateMachine):
    """Every call has the same answer, or the same errno, on both disks."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Disk = CrashableDisk()
        self.memory: Disk = MemoryDisk(MemoryIndex)
        # Pairs of handles. One that never was one is there to be refused.
        self.handles: list[tuple[int, int]] = [(3, 3)]

    def both(self, call: Callable[[Disk], object]) -> object:
        """Do one call on both disks and return the common answer."""
        answers: list[object] = []
        for disk in (self.model, self.memory):
            try:
                answers.append(call(disk))
            except OSError as error:
                answers.append(errno.errorcode[error.errno or 0])
        assert answers[0] == answers[1]
        return answers[0]

    def some(self, pick: int) -> Callable[[Disk], int]:
        """Return a handle of each disk, the newest for 0."""
        model, memory = self.handles[pick % len(self.handles)]
        return lambda disk: model if disk is self.model else memory

    @rule(name=NAMES, how=st.sampled_from(["", "create", "exclusive", "readonly"]))
    def open(self, name: str, how: str) -> None:
        opened: list[int] = []

        def call(disk: Disk) -> None:
            handle = disk.open(
                name,
                create=how in ("create", "exclusive"),
                exclusive=how == "exclusive",
                readonly=how == "readonly",
            )
            opened.append(handle)

        self.both(call)
        if opened:
            self.handles.insert(0, (opened[0], opened[1]))

    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        handle = self.some(pick)
        self.both(lambda disk: disk.close(handle(disk)))
        # Some closed ones stay, to be refused.
        if pick < 8 and len(self.handles) > 1:
            del self.handles[pick % len(self.handles)]

    @rule(pick=st.integers(0, 9), offset=OFFSETS, data=st.binary(max_size=900))
    def pwrite(self, pick: int, offset: int, data: bytes) -> None:
        handle = self.some(pick)
        self.both(lambda disk: disk.pwrite(handle(disk), memoryview(data), offset))

    @rule(pick=st.integers(0, 9), size=OFFSETS, offset=OFFSETS)
    def pread(self, pick: int, size: int, offset: int) -> None:
        handle = self.some(pick)
        self.both(lambda disk: disk.pread(handle(disk), size, offset))

    @rule(pick=st.integers(0, 9), size=OFFSETS)
    def truncate(self, pick: int, size: int) -> None:
        handle = self.some(pick)
        self.both(lambda disk: disk.truncate(handle(disk), size))

    @rule(pick=st.integers(0, 9), offset=OFFSETS, size=OFFSETS)
    def allocate(self, pick: int, offset: int, size: int) -> None:
        handle = self.some(pick)
        self.both(lambda disk: disk.allocate(handle(disk), offset, size))

    @rule(pick=st.integers(0, 9), is_data=st.booleans())
    def sync(self, pick: int, is_data: bool) -> None:
        handle = self.some(pick)

        def call(disk: Disk) -> None:
            (disk.sync_data if is_data else disk.sync)(handle(disk))

        self.both(call)

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        self.both(lambda disk: disk.rename(old, new))

    @rule(name=NAMES)
    def unlink(self, name: str) -> None:
        self.both(lambda disk: disk.unlink(name))

    @rule(name=NAMES)
    def make_directory(self, name: str) -> None:
        self.both(lambda disk: disk.make_directory(name))

    @rule(name=NAMES)
    def remove_directory(self, name: str) -> None:
        self.both(lambda disk: disk.remove_directory(name))

    @rule(name=NAMES)
    def sync_directory(self, name: str) -> None:
        self.both(lambda disk: disk.sync_directory(name))

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        def call(disk: Disk) -> object:
            info = disk.info(name)
            if info is None:
                return None
            size = 0 if info.is_directory else info.size
            return size, info.is_directory, info.owner

        self.both(call)

    @invariant()
    def trees_are_the_same(self) -> None:
        self.both(tree_of)

    @invariant()
    def open_files_are_the_same(self) -> None:
        for pick in range(len(self.handles)):
            handle = self.some(pick)
            self.both(lambda disk, h=handle: disk.size(h(disk)))  # type: ignore[misc]


def contents(disk: Disk, path: str) -> bytes:
    """Return a file's bytes."""
    handle = disk.open(path, readonly=True)
    data = disk.pread(handle, disk.size(handle), 0)
    disk.close(handle)
    return data


def tree_of(disk: Disk) -> list[tuple[str, bytes | None]]:
    """Return each path, as the disk lists them, with its bytes or None."""
    found: list[tuple[str, bytes | None]] = []
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        info = disk.info(path)
        assert info is not None, path
        found.append((path, None if info.is_directory else contents(disk, path)))
        if info.is_directory:
            waiting += [f"{path.rstrip('/')}/{name}" for name in disk.list(path)]
    return found


TestSameAsACrashableDisk = SameAsACrashableDisk.TestCase
TestSameAsACrashableDisk.settings = settings(max_examples=100, stateful_step_count=40)


def prepare(disk: Disk) -> None:
    """Make /f of 6 bytes, /d/e/g and the empty /d/empty."""
    handle = disk.open("f", create=True)
    disk.pwrite(handle, b"abcdef", 0)
    disk.make_directory("d")
    disk.make_directory("d/empty")
    disk.make_directory("d/e")
    disk.close(disk.open("d/e/g", create=True))


def handle_of(disk: Disk, path: str = "f", **how: bool) -> int:
    """Return a new handle, in the middle of a call."""
    return disk.open(path, **how)


AWKWARD: list[Callable[[Disk], object]] = [
    lambda disk: disk.pwrite(handle_of(disk), b"", 50),
    lambda disk: disk.pwrite(handle_of(disk), b"xy", 4),
    lambda disk: disk.pwrite(handle_of(disk), b"xy", 9),
    lambda disk: disk.pwrite(handle_of(disk), b"xy", -1),
    lambda disk: disk.pwrite(handle_of(disk, readonly=True), b"xy", 0),
    lambda disk: disk.truncate(handle_of(disk, readonly=True), 1),
    lambda disk: disk.allocate(handle_of(disk, readonly=True), 0, 1),
    lambda disk: disk.truncate(handle_of(disk), 2),
    lambda disk: disk.truncate(handle_of(disk), 9),
    lambda disk: disk.truncate(handle_of(disk), 6),
    lambda disk: disk.truncate(handle_of(disk), -1),
    lambda disk: disk.pread(handle_of(disk), 3, 4),
    lambda disk: disk.pread(handle_of(disk), 3, 6),
    lambda disk: disk.pread(handle_of(disk), -1, 0),
    lambda disk: disk.pread(handle_of(disk), 1, -1),
    lambda disk: disk.allocate(handle_of(disk), 0, 0),
    lambda disk: disk.open("d"),
    lambda disk: disk.open("d", create=True, exclusive=True),
    lambda disk: disk.open("f", create=True, exclusive=True),
    lambda disk: disk.open("f/x", create=True),
    lambda disk: disk.open("none/x", create=True),
    lambda disk: disk.open("/", create=True),
    lambda disk: disk.rename("f", "f"),
    lambda disk: disk.rename("f", "d"),
    lambda disk: disk.rename("f", "d/e/g"),
    lambda disk: disk.rename("f", "d/empty"),
    lambda disk: disk.rename("f", "none/x"),
    lambda disk: disk.rename("f", "f/x"),
    lambda disk: disk.rename("none", "f"),
    lambda disk: disk.rename("d", "f"),
    lambda disk: disk.rename("d", "d"),
    lambda disk: disk.rename("d", "d/empty"),
    lambda disk: disk.rename("d", "d/e/d"),
    lambda disk: disk.rename("d/e", "d"),
    lambda disk: disk.rename("d/e", "d/empty"),
    lambda disk: disk.rename("d/empty", "d/e"),
    lambda disk: disk.rename("d/e/g", "d"),
    lambda disk: disk.rename("/", "x"),
    lambda disk: disk.rename("f", "/"),
    lambda disk: disk.unlink("d"),
    lambda disk: disk.unlink("none"),
    lambda disk: disk.unlink("f/x"),
    lambda disk: disk.unlink("d/e/g"),
    lambda disk: disk.remove_directory("d"),
    lambda disk: disk.remove_directory("d/empty"),
    lambda disk: disk.remove_directory("f"),
    lambda disk: disk.remove_directory("/"),
    lambda disk: disk.make_directory("f"),
    lambda disk: disk.make_directory("d"),
    lambda disk: disk.make_directory("none/x"),
    lambda disk: disk.list("f"),
    lambda disk: disk.list("none"),
    lambda disk: disk.sync_directory("f"),
    lambda disk: disk.sync_directory("none"),
    lambda disk: disk.info("f/x"),
    lambda disk: disk.info("none/x"),
    lambda disk: disk.lock("d"),
    lambda disk: disk.lock("none/x"),
    lambda disk: disk.close(3),
    lambda disk: disk.size(3),
    lambda disk: disk.sync(3),
    lambda disk: disk.sync_data(3),
]


@pytest.mark.parametrize("number", range(len(AWKWARD)))
def test_awkward_call_is_the_same(number: int) -> None:
    answers = []
    for disk in (CrashableDisk(), MemoryDisk(MemoryIndex)):
        prepare(disk)
        try:
            answer = AWKWARD[number](disk)
        except OSError as error:
            answer = error.errno
        answers.append((answer, tree_of(disk)))

    assert answers[0] == answers[1]


class TestFiles:
    def test_handles_and_inodes_are_never_used_again(self, disk: MemoryDisk) -> None:
        handles: set[int] = set()
        inodes: set[int] = set()
        for _ in range(3):
            handle = disk.open("a", create=True)
            handles.add(handle)
            info = disk.info("/a")
            assert info is not None
            inodes.add(info.inode)
            disk.close(handle)
            disk.unlink("a")

        assert len(handles) == len(inodes) == 3
        assert min(handles) > 1_000_000

    def test_removed_file_lives_as_long_as_its_handle(self, disk: MemoryDisk) -> None:
        handle = disk.open("a", create=True)
        disk.pwrite(handle, b"data", 0)
        disk.unlink("a")

        assert disk.pread(handle, 10, 0) == b"data"
        assert disk.info("a") is None
        disk.close(handle)
        with raises_errno(errno.EBADF):
            disk.pread(handle, 10, 0)

    def test_what_is_read_does_not_change(self, disk: MemoryDisk) -> None:
        handle = disk.open("a", create=True)
        data = bytearray(b"data")
        disk.pwrite(handle, data, 0)
        before = disk.pread(handle, 4, 0)

        data[:] = b"gone"
        disk.pwrite(handle, b"new", 0)

        assert before == b"data"
        assert disk.pread(handle, 4, 0) == b"newa"

    def test_reserved_room_takes_no_memory(self, disk: MemoryDisk) -> None:
        handle = disk.open("a", create=True)

        assert disk.allocate(handle, 0, 1 << 50)

        assert disk.size(handle) == 0

    def test_medium(self, disk: MemoryDisk) -> None:
        assert disk.file_system("/") == "memory"
        assert disk.is_flash("/") is False
        disk.drop_cache(disk.open("a", create=True))

    def test_disks_share_nothing(self) -> None:
        one, two = MemoryDisk(MemoryIndex), MemoryDisk(MemoryIndex)
        replace_file(one, "FORMAT", b"one")

        assert contents(one, "FORMAT") == b"one"
        assert two.list("/") == []

    def test_wrong_arguments(self, disk: MemoryDisk) -> None:
        with pytest.raises(AssertionError, match="exclusive without create"):
            disk.open("a", exclusive=True)
        with pytest.raises(AssertionError, match="create with readonly"):
            disk.open("a", create=True, readonly=True)


class TestLock:
    def test_one_owner(self, disk: MemoryDisk) -> None:
        disk.make_directory("d")
        lock = disk.lock("d/LOCK")
        lock.write("process 7")

        assert contents(disk, "d/LOCK") == b"process 7\n"
        with pytest.raises(LockHeld) as caught:
            disk.lock("/d/../d/LOCK")
        assert caught.value.is_ours
        assert caught.value.holder == "process 7"

    def test_release(self, disk: MemoryDisk) -> None:
        lock = disk.lock("LOCK")
        lock.write("first")
        lock.release()

        second = disk.lock("LOCK")

        # The first one is over, whatever is done with it.
        lock.release()
        with pytest.raises(AssertionError, match="was released"):
            lock.write("first")
        with pytest.raises(LockHeld, match="no text"):
            disk.lock("LOCK")
        assert contents(disk, "LOCK") == b""
        second.release()

    def test_directory(self, disk: MemoryDisk) -> None:
        with raises_errno(errno.EISDIR):
            disk.lock("/")


class TestIndex:
    def test_same_path_same_index(self, disk: MemoryDisk) -> None:
        assert disk.index_factory is not None
        index = disk.index_factory("store/index")

        assert isinstance(index, MemoryIndex)
        assert index.path == "store/index"
        assert disk.index_factory("/store//index") is index
        assert disk.index_factory("other/index") is not index

    def test_rows_outlive_a_close(self, disk: MemoryDisk) -> None:
        index = create_index("i", disk=disk)
        index.apply(Changes(put_tasks=[(9, 9, b"body")]))
        index.close()

        again = open_index("i", disk=disk, vouched=True)

        assert again is not None
        with again.snapshot() as view:
            assert view.task(9) == (9, b"body")


def test_log_runs_on_it(disk: MemoryDisk) -> None:
    for path in ("/store", "/store/log", "/store/aside"):
        disk.make_directory(path)
    appender, _, _ = open_log(disk, segment_bytes=3 * 4096)
    for number in range(40):
        appender.append(b"payload" * number)
    appender.close()

    again, frames, _ = open_log(disk, seed=1)

    assert rows(frames) == appender.written
    assert again.writer.check() == []


def test_threads(disk: MemoryDisk) -> None:
    names = [f"name-{turn}" for turn in range(500)]
    handles: list[int] = []
    lost = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for name in names:
                try:
                    handle = disk.open(name, create=True, exclusive=True)
                except FileExistsError:
                    lost.append(name)
                    continue
                handles.append(handle)
                disk.pwrite(handle, name.encode(), 0)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    # Threads change places as often as they can.
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert errors == []
    # Each name was made by one of them, under a handle of its own.
    assert len(set(handles)) == len(handles) == len(names)
    assert len(lost) == 3 * len(names)
    assert all(contents(disk, name) == name.encode() for name in names)
