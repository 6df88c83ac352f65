"""The real disk in a temporary directory, and what is built on the protocol.

Goal: each call keeps its contract on this machine's file system, one directory has one
owner however it is reached, and an atomic replacement is atomic. Method: plain calls;
other processes where the kernel's word is asked; a crash at every operation of
`replace_file` on `CrashableDisk`.
"""

import errno
import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wheeldb.disk import (
    Disk,
    LockHeld,
    OsDisk,
    replace_file,
    write_all,
)
from wheeldb.disk.device import is_flash_device
from wheeldb.testing import CrashableDisk, PowerCut

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux"
)


@pytest.fixture
def disk() -> Disk:
    return OsDisk()


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process that has `disk` and `sys.argv`."""
    head = "import os, sys\nfrom wheeldb.disk import *\ndisk = OsDisk()\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )


def raises_errno(*numbers: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with one of these numbers."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno in numbers)


def finish(process: subprocess.Popen[str]) -> str:
    """Let a process run to its end and return what it printed."""
    output, _ = process.communicate()
    assert process.returncode == 0, f"exit {process.returncode}: {output}"
    return output


class TestOpen:
    def test_new_file_is_private_and_not_inherited(
        self, disk: Disk, tmp_path: Path
    ) -> None:
        handle = disk.open(str(tmp_path / "a"), create=True)

        assert stat.S_IMODE(os.fstat(handle).st_mode) == 0o600
        assert not os.get_inheritable(handle)
        disk.close(handle)

    def test_missing(self, disk: Disk, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open(str(tmp_path / "a"))

    def test_exclusive(self, disk: Disk, tmp_path: Path) -> None:
        disk.close(disk.open(str(tmp_path / "a"), create=True, exclusive=True))

        with pytest.raises(FileExistsError):
            disk.open(str(tmp_path / "a"), create=True, exclusive=True)

    def test_readonly_refuses_a_write(self, disk: Disk, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        handle = disk.open(str(tmp_path / "a"), readonly=True)

        with raises_errno(errno.EBADF):
            disk.pwrite(handle, b"new", 0)

        disk.close(handle)

    @pytest.mark.parametrize("closed", [(0,), (2,), (0, 2)])
    def test_never_a_standard_descriptor(
        self, tmp_path: Path, closed: tuple[int, ...]
    ) -> None:
        script = """
closed = [int(number) for number in sys.argv[2:]]
for number in closed:
    os.close(number)
handles = [disk.open(f"{sys.argv[1]}/{n}", create=True) for n in range(2)]
lock = disk.lock(f"{sys.argv[1]}/LOCK")
print(min(handles) > 2, os.get_inheritable(handles[0]))
print([number for number in closed if os.path.exists(f"/dev/fd/{number}")])
"""
        assert finish(start(script, tmp_path, *closed)) == "True False\n[]\n"


class TestFiles:
    def test_write_and_read_at_offsets(self, disk: Disk, tmp_path: Path) -> None:
        handle = disk.open(str(tmp_path / "a"), create=True)

        assert disk.pwrite(handle, memoryview(b"wheel"), 3) == 5
        assert disk.pread(handle, 100, 1) == b"\0\0wheel"
        assert disk.size(handle) == 8
        disk.truncate(handle, 4)
        assert disk.pread(handle, 100, 0) == b"\0\0\0w"
        disk.sync_data(handle)
        disk.sync(handle)
        disk.drop_cache(handle)
        disk.sync_directory(str(tmp_path))
        disk.close(handle)

    @linux_only
    def test_commit_path_is_the_c_functions(self) -> None:
        disk = OsDisk()

        assert disk.sync_data is os.fdatasync
        assert disk.pwrite is os.pwrite
        assert disk.pread is os.pread

    @linux_only
    def test_allocate_keeps_the_length(self, disk: Disk, tmp_path: Path) -> None:
        handle = disk.open(str(tmp_path / "a"), create=True)
        disk.pwrite(handle, b"x", 0)

        if not disk.allocate(handle, 0, 1 << 20):
            pytest.skip("this file system can't reserve room")

        assert disk.size(handle) == 1
        assert os.fstat(handle).st_blocks * 512 >= 1 << 20
        disk.close(handle)

    @linux_only
    def test_allocate_beyond_the_disk(self, disk: Disk, tmp_path: Path) -> None:
        handle = disk.open(str(tmp_path / "a"), create=True)
        if not disk.allocate(handle, 0, 4096):
            pytest.skip("this file system can't reserve room")

        with raises_errno(errno.ENOSPC, errno.EFBIG):
            disk.allocate(handle, 0, 1 << 60)

        disk.close(handle)
        with raises_errno(errno.EBADF):
            disk.allocate(handle, 0, 4096)


class TestNames:
    def test_directories(self, disk: Disk, tmp_path: Path) -> None:
        made = str(tmp_path / "log")
        disk.make_directory(made)
        disk.make_directory(made)

        info = disk.info(made)
        assert info is not None
        assert info.is_directory
        assert info.owner == os.geteuid()
        assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
        disk.remove_directory(made)
        assert disk.info(made) is None

    def test_directory_in_place_of_a_file(self, disk: Disk, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(b"")

        with pytest.raises(FileExistsError):
            disk.make_directory(str(tmp_path / "log"))

    def test_info_of_a_file_and_below_one(self, disk: Disk, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"12345")

        info = disk.info(str(tmp_path / "a"))

        assert info is not None
        assert (info.size, info.is_directory) == (5, False)
        status = (tmp_path / "a").stat()
        assert (info.device, info.inode) == (status.st_dev, status.st_ino)
        assert disk.info(str(tmp_path / "a" / "b")) is None

    def test_list_is_sorted(self, disk: Disk, tmp_path: Path) -> None:
        for name in ("c", "a", "b"):
            (tmp_path / name).touch()

        disk.rename(str(tmp_path / "a"), str(tmp_path / "d"))
        disk.unlink(str(tmp_path / "c"))

        assert disk.list(str(tmp_path)) == ["b", "d"]


class TestDevice:
    @linux_only
    def test_file_system_agrees_with_the_mount_table(
        self, disk: Disk, tmp_path: Path
    ) -> None:
        device = tmp_path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        names = {
            line.split(" - ")[1].split()[0]
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if line.split()[2] == number
        }
        if len(names) != 1:
            pytest.skip(f"{number} isn't a mount of its own")

        name = disk.file_system(str(tmp_path))

        # One number stands for all three; the newest is what anybody uses.
        assert name in names | ({"ext4"} if names & {"ext2", "ext3"} else set())

    @linux_only
    def test_file_system_of_nothing(self, disk: Disk, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            disk.file_system(str(tmp_path / "missing"))

    def test_is_flash_answers(self, disk: Disk, tmp_path: Path) -> None:
        assert disk.is_flash(str(tmp_path)) in {True, False, None}

    @pytest.mark.parametrize(
        ("device", "parts", "expected"),
        [
            ("platform/mmc_host/mmc0/block/mmcblk0", (), True),
            ("platform/mmc_host/mmc0/block/mmcblk0/mmcblk0p2", (), True),
            ("pci/nvme0/nvme0n1", (), False),
            ("pci/nvme0/nvme0n1/nvme0n1p1", (), False),
            ("pci/ata1/sda/sda1", (), False),
            ("pci/usb1/1-2/sdb/sdb1", (), None),
            ("virtual/block/loop0", (), None),
            ("virtual/block/dm-0", ("pci/ata1/sda",), False),
            ("virtual/block/md0/md0p1", ("pci/ata1/sda", "pci/ata2/sdb"), False),
            ("virtual/block/dm-0", ("pci/ata1/sda", "mmc0/mmcblk0"), True),
            ("virtual/block/dm-0", ("pci/ata1/sda", "virtual/block/loop0"), None),
        ],
    )
    def test_is_flash_device(
        self, tmp_path: Path, device: str, parts: tuple[str, ...], expected: bool | None
    ) -> None:
        path = tmp_path / "devices" / device
        path.mkdir(parents=True)
        disk = path
        if path.name.startswith(path.parent.name):
            (path / "partition").touch()
            disk = path.parent
        for part in parts:
            below = tmp_path / "devices" / part
            below.mkdir(parents=True)
            (disk / "slaves").mkdir(exist_ok=True)
            (disk / "slaves" / below.name).symlink_to(below)
        block = tmp_path / "block"
        block.mkdir()
        (block / "8:1").symlink_to(path)

        number = os.makedev(8, 1)

        assert is_flash_device(number, sys_block=str(block)) is expected

    def test_is_flash_device_without_a_device(self, tmp_path: Path) -> None:
        assert is_flash_device(os.makedev(0, 7), sys_block=str(tmp_path)) is None


class TestLock:
    def test_second_in_this_process_is_refused(
        self, disk: Disk, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "LOCK")
        lock = disk.lock(path)
        lock.write("pid 4711")

        with pytest.raises(LockHeld) as caught:
            OsDisk().lock(path, delay_ms=0)

        assert caught.value.is_ours
        assert caught.value.holder == "pid 4711"
        lock.release()
        lock.release()
        disk.lock(path).release()
        assert (tmp_path / "LOCK").exists()

    @pytest.mark.parametrize("kind", ["directory link", "hard link"])
    def test_second_name_of_the_directory_is_refused(
        self, disk: Disk, tmp_path: Path, kind: str
    ) -> None:
        (tmp_path / "store").mkdir()
        lock = disk.lock(str(tmp_path / "store" / "LOCK"))
        if kind == "directory link":
            (tmp_path / "other").symlink_to(tmp_path / "store")
        else:
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "LOCK").hardlink_to(tmp_path / "store" / "LOCK")

        with pytest.raises(LockHeld):
            disk.lock(str(tmp_path / "other" / "LOCK"), delay_ms=0)

        lock.release()

    def test_another_process_is_refused_with_the_holder(
        self, disk: Disk, tmp_path: Path
    ) -> None:
        lock = disk.lock(str(tmp_path / "LOCK"))
        lock.write("a longer text that goes away")
        lock.write("pid 4711 (päthon)")
        script = """
try:
    disk.lock(sys.argv[1], delay_ms=0)
except LockHeld as error:
    print(ascii(error.holder), error.is_ours)
"""
        output = finish(start(script, tmp_path / "LOCK"))

        assert output == ascii("pid 4711 (päthon)") + " False\n"
        assert (tmp_path / "LOCK").read_text("utf-8") == "pid 4711 (päthon)\n"
        lock.release()

    def test_one_of_several_wins(self, tmp_path: Path) -> None:
        script = """
try:
    lock = disk.lock(sys.argv[1], attempts=1)
    print("won", flush=True)
except LockHeld:
    print("lost", flush=True)
sys.stdin.read()
"""
        racers = [start(script, tmp_path / "LOCK") for _ in range(5)]

        answers = sorted(racer.stdout.readline() for racer in racers if racer.stdout)

        assert answers == ["lost\n"] * 4 + ["won\n"]
        for racer in racers:
            finish(racer)

    def test_killed_holder_leaves_no_lock(self, disk: Disk, tmp_path: Path) -> None:
        path = tmp_path / "LOCK"
        script = """
lock = disk.lock(sys.argv[1])
lock.write("the dead one")
print("ready", flush=True)
sys.stdin.read()
"""
        holder = start(script, path)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(LockHeld, match="the dead one"):
            disk.lock(str(path), delay_ms=0)

        holder.send_signal(signal.SIGKILL)
        holder.communicate()

        assert path.read_text() == "the dead one\n"
        lock = disk.lock(str(path))
        # The dead one's text is gone as soon as there is a new owner.
        assert path.read_text() == ""
        lock.release()

    @pytest.mark.parametrize(
        "left", [b"", b"4711\n", b"\xff\xfe\0" * 3000, bytes(10_000)]
    )
    def test_content_is_no_lock(self, disk: Disk, tmp_path: Path, left: bytes) -> None:
        (tmp_path / "LOCK").write_bytes(left)

        lock = disk.lock(str(tmp_path / "LOCK"), attempts=1)

        lock.write("me")
        assert (tmp_path / "LOCK").read_bytes() == b"me\n"
        lock.release()

    @pytest.mark.parametrize("left", [b"\xff\xfe\0" * 3000, bytes(10_000)])
    def test_garbage_as_the_holder(
        self, disk: Disk, tmp_path: Path, left: bytes
    ) -> None:
        (tmp_path / "LOCK").write_bytes(left)
        other = os.open(tmp_path / "LOCK", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)

        with pytest.raises(LockHeld) as caught:
            disk.lock(str(tmp_path / "LOCK"), attempts=1)

        assert not caught.value.is_ours
        os.close(other)

    def test_waits_for_a_holder_that_is_going(
        self, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A second description of this process is another owner to the kernel.
        other = os.open(tmp_path / "LOCK", os.O_RDWR | os.O_CREAT)
        fcntl.flock(other, fcntl.LOCK_EX)
        waits: list[float] = []

        def wait(_r: object, _w: object, _x: object, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 4:
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr(select, "select", wait)

        lock = disk.lock(str(tmp_path / "LOCK"), attempts=5, delay_ms=50)

        assert waits == [0.05] * 4
        lock.release()
        waits.clear()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockHeld):
            disk.lock(str(tmp_path / "LOCK"), attempts=4, delay_ms=0)
        assert waits == [0.0] * 3
        os.close(other)

    def test_file_replaced_while_being_locked(
        self, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "LOCK"
        flock = fcntl.flock

        def replace_and_flock(handle: int, flags: int) -> None:
            (tmp_path / "new").touch()
            (tmp_path / "new").rename(path)
            flock(handle, flags)

        monkeypatch.setattr(fcntl, "flock", replace_and_flock)
        handles = os.listdir("/dev/fd")

        with pytest.raises(OSError, match="replaced") as caught:
            disk.lock(str(path))

        assert caught.value.filename == str(path)
        assert os.listdir("/dev/fd") == handles
        monkeypatch.undo()
        disk.lock(str(path)).release()

    def test_forked_child_does_not_keep_the_lock(
        self, disk: Disk, tmp_path: Path
    ) -> None:
        script = """
lock = disk.lock(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
os._exit(0)
"""
        with start(script, tmp_path / "LOCK") as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.wait()

            # The child is alive (it waits for its input) and must not be an owner.
            os.kill(child, 0)
            disk.lock(str(tmp_path / "LOCK"), attempts=1).release()

    def test_forked_child_cannot_give_the_parents_lock_away(
        self, tmp_path: Path
    ) -> None:
        script = """
lock = disk.lock(sys.argv[1])
lock.write("parent")
if (child := os.fork()) == 0:
    lock.release()
    try:
        disk.lock(sys.argv[1], attempts=1)
    except LockHeld as error:
        os._exit(0 if error.holder == "parent" and not error.is_ours else 2)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
lock.release()
disk.lock(sys.argv[1], attempts=1)
"""
        assert finish(start(script, tmp_path / "LOCK")) == "0\n"


class TestHelpers:
    def test_write_all_goes_on_after_short_writes(self) -> None:
        disk = CrashableDisk()
        handle = disk.open("a", create=True)
        disk.fail("pwrite", "short", forever=True)

        write_all(disk, handle, b"0123456789" * 100, 7)

        assert disk.dump()["/a"] == bytes(7) + b"0123456789" * 100
        assert len(disk.operations) > 3

    def test_write_all_raises_after_a_short_write(self) -> None:
        disk = CrashableDisk()
        handle = disk.open("a", create=True)
        disk.full(8192)

        with raises_errno(errno.ENOSPC):
            write_all(disk, handle, b"x" * 10_000, 0)

        assert disk.dump()["/a"] == b"x" * 8192

    def test_replace_file_on_the_real_disk(self, disk: Disk, tmp_path: Path) -> None:
        path = tmp_path / "FORMAT"
        (tmp_path / "FORMAT.tmp").write_bytes(b"left by a crash, and longer")

        replace_file(disk, str(path), b"one")
        replace_file(disk, str(path), b"two")

        assert path.read_bytes() == b"two"
        assert disk.list(str(tmp_path)) == ["FORMAT"]

    def test_replace_file_leaves_a_second_name_alone(self) -> None:
        # A rename that was cut between its link and its unlink leaves both names.
        found = set()
        for seed in range(40):
            disk = CrashableDisk(seed)
            disk.load({"/FORMAT": b"old"})
            handle = disk.open("/FORMAT.tmp", create=True)
            disk.pwrite(handle, b"first", 0)
            disk.sync(handle)
            disk.rename("/FORMAT.tmp", "/FORMAT")
            disk.crash("split_rename")
            before = disk.dump().get("/FORMAT")
            disk.fail("sync", errno.EIO)
            with raises_errno(errno.EIO):
                replace_file(disk, "/FORMAT", b"second and longer")
            assert disk.dump().get("/FORMAT") == before
            found.add(before)
        assert b"first" in found

    @pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "rename"])
    def test_replace_file_fails_with_the_old_one_in_place(self, operation: str) -> None:
        disk = CrashableDisk()
        disk.load({"/FORMAT": b"old"})
        disk.fail(operation, errno.EIO)

        with raises_errno(errno.EIO):
            replace_file(disk, "FORMAT", b"new")

        assert disk.dump()["/FORMAT"] == b"old"
        if operation != "rename":
            assert disk.list("/") == ["FORMAT"]

    @pytest.mark.parametrize(
        "profile", ["none", "all", "prefix", "subset", "torn", "block", "stale_tail"]
    )
    @pytest.mark.parametrize("left", [{}, {"/d/FORMAT.tmp": b"left" * 1000}])
    def test_replace_file_is_atomic_at_every_crash(
        self, profile: str, left: dict[str, bytes]
    ) -> None:
        new = b"new" * 1000
        finished = False
        cut = 0
        while not finished:
            cut += 1
            for seed in range(5):
                disk = CrashableDisk(seed)
                disk.load({"/d/FORMAT": b"old", **left})
                disk.crash_at(cut)
                try:
                    replace_file(disk, "/d/FORMAT", new)
                    finished = True
                except PowerCut:
                    pass
                disk.crash(profile)
                found = disk.dump()["/d/FORMAT"]
                assert found == new or (found == b"old" and not finished), (cut, seed)
        assert cut > 5
