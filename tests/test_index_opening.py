"""Opening an index whose file is damaged.

Goal: whatever happened to the file, opening it neither kills this process nor gives
rows that differ from what was written; either there is no index, or the damage shows on
reading or in the digests. Method: damage a file in each way that was seen to kill a
process or to pass unseen, and open it as a store would.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wheeldb.disk import OsDisk
from wheeldb.index import (
    FINISHED,
    TASK,
    Changes,
    Index,
    IndexDamaged,
    LmdbIndex,
    MemoryIndex,
    Snapshot,
    Verdict,
    create_index,
    id_hash,
    number_key,
    open_index,
    set_aside,
    vet,
)
from wheeldb.testing.disk import CrashableDisk

LANE = 16
PAGE = 4_096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of an index with 1,000 tasks and a few rows in each other table."""
    index = LmdbIndex.create(
        str(tmp_path_factory.mktemp("sound") / "index"), disk=OsDisk()
    )
    numbers = range(1, 1_001)
    index.apply(
        Changes(
            put_tasks=[(number, number, f"body of {number:06}".encode() * 4)
                       for number in numbers],
            put_due=[(LANE, number << 20, number, number << 20) for number in numbers],
            put_ids=[(id_hash(f"id-{number}"), number, None)
                     for number in numbers[:99]],
            meta={"lsn": b"1000"},
        )
    )  # fmt: skip
    index.apply(
        Changes(
            delete_tasks=[5],
            delete_due=[(LANE, 5 << 20, 5)],
            put_ids=[(id_hash("id-5"), 5, 1_001)],
            put_finished=[(1_001, b"done")],
            meta={"lsn": b"1001"},
        )
    )
    index.close()
    return Path(index.path, "data.mdb").read_bytes()


@pytest.fixture
def path(tmp_path: Path, sound: bytes) -> str:
    """The directory of a sound index that was left behind."""
    directory = tmp_path / "index"
    directory.mkdir()
    (directory / "data.mdb").write_bytes(sound)
    return str(directory)


@pytest.fixture
def digests(path: str) -> dict[str, tuple[int, int]]:
    """Rows and digests of the sound index."""
    index = LmdbIndex(path, disk=OsDisk())
    with index.snapshot() as view:
        found = view.digests()
    index.close()
    return found


def damage(path: str, change: Callable[[bytearray], object]) -> None:
    """Change the file's bytes, length included."""
    file = Path(path, "data.mdb")
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


def told_opening(
    path: str, *, vouched: bool, aside: str | None = None
) -> tuple[Index | None, Verdict]:
    """Open the index and return it with the verdict."""
    verdicts: list[Verdict] = []
    index = open_index(
        path, disk=OsDisk(), vouched=vouched, aside=aside, on_verdict=verdicts.append
    )
    assert len(verdicts) == 1
    return index, verdicts[0]


def everything(view: Snapshot) -> list[object]:
    """Read every row there is, the way a store does."""
    return [
        view.rows([row[1] for row in view.due(LANE, None, 9_999)]),
        view.tasks(-1, 9_999),
        view.numbers_for(id_hash("id-7")),
        view.finished_range(-1, 9_999),
        view.meta("lsn"),
    ]


@pytest.mark.parametrize("vouched", [True, False])
def test_sound_index_opens(
    path: str, digests: dict[str, tuple[int, int]], vouched: bool
) -> None:
    index, verdict = told_opening(path, vouched=vouched)

    assert index is not None
    assert verdict.is_usable
    assert verdict.digests == (None if vouched else digests)
    with index.snapshot() as view:
        assert view.check() == []
        assert view.count(TASK) == 999
        assert view.count(FINISHED) == 1
    index.close()
    assert "OPENING" not in os.listdir(path)


def test_nothing_there(tmp_path: Path) -> None:
    path = str(tmp_path / "index")

    index, verdict = told_opening(path, vouched=True, aside=str(tmp_path / "aside"))

    assert index is None
    assert verdict.reason == "there is none"
    assert os.listdir(tmp_path) == []


def _zero(start: int, end: int | None = None) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        piece = slice(start, len(data) if end is None else end)
        data[piece] = bytes(len(data[piece]))

    return change


# What is done to the file, and what is said about it.  A meta page has 16 bytes of
# header, then magic 4, version 4, address 8, map size 8 and two trees of 48 bytes, each
# ending with its root; the first begins with the page size, here its second byte.
MAGIC, VERSION, PAGE_BYTES = 16, 20, 41
LEAF_COUNT, MAIN_ROOT, LAST_PAGE = 104, 128, 136
SEEN_FROM_OUTSIDE = {
    "empty": (lambda data: data.clear(), "0 bytes are no index"),
    "half a meta page": (lambda data: _cut(data, PAGE // 2), "cut short: 2048 bytes"),
    "one meta page": (lambda data: _cut(data, PAGE), "cut short: 4096 bytes"),
    "both meta pages zeroed": (_zero(0, 2 * PAGE), "page 0 is damaged: pages of 0"),
    "first meta page zeroed": (_zero(0, PAGE), "page 0 is damaged: pages of 0"),
    "second meta page zeroed": (
        _zero(PAGE, 2 * PAGE),
        "page 1 is damaged: not a meta page",
    ),
    "all zeroed": (_zero(0), "page 0 is damaged: pages of 0"),
    "cut in half": (lambda data: _cut(data, len(data) // 2), "cut short"),
    "last page cut": (lambda data: _cut(data, len(data) - PAGE), "cut short"),
    "last byte cut": (lambda data: _cut(data, len(data) - 1), "cut short"),
    "kind of the first": (lambda data: _put(data, 10, 2), "page 0 is damaged: not a"),
    "number of the second": (
        lambda data: _put(data, PAGE, 0),
        "page 1 is damaged: not a meta page",
    ),
    "magic of the first": (lambda data: _put(data, MAGIC, 1), "page 0 is damaged: mag"),
    "version of the second": (
        lambda data: _put(data, PAGE + VERSION, 3),
        "page 1 is damaged: magic 0xbeefc0de, version 3",
    ),
    "page size of the first": (
        lambda data: _put(data, PAGE_BYTES, 0x11),
        "page 0 is damaged: pages of 4352",
    ),
    "page size of the second": (
        lambda data: _put(data, PAGE + PAGE_BYTES, 0x20),
        "page 1 is damaged: pages of 8192",
    ),
    "root of the second": (
        lambda data: _put(data, PAGE + MAIN_ROOT + 5, 9),
        "page 1 is damaged: root",
    ),
    "last page of the first": (lambda data: _put(data, LAST_PAGE + 2, 9), "cut short"),
}


@pytest.mark.parametrize("name", SEEN_FROM_OUTSIDE)
def test_damage_that_is_seen_from_outside(path: str, name: str) -> None:
    # Vouched for, so that only the look from outside stands between file and process.
    change, reason = SEEN_FROM_OUTSIDE[name]
    damage(path, change)
    aside = f"{path}/../aside"

    index, verdict = told_opening(path, vouched=True, aside=aside)

    assert index is None
    assert not verdict.is_usable
    assert reason in verdict.reason
    assert os.listdir(path) == []
    assert os.listdir(aside) == ["index-bad.mdb"]
    again = create_index(path, disk=OsDisk())
    assert again.statistics().rows[TASK] == 0
    again.close()


def _flip_leaf_counts(data: bytearray) -> None:
    # LMDB never looks at them when reading.
    for page in (0, 1):
        data[page * PAGE + LEAF_COUNT] ^= 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("second half zeroed", lambda data: _zero(len(data) // 2)(data)),
        ("everything but the meta pages zeroed", _zero(2 * PAGE)),
        ("one page random", lambda data: _randomise_page(data, b"body of 000700")),
        ("count of leaves", _flip_leaf_counts),
        ("a bit of a body", lambda data: _flip(data, b"body of 000700")),
        ("a bit of a due time", lambda data: _flip_behind(data, 700)),
    ],
)
def test_damage_that_only_reading_shows(
    path: str, name: str, change: Callable[[bytearray], object]
) -> None:
    damage(path, change)

    index, verdict = told_opening(path, vouched=False, aside=f"{path}/../aside")

    assert index is None, name
    assert verdict.reason.startswith(("damaged: ", "reading it killed a child"))


def test_flipped_bit_in_a_value_shows_when_the_row_is_read(path: str) -> None:
    # To LMDB the file is sound, so nothing can be seen before.
    damage(path, lambda data: _flip(data, b"body of 000700"))
    index, _ = told_opening(path, vouched=True)
    assert index is not None

    with index.snapshot() as view:
        assert view.task(699) is not None
        with pytest.raises(IndexDamaged, match="row 00000000000002bc of table task"):
            view.task(700)
        with pytest.raises(IndexDamaged):
            view.digests()
        assert view.check() == ["row 00000000000002bc of table task fails its check"]
    index.close()


def test_flipped_bit_in_an_id_shows_in_the_digest(
    path: str, digests: dict[str, tuple[int, int]]
) -> None:
    damage(path, lambda data: _flip(data, id_hash("id-7")))
    index, verdict = told_opening(path, vouched=False)
    assert index is not None
    assert verdict.digests is not None

    assert verdict.digests["id"] != digests["id"]
    assert verdict.digests["task"] == digests["task"]
    index.close()


def test_left_over_mark_means_rebuild(path: str) -> None:
    Path(path, "OPENING").touch()

    for vouched in (True, False):
        index, verdict = told_opening(path, vouched=vouched)
        assert index is None
        assert verdict.reason == "the last opening of it did not return"

    create_index(path, disk=OsDisk()).close()
    index, verdict = told_opening(path, vouched=True)
    assert index is not None
    index.close()


def test_the_mark_lies_there_while_the_index_is_opened_and_read(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    probe = LmdbIndex.probe

    def watched(index: LmdbIndex) -> None:
        seen.append("OPENING" in os.listdir(path))
        probe(index)

    monkeypatch.setattr(LmdbIndex, "probe", watched)
    index, _ = told_opening(path, vouched=True)

    assert index is not None
    assert seen == [True]
    assert "OPENING" not in os.listdir(path)
    index.close()


def test_opening_that_kills_the_process_is_not_tried_again(path: str) -> None:
    damage(path, _zero(2 * PAGE))
    program = (
        "import sys; from wheeldb.index import open_index; from wheeldb.disk import "
        "OsDisk; sys.exit(open_index(sys.argv[1], disk=OsDisk(), vouched=True) is None)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    died = subprocess.run(
        [sys.executable, "-c", program, path],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )

    if died.returncode != 1:  # LMDB saw it by itself
        assert -died.returncode in {signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV}
        assert "OPENING" in os.listdir(path)
    index, _ = told_opening(path, vouched=False)
    assert index is None


def test_slow_child_is_given_up(path: str) -> None:
    verdict = vet(path, disk=OsDisk(), vouched=False, verify_timeout_s=0.001)

    assert not verdict.is_usable
    assert verdict.reason == "reading it in a child process took over 0.001 s"


def test_no_time_for_a_child(path: str) -> None:
    verdict = vet(path, disk=OsDisk(), vouched=False, verify_timeout_s=0)

    assert not verdict.is_usable
    assert verdict.reason == "nobody vouches for it"


def test_child_that_can_not_be_started(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for executable in ("", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", executable)
        verdict = vet(path, disk=OsDisk(), vouched=False)

        assert not verdict.is_usable
        assert "child process" in verdict.reason


def test_child_that_is_killed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -BUS $$\n")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))

    verdict = vet(path, disk=OsDisk(), vouched=False)

    assert not verdict.is_usable
    assert (
        verdict.reason == f"reading it killed a child process (signal {signal.SIGBUS})"
    )


def test_child_that_fails_by_itself(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of that name in front of the real one: it must fail, too, where wheeldb
    # is installed and any child finds it.
    (tmp_path / "lmdb.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    verdict = vet(path, disk=OsDisk(), vouched=False)

    assert not verdict.is_usable
    assert verdict.reason.startswith("not read: ")


def test_other_format_means_rebuild(path: str) -> None:
    index = LmdbIndex(path, disk=OsDisk())
    index.apply(Changes(meta={"format": b"999"}))
    index.close()

    for vouched in (True, False):
        opened, verdict = told_opening(path, vouched=vouched)
        assert opened is None
        assert "index format b'999'" in verdict.reason


def test_only_one_bad_copy_is_kept(path: str, tmp_path: Path) -> None:
    aside = str(tmp_path / "aside")
    first = set_aside(path, aside, disk=OsDisk())
    create_index(path, disk=OsDisk()).close()
    second = set_aside(path, aside, disk=OsDisk())

    assert first == second == f"{aside}/index-bad.mdb"
    assert os.listdir(aside) == ["index-bad.mdb"]
    assert os.listdir(path) == []
    assert set_aside(path, aside, disk=OsDisk()) is None


def test_reader_changes_nothing(path: str, tmp_path: Path) -> None:
    before = Path(path, "data.mdb").read_bytes()
    reader = open_index(path, disk=OsDisk(), vouched=False, readonly=True)
    assert reader is not None
    with reader.snapshot() as view:
        assert view.check() == []
    reader.close()

    assert os.listdir(path) == ["data.mdb"]
    assert Path(path, "data.mdb").read_bytes() == before

    damage(path, _zero(0))
    aside = tmp_path / "aside"
    assert (
        open_index(path, disk=OsDisk(), vouched=True, readonly=True, aside=str(aside))
        is None
    )
    assert os.listdir(path) == ["data.mdb"]
    assert not aside.exists()


def test_simulated_disk_brings_its_own_index() -> None:
    disk = CrashableDisk()
    assert open_index("store/index", disk=disk, vouched=True) is None

    index = create_index("store/index", disk=disk)
    index.apply(Changes(put_tasks=[(1, 1, b"x")]))
    twin = disk.clone()
    index.apply(Changes(put_tasks=[(2, 2, b"y")]))
    disk.crash("none")

    again = open_index("store/index", disk=disk, vouched=False)
    earlier = open_index("store/index", disk=twin, vouched=False)
    assert again is not None
    assert earlier is not None
    assert again.statistics().rows[TASK] == 2
    assert earlier.statistics().rows[TASK] == 1


def test_damaged_index_on_a_simulated_disk() -> None:
    disk = CrashableDisk()
    index = create_index("store/index", disk=disk)
    assert isinstance(index, MemoryIndex)
    index.apply(Changes(put_tasks=[(1, 1, b"x")]))
    index.corrupt(TASK, number_key(1), offset=12, xor=1)

    assert open_index("store/index", disk=disk, vouched=True) is None

    create_index("store/index", disk=disk)
    assert index.statistics().rows[TASK] == 0


@pytest.mark.slow
def test_any_damage_is_noticed_or_harmless(
    path: str, sound: bytes, digests: dict[str, tuple[int, int]]
) -> None:
    # A bit flipped at 150 places, a third of them in the meta pages, and every page in
    # turn filled with garbage.
    dice = random.Random(7)
    original = LmdbIndex(path, disk=OsDisk())
    with original.snapshot() as view:
        expected = everything(view)
    original.close()
    noticed = 0
    for turn in range(150 + len(sound) // PAGE):
        data = bytearray(sound)
        if turn < 150:
            place = dice.randrange(2 * PAGE if turn < 50 else len(sound))
            data[place] ^= 1 << dice.randrange(8)
        else:
            place = (turn - 150) * PAGE
            data[place : place + PAGE] = dice.randbytes(PAGE)
        Path(path, "data.mdb").write_bytes(data)

        index, verdict = told_opening(path, vouched=False)

        if index is None or verdict.digests != digests:
            noticed += 1
        else:
            with index.snapshot() as view:
                assert everything(view) == expected, f"turn {turn}, byte {place}"
        if index is not None:
            index.close()
    assert noticed > 50


def _cut(data: bytearray, size: int) -> None:
    del data[size:]


def _put(data: bytearray, place: int, value: int) -> None:
    assert data[place] != value, f"byte {place} is {value} already"
    data[place] = value


def _flip(data: bytearray, text: bytes) -> None:
    """Flip a bit in every copy: older pages may still hold the text."""
    place = data.find(text)
    assert place >= 0
    while place >= 0:
        data[place + len(text) - 1] ^= 1
        place = data.find(text, place + 1)


def _flip_behind(data: bytearray, number: int) -> None:
    _flip(data, number.to_bytes(8) + (number << 20).to_bytes(8))


def _randomise_page(data: bytearray, text: bytes) -> None:
    start = data.index(text) // PAGE * PAGE
    data[start : start + PAGE] = random.Random(1).randbytes(PAGE)
