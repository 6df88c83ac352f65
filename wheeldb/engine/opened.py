"""The event with which every opening for writing begins.

It names the incarnation, the clock's anchor, the place of the directory, what the owner
calls the store, and the LSN before it: a hole in front of an ``opened`` event is legal,
and nowhere else.  Its own number must not have been handed out before, although the log
may have lost its end::

    after a clean close        the next number
    after anything else        the highest bound found in log, snapshots and index
    after a restore, a replay  the next multiple of 2^32 or a later one, at least 2^32
    to a new store, a copy     for each hour since 2026, so that two stores of the same
                               origin don't hand out the same fences

If starts may have been lost with the power, it also says up to which due times that is
possible: those tasks may have run.
"""

from dataclasses import dataclass

from wheeldb.clock import Reading
from wheeldb.clock.hlc import physical_ms
from wheeldb.clock.timekeeper import Anchor, Now, Timekeeper
from wheeldb.engine.engine import MARK_MS
from wheeldb.engine.fold import Fact
from wheeldb.events import F, Kind
from wheeldb.log.segment import Entropy

__all__ = ("OpenedBy", "doubt_after_cut", "is_copy", "jump_lsn", "opened_fact")

JUMP = 2**32
HOUR_MS = 3_600_000
# 2026-01-01T00:00:00Z.
EPOCH_2026_MS = 1_767_225_600_000
# Stores made from one origin within the same hour choose among so many numbers.
JUMPS_CHOICE = 4_096

Doubt = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBy:
    """What an opening says about itself.

    Attributes:
        incarnation: The store's incarnation from now on.
        place: Device and inode of its directory.
        after_lsn: The last LSN before.
        reason: Why the log ended as it did, or where the store comes from.
        release: The release that opens it.
        node: What its owner calls the store, if anything.
        doubt: Elapsed and wall time up to which a task may have been started without
            the log knowing; ``None`` if the log knows of every start.
    """

    incarnation: int
    place: tuple[int, int]
    after_lsn: int
    reason: str
    release: str
    node: str | None = None
    doubt: Doubt | None


def opened_fact(keeper: Timekeeper, reading: Reading, by: OpenedBy) -> Fact:
    """Return the event of an opening."""
    fields: dict[int, object] = {
        F.INCARNATION: by.incarnation,
        F.ANCHOR: keeper.anchor(reading).to_fields(),
        F.PLACE: list(by.place),
        F.AFTER: by.after_lsn,
        F.CLEAN: by.reason == "clean",
        F.REASON: by.reason,
        F.RELEASE: by.release,
    }
    if by.node is not None:
        fields[F.NODE] = by.node
    if by.doubt is not None:
        fields[F.DOUBT] = list(by.doubt)
    return Fact(Kind.OPENED, 1, fields)


def doubt_after_cut(
    anchor: Anchor | None, last_hlc: int, now: Now, mark_ms: int
) -> Doubt:
    """Return up to which due times starts may have been lost with the power.

    Leases are written, not synced, so the last ones before the log's end may be
    missing.  When it ended, the stamps tell: they never lie behind the wall clock.

    Args:
        anchor: The last anchor in the log.
        last_hlc: The last stamp in the log.
        now: The present, which is later.
        mark_ms: How far two anchors lie apart while a delay is pending.
    """
    # A start is marked only if the last anchor is older than `MARK_MS`.
    margin_ms = 2 * max(mark_ms, MARK_MS)
    if anchor is None:
        return now.elapsed_ms, now.wall_ms
    ended_ms = physical_ms(last_hlc)
    since_ms = max(0, ended_ms - anchor.wall_ms)
    elapsed_ms = anchor.elapsed_ms + since_ms + margin_ms
    wall_ms = max(ended_ms, anchor.high_water_ms) + margin_ms
    return min(elapsed_ms, now.elapsed_ms + margin_ms), wall_ms


def is_copy(
    stored: tuple[int, int], place: tuple[int, int], *, is_same_boot: bool
) -> bool:
    """Return whether a directory lies elsewhere than where it was written last.

    A device may have another number after a reboot; an inode keeps its own.
    """
    return stored != place if is_same_boot else stored[1] != place[1]


def jump_lsn(last_lsn: int, wall_ms: int, entropy: Entropy) -> int:
    """Return a first number that no other store of the same origin hands out.

    Args:
        last_lsn: The highest number that may have been handed out here.
        wall_ms: The wall clock, whatever it is worth.
        entropy: Where random bytes come from.
    """
    hours = max(0, wall_ms - EPOCH_2026_MS) // HOUR_MS
    choice = int.from_bytes(entropy.bytes(2)) % JUMPS_CHOICE
    return (max(last_lsn // JUMP + 1, hours) + choice) * JUMP
