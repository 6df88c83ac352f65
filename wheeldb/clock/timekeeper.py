"""The two timelines of a store, kept over restarts, and how far the wall is believed.

The *elapsed* timeline only goes forward and counts suspended time. It carries the due
times of delays. Within one boot it goes on with boottime. After a reboot only the wall
clock knows for how long the power was off. Here it has no battery, and shows 1970 until
the network corrects it:

    true time    0 min      60 min          120 min       130 min
                 │ running  │   power off   │ running     │ running
    wall clock   12:00      13:00           1970          14:10
    elapsed      0 min      60 min          60 min        70 ──► 130 min
                            the anchor      off-time is   it is believed again:
                            is written      owed          the missing hour is added

So where off-time is in doubt, a delay ends late by the off-time at most, never early.
The owner adds the missing hour (`owed_ms`, `repay`), because delays that were given
since the reset have not waited for it and have to be moved along in the same step.

The *wall* timeline carries instants. It is the wall clock, once there is no evidence
against it. Two instants can't lie in the future: the date of this release, and the
highest wall time that was believed before this opening, the *mark*. A clock that shows
less is `untrusted`: what was due before the mark is overdue for certain and is let
through, everything later waits until the clock has passed the mark. Otherwise it is
`assumed`: nobody vouches for it.

    keeper = Timekeeper(build_ms=clock.build_ms)
    keeper.open(clock.read(), clock.boot_id, clock.time_namespace, anchor)
    reading = clock.read()
    due_ms = keeper.now(reading).elapsed_ms + delay_ms + reading.cut_ms

Off-time is measured from the *origin*, the wall time at which the elapsed timeline was
zero, and of several from the latest: a clock that is set back for a while and put right
while the power is off makes delays late by the off-time, not early. While off-time is
owed, the least counts that a clock tells of it: one that is set forward again before
the hour has been added does not make the hour longer. An anchor is to be written at
each step: if the clock is set forward by an hour and the power is cut before that is on
disk, the hour counts as off-time. `Now.shift_ms` shows a step. For the same reason a
clock that was slow from the start, was believed, and is put right while the power is
off makes delays end early by as much as it was slow; nothing on the machine could tell.

This module is pure: readings come in as arguments, anchors go out as values. It has no
lock; its owner has one. It doesn't use any reference beside the clock itself, and it
accepts a step of any size that stays above the mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias, get_args

from wheeldb.clock import Reading
from wheeldb.errors import CorruptionError

__all__ = ("Anchor", "Continuation", "Now", "Timekeeper", "Trust")

Trust: TypeAlias = Literal["trusted", "assumed", "holdover", "untrusted"]

TRUSTS: tuple[Trust, ...] = get_args(Trust)

REASON_ASSUMED = "nobody vouches for the wall clock, and nothing speaks against it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where both timelines stood at one reading; the next opening goes on from it.

    Attributes:
        elapsed_ms: The elapsed timeline.
        boottime_ms: The boottime of the reading.
        boot_id: The boot to which it belongs.
        time_namespace: The time namespace to which it belongs.
        wall_ms: The wall clock of the reading, believed or not.
        trust: How far it was believed.
        high_water_ms: The highest wall time ever believed.
        origin_ms: The wall time at which the elapsed timeline was zero, by the last
            clock that was believed; None before the first.
        is_owed: Whether off-time is still missing from the elapsed timeline, to be
            added when a clock is believed again.
        owed_since: The log position from which on delays were given while off-time is
            missing; None if it isn't.
        latest_origin_ms: The greatest such origin since off-time was last added.
    """

    elapsed_ms: int
    boottime_ms: int
    boot_id: str
    time_namespace: str
    wall_ms: int
    trust: Trust
    high_water_ms: int
    origin_ms: int | None
    is_owed: bool
    owed_since: int | None = None
    latest_origin_ms: int | None = None

    def to_fields(self) -> dict[str, int | str]:
        """Return plain fields for the log; what is None is left out."""
        fields: dict[str, int | str] = {
            "elapsed_ms": self.elapsed_ms,
            "boottime_ms": self.boottime_ms,
            "boot_id": self.boot_id,
            "time_namespace": self.time_namespace,
            "wall_ms": self.wall_ms,
            "trust": self.trust,
            "high_water_ms": self.high_water_ms,
            "is_owed": int(self.is_owed),
        }
        if self.origin_ms is not None:
            fields["origin_ms"] = self.origin_ms
        if self.owed_since is not None:
            fields["owed_since"] = self.owed_since
        if self.latest_origin_ms is not None:
            fields["latest_origin_ms"] = self.latest_origin_ms
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, int | str]) -> "Anchor":
        """Return the anchor that `to_fields` took apart; unknown fields are ignored.

        Raises:
            CorruptionError: A field is missing or of the wrong kind.
        """
        trust = _text(fields, "trust")
        if trust not in TRUSTS:
            raise CorruptionError(f"a clock anchor with the unknown trust {trust!r}")
        return cls(
            elapsed_ms=_number(fields, "elapsed_ms"),
            boottime_ms=_number(fields, "boottime_ms"),
            boot_id=_text(fields, "boot_id"),
            time_namespace=_text(fields, "time_namespace"),
            wall_ms=_number(fields, "wall_ms"),
            trust=trust,
            high_water_ms=_number(fields, "high_water_ms"),
            origin_ms=_optional(fields, "origin_ms"),
            is_owed=bool(_number(fields, "is_owed")),
            owed_since=_optional(fields, "owed_since"),
            latest_origin_ms=_optional(fields, "latest_origin_ms"),
        )


class Continuation(NamedTuple):
    """How an opening went on from the last anchor.

    Attributes:
        by: `first` without an anchor, `boottime` within the same boot, `wall` over a
            reboot, `nothing` if no clock could tell the off-time.
        off_ms: The time that passed since the anchor; None if it isn't known.
    """

    by: Literal["first", "boottime", "wall", "nothing"]
    off_ms: int | None


# Nearly every call into the store looks at one, and reads it several times. It is never
# changed; to be frozen would make it twice as slow to make.
@dataclass(slots=True, kw_only=True)
class Now:
    """Where the timelines stand.

    Attributes:
        elapsed_ms: The elapsed timeline; never goes back.
        wall_ms: The instant up to which the wall timeline may fire. Goes back when the
            wall clock is set back.
        boottime_ms: The boottime that belongs to both. Leases are measured on it: no
            correction moves it.
        trust: How far the wall clock is believed.
        reason: Why, in words.
        shift_ms: How far the wall clock has moved against boottime since the last
            anchor: a step, or the sum of many small corrections.
        cut_ms: What rounding down has cut off the reading, at most; a due time that is
            reckoned from it is to be as much later.
        offset_ms: Elapsed time less boottime: it changes when off-time is added.
    """

    elapsed_ms: int
    wall_ms: int
    boottime_ms: int
    trust: Trust
    reason: str
    shift_ms: int
    cut_ms: int
    offset_ms: int


class Timekeeper:
    """Turns readings into instants on the two timelines of one opened store."""

    def __init__(self, build_ms: int) -> None:
        """Believe no wall time before `build_ms`."""
        self._build_ms = build_ms
        # The lowest wall time that is believed, fixed for the time of an opening.
        self._floor_ms = build_ms
        self._boot_id = ""
        self._time_namespace = ""
        # elapsed = boottime + offset; rises when missing off-time is added.
        self._offset_ms = 0
        self._is_open = False
        self._boottime_ms = 0
        self._wall_ms = 0
        self._high_water_ms = 0
        self._origin_ms: int | None = None
        # The greatest origin since off-time was last added: what it is measured from.
        # A clock that was set back for a while moves the origin back, and off-time
        # would count that while, too.
        self._latest_origin_ms: int | None = None
        self._origin_before_ms: int | None = None
        self._is_owed = False
        self._owed_since: int | None = None
        # The least that a clock has told of it: one that is set forward again before it
        # was added would have it longer by the step.
        self._owed_least_ms: int | None = None
        # Where in the log this opening begins; 0 if nobody has said it.
        self.opening_lsn = 0
        # wall - boottime at the last anchor.
        self._anchored_gap_ms = 0
        # The last answer, while it holds: a call asks twice within a millisecond.
        self._latest: tuple[Reading, Now] | None = None

    def open(
        self,
        reading: Reading,
        boot_id: str,
        time_namespace: str,
        anchor: Anchor | None,
    ) -> Continuation:
        """Go on where the last opening stopped.

        Args:
            reading: The clocks now.
            boot_id: The boot they belong to.
            time_namespace: The time namespace they belong to.
            anchor: The last anchor on disk; None for a new store.
        """
        assert not self._is_open, "a timekeeper is opened once"
        self._boot_id = boot_id
        self._time_namespace = time_namespace
        self._is_open = True
        self._boottime_ms = reading.boottime_ms
        self._anchored_gap_ms = reading.wall_ms - reading.boottime_ms
        if anchor is None:
            self._offset_ms = -reading.boottime_ms
            self._observe(reading)
            return Continuation("first", None)

        self._floor_ms = max(self._build_ms, anchor.high_water_ms)
        self._high_water_ms = anchor.high_water_ms
        self._origin_ms = anchor.origin_ms
        self._latest_origin_ms = anchor.latest_origin_ms
        if self._latest_origin_ms is None:
            self._latest_origin_ms = anchor.origin_ms
        is_same_boot = (
            boot_id == anchor.boot_id
            and time_namespace == anchor.time_namespace
            and reading.boottime_ms >= anchor.boottime_ms
        )
        if is_same_boot:
            self._offset_ms = anchor.elapsed_ms - anchor.boottime_ms
            self._is_owed = anchor.is_owed
            self._owed_since = anchor.owed_since
            self._observe(reading)
            return Continuation("boottime", reading.boottime_ms - anchor.boottime_ms)

        self._offset_ms = anchor.elapsed_ms - reading.boottime_ms
        # Before the first clock that was believed nothing can tell the off-time, now
        # or later.
        self._is_owed = anchor.origin_ms is not None
        self._owed_since = anchor.owed_since
        # What was owed before has delays of its own to be moved along.
        if not anchor.is_owed:
            owed_ms = self.owed_ms(reading)
            if owed_ms is not None:
                self.repay(owed_ms)
                self._observe(reading)
                return Continuation("wall", owed_ms)
        self._observe(reading)
        return Continuation("nothing", None)

    @property
    def is_owed(self) -> bool:
        """Whether off-time is missing from the elapsed timeline."""
        return self._is_owed

    @property
    def owed_since(self) -> int:
        """The log position from which on delays were given while off-time is missing.

        Zero if nobody has said it: then it may have been any time.
        """
        return self._owed_since or 0

    def note_opening(self, lsn: int) -> None:
        """Say at which log position the opening begins."""
        self.opening_lsn = lsn
        if self._is_owed and self._owed_since is None:
            self._owed_since = lsn

    def owed_ms(self, reading: Reading) -> int | None:
        """Return the missing off-time; None if none is, or no clock can tell it."""
        if not self._is_owed or reading.wall_ms < self._floor_ms:
            return None
        told_ms = self._told_ms(reading)
        if self._owed_least_ms is None or told_ms < self._owed_least_ms:
            self._owed_least_ms = told_ms
        return self._owed_least_ms

    def _told_ms(self, reading: Reading) -> int:
        """Return the missing off-time as a clock that is believed tells it."""
        origin_ms = self._latest_origin_ms
        assert origin_ms is not None, "off-time is owed, but since when?"
        # What was cut off the readings is taken to the safe side: else a delay over a
        # reboot could end a millisecond early.
        elapsed_ms = reading.wall_ms - origin_ms - reading.cut_ms
        boottime_ms = max(self._boottime_ms, reading.boottime_ms)
        return max(0, elapsed_ms - boottime_ms - self._offset_ms)

    def repay(self, owed_ms: int) -> None:
        """Add the missing off-time, as `owed_ms` has told it."""
        self._latest = None
        self._owed_least_ms = None
        self._offset_ms += owed_ms
        self._origin_before_ms, self._latest_origin_ms = self._latest_origin_ms, None
        self._is_owed = False
        self._owed_since = None

    def owe(self, owed_ms: int, since: int) -> None:
        """Take it back: the rest of the step that it belongs to has failed."""
        self._latest = None
        self._offset_ms -= owed_ms
        self._latest_origin_ms = self._origin_before_ms
        self._is_owed = True
        self._owed_since = since

    def now(self, reading: Reading) -> Now:
        """Return where the timelines stand at a reading.

        Readings of several threads may come in a little out of order: boottime counts
        as the highest one seen.
        """
        latest = self._latest
        if latest is not None and latest[0] == reading:
            return latest[1]
        assert self._is_open, "open() comes first"
        is_believed = self._observe(reading)
        boottime_ms = self._boottime_ms
        now = Now(
            elapsed_ms=boottime_ms + self._offset_ms,
            wall_ms=reading.wall_ms if is_believed else self._floor_ms,
            boottime_ms=boottime_ms,
            trust="assumed" if is_believed else "untrusted",
            reason=REASON_ASSUMED if is_believed else self._doubt(reading),
            shift_ms=reading.wall_ms - reading.boottime_ms - self._anchored_gap_ms,
            cut_ms=reading.cut_ms,
            offset_ms=self._offset_ms,
        )
        self._latest = reading, now
        return now

    def anchor(self, reading: Reading) -> Anchor:
        """Return the anchor to be written for a reading."""
        now = self.now(reading)
        self._latest = None
        self._anchored_gap_ms = reading.wall_ms - reading.boottime_ms
        return Anchor(
            elapsed_ms=now.elapsed_ms,
            boottime_ms=now.boottime_ms,
            boot_id=self._boot_id,
            time_namespace=self._time_namespace,
            wall_ms=reading.wall_ms,
            trust=now.trust,
            high_water_ms=self._high_water_ms,
            origin_ms=self._origin_ms,
            latest_origin_ms=self._latest_origin_ms,
            is_owed=self._is_owed,
            owed_since=self._owed_since,
        )

    def elapsed_to_boottime(self, elapsed_ms: int) -> int:
        """Return the boottime at which the elapsed timeline gets to an instant.

        Right until missing off-time is added, which happens only as the wall clock
        passes the mark, so `wall_wait` ends a wait then.
        """
        return elapsed_ms - self._offset_ms

    def boottime_to_elapsed(self, boottime_ms: int) -> int:
        """Return where the elapsed timeline stands at a boottime, likewise."""
        return boottime_ms + self._offset_ms

    def wall_wait(self, due_ms: int | None) -> int | None:
        """Return the wall time to wait for, given the next due time on that timeline.

        While the clock isn't believed, that is the mark: passing it changes what is
        due on both timelines.
        """
        if self._wall_ms >= self._floor_ms:
            return due_ms
        if due_ms is not None and due_ms <= self._floor_ms:
            return 0  # due already, though the clock shows less
        return self._floor_ms

    def estimate_wall_ms(self, elapsed_due_ms: int) -> int | None:
        """Return at which wall time an elapsed due time will come, by today's clock.

        None while the clock isn't believed.
        """
        if self._origin_ms is None or self._is_owed or self._wall_ms < self._floor_ms:
            return None
        return self._origin_ms + elapsed_due_ms

    def _observe(self, reading: Reading) -> bool:
        """Take in a reading, and return whether its wall clock is believed.

        Assumes: the offset is set.
        Ensures: elapsed = boottime + offset has not gone back; if the clock is
        believed, the high-water mark is up to date, and the origin, too, unless
        off-time is owed: that is measured from it.
        """
        if reading.boottime_ms > self._boottime_ms:
            self._boottime_ms = reading.boottime_ms
        wall_ms = self._wall_ms = reading.wall_ms
        if wall_ms < self._floor_ms:
            return False
        if self._is_owed:
            self.owed_ms(reading)
        else:
            elapsed_ms = reading.boottime_ms + self._offset_ms
            origin_ms = self._origin_ms = wall_ms + reading.cut_ms - elapsed_ms
            latest_ms = self._latest_origin_ms
            if latest_ms is None or origin_ms > latest_ms:
                self._latest_origin_ms = origin_ms
        if wall_ms > self._high_water_ms:
            self._high_water_ms = wall_ms
        return True

    def _doubt(self, reading: Reading) -> str:
        """Return what speaks against the wall clock, and what to do about it."""
        if self._floor_ms == self._build_ms:
            limit = "the date of this release"
        else:
            limit = "the highest time that it showed before"
        return (
            f"the wall clock shows {_instant(reading.wall_ms)}, which is before "
            f"{_instant(self._floor_ms)}, {limit}; tasks due later wait until it has "
            "passed that: set the clock"
        )


def _instant(wall_ms: int) -> str:
    """Return a wall time for people, whatever it is."""
    try:
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall_ms)
    except OverflowError:
        return f"{wall_ms} ms after 1970"
    return instant.strftime("%Y-%m-%d %H:%M:%S UTC")


def _optional(fields: Mapping[str, int | str], name: str) -> int | None:
    return _number(fields, name) if name in fields else None


def _number(fields: Mapping[str, int | str], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int):
        raise CorruptionError(f"a clock anchor with {name}={value!r}, not a number")
    return value


def _text(fields: Mapping[str, int | str], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise CorruptionError(f"a clock anchor with {name}={value!r}, not a text")
    return value
