"""Which images a record is turned into, and how one is built.

A `Cut` is a moment: the last flush that the disk had answered, and how far the record
had come since. What was written in between is pending, and a draw decides what of it
has reached the disk:

    none       nothing
    all        everything, as after a killed process
    prefix     the first writes
    writes     any of the writes, each whole
    sectors    any of the sectors (512 bytes) of all writes
    torn       some writes, and a part of one more: its start, its end or any sectors

Pieces are applied in the order in which they were written. All is drawn from a source
of chance that the caller has seeded: the same record is cut in the same way.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tools.powercut.record import Entry, Record

__all__ = (
    "SECTOR_BYTES",
    "Builder",
    "Cut",
    "Piece",
    "choose_cuts",
    "copy_sparse",
    "draw_pieces",
)

SECTOR_BYTES = 512

# Of a record's cuts, how many lie right before the next flush, where most is pending.
_LATE_SHARE = 0.7
_MODES = ("none", "all", "prefix", "writes", "sectors", "torn")
_WEIGHTS = (3, 1, 2, 3, 4, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A moment of a record.

    Attributes:
        flush: The number of the flush that is done, 0 for the state before any.
        start: The index behind it.
        end: How far the record had come.
        mode: How the pending writes are drawn.
    """

    flush: int
    start: int
    end: int
    mode: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a pending write that has reached the disk.

    Attributes:
        write: Its number among the pending ones.
        begin: The first byte of it that is kept.
        end: The first that isn't any more.
    """

    write: int
    begin: int
    end: int


def choose_cuts(record: Record, count: int, random: Random) -> list[Cut]:
    """Choose moments all over a record, in order; those where something is at stake.

    At stake is what was written or acknowledged since the flush.
    """
    starts = [0, *(index + 1 for index in record.flushes)]
    ends = [*record.flushes, record.end]
    spans = [
        (number, start, end)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if end > start
    ]
    if not spans:
        return []
    chosen = []
    for position in range(count):
        # One from each of `count` equal parts: no part of the run is left out.
        low = position * len(spans) // count
        high = max((position + 1) * len(spans) // count, low + 1)
        number, start, end = spans[random.randrange(low, min(high, len(spans)))]
        if random.random() > _LATE_SHARE:
            end = random.randint(start, end)
        (mode,) = random.choices(_MODES, _WEIGHTS)
        chosen.append(Cut(flush=number, start=start, end=end, mode=mode))
    return sorted(chosen, key=lambda cut: (cut.flush, cut.end))


def draw_pieces(
    writes: Sequence[Entry],
    mode: str,
    whole: Sequence[tuple[int, int]],
    random: Random,
) -> list[Piece]:
    """Draw what of the pending writes is on the disk.

    Args:
        writes: The pending writes, in order.
        mode: As in the module's table.
        whole: (offset, length) of what is written whole or not at all.
        random: The source of chance.
    """
    pieces = [_whole_piece(i, entry) for i, entry in enumerate(writes)]
    if mode == "none" or not pieces:
        return []
    if mode == "all":
        return pieces
    if mode == "prefix":
        return pieces[: random.randint(0, len(pieces))]
    share = random.choice((0.1, 0.5, 0.9))
    if mode == "writes":
        return [piece for piece in pieces if random.random() < share]
    if mode == "sectors":
        return [
            piece
            for i, entry in enumerate(writes)
            for piece in _sectors(i, entry, whole)
            if random.random() < share
        ]
    assert mode == "torn", mode
    torn = random.randrange(len(pieces))
    # Those before it are there or not as one: a queue in order, or one that isn't.
    keep = random.choice((lambda i: i < torn, lambda i: random.random() < share))
    return _tear(writes, torn, keep, whole, random)


def _tear(
    writes: Sequence[Entry],
    torn: int,
    keep: Callable[[int], bool],
    whole: Sequence[tuple[int, int]],
    random: Random,
) -> list[Piece]:
    kept = []
    for i, entry in enumerate(writes):
        if i == torn:
            sectors = list(_sectors(i, entry, whole))
            at = random.randint(0, len(sectors))
            any_of = [sector for sector in sectors if random.random() < 0.5]
            kept += random.choice((sectors[:at], sectors[at:], any_of))
        elif keep(i):
            kept.append(_whole_piece(i, entry))
    return kept


def _whole_piece(number: int, entry: Entry) -> Piece:
    return Piece(number, 0, entry.length)


def _sectors(
    number: int, entry: Entry, whole: Sequence[tuple[int, int]]
) -> Iterator[Piece]:
    """Yield the sectors of a write; sectors of one superblock come as one piece."""
    begin = 0
    while begin < entry.length:
        end = min(begin + SECTOR_BYTES, entry.length)
        for offset, length in whole:
            if offset <= entry.offset + begin < offset + length:
                end = min(offset + length - entry.offset, entry.length)
        yield Piece(number, begin, end)
        begin = end


class Builder:
    """Builds images of one record, moment by moment, onwards only.

    Args:
        record: The record.
        base: The image on which it began.
        place: Where to keep the state of the last flush, and to build.
    """

    def __init__(self, record: Record, base: Path, place: Path, name: str) -> None:
        self._record = record
        self._durable = place / f"{name}-durable.img"
        self._image = place / f"{name}-image.img"
        self._reached = 0
        copy_sparse(base, self._durable)

    def build(self, cut: Cut, pieces: Sequence[Piece]) -> Path:
        """Return the image of a moment, in a file that the next call overwrites."""
        assert cut.start >= self._reached, "cuts come in order"
        self._apply(
            self._durable,
            (
                (entry.offset, self._record.data(entry))
                for entry in self._record.pending(self._reached, cut.start)
            ),
        )
        self._reached = cut.start
        copy_sparse(self._durable, self._image)
        writes = self._record.pending(cut.start, cut.end)
        self._apply(
            self._image,
            (
                (
                    writes[piece.write].offset + piece.begin,
                    self._record.data(writes[piece.write])[piece.begin : piece.end],
                )
                for piece in pieces
            ),
        )
        return self._image

    @staticmethod
    def _apply(path: Path, writes: Iterator[tuple[int, bytes]]) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in writes:
                os.pwrite(handle, data, offset)
        finally:
            os.close(handle)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file, its holes as holes, over whatever was there."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        end = 0
        while end < size:
            try:
                start = os.lseek(old.fileno(), end, os.SEEK_DATA)
            except OSError:
                # There is no more data.
                return
            end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            os.lseek(new.fileno(), start, os.SEEK_SET)
            os.lseek(old.fileno(), start, os.SEEK_SET)
            left = end - start
            while left:
                left -= os.sendfile(new.fileno(), old.fileno(), None, left)
