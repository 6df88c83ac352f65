"""The kinds of slice that are runs of other tools.

    counts, violations = cut_power("ext4", seed=7)
    counts      {"power_cuts": 48, "recovery_cuts": 8, "unmountable": 0}

Each is a process of its own, which is asked to end, and waited for, if this one is
interrupted: a rig has mounts to let go of. What a damaged file does to a process, death
by a signal too, is then a violation and not the end of the campaign.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.mutants.catalogue import MUTANTS
from tools.mutants.planting import Nursery
from tools.powercut.filesystems import FILESYSTEMS
from tools.powercut.stage import missing_for

__all__ = ("CannotRun", "Found", "cut_power", "damage_files", "damage_index", "plant")

# What was tried, and each violation in words.
Found = tuple[Mapping[str, object], list[str]]

ROOT = Path(__file__).parent.parent.parent
IMAGES, RECOVERIES, RECOVERY_CUTS = 40, 2, 4
# Of whole openings, which are slow, and of LMDB's file, which takes a process each.
OPENINGS, INDEX_DAMAGES = 20, 10


class CannotRun(Exception):
    """Something that a rig needs is missing here, or it broke down by itself."""


def cut_power(filesystem: str, seed: int) -> Found:
    """Cut the power of one run under one file system, and of some recoveries.

    Raises:
        CannotRun: The rig needs what is not here.
    """
    missing = missing_for(FILESYSTEMS[filesystem])
    if missing is not None:
        raise CannotRun(f"{filesystem} needs {missing}")
    status, said, errors = _run(
        *("tools.powercut", "--json", "--filesystem", filesystem),
        *("--seed", str(seed), "--images", str(IMAGES)),
        *("--recoveries", str(RECOVERIES), "--recovery-cuts", str(RECOVERY_CUTS)),
    )
    if status not in (0, 1) or not said:
        raise CannotRun(f"tools.powercut ended with {status}: {errors}")
    (tally,) = json.loads(said)
    unmountable = len(tally["unmountable"])
    counts = {
        "power_cuts": tally["images"] - unmountable,
        "recovery_cuts": tally["recovery_images"],
        "unmountable": unmountable,
    }
    violations = [
        f"{filesystem}, seed {seed}, {one['cut']}, recovery {one['recovery']}: "
        f"{one['said']}"
        for one in tally["violations"]
    ]
    if status == 1 and not violations:
        violations = [f"{filesystem}, seed {seed}: {unmountable} are unmountable"]
    return counts, violations


def damage_files(part: int, parts: int) -> Found:
    """Try a share of every damage of every file; of openings a sample of its own."""
    return _damage(
        "--full", "--slice", f"{part}/{parts}", "--openings", str(OPENINGS), "--seed=1"
    )


def damage_index(seed: int) -> Found:
    """Damage LMDB's file, as each way to end has left it."""
    return _damage("--index", str(INDEX_DAMAGES), "--seed", str(seed))


def _damage(*words: str) -> Found:
    status, said, errors = _run("tools.bitrot", "--json", *words)
    command = " ".join(words)
    if status not in (0, 1) or not said:
        return {"damages": 0}, [f"{command} ended with {status}: {errors}"]
    found = json.loads(said)
    violations = [
        f"{command}: {violation}"
        for file in found["files"].values()
        for violation in file["violations"]
    ]
    if found["violations"] and not violations:
        violations = [f"{command}: {found['violations']} violations"]
    return {"damages": found["cases"]}, violations


def plant(number: int, count: int) -> Found:
    """Plant every `count`-th fault, from this number on; a test has to see each."""
    chosen = MUTANTS[number::count]
    killed, violations = [], []
    with Nursery() as nursery:
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        sound = nursery.is_sound(tests)
        if sound.by or (tests and "passed" not in sound.output):
            return {"killed": []}, [f"without any fault: {sound.by} {sound.output}"]
        for mutant in chosen:
            verdict = nursery.run(mutant)
            if verdict.is_killed:
                killed.append(mutant.name)
            else:
                violations.append(f"{mutant.name} survived: {verdict.output[-300:]}")
    return {"killed": killed}, violations


def _run(module: str, *words: str) -> tuple[int, str, str]:
    """Run a tool; return its status, what it printed, and the end of its errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, errors = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.returncode, said, errors[-1_000:]
