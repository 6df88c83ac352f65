"""`wheeldb bench [DIR]`: the store's speed on DIR's disk, beside what the disk can do.

Rates alone say more about the disk than about the store, so each is also given as a
ratio to a limit measured at the same place just before:

    append + sync     one small write and one fdatasync, again and again
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
from collections.abc import Callable
from dataclasses import dataclass

import wheeldb
from wheeldb.cli.arguments import UsageError
from wheeldb.cli.opening import ExitStatus
from wheeldb.cli.output import print_json, print_table, say
from wheeldb.clock.system import SystemClock

__all__ = ("Rate", "configure", "run")

RECORD_BYTES = 256
BATCH = 1_000
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One measured rate.

    Attributes:
        what: The work.
        per_second: How often it was done.
        ratio: The same as a multiple of the disk's bare appends.
    """

    what: str
    per_second: float
    ratio: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", nargs="?", default=".")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="for each line, 2 unless given"
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
    appends = _appends_per_second(os.path.join(directory, "append"), seconds)
    rates = [Rate(what="append + sync", per_second=appends, ratio=1.0)]

    def add(what: str, per_second: float) -> None:
        rates.append(Rate(what=what, per_second=per_second, ratio=per_second / appends))

    with wheeldb.open(os.path.join(directory, "store"), driver=False) as db:
        add("schedule", _per_second(lambda: _schedule_one(db), seconds))
        add("schedule_many", _per_second(lambda: _schedule_many(db), seconds))
        add("lease and ack", _per_second(lambda: _lease_and_ack(db), seconds))
    return rates


def _per_second(work: Callable[[], int], seconds: float) -> float:
    """Return how much `work` does per second; it returns how much it did, 0 to stop."""
    clock = SystemClock()
    began_ns = clock.process_ns()
    done = 0
    while True:
        more = work()
        done += more
        spent_ns = clock.process_ns() - began_ns
        if not more or spent_ns >= seconds * NS_PER_S:
            return done * NS_PER_S / max(spent_ns, 1)


def _appends_per_second(path: str, seconds: float) -> float:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    record = b"\x5a" * RECORD_BYTES

    def append() -> int:
        os.write(fd, record)
        os.fdatasync(fd)
        return 1

    try:
        return _per_second(append, seconds)
    finally:
        os.close(fd)


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
