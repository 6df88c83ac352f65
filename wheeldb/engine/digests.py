"""Row counts and set digests of the index's tables, kept from the events alone.

Each checkpoint adds what it puts and subtracts what it takes away, so the engine knows
what the index *must* hold without asking it.  ``check``, a snapshot and the sweep count
and add up what it does hold (``Snapshot.digests``): a difference is a loss that LMDB
did not notice.
"""

from wheeldb.index.keys import DIGEST_MASK, DIGEST_TABLES

__all__ = ("Digests",)


class Digests:
    """A count and a sum for each table."""

    __slots__ = ("counts", "sums")

    def __init__(self, stored: dict[str, list[int]] | None = None) -> None:
        stored = stored or {}
        self.counts = {table: stored.get(table, [0, 0])[0] for table in DIGEST_TABLES}
        self.sums = {table: stored.get(table, [0, 0])[1] for table in DIGEST_TABLES}

    def copy(self) -> "Digests":
        """Return an independent copy."""
        return Digests(self.stored())

    def add(self, table: str, digest: int, count: int = 1) -> None:
        """Count a row that is put, or several with the sum of their digests."""
        self.counts[table] += count
        self.sums[table] += digest

    def subtract(self, table: str, digest: int) -> None:
        """Count a row that is taken away."""
        self.counts[table] -= 1
        self.sums[table] -= digest

    def stored(self) -> dict[str, list[int]]:
        """Return it as it stands in the index's meta table and in events."""
        return {
            table: [self.counts[table], self.sums[table] & DIGEST_MASK]
            for table in DIGEST_TABLES
        }

    def differences(self, found: dict[str, tuple[int, int]]) -> list[str]:
        """Return how what was found differs from what must be there."""
        findings = []
        for table, (count, digest) in self.stored().items():
            found_count, found_digest = found[table]
            if found_count != count:
                findings.append(
                    f"table {table} has {found_count} rows, the events make {count}"
                )
            elif found_digest != digest:
                findings.append(
                    f"table {table} has the right number of rows, {count}, but not "
                    "the rows that the events make"
                )
        return findings
