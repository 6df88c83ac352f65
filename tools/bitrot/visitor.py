"""Opening a store in a child process that may die of it.

    found = visit(path, "tasks", has_rebooted=False)
    found    # a State; or "refused: …", "signal 7", "hang", "KeyError: …"

The child opens the store, looks at every task in three ways, in one of three orders (by
id, by listing, by due time), writes, makes a checkpoint, closes, opens it again and
looks once more.  Its clock is moved by hand and starts where the store was left.
"""

import faulthandler
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, NoReturn, get_args

import wheeldb
from tools.bitrot.stores import SeededEntropy, work
from wheeldb import CorruptionError, FormatError, NewTask, WheelDB
from wheeldb.testing import ManualClock

__all__ = ("ORDERS", "Order", "State", "visit", "work_and_leave")

Order = Literal["ids", "tasks", "due"]
ORDERS: tuple[Order, ...] = get_args(Order)
TASKS = 1_500
OWN_IDS = 200
# What a visitor schedules: its number depends on how the index was come by.
_OWN_TASK = "visitor"
_LIMIT_S = 60
_EXIT_REFUSED = 3
_EXIT_FAILED = 5


@dataclass(frozen=True, slots=True)
class State:
    """What a visitor has found: a digest of each view of the tasks."""

    ids: str
    tasks: str
    due: str
    again: str


def work_and_leave(path: Path, *, is_closed: bool) -> bytes:
    """Make a store with rows of every kind; return LMDB's file a checkpoint earlier.

    A child process does it, and ends without closing the store unless that is asked
    for: a killed process leaves the same.
    """
    older = path.with_name("older.mdb")
    said, status = _in_child(lambda: _work(path, older, is_closed=is_closed))
    assert status == 0, f"making the store ended with {status}: {said}"
    return older.read_bytes()


def _work(path: Path, older: Path, *, is_closed: bool) -> str:
    clock = ManualClock()
    db = _open(path, clock, create=True)
    work(db, clock, turns=6)
    db.schedule_many(
        [
            NewTask("order.unshipped", {"order": number}, delay=60 + number * 997.0)
            for number in range(TASKS)
        ]
    )
    db.schedule_many(
        [
            NewTask("order.paid", {"order": number}, delay=9_000, id=f"order-{number}")
            for number in range(OWN_IDS)
        ]
    )
    db.checkpoint()
    older.write_bytes((path / "index" / "data.mdb").read_bytes())
    for number in range(0, OWN_IDS, 7):
        db.cancel(f"order-{number}")
    db.reschedule("order-8", delay=5)
    clock.advance(90)
    db.poll()
    for lease in db.lease(limit=5):
        lease.ack()
    db.lease(limit=2)
    db.checkpoint()
    db.schedule("valve.close", delay=60, id="behind the checkpoint")
    if is_closed:
        db.close()
    return ""


def visit(path: Path, order: Order, *, has_rebooted: bool) -> State | str:
    """Return what a child process finds in a store, or how it ended."""
    said, status = _in_child(lambda: _look(path, order, has_rebooted=has_rebooted))
    if status < 0:
        return "hang" if -status == signal.SIGALRM else f"signal {-status}"
    if status == 0:
        return State(*json.loads(said))
    return said or f"exit {status}"


def _look(path: Path, order: Order, *, has_rebooted: bool) -> str:
    clock = ManualClock()
    clock.advance(600)
    if has_rebooted:
        clock.reboot(off=30)
    db = _open(path, clock)
    looks = {"ids": _ids, "tasks": _tasks, "due": _due}
    found: dict[str, str] = {}
    for name in sorted(ORDERS, key=lambda one: one != order):
        found[name] = looks[name](db, clock)
    db.schedule("valve.open", delay=60, id=_OWN_TASK)
    db.cancel(_OWN_TASK)
    db.checkpoint()
    others = [one for one in db.check() if one.where != "index"]
    assert not others, f"check finds {others[0]}"
    db.close()
    db = _open(path, clock)
    found["again"] = _tasks(db, clock)
    findings = db.check()
    assert not findings, f"check finds {findings[0]} after another opening"
    return json.dumps([found[name] for name in (*ORDERS, "again")])


def _open(path: Path, clock: ManualClock, *, create: bool = False) -> WheelDB:
    return wheeldb.open(
        path,
        create=create,
        clock=clock,
        entropy=SeededEntropy(3),
        driver=False,
        reserve=False,
        profile="disk",
    )


def _ids(db: WheelDB, clock: ManualClock) -> str:
    """Ask for every task alone: a row that is not found is missed here."""
    ids = [f"t{number:014x}" for number in range(1, 6 * 24 + TASKS)]
    ids += [f"order-{number}" for number in range(OWN_IDS)]
    found = map(db.get, ids)
    return _digest(None if task is None else replace(task, lsn=0) for task in found)


def _tasks(db: WheelDB, clock: ManualClock) -> str:
    """List every task, the finished ones too."""
    found = [*db.tasks(), *db.tasks(state="done"), *db.tasks(state="cancelled")]
    return _digest(replace(task, lsn=0) for task in found if task.id != _OWN_TASK)


def _due(db: WheelDB, clock: ManualClock) -> str:
    """Let all tasks come due and lease them, in order."""
    clock.advance(200 * 86_400)
    found: list[str] = []
    while True:
        db.poll()
        leases = db.lease(limit=500)
        if not leases:
            return _digest(found)
        found += [lease.id for lease in leases]


def _digest(values: Iterable[object]) -> str:
    return sha256("\n".join(map(repr, values)).encode()).hexdigest()


def _in_child(call: Callable[[], str]) -> tuple[str, int]:
    """Return what a call says in a child process, and its exit status or signal."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_child(writing, call)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return said, os.waitstatus_to_exitcode(status)


def _be_child(writing: int, call: Callable[[], str]) -> NoReturn:
    """Make the call, say what came of it, and end without any cleaning up."""
    status = _EXIT_FAILED
    try:
        faulthandler.disable()
        logging.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            said, status = call(), 0
        except (CorruptionError, FormatError) as error:
            said, status = f"refused: {error}", _EXIT_REFUSED
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
    finally:
        os._exit(status)
