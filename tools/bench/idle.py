"""How often the driver wakes up when there is nothing to do.

    python -m tools.bench.idle [--seconds 3] [--directory DIR]

nothing pending   One task was scheduled and cancelled; after a second of settling, the
                  driver is watched: its wake-ups as the store counts them, and the
                  voluntary context switches of its thread as the kernel does.
a delay pending   The same with one delay of a day pending.
polling           The baseline: a thread that looks once a second, as schedulers that
                  poll do.

The last line says when the driver of a store with a pending delay wants to look again:
the elapsed mark, once a minute, and a checkpoint once after the last change. That is
read from its own reckoning, on a clock that is moved by hand.
"""

import argparse
import os
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import wheeldb
from tools.bench.places import parser_for, print_table, scratch
from tools.bench.table import Cell, Table
from wheeldb.testing import ManualClock

__all__ = ("main",)

DRIVER_THREAD = "wheeldb-driver"
_SETTLING_S = 1.0
_LOOKS = 10


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with scratch(options.directory) as directory:
        table = _measure(directory, options)
    print_table(table, options)


def _measure(directory: str, options: argparse.Namespace) -> Table:
    seconds = options.seconds
    rows: list[tuple[Cell, ...]] = []
    with wheeldb.open(os.path.join(directory, "store")) as db:
        db.schedule("valve.close", delay=3_600, id="valve")
        db.cancel("valve")
        rows.append(("nothing pending", *_watch(db, seconds)))
        db.schedule("valve.close", delay=86_400, id="other")
        rows.append(("a delay pending", *_watch(db, seconds)))
    rows.append(("polling", None, _poll(seconds)))
    waits = ", ".join(f"{wait_s:.1f}" for wait_s in looks(_LOOKS))
    return Table(
        title=f"wake-ups in {seconds:g} s",
        columns=("store", "wake-ups", "context switches"),
        rows=tuple(rows),
        notes=(f"With a delay pending, seconds to the next look: {waits}.",),
    )


def _watch(db: wheeldb.WheelDB, seconds: float) -> tuple[Cell, Cell]:
    """Return wake-ups and context switches of the driver, once it has settled."""
    time.sleep(_SETTLING_S)
    thread = next(one for one in threading.enumerate() if one.name == DRIVER_THREAD)
    wakeups, switches = db.statistics().wakeups, context_switches(thread)
    time.sleep(seconds)
    return db.statistics().wakeups - wakeups, context_switches(thread) - switches


def _poll(seconds: float) -> int:
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: _look_each_second(is_over))
    thread.start()
    switches = context_switches(thread)
    time.sleep(seconds)
    switches = context_switches(thread) - switches
    is_over.set()
    thread.join()
    return switches


def _look_each_second(is_over: threading.Event) -> None:
    while not is_over.wait(1.0):
        pass


def context_switches(thread: threading.Thread) -> int:
    """Return how often a thread of this process has gone to sleep."""
    path = Path(f"/proc/self/task/{thread.native_id}/status")
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    message = f"{path} has no voluntary_ctxt_switches; this needs Linux"
    raise OSError(message)


def looks(count: int) -> list[float]:
    """Return how long a driver would sleep between its looks, a delay being pending."""
    clock = ManualClock(wall=datetime(2027, 1, 1, tzinfo=UTC))
    waits: list[float] = []
    with wheeldb.open(":memory:", clock=clock, driver=False) as db:
        db.schedule("valve.close", delay=86_400)
        upkeep = db._access.tending()
        for _ in range(count):
            db.poll()
            until_ms = upkeep.plan().boottime_ms
            assert until_ms is not None, "a delay is pending"
            wait_ms = until_ms - clock.read().boottime_ms
            waits.append(wait_ms / 1000)
            clock.advance(wait_ms / 1000)
    return waits


if __name__ == "__main__":
    main()
