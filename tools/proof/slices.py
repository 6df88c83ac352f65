"""One slice, from its name to its line.

A slice is a value that another process can be given. The sweeps are those of the
checkout's `tests`; the other kinds are runs of other tools, see `rigs`. What comes back
is a line for the record.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.proof import rigs
from tools.proof.record import PASSED, Line
from wheeldb.layout import FORMAT_VERSION

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from sweep_errors import faults_of, try_fault  # noqa: E402
from sweep_run import MEDIA, Part, ScenarioSweep  # noqa: E402
from sweep_scenarios import SCENARIOS, Scenario  # noqa: E402

__all__ = ("ALL", "ROOT", "SCENARIO_NAMES", "Slice", "run_slice")

ALL = "all"
SCENARIO_NAMES = tuple(scenario.name for scenario in SCENARIOS)
# A store tells of every index that a fault made it rebuild.
_NOWHERE = logging.NullHandler()
# The rest of a very long text says no more.
VERDICT_CHARACTERS_MAX = 2_000


class Slice(NamedTuple):
    """What is to be tried.

    Attributes:
        kind: See the package.
        of: One scenario, one file system, or all there is.
        seed: Of everything that is drawn.
        slice_number: This slice
        slice_count: of so many; together they are everything.
    """

    kind: str
    of: str
    seed: int
    slice_number: int
    slice_count: int

    def line(self) -> Line:
        """Return how a record names it."""
        return dict(zip(("kind", "of", "seed", "slice", "slices"), self, strict=True))


def run_slice(one: Slice, commit: str) -> Line:
    """Try a slice and return the line for it.

    Raises:
        CannotRun: The rig for it does not work here.
    """
    logging.getLogger("wheeldb").addHandler(_NOWHERE)
    line = one.line() | {"commit": commit, "format": FORMAT_VERSION}
    start_s = _cpu_s()
    counts, verdicts = _RUNS[one.kind](one)
    line |= counts
    line["verdict"] = "\n".join(verdicts)[:VERDICT_CHARACTERS_MAX] or PASSED
    line["cpu_seconds"] = round(_cpu_s() - start_s, 2)
    return line


def _cpu_s() -> float:
    """Return what this process has used, with the children that it has waited for."""
    return sum(os.times()[:4])


def _part_of(one: Slice) -> Part:
    return Part(
        slice_number=one.slice_number, slice_count=one.slice_count, seed=one.seed
    )


def _scenarios_of(one: Slice) -> list[Scenario]:
    return [scenario for scenario in SCENARIOS if one.of in (ALL, scenario.name)]


def _run_cuts(one: Slice) -> rigs.Found:
    verdicts: list[str] = []
    counts = dict.fromkeys(("images", "deep_images", "exact", "refused"), 0)
    for scenario in _scenarios_of(one):
        for medium in MEDIA:
            sweep = ScenarioSweep(scenario, medium, _part_of(one))
            try:
                sweep.run()
            except Exception as error:
                verdicts.append(f"{scenario.name} on {medium}: {_told(error)}")
            result = sweep.result
            counts["images"] += result.images
            counts["deep_images"] += result.deep_images
            counts["exact"] += result.verdicts.exact
            counts["refused"] += result.verdicts.refused
    return counts, verdicts


def _run_faults(one: Slice) -> rigs.Found:
    part, tried, verdicts = _part_of(one), 0, []
    for scenario in _scenarios_of(one):
        for fault in faults_of(scenario):
            if not part.has(f"{scenario.name} {fault}", part.lots):
                continue
            tried += 1
            try:
                try_fault(scenario, fault)
            except Exception as error:
                verdicts.append(f"{scenario.name}, {fault}: {_told(error)}")
    return {"faults": tried}, verdicts


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_RUNS: Mapping[str, Callable[[Slice], rigs.Found]] = {
    "cuts": _run_cuts,
    "faults": _run_faults,
    "powercuts": lambda one: rigs.cut_power(
        one.of, one.seed * one.slice_count + one.slice_number + 1
    ),
    "bitrot": lambda one: rigs.damage_files(one.slice_number + 1, one.slice_count),
    "index": lambda one: rigs.damage_index(one.slice_number + 1),
    "mutants": lambda one: rigs.plant(one.slice_number, one.slice_count),
}
