"""Reading a damaged file, and what may come of it.

``LogJudge`` reads the log as an opening does, ``WreckJudge`` as a salvage does,
``SnapshotJudge`` reads a snapshot.  Each knows what the sound file says, damages the
file in place, reads, mends it again, and gives an ``Outcome``; a ``Violation`` is
raised for what must never be.

What vouches for a frame of the last segment: the header (frames that were there before
the file had its name), the watermark of a later frame, and from elsewhere the last
close. The frames above all of these are *open*: damage there may read as a torn tail.
A cut takes the later watermarks with it, so that behind it only header and close vouch.
"""

from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from tools.bitrot.damages import Damage, Kind
from tools.bitrot.stores import Subject
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.frame import Frame
from wheeldb.log.reader import LogEnd, LogScan
from wheeldb.log.segment import SEGMENT_HEADER_BYTES
from wheeldb.log.snapshot import open_snapshot
from wheeldb.log.wreck import Wreck

__all__ = (
    "Judge",
    "LogJudge",
    "Outcome",
    "SnapshotJudge",
    "Violation",
    "WreckJudge",
    "judge_of",
)


class Outcome(StrEnum):
    """What came of a damage that was dealt with as promised."""

    EXACT = "exact"
    REFUSED = "refused"
    # Every event is there, behind them something that looks like a torn write.
    TAIL = "tail"
    # Events of open frames are missing, as after a power cut.
    TORN = "torn"


class Violation(Exception):
    """Raised for a damage that led to what must never be."""


class Judge(Protocol):
    """Judges the damages of one file."""

    @property
    def data(self) -> bytes:
        """The sound file."""

    def is_open(self, damage: Damage) -> bool:
        """Return whether nothing that is left vouches for what it hits."""

    def judge(self, damage: Damage) -> Outcome:
        """Return what comes of a damage.

        Raises:
            Violation: If that must never be.
        """


def judge_of(subject: Subject) -> Judge:
    """Return the judge of a subject as an opening would read it."""
    if subject.target.endswith(".snap"):
        return SnapshotJudge(subject)
    return LogJudge(subject)


class _Target:
    """The damaged file on its disk."""

    def __init__(self, subject: Subject) -> None:
        self.disk = subject.disk()
        self.data = subject.data
        self._handle = self.disk.open(subject.target)

    def damage(self, damage: Damage) -> None:
        if damage.kind is Kind.CUT:
            self.disk.truncate(self._handle, damage.offset)
            return
        byte = damage.byte_of(self.data[damage.offset])
        self.disk.pwrite(self._handle, bytes((byte,)), damage.offset)

    def mend(self, damage: Damage) -> None:
        end = len(self.data) if damage.kind is Kind.CUT else damage.offset + 1
        self.disk.pwrite(self._handle, self.data[damage.offset : end], damage.offset)


class _Scanned(NamedTuple):
    frames: list[Frame]
    end: LogEnd


class LogJudge:
    """Judges a segment by what a scan gives."""

    def __init__(self, subject: Subject) -> None:
        """Read the sound log."""
        self._subject = subject
        self._target = _Target(subject)
        self.data = self._target.data
        self._truth = self._scan()
        header = next(
            segment.header
            for segment in self._truth_scan.segments
            if segment.path == subject.target
        )
        proven = subject.site.proven_lsn
        successor = self._truth_scan.segments[0].successor
        if successor is not None:
            proven = max(proven, successor.predecessor_last_lsn)
        self._held_lsn = max(header.sealed_lsn, proven)
        self._open_at = self._first_open(self._held_lsn)

    def _first_open(self, held_lsn: int) -> int:
        """Return where the last event ends that something vouches for.

        An empty frame behind it is as open as what follows: the chain goes through it.
        """
        frames = self._truth.frames
        held_lsn = max(held_lsn, *(frame.header.watermark for frame in frames))
        held = [frame.end for frame in frames if frame.header.last_lsn <= held_lsn]
        return max(held, default=SEGMENT_HEADER_BYTES)

    def is_open(self, damage: Damage) -> bool:
        """Return whether nothing that is left vouches for what it hits."""
        if self._truth_scan.segments[0].successor is not None:
            return False
        if damage.kind is not Kind.CUT:
            return self._open_at <= damage.offset < self._truth.end.offset
        lost = [one for one in self._truth.frames if one.end > damage.offset]
        return bool(lost) and lost[0].header.first_lsn > self._held_lsn

    def ends_left(self, damage: Damage) -> list[int]:
        """Return where the log may end behind a damage of open frames."""
        if not self.is_open(damage):
            return []
        if damage.kind is Kind.CUT:
            whole = [one.end for one in self._truth.frames if one.end <= damage.offset]
            return whole[-1:]
        ends = [one.end for one in self._truth.frames]
        return [one for one in ends if self._open_at <= one <= damage.offset]

    def judge(self, damage: Damage) -> Outcome:
        """Return what an opening would make of it."""
        self._target.damage(damage)
        try:
            found = self._scan()
        except (CorruptionError, FormatError):
            return Outcome.REFUSED
        except Exception as error:
            raise Violation(f"{damage}: {error!r}") from error
        finally:
            self._target.mend(damage)
        return self._compare(damage, found)

    def _scan(self) -> _Scanned:
        scan = LogScan(
            self._target.disk,
            "/store/log",
            database=self._subject.site.database,
            from_lsn=self._subject.from_lsn,
            proven_lsn=self._subject.site.proven_lsn,
        )
        frames = list(scan)
        self._truth_scan = scan
        return _Scanned(frames, scan.end)

    def _compare(self, damage: Damage, found: _Scanned) -> Outcome:
        truth = self._truth
        is_same_end = _end_of(found) == _end_of(truth)
        if found.end.is_clean and found.end.footer != truth.end.footer:
            raise Violation(f"{damage}: the log reads as one that was closed otherwise")
        if not found.end.is_clean and found.end.bound_highest <= truth.end.last_lsn:
            raise Violation(f"{damage}: numbers would be handed out again")
        if found.end.watermark > truth.end.last_lsn:
            raise Violation(f"{damage}: more is proven than there was")
        if found.frames == truth.frames:
            return Outcome.EXACT if is_same_end else Outcome.TAIL
        if found.frames != truth.frames[: len(found.frames)]:
            raise Violation(f"{damage}: the events read are others")
        if not self.is_open(damage):
            lost = len(truth.frames) - len(found.frames)
            raise Violation(f"{damage}: {lost} frames are missing without a word")
        return Outcome.TORN


def _end_of(scanned: _Scanned) -> LogEnd:
    """Return the end without the file's length, which tells nothing."""
    segment = replace(scanned.end.segment, file_bytes=0)
    return replace(scanned.end, segment=segment)


class WreckJudge:
    """Judges a segment by what a salvage saves of it."""

    def __init__(self, subject: Subject) -> None:
        """Read the sound log."""
        self._subject = subject
        self._opening = LogJudge(subject)
        self._target = _Target(subject)
        self.data = self._target.data
        self._truth, _ = self._read()

    def is_open(self, damage: Damage) -> bool:
        """Return whether nothing that is left vouches for what it hits."""
        return self._opening.is_open(damage)

    def judge(self, damage: Damage) -> Outcome:
        """Return what a salvage would make of it."""
        self._target.damage(damage)
        try:
            frames, wreck = self._read()
        except FormatError:
            return Outcome.REFUSED
        except Exception as error:
            raise Violation(f"{damage}: {error!r}") from error
        finally:
            self._target.mend(damage)
        truth = self._truth
        if frames == truth:
            return Outcome.EXACT
        if not set(frames) <= set(truth):
            raise Violation(f"{damage}: a frame was saved that never was")
        if damage.kind is not Kind.CUT and len(truth) - len(frames) > 1:
            raise Violation(f"{damage}: {len(truth) - len(frames)} frames are lost")
        if wreck.dropped or wreck.torn_bytes or self.is_open(damage):
            return Outcome.TORN
        raise Violation(f"{damage}: frames are missing, and nobody says so")

    def _read(self) -> tuple[list[Frame], Wreck]:
        wreck = Wreck(
            self._target.disk,
            ["/store/log"],
            database=self._subject.site.database,
            from_lsn=self._subject.from_lsn,
            proven_lsn=self._subject.site.proven_lsn,
        )
        return list(wreck), wreck


class SnapshotJudge:
    """Judges a snapshot by what a reader gives."""

    def __init__(self, subject: Subject) -> None:
        """Read the sound snapshot."""
        self._subject = subject
        self._target = _Target(subject)
        self.data = self._target.data
        self._truth = self._read()

    def is_open(self, damage: Damage) -> bool:
        """Return false: a snapshot vouches for itself."""
        return False

    def judge(self, damage: Damage) -> Outcome:
        """Return what a reader makes of it: no damage may pass."""
        self._target.damage(damage)
        try:
            found = self._read()
        except (CorruptionError, FormatError):
            return Outcome.REFUSED
        except Exception as error:
            raise Violation(f"{damage}: {error!r}") from error
        finally:
            self._target.mend(damage)
        if found != self._truth:
            raise Violation(f"{damage}: the snapshot reads otherwise")
        raise Violation(f"{damage}: the damage is not seen")

    def _read(self) -> tuple[object, ...]:
        subject = self._subject
        with open_snapshot(
            self._target.disk, subject.target, database=subject.site.database
        ) as reader:
            return *reader, reader.finish()
