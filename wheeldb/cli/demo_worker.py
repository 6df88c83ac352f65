"""The demo's child process: a small scheduler that expects to be killed.

    python -m wheeldb.cli.demo_worker '{"mode": "day", "directory": …, …}'

It does what any program with a store does at its start: open, schedule what it always
schedules, work. It remembers nothing else, so a killed one is simply started again.
Each step is reported before and after, a line of JSON into stdout, which is a pipe to
the parent; `wheeldb.cli.demo_ledger` says what the lines mean. Two modes:

    day    the departures on the fast clock: boarding at an instant, and with its ack
           the gate's closing after a delay
    real   some delays on the real clock, for the lateness in real milliseconds
"""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import wheeldb
from wheeldb.cli.demo_clock import FastClock
from wheeldb.cli.demo_process import Reporter
from wheeldb.cli.departures import load_departures
from wheeldb.clock.system import BUILD_MS, SystemClock

__all__ = ("BUILD_AT", "GATE_DELAY_MS", "Plan", "boarding_id", "gate_id", "main")

BUILD_AT = datetime.fromtimestamp(BUILD_MS / 1_000, UTC)
# Boarding begins 40 minutes before the departure and ends 15 before it.
GATE_DELAY_MS = 25 * 60_000
BATCH = 100
LEASES = 20


class Plan(TypedDict):
    """What the parent tells a worker.

    Attributes:
        mode: `day` or `real`.
        directory: The store.
        origin_ns: The fast clock's origin, as `wheeldb.cli.demo_clock` has it.
        wall_ms: What it shows there.
        rate: How fast it runs.
        delays_ms: What to schedule in mode `real`.
    """

    mode: str
    directory: str
    origin_ns: int
    wall_ms: int
    rate: int
    delays_ms: list[int]


def boarding_id(flight: str) -> str:
    """Return the id of a flight's first task."""
    return f"boarding-{flight}"


def gate_id(flight: str) -> str:
    """Return the id of the task that follows it."""
    return f"gate-{flight}"


def main() -> int:
    """Do what the plan on the command line says."""
    plan: Plan = json.loads(sys.argv[1])
    if plan["mode"] == "real":
        _run_real(plan)
    else:
        _run_day(plan)
    return 0


def _run_day(plan: Plan) -> None:
    clock = FastClock(
        origin_ns=plan["origin_ns"], wall_ms=plan["wall_ms"], rate=plan["rate"]
    )
    report = Reporter(clock)
    with wheeldb.open(
        plan["directory"],
        clock=clock,
        # Its minutes are milliseconds here; an hour apart, marks cost what they should.
        elapsed_mark=3_600.0,
        retention=7 * 86_400.0,
    ) as db:
        report("opened", recovery=db.recovery)
        _, departures = load_departures(BUILD_AT)
        _schedule(
            db,
            report,
            [
                wheeldb.NewTask(
                    "boarding.start",
                    {"flight": departure.flight, "to": departure.destination},
                    at=departure.boards_at,
                    id=boarding_id(departure.flight),
                    queue="boarding",
                    # A lease is measured on the fast clock as well: four real seconds.
                    lease=timedelta(milliseconds=4_000 * plan["rate"]),
                )
                for departure in departures
            ],
        )
        while _work(db, report, plan["rate"]) or _is_anything_left(db):
            pass
    report("closed")


def _run_real(plan: Plan) -> None:
    report = Reporter(SystemClock())
    with wheeldb.open(plan["directory"]) as db:
        report("opened", recovery=db.recovery)
        _schedule(
            db,
            report,
            [
                wheeldb.NewTask(
                    "tick", delay=delay_ms / 1_000, id=f"tick-{number}", queue="ticks"
                )
                for number, delay_ms in enumerate(plan["delays_ms"])
            ],
        )
        while _work(db, report, 1) or _is_anything_left(db):
            pass
    report("closed")


def _schedule(
    db: wheeldb.WheelDB,
    report: Callable[..., None],
    tasks: Sequence[wheeldb.NewTask],
) -> None:
    # The ids name requests: asking again for what is there, or done, changes nothing.
    for start in range(0, len(tasks), BATCH):
        batch = tasks[start : start + BATCH]
        ids = [task.options["id"] for task in batch]
        report("asked", ids=ids)
        receipts = db.schedule_many(batch)
        report("accepted", ids=[receipt.id for receipt in receipts])


def _work(db: wheeldb.WheelDB, report: Callable[..., None], rate: int) -> int:
    """Run what is due, or wait a little for it; return how many tasks ran."""
    queues = ["boarding", "gates", "ticks"]
    with db.lease(queues, limit=LEASES, wait=1.0) as leases:
        for lease in leases:
            report("started", id=lease.id, may_have_run=lease.may_have_run)
            report("finishing", id=lease.id)
            lease.ack(then=_follow_ups(lease, rate))
            report("finished", id=lease.id)
    return len(leases)


def _follow_ups(lease: wheeldb.Lease, rate: int) -> list[wheeldb.NewTask]:
    if lease.name != "boarding.start":
        return []
    payload = lease.payload
    assert isinstance(payload, dict), payload
    return [
        wheeldb.NewTask(
            "gate.close",
            payload,
            delay=GATE_DELAY_MS / 1_000,
            id=gate_id(payload["flight"]),
            queue="gates",
            lease=timedelta(milliseconds=4_000 * rate),
        )
    ]


def _is_anything_left(db: wheeldb.WheelDB) -> bool:
    unfinished = (
        wheeldb.TaskState.SCHEDULED,
        wheeldb.TaskState.DUE,
        wheeldb.TaskState.LEASED,
    )
    return any(
        next(iter(db.tasks(state=state, limit=1)), None) is not None
        for state in unfinished
    )


if __name__ == "__main__":
    sys.exit(main())
