"""VOUCH: who opened the index last, how that ended, and how far the log went.

The index is used unchecked when somebody vouches for its file: a clean close, or the
same boot of the machine, since what a killed process wrote is still in the page cache.
One line of JSON and its CRC, beside the index::

    {"boot_id": "5f0c…", "boottime_ms": 81234, "checkpoint_lsn": 900,
     "closed_lsn": null, "place": [2049, 1310], "proven_lsn": 900, "segment": 7,
     "starts": 1, "time_namespace": "4026…"}
    7d01a2c4

- ``closed_lsn`` is the log's end at a clean close, ``null`` while a store is open.
- ``proven_lsn`` is what a close has ever proven to be durable.
- ``starts`` counts openings in a row that relied on the same boot, without a checkpoint
  (``checkpoint_lsn``) in between.  A page that kills the process would do so each time;
  at the third the index is read by a child process first.
- ``segment`` is the number of the log's last segment. Each segment says where the one
  before it ends; that the last one was ever there, nobody else would know. It is noted
  once the segment is durable, by an opening before anything is accepted, by a rotation
  before a frame goes into the new segment.

A file that is missing, blank, damaged or unreadable vouches for nothing; then a last
segment that is gone shows only if a checkpoint, a snapshot or a close behind its
beginning is left.  This module does not look at the index itself.
"""

import json
import zlib
from dataclasses import dataclass

from wheeldb.clock import Clock
from wheeldb.disk import Disk, replace_file
from wheeldb.errors import CorruptionError
from wheeldb.layout import Layout
from wheeldb.log.segment import list_segments
from wheeldb.log.source import ByteSource

__all__ = ("Vouch", "place_of", "read_vouch", "require_last_segment", "write_vouch")

STARTS_MAX = 2
_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouch:
    """What the last owner of the index left behind."""

    boot_id: str
    time_namespace: str
    boottime_ms: int
    place: tuple[int, int]
    closed_lsn: int | None
    proven_lsn: int
    checkpoint_lsn: int
    starts: int
    segment: int

    def is_good(self, clock: Clock, place: tuple[int, int]) -> bool:
        """Return whether the index may be used unchecked now, at this place."""
        if self.closed_lsn is not None:
            # A device may have another number after a reboot, an inode has not.
            return self.place[1] == place[1]
        return (
            self.boot_id == clock.boot_id
            and self.time_namespace == clock.time_namespace
            and self.boottime_ms <= clock.read().boottime_ms
            and self.place == place
            and self.starts < STARTS_MAX
        )


def place_of(disk: Disk, path: str) -> tuple[int, int]:
    """Return device and inode of a directory: a copy lies elsewhere."""
    info = disk.info(path)
    return (0, 0) if info is None else (info.device, info.inode)


def read_vouch(disk: Disk, layout: Layout) -> Vouch | None:
    """Return what VOUCH says, ``None`` if it says nothing that can be relied on."""
    info = disk.info(layout.vouch)
    if info is None or info.size > _FILE_BYTES_MAX:
        return None
    try:
        with ByteSource(disk, layout.vouch, piece_bytes=_FILE_BYTES_MAX) as source:
            text = source.read(0, _FILE_BYTES_MAX)
    except CorruptionError:
        return None
    line, _, crc = text.partition(b"\n")
    if crc != _crc(line):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _vouch_of(fields)


def _vouch_of(fields: object) -> Vouch | None:
    """Return what the fields say, ``None`` if one is missing or of another kind."""
    match fields:
        case {
            "boot_id": str(boot_id),
            "boottime_ms": int(boottime_ms),
            "checkpoint_lsn": int(checkpoint_lsn),
            "closed_lsn": None | int() as closed_lsn,
            "place": [int(device), int(inode)],
            "proven_lsn": int(proven_lsn),
            "segment": int(segment),
            "starts": int(starts),
            "time_namespace": str(time_namespace),
        } if min(boottime_ms, checkpoint_lsn, proven_lsn, segment, starts) >= 0:
            return Vouch(
                boot_id=boot_id,
                time_namespace=time_namespace,
                boottime_ms=boottime_ms,
                place=(device, inode),
                closed_lsn=closed_lsn,
                proven_lsn=proven_lsn,
                checkpoint_lsn=checkpoint_lsn,
                starts=starts,
                segment=segment,
            )
    return None


def write_vouch(
    disk: Disk,
    layout: Layout,
    clock: Clock,
    *,
    closed_lsn: int | None,
    proven_lsn: int,
    checkpoint_lsn: int,
    starts: int,
    segment: int,
) -> None:
    """Write down durably who has the index open, or how that ended.

    Raises:
        OSError: As the disk says.
    """
    fields = {
        "boot_id": clock.boot_id,
        "boottime_ms": clock.read().boottime_ms,
        "checkpoint_lsn": checkpoint_lsn,
        "closed_lsn": closed_lsn,
        "place": list(place_of(disk, layout.path)),
        "proven_lsn": proven_lsn,
        "segment": segment,
        "starts": starts,
        "time_namespace": clock.time_namespace,
    }
    line = json.dumps(fields, sort_keys=True).encode()
    replace_file(disk, layout.vouch, line + b"\n" + _crc(line))


def require_last_segment(disk: Disk, layout: Layout, vouch: Vouch | None) -> None:
    """Refuse a log whose last segments are gone; read VOUCH before.

    Raises:
        CorruptionError: If there are segments, but not the last one that was noted.
    """
    is_there = disk.info(layout.log) is not None
    names = list_segments(disk, layout.log) if is_there else []
    if vouch is not None and names and names[-1].number < vouch.segment:
        raise CorruptionError(
            f"the last segment is number {vouch.segment} by {layout.vouch}: those "
            "behind this one are missing",
            path=f"{layout.log}/{names[-1].file_name}",
        )


def _crc(line: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(line)
