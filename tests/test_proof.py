"""The record of what was tried is kept whole, taken up again, and summed up truly.

Goal: the README's numbers are what was run, no more. A run that is stopped goes on
where it was, on any commit, and no violation gets lost between two runs. Method: small
slices of the real sweeps, records written by hand, and the checkout's own `runs.jsonl`.
And the tables of promises name tests that there are.
"""

import ast
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools.proof import rigs
from tools.proof.__main__ import README, RUNS, main
from tools.proof.campaign import KINDS, SLICES, Campaign, full_slices, waiting_of
from tools.proof.record import PASSED, Line, Record, commit_of, open_violations
from tools.proof.slices import ALL, ROOT, Slice, run_slice
from tools.proof.sums import BEGIN, END, filled, table_of
from wheeldb.layout import FORMAT_VERSION

LINES_MAX = 2_000
SMALL = [Slice("faults", "single commits", 0, number, 100) for number in range(4)]

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="needs a git checkout",
)


def line_of(one: Slice, **fields: object) -> Line:
    """Return a line as a run would have left it."""
    line = one.line() | {"commit": "a", "format": 1, "verdict": PASSED}
    return line | {"cpu_seconds": 1.0} | fields


def always() -> bool:
    return True


def campaign_of(
    path: Path, commit: str = "a", is_still: Callable[[], bool] = always
) -> Campaign:
    return Campaign(Record(path), commit, is_still)


# The record.


def test_a_line_reads_back(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    assert record.lines() == []
    lines = [line_of(one, verdict="it said\n“no”") for one in SMALL]

    for line in lines:
        record.add(line)

    assert record.lines() == lines
    assert len(record.path.read_bytes().splitlines()) == len(lines)


@pytest.mark.parametrize("damage", ['{"kind": "cu', "7"])
def test_a_line_that_is_not_whole_is_refused(damage: str, tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add(line_of(SMALL[0]))
    with record.path.open("a") as file:
        file.write(damage)

    with pytest.raises(ValueError, match="record, line 2: "):
        record.lines()


@needs_git
def test_what_is_not_committed_is_marked(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)

    (tmp_path / "tools").mkdir()
    source, runs = tmp_path / "tools" / "a.py", tmp_path / "tools" / "runs.jsonl"
    source.write_text("a = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "Begin")

    runs.write_text("{}\n")
    assert re.fullmatch("[0-9a-f]{40}", commit_of(tmp_path))
    source.write_text("a = 2\n")
    assert commit_of(tmp_path).endswith("-changed")


# Slices, and taking them up again.


def test_all_slices_are_everything_once() -> None:
    slices = full_slices(KINDS, range(3))

    assert len(set(slices)) == len(slices) <= LINES_MAX
    for seed in range(3):
        parts = [one for one in slices if (one.kind, one.seed) == ("cuts", seed)]
        assert {one.slice_number for one in parts} == set(range(SLICES["cuts"]))
    assert {one.seed for one in slices if one.kind in {"faults", "mutants"}} == {0}
    ext4 = [one for one in slices if (one.of, one.seed) == ("ext4", 0)]
    assert len(ext4) * rigs.IMAGES >= 1_000


def test_kinds_take_turns() -> None:
    slices = full_slices(KINDS, range(2))
    first = slices[: len(full_slices(KINDS, range(1))) // 4]

    assert {one.kind for one in first} == set(KINDS)
    assert {one.seed for one in first} == {0}


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for done, _ in enumerate(campaign_of(path).run(SMALL), 1):
        if done == 2:
            break

    left = waiting_of(SMALL, Record(path).lines(), FORMAT_VERSION)
    assert left == SMALL[2:]
    # On another commit too, and each line names its own.
    lines = list(campaign_of(path, "b").run(left))

    assert [line["commit"] for line in Record(path).lines()] == ["a", "a", "b", "b"]
    assert all(line["verdict"] == PASSED for line in lines)
    assert sum(int(str(line["faults"])) for line in Record(path).lines()) > 0
    assert waiting_of(SMALL, Record(path).lines(), FORMAT_VERSION) == []
    assert waiting_of(SMALL, Record(path).lines(), FORMAT_VERSION, "b") == SMALL[:2]
    assert waiting_of(SMALL, Record(path).lines(), FORMAT_VERSION + 1) == SMALL


def test_a_slice_tries_the_same_again() -> None:
    slices = [run_slice(Slice("cuts", "rotation", 0, 3, 300), "a") for _ in range(2)]
    images = {(line["images"], line["deep_images"], line["exact"]) for line in slices}

    assert len(images) == 1
    assert images != {(0, 0, 0)}


def test_nothing_is_begun_behind_the_end(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    campaign = Campaign(record, "a", always, until_s=0.0)

    assert list(campaign.run(SMALL)) == []
    assert record.lines() == []


def test_a_slice_of_nobody_knows_which_code_is_not_recorded(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path / "record", is_still=lambda: False)

    assert list(campaign.run(SMALL)) == []
    assert campaign.is_moved
    assert Record(tmp_path / "record").lines() == []


def test_a_rig_that_is_lacking_is_told_and_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rigs, "missing_for", lambda _: "a kernel")
    lacking = [Slice("powercuts", "ext4", 0, number, 25) for number in range(2)]
    campaign = campaign_of(tmp_path / "record")

    assert len(list(campaign.run([*lacking, SMALL[0]]))) == 1
    assert campaign.lacking == {("powercuts", "ext4"): "ext4 needs a kernel"}


@pytest.mark.slow
def test_several_processes_do_the_same(tmp_path: Path) -> None:
    def counts(jobs: int) -> list[object]:
        path = tmp_path / f"record-{jobs}"
        list(Campaign(Record(path), "a", always, jobs=jobs).run(SMALL))
        lines = sorted(Record(path).lines(), key=lambda line: str(line["slice"]))
        return [line["faults"] for line in lines]

    assert counts(2) == counts(1)


@pytest.mark.slow
@needs_git
def test_a_run_that_is_ended_has_recorded_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "record"
    words = ["faults", "--slices", "1000", "--count", "1000", "--record", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tools.proof", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert "0 have passed" in process.stdout.readline()
    process.stdout.readline()

    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)

    assert process.returncode == 3, said
    done = Record(path).lines()
    wanted = [Slice("faults", ALL, 0, number, 1_000) for number in range(1_000)]
    assert 1 <= len(done) < len(wanted)
    assert waiting_of(wanted, done, FORMAT_VERSION) == wanted[len(done) :]


# Violations.


def test_a_violation_is_a_line_that_says_how_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheeldb.log.segment.sync_directory", lambda *_: None)
    slices = [Slice("cuts", "rotation", 0, number, 8) for number in range(8)]

    for line in campaign_of(tmp_path / "record").run(slices):
        if line["verdict"] != PASSED:
            break
    else:
        pytest.fail("nobody saw the missing sync")

    assert Record(tmp_path / "record").lines()[-1] == line
    assert "rotation on " in str(line["verdict"])
    assert "again: seed=0, only=" in str(line["verdict"])


def test_a_violation_stays_open_until_another_commit_passes() -> None:
    one, other = SMALL[:2]
    bad = line_of(one, verdict="lost")

    assert open_violations([line_of(one), bad]) == [bad]
    assert open_violations([bad, line_of(one), line_of(other, commit="b")]) == [bad]
    assert open_violations([bad, line_of(one, commit="b")]) == []
    assert open_violations([line_of(one, commit="b"), bad]) == [bad]


@needs_git
def test_an_open_violation_makes_the_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(tmp_path / "record")
    slices = full_slices(["faults"], range(1))
    words = ["--full", "faults", "--record", str(record.path)]
    record.add(line_of(slices[0], verdict="it was lost"))
    for one in slices:
        record.add(line_of(one))

    assert main(words) == 1
    assert "open since a: faults of all, seed 0, 1/20: it was lost" in (
        capsys.readouterr().out
    )
    record.add(line_of(slices[0], commit="b"))
    assert main(words) == 0
    assert len(record.lines()) == len(slices) + 2


def test_a_tool_that_breaks_down_is_a_violation() -> None:
    counts, violations = rigs._damage("--no-such-option")

    assert counts == {"damages": 0}
    assert "--no-such-option ended with 2" in violations[0]


@pytest.mark.slow
def test_files_are_damaged_and_faults_are_planted() -> None:
    counts, violations = rigs.damage_files(7, 20_000)
    assert violations == []
    assert int(str(counts["damages"])) > 300

    planted, violations = rigs.plant(0, 45)
    assert violations == []
    assert planted == {"killed": ["segment-name-not-synced"]}


# The sums.


def cells_of(lines: Sequence[Line], version: int = 1) -> dict[str, list[str]]:
    """Return the two other cells of each row of the table, by the first."""
    rows = table_of(lines, version).splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {first: rest for first, *rest in cells}


def test_sums_are_over_what_has_passed_in_this_format() -> None:
    one, other = (Slice("cuts", ALL, 0, number, 200) for number in range(2))
    fields = {"images": 1_000, "deep_images": 500}
    lines = [
        line_of(one, **fields),
        line_of(one, **fields),  # from two runs at once
        line_of(one, commit="b", **fields),
        line_of(other, verdict="lost", **fields),
        line_of(other, format=2, **fields),
    ]

    row = cells_of(lines)["images of simulated power cuts"]
    assert row == ["3,000, of them 1,000 in a recovery", "1, 1 open"]
    lines.append(line_of(other, commit="b", **fields))
    row = cells_of(lines)["images of simulated power cuts"]
    assert row == ["4,500, of them 1,500 in a recovery", "1, none open"]
    row = cells_of(lines, 2)["images of simulated power cuts"]
    assert row == ["1,500, of them 500 in a recovery", "none"]


def test_every_kind_has_its_row() -> None:
    ran: list[tuple[str, str, dict[str, object]]] = [
        ("faults", ALL, {"faults": 7}),
        ("powercuts", "xfs", {"power_cuts": 47, "recovery_cuts": 8}),
        ("bitrot", ALL, {"damages": 9}),
        ("index", ALL, {"damages": 11}),
        ("mutants", ALL, {"killed": ["a", "b"]}),
    ]
    lines = [
        line_of(Slice(kind, of, 0, 0, 9), commit=commit, **fields)
        for kind, of, fields in ran
        for commit in "ab"
    ]

    cells = {first: cell for first, (cell, _) in cells_of(lines).items()}

    assert cells == {
        "images of simulated power cuts": "0, of them 0 in a recovery",
        "calls of a file system that fail": "14",
        "power cuts under ext4": "0, of them 0 in a recovery",
        "power cuts under ext4-writeback": "0, of them 0 in a recovery",
        "power cuts under xfs": "94, of them 16 in a recovery",
        "power cuts under btrfs": "0, of them 0 in a recovery",
        "damaged bits, bytes, ends of files": "18",
        "damages of the index's file": "22",
        "planted faults that a test saw": "2",
    }


def test_a_text_is_filled_between_its_marks() -> None:
    text = f"before\n{BEGIN}old\n{END}after\n"

    assert filled(text, "new\n") == f"before\n{BEGIN}\nnew\n\n{END}after\n"
    assert filled(filled(text, "new\n"), "new\n") == filled(text, "new\n")
    with pytest.raises(ValueError, match="two marks"):
        filled("before\n", "new\n")


def test_the_numbers_of_the_readme_are_the_sums() -> None:
    text = README.read_text("utf-8")

    assert text == filled(text, table_of(Record(RUNS).lines(), FORMAT_VERSION)), (
        "run: python -m tools.proof --readme"
    )


def test_every_line_that_is_kept_names_a_commit_and_what_it_tried() -> None:
    lines = Record(RUNS).lines()

    assert len(lines) <= LINES_MAX
    for line in lines:
        assert re.fullmatch("[0-9a-f]{40}", str(line["commit"])), line
        assert line["kind"] in KINDS
        assert {"of", "seed", "slice", "slices", "format", "verdict"} <= line.keys()
    assert all(len(json.dumps(line)) < 4_096 for line in lines)


# The tables of promises.


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_tests_that_are_named_are_there(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    named = re.findall(r"`(tests/)?(test_[a-z_]+)\.py(?:::(test_[a-z_]+))?`", text)

    assert len(named) >= 10
    for _, file, function in named:
        path = ROOT / "tests" / f"{file}.py"
        assert path.exists(), path
        if function:
            there = {
                node.name
                for node in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(node, ast.FunctionDef)
            }
            assert function in there, f"{file}.py::{function}"
