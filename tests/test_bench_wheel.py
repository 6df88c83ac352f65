"""The wheel's benchmark runs, as a file and as a module; its figures aren't tested."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL = ("--timers", "300", "--rounds", "1")


def test_table() -> None:
    lines = run("tools/bench/wheel.py", *SMALL).splitlines()
    assert lines[0].startswith("300 timers due within 3,600 s")
    assert lines[1].split()[:3] == ["measure", "wheel", "heap"]
    assert any(line.startswith("bytes") for line in lines)


def test_json() -> None:
    table = json.loads(run("-m", "tools.bench.wheel", *SMALL, "--json"))
    rows = {row["measure"]: row for row in table["rows"]}
    row = rows["insert + cancel"]
    assert row["heap / wheel"] == row["heap"] / row["wheel"]
    assert rows["advance"]["asyncio"] is None
    assert table["cpu_count"] >= 1


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout
