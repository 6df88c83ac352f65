"""How late tasks are handed out, against a thread that only sleeps.

    python -m tools.bench.lateness [--tasks 1000] [--every-ms 3] [--directory DIR]

store    Tasks due at whole milliseconds of the wall clock, leased by a thread that
         waits in `db.lease(wait=…)`. Late is from the due time to the lease in hand:
         the driver wakes up, moves the task, wakes the caller, who writes the lease
         into the log and reads the task.
waiter   The sleep alone: the same instants, waited for with the driver's own waiter
         (a timerfd in one `poll`, on Linux) by a thread that does nothing else.

They take turns, the store first, over instants of their own.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import wheeldb
from tools.bench.places import parser_for, print_table, scratch
from tools.bench.table import Table, ratio_table
from wheeldb.clock.system import SystemClock

__all__ = ("main",)

NS_PER_MS = 1_000_000
_LEAD_MS = 300


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--every-ms", type=int, default=3)
    options = parser.parse_args()
    with scratch(options.directory) as directory:
        table = _measure(directory, options)
    print_table(table, options)


def _measure(directory: str, options: argparse.Namespace) -> Table:
    count, every_ms = options.tasks, options.every_ms
    with wheeldb.open(os.path.join(directory, "store")) as db:
        late = {
            "waiter": lambda: waiter_lateness(count, every_ms),
            "store": lambda: store_lateness(db, count, every_ms),
        }
        costs = {name: _percentiles(measure) for name, measure in late.items()}
    return ratio_table(
        f"lateness of {count:,} tasks, one every {every_ms} ms, in us",
        {
            measure: {name: costs[name][measure] for name in ("store", "waiter")}
            for measure in ("p50", "p99", "max")
        },
        subject="waiter",
        notes=("The ratio says how many times the sleep's own lateness it is.",),
    )


def store_lateness(db: wheeldb.WheelDB, count: int, every_ms: int) -> list[float]:
    """Return how late each task came, in microseconds."""
    first_ms = time.time_ns() // NS_PER_MS + _LEAD_MS + count // 10
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    db.schedule_many(
        [
            wheeldb.NewTask(
                "tick",
                first_ms + step * every_ms,
                at=epoch + timedelta(milliseconds=first_ms + step * every_ms),
            )
            for step in range(count)
        ]
    )
    late: list[float] = []
    done: list[wheeldb.Lease] = []
    while len(late) < count:
        leases = db.lease(limit=16, wait=10.0)
        now_ns = time.time_ns()
        if not leases:
            message = f"only {len(late)} of {count} tasks came due"
            raise RuntimeError(message)
        for lease in leases:
            due_ms = lease.payload
            assert isinstance(due_ms, int), "it was scheduled above"
            late.append((now_ns - due_ms * NS_PER_MS) / 1_000)
        done += leases
    db.ack_many(done)
    return late


def waiter_lateness(count: int, every_ms: int) -> list[float]:
    """Return how late each wake-up came, in microseconds."""
    waiter = SystemClock().waiter()
    first_ms = time.time_ns() // NS_PER_MS + _LEAD_MS
    late = []
    try:
        for step in range(count):
            due_ms = first_ms + step * every_ms
            while (now_ns := time.time_ns()) < due_ms * NS_PER_MS:
                waiter.wait(None, due_ms)
            late.append((now_ns - due_ms * NS_PER_MS) / 1_000)
    finally:
        waiter.close()
    return late


def _percentiles(measure: Callable[[], list[float]]) -> dict[str, float]:
    late = sorted(measure())
    return {
        "p50": late[len(late) // 2],
        "p99": late[len(late) * 99 // 100],
        "max": late[-1],
    }


if __name__ == "__main__":
    main()
