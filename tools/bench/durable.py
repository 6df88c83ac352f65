"""One durable `schedule` a call, against the bare write and sync that each needs.

    python -m tools.bench.durable [--seconds 0.25] [--rounds 9] [--directory DIR]

For both ways of the log (`disk`: record behind record; `flash`: each synced record on a
block of its own) three contenders take turns on the same disk:

store   `db.schedule(name, payload, delay=…)`, default options; returns once it is
        durable.
bare    One pwrite and one fdatasync of as many bytes as the store's record has, on its
        own block for `flash`. Each MiB of the file is filled with zeros together with
        the record that crosses into it, as the store fills its segments.
filled  The same into a file that was filled with zeros before. No log that grows has
        such a file; the difference to `bare` is what the zeros cost.

The ratios are the medians of the rounds' ratios. What is missing to 1 beside `bare` is
what judging, packing, deciding and the window take a single caller. That stands beside
it as CPU time of the calling thread: it hardly depends on the disk, so the quicker the
disk syncs, the more of the ratio it takes.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import wheeldb
from tools.bench.places import SPAN_S, parser_for, print_table, scratch
from tools.bench.table import Cell, Table
from wheeldb.cli.measuring import bare_log, by_turns, median_rate, median_ratio

__all__ = ("main", "measure")

PROFILES = ("disk", "flash")
_WARM_UP_COUNT = 50
_CPU_COUNT = 200


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each turn")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with scratch(options.directory) as directory:
        rows = [
            measure(directory, profile, options.seconds, options.rounds)
            for profile in PROFILES
        ]
    table = Table(
        title=f"durable schedule, one caller, median of {options.rounds} rounds",
        columns=(
            "profile",
            "store/s",
            "bare/s",
            "store / bare",
            "store / filled",
            "CPU us more",
            "record bytes",
        ),
        rows=tuple(rows),
        notes=("1 would be the disk's own speed.",),
    )
    print_table(table, options)


def measure(
    directory: str, profile: str, seconds: float, rounds: int
) -> tuple[Cell, ...]:
    """Return one row of the table."""
    path = os.path.join(directory, profile)
    with wheeldb.open(f"{path}.wheeldb", profile=profile) as db:
        number = 0

        def schedule() -> int:
            nonlocal number
            number += 1
            delay = 60 + number % SPAN_S
            db.schedule("order.unshipped", {"order": number, "k": "abc"}, delay=delay)
            return 1

        for _ in range(_WARM_UP_COUNT):
            schedule()
        before = db.statistics().log_bytes
        schedule()
        record = b"\x5a" * (db.statistics().log_bytes - before)
        is_aligned = profile == "flash"
        with (
            bare_log(f"{path}.bare", is_aligned=is_aligned, is_filled=False) as log,
            bare_log(f"{path}.filled", is_aligned=is_aligned) as filled,
        ):

            def append() -> int:
                log.append(record)
                return 1

            def append_filled() -> int:
                filled.append(record)
                return 1

            rates = by_turns(
                {"store": schedule, "bare": append, "filled": append_filled},
                seconds=seconds,
                rounds=rounds,
            )
            more_us = cpu_us(schedule) - cpu_us(append)
    return (
        profile,
        median_rate(rates, "store"),
        median_rate(rates, "bare"),
        median_ratio(rates, "store", "bare"),
        median_ratio(rates, "store", "filled"),
        more_us,
        len(record),
    )


def cpu_us(work: Callable[[], int]) -> float:
    """Return the CPU time that one call takes this thread, in microseconds."""
    began = time.thread_time()
    for _ in range(_CPU_COUNT):
        work()
    return (time.thread_time() - began) / _CPU_COUNT * 1e6


if __name__ == "__main__":
    main()
