"""Random bytes from the operating system, where no test has put a seed in its place."""

import os

__all__ = ("SystemEntropy", "system_entropy")


class SystemEntropy:
    """Implements ``wheeldb.log.segment.Entropy``."""

    def bytes(self, count: int, /) -> bytes:
        """Return ``count`` random bytes."""
        return os.urandom(count)


system_entropy = SystemEntropy()
