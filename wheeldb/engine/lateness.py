"""How late tasks were leased: a histogram with powers of two as its limits, in ms."""

__all__ = ("Lateness",)

# What is later than any of the limits, about 50 days, counts at the end.
_LIMITS_COUNT = 32


class Lateness:
    """Counts by lateness; the one at ``n`` is of what was less than 2ⁿ ms late."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * (_LIMITS_COUNT + 1)

    def add(self, late_ms: int) -> None:
        """Count one lease."""
        self._counts[min(max(late_ms, 0).bit_length(), _LIMITS_COUNT)] += 1

    def counts(self) -> dict[str, int]:
        """Return the counts by limit, as text: ``"<1"``, ``"<2"``, ``"<4"`` …"""
        return {
            f"<{1 << power}": count for power, count in enumerate(self._counts) if count
        }
