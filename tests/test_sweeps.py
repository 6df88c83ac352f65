"""A power cut at every operation of thirteen lives of a store, and of its recoveries.

Goal: nothing that was acknowledged is lost, whatever a cut, a fault or a damaged byte
leaves. Method: `sweep_run` cuts a life at each of its operations in many ways, and
`sweep_oracle` opens what is left and compares it with a plain model; `sweep_errors`
lets each operation fail. Here is a sample; `tools.proof` does all of it in slices.

Each sample follows from a seed. `SWEEP_SEED=7` takes another one.
"""

import os
from collections.abc import Callable
from random import Random

import pytest
from sweep_errors import Fault, faults_of, try_fault
from sweep_run import MEDIA, Part, ScenarioSweep
from sweep_scenarios import SCENARIOS, Scenario
from sweep_story import STORE, Story

from wheeldb.events import Kind, iterate_events
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import list_segments
from wheeldb.log.snapshot import list_snapshots, open_snapshot
from wheeldb.testing import CrashableDisk, CrashFound
from wheeldb.testing.sweep import Cut

SEED = int(os.environ.get("SWEEP_SEED", "0"))
IMAGES_MIN = 10_000

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("name", BY_NAME)
def test_some_cuts_of_every_life(name: str, medium: str) -> None:
    part = Part(lots=30, deep_lots=1, seed=SEED)

    ScenarioSweep(BY_NAME[name], medium, part).run()


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_ten_thousand_cuts() -> None:
    part = Part(lots=700, deep_lots=20, seed=SEED)
    images = 0
    for scenario in SCENARIOS:
        for medium in MEDIA:
            result = ScenarioSweep(scenario, medium, part).run()
            images += result.images + result.deep_images
            assert result.verdicts.exact > 0
    assert images >= IMAGES_MIN


def some_faults(scenario: Scenario, count: int) -> list[Fault]:
    """Draw some of all the faults that a scenario can meet."""
    faults = list(faults_of(scenario))
    return Random(f"{SEED} {scenario.name}").sample(faults, min(count, len(faults)))


@pytest.mark.parametrize("name", BY_NAME)
def test_some_faults_of_every_life(name: str) -> None:
    for fault in some_faults(BY_NAME[name], 5):
        try_fault(BY_NAME[name], fault)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", BY_NAME)
def test_many_faults_of_every_life(name: str) -> None:
    for fault in some_faults(BY_NAME[name], 80):
        try_fault(BY_NAME[name], fault)


# What is swept.


def kinds_on(disk: CrashableDisk) -> set[int]:
    """Return the kinds of all events in the log and the snapshots."""
    log = f"{STORE}/log"
    begin_lsn = list_segments(disk, log)[0].first_lsn - 1
    scan = LogScan(disk, log, database=None, from_lsn=begin_lsn)
    payloads = [frame.payload for frame in scan]
    directory = f"{STORE}/snapshots"
    for name in list_snapshots(disk, directory):
        path = f"{directory}/{name.file_name}"
        with open_snapshot(disk, path, database=None) as reader:
            payloads += list(reader)
    return {
        record.kind for payload in payloads for _, record in iterate_events(payload)
    }


def test_every_kind_of_event_is_swept() -> None:
    seen: set[int] = set()
    for scenario in SCENARIOS:
        story = Story(**scenario.options)
        scenario.live(story, story.rest)
        seen |= kinds_on(story.disk)

    missing = [kind.name for kind in Kind if kind not in seen]
    assert not missing, f"no scenario makes an event of these kinds: {missing}"


def test_slices_are_everything_once() -> None:
    cuts = [str(Cut(n, "subset", m)) for n in range(40) for m in range(9)]
    parts = [Part(slice_number=n, slice_count=7) for n in range(7)]

    assert all(sum(part.has(cut, 10_000) for part in parts) == 1 for cut in cuts)
    shares = [sum(part.has(cut, 10_000) for cut in cuts) for part in parts]
    assert min(shares) > len(cuts) / 14


# That the sweeps see what is wrong.


def nothing(*_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("target", "name", "faulty"),
    [
        ("wheeldb.log.segment.sync_directory", "rotation", nothing),
        ("wheeldb.log.segment.sync_file", "rotation", nothing),
        ("wheeldb.recovery.sync_names", "first creation", nothing),
    ],
)
def test_a_missing_sync_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    name: str,
    faulty: Callable[..., None],
) -> None:
    monkeypatch.setattr(target, faulty)

    with pytest.raises(CrashFound, match="again: seed=0, only="):
        ScenarioSweep(BY_NAME[name], "disk", Part(lots=2_000, deep_lots=0)).run()
