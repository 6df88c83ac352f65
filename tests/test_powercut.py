"""The rig that cuts the power sees what it is to see, and sees nothing in wheeldb.

Goal: what was acknowledged is there after a power cut under a real kernel, on each file
system, also when the cut comes in the recovery; and the rig would notice if it weren't.
Method: whole runs of `tools.powercut` in a process of its own: with wheeldb, a copy of
it that does not sync, and a program of a few lines, right and wrong. They need root,
FUSE and loop devices, and are skipped where one is missing. What the rig is made of
(record, draw, ledger) is tested without any of that.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tools.powercut.filesystems import FILESYSTEMS
from tools.powercut.images import (
    Builder,
    Cut,
    Piece,
    choose_cuts,
    copy_sparse,
    draw_pieces,
)
from tools.powercut.place import PREFIX, mounts_below
from tools.powercut.promises import Ledger, Seen
from tools.powercut.record import END, FLUSH, LINE, WRITE, Entry, Record, Writer
from tools.powercut.stage import missing_for

ROOT = Path(__file__).parent.parent
SECONDS_MAX = 550


def needs(filesystem: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where the rig can't run."""
    missing = missing_for(FILESYSTEMS[filesystem])
    return pytest.mark.skipif(missing is not None, reason=f"needs {missing}")


def powercut(*arguments: str, root: Path = ROOT) -> tuple[int, dict[str, Any]]:
    """Run the rig; return its status and what it tells of the one file system."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.powercut", "--json", *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    (tally,) = json.loads(done.stdout)
    return done.returncode, tally


def said(tally: dict[str, Any]) -> str:
    return "\n".join(
        f"flush {one['cut']['flush']} {one['cut']['mode']}: {one['said']}"
        for one in tally["violations"]
    )


# wheeldb under the rig.


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "filesystem", [pytest.param(name, marks=needs(name)) for name in FILESYSTEMS]
)
def test_no_power_cut_takes_what_was_acknowledged(filesystem: str) -> None:
    recoveries = ("--recoveries", "2", "--recovery-cuts", "4")

    status, tally = powercut("--filesystem", filesystem, "--images", "40", *recoveries)

    assert status == 0, said(tally) or tally["unmountable"]
    assert tally["images"] >= 44
    assert tally["recovery_images"] >= 4
    assert tally["flushes"] > 200, "the workload hardly syncs"


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs("ext4")
def test_a_store_that_does_not_sync_fails_on_most_images(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    for name in ("wheeldb", "tools"):
        shutil.copytree(ROOT / name, root / name)
    disk = root / "wheeldb" / "disk" / "system.py"
    right = "sync_data = staticmethod(os.fdatasync)"
    wrong = "sync_data = staticmethod(lambda handle: None)"
    text = disk.read_text("utf-8")
    assert text.count(right) == 1
    disk.write_text(text.replace(right, wrong), "utf-8")

    status, tally = powercut("--images", "12", root=root)

    assert status == 1
    assert len(tally["violations"]) >= 8, tally["by_mode"]


# Programs of others under the rig.

APPENDER = """
import os, sys

directory, is_right = sys.argv[1], sys.argv[2] == "right"
path = os.path.join(directory, "numbers")
file = os.open(path, os.O_RDWR | os.O_CREAT)
folder = os.open(directory, os.O_RDONLY)
os.fsync(folder)
for number in range(100):
    os.write(file, b"%07d\\n" % number)
    if is_right:
        os.fdatasync(file)
    os.write(1, b"%d\\n" % number)
"""

READER = """
import os, sys

path = os.path.join(sys.argv[1], "numbers")
promised = sys.stdin.read().split()
data = open(path, "rb").read() if os.path.exists(path) else b""
there = data[: 8 * len(promised)]
if there != b"".join(b"%07d\\n" % int(number) for number in promised):
    sys.exit(f"{len(promised)} were promised, {len(data)} bytes are there")
"""


def appender(place: Path, word: str) -> list[str]:
    """Return the arguments that put a small program under the rig."""
    writes, reads = place / "append.py", place / "read.py"
    writes.write_text(APPENDER)
    reads.write_text(READER)
    workload = f"{sys.executable} {writes} {{directory}} {word}"
    verify = f"{sys.executable} {reads} {{directory}}"
    return ["--workload", workload, "--verify", verify]


@pytest.mark.slow
@needs("ext4")
def test_any_program_can_be_tried(tmp_path: Path) -> None:
    keep = ("--keep", str(tmp_path / "kept"))
    right, _ = powercut(*appender(tmp_path, "right"), "--images", "20")
    wrong, tally = powercut(*appender(tmp_path, "wrong"), "--images", "4", *keep)

    assert (right, wrong) == (0, 1)
    assert "were promised" in said(tally)
    # A kept image fails again, and once more after that: judging doesn't change it.
    kept = min((tmp_path / "kept").iterdir())
    again = [sys.executable, "-m", "tools.powercut", "--again", str(kept)]
    again += appender(tmp_path, "wrong")
    for _ in range(2):
        done = subprocess.run(again, capture_output=True, cwd=ROOT, check=False)
        assert done.returncode == 1, done.stderr
        assert b"were promised" in done.stdout


# What a run leaves behind.

WAITER = """
import os, sys

with open(sys.argv[1], "w") as telling:
    telling.write("here")
# Nobody ever opens the other end.
open(sys.argv[2])
"""


def start_and_wait(scratch: Path) -> subprocess.Popen[bytes]:
    """Start a run whose workload has begun and doesn't end by itself."""
    script, here, never = scratch / "wait.py", scratch / "here", scratch / "never"
    script.write_text(WAITER)
    for fifo in (here, never):
        if not fifo.exists():
            os.mkfifo(fifo)
    command = [sys.executable, "-m", "tools.powercut", "--scratch", str(scratch)]
    workload = f"{sys.executable} {script} {here} {never} {{directory}}"
    process = subprocess.Popen(
        [*command, "--workload", workload], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    assert here.read_text() == "here"
    return process


def run_one(scratch: Path) -> tuple[int, dict[str, Any]]:
    """Run the rig once, as short as can be."""
    short = ("--images", "1", "--scratch", str(scratch))
    return powercut(*appender(scratch, "right"), *short)


def left_by_runs(scratch: Path) -> list[str]:
    """Return what is mounted, attached, running or lying below a directory."""
    left = [*mounts_below(scratch), *map(str, scratch.glob(f"{PREFIX}*"))]
    devices = Path("/sys/block").glob("loop*/loop/backing_file")
    processes = Path("/proc").glob("[0-9]*/cmdline")
    for entry in (*devices, *processes):
        # Others come and go meanwhile.
        with contextlib.suppress(OSError):
            if str(scratch).encode() in entry.read_bytes():
                left.append(str(entry))
    return left


@pytest.mark.slow
@needs("ext4")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start_and_wait(tmp_path)
    assert len(mounts_below(tmp_path)) == 2

    process.send_signal(number)

    assert process.wait(timeout=60) == 3
    assert left_by_runs(tmp_path) == []


@pytest.mark.slow
@needs("ext4")
def test_the_next_run_clears_what_a_killed_one_has_left(tmp_path: Path) -> None:
    process = start_and_wait(tmp_path)
    process.kill()
    process.wait()
    assert len(mounts_below(tmp_path)) == 2

    status, _ = run_one(tmp_path)

    assert status == 0
    assert left_by_runs(tmp_path) == []


@pytest.mark.slow
@needs("ext4")
def test_a_run_leaves_another_one_alone(tmp_path: Path) -> None:
    process = start_and_wait(tmp_path)
    before = mounts_below(tmp_path)

    run_one(tmp_path)

    assert mounts_below(tmp_path) == before
    process.terminate()
    process.wait(timeout=60)
    assert left_by_runs(tmp_path) == []


# The record.


def write_record(path: Path, entries: Sequence[tuple[str, bytes, int]]) -> Record:
    writer = Writer(str(path), 2**20)
    for kind, data, offset in entries:
        assert writer.append(kind, data, offset)
    writer.close()
    return Record.load(str(path))


STORY: list[tuple[str, bytes, int]] = [
    (WRITE, b"a" * 1024, 0),
    (LINE, b"one", 0),
    (FLUSH, b"", 0),
    (WRITE, b"b" * 1024, 512),
    (WRITE, b"c" * 512, 4096),
    (LINE, b"two", 0),
    (FLUSH, b"", 0),
    (END, b"", 0),
    (WRITE, b"d" * 512, 0),
    (FLUSH, b"", 0),
]


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    record = write_record(tmp_path / "record", STORY)

    told = [(e.kind, record.data(e), e.offset) for e in record.entries]
    assert told == STORY
    # What comes after the command's end is not its own.
    assert (record.flushes, record.end) == ([2, 6], 7)
    assert record.lines(record.end) == ["one", "two"]
    record.close()


def test_a_record_that_has_reached_its_bound_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "record")
    writer = Writer(path, 100)
    assert writer.append(LINE, b"x" * 60)
    assert not writer.append(LINE, b"x" * 60)
    assert not writer.append(LINE, b"x")
    writer.close()

    with pytest.raises(ValueError, match="bound"):
        Record.load(path)


def test_a_record_that_was_cut_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path / "record", STORY).close()
    data = (tmp_path / "record").read_bytes()
    (tmp_path / "record").write_bytes(data[:-5])

    with pytest.raises(ValueError, match="cut"):
        Record.load(str(tmp_path / "record"))


# Images.


def test_cuts_are_the_same_for_a_seed_and_come_in_order(tmp_path: Path) -> None:
    record = write_record(tmp_path / "record", STORY)

    cuts = choose_cuts(record, 50, Random(7))

    assert cuts == choose_cuts(record, 50, Random(7))
    assert cuts != choose_cuts(record, 50, Random(8))
    assert [cut.flush for cut in cuts] == sorted(cut.flush for cut in cuts)
    assert {cut.flush for cut in cuts} == {0, 1}
    for cut in cuts:
        assert cut.start in {0, 3}
        assert cut.start <= cut.end <= record.end
    record.close()


def test_an_image_has_what_was_flushed_and_what_was_drawn(tmp_path: Path) -> None:
    record = write_record(tmp_path / "record", STORY)
    base = tmp_path / "base"
    base.write_bytes(bytes(8192))
    builder = Builder(record, base, tmp_path, "test")

    cut = Cut(flush=1, start=3, end=6, mode="torn")
    data = builder.build(cut, [Piece(0, 512, 1024)]).read_bytes()

    assert data == b"a" * 1024 + b"b" * 512 + bytes(8192 - 1536)
    assert base.read_bytes() == bytes(8192)
    record.close()


def kept(pieces: Sequence[Piece]) -> set[tuple[int, int]]:
    """Return (write, sector) of each sector that some pieces keep."""
    return {
        (piece.write, sector)
        for piece in pieces
        for sector in range(piece.begin // 512, -(-piece.end // 512))
    }


WRITES = [Entry(WRITE, 4096 * n, 4096, 0) for n in range(4)]
ALL = {(write, sector) for write in range(4) for sector in range(8)}


@pytest.mark.parametrize("seed", range(50))
def test_a_draw_keeps_what_its_mode_says(seed: int) -> None:
    def drawn(mode: str) -> set[tuple[int, int]]:
        return kept(draw_pieces(WRITES, mode, (), Random(seed)))

    def sizes(mode: str) -> list[int]:
        pieces = drawn(mode)
        return [sum(write == n for write, _ in pieces) for n in range(4)]

    assert drawn("none") == set()
    assert drawn("all") == ALL
    assert sizes("prefix") == sorted(sizes("prefix"), reverse=True)
    assert set(sizes("prefix")) <= {0, 8}
    assert set(sizes("writes")) <= {0, 8}
    assert drawn("sectors") <= ALL
    assert sum(0 < size < 8 for size in sizes("torn")) <= 1


def test_any_sector_may_be_lost_or_kept_alone() -> None:
    draws = [kept(draw_pieces(WRITES, "sectors", (), Random(n))) for n in range(100)]
    for sector in ALL:
        assert any(sector in draw for draw in draws)
        assert any(sector not in draw for draw in draws)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("mode", ["sectors", "torn"])
def test_a_superblock_is_written_whole(mode: str, seed: int) -> None:
    pieces = draw_pieces(WRITES, mode, ((4096 + 1024, 1024),), Random(seed))

    assert len(kept(pieces) & {(1, 2), (1, 3)}) in {0, 2}


def test_a_copy_is_the_same_and_keeps_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.write_bytes(b"x" * 100)
    with source.open("wb") as file:
        file.truncate(2**24)
        for offset in (0, 2**20 + 5, 2**23):
            os.pwrite(file.fileno(), b"data" * 3000, offset)

    copy_sparse(source, target)

    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks


# The ledger.


def ledger_of(*lines: list[object], is_kill: bool = False) -> Ledger:
    ledger = Ledger(is_kill=is_kill)
    for line in lines:
        ledger.take(json.dumps(line))
    return ledger


def ask(hand: str, number: int, level: str = "fsync", **keys: str) -> list[object]:
    changes = {key: [True, state, number, False] for key, state in keys.items()}
    return ["ask", hand, number, level, changes]


def did(hand: str, number: int) -> list[object]:
    return ["did", hand, number, 0]


LIVE_0, LIVE_1 = ("live", 0, False), ("live", 1, False)
DONE, DEAD = ("done", 0, False), ("dead", 0, False)


def behind(ledger: Ledger, hand: str, seen: Mapping[str, Seen]) -> int | None:
    """Return behind which call a hand's tasks are."""
    match = ledger.match(hand, seen)
    return None if match is None else match[0]


def test_a_call_that_was_asked_may_have_happened() -> None:
    ledger = ledger_of(ask("a", 0, x="live", y="live"))

    assert behind(ledger, "a", {}) == 0
    assert behind(ledger, "a", {"x": LIVE_0, "y": LIVE_0}) == 1
    assert behind(ledger, "a", {"x": LIVE_0}) is None, "half of it"


def test_a_call_that_has_returned_has_happened() -> None:
    ledger = ledger_of(ask("a", 0, x="live"), did("a", 0), ask("a", 1, x="done"))

    assert behind(ledger, "a", {}) is None
    assert behind(ledger, "a", {"x": LIVE_0}) == 1
    assert behind(ledger, "a", {"x": DONE}) == 2
    assert ledger.differences("a", {}) == [
        "x is None, behind call 2 it was to be ('done', 0, False)"
    ]


def test_a_refused_call_has_not_happened() -> None:
    ledger = ledger_of(ask("a", 0, x="live"), ["refused", "a", 0])

    assert behind(ledger, "a", {}) == 0
    assert behind(ledger, "a", {"x": LIVE_0}) is None


def test_a_written_call_may_be_lost_until_the_next_sync() -> None:
    lines = [ask("a", 0, "written", x="live"), did("a", 0)]
    assert behind(ledger_of(*lines), "a", {}) == 0
    # It was there already when the other hand asked for its own.
    later = [ask("b", 0, y="live"), did("b", 0)]
    assert behind(ledger_of(*lines, *later), "a", {}) is None
    # And here it wasn't.
    crossed = [later[0], *lines, later[1]]
    assert behind(ledger_of(*crossed), "a", {}) == 0
    # The kernel keeps it when only the process dies.
    assert behind(ledger_of(*lines, is_kill=True), "a", {}) is None


def test_what_an_opening_has_found_stays() -> None:
    asked = [ask("a", 0, x="live"), ask("a", 1, x="live"), ask("b", 0, y="live")]
    ledger = ledger_of(*asked, ["opened", 9], ["found", {"a": 1, "b": 0}, []])

    assert ledger.hands == [""]
    assert behind(ledger, "", {"x": LIVE_0}) == 0
    assert behind(ledger, "", {"x": LIVE_1}) is None
    assert behind(ledger, "", {}) is None


def test_what_starts_at_most_once_is_dead_after_a_start_that_was_cut_short() -> None:
    asked = ["ask", "a", 0, "fsync", {"x": [True, "live", 0, False, True]}]
    start = ["started", "x", 5, False]

    # The lease may have been on its way to whoever would have told of it.
    assert behind(ledger_of(asked, did("a", 0)), "a", {"x": LIVE_0}) == 1
    assert behind(ledger_of(asked, did("a", 0)), "a", {"x": DEAD}) == 1
    started = ledger_of(asked, did("a", 0), start)
    assert behind(started, "a", {"x": LIVE_0}) is None
    match = started.match("a", {"x": DEAD})
    assert match is not None
    assert match[2] == ["x"]
    # And so it is for the next one, who gets told of it.
    found = ledger_of(asked, ["opened", 9], ["found", {"a": 1}, ["x"]])
    assert behind(found, "", {"x": LIVE_0}) is None
    assert behind(found, "", {"x": DEAD}) == 0


def test_a_fence_comes_once_and_rises_over_openings() -> None:
    start = ["started", "x", 5, False]
    assert ledger_of(start, ["started", "y", 4, False]).findings == []
    assert len(ledger_of(start, start).findings) == 1
    assert len(ledger_of(start, ["opened", 9], ["started", "y", 4, 0]).findings) == 1


def test_a_start_is_open_until_its_end_was_asked_for() -> None:
    start = ["started", "x", 5, False]
    assert ledger_of(ask("a", 0, x="live"), start).unended == {"x"}
    assert ledger_of(start, ask("a", 0, x="done")).unended == set()
