"""The stores whose files are damaged: always the same bytes, never on a real disk.

A small gateway schedules, leases, acknowledges, fails, moves and cancels tasks, alone
and in batches, until its log has a few segments of 64 KiB; it takes two snapshots.  It
is left in two ways: closed, and killed in the middle (what it wrote is there, the
footer isn't).

    subject = subjects()[0]
    subject.name, subject.target        # ("sealed", "/store/log/00000002-….seg")
    disk = subject.disk()               # a MemoryDisk that holds what a reader needs
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

import wheeldb
from wheeldb import NewTask, TaskOptions, WheelDB
from wheeldb.clock import Clock
from wheeldb.disk.memory import MemoryDisk
from wheeldb.index import MemoryIndex
from wheeldb.layout import Layout, read_format
from wheeldb.log.segment import list_segments
from wheeldb.log.snapshot import list_snapshots
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.vouch import read_vouch

__all__ = ("STORE", "SeededEntropy", "Site", "Subject", "build", "subjects", "work")

STORE = "/store"
_LAYOUT = Layout(path=STORE)
SEGMENT_BYTES = 65_536
REPORT_AT = datetime(2026, 1, 2, tzinfo=UTC)


class SeededEntropy:
    """Random bytes that are the same in each run."""

    def __init__(self, seed: int = 0) -> None:
        """Begin with a seed."""
        self._random = Random(seed)

    def bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        return self._random.randbytes(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A store as a process has left it.

    Attributes:
        disk: Its files, durable; clone it before opening.
        clock: The clock at that moment, of the same boot.
        files: The files' bytes by path.
        database: Its UUID.
        proven_lsn: What its last close has proven to be durable.
    """

    disk: CrashableDisk
    clock: Clock
    files: Mapping[str, bytes]
    database: bytes
    proven_lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One file to damage, and the least that a reader needs beside it.

    Attributes:
        name: What the file is, in a word.
        site: The store it belongs to.
        target: Its path.
        from_lsn: Where a reader of the log begins.
        paths: The files that are read.
    """

    name: str
    site: Site
    target: str
    from_lsn: int
    paths: tuple[str, ...]

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.site.files[self.target]

    def disk(self) -> MemoryDisk:
        """Return a disk with the files that are read and nothing else."""
        disk = MemoryDisk(MemoryIndex)
        for path in self.paths:
            names = posixpath.dirname(path).strip("/").split("/")
            for depth in range(len(names)):
                disk.make_directory("/" + "/".join(names[: depth + 1]))
            handle = disk.open(path, create=True)
            disk.pwrite(handle, self.site.files[path], 0)
            disk.close(handle)
        return disk


def subjects() -> list[Subject]:
    """Return the files of the log and the snapshots that the tool damages."""
    found = []
    for profile in ("disk", "flash"):
        killed = build(profile, is_closed=False)
        suffix = "" if profile == "disk" else " aligned"
        found += [
            _segment(killed, "sealed segment" + suffix, -2),
            _segment(killed, "last segment" + suffix, -1),
        ]
    closed = build("disk", is_closed=True)
    found.append(_segment(closed, "closed segment", -1))
    names = list_snapshots(closed.disk, _LAYOUT.snapshots)
    path = f"{_LAYOUT.snapshots}/{names[0].file_name}"
    found.append(
        Subject(name="snapshot", site=closed, target=path, from_lsn=0, paths=(path,))
    )
    return found


def _segment(site: Site, name: str, position: int) -> Subject:
    """Return a segment by its place; a reader begins in front of it."""
    names = list_segments(site.disk, _LAYOUT.log)
    paths = [f"{_LAYOUT.log}/{one.file_name}" for one in names]
    return Subject(
        name=name,
        site=site,
        target=paths[position],
        from_lsn=names[position].first_lsn - 1,
        paths=tuple(paths[position:]),
    )


def build(profile: str = "disk", *, is_closed: bool) -> Site:
    """Run the gateway and return the store that it leaves."""
    disk = CrashableDisk()
    clock = ManualClock()
    db = wheeldb.open(
        STORE,
        disk=disk,
        clock=clock,
        entropy=SeededEntropy(1),
        driver=False,
        reserve=False,
        profile=profile,
        segment_bytes=SEGMENT_BYTES,
        durability="fsync",
    )
    work(db, clock, turns=24 if profile == "disk" else 8)
    if is_closed:
        db.close()
    else:
        # The last two frames: a synced one, and one that is written and not synced.
        db.schedule("valve.close", {"valve": 9}, delay=60, id="last")
        db.lease(limit=3)
        disk.kill()
    files = disk.dump()
    database = read_format(disk, _LAYOUT)
    vouch = read_vouch(disk, _LAYOUT)
    assert database is not None, "the store has no FORMAT"
    assert vouch is not None, "the store has no VOUCH"
    return Site(
        disk=disk,
        clock=clock,
        files=files,
        database=database,
        proven_lsn=vouch.proven_lsn,
    )


def work(db: WheelDB, clock: ManualClock, *, turns: int, seed: int = 1) -> None:
    """Do everything that a store does, some turns of it, with two snapshots."""
    dice = Random(seed)
    for turn in range(turns):
        for number in range(4):
            options = TaskOptions(delay=dice.choice((1, 60, 86_400, 90 * 86_400)))
            if number % 2:
                options["id"] = f"valve-{turn}-{number}"
            name = f"valve.{dice.choice(('open', 'close'))}"
            text = "x" * dice.randrange(900)
            db.schedule(name, {"valve": number, "text": text}, **options)
        db.schedule_many(
            [
                NewTask("meter.read", {"meter": number}, delay=3_600 + number)
                for number in range(12)
            ]
        )
        with db.batch() as batch:
            batch.schedule("report", at=REPORT_AT)
            batch.cancel(f"valve-{turn}-1")
        db.reschedule(f"valve-{turn}-3", delay=7_200)
        clock.advance(2)
        db.poll()
        for position, lease in enumerate(db.lease(limit=4)):
            if position % 3 == 0:
                lease.ack()
            elif position % 3 == 1:
                lease.nack("no answer")
        if turn in (turns // 3, turns // 2):
            db.snapshot()
        if turn % 5 == 4:
            db.checkpoint()
