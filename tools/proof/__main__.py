"""The command: run slices, print a line for each, exit 1 if anything was found."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tools.proof
from tools.powercut.filesystems import FILESYSTEMS
from tools.powercut.place import Interrupted, signals_raised
from tools.proof.campaign import KINDS, Campaign, full_slices, waiting_of
from tools.proof.record import PASSED, Line, Record, commit_of, open_violations
from tools.proof.slices import ALL, ROOT, SCENARIO_NAMES, Slice
from tools.proof.sums import filled, table_of
from wheeldb.layout import FORMAT_VERSION

__all__ = ("main",)

RUNS = Path(__file__).parent / "runs.jsonl"
README = ROOT / "README.md"
SWEEPS = ("cuts", "faults")
_COUNTS = (
    *("images", "deep_images", "faults", "power_cuts", "recovery_cuts"),
    *("damages", "killed"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error(f"there is no kind {kind!r}")
    kinds = [kind for kind in KINDS if kind in (options.kinds or SWEEPS)]
    if options.readme:
        return _write_readme(options.record or RUNS)
    if not options.full and len(options.kinds) != 1:
        parser.error("which kind? or --full, or --readme")
    commit = commit_of(ROOT)
    record = Record(options.record or (RUNS if options.full else _part_record()))
    if options.full:
        if commit.endswith("-changed") and record.path == RUNS:
            parser.error("something is not committed: runs.jsonl names commits")
        seeds = range(options.seed, options.seed + options.seeds)
        wanted = full_slices(kinds, seeds)
    else:
        wanted = _part(options, kinds[0])
    only = commit if options.afresh or not options.full else None
    waiting = waiting_of(wanted, record.lines(), FORMAT_VERSION, only)
    print(f"{len(wanted)} slices, of which {len(wanted) - len(waiting)} have passed")
    minutes = float("inf") if options.minutes is None else options.minutes
    campaign = Campaign(
        record,
        commit,
        lambda: commit_of(ROOT) == commit,
        jobs=options.jobs,
        until_s=time.monotonic() + 60 * minutes,
    )
    status = _run(campaign, waiting)
    is_open = options.full and _tell_open(record, kinds, campaign.done)
    return 1 if is_open else status


def _tell_open(record: Record, kinds: list[str], told: list[Line]) -> bool:
    """Print what earlier runs have found and nothing has closed; return whether any."""
    ours = [line for line in record.lines() if line.get("format") == FORMAT_VERSION]
    still = [line for line in open_violations(ours) if line["kind"] in kinds]
    for line in still:
        if line not in told:
            print(f"open since {line['commit']}: {_title(line)}: {line['verdict']}")
    return bool(still)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.proof",
        description=tools.proof.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    add("--full", action="store_true", help="all slices, kept in runs.jsonl")
    add("--readme", action="store_true", help="write the sums into the README")
    add("--seed", type=int, default=0, help="the first one (0)")
    add("--seeds", type=int, default=1, help="so many, with --full (1)")
    add("--minutes", type=float, help="begin nothing that would end later")
    add("--afresh", action="store_true", help="only this commit's lines count as done")
    add("--jobs", type=int, default=1, help="processes (1)")
    add("--record", type=Path, help="another file of lines")
    part = parser.add_argument_group("a part of one kind, kept in build/proof.jsonl")
    add = part.add_argument
    add("--scenario", choices=SCENARIO_NAMES, metavar="NAME", help="only this one")
    add("--filesystem", choices=FILESYSTEMS, default="ext4", help="of powercuts (ext4)")
    add("--slices", type=int, default=100, help="how many make it all (100)")
    add("--first", type=int, default=0, help="begin with this slice (0)")
    add("--count", type=int, default=1, help="so many of them (1)")
    return parser


def _part_record() -> Path:
    path = ROOT / "build" / "proof.jsonl"
    path.parent.mkdir(exist_ok=True)
    return path


def _part(options: argparse.Namespace, kind: str) -> list[Slice]:
    of = options.filesystem if kind == "powercuts" else options.scenario or ALL
    end = min(options.first + options.count, options.slices)
    return [
        Slice(kind, of, options.seed, number, options.slices)
        for number in range(options.first, end)
    ]


def _run(campaign: Campaign, waiting: list[Slice]) -> int:
    found, is_stopped = 0, False
    try:
        with signals_raised():
            for line in campaign.run(waiting):
                found += line["verdict"] != PASSED
                print(f"{_title(line)}: {_told(line)}: {line['verdict']}", flush=True)
    except Interrupted as error:
        is_stopped = True
        print(f"ended by {error}: what is done is recorded", file=sys.stderr)
    left = len(waiting) - len(campaign.done)
    seconds = sum(float(str(line["cpu_seconds"])) for line in campaign.done)
    print(
        f"{len(campaign.done)} slices, {seconds:,.0f} s CPU: {found} found, {left} left"
    )
    for (kind, of), reason in campaign.lacking.items():
        print(f"{kind} of {of} can't be tried: {reason}", file=sys.stderr)
    if campaign.is_moved:
        print(
            "ended: the checkout was changed meanwhile; a clone isn't", file=sys.stderr
        )
    if found:
        return 1
    return 3 if is_stopped or campaign.lacking or campaign.is_moved else 0


def _title(line: Line) -> str:
    share = f"{int(str(line['slice'])) + 1}/{line['slices']}"
    return f"{line['kind']} of {line['of']}, seed {line['seed']}, {share}"


def _told(line: Line) -> str:
    words = []
    for name in _COUNTS:
        if name in line:
            value = line[name]
            count = len(value) if isinstance(value, list) else int(str(value))
            words.append(f"{count:,} {name.replace('_', ' ')}")
    return ", ".join(words)


def _write_readme(path: Path) -> int:
    table = table_of(Record(path).lines(), FORMAT_VERSION)
    README.write_text(filled(README.read_text("utf-8"), table), "utf-8")
    print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
