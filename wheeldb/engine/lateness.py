"""How late tasks were leased: a histogram with powers of two as its limits, in ms."""

__all__ = ("Lateness",)

_BUCKETS = 32


class Lateness:
    """Counts by lateness; bucket ``n`` holds what was less than 2ⁿ ms late."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)

    def add(self, late_ms: int) -> None:
        """Count one lease."""
        self._counts[min(max(late_ms, 0).bit_length(), _BUCKETS)] += 1

    def counts(self) -> dict[str, int]:
        """Return the counts by limit, as text: ``"<1"``, ``"<2"``, ``"<4"`` …"""
        return {
            f"<{1 << bucket}": count
            for bucket, count in enumerate(self._counts)
            if count
        }
