"""One slice of one scenario, from its name to its counts.

A slice is a value that another process can be given. It is run with what is in the
checkout's `tests`, and what comes back is a line for the record.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

from tools.proof.record import PASSED, Line

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from sweep_errors import faults_of, try_fault  # noqa: E402
from sweep_run import MEDIA, Part, ScenarioSweep  # noqa: E402
from sweep_scenarios import SCENARIOS  # noqa: E402

from wheeldb.testing import CrashFound  # noqa: E402

__all__ = ("KINDS", "Slice", "run_slice", "slices_of")

KINDS = ("cuts", "faults")

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


class Slice(NamedTuple):
    """What is to be tried."""

    kind: str
    commit: str
    seed: int
    scenario: str
    medium: str
    slice_number: int
    slice_count: int

    def line(self) -> Line:
        """Return how a record names it."""
        names = ("kind", "commit", "seed", "scenario", "medium", "slice", "slices")
        return dict(zip(names, self, strict=True))


def slices_of(
    kind: str, commit: str, seed: int, scenario: str | None, numbers: range, count: int
) -> list[Slice]:
    """Return the slices with these numbers, of one scenario or of all.

    Raises:
        KeyError: There is no such scenario.
    """
    names = list(BY_NAME) if scenario is None else [BY_NAME[scenario].name]
    media = tuple(MEDIA) if kind == "cuts" else ("disk",)
    return [
        Slice(kind, commit, seed, name, medium, number, count)
        for number in numbers
        for name in names
        for medium in media
    ]


def run_slice(one: Slice) -> Line:
    """Try a slice and return the line for it."""
    line = one.line()
    part = Part(
        slice_number=one.slice_number, slice_count=one.slice_count, seed=one.seed
    )
    start_s = time.thread_time()
    run = _run_cuts if one.kind == "cuts" else _run_faults
    line["verdict"] = run(one, part, line)
    line["cpu_seconds"] = round(time.thread_time() - start_s, 2)
    return line


def _run_cuts(one: Slice, part: Part, line: Line) -> str:
    sweep = ScenarioSweep(BY_NAME[one.scenario], one.medium, part)
    verdict = PASSED
    try:
        sweep.run()
    except CrashFound as found:
        verdict = str(found)
    result = sweep.result
    line |= {
        "images": result.images,
        "deep_images": result.deep_images,
        "exact": result.verdicts.exact,
        "refused": result.verdicts.refused,
    }
    return verdict


def _run_faults(one: Slice, part: Part, line: Line) -> str:
    scenario = BY_NAME[one.scenario]
    tried, verdict = 0, PASSED
    for fault in faults_of(scenario):
        if not part.has(f"{scenario.name} {fault}", part.lots):
            continue
        tried += 1
        try:
            try_fault(scenario, fault)
        except Exception as error:
            verdict = f"{fault}: {type(error).__name__}: {error}"
            break
    line["faults"] = tried
    return verdict
