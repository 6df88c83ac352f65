"""A process under load, killed at any moment, over and over.

Goal: what a call has acknowledged is there after SIGKILL; what was done stays done,
what was cancelled stays cancelled and never starts, and no fence comes twice. Method:
the soak, with no other end than that: a real process works from several threads and
writes a line before and after each call; this one reads a drawn number of lines, kills
it, reads what is left in the pipe, and judges the next opening by the lines of all
rounds. Stores of others lost their tail like this (rabbitmq/ra#283,
asonnino/mysticeti#219, facebook/rocksdb#1351).
"""

from pathlib import Path

import pytest

from tools.soak.room import QuotaRoom
from tools.soak.sessions import Soak


def live(path: Path, rounds: int, lines_max: int, seed: int) -> dict[str, int]:
    """Kill a process so many times; return what happened how often."""
    soak = Soak(QuotaRoom(path), seed, endings=("kill",), reports_max=lines_max)
    for _ in range(rounds):
        soak.run_session()
    return soak.ledger.counts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    counts = live(tmp_path, rounds=60, lines_max=2_000, seed=1)
    assert counts["kill"] == 60
    assert counts["done"] > 100
    assert counts["cancelled"] > 100
    assert counts["opened unclean"] > 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_right_after_the_opening_lose_nothing(tmp_path: Path) -> None:
    counts = live(tmp_path, rounds=25, lines_max=8, seed=2)
    assert counts["kill"] == 25
