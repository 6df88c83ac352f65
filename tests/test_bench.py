"""The benchmarks of whole stores run, and print what they say; no figure is tested.

Goal: none of them is broken by a change of what it measures.
Method: each in its smallest configuration, in a process of its own, on the real disk;
the rows and ratios are looked for in its JSON, and its table once.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tools.bench.idle import context_switches, looks
from tools.bench.pending import anonymous_mb
from tools.bench.places import bytes_written
from wheeldb.cli.measuring import BareLog, by_turns, median_ratio, per_second

ROOT = Path(__file__).parent.parent


def bench(name: str, directory: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Run a benchmark and return its rows by their first cell."""
    place = ("--directory", str(directory), "--json")
    rows = json.loads(run(f"tools.bench.{name}", *place, *arguments))["rows"]
    return {next(iter(row.values())): row for row in rows}


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stderr == ""
    return done.stdout


def positive(value: object) -> bool:
    return isinstance(value, float) and value > 0


@pytest.mark.slow
def test_durable(tmp_path: Path) -> None:
    rows = bench("durable", tmp_path, "--seconds", "0.01", "--rounds", "1")
    assert set(rows) == {"disk", "flash"}
    assert all(positive(row["store / bare"]) for row in rows.values())
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_many(tmp_path: Path) -> None:
    rows = bench("many", tmp_path, "--tasks", "200", "--batch", "50", "--rounds", "1")
    assert set(rows) == {"store", "calls alone", "bare"}
    assert positive(rows["store"]["ratio to bare"])


@pytest.mark.slow
def test_pending(tmp_path: Path) -> None:
    small = ("--tasks", "3000", "--few", "1000", "--many", "2000", "--entries", "1000")
    rows = bench("pending", tmp_path, *small)
    assert set(rows) == {"loaded", "opened", "killed", "in memory", "reading"}
    assert positive(rows["loaded"]["/ in memory"])
    assert positive(rows["opened"]["/ reading"])
    assert positive(rows["killed"]["/ reading"])


@pytest.mark.slow
def test_index(tmp_path: Path) -> None:
    small = ("--pending", "3000", "--entries", "500")
    rows = bench("index", tmp_path, *small)
    assert set(rows) == {"3,000 exact", "3,000 coarse", "3,000 blocks"}
    # Ratios of bytes there are only on a disk, and this directory may be in memory.
    assert positive(rows["3,000 exact"]["new/s"])
    assert positive(rows["3,000 coarse"]["gone/s"])
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_idle(tmp_path: Path) -> None:
    rows = bench("idle", tmp_path, "--seconds", "0.1")
    assert set(rows) == {"nothing pending", "a delay pending", "polling"}
    assert type(rows["nothing pending"]["wake-ups"]) is int


@pytest.mark.slow
def test_lateness(tmp_path: Path) -> None:
    rows = bench("lateness", tmp_path, "--tasks", "5", "--every-ms", "2")
    assert set(rows) == {"p50", "p99", "max"}
    assert positive(rows["p50"]["store / waiter"])


@pytest.mark.slow
def test_imports(tmp_path: Path) -> None:
    rows = bench("imports", tmp_path, "--rounds", "1", "--top", "2")
    assert set(rows) == {"wheeldb", "asyncio", "python itself"}


@pytest.mark.slow
def test_a_table_for_people(tmp_path: Path) -> None:
    small = ("--tasks", "100", "--batch", "50", "--rounds", "1")
    text = run("tools.bench.many", "--directory", str(tmp_path), *small)
    assert text.splitlines()[0] == "100 tasks, 50 a call, median of 1 rounds"
    assert "ratio to bare" in text.splitlines()[1]


def test_a_pending_delay_wakes_the_driver_once_a_minute() -> None:
    tail, rest, *later = looks(6)
    assert tail < 1  # the end of the log is told that it is durable
    assert tail + rest == pytest.approx(60)
    assert later == [60.0] * 4


class TestMeasuring:
    def test_records_on_blocks_of_their_own(self, tmp_path: Path) -> None:
        log = BareLog(str(tmp_path / "log"), is_aligned=True)
        log.append(b"first")
        log.append(b"second")
        log.close()
        written = (tmp_path / "log").read_bytes()
        assert written[:5] == b"first"
        assert written[4_096:4_102] == b"second"

    def test_records_behind_each_other(self, tmp_path: Path) -> None:
        log = BareLog(str(tmp_path / "log"))
        log.append(b"first")
        log.append(b"second")
        log.close()
        assert (tmp_path / "log").read_bytes().rstrip(b"\0") == b"firstsecond"

    def test_behind_the_last_block_begins_the_first(self, tmp_path: Path) -> None:
        log = BareLog(str(tmp_path / "log"))
        log.append(bytes(16 * 2**20 - 3))
        log.append(b"again")
        log.close()
        written = (tmp_path / "log").read_bytes()
        assert (len(written), written[:5]) == (16 * 2**20, b"again")

    def test_zeros_are_written_ahead_by_who_crosses_their_line(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "log"
        log = BareLog(str(path), is_filled=False)
        assert path.stat().st_size == 0
        log.append(b"first")
        assert path.read_bytes() == b"first" + bytes(2**20 - 5)
        log.append(b"x" * 2**20)
        assert path.stat().st_size == 2 * 2**20
        log.append(bytes(15 * 2**20))  # there is no room for it behind them
        log.close()
        assert path.read_bytes() == bytes(15 * 2**20)

    def test_work_that_ends_is_not_begun_again(self) -> None:
        left = [3, 2, 1]
        assert per_second(lambda: left.pop() if left else 0, 1_000.0) > 0
        assert left == []

    def test_contenders_take_turns(self) -> None:
        turns: list[str] = []

        def work(name: str) -> int:
            turns.append(name)
            return 1

        rates = by_turns(
            {"a": lambda: work("a"), "b": lambda: work("b")}, seconds=0, rounds=2
        )
        assert turns == ["a", "b", "a", "b"]
        assert [len(one) for one in rates.values()] == [2, 2]

    def test_the_ratio_is_that_of_the_middle_round(self) -> None:
        rates = {"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}
        assert median_ratio(rates, "a", "b") == 2.0


def test_what_the_kernel_counts() -> None:
    assert anonymous_mb() > 1
    assert bytes_written() >= 0
    assert context_switches(threading.current_thread()) >= 0
