"""Write the golden stores: what this release leaves on disk, for later ones to read.

    python tools/make_golden.py tests/data/format-1

Each is a directory as a process has left it, and a JSON file beside it with the tasks
that any release must find in it:

    clean       closed; finished ids, a dead task, a paused one
    killed      no footer: the process was killed
    torn        the power went while the last frame was written
    snapshot    two snapshots, and only the log since the older one
    leased      attempts under way when the process died
    non-ascii   ids, names and payloads in many scripts
    options     every option that a task can have
    blocks      a snapshot with blocks of tasks, some of which have left theirs

A format's directory is written once and never again: a release that writes another
format adds its own. The clock and the random bytes are fixed, so the same release
writes the same bytes. The index is left out: it is a cache.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import wheeldb
from wheeldb import NewTask, Task, WheelDB
from wheeldb.testing import CrashableDisk, ManualClock

__all__ = ("BUILDERS", "WALL", "build", "describe", "main")

STORE = "/store"
WALL = datetime(2026, 11, 30, 12, tzinfo=UTC)

Builder = Callable[[WheelDB, ManualClock], None]


class SeededEntropy:
    """Random bytes that are the same in each run."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def bytes(self, count: int, /) -> bytes:
        """Return the next bytes."""
        return self._random.randbytes(count)


def main() -> int:
    """Write the stores below the directory named on the command line."""
    parser = argparse.ArgumentParser(description="Write the golden stores.")
    parser.add_argument("target", type=Path, help="a directory that does not exist")
    target: Path = parser.parse_args().target
    target.mkdir(parents=True)
    for name in BUILDERS:
        files, tasks = build(name)
        for path, data in files.items():
            file = target / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        text = json.dumps(tasks, indent=1, ensure_ascii=False, sort_keys=True)
        (target / f"{name}.json").write_text(text + "\n", "utf-8")
        print(f"{name}: {len(tasks)} tasks, {sum(map(len, files.values()))} bytes")
    return 0


def build(name: str) -> tuple[dict[str, bytes], list[dict[str, object]]]:
    """Return a store's files by their path inside it, and the tasks that it holds."""
    disk, clock = CrashableDisk(1), ManualClock(WALL, elapsed=5_000.0)
    # Another boot than any that will read it.
    for _ in range(3):
        clock.reboot()
    db = wheeldb.open(
        STORE,
        disk=disk,
        clock=clock,
        entropy=SeededEntropy(len(name)),
        driver=False,
        reserve=False,
        profile="disk",
        segment_bytes=65_536,
    )
    BUILDERS[name](db, clock)
    tasks = describe(db)
    if name == "torn":
        _tear(db, disk)
    elif name in ("clean", "snapshot"):
        db.close()
    files = {
        path.removeprefix(STORE + "/"): data
        for path, data in disk.dump().items()
        if path.startswith(STORE) and not path.endswith(("/LOCK", "/VOUCH"))
    }
    return files, tasks


def describe(db: WheelDB) -> list[dict[str, object]]:
    """Return what is known of every task, finished ids included, for JSON."""
    tasks = sorted(db.tasks(), key=lambda task: task.number)
    for state in ("done", "cancelled", "expired"):
        tasks += db.tasks(state=state)
    return [_fields(task) for task in tasks]


def _fields(task: Task) -> dict[str, object]:
    due = task.due_at.isoformat() if task.due_kind == "wall" and task.due_at else None
    return {
        "id": task.id,
        "number": task.number,
        "name": task.name,
        "queue": task.queue,
        "payload": _plain(task.payload),
        # What is only a matter of time is left out.
        "state": str(task.state).replace("due", "scheduled"),
        "version": task.version,
        "due_at": due,
        "due_kind": task.due_kind,
        "priority": task.priority,
        "tags": list(task.tags),
        "headers": dict(task.headers),
        "error": task.error,
    }


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _tear(db: WheelDB, disk: CrashableDisk) -> None:
    """Let the power go while a frame is written: half of it has arrived."""
    (path,) = [path for path in disk.dump() if path.endswith(".seg")]
    start = len(disk.dump()[path].rstrip(b"\0"))
    db.schedule("never.acknowledged", b"\xff" * 900, id="torn", delay=60)
    handle = disk.open(path)
    disk.pwrite(handle, bytes(1_500), start + 600)
    disk.close(handle)


def _clean(db: WheelDB, clock: ManualClock) -> None:
    for n in range(12):
        db.schedule("valve.close", {"valve": n}, id=f"valve-{n}", delay=0)
    db.schedule("report.send", at=WALL + timedelta(days=1), id="report")
    db.schedule("meter.read", [1, 2.5, None, True], delay=900)
    with db.lease(limit=5) as leases:
        leases[0].ack({"closed": True})
        leases[1].nack("stuck", retry_in=30)
        leases[2].reject("no such valve")
    db.cancel("valve-9")
    db.pause("valve-10")
    db.pause(queue="nightly")


def _killed(db: WheelDB, clock: ManualClock) -> None:
    for n in range(30):
        clock.advance(0.25)
        db.schedule("meter.read", n, id=f"meter-{n}", delay=60 + n)
    db.schedule_many([NewTask("bulk", n, delay=10) for n in range(20)])
    db.reschedule("meter-4", delay=600)


def _snapshot(db: WheelDB, clock: ManualClock) -> None:
    for generation, count in enumerate((90, 12, 12)):
        for n in range(count):
            payload = {"generation": generation, "fill": "x" * 700}
            db.schedule("fill", payload, id=f"{generation}-{n}", delay=3_600)
        for n in range(count - 10):
            db.cancel(f"{generation}-{n}")
        if generation < 2:
            db.snapshot()


def _leased(db: WheelDB, clock: ManualClock) -> None:
    for n in range(6):
        db.schedule("pump.run", n, id=f"pump-{n}", delay=0)
    leases = db.lease(limit=3)
    leases[0].save({"litres": 40})
    db.reschedule("pump-1", delay=500)
    db.cancel("pump-2")


def _non_ascii(db: WheelDB, clock: ManualClock) -> None:
    for text in ("grün", "клапан", "弁を閉じる", "صمام", "🚰", "e\u0301", "a\u200bb"):
        db.schedule(text, {text: [text]}, id=text, queue=text, tags=[text], delay=60)
    db.cancel("grün")


def _options(db: WheelDB, clock: ManualClock) -> None:
    db.schedule(
        "everything",
        {"bytes": b"\x00\xff", "int": -(2**63), "float": 1e300, "nested": [{"a": []}]},
        id="everything",
        delay=1.5,
        version=7,
        queue="special",
        priority=-3,
        retry=wheeldb.Retry(max_attempts=9, backoff=wheeldb.Linear(2, cap=60)),
        lease=12,
        expires=86_400,
        tags=["one", "two"],
        headers={"x-env": "canary"},
        at_most_once=True,
    )
    db.schedule("plain", delay=0)
    db.schedule("far", at=datetime(9999, 12, 31, tzinfo=UTC), id="far")
    db.schedule("gone", at=datetime(1970, 1, 2, tzinfo=UTC), id="gone")


def _blocks(db: WheelDB, clock: ManualClock) -> None:
    db.schedule_many([NewTask("bulk", n, delay=60 + n % 7) for n in range(150)])
    tomorrow = WALL + timedelta(days=1)
    db.schedule_many(
        [
            NewTask(f"kind-{n % 3}", {"n": n}, id=f"bulk-{n}", at=tomorrow, queue="q")
            for n in range(20)
        ]
    )
    db.schedule("alone", delay=30)
    db.checkpoint()
    db.cancel("bulk-3")
    db.reschedule("bulk-4", delay=600)
    db.snapshot()
    db.cancel("bulk-5")
    db.pause("bulk-6")


BUILDERS: dict[str, Builder] = {
    "clean": _clean,
    "killed": _killed,
    "torn": _killed,
    "snapshot": _snapshot,
    "leased": _leased,
    "non-ascii": _non_ascii,
    "options": _options,
    "blocks": _blocks,
}

if __name__ == "__main__":
    sys.exit(main())
