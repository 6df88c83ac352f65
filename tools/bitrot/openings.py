"""Whole openings of a store with one damaged file.

Slower than reading a file alone by a hundred times, so only a sample of the log's and
the snapshots' damages goes through it, and every damage of the small files::

    FORMAT, LOCK, index/VOUCH, a torn tail in aside/

The store opens with every task as it was, or it refuses with a typed error and has
changed no byte but those of LOCK and VOUCH.  Behind damage of open frames it may open
without their events, as after a power cut, and with nothing else missing.  What
``check`` then finds must lie in the damaged file.
"""

from collections.abc import Mapping
from dataclasses import replace

import wheeldb
from tools.bitrot.damages import Damage
from tools.bitrot.judges import LogJudge, Outcome, Violation
from tools.bitrot.stores import SEGMENT_BYTES, STORE, SeededEntropy, Site, Subject
from wheeldb import CorruptionError, FormatError, Task, WheelDB
from wheeldb.testing import CrashableDisk

__all__ = ("ASIDE_FILE", "OpeningJudge", "small_files")

ASIDE_FILE = f"{STORE}/aside/00000001-0000000000000001.seg.torn"
_SMALL = (f"{STORE}/FORMAT", f"{STORE}/LOCK", f"{STORE}/index/VOUCH")
# What an opening that refuses may have written.
_OWN = (f"{STORE}/LOCK", f"{STORE}/index/VOUCH")


def small_files(site: Site) -> list[Subject]:
    """Return the files beside log and snapshots that an opening meets."""
    site.disk.load({ASIDE_FILE: b"torn" * 25})
    site = replace(site, files=site.disk.dump())
    return [
        Subject(
            name=path.removeprefix(f"{STORE}/"),
            site=site,
            target=path,
            from_lsn=0,
            paths=(path,),
        )
        for path in (*_SMALL, ASIDE_FILE)
    ]


class OpeningJudge:
    """Judges a file by what an opening of the whole store gives."""

    def __init__(self, subject: Subject, *, has_index: bool = True) -> None:
        """Open the sound store.

        Args:
            subject: The file.
            has_index: Whether there is an index; otherwise it is built anew, and every
                snapshot and segment is read.
        """
        self.data = subject.data
        self._subject = subject
        self._has_index = has_index
        self._log = LogJudge(subject) if subject.target.endswith(".seg") else None
        self._truth = self._open(self._disk(self.data))
        # What a power cut leaves of the open frames, by where it ends the log.
        self._shorter: dict[int, Mapping[str, Task]] = {}

    def is_open(self, damage: Damage) -> bool:
        """Return whether nothing that is left vouches for what it hits."""
        return self._log is not None and self._log.is_open(damage)

    def judge(self, damage: Damage) -> Outcome:
        """Return what comes of a damage.

        Raises:
            Violation: If that must never be.
        """
        disk = self._disk(damage.bytes_of(self.data))
        before = _lasting(disk)
        try:
            tasks = self._open(disk)
        except (CorruptionError, FormatError):
            if _lasting(disk) != before:
                raise Violation(f"{damage}: refused, and files have changed") from None
            return Outcome.REFUSED
        except Violation as violation:
            raise Violation(f"{damage}: {violation}") from violation
        except Exception as error:
            raise Violation(f"{damage}: {error!r}") from error
        if tasks == self._truth:
            return Outcome.EXACT
        ends = self._log.ends_left(damage) if self._log is not None else []
        if any(tasks == self._cut_at(end) for end in ends):
            return Outcome.TORN
        raise Violation(f"{damage}: the store opens with other tasks")

    def _cut_at(self, end: int) -> Mapping[str, Task]:
        if end not in self._shorter:
            self._shorter[end] = self._open(self._disk(self.data[:end]))
        return self._shorter[end]

    def _disk(self, data: bytes) -> CrashableDisk:
        disk = self._subject.site.disk.clone()
        if not self._has_index:
            disk.indexes.clear()
        disk.load({self._subject.target: data})
        return disk

    def _open(self, disk: CrashableDisk) -> Mapping[str, Task]:
        db = wheeldb.open(
            STORE,
            disk=disk,
            clock=self._subject.site.clock,
            entropy=SeededEntropy(2),
            driver=False,
            reserve=False,
            profile="disk",
            segment_bytes=SEGMENT_BYTES,
            create=False,
        )
        try:
            self._check(db)
            return _tasks_of(db)
        finally:
            disk.kill()

    def _check(self, db: WheelDB) -> None:
        others = [one for one in db.check() if one.path != self._subject.target]
        if others:
            raise Violation(f"check finds {others[0]}")


def _tasks_of(db: WheelDB) -> Mapping[str, Task]:
    """Return all tasks, the finished ones too, but for the positions of this opening.

    An opening ends the attempts of the process before at positions that depend on what
    it has found; those alone may differ.
    """
    tasks = [*db.tasks(), *db.tasks(state="done"), *db.tasks(state="cancelled")]
    return {task.id: replace(task, lsn=0) for task in tasks}


def _lasting(disk: CrashableDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.dump().items() if path not in _OWN}
