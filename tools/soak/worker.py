"""The soak's child: opens the store, tells what it found, works until it is ended.

    python -m tools.soak.worker '{"directory": …, "seed": …, …}'

What it reports, in this order, each with the readings of its clock:

    unopened   there was no room to open the store: it ends, and is started again
    opened     recovery, last LSN, what `check` found
    found      every unfinished task: [token, id, state], in pieces
    known      the states of the finished ids that the plan asks for
    ready      all of that is told; the work begins
    asked      about to make a call: what it does, to which tasks
    answered   it has returned, or was refused
    started    a task was handed out, nothing of its work is done
    stepping   about to move the clock's hands
    trouble    something happened that nothing explains
    closed     the store was closed in good order

Each task carries its token, which the ledger knows it by, and a filling that follows
from the token, so that a wrong payload shows.
"""

import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import NotRequired, TypedDict

import wheeldb
from tools.soak.calls import Calls
from tools.soak.clock import ShiftedClock, Weather
from tools.soak.load import Load, fill_of, take_up
from tools.soak.room import QuotaDisk
from tools.soak.upkeep import Keeper
from tools.soak.work import Worker
from wheeldb.cli.demo_process import Reporter

__all__ = ("Plan", "main")

PIECE = 200
WORKERS = 2


class Plan(TypedDict):
    """What the parent tells a child.

    Attributes:
        directory: The store.
        seed: Where this child's draws come from.
        session: Which child it is: part of each token.
        weather: How its clock stands.
        durability: Of the store.
        segment_bytes: Of the log's files.
        pending_max: It schedules nothing new beyond this.
        calls_max: It ends by itself after so many calls; 0 for never.
        known: Finished ids to tell the states of.
        flag: The file that says that the disk is full, where blocks don't.
    """

    directory: str
    seed: int
    session: int
    weather: dict[str, int]
    durability: str
    segment_bytes: int
    pending_max: int
    calls_max: int
    known: list[str]
    flag: NotRequired[str]


def main() -> int:
    """Do what the plan on the command line says."""
    plan: Plan = json.loads(sys.argv[1])
    clock = ShiftedClock(Weather(**plan["weather"]))
    report = Reporter(clock)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options: wheeldb.OpenOptions = {
        "clock": clock,
        "durability": plan["durability"],
        "segment_bytes": plan["segment_bytes"],
        # Kills are counted as recoveries, and there is no end of them here.
        "recoveries_max": 1_000_000,
        "retention": 3_650 * 86_400.0,
        "retention_max": 20_000,
    }
    if "flag" in plan:
        options["disk"] = QuotaDisk(plan["flag"])
    try:
        db = wheeldb.open(plan["directory"], **options)
    except (wheeldb.StorageFullError, OSError) as error:
        report("unopened", error=f"{type(error).__name__}: {error}")
        return 0
    try:
        _run(db, plan, clock, report, stop)
    finally:
        db.close()
    report("closed")
    return 0


def _run(
    db: wheeldb.WheelDB,
    plan: Plan,
    clock: ShiftedClock,
    report: Reporter,
    stop: threading.Event,
) -> None:
    report(
        "opened",
        recovery=db.recovery,
        last_lsn=db.statistics().last_lsn,
        findings=db.check(),
    )
    for piece in _pieces(list(_found(db))):
        report("found", tasks=piece)
    for ids in _pieces(plan["known"]):
        tasks = [db.get(id) for id in ids]
        states = [None if task is None else task.state for task in tasks]
        report("known", ids=ids, states=states)
    report("ready")
    calls = Calls(db, clock, report, stop, calls_max=plan["calls_max"])
    stepping = threading.Lock()
    pending = take_up(calls, Random(plan["seed"]))
    parts: list[Callable[[], None]] = [
        Load(calls, pending, plan["seed"], plan["session"], plan["pending_max"]).run,
        Keeper(calls, clock, stepping, plan["seed"]).run,
    ]
    parts += [
        Worker(calls, stepping, plan["seed"], plan["session"], number).run
        for number in range(WORKERS)
    ]

    def live(part: Callable[[], None]) -> None:
        try:
            part()
        except wheeldb.ClosedError:
            pass  # the store was closed under it, as it is for any thread of a program
        except BrokenPipeError:
            pass  # nobody listens any more
        except BaseException:
            report("trouble", what=traceback.format_exc())
        finally:
            stop.set()

    for part in parts:
        threading.Thread(target=live, args=(part,), daemon=True).start()
    stop.wait()
    # The others go on: closing meets them in the middle of their calls.


def _found(db: wheeldb.WheelDB) -> Iterator[list[str]]:
    for task in db.tasks():
        payload = task.payload
        assert isinstance(payload, dict), f"a payload of {task.id}: {payload!r}"
        token = payload["token"]
        if payload != {"token": token, "fill": fill_of(token)}:
            raise AssertionError(f"another payload than was given: {task!r}")
        yield [token, task.id, task.state]


def _pieces(items: list) -> Iterator[list]:  # type: ignore[type-arg]
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]


if __name__ == "__main__":
    sys.exit(main())
