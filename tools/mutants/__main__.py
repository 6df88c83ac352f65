"""The command: plant the faults, print a line for each, exit 1 if one survives."""

import argparse
import random
import sys
import time

from tools.mutants.catalogue import MUTANTS, Mutant
from tools.mutants.planting import Nursery

__all__ = ("main",)


def main() -> int:
    """Run the mutants that the command line names and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description="Plant faults; see tests fail."
    )
    parser.add_argument("names", nargs="*", help="which ones; all unless given")
    parser.add_argument("--sample", type=int, help="so many of them, by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--verbose", action="store_true", help="show what tests print")
    options = parser.parse_args()
    chosen = _chosen(parser, options.names, options.sample, options.seed)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {mutant.file:32} {mutant.fault}")
        return 0
    return _run(chosen, is_verbose=options.verbose)


def _chosen(
    parser: argparse.ArgumentParser, names: list[str], sample: int | None, seed: int
) -> list[Mutant]:
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    for name in names:
        if name not in by_name:
            parser.error(f"there is no mutant {name!r}; --list names them")
    chosen = [by_name[name] for name in names] or list(MUTANTS)
    if sample is not None:
        chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    return chosen


def _run(chosen: list[Mutant], *, is_verbose: bool) -> int:
    survivors = 0
    with Nursery() as nursery:
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        sound = nursery.is_sound(tests)
        if sound.by:
            print(f"{sound.by} fails without any fault\n{sound.output}")
            return 1
        for mutant in chosen:
            began = time.monotonic()
            verdict = nursery.run(mutant)
            survivors += not verdict.is_killed
            word = "killed" if verdict.is_killed else "SURVIVED"
            seconds = time.monotonic() - began
            print(f"{word:8} {mutant.name:32} {seconds:5.1f} s  {verdict.by}")
            if is_verbose or not verdict.is_killed:
                print(verdict.output)
            sys.stdout.flush()
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
