"""Damaged files: the exact state, a loud refusal, or the torn tail of the last frames.

Goal: no flipped bit, zeroed or set byte and no cut of any file that an opening reads is
taken for something else, and none ends the process. Method: `tools.bitrot` numbers the
damages of each file; here a sample is tried, the same in each run, and the judges are
shown to see a reader that looks away. LMDB's file is met in child processes, for it may
kill them. `python -m tools.bitrot --full` tries every damage.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tools.bitrot.damages import Damage, Kind, count_of, damage_at
from tools.bitrot.index import LEFT, Left, damages_of, leave
from tools.bitrot.judges import LogJudge, Outcome, SnapshotJudge, Violation
from tools.bitrot.openings import OpeningJudge, small_files
from tools.bitrot.stores import Subject, subjects
from tools.bitrot.sweep import Count, numbers_of, sample, sweeps_of
from tools.bitrot.visitor import ORDERS, visit
from wheeldb.log import cursor, reader

ROOT = Path(__file__).parent.parent
FILES = [subject.name for subject in subjects()]
QUICK, SLOW = 150, 1_500


def tried(name: str, count: int, seed: int = 1) -> Count:
    """Try a sample of a sweep's damages, and expect no violation."""
    (sweep,) = sweeps_of([name])
    found = sweep.run(sample(sweep.size, count, seed))
    assert found.violations == []
    assert found.cases == min(count, sweep.size)
    return found


def subject_of(name: str) -> Subject:
    return next(subject for subject in subjects() if subject.name == name)


# The damages.


def test_every_damage_has_a_number() -> None:
    damages = [damage_at(number, 5) for number in range(count_of(5))]
    assert len(set(damages)) == 55
    data = b"\x00\x01\xff\x80\x7f"
    after = [damage.bytes_of(data) for damage in damages]
    assert {len(one) for one in after} == {0, 1, 2, 3, 4, 5}
    assert after[:3] == [bytes((bit,)) + data[1:] for bit in (1, 2, 4)]
    assert after[-1] == data[:4]


def test_slices_make_a_whole() -> None:
    parts = [number for part in range(1, 8) for number in numbers_of(1_000, part, 7)]
    assert parts == list(range(1_000))


# Files of the log and snapshots.


@pytest.mark.parametrize("name", FILES)
def test_a_sample(name: str) -> None:
    tried(name, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_larger_sample(name: str) -> None:
    tried(name, SLOW, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if "segment" in name])
def test_salvage_saves_what_is_whole(name: str) -> None:
    tried(f"{name}, salvaged", SLOW)


@pytest.mark.parametrize("name", ["sealed segment", "snapshot", "closed segment"])
def test_sealed_bytes_are_never_lost_quietly(name: str) -> None:
    outcomes = tried(name, 100, seed=3).outcomes
    assert set(outcomes) <= {Outcome.EXACT, Outcome.REFUSED, Outcome.TAIL}
    assert outcomes[Outcome.REFUSED] > 60


def test_flips_in_open_frames_are_a_torn_tail() -> None:
    # Nothing follows these two frames, one of them not even synced: what is damaged in
    # them can't be told from what a power cut leaves.
    judge = LogJudge(subject_of("last segment"))
    outcomes = set()
    for offset in range(len(judge.data)):
        damage = Damage(Kind.FLIP, offset, 0)
        if judge.is_open(damage) and offset % 7 == 0:
            outcomes.add(judge.judge(damage))
    assert Outcome.TORN in outcomes
    assert outcomes <= {Outcome.TORN, Outcome.REFUSED, Outcome.EXACT}


def test_a_snapshot_shows_every_damage() -> None:
    assert set(tried("snapshot", 400).outcomes) == {Outcome.REFUSED}


# Judges that can't see are worse than none.


def test_judge_sees_a_reader_that_drops_durable_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = LogJudge(subject_of("last segment"))
    damage = Damage(Kind.FLIP, 6_000, 3)
    assert judge.judge(damage) is Outcome.REFUSED
    monkeypatch.setattr(reader, "refusal_of", lambda *_, **__: None)
    with pytest.raises(Violation, match="missing without a word"):
        judge.judge(damage)


class _Equal(int):
    def __ne__(self, other: object) -> bool:
        return False


def test_judges_see_a_reader_that_ignores_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogJudge(subject_of("sealed segment"))
    snapshot = SnapshotJudge(subject_of("snapshot"))
    in_payload = Damage(Kind.FLIP, 6_000, 3)
    assert log.judge(in_payload) is Outcome.REFUSED
    assert snapshot.judge(in_payload) is Outcome.REFUSED
    monkeypatch.setattr(cursor, "payload_checksum", lambda *_: _Equal())
    with pytest.raises(Violation, match="the events read are others"):
        log.judge(in_payload)
    # The sum over the whole snapshot still tells.
    assert snapshot.judge(in_payload) is Outcome.REFUSED


# Whole openings.


@pytest.mark.slow
@pytest.mark.parametrize("word", ["opened", "opened without index"])
@pytest.mark.parametrize("name", FILES)
def test_whole_openings(name: str, word: str) -> None:
    tried(f"{name}, {word}", 60)


@pytest.mark.slow
@pytest.mark.parametrize("position", range(4), ids=["FORMAT", "LOCK", "VOUCH", "aside"])
def test_small_files(position: int) -> None:
    # Every seventh damage of each.
    judge = OpeningJudge(small_files(subject_of("closed segment").site)[position])
    size = len(judge.data)
    for number in range(position, count_of(size), 7):
        judge.judge(damage_at(number, size))


# LMDB's file.


@pytest.fixture(scope="module", params=LEFT)
def left(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Left:
    """A store with an index of LMDB, left in one of three ways."""
    return leave(tmp_path_factory.mktemp("left") / "index", request.param)


@pytest.mark.slow
def test_what_is_known_to_kill_lmdb(left: Left) -> None:
    for number, (name, change) in enumerate(damages_of(left, 0, Random(1))):
        data = bytearray(left.data)
        change(data)
        order = ORDERS[number % len(ORDERS)]
        with left.copied() as path:
            (path / "index" / "data.mdb").write_bytes(data)
            found = visit(path, order, has_rebooted=left.has_rebooted)
        assert found == left.states[order], f"{name}, {order} first"


@pytest.mark.slow
def test_the_index_of_a_store_without_power(tmp_path: Path) -> None:
    store = leave(tmp_path / "index", "power cut")
    count = store.try_damages(10, seed=1)
    assert count.violations == []
    assert count.outcomes[Outcome.EXACT] > 15


# The tool.


@pytest.mark.slow
def test_the_tool_repeats_one_damage() -> None:
    program = [sys.executable, "-m", "tools.bitrot", "--json", "--seed", "5"]
    done = subprocess.run(
        [*program, "--only", "snapshot", "--number", "80000"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    told = json.loads(done.stdout)
    assert told["seed"] == 5
    assert told["cases"] == 1
    assert told["violations"] == 0
    assert told["files"]["snapshot"]["outcomes"] == {"refused": 1}
