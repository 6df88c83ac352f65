"""Stores that earlier releases have written: read as they were, or refused untouched.

`tools/make_golden.py` writes them; a format's directory is never written again.
"""

import importlib.util
import json
import zlib
from pathlib import Path
from types import ModuleType

import pytest

import wheeldb
from wheeldb import FormatError
from wheeldb.engine.fold import Fact
from wheeldb.engine.row import Row
from wheeldb.events import F, pack_author, pack_event, pack_fields
from wheeldb.log.frame import FrameType, lsn_bound
from wheeldb.replay import replay
from wheeldb.testing import CrashableDisk, ManualClock

GOLDEN = Path(__file__).parent / "data" / "format-1"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def load_tool() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "make_golden.py"
    specification = importlib.util.spec_from_file_location("make_golden", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


TOOL = load_tool()


def golden(name: str) -> dict[str, bytes]:
    """Return a store's files, placed where the tests want it."""
    root = GOLDEN / name
    return {
        f"/store/{path.relative_to(root)}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def expected(name: str) -> list[dict[str, object]]:
    tasks: list[dict[str, object]] = json.loads((GOLDEN / f"{name}.json").read_text())
    return tasks


def open_golden(disk: CrashableDisk, **options: object) -> wheeldb.WheelDB:
    chosen: dict[str, object] = {
        "disk": disk,
        "clock": ManualClock(TOOL.WALL, elapsed=60.0),
        "driver": False,
        "reserve": False,
        "retention": 10 * 365 * 86_400.0,
    }
    return wheeldb.open("/store", **(chosen | options))  # type: ignore[arg-type]


def test_every_kind_is_there() -> None:
    assert sorted(TOOL.BUILDERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("readonly", [False, True])
def test_this_release_reads_what_an_earlier_one_wrote(
    name: str, readonly: bool
) -> None:
    disk = CrashableDisk()
    disk.load(golden(name))

    db = open_golden(disk, readonly=readonly)

    wanted, found = expected(name), TOOL.describe(db)
    if name == "leased" and not readonly:
        # Their process is dead: what was cancelled meanwhile is that, the rest waits.
        ended = [task for task in found if task["state"] == "cancelled"]
        assert [task["id"] for task in ended] == ["pump-2"]
        found = [task for task in found if task not in ended]
        wanted = [task for task in wanted if task["id"] != "pump-2"]
        for task in wanted:
            task["state"] = "scheduled"
    assert found == wanted
    assert (db.recovery.torn_bytes > 0) == (name == "torn")
    if not readonly:
        assert db.check() == []
        db.schedule("new", id="new", delay=1)
        db.close()
        assert open_golden(disk).get("new") is not None


def test_blocks_come_out_of_a_snapshot_as_blocks() -> None:
    disk = CrashableDisk()
    disk.load(golden("blocks"))

    with open_golden(disk) as db:
        assert "rebuilt from snapshot" in db.recovery.index
        rows = db._engine.state.index.statistics().rows
        assert (rows["block"], rows["run"]) == (4, 3)
        db.cancel("bulk-7")
        db.checkpoint()
        assert db.check() == []


@pytest.mark.parametrize("name", NAMES)
def test_replay_reads_it_as_well(name: str) -> None:
    disk = CrashableDisk()
    disk.load(golden(name))

    for salvage in (False, True):
        report = replay("/store", salvage=salvage, disk=disk)
        assert report.dropped == ()
        pending = [
            task
            for task in expected(name)
            if task["state"] not in ("done", "cancelled", "expired")
        ]
        assert sum(report.tasks.values()) == len(pending)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_calls_write_the_same_bytes(name: str) -> None:
    assert TOOL.build(name) == TOOL.build(name)


# Newer releases. Others have read what they did not understand, or destroyed it:
# elastic/logstash#9322, #9493, #9494, lucas34/SwiftQueue#361,
# agronholm/apscheduler#341.


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_format_is_refused_and_not_one_byte_changed(
    tmp_path: Path, readonly: bool
) -> None:
    for path, data in golden("clean").items():
        file = tmp_path / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    store = tmp_path / "store"
    text = (store / "FORMAT").read_bytes().replace(b"format 1", b"format 2")
    (store / "FORMAT").write_bytes(text + b"something new\n")
    before = snapshot_of(store)

    with pytest.raises(FormatError, match="format 2, this release knows 1"):
        wheeldb.open(store, driver=False, readonly=readonly)
    with pytest.raises(FormatError, match="format 2"):
        replay(store, salvage=True)

    assert snapshot_of(store) == before


def snapshot_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(directory.rglob("*"))
    }


def test_a_newer_segment_is_refused() -> None:
    disk = CrashableDisk()
    files = golden("clean")
    path = next(path for path in files if path.endswith(".seg"))
    header = bytearray(files[path])
    header[8] = 2
    header[108:112] = zlib.crc32(bytes(header[:108])).to_bytes(4, "little")
    disk.load(files | {path: bytes(header)})
    before = disk.dump()

    with pytest.raises(FormatError, match="log format 2"):
        open_golden(disk)

    for name, data in before.items():
        assert disk.dump()[name] == data


def test_an_event_of_a_newer_release_is_refused() -> None:
    disk = CrashableDisk()
    disk.load(golden("killed"))
    db = open_golden(disk)
    committer = db._engine.committer
    writer = committer.writer
    payload = pack_author("library") + pack_event(120, 1, pack_fields({F.NUMBER: 1}))
    lsn = writer.last_lsn + 1
    placed = writer.place(
        FrameType.SYNCED,
        payload,
        first_lsn=lsn,
        count=1,
        hlc=db._engine.hlc.last + 1,
        watermark=lsn - 1,
        bound=lsn_bound(lsn),
    )
    writer.write(placed)
    writer.sync_data(writer.fd)
    disk.kill()
    before = {name: data for name, data in disk.dump().items() if "/log/" in name}

    for readonly in (False, True):
        with pytest.raises(FormatError, match="kind 120"):
            open_golden(disk, readonly=readonly)

    after = {name: data for name, data in disk.dump().items() if "/log/" in name}
    assert after == before


def test_fields_of_a_newer_release_are_kept() -> None:
    later = 4_000
    disk = CrashableDisk()
    disk.load(golden("killed"))
    db = open_golden(disk)
    row = db._engine.find("meter-7")
    assert isinstance(row, Row)
    fields: dict[int, object] = {
        F.NUMBER: [row.number],
        F.DUE: 10_000_000,
        later: "unknown here",
    }
    # An event with it is read; a row with it keeps it over a snapshot and a rebuild.
    db._engine.commit(lambda decider: decider.emit(Fact(5, 1, fields)), synced=True)
    options = {later: {"kept": True}}
    row = db._engine.find("meter-7")
    assert isinstance(row, Row)
    body = Row.unpack(row.number, row.lsn, row.pack())
    body.options = {**body.options, **options}
    again = Row.unpack(row.number, row.lsn, body.pack())
    assert again.options[later] == {"kept": True}
    assert again.pack() == body.pack()
    db.snapshot()
    disk.kill()
    disk.indexes.clear()

    assert open_golden(disk).get("meter-7") is not None
