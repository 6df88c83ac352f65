"""What an opening found and did: the report that ``db.recovery`` gives.

This module words it; it decides nothing.
"""

from dataclasses import dataclass

from wheeldb.clock.timekeeper import Continuation, Now
from wheeldb.engine.engine import Engine
from wheeldb.engine.folding import Folded
from wheeldb.log.repair import Repaired

__all__ = ("RecoveryReport", "creation_report", "opening_report", "readonly_report")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What an opening found and did.

    Attributes:
        segments: Segments of the log.
        events: Events folded behind the checkpoint.
        torn_bytes: Bytes of an incomplete last write, kept in ``aside/``.
        torn_at: Their file and offset, or ``None``.
        index: How the index was come by, in a few words.
        reason: Why the log ended as it did: ``"new"``, ``"clean"``, ``"unclean"``, or
            ``"copy"``: the directory is a copy of another store's.
        interrupted: Attempts cut short by the end of the process before.
        off_time: Seconds for which the store was not open; ``None`` if unknown.
        clock: How far the wall clock is believed, and why.
        snapshot_age: Seconds since the newest snapshot, or ``None``.
        duration: Seconds that the opening took.
    """

    segments: int
    events: int
    torn_bytes: int
    torn_at: str | None
    index: str
    reason: str
    interrupted: int
    off_time: float | None
    clock: str
    snapshot_age: float | None
    duration: float


def creation_report(engine: Engine, duration: float) -> RecoveryReport:
    """Return that a store was made."""
    return RecoveryReport(
        segments=0,
        events=0,
        torn_bytes=0,
        torn_at=None,
        index="new",
        reason="new",
        interrupted=0,
        off_time=None,
        clock=_clock_words(engine.now()),
        snapshot_age=None,
        duration=duration,
    )


def readonly_report(folded: Folded, engine: Engine) -> RecoveryReport:
    """Return what a reader has found."""
    now, end = engine.now(), folded.scan.end
    torn_at = None
    if end.torn_bytes:
        torn_at = f"{end.segment.path} at byte {end.torn_offset}"
    return RecoveryReport(
        segments=len(folded.scan.segments),
        events=folded.events,
        torn_bytes=end.torn_bytes,
        torn_at=torn_at,
        index=folded.index_word,
        reason="clean" if end.is_clean else "unclean",
        interrupted=0,
        off_time=None,
        clock=_clock_words(now),
        snapshot_age=_snapshot_age(folded, now),
        duration=0.0,
    )


def opening_report(
    folded: Folded,
    repaired: Repaired,
    engine: Engine,
    continuation: Continuation,
    reason: str,
    interrupted: int,
    duration: float,
) -> RecoveryReport:
    """Return what an opening for writing found and did."""
    now = engine.now()
    torn_at = None
    if repaired.torn_path is not None:
        torn_at = f"{repaired.torn_path} at byte {repaired.torn_offset}"
    return RecoveryReport(
        segments=repaired.segments,
        events=folded.events,
        torn_bytes=repaired.torn_bytes,
        torn_at=torn_at,
        index=folded.index_word,
        reason=reason,
        interrupted=interrupted,
        off_time=None if continuation.off_ms is None else continuation.off_ms / 1000,
        clock=_clock_words(now),
        snapshot_age=_snapshot_age(folded, now),
        duration=duration,
    )


def _clock_words(now: Now) -> str:
    return f"{now.trust}: {now.reason}"


def _snapshot_age(folded: Folded, now: Now) -> float | None:
    age_ms = folded.snapshot_age_ms(now.wall_ms)
    return None if age_ms is None else age_ms / 1000
