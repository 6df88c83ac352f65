"""How fast a disk can be at best, and how to compare something with it.

A rate says more about the machine than about the program.  So whatever is measured runs
by turns with its limit, in short rounds in the same directory, and the result is the
median of the rounds' ratios:

    with bare_log(path) as log:
        rates = by_turns({"bare": append, "store": schedule}, seconds=0.25, rounds=9)
    median_ratio(rates, "store", "bare")

``BareLog`` does what no log can do without: one write and one sync for each record,
into blocks that were written before, so that the file's own records need no change.
Either all of the file was filled with zeros beforehand, which no log that grows can
have; or each MiB is, together with the record that crosses into it, as the store fills
its segments, and that record's sync takes so much longer.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from wheeldb.clock.system import SystemClock

__all__ = (
    "BareLog",
    "bare_log",
    "by_turns",
    "median_rate",
    "median_ratio",
    "per_second",
)

NS_PER_S = 1_000_000_000
BLOCK_BYTES = 4_096
_FILE_BYTES = 16 * 2**20
_ZEROS = bytes(2**20)

Rates = dict[str, list[float]]


class BareLog:
    """A file of zeros into which records are written, each synced by itself."""

    def __init__(
        self, path: str, *, is_aligned: bool = False, is_filled: bool = True
    ) -> None:
        """Prepare the file, durably.

        Args:
            path: The file; it must not exist.
            is_aligned: Let each record begin on a block of its own, as a log does on
                media that may damage bytes beside those being written.
            is_filled: Fill the file now; else each MiB is, with the first record in it.

        Raises:
            OSError: As the disk says.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._offset = 0
        self._step_bytes = BLOCK_BYTES if is_aligned else 1
        self._is_filled = is_filled
        self._zeroed_bytes = 0
        if is_filled:
            self._zeroed_bytes = _FILE_BYTES
            os.pwrite(self._fd, bytes(_FILE_BYTES), 0)
        os.fsync(self._fd)

    def append(self, record: bytes) -> None:
        """Write a record and sync it; behind the last block begins the first."""
        if self._offset + len(record) > _FILE_BYTES:
            self._offset = 0
            if not self._is_filled:  # as in a new file
                os.ftruncate(self._fd, 0)
                self._zeroed_bytes = 0
        os.pwrite(self._fd, record, self._offset)
        end = self._offset + len(record)
        if end > self._zeroed_bytes:
            self._zeroed_bytes = end + -end % len(_ZEROS)
            os.pwrite(self._fd, _ZEROS[: self._zeroed_bytes - end], end)
        os.fdatasync(self._fd)
        self._offset = end + -end % self._step_bytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@contextlib.contextmanager
def bare_log(
    path: str, *, is_aligned: bool = False, is_filled: bool = True
) -> Iterator[BareLog]:
    """Return a ``BareLog`` for the length of a block."""
    log = BareLog(path, is_aligned=is_aligned, is_filled=is_filled)
    try:
        yield log
    finally:
        log.close()


def per_second(work: Callable[[], int], seconds: float) -> float:
    """Return how much ``work`` does per second; it returns how much it did, 0 to stop.

    It is called once at least, and begun anew until the time is over.
    """
    clock = SystemClock()
    began_ns = clock.process_ns()
    done = 0
    while True:
        more = work()
        done += more
        spent_ns = clock.process_ns() - began_ns
        if not more or spent_ns >= seconds * NS_PER_S:
            return done * NS_PER_S / max(spent_ns, 1)


def by_turns(
    contenders: Mapping[str, Callable[[], int]], *, seconds: float, rounds: int
) -> Rates:
    """Return each contender's rates, one for each round, measured by turns."""
    rates: Rates = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            rates[name].append(per_second(work, seconds))
    return rates


def median_rate(rates: Rates, name: str) -> float:
    """Return the rate of a contender in the middle one of its rounds."""
    return median(rates[name])


def median_ratio(rates: Rates, name: str, base: str) -> float:
    """Return how many times the base's rate a contender's is, round by round."""
    return median(
        one / other for one, other in zip(rates[name], rates[base], strict=True)
    )
