"""What the tests of the log share: a disk, a seeded entropy, and an appender.

`Appender` does what the engine's group commit does, one frame at a time, and keeps the
ledger that a test compares with: what was written, and what was acknowledged.
"""

import os.path
from random import Random

from wheeldb.disk import Disk
from wheeldb.log.frame import Frame, FrameType, lsn_bound
from wheeldb.log.reader import LogEnd, LogScan
from wheeldb.log.repair import Opening, Repaired, WriterOptions, create, repair
from wheeldb.log.segment import list_segments
from wheeldb.log.writer import LogWriter
from wheeldb.testing.disk import CrashableDisk

DATABASE = bytes(range(16))
STORE = "/store"
LOG = "/store/log"
ASIDE = "/store/aside"

OPENED = b"opened"
FOOTER = b"closed"

# What a crash may do to a disk that keeps its word about syncs.
HONEST_PROFILES = (
    "none",
    "all",
    "prefix",
    "subset",
    "split_rename",
    "torn",
    "stale_tail",
)

Row = tuple[int, bytes]


class SeededEntropy:
    """Random bytes that are the same in each run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        return self._random.randbytes(count)


def make_disk(seed: int = 0) -> CrashableDisk:
    """Return a disk with the store's directories, durable."""
    disk = CrashableDisk(seed)
    for path in (STORE, LOG, ASIDE):
        disk.make_directory(path)
        disk.sync_directory(os.path.dirname(path))
    return disk


def options(
    *, seed: int = 0, segment_bytes: int = 16 * 2**20, block_align: bool = False
) -> WriterOptions:
    """Return options with a seeded entropy."""
    return WriterOptions(
        entropy=SeededEntropy(seed),
        segment_bytes=segment_bytes,
        block_align=block_align,
    )


class Appender:
    """A writer with the ledger of one life of the process."""

    def __init__(self, disk: Disk, writer: LogWriter) -> None:
        self.disk = disk
        self.writer = writer
        self.durable_lsn = writer.last_lsn
        self.hlc = writer.position.hlc
        self.written: list[Row] = []
        self.acknowledged: list[Row] = []

    def append(
        self,
        payload: bytes,
        *,
        count: int = 1,
        kind: FrameType = FrameType.SYNCED,
        align: bool = True,
    ) -> None:
        """Write a frame as a group commit does, and sync it if it is a synced one."""
        writer = self.writer
        if writer.must_rotate(len(payload)):
            self.rotate()
        self.hlc += 1
        first_lsn = writer.last_lsn + 1
        placed = writer.place(
            kind,
            payload,
            first_lsn=first_lsn,
            count=count,
            hlc=self.hlc,
            watermark=self.durable_lsn,
            bound=lsn_bound(first_lsn + count - 1),
            align=align,
        )
        if count:
            self.written.append((first_lsn, payload))
        writer.write(placed)
        writer.landed(placed)
        if kind != FrameType.UNSYNCED:
            self.sync()

    def sync(self) -> None:
        """Make everything written durable."""
        self.writer.sync_data(self.writer.fd)
        self.durable_lsn = self.writer.last_lsn
        self.acknowledged = list(self.written)

    def rotate(self) -> None:
        """Begin the next segment, which syncs the old one."""
        self.durable_lsn = self.writer.rotate()
        self.acknowledged = list(self.written)

    def close(self) -> None:
        """Close as a store does."""
        self.sync()
        self.append(FOOTER, count=0, kind=FrameType.FOOTER)
        self.writer.cut()
        self.writer.close()


def scan_log(
    disk: Disk, *, from_lsn: int = 0, proven_lsn: int = 0, sync_first: bool = False
) -> tuple[list[Frame], LogEnd, LogScan]:
    """Read the whole log."""
    scan = LogScan(
        disk,
        LOG,
        database=DATABASE,
        from_lsn=from_lsn,
        proven_lsn=proven_lsn,
        sync_first=sync_first,
    )
    frames = list(scan)
    return frames, scan.end, scan


def open_log(
    disk: Disk,
    *,
    seed: int = 0,
    segment_bytes: int = 16 * 2**20,
    block_align: bool = False,
) -> tuple[Appender, list[Frame], Repaired | None]:
    """Open the log for writing as a store does; create it if there is none."""
    chosen = options(seed=seed, segment_bytes=segment_bytes, block_align=block_align)
    if not list_segments(disk, LOG):
        opening = Opening(first_lsn=1, count=1, hlc=1, payload=OPENED)
        writer = create(
            disk,
            LOG,
            database=DATABASE,
            incarnation=1,
            opening=opening,
            options=chosen,
        )
        return Appender(disk, writer), [], None
    frames, end, scan = scan_log(disk, sync_first=True)
    first_lsn = end.last_lsn + 1 if end.is_clean else end.bound_highest
    opening = Opening(
        first_lsn=first_lsn, count=1, hlc=end.hlc_highest + 1, payload=OPENED
    )
    repaired = repair(disk, LOG, ASIDE, scan, opening=opening, options=chosen)
    return Appender(disk, repaired.writer), frames, repaired


def rows(frames: list[Frame]) -> list[Row]:
    """Return number and payload of the frames but the `opened` ones."""
    return [
        (frame.header.first_lsn, frame.payload)
        for frame in frames
        if not frame.header.is_opened
    ]


def last_segment(disk: Disk) -> str:
    """Return the path of the last segment."""
    return os.path.join(LOG, list_segments(disk, LOG)[-1].file_name)
