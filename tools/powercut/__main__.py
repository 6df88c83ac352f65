"""The command line of `tools.powercut`; the package says what it does.

Exit status: 0 nothing was lost, 1 something was, 2 usage, 3 the rig could not run.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tools.powercut
from tools.powercut.filesystems import FILESYSTEMS
from tools.powercut.place import Interrupted, scratch_place, signals_raised
from tools.powercut.rig import Plan, Rig, RunFailed, Tally, judge_kept
from tools.powercut.stage import Unmountable, missing_for

__all__ = ("main",)

_PYTHON = shlex.quote(sys.executable)
WORKLOAD = f"{_PYTHON} -m tools.powercut.workload {{directory}} {{seed}}"
VERIFY = f"{_PYTHON} -m tools.powercut.verify {{directory}}"
# Of images that the kernel can't mount nobody can judge the store. More than this share
# of them, and the run has said too little.
UNMOUNTABLE_SHARE_MAX = 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    """Cut the power as the command line says."""
    options = _parse(arguments)
    names = list(FILESYSTEMS) if options.filesystem == "all" else [options.filesystem]
    tallies = []
    try:
        with signals_raised(), scratch_place(options.scratch) as place:
            if options.again is not None:
                return _again(options.again, options.verify, place)
            for name in names:
                tallies.append(_run(name, options, place))
                if not options.json:
                    print(_report(tallies[-1]), flush=True)
    except Interrupted as error:
        print(f"ended by {error}", file=sys.stderr)
        return 3
    except (RunFailed, Unmountable, OSError, subprocess.CalledProcessError) as error:
        print(f"the rig could not run: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps([asdict(tally) for tally in tallies], indent=2))
    return 0 if all(_is_fine(tally) for tally in tallies) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.powercut",
        description=tools.powercut.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--filesystem", choices=[*FILESYSTEMS, "all"], default="ext4")
    add("--images", type=int, default=40, help="cuts of the workload (40)")
    add("--seed", type=int, default=1)
    add("--recoveries", type=int, default=0, help="recoveries that are cut as well")
    add("--recovery-cuts", type=int, default=4, help="cuts of each of them (4)")
    add("--workload", default=WORKLOAD, metavar="COMMAND", help="under load")
    add("--verify", default=VERIFY, metavar="COMMAND", help="judges an image")
    add("--keep", type=Path, metavar="DIR", help="keep the images of violations")
    add("--again", type=Path, metavar="KEPT", help="judge a kept image once more")
    add("--scratch", metavar="DIR", help="where to work (memory, if there is some)")
    add("--json", action="store_true")
    return parser.parse_args(arguments)


def _run(name: str, options: argparse.Namespace, place: Path) -> Tally:
    missing = missing_for(FILESYSTEMS[name])
    if missing is not None:
        raise RunFailed(f"{name} needs {missing}")
    below = place / name
    below.mkdir()
    plan = Plan(
        filesystem=name,
        images=options.images,
        seed=options.seed,
        workload=options.workload,
        verify=options.verify,
        recoveries=options.recoveries,
        recovery_cuts=options.recovery_cuts,
        keep=options.keep,
    )
    return Rig(plan, below).run()


def _again(kept: Path, verify: str, place: Path) -> int:
    ended = judge_kept(kept, verify, place)
    print(ended.said or "nothing was lost")
    return 0 if ended.status == 0 else 1


def _is_fine(tally: Tally) -> bool:
    share = len(tally.unmountable) / max(tally.images, 1)
    return not tally.violations and share <= UNMOUNTABLE_SHARE_MAX


def _report(tally: Tally) -> str:
    modes = ", ".join(f"{mode} {count}" for mode, count in tally.by_mode.items())
    lines = [
        f"{tally.filesystem}, seed {tally.seed}: {tally.images} images, "
        f"{len(tally.violations)} violations, {len(tally.unmountable)} unmountable",
        f"    {tally.recovery_images} of them cut a recovery; {modes}",
        f"    from {tally.writes} writes, {tally.flushes} flushes, {tally.lines} lines",
    ]
    lines += [f"    unmountable at {words}" for words in tally.unmountable]
    for violation in tally.violations:
        where = f"flush {violation.cut.flush}, {violation.cut.mode}"
        if violation.recovery is not None:
            later = violation.recovery
            where += f"; of its recovery flush {later.flush}, {later.mode}"
        lines.append(
            f"    VIOLATION seed {tally.seed}, {where}, status {violation.status}"
        )
        lines.append(f"        on the disk: {violation.pieces or 'nothing more'}")
        lines += [f"        {line}" for line in violation.said.splitlines()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
