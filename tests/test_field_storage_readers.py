"""Faults that other stores had with those who only read them.

Goal: readers of every kind, in great number, without any right to write, killed or
asleep, see a state that was, change nothing, and use nothing up. Method: real processes
beside a real owner, a read-only mount, another user, LMDB's own file. Each test names
the public threads whose fault it looks for.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from field_helpers import ROOT, Child
from recovery_helpers import ids_of

import wheeldb
from tools.soak.room import mount, unmount
from wheeldb.model import NewTask

MIB = 2**20
NOBODY = 65_534

# Who may only read.


def hashes(path: Path) -> dict[str, str]:
    """Return a hash of every file, by name."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "wheeldb", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def some_store(path: Path, *, is_closed: bool) -> None:
    """Make a store of 50 tasks, closed or killed."""
    script = """
import os, sys, wheeldb
db = wheeldb.open(sys.argv[1], driver=False)
db.schedule_many([wheeldb.NewTask("task", {"n": n}, delay=60) for n in range(50)])
db.checkpoint()
db.schedule("task", delay=60)
db.close() if sys.argv[2] == "True" else os._exit(0)
"""
    with Child(script, path, is_closed) as child:
        assert child.end() == ("", 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_store_on_a_read_only_mount_can_be_replayed(
    tmp_path: Path, is_closed: bool
) -> None:
    # jnwatson/py-lmdb#141, jnwatson/py-lmdb#16, kriszyp/lmdb-js#271: to read was to
    # write a lock file, and failed where nothing can be written.
    place = tmp_path / "place"
    place.mkdir()
    refusal = mount(place, 64 * MIB)
    if refusal:
        pytest.skip(f"no tmpfs can be mounted here: {refusal}")
    try:
        some_store(place / "store", is_closed=is_closed)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        before = hashes(place)
        for verb in ("replay", "check", "stat", "ls", "dump"):
            ended = command(verb, place / "store")
            assert ended.returncode == 0, ended.stderr
        assert hashes(place) == before
        ended = command("add", place / "store", "task", "--delay", "1s")
        assert ended.returncode == 3
        assert str(place / "store") in ended.stderr
        assert "Traceback" not in ended.stderr
    finally:
        unmount(place)


# The interpreter may lie where nobody else can read it: it is loaded before.
AS_NOBODY = """
import encodings.ascii, os, sys, tempfile
import wheeldb
from wheeldb.cli import main
with tempfile.TemporaryDirectory() as place:  # and what LMDB is loaded with
    wheeldb.open(f"{place}/store", driver=False, reserve=False).close()
for verb in ("replay", "check", "ls"):
    try:
        main([verb, "--help"])
    except SystemExit:
        pass
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
print("nobody", flush=True)
print("exit", main(sys.argv[2:]), flush=True)
"""


def as_nobody(*arguments: object) -> tuple[str, int]:
    """Run the command line as somebody else; return what was said, and its exit."""
    with Child(AS_NOBODY, NOBODY, *arguments) as child:
        while child.line() != "nobody":
            pass
        said, _ = child.end()
    said, _, status = said.rpartition("exit ")
    return said, int(status)


@pytest.fixture
def public_place() -> Iterator[Path]:
    """A directory on the way to which nobody is held up."""
    place = Path(tempfile.mkdtemp(prefix="wheeldb-field-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_somebody_who_may_only_read_can_replay_or_is_told_what_is_missing(
    public_place: Path,
) -> None:
    # ThoughtRiver/lmdb-embeddings#7, jnwatson/py-lmdb#141: another user's database
    # could not be opened for reading.
    store = public_place / "store"
    some_store(store, is_closed=True)
    said, status = as_nobody("replay", store)
    assert status == 3, said
    assert str(store) in said
    assert "ermission" in said
    assert "Traceback" not in said
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = hashes(store)
    for verb in ("replay", "check", "ls"):
        said, status = as_nobody(verb, store)
        assert status == 0, said
    assert hashes(store) == before


# Beside the owner.

BUSY = """
import sys, threading, wheeldb
db = wheeldb.open(sys.argv[1], durability="written", segment_bytes=65536)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
print("open", flush=True)
number = 0
while not stop.is_set():
    db.schedule("task", "x" * 100, delay=3600, id=f"{number:08d}")
    number += 1
    if number % 500 == 0:
        db.checkpoint()
    if number % 2000 == 0:
        db.snapshot()
print(number, db.check(), db.statistics().index_bytes, flush=True)
db.close()
print("closed", flush=True)
"""

READ = """
import sys, wheeldb
with wheeldb.open(sys.argv[1], readonly=True) as db:
    ids = sorted(task.id for task in db.tasks())
print(len(ids), ids == [f"{n:08d}" for n in range(len(ids))], flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_of_a_live_store_shows_a_prefix_of_its_history(
    tmp_path: Path,
) -> None:
    # monero-project/monero#6700, BVLC/caffe#2384: reading without a lock beside a
    # writer risks what was never there.
    store = tmp_path / "store"
    with Child(BUSY, store) as owner:
        assert owner.line() == "open"
        counts = []
        for number in range(6):
            with Child(READ, store) as reader:
                if number % 3 == 2:
                    reader.kill()
                    continue
                count, is_prefix = reader.line().split()
                assert is_prefix == "True"
                counts.append(int(count))
        assert counts == sorted(counts)
        replayed = tmp_path / "replayed"
        ended = command("replay", store, "--to", replayed)
        assert ended.returncode == 0, ended.stderr
        with wheeldb.open(replayed, driver=False) as db:
            ids = ids_of(db)
            assert ids == [f"{n:08d}" for n in range(len(ids))]
            assert len(ids) >= counts[-1]
        owner.tell()
        count, findings, _ = owner.line().split()
        assert int(count) > len(ids)
        assert findings == "[]"
        assert owner.line() == "closed"


# Readers that stop reading.


def grow(db: wheeldb.WheelDB, rounds: int) -> int:
    """Change every task over and over; return the size of the index."""
    ids = [task.id for task in db.tasks()]
    for number in range(rounds):
        with db.batch() as batch:
            for task_id in ids:
                batch.reschedule(task_id, delay=3_600 + number)
        db.checkpoint()
    return db.statistics().index_bytes


def listing(db: wheeldb.WheelDB) -> Iterator[object]:
    return db.tasks()


def log(db: wheeldb.WheelDB) -> Iterator[object]:
    return db.events()


@pytest.mark.slow
@pytest.mark.parametrize("read", [listing, log])
def test_a_reader_that_stops_reading_does_not_make_the_index_grow(
    tmp_path: Path, read: Callable[[wheeldb.WheelDB], Iterator[object]]
) -> None:
    # mozilla/rkv#47, paradigmxyz/reth#5941: a read transaction that was left open kept
    # every old page alive.
    with wheeldb.open(tmp_path, driver=False, durability="written") as db:
        db.schedule_many([NewTask("task", "x" * 1_000, delay=3_600)] * 500)
        before = grow(db, 5)
        reading = read(db)
        next(reading)
        after = grow(db, 40)
        # Forty times the table of half a MiB would show.
        assert after <= before + 4 * MIB
        next(reading)
        assert db.check() == []


SLEEPER = """
import sys, wheeldb
db = wheeldb.open(sys.argv[1], readonly=True)
listing = db.tasks()
next(listing)
print("reading", flush=True)
sys.stdin.readline()
print(1 + sum(1 for _ in listing), flush=True)
"""


@pytest.mark.slow
def test_a_reader_in_another_process_is_no_burden_once_it_is_gone(
    tmp_path: Path,
) -> None:
    # paradigmxyz/reth#5941: the reader that stopped was a process of its own, and was
    # killed in the middle of it. As long as it lives, the pages that it sees are kept.
    with wheeldb.open(tmp_path, driver=False, durability="written") as db:
        db.schedule_many([NewTask("task", "x" * 1_000, delay=3_600)] * 500)
        grow(db, 5)
        with Child(SLEEPER, tmp_path) as reader:
            assert reader.line() == "reading"
            asleep = grow(db, 20)
            reader.tell()
            assert reader.line() == "500"
            assert reader.end()[1] == 0
        with Child(SLEEPER, tmp_path) as reader:
            assert reader.line() == "reading"
            reader.kill()
        assert grow(db, 40) <= asleep + 4 * MIB
        assert db.check() == []


KILLED_READERS = """
import os, signal, sys, wheeldb
path = sys.argv[1]
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        db = wheeldb.open(path, readonly=True)
        next(db.tasks())
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
print("killed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_readers_and_short_threads_use_up_nothing(tmp_path: Path) -> None:
    # cocoindex-io/cocoindex-code#129, frappe/mail#559, atlassian-labs/atlaspack#594,
    # kriszyp/lmdb-js#14, lmdbjava/lmdbjava#65, goatpig/BitcoinArmory#625: each reader
    # that was killed, and each thread that had read once, kept a slot, until there was
    # none left.
    with wheeldb.open(tmp_path, driver=False, durability="written") as db:
        db.schedule_many([NewTask("task", delay=3_600)] * 100)
        db.checkpoint()
        with Child(KILLED_READERS, tmp_path, 200) as child:
            assert child.line() == "killed"
        failures: list[BaseException] = []

        def look() -> None:
            try:
                assert sum(1 for _ in db.tasks(limit=3)) == 3
            except BaseException as error:
                failures.append(error)

        for _ in range(50):
            threads = [Thread(target=look) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not failures
        with wheeldb.open(tmp_path, readonly=True) as reader:
            assert sum(1 for _ in reader.tasks()) == 100
        grow(db, 3)
        assert db.check() == []
