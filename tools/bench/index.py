"""How fast the index takes a checkpoint, and how many bytes that writes.

    python -m tools.bench.index [--pending 50000 700000] [--directory DIR]

For each number of pending tasks an index is filled with tasks due at random moments of
the next 30 days, in three ways:

exact    Each task has a row, and one under its exact due time: the baseline.
coarse   The same with due fields that are rounded down, as for tasks that come singly.
blocks   Tasks in blocks and their due times in runs, as for tasks that come by the
         thousand. Packing them, and taking them out of their blocks, is counted in.

Then four checkpoints bring 25,000 new tasks each, and four take away the 25,000 that
are due first. For each: tasks a second and the bytes that went to the disk for each
task (`write_bytes` of /proc/self/io, whole pages), coming and going; the size of the
file; how long the digests of all rows take.
"""

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.places import bytes_written, parser_for, print_table, scratch
from tools.bench.table import Cell, Table, ratio
from wheeldb.disk import OsDisk
from wheeldb.engine.columns import Columns
from wheeldb.engine.digests import Digests
from wheeldb.engine.lanes import Lanes
from wheeldb.engine.row import Row
from wheeldb.engine.taking import take_out
from wheeldb.engine.untouched import Blocks
from wheeldb.index import Changes, LmdbIndex, due_field
from wheeldb.index.keys import COARSE_MS, far_from

__all__ = ("main", "measure")

LANE = 16
NAME = "order.unshipped"
BODY = b"x" * 100
EVENT_TASKS = 1_000
CHECKPOINTS = 4
SPAN_MS = 30 * 86_400_000

# What makes the changes of a checkpoint, given the index that they are for.
Checkpoint: TypeAlias = Callable[[LmdbIndex], Changes]


class Costs(NamedTuple):
    """What the checkpoints of one index cost: tasks a second, bytes a task."""

    new_per_s: float
    new_bytes: float
    gone_per_s: float
    gone_bytes: float
    file_mb: float
    digests_s: float


class Singly:
    """What is in the index, a row for each task, so that it can be taken away."""

    def __init__(self, *, coarse: bool) -> None:
        self._coarse = coarse
        self._dice = random.Random(1)
        self._number = 0
        self._now = 0
        # Due time, due field and number, the first due on top.
        self._tasks: list[tuple[int, int, int]] = []

    def come(self, count: int) -> Checkpoint:
        """Return a checkpoint with new tasks."""
        changes = Changes(meta={"lsn": b"1"})
        for _ in range(count):
            self._number += 1
            due = self._now + self._dice.randrange(SPAN_MS)
            field = due_field(due, self._now) if self._coarse else due
            heapq.heappush(self._tasks, (due, field, self._number))
            changes.put_tasks.append((self._number, self._number, BODY))
            changes.put_due.append((LANE, field, self._number, due))
        return lambda _: changes

    def go(self, count: int) -> Checkpoint:
        """Return a checkpoint in which the tasks due first are gone."""
        changes = Changes(meta={"lsn": b"2"})
        for _ in range(count):
            self._now, field, number = heapq.heappop(self._tasks)
            changes.delete_tasks.append(number)
            changes.delete_due.append((LANE, field, number))
        return lambda _: changes


class InBlocks:
    """The same in blocks, of tasks that come a thousand a call."""

    def __init__(self) -> None:
        self._dice = random.Random(1)
        self._number = 0
        self._now = 0
        self._lanes = Lanes()
        # The due fields of the few that are in no block.
        self._single: dict[int, int] = {}
        # Due time and number, the first due on top.
        self._tasks: list[tuple[int, int]] = []

    def come(self, count: int) -> Checkpoint:
        """Return a checkpoint with new tasks."""
        events = []
        for start in range(0, count, EVENT_TASKS):
            size = min(EVENT_TASKS, count - start)
            dues = [self._now + self._dice.randrange(SPAN_MS) for _ in range(size)]
            columns = Columns(NAME, [BODY] * size, dues)
            columns.first = self._number + 1
            events.append(columns)
            for due in dues:
                self._number += 1
                heapq.heappush(self._tasks, (due, self._number))
        far_ms, lane = far_from(self._now), self._lanes.number((0, "default", 0))

        def pack(index: LmdbIndex) -> Changes:
            changes = Changes(meta={"lsn": b"1"})
            blocks = Blocks(changes, Digests())
            for columns in events:
                # What is left over of the last call is too few for a block.
                for number in blocks.cut(columns, set(), lane, far_ms):
                    due = columns.due(number - columns.first)
                    field = due_field(due, far_ms - 2 * COARSE_MS)
                    self._single[number] = field
                    changes.put_tasks.append((number, number, BODY))
                    changes.put_due.append((lane, field, number, due))
            blocks.finish()
            return changes

        return pack

    def go(self, count: int) -> Checkpoint:
        """Return a checkpoint in which the tasks due first are gone."""
        lifted = {}
        changes = Changes(meta={"lsn": b"2"})
        for _ in range(count):
            self._now, number = heapq.heappop(self._tasks)
            field = self._single.pop(number, None)
            if field is None:
                lifted[number] = Row(number, NAME, BODY, 0, self._now, 0), 0
            else:
                changes.delete_tasks.append(number)
                changes.delete_due.append((LANE, field, number))

        def take(index: LmdbIndex) -> Changes:
            take_out(lifted, self._lanes, index, changes, Digests())
            return changes

        return take


KINDS: dict[str, Callable[[], Singly | InBlocks]] = {
    "exact": lambda: Singly(coarse=False),
    "coarse": lambda: Singly(coarse=True),
    "blocks": InBlocks,
}


def main() -> None:
    """Run every combination and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--pending", type=int, nargs="+", default=[50_000, 700_000])
    parser.add_argument("--entries", type=int, default=25_000, help="of a checkpoint")
    options = parser.parse_args()
    rows: list[tuple[Cell, ...]] = []
    for pending in options.pending:
        found = {kind: _measure(options, pending, kind) for kind in KINDS}
        exact = found["exact"]
        for name, costs in found.items():
            ratios = (
                ratio(costs.new_bytes, exact.new_bytes),
                ratio(costs.gone_bytes, exact.gone_bytes),
            )
            rows.append((f"{pending:,} {name}", *costs, *ratios))
    table = Table(
        title=f"checkpoints of {options.entries:,} tasks, {CHECKPOINTS} of each kind",
        columns=(
            "pending, kind",
            "new/s",
            "new bytes",
            "gone/s",
            "gone bytes",
            "file MB",
            "digests s",
            "new / exact",
            "gone / exact",
        ),
        rows=tuple(rows),
        notes=("The ratios are those of the bytes a task.",),
    )
    print_table(table, options)


def _measure(options: argparse.Namespace, pending: int, kind: str) -> Costs:
    with scratch(options.directory) as directory:
        return measure(f"{directory}/index", pending, options.entries, kind)


def measure(path: str, pending: int, entries: int, kind: str) -> Costs:
    """Fill an index, make the checkpoints and return what they cost."""
    index = LmdbIndex.create(path, disk=OsDisk())
    tasks = KINDS[kind]()
    for start in range(0, pending, entries):
        apply(index, tasks.come(min(entries, pending - start)))

    new = [apply(index, tasks.come(entries)) for _ in range(CHECKPOINTS)]
    gone = [apply(index, tasks.go(entries)) for _ in range(CHECKPOINTS)]
    began = time.perf_counter()
    with index.snapshot() as view:
        view.digests()
    digests_s = time.perf_counter() - began
    file_mb = index.statistics().bytes / 1e6
    index.close()
    return Costs(*rates(new, entries), *rates(gone, entries), file_mb, digests_s)


def apply(index: LmdbIndex, checkpoint: Checkpoint) -> tuple[float, int]:
    """Apply one checkpoint and return the seconds it took and the bytes it wrote."""
    bytes_before, began = bytes_written(), time.perf_counter()
    index.apply(checkpoint(index))
    return time.perf_counter() - began, bytes_written() - bytes_before


def rates(checkpoints: list[tuple[float, int]], entries: int) -> tuple[float, float]:
    """Return tasks a second and bytes a task over some checkpoints."""
    total = len(checkpoints) * entries
    took_s = sum(seconds for seconds, _ in checkpoints)
    written = sum(count for _, count in checkpoints)
    return total / took_s, written / total


if __name__ == "__main__":
    main()
