"""A hybrid logical clock: stamps that follow the wall clock and yet never go back.

After Kulkarni, Demirbas, Madappa, Avva and Leone, "Logical Physical Clocks and
Consistent Snapshots in Globally Distributed Databases" (2014). A stamp is one integer:

     63                                    16 15              0
    ┌────────────────────────────────────────┬─────────────────┐
    │ physical: Unix milliseconds            │ logical counter │
    └────────────────────────────────────────┴─────────────────┘

The paper takes the upper 48 bits of a 64-bit NTP timestamp as the physical part; Unix
milliseconds are this clock's own choice and reach to the year 10889. Because the
counter lies below the milliseconds, the paper's rules become arithmetic on the whole:
"the same millisecond, counter + 1" is the last stamp + 1, and a counter that runs over
borrows the next millisecond by its carry. With the wall clock at 1000 ms:

    clock = HybridClock()
    clock.now(1000)                                   # (1000, 0)
    clock.now(1000)                                   # (1000, 1)
    clock.now(990)                                    # (1000, 2): stepped back
    clock.merge(pack(1005, 7), 1001, drift_ms_max=60_000)   # (1005, 8)

If one event led to another, its stamp is smaller. The converse does not hold: of two
stamps, the smaller may belong to an event that knew nothing of the other. So a stamp
orders events and nothing else; it never decides what is due. It names no node, and two
nodes may hand out the same stamp. The clock has no lock; its owner has one.
"""

from wheeldb.errors import ClockDriftExceeded

__all__ = ("STAMP_MAX", "HybridClock", "logical", "pack", "physical_ms")

COUNTER_BITS = 16
COUNTER_MASK = (1 << COUNTER_BITS) - 1
STAMP_MAX = (1 << 64) - 1


class HybridClock:
    """One node's clock; every stamp is above all that it gave out or took in."""

    __slots__ = ("_last",)

    def __init__(self, last: int = 0) -> None:
        """Start above `last`, the highest stamp that is known to be in use."""
        assert 0 <= last <= STAMP_MAX, f"not a stamp: {last}"
        self._last = last

    @property
    def last(self) -> int:
        """The highest stamp given out or taken in."""
        return self._last

    def now(self, wall_ms: int, count: int = 1) -> int:
        """Return the stamp of an event that happens here.

        Args:
            wall_ms: The wall clock. It may have gone back.
            count: How many stamps to take in one go: the one returned and those
                that follow it.
        """
        assert count > 0, f"count must be positive, not {count}"
        stamp = wall_ms << COUNTER_BITS
        if stamp <= self._last:
            stamp = self._last + 1
        return self._advance(stamp, count)

    def merge(self, remote: int, wall_ms: int, *, drift_ms_max: int) -> int:
        """Return the stamp for taking in what another node has stamped.

        The bound is checked before the clock moves: a clock that has followed a wrong
        one into the future can't be brought back.

        Args:
            remote: The other node's stamp.
            wall_ms: The wall clock here.
            drift_ms_max: How far the other node may be ahead of it.

        Raises:
            ClockDriftExceeded: It is further ahead; the clock here hasn't moved.
        """
        assert 0 <= remote <= STAMP_MAX, f"not a stamp: {remote}"
        ahead_ms = physical_ms(remote) - wall_ms
        if ahead_ms > drift_ms_max:
            raise ClockDriftExceeded(
                f"a foreign stamp of {physical_ms(remote)} ms is {ahead_ms} ms ahead "
                f"of the wall clock here ({wall_ms} ms), {drift_ms_max} are allowed; "
                "nothing was merged: set the clock of the node that is wrong"
            )
        return self._advance(max(self._last + 1, remote + 1, pack(wall_ms)), 1)

    def restore(self, last: int) -> None:
        """Go on above a stamp that was found on disk, and above its own."""
        assert 0 <= last <= STAMP_MAX, f"not a stamp: {last}"
        if last > self._last:
            self._last = last

    def _advance(self, stamp: int, count: int) -> int:
        last = stamp + count - 1
        assert last <= STAMP_MAX, f"stamp {last} is beyond {STAMP_MAX}"
        self._last = last
        return stamp


def pack(ms: int, counter: int = 0) -> int:
    """Return the stamp of these two parts."""
    assert 0 <= ms <= STAMP_MAX >> COUNTER_BITS, f"not 48 bits of milliseconds: {ms}"
    assert 0 <= counter <= COUNTER_MASK, f"not 16 bits of counter: {counter}"
    return ms << COUNTER_BITS | counter


def physical_ms(stamp: int) -> int:
    """Return the milliseconds of a stamp."""
    return stamp >> COUNTER_BITS


def logical(stamp: int) -> int:
    """Return the counter of a stamp."""
    return stamp & COUNTER_MASK
