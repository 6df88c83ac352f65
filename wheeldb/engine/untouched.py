"""Tasks that nothing has happened to since they were scheduled, on their way out.

A checkpoint after a call about a thousand tasks has their columns still in one piece.
It cuts them into blocks (`wheeldb.index.blocks`), whose due times go into runs, so that
nothing is made for a single task::

    columns   0 1 2 3 4 5 … 63 64 … 999        3 and 5 have ended meanwhile
    blocks    [0 1 2 · 4 · … 63] [64 … 127] …  [960 … 999]

What doesn't make a block is left to the caller: too few of an event in one place,
payloads that are too long for several to share a page.
"""

from itertools import compress
from typing import Any

from wheeldb.engine.columns import Columns
from wheeldb.engine.digests import Digests
from wheeldb.events import F
from wheeldb.index.blocks import (
    BLOCK_BYTES_MAX,
    BLOCK_TASKS_MAX,
    BLOCK_TASKS_MIN,
    Block,
)
from wheeldb.index.changes import Changes
from wheeldb.index.keys import BLOCK, DUE, RUN, row_digest
from wheeldb.index.runs import DueGroups

__all__ = ("Blocks",)


class Blocks:
    """Collects blocks and runs for one checkpoint."""

    def __init__(self, changes: Changes, digests: Digests) -> None:
        self._changes = changes
        self._digests = digests
        self._dues = DueGroups()

    def cut(
        self, columns: Columns, gone: set[int], lane: int, far_ms: int
    ) -> list[int]:
        """Cut an event's columns into blocks; return the numbers that fit in none.

        Args:
            columns: Tasks of one lane, none of them due before 1970.
            gone: Positions of those that have ended or were changed.
            lane: The lane.
            far_ms: From which due time on they are rounded coarsely.
        """
        left: list[int] = []
        shared, lists = columns.split()
        start, size = 0, BLOCK_TASKS_MAX
        while start < columns.count:
            stop = min(start + size, columns.count)
            missing = [at for at in range(start, stop) if at in gone] if gone else []
            there = stop - start - len(missing)
            body = b""
            if there >= BLOCK_TASKS_MIN:
                pieces = {field: column[start:stop] for field, column in lists.items()}
                block = Block(columns.first + start, far_ms, shared, pieces)
                for position in missing:
                    block.drop(columns.first + position)
                body = _body_of(block)
                if not body and size > BLOCK_TASKS_MIN:
                    # The tasks of one event are much alike: so it stays.
                    size //= 2
                    continue
            if body:
                self.put(block, body, lane)
            else:
                left += [
                    columns.first + at for at in range(start, stop) if at not in gone
                ]
            start = stop
        return left

    def put(self, block: Block, body: bytes, lane: int) -> None:
        """Put a block of tasks of one lane; blocks come in order.

        Args:
            block: The block.
            body: What it is packed to.
            lane: The lane.
        """
        self._changes.block_rows.append(block.row(body))
        self._digests.add(BLOCK, row_digest(block.first, block.crc))
        payloads = block.columns[F.PAYLOAD]
        dues_ms: Any = block.columns.get(F.DUE)
        if dues_ms is None:
            dues_ms = [block.shared[F.DUE]] * len(payloads)
        tasks = zip(range(block.first, block.end), dues_ms, strict=True)
        if None in payloads:
            tasks = compress(tasks, [one is not None for one in payloads])  # type: ignore[assignment]
        self._dues.add(lane, block.far_ms, tasks)

    def finish(self) -> None:
        """Put the runs, and the rows of due times that make none."""
        rows = self._dues.rows()
        self._changes.run_rows += rows.runs
        self._digests.add(RUN, rows.runs_digest, len(rows.runs))
        self._changes.due_rows += rows.singles
        self._digests.add(DUE, rows.singles_digest, len(rows.singles))


def _body_of(block: Block) -> bytes:
    """Return what a block is packed to, nothing if that is too long."""
    payloads: list[bytes | None] = block.columns[F.PAYLOAD]  # type: ignore[assignment]
    # Not packed to find that out: a payload may be large.
    if sum(map(len, filter(None, payloads))) > BLOCK_BYTES_MAX:
        return b""
    body = block.pack()
    return body if len(body) <= BLOCK_BYTES_MAX else b""
