"""A process under load, killed at any moment, over and over.

Goal: what a call has acknowledged is there after SIGKILL; what was done stays done,
what was cancelled stays cancelled and never starts, and no fence comes twice. Method: a
real process schedules, cancels, leases and acks from two threads and writes a line for
each call that returned; this one reads a drawn number of lines, kills it, reads what is
left in the pipe, opens the store and judges it by the lines of all rounds. Stores of
others lost their tail like this (rabbitmq/ra#283, asonnino/mysticeti#219,
facebook/rocksdb#1351).
"""

import json
from pathlib import Path
from random import Random

import pytest
from field_helpers import Child

import wheeldb
from wheeldb.model import TaskState

WORKER = """
import json, random, sys, threading
import wheeldb

path, seed, first, durability = sys.argv[1:]
db = wheeldb.open(
    path, durability=durability, segment_bytes=65536, recoveries_max=1000000
)
speaking = threading.Lock()

def say(*words):
    # Whole lines: a write to a pipe of less than 4,096 bytes is not cut.
    with speaking:
        sys.stdout.write(json.dumps(words) + "\\n")
        sys.stdout.flush()

def submit():
    draw = random.Random(seed)
    number = int(first)
    mine = []
    while True:
        dice = draw.random()
        if dice < 0.5:
            task_id = f"id {number}"
            number += 1
            payload = {"id": task_id, "fill": "x" * 200}
            delay = draw.choice((0, 0.002, 0.02, 60))
            db.schedule("task", payload, delay=delay, id=task_id)
            say("scheduled", task_id)
            mine.append(task_id)
        elif dice < 0.7:
            tasks = []
            for _ in range(5):
                tasks.append(wheeldb.NewTask("task", delay=draw.choice((0, 60))))
            for receipt in db.schedule_many(tasks):
                say("scheduled", receipt.id)
        elif dice < 0.95 and mine:
            task_id = mine.pop(draw.randrange(len(mine)))
            say(str(db.cancel(task_id)), task_id)
        elif dice < 0.97:
            db.checkpoint()
        elif dice < 0.975:
            db.snapshot()

def work():
    draw = random.Random(seed + "work")
    while True:
        for lease in db.lease(limit=3, wait=None):
            say("started", lease.id, lease.fence)
            if draw.random() < 0.8:
                lease.ack()
                say("done", lease.id)
            else:
                lease.release()

say("open", "")
threading.Thread(target=submit, daemon=True).start()
work()
"""


class Ledger:
    """What was acknowledged so far, and what must therefore hold."""

    def __init__(self) -> None:
        self.scheduled: set[str] = set()
        self.done: set[str] = set()
        self.cancelled: set[str] = set()
        # Cancelled while they ran: done or cancelled, and nothing else.
        self.ending: set[str] = set()
        self.fences: set[int] = set()
        self.highest = 0
        self.before = 0

    def read(self, line: str) -> None:
        """Take in one line of the process."""
        word, task_id, *rest = json.loads(line)
        if word == "scheduled":
            self.scheduled.add(task_id)
        elif word == "started":
            (fence,) = rest
            assert task_id not in self.cancelled, f"{task_id} was cancelled"
            assert task_id not in self.done, f"{task_id} was done"
            assert fence not in self.fences, f"fence {fence} came twice"
            assert fence > self.before, f"fence {fence} is from before the kill"
            self.fences.add(fence)
            self.highest = max(self.highest, fence)
        elif word == "done":
            self.done.add(task_id)
        elif word == "cancelled":
            self.cancelled.add(task_id)
        elif word == "leased":
            self.ending.add(task_id)
        else:
            assert word in ("open", "finished"), line

    def judge(self, db: wheeldb.WheelDB) -> None:
        """Compare with the store after a kill."""
        assert db.check() == []
        last_lsn = db.statistics().last_lsn
        assert last_lsn >= self.highest
        for task_id in self.scheduled:
            task = db.get(task_id)
            if task_id in self.done:
                # A generated id leaves nothing behind.
                assert task is None or task.state == TaskState.DONE, task
            elif task_id in self.cancelled:
                assert task is not None, task_id
                assert task.state == TaskState.CANCELLED, task
            elif task is None:
                # Only if it was done, and the word of it was lost with the process.
                assert not task_id.startswith("id "), f"{task_id} is lost"
                history = db.history(task_id)
                if history.oldest_lsn <= int(task_id[1:], 16):
                    assert history[-1].kind == "acked", history
            elif task_id in self.ending:
                assert task.state in (TaskState.DONE, TaskState.CANCELLED), task
            else:
                assert task.state in (
                    *(TaskState.SCHEDULED, TaskState.DUE, TaskState.DONE),
                    TaskState.CANCELLED,
                ), task
        with db.lease(limit=10_000) as leases:
            for lease in leases:
                assert lease.fence > self.highest
                assert lease.id not in self.done | self.cancelled
                self.highest = max(self.highest, lease.fence)
        self.before = self.highest


def live(path: Path, rounds: int, lines_max: int, seed: int) -> Ledger:
    """Kill a process so many times, each time in the middle of its work."""
    draw = Random(seed)
    ledger = Ledger()
    for number in range(rounds):
        durability = draw.choice(("fsync", "written"))
        first = number * 100_000
        with Child(WORKER, path, f"{seed} {number}", first, durability) as child:
            for _ in range(draw.randrange(1, lines_max)):
                ledger.read(child.line())
            child.process.kill()
            while line := child.line():
                ledger.read(line)
        with wheeldb.open(path, driver=False, recoveries_max=1_000_000) as db:
            assert db.recovery.reason == "unclean", f"seed {seed}, round {number}"
            ledger.judge(db)
    return ledger


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    ledger = live(tmp_path / "store", rounds=60, lines_max=300, seed=1)
    assert len(ledger.done) > 100
    assert len(ledger.cancelled) > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_right_after_the_opening_lose_nothing(tmp_path: Path) -> None:
    live(tmp_path / "store", rounds=25, lines_max=5, seed=2)
