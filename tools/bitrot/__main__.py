"""`python -m tools.bitrot`: damage, judge, count, and print the verdict.

A sample, the same number of damages for each file, is drawn by the seed, which is the
day unless given, and printed.  `--full` tries all damages of the files themselves; of
whole openings, a hundred times slower, it tries all for the small files and the sample
for the others.  LMDB's file is damaged only when `--index N` asks for it, since each
case takes a child process.  Exit 1 after a violation; its number, given to `--only FILE
--number N`, repeats it.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from tools.bitrot.index import LEFT, index_counts
from tools.bitrot.sweep import Count, Sweep, numbers_of, sample, sweeps_of

__all__ = ("main",)

SAMPLE = 8_000
OPENINGS = 250
SMALL_FILE_DAMAGES = 11 * 1_024


def main() -> int:
    """Do what the command line says and return the exit status."""
    options = _parser().parse_args()
    seed = options.seed
    if seed is None:
        seed = datetime.now(UTC).date().toordinal()
    counts: dict[str, Count] = {}
    start_s = time.monotonic()
    if not options.json:
        print(f"seed {seed}")
    only_index = options.index is not None and not options.only
    for sweep in [] if only_index else sweeps_of(options.only):
        counts[sweep.name] = sweep.run(_numbers(sweep, options, seed))
        _tell(sweep.name, counts[sweep.name], options)
    if options.index is not None:
        for name, count in index_counts(options.index, seed, options.left or LEFT):
            counts[name] = count
            _tell(name, count, options)
    violations = sum(count.violation_count for count in counts.values())
    if options.json:
        print(json.dumps(_as_json(counts, seed, violations)))
    else:
        _tell_open(counts)
        cases = sum(count.cases for count in counts.values())
        seconds = time.monotonic() - start_s
        verdict = f"{violations} violations" if violations else "no violation"
        print(f"{cases} damages in {seconds:.0f} s, seed {seed}: {verdict}")
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools.bitrot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="every damage")
    parser.add_argument("--seed", type=int, help="the day's unless given")
    parser.add_argument(
        "--slice", type=_slice, default=(1, 1), metavar="I/N", help="a part of --full"
    )
    parser.add_argument(
        "--sample", type=int, default=SAMPLE, help="damages of each file"
    )
    parser.add_argument(
        "--openings", type=int, default=OPENINGS, help="whole openings of each file"
    )
    parser.add_argument(
        "--index", type=int, metavar="N", help="damages of LMDB's file, in children"
    )
    parser.add_argument(
        "--left", action="append", choices=LEFT, help="how the store was left; all ways"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="FILE", help="may be repeated"
    )
    parser.add_argument("--number", type=int, help="this damage alone")
    parser.add_argument("--json", action="store_true")
    return parser


def _slice(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError(text)
    return int(part), int(parts)


def _numbers(sweep: Sweep, options: argparse.Namespace, seed: int) -> Iterable[int]:
    if options.number is not None:
        return [options.number]
    is_opening = "opened" in sweep.name
    if options.full and (not is_opening or sweep.size <= SMALL_FILE_DAMAGES):
        return numbers_of(sweep.size, *options.slice)
    wanted = options.openings if is_opening else options.sample
    return sample(sweep.size, wanted, seed + options.slice[0] - 1)


def _tell(name: str, count: Count, options: argparse.Namespace) -> None:
    if options.json:
        return
    words = [
        f"{found:,} {outcome}" for outcome, found in sorted(count.outcomes.items())
    ]
    print(f"{name}: {count.cases:,} damages: {', '.join(words)}", flush=True)
    for violation in count.violations:
        print(f"  VIOLATION {violation}", flush=True)


def _tell_open(counts: dict[str, Count]) -> None:
    """Print what came of flips where nothing vouches yet."""
    print("\nbits flipped in the last frames, which nothing vouches for yet:")
    for name, count in counts.items():
        flips = {
            outcome.removeprefix("flip "): found
            for outcome, found in count.open_outcomes.items()
            if outcome.startswith("flip ")
        }
        if "," not in name and flips:
            words = [f"{found:,} {outcome}" for outcome, found in sorted(flips.items())]
            print(f"  {name}: of {sum(flips.values()):,}: {', '.join(words)}")


def _as_json(counts: dict[str, Count], seed: int, violations: int) -> dict[str, object]:
    return {
        "seed": seed,
        "cases": sum(count.cases for count in counts.values()),
        "violations": violations,
        "files": {
            name: {
                "cases": count.cases,
                "same": count.same,
                "outcomes": count.outcomes,
                "open": count.open_outcomes,
                "violations": count.violations,
            }
            for name, count in counts.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
