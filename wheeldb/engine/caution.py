"""Caution after a power cut: for a while leases are synced before their handler starts.

A lease is written before the handler starts, but not waited for: the page cache
survives a killed process.  It does not survive a power cut, and the task that was
started last may be the one that causes them.  So after an opening that found no clean
close and another boot, each start is made durable first and therefore counted, until
ten minutes or a thousand good runs have passed::

    power cut ─► opening ─► syncs leases … 10 min, or 1,000 runs ─► as usual

This object counts; it neither syncs nor reads a clock.
"""

__all__ = ("Caution",)

CAUTION_MS = 600_000
GOOD_RUNS = 1_000


class Caution:
    """Says for how long leases are to be synced."""

    __slots__ = ("_runs_left", "_until_ms")

    def __init__(self, boottime_ms: int) -> None:
        """Begin at an opening after a power cut, at this boottime."""
        self._until_ms = boottime_ms + CAUTION_MS
        self._runs_left = GOOD_RUNS

    def note_good_runs(self, count: int) -> None:
        """Take note of attempts that were acked."""
        self._runs_left -= count

    def is_over(self, boottime_ms: int) -> bool:
        """Return whether the usual way will do again."""
        return self._runs_left <= 0 or boottime_ms >= self._until_ms
