"""Every system call of a real process that changes a file, cut short or failed.

    python -m tools.syscalls [--cases 60] [--seed 1] [--full] [--call …] [--end …]

strace runs `tools.powercut.workload` once and counts, thread by thread, the calls that
concern the store. Then it runs it again for each case, and at the N-th such call

    KILL            the process gets SIGKILL before the kernel carries the call out
    EIO, ENOSPC     the kernel answers with this error, once
    EIO+, ENOSPC+   and from then on

and `tools.powercut.verify` judges what is left by what was acknowledged. Of a process
only, so everything that has returned must be there. Beside that:

- no call succeeds after the store is poisoned, and no error kills the process;
- an EIO in the log is told: some call, or the opening or the close, raises it.

``--full`` takes every N of every call, without it so many cases are drawn by the seed,
spread over calls and errors. Threads take turns as they please, so a case may fall on
another call than in the first run, or on none: it is judged all the same, and counted
apart.

Needs Linux, strace and the right to trace. It says nothing about power cuts: the page
cache outlives the process. `tools.powercut` does.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tools.powercut.stage import ROOT, environment

__all__ = ("CALLS", "Case", "Finding", "Sweep", "Tally", "draw", "main")

# What this machine's C library makes of the calls of Python, LMDB and wheeldb.
CALLS = (
    *("openat", "mkdir", "rename", "renameat", "renameat2", "unlink", "rmdir"),
    *("write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate"),
    *("fsync", "fdatasync", "msync", "sync_file_range", "flock"),
)
ENDS = ("KILL", "EIO", "EIO+", "ENOSPC", "ENOSPC+")
SECONDS_MAX = 60.0
STEPS, ROUNDS = 40, 2

_CALL = re.compile(r"(\d+) +(\w+)\((.*)")
_INJECTED = "(INJECTED)"


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """The N-th call of a name in its thread, and how it ends."""

    call: str
    number: int
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a case has shown."""

    case: Case
    at: str
    what: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of a sweep.

    Attributes:
        seed: Of the workload, and of the choice of cases.
        possible: All cases that there are.
        cases: Those that ran, by how they end.
        missed: Those whose call was never reached.
        findings: What was wrong.
    """

    seed: int
    possible: int
    cases: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    findings: list[Finding] = field(default_factory=list)


class Sweep:
    """One workload, run over and over.

    Args:
        seed: Of the workload, and of the choice of cases.
        place: An empty directory to work in.
    """

    def __init__(self, seed: int, place: Path) -> None:
        self._seed = seed
        self._place = place

    def cases(self) -> list[Case]:
        """Return every case, from a run in which nothing is injected."""
        # The first run compiles what later ones only read: other calls, other numbers.
        self._work(None)
        ended, log, _ = self._work(None)
        assert ended.returncode == 0, ended.stderr
        counts: Counter[tuple[str, str]] = Counter()
        found = set()
        for line in log:
            parsed = _CALL.match(line)
            if parsed is None:
                continue
            thread, call, arguments = parsed.groups()
            counts[thread, call] += 1
            if str(self._store) in arguments and "O_RDONLY" not in arguments:
                found.add((call, counts[thread, call]))
        return sorted(Case(*one, end) for one in found for end in ENDS)

    def run(self, cases: Sequence[Case], possible: int) -> Tally:
        """Run some cases and judge each."""
        tally = Tally(seed=self._seed, possible=possible)
        for case in cases:
            tally.cases[case.end] = tally.cases.get(case.end, 0) + 1
            ended, log, lines = self._work(case)
            at = _place_of(log, case)
            if at is None:
                tally.missed += 1
            for what in self._judge(case, ended, lines, at or ""):
                tally.findings.append(Finding(case=case, at=at or "", what=what))
        return tally

    @property
    def _store(self) -> Path:
        return self._place / "work" / "store"

    def _work(
        self, case: Case | None
    ) -> tuple[subprocess.CompletedProcess[str], list[str], str]:
        """Run the workload in a fresh directory; return its end, trace and lines."""
        shutil.rmtree(self._store.parent, ignore_errors=True)
        self._store.parent.mkdir()
        trace = self._place / "trace"
        command = ["strace", "--follow-forks", "--seccomp-bpf", "--decode-fds=path"]
        command += ["--trace", ",".join(CALLS), "--signal", "none", "--quiet=all"]
        command += ["--output", str(trace)]
        if case is not None:
            command += ["--inject", _injection(case)]
        command += [sys.executable, "-m", "tools.powercut.workload"]
        command += [str(self._store.parent), str(self._seed), "--errors"]
        command += ["--hands", "1", "--steps", str(STEPS), "--rounds", str(ROUNDS)]
        ended = _run(self._place, command, "")
        return ended, trace.read_text(errors="replace").splitlines(), ended.stdout

    def _judge(
        self,
        case: Case,
        ended: subprocess.CompletedProcess[str],
        lines: str,
        at: str,
    ) -> list[str]:
        findings = []
        expected = {0, -9, 137} if case.end == "KILL" else {0}
        if ended.returncode not in expected:
            words = ended.stderr.strip().splitlines()
            findings.append(f"the process ended with {ended.returncode}: {words[-3:]}")
        is_log = f"{self._store}/log" in at
        if at and is_log and case.end.startswith("EIO") and not ended.stderr:
            findings.append("nobody was told of the error")
        command = [sys.executable, "-m", "tools.powercut.verify", "--kill"]
        # A line may have been cut by the kill.
        whole = lines[: lines.rfind("\n") + 1]
        verified = _run(self._place, [*command, str(self._store.parent)], whole)
        if verified.returncode != 0:
            findings.append(f"verify: {verified.stderr.strip()[-2_000:]}")
        return findings


def _injection(case: Case) -> str:
    forever = "+" if case.end.endswith("+") else ""
    word = case.end.rstrip("+")
    kind = "signal" if word == "KILL" else "error"
    return f"{case.call}:{kind}={word}:when={case.number}{forever}"


def _place_of(log: Sequence[str], case: Case) -> str | None:
    """Return the first call that a case has met, ``None`` if it met none."""
    counts: Counter[str] = Counter()
    for line in log:
        parsed = _CALL.match(line)
        if parsed is not None and parsed[2] == case.call:
            counts[parsed[1]] += 1
            if counts[parsed[1]] == case.number:
                return f"{parsed[2]}({parsed[3]}"[:300]
    return None


def _run(
    place: Path, command: Sequence[str], given: str
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(place),
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"still running after {SECONDS_MAX:g} s: {shlex.join(command)}"
        return subprocess.CompletedProcess(command, 124, "", text)


def draw(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    """Draw cases, first one of each call and end, then of the rest."""
    random = Random(seed)
    shuffled = random.sample(cases, len(cases))
    first: dict[tuple[str, str], Case] = {}
    for case in shuffled:
        first.setdefault((case.call, case.end), case)
    chosen = list(first.values())[:count]
    rest = [case for case in shuffled if case not in set(chosen)]
    return sorted(chosen + rest[: count - len(chosen)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep as the command line says; 0: nothing found, 1: something was."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.syscalls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cases", type=int, default=60)
    add("--seed", type=int, default=1)
    add("--full", action="store_true", help="every N of every call")
    add("--call", action="append", choices=CALLS, help="only this call")
    add("--end", action="append", choices=ENDS, help="only this end")
    add("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="wheeldb-syscalls-") as place:
        sweep = Sweep(options.seed, Path(place))
        calls, ends = options.call or CALLS, options.end or ENDS
        every = [
            case for case in sweep.cases() if case.call in calls and case.end in ends
        ]
        cases = every if options.full else draw(every, options.cases, options.seed)
        tally = sweep.run(cases, len(every))
    if options.json:
        print(json.dumps(asdict(tally), indent=2))
    else:
        print(_report(tally))
    return 1 if tally.findings else 0


def _report(tally: Tally) -> str:
    ends = ", ".join(f"{end} {count}" for end, count in tally.cases.items())
    lines = [
        f"seed {tally.seed}: {sum(tally.cases.values())} of {tally.possible} cases "
        f"({ends}), {tally.missed} not reached, {len(tally.findings)} findings"
    ]
    for finding in tally.findings:
        case = finding.case
        lines += [
            f"FOUND {case.call} {case.number} {case.end}: {finding.what}",
            f"    at {finding.at}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
