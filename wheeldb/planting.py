"""Planting: a new store in a new directory, from a state that another one has left.

::

    DEST.planting/snapshots/<LSN>.snap   the state
                  log/00000001-….seg     one frame: `opened`, after the snapshot's LSN
                  FORMAT
         │ rename
         ▼
    DEST

The directory gets its name last: a crash leaves no store or a whole one, and
``DEST.planting``, which the next attempt clears away.  The index is made at the first
opening, from the snapshot.

A planted store is the same database in a new incarnation.  It numbers on from far above
all that its origin may have handed out since, and because the origin may have started
any task that was due by now, each of them is marked as one that may have run.
"""

import errno
import posixpath
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Anchor, Timekeeper
from wheeldb.disk import Disk
from wheeldb.engine.opened import JUMP, OpenedBy, jump_lsn, opened_fact
from wheeldb.events import pack_author
from wheeldb.layout import RELEASE, Layout, judge_path, require_outside, write_format
from wheeldb.log.repair import Opening, WriterOptions, create
from wheeldb.log.segment import Entropy
from wheeldb.scratch import clear_away
from wheeldb.vouch import place_of

__all__ = ("Origin", "Planting", "require_absent")

_SUFFIX = ".planting"
SEGMENT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a new store goes on from.

    Attributes:
        database: The UUID.
        incarnation: The incarnation that left the state.
        anchor: Its last clock anchor.
        lsn: The last number of the state.
        bound: The highest number that may have been handed out, or the state's.
        hlc: The highest stamp.
        reason: Where the store comes from: ``"restored"``, ``"replayed"`` …
    """

    database: bytes
    incarnation: int
    anchor: Anchor | None
    lsn: int
    bound: int
    hlc: int
    reason: str


class Planting:
    """A directory in the making; leaving the block unfinished removes it."""

    def __init__(self, disk: Disk, dest: str) -> None:
        """Prepare to make ``dest``; nothing is written yet.

        Raises:
            FileExistsError: If there is something.
            ValueError: If it is not UTF-8, or lies inside a store or a backup.
        """
        judge_path(dest)
        require_absent(disk, dest)
        require_outside(disk, dest)
        self.dest = dest
        self.layout = Layout(path=dest + _SUFFIX)
        self._disk = disk
        self._is_finished = False

    def __enter__(self) -> Self:
        """Clear away what a crash has left, and begin."""
        clear_away(self._disk, self.layout.path)
        self._disk.make_directory(self.layout.path)
        self._disk.make_directory(self.layout.snapshots)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not finished; what that meets is no news."""
        if not self._is_finished:
            with suppress(OSError):
                clear_away(self._disk, self.layout.path)

    def begin_log(self, origin: Origin, clock: Clock, entropy: Entropy) -> int:
        """Begin the log behind the snapshot; return the number of ``opened``.

        Raises:
            OSError: As the disk says.
        """
        disk, layout = self._disk, self.layout
        for directory in (layout.log, layout.index, layout.aside):
            disk.make_directory(directory)
        keeper = Timekeeper(build_ms=clock.build_ms)
        reading = clock.read()
        keeper.open(reading, clock.boot_id, clock.time_namespace, origin.anchor)
        now = keeper.now(reading)
        first_lsn = jump_lsn(max(origin.lsn, origin.bound), reading.wall_ms, entropy)
        by = OpenedBy(
            incarnation=max(origin.incarnation + 1, first_lsn // JUMP),
            place=place_of(disk, layout.path),
            after_lsn=origin.lsn,
            reason=origin.reason,
            release=RELEASE,
            doubt=(now.elapsed_ms, max(now.wall_ms, reading.wall_ms)),
        )
        fact = opened_fact(keeper, reading, by)
        opening = Opening(
            first_lsn=first_lsn,
            count=1,
            hlc=HybridClock(origin.hlc).now(reading.wall_ms),
            payload=pack_author("library") + fact.pack(),
        )
        create(
            disk,
            layout.log,
            database=origin.database,
            incarnation=by.incarnation,
            opening=opening,
            options=WriterOptions(entropy=entropy, segment_bytes=SEGMENT_BYTES),
            previous_lsn=origin.lsn,
        ).close()
        return first_lsn

    def finish(self, database: bytes, *, is_backup: bool = False) -> None:
        """Say what the directory is, and give it its name.

        Raises:
            OSError: As the disk says.
        """
        disk = self._disk
        write_format(disk, self.layout, database, is_backup=is_backup)
        require_absent(disk, self.dest)
        disk.rename(self.layout.path, self.dest)
        self._is_finished = True
        disk.sync_directory(posixpath.dirname(self.dest) or ".")


def require_absent(disk: Disk, dest: str) -> None:
    """Refuse to write over anything.

    Raises:
        FileExistsError: If there is something.
    """
    if disk.info(dest) is not None:
        raise FileExistsError(
            errno.EEXIST,
            "there is something already; name a directory that is new",
            dest,
        )
