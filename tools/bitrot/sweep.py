"""Running through damages and counting what came of them.

    sweeps = sweeps_of(["snapshot"])
    count = sweeps[0].run(sample(sweeps[0].size, 1_000, seed=7))
    count.outcomes["refused"], count.violations

A sweep is one file with one judge.  Damages that change nothing are passed over and
counted as such.  Open damages, which only an end of the log has, are counted apart:
they are the window in which damage can't be told from a torn tail.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from random import Random

from tools.bitrot.damages import Kind, count_of, damage_at
from tools.bitrot.judges import Judge, Violation, WreckJudge, judge_of
from tools.bitrot.openings import OpeningJudge, small_files
from tools.bitrot.stores import Subject, subjects

__all__ = ("Count", "Sweep", "numbers_of", "sample", "sweeps_of")

VIOLATIONS_MAX = 20


@dataclass(slots=True, kw_only=True)
class Count:
    """What came of some damages.

    Attributes:
        cases: How many were tried.
        same: How many would have changed nothing.
        outcomes: The others, by outcome.
        open_outcomes: Those of them that hit what nothing vouches for.
        violations: The first ones, each with the number that repeats it.
        violation_count: All of them.
    """

    cases: int = 0
    same: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    open_outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    violation_count: int = 0


class Sweep:
    """One file with one judge."""

    def __init__(
        self, name: str, subject: Subject, make: Callable[[Subject], Judge]
    ) -> None:
        """Name it; the judge is made when it is needed."""
        self.name = name
        self.size = count_of(len(subject.data))
        self._subject = subject
        self._make = make

    @cached_property
    def judge(self) -> Judge:
        """The judge, which has read the sound file."""
        return self._make(self._subject)

    def run(self, numbers: Iterable[int]) -> Count:
        """Try the damages with these numbers."""
        count, judge, data = Count(), self.judge, self._subject.data
        for number in numbers:
            damage = damage_at(number, len(data))
            count.cases += 1
            if damage.kind is not Kind.CUT:
                before = data[damage.offset]
                if damage.byte_of(before) == before:
                    count.same += 1
                    continue
            try:
                outcome = judge.judge(damage)
            except Violation as violation:
                count.violation_count += 1
                if len(count.violations) < VIOLATIONS_MAX:
                    count.violations.append(f"{self.name}, {number}: {violation}")
                continue
            count.outcomes[outcome] += 1
            if judge.is_open(damage):
                count.open_outcomes[f"{damage.kind} {outcome}"] += 1
        return count


def sweeps_of(names: Sequence[str] = ()) -> list[Sweep]:
    """Return the sweeps with these names, all of them without any."""
    found = []
    for subject in subjects():
        found.append(Sweep(subject.name, subject, judge_of))
        if subject.target.endswith(".seg"):
            found.append(Sweep(f"{subject.name}, salvaged", subject, WreckJudge))
        for has_index in (True, False):
            word = "opened" if has_index else "opened without index"
            make = partial(OpeningJudge, has_index=has_index)
            found.append(Sweep(f"{subject.name}, {word}", subject, make))
        if subject.name == "closed segment":
            found += [
                Sweep(f"{one.name}, opened", one, OpeningJudge)
                for one in small_files(subject.site)
            ]
    return [sweep for sweep in found if not names or sweep.name in names]


def sample(size: int, count: int, seed: int) -> Iterator[int]:
    """Yield `count` different numbers below `size`, or all of them, in rising order."""
    if count >= size:
        return iter(range(size))
    return iter(sorted(Random(seed).sample(range(size), count)))


def numbers_of(size: int, part: int, parts: int) -> range:
    """Return the numbers of one of several slices, of about the same size each."""
    assert 1 <= part <= parts, f"slice {part} of {parts}"
    return range(size * (part - 1) // parts, size * part // parts)
