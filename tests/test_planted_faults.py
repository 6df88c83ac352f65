"""Claims that nobody looked at until a fault was planted there, and the faults.

Each test here fails on one fault of ``tools/mutants``, and on it alone was written.
The last ones keep the list of faults in step with the source.
"""

import errno
from collections import Counter

import pytest
from log_helpers import FOOTER, make_disk, open_log, scan_log
from recovery_helpers import STORE, open_store, segments_of

import wheeldb
from tools.mutants.catalogue import MUTANTS
from tools.mutants.planting import Nursery, occurrences
from wheeldb.index.keys import number_key
from wheeldb.layout import Layout
from wheeldb.log.frame import FrameType
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.vouch import read_vouch

MUTANTS_LEAST = 30


def test_a_footer_ends_nothing_that_goes_on() -> None:
    disk = make_disk()
    log, _, _ = open_log(disk)
    log.sync()
    log.append(FOOTER, count=0, kind=FrameType.FOOTER)
    log.append(b"more")

    _, end, _ = scan_log(disk)

    assert not end.is_clean


def test_stamps_rise_although_the_clock_was_set_back() -> None:
    disk, clock = CrashableDisk(1), ManualClock()
    db = open_store(disk, clock)
    db.schedule("a", id="before", delay=3600)
    db.close()
    clock.step_wall(-86_400)

    db = open_store(disk, clock)
    db.schedule("a", id="behind", delay=3600)

    (before,), (behind,) = db.history("before"), db.history("behind")
    assert before.hlc < behind.hlc


def test_a_snapshot_does_not_copy_a_silent_loss() -> None:
    disk, clock = CrashableDisk(1), ManualClock()
    db = open_store(disk, clock)
    numbers = [db.schedule("a", n, delay=3600).lsn for n in range(5)]
    db.checkpoint()
    segments = segments_of(disk)
    index = disk.indexes[Layout(path=STORE).index]
    table = index._tables["task"]
    del table.values[number_key(numbers[2])]
    table.keys.remove(number_key(numbers[2]))

    with pytest.raises(wheeldb.CorruptionError, match="lost or changed"):
        db.snapshot()

    assert disk.list(f"{STORE}/snapshots") == []
    assert set(segments) <= set(segments_of(disk))


def test_a_checkpoint_that_fails_hides_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, clock = CrashableDisk(1), ManualClock()
    db = open_store(disk, clock)
    ids = [db.schedule("a", n, delay=3600).id for n in range(5)]
    index = disk.indexes[Layout(path=STORE).index]

    def full(changes: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(index, "apply", full)
        with pytest.raises(wheeldb.StorageFullError):
            db.checkpoint()
        assert [task.id for task in db.tasks()] == ids

    db.checkpoint()
    assert [task.id for task in db.tasks()] == ids
    assert db.check() == []


def test_a_checkpoint_names_the_last_number_it_holds() -> None:
    db = open_store(CrashableDisk(1), ManualClock())
    lsn = db.schedule("a", delay=3600).lsn

    db.checkpoint()

    assert db.statistics().checkpoint_lsn == lsn


def test_an_index_of_another_boot_is_not_vouched_for_however_late_it_is() -> None:
    disk, clock = CrashableDisk(1), ManualClock()
    open_store(disk, clock)
    vouch = read_vouch(disk, Layout(path=STORE))
    assert vouch is not None
    clock.reboot()
    clock.advance(86_400)

    assert not vouch.is_good(clock, vouch.place)


# The list of faults.


def test_every_fault_is_where_the_list_says() -> None:
    lost = {mutant.name: occurrences(mutant) for mutant in MUTANTS}
    assert {name: count for name, count in lost.items() if count != 1} == {}


def test_names_are_unique_and_there_are_enough() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert max(names.values()) == 1
    assert len(names) >= MUTANTS_LEAST


@pytest.mark.slow
def test_a_planted_fault_is_killed_by_the_test_that_is_named() -> None:
    mutant = next(one for one in MUTANTS if one.name == "payload-crc-unseeded")
    with Nursery() as nursery:
        assert not nursery.is_sound(list(mutant.tests)).by
        assert nursery.run(mutant).is_killed
