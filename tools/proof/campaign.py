"""Choosing slices and running them, one after the other or side by side, until the end.

    wanted = full_slices(("cuts", "powercuts"), seeds=range(2))
    campaign = Campaign(record, commit, jobs=2, until_s=time.monotonic() + 1800)
    campaign.run(waiting_of(wanted, record.lines(), FORMAT_VERSION))

Kinds take turns, by the share of each that is done, so that one that takes hours keeps
no other from its own. Nothing is begun that would not end in time, as far as the slices
of its kind before it tell. What was under way when a run was stopped is begun again by
the next one: no slice takes more than a minute or two.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context

from tools.powercut.filesystems import FILESYSTEMS
from tools.proof.record import PASSED, Line, Record, name_of
from tools.proof.rigs import CannotRun
from tools.proof.slices import ALL, Slice, run_slice

__all__ = ("DRAWN", "KINDS", "Campaign", "full_slices", "waiting_of")

# In how many slices `--full` does each kind. A change begins every kind anew.
SLICES = {
    "cuts": 200,
    "faults": 20,
    "powercuts": 25,
    "bitrot": 100,
    "index": 20,
    "mutants": 15,
}
KINDS = tuple(SLICES)
# What another seed draws anew; everything else is the same for every seed.
DRAWN = frozenset({"cuts", "powercuts"})


def full_slices(kinds: Sequence[str], seeds: range) -> list[Slice]:
    """Return all slices of these kinds, in the order in which they are run."""
    slices = [
        Slice(kind, of, seed, number, SLICES[kind])
        for kind in kinds
        for seed in (seeds if kind in DRAWN else (0,))
        for of in (FILESYSTEMS if kind == "powercuts" else (ALL,))
        for number in range(SLICES[kind])
    ]
    return sorted(
        slices, key=lambda one: (one.seed, one.slice_number / one.slice_count)
    )


def waiting_of(
    wanted: Iterable[Slice],
    lines: Iterable[Line],
    format_version: int,
    commit: str | None = None,
) -> list[Slice]:
    """Return the slices that have not passed yet, in this format.

    Args:
        commit: Only lines of this one count.
    """
    passed = {
        name_of(line)
        for line in lines
        if line["verdict"] == PASSED
        and line.get("format") == format_version
        and commit in (None, line["commit"])
    }
    return [one for one in wanted if name_of(one.line()) not in passed]


class Campaign:
    """One run over many slices.

    Args:
        record: Where each line goes as soon as its slice is done.
        commit: What is being tried.
        is_still: Says whether that is still what is checked out.
        jobs: How many processes.
        until_s: When to end, by the monotonic clock.

    Attributes:
        done: The lines of this run.
        lacking: Kinds, or file systems, that can't be tried here, with the reason.
        is_moved: Whether the checkout was changed under the run, which ended it.
    """

    def __init__(
        self,
        record: Record,
        commit: str,
        is_still: Callable[[], bool],
        *,
        jobs: int = 1,
        until_s: float = float("inf"),
    ) -> None:
        self._record = record
        self._commit = commit
        self._is_still = is_still
        self._jobs = jobs
        self._until_s = until_s
        self._longest_s: dict[str, float] = {}
        self.done: list[Line] = []
        self.lacking: dict[tuple[str, str], str] = {}
        self.is_moved = False

    def run(self, waiting: Iterable[Slice]) -> Iterator[Line]:
        """Run slices and yield each line once it is recorded."""
        results = self._alone if self._jobs == 1 else self._side_by_side
        for line in results(self._timely(waiting)):
            if not self._is_still():
                # Nobody knows which code the slice has met.
                self.is_moved = True
                return
            self._record.add(line)
            self.done.append(line)
            yield line

    def _timely(self, waiting: Iterable[Slice]) -> Iterator[Slice]:
        """Yield what is to be begun now."""
        for one in waiting:
            longest_s = self._longest_s.get(one.kind, 0.0)
            if time.monotonic() + longest_s >= self._until_s:
                return
            if (one.kind, one.of) not in self.lacking:
                yield one

    def _alone(self, slices: Iterable[Slice]) -> Iterator[Line]:
        for one in slices:
            start_s = time.monotonic()
            line = self._outcome(one, start_s, partial(run_slice, one, self._commit))
            if line is not None:
                yield line

    def _side_by_side(self, slices: Iterator[Slice]) -> Iterator[Line]:
        running: dict[Future[Line], tuple[Slice, float]] = {}
        with ProcessPoolExecutor(self._jobs, mp_context=get_context("spawn")) as pool:
            while True:
                while len(running) < self._jobs:
                    one = next(slices, None)
                    if one is None:
                        break
                    future = pool.submit(run_slice, one, self._commit)
                    running[future] = (one, time.monotonic())
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    line = self._outcome(*running.pop(future), future.result)
                    if line is not None:
                        yield line

    def _outcome(
        self, one: Slice, start_s: float, result: Callable[[], Line]
    ) -> Line | None:
        try:
            line = result()
        except CannotRun as error:
            self.lacking[one.kind, one.of] = str(error)
            return None
        took_s = time.monotonic() - start_s
        self._longest_s[one.kind] = max(took_s, self._longest_s.get(one.kind, 0.0))
        return line
