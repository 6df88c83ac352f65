"""`wheeldb bench [DIR]`: the store's speed on DIR's disk, beside what the disk can do.

Rates alone say more about the disk than about the store, so each is also given as a
ratio to the disk's limit, measured by turns with it in the same place:

    write + sync      one small write and one fdatasync, into a file prepared for it
    schedule          one durable call after the other, one sync each: at most 1
    schedule_many     1,000 tasks in a call and a sync
    lease and ack     1,000 at a time, acked in one call

It works in a new directory inside DIR and removes it. One thread calls; with several,
the store shares one sync among them.
"""

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass

import wheeldb
from wheeldb.cli.arguments import UsageError, store_path
from wheeldb.cli.measuring import bare_log, by_turns, median_rate, median_ratio
from wheeldb.cli.opening import ExitStatus
from wheeldb.cli.output import print_json, print_table, say

__all__ = ("Rate", "configure", "run")

# About what the log writes for one small task.
RECORD_BYTES = 128
BATCH = 1_000
ROUNDS = 8
LIMIT = "write + sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One measured rate.

    Attributes:
        what: The work.
        per_second: How often it was done, in the middle one of the rounds.
        ratio: The same as a multiple of the disk's bare writes.
    """

    what: str
    per_second: float
    ratio: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=store_path,
        nargs="?",
        default=".",
        help="where to write, the current directory unless given",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        metavar="NUMBER",
        help="for each line, 2 unless given",
    )
    parser.add_argument("--json", action="store_true", help="one rate a line")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print the rates."""
    if not 0 < arguments.seconds <= 3_600:
        raise UsageError("wheeldb bench: --seconds is above 0 and at most 3600")
    directory = tempfile.mkdtemp(prefix="wheeldb-bench-", dir=arguments.directory)
    say(f"measuring in {directory}, four times {arguments.seconds:g} s")
    try:
        rates = _measure(directory, arguments.seconds)
    finally:
        shutil.rmtree(directory)
    if arguments.json:
        for rate in rates:
            print_json(rate)
    else:
        print_table(
            ("work", "per second", "ratio"),
            (
                (rate.what, f"{rate.per_second:,.0f}", f"{rate.ratio:.2f}")
                for rate in rates
            ),
        )
    return ExitStatus.FINE


def _measure(directory: str, seconds: float) -> list[Rate]:
    with (
        bare_log(os.path.join(directory, "bare")) as log,
        wheeldb.open(os.path.join(directory, "store"), driver=False) as db,
    ):
        record = b"\x5a" * RECORD_BYTES

        def write() -> int:
            log.append(record)
            return 1

        rates = by_turns(
            {
                LIMIT: write,
                "schedule": lambda: _schedule_one(db),
                "schedule_many": lambda: _schedule_many(db),
                "lease and ack": lambda: _lease_and_ack(db),
            },
            seconds=seconds / ROUNDS,
            rounds=ROUNDS,
        )
    return [
        Rate(
            what=name,
            per_second=median_rate(rates, name),
            ratio=median_ratio(rates, name, LIMIT),
        )
        for name in rates
    ]


def _schedule_one(db: wheeldb.WheelDB) -> int:
    db.schedule("bench.one", {"value": 1}, delay=0)
    return 1


def _schedule_many(db: wheeldb.WheelDB) -> int:
    task = wheeldb.NewTask("bench.many", {"value": 1}, delay=0)
    return len(db.schedule_many([task] * BATCH))


def _lease_and_ack(db: wheeldb.WheelDB) -> int:
    db.poll()
    leases = db.lease(limit=BATCH)
    db.ack_many(leases)
    return len(leases)
