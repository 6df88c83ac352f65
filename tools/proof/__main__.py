"""The command: run slices, print a line for each, exit 1 if anything was found."""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tools.proof.record import PASSED, Line, Record, commit_of, name_of
from tools.proof.slices import KINDS, ROOT, Slice, run_slice, slices_of

__all__ = ("main",)


def main() -> int:
    """Run the slices that the command line names and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.proof", description="Sweep all cuts, or all faults."
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--scenario", help="only this one")
    parser.add_argument("--slices", type=int, default=100, help="how many make it all")
    parser.add_argument("--first", type=int, default=0, help="begin with this slice")
    parser.add_argument("--count", type=int, default=1, help="so many of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--record", type=Path, default=ROOT / "build" / "proof.jsonl")
    options = parser.parse_args()
    options.record.parent.mkdir(parents=True, exist_ok=True)
    record = Record(options.record)
    numbers = range(options.first, min(options.first + options.count, options.slices))
    try:
        wanted = slices_of(
            options.kind,
            commit_of(ROOT),
            options.seed,
            options.scenario,
            numbers,
            options.slices,
        )
    except KeyError as error:
        parser.error(f"there is no scenario {error}")
    passed = record.passed()
    waiting = [one for one in wanted if name_of(one.line()) not in passed]
    print(f"{len(wanted)} slices, of which {len(wanted) - len(waiting)} have passed")
    return _run(waiting, record, options.jobs)


def _run(waiting: list[Slice], record: Record, jobs: int) -> int:
    tried, seconds, found = 0, 0.0, 0
    for line in _results(waiting, jobs):
        record.add(line)
        verdict = line["verdict"]
        print(f"{line['scenario']} on {line['medium']}, {line['slice']}: {verdict}")
        found += verdict != PASSED
        counts = [line.get(name, 0) for name in ("images", "deep_images", "faults")]
        tried += sum(count for count in counts if isinstance(count, int))
        seconds += float(str(line["cpu_seconds"]))
    if seconds:
        print(f"{tried:,} tried in {seconds:,.1f} s: {tried / seconds:,.0f}/s, CPU")
    print(f"{found} found")
    return 1 if found else 0


def _results(waiting: list[Slice], jobs: int) -> Iterator[Line]:
    if jobs == 1:
        yield from map(run_slice, waiting)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_slice, one) for one in waiting]):
            yield future.result()


if __name__ == "__main__":
    sys.exit(main())
