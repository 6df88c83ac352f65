"""One owner per directory, among real processes.

Goal: whatever lies in LOCK, however the owner ended and whoever comes second, there is
one owner, the others are told at once who it is, and nobody loses it by another's
doing. Method: real processes that talk over pipes; SIGKILL, SIGSTOP and fork are real.
Nothing here sleeps: each step waits for a line that the step before caused.
"""

import os
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from field_helpers import Bench, Child

import wheeldb
from wheeldb.errors import ClosedError, LockedError
from wheeldb.testing import CrashableDisk, ManualClock

OWNER = """
import sys, wheeldb
with wheeldb.open(sys.argv[1]) as db:
    print("open", flush=True)
    sys.stdin.readline()
print("closed", flush=True)
"""

# Ends as a program does that doesn't catch the error.
SECOND = """
import sys, wheeldb
sys.tracebacklimit = 0
with wheeldb.open(sys.argv[1]) as db:
    print("open", db.check(), flush=True)
"""

# Told a path it opens the store, told nothing it closes it; answers each.
RIVAL = """
import sys, wheeldb
db = None
print("ready", flush=True)
for line in sys.stdin:
    path = line.rstrip()
    try:
        if path:
            db = wheeldb.open(path)
            print("open", flush=True)
        elif db is None:
            print("closed []", flush=True)
        else:
            findings = db.check()
            db.close()
            db = None
            print("closed", findings, flush=True)
    except wheeldb.LockedError as error:
        print("locked", error, flush=True)
    except BaseException as error:
        print("wrong", type(error).__name__, error, flush=True)
"""


def rival() -> Child:
    """Return another process that is ready to open what it is told."""
    child = Child(RIVAL)
    assert child.line() == "ready"
    return child


def refuse(path: Path | str) -> str:
    """Try to open a store that is open, and return what was said."""
    with pytest.raises(LockedError) as caught:
        wheeldb.open(path)
    return str(caught.value)


# What lies in LOCK proves nothing.


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"pid %d (python gateway.py, since 2026-12-01T14:03:22+00:00)\n" % os.getpid(),
        b"1\n",
        b"pid 1 (init)\n",
        b"pid %d (sh)\n" % os.getppid(),
        b"pid 4194303 (gone)\n",
        b"\xff\xfe\x00 garbage \n\n",
        b"x" * 100_000,
    ],
    ids=["empty", "own", "1", "init", "parent", "dead", "garbage", "long"],
)
def test_a_left_over_lock_file_is_no_lock(tmp_path: Path, text: bytes) -> None:
    # jhuckaby/Cronicle#789, rethinkdb/rethinkdb#36: a number that somebody else has now
    # was taken for the owner, and the service did not start after a reboot.
    wheeldb.open(tmp_path, driver=False).close()
    (tmp_path / "LOCK").write_bytes(text)
    with wheeldb.open(tmp_path, driver=False) as db:
        db.schedule("task", delay=1)
        assert f"pid {os.getpid()} (python" in refuse(tmp_path)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with Child(OWNER, tmp_path) as owner:
        assert owner.line() == "open"
        assert f"pid {owner.pid} " in refuse(tmp_path)
        owner.kill()
        wheeldb.open(tmp_path, driver=False).close()


# Who comes second is told at once.


def test_the_message_names_the_owner_and_what_to_do(tmp_path: Path) -> None:
    with Child(OWNER, tmp_path) as owner:
        assert owner.line() == "open"
        assert re.fullmatch(
            rf"{re.escape(str(tmp_path))} is open in pid {owner.pid} "
            r"\(python -c, since \d\d:\d\d:\d\d\); "
            r"use wheeldb\.connect\(path\) to reach it",
            refuse(tmp_path),
        )
        owner.tell()
        assert owner.line() == "closed"


def test_the_message_tells_the_start_in_the_readers_own_time() -> None:
    disk = CrashableDisk()
    start = datetime(2026, 12, 1, 14, 3, 22, tzinfo=UTC)
    here = start.astimezone()
    db = wheeldb.open("/store", disk=disk, clock=ManualClock(start), driver=False)
    for later, shown in (
        (timedelta(0), f"since {here:%H:%M:%S})"),
        (timedelta(days=40), f"since {here:%Y-%m-%d %H:%M:%S})"),
        (timedelta(days=-40), f"since {here:%Y-%m-%d %H:%M:%S})"),
    ):
        with pytest.raises(LockedError) as caught:
            wheeldb.open("/store", disk=disk, clock=ManualClock(start + later))
        assert shown in caught.value.holder
        assert caught.value.path == "/store"
    db.close()


@pytest.mark.parametrize(
    "holder",
    ["", "pid 7", "pid 7 (python x.py, since yesterday)", "since 12\0)", "since )"],
)
def test_a_holder_of_another_kind_is_told_as_it_is(holder: str) -> None:
    disk = CrashableDisk()
    disk.make_directory("/store")
    disk.lock("/store/LOCK").write(holder)
    with pytest.raises(LockedError) as caught:
        wheeldb.open("/store", disk=disk, clock=ManualClock())
    assert caught.value.holder == holder
    if not holder:
        assert "another process" in str(caught.value)


def test_arguments_of_the_owner_are_not_told(tmp_path: Path) -> None:
    with Child(OWNER, tmp_path, "--token=secret") as owner:
        assert owner.line() == "open"
        assert "secret" not in refuse(tmp_path)
        assert b"secret" not in (tmp_path / "LOCK").read_bytes()


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_who_comes_second_does_not_wait(tmp_path: Path, is_stopped: bool) -> None:
    # kolide/launcher#541, numtide/treefmt#408: the second one hung for ever. The owner
    # can't answer when it is stopped; the kernel's word is enough.
    with Child(OWNER, tmp_path) as owner:
        assert owner.line() == "open"
        if is_stopped:
            os.kill(owner.pid, signal.SIGSTOP)
        with Child(SECOND, tmp_path) as second:
            said, status = second.end()
        assert status == 1
        assert f"is open in pid {owner.pid} " in said
        if is_stopped:
            os.kill(owner.pid, signal.SIGCONT)
        owner.tell()
        assert owner.line() == "closed"
    wheeldb.open(tmp_path, driver=False).close()


def test_the_loser_does_not_release_the_winners_lock(tmp_path: Path) -> None:
    # rq/rq#1914, rq/rq#1531: a scheduler that had not got the lock freed it on exit.
    with wheeldb.open(tmp_path, driver=False) as db, rival() as third:
        with Child(SECOND, tmp_path) as loser:
            assert loser.end()[1] == 1
        third.tell(str(tmp_path))
        assert third.line().startswith("locked")
        db.schedule("task", delay=1)
        assert db.check() == []


def test_an_owner_with_much_to_do_stays_the_owner(tmp_path: Path) -> None:
    # rq/rq#1354: a large batch took longer than the lock's life, and a second instance
    # ran the same jobs. Here nothing has to be renewed.
    with (
        wheeldb.open(tmp_path, durability="written", driver=False) as db,
        rival() as other,
    ):
        tasks = [wheeldb.NewTask("task", delay=0)] * 2_000
        db.schedule_many(tasks)
        done: list[str] = []
        while leases := db.lease(limit=900):
            other.tell(str(tmp_path))
            assert db.ack_many(leases) == []
            assert other.line().startswith("locked")
            done += [lease.id for lease in leases]
        assert len(done) == len(set(done)) == len(tasks)


# Twice in one process.


def test_a_second_opening_in_one_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # jnwatson/py-lmdb#129, jnwatson/py-lmdb#300: a second handle broke the first, and
    # closing one of them dropped the lock of both.
    path = tmp_path / "store"
    link = tmp_path / "link"
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    ways: list[Path | str] = [
        path, str(path), link, "store", "./store/", "link", f"{path}/../store"
    ]  # fmt: skip
    with wheeldb.open(path) as db, rival() as other:
        for way in ways:
            assert f"pid {os.getpid()} " in refuse(way)
            # Reading takes no lock, and its close must not drop one.
            wheeldb.open(way, readonly=True).close()
        other.tell(str(path))
        assert other.line().startswith("locked")
        db.schedule("task", delay=0, id="known")
        with db.lease(wait=None) as (lease,):
            lease.ack()
        assert db.check() == []
    with wheeldb.open(link) as db:
        assert db.get("known") is not None
        assert "is open in" in refuse(path)


def test_a_refused_opening_leaves_no_file_open(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path, driver=False):
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(5):
            refuse(tmp_path)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_opening_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    with wheeldb.open(tmp_path, driver=False) as db:
        for _ in range(10):
            db.schedule("task", b"x" * 1_000, delay=1)
    (segment, *_) = sorted((tmp_path / "log").glob("*.seg"))
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    # In the midst of a payload: what lies between frames on flash proves nothing.
    damaged[whole.index(b"x" * 1_000, len(whole) // 2)] ^= 1
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        (tmp_path / "index" / "VOUCH").unlink(missing_ok=True)
        segment.write_bytes(bytes(damaged))
        with pytest.raises(wheeldb.CorruptionError):
            wheeldb.open(tmp_path, driver=False)
        assert len(os.listdir("/proc/self/fd")) == before
    segment.write_bytes(whole)
    with wheeldb.open(tmp_path, driver=False) as db:
        assert db.statistics().pending_count == 10
        assert db.check() == []


# Fork.


def in_child(work: Callable[[], object]) -> str:
    """Fork, do something in the child and return what came of it, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        text = "nothing"
        try:
            text = f"returned {work()!r}"
        except BaseException as error:
            text = f"{type(error).__name__} {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


PREFORK = """
import os, sys, wheeldb
path = sys.argv[1]
db = wheeldb.open(path)
db.schedule("task", id="from the parent", delay=0)
(lease,) = db.lease(wait=None)
batch = db.batch()

def enter():
    with batch:
        batch.schedule("task", delay=1)

calls = {
    "schedule": lambda: db.schedule("task", delay=1),
    "many": lambda: db.schedule_many([wheeldb.NewTask("task", delay=1)]),
    "batch": enter,
    "cancel": lambda: db.cancel("from the parent"),
    "get": lambda: db.get("from the parent"),
    "tasks": lambda: list(db.tasks()),
    "lease": lambda: db.lease(),
    "ack": lambda: lease.ack(),
    "poll": lambda: db.poll(),
    "statistics": lambda: db.statistics(),
    "check": lambda: db.check(),
    "checkpoint": lambda: db.checkpoint(),
    "open": lambda: wheeldb.open(path),
    "close": lambda: db.close(),
}
for worker in range(4):
    if not os.fork():
        for name, call in calls.items():
            try:
                call()
                print(name, "returned", flush=True)
            except BaseException as error:
                print(name, type(error).__name__, flush=True)
        os._exit(0)
    os.wait()
lease.ack()
receipts = [db.schedule("task", delay=0) for _ in range(100)]
started = []
while len(started) < 100:
    with db.lease(limit=100, wait=None) as leases:
        started += [lease.id for lease in leases]
        db.ack_many(leases)
print("started", len(started), len(set(started)), db.check(), flush=True)
if not os.fork():
    # The child lives on; its copy of the lock must not.
    sys.stdout.flush()
    sys.stdin.readline()
    os._exit(0)
db.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_forked_child_never_touches_the_store(tmp_path: Path) -> None:
    # agronholm/apscheduler#160, agronholm/apscheduler#766, ascoderu/lokole#1: each
    # worker of a pre-forking server ran its own copy, and mails went out four times.
    with Child(PREFORK, tmp_path) as parent:
        for _ in range(4):
            said = [parent.line() for _ in range(14)]
            assert said[:12] == [
                f"{name} ClosedError"
                for name in (
                    *("schedule", "many", "batch", "cancel", "get", "tasks", "lease"),
                    *("ack", "poll", "statistics", "check", "checkpoint"),
                )
            ]
            assert said[12:] == ["open LockedError", "close returned"]
        assert parent.line() == "started 100 100 []"
        assert parent.line() == "closed"
        # The last child still lives, and holds nothing.
        wheeldb.open(tmp_path, driver=False).close()
        parent.tell()
        parent.tell()


def test_the_error_of_a_forked_child_says_what_to_do() -> None:
    with Bench() as bench:
        bench.db.schedule("task", delay=1)
        said = in_child(lambda: bench.db.schedule("task", delay=1))
        assert said.startswith(ClosedError.__name__)
        assert "fork" in said
        assert "open it" in said
        bench.db.schedule("task", delay=1)


# The race at the first opening.


def race(tmp_path: Path, rounds: int) -> None:
    """Have eight processes make the same store at the same moment."""
    # grantjenks/python-diskcache#266: processes that made the store at the same time
    # got errors of the database.
    racers = [Child(RIVAL) for _ in range(8)]
    try:
        assert {racer.line() for racer in racers} == {"ready"}
        for number in range(rounds):
            path = tmp_path / f"store-{number}"
            if number % 2:
                path.mkdir()
            for racer in racers:
                racer.tell(str(path))
            said = sorted(racer.line().partition(" ")[0] for racer in racers)
            assert said == ["locked"] * 7 + ["open"]
            for racer in racers:
                racer.tell()
            assert {racer.line() for racer in racers} == {"closed []"}
            with wheeldb.open(path, driver=False) as db:
                assert db.recovery.reason == "clean"
                assert db.check() == []
    finally:
        for racer in racers:
            racer.__exit__(None, None, None)


@pytest.mark.slow
def test_of_eight_that_make_a_store_one_becomes_its_owner(tmp_path: Path) -> None:
    race(tmp_path, 50)
