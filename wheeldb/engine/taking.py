"""Taking tasks out of the blocks and runs that the index has them in.

A task that was touched since the last checkpoint has no place in a block any more.  The
next checkpoint reads the block as the index has it, lets the task be gone and writes it
back, or deletes it once all are; the run with its due time likewise::

    lifted  9, 11, 70 ─► block 9   9 · 11 … 40   ─► · · · … 40       put
                         block 65  · · · · · 70  ─► nothing          deleted
                         run (16, 8192, 9)  9 11 12                  ─► 12

However many of a block's tasks are touched, it is read and written once; one block at a
time is in memory unpacked.

The digests lose the block that was read and gain the one that is written.  So a block
that the index has lost, or has as it was before, leaves a difference for good, as with
single rows: ``check``, a snapshot and the sweep find it.
"""

from collections.abc import Mapping

from wheeldb.engine.digests import Digests
from wheeldb.engine.lanes import Lanes
from wheeldb.engine.row import Row
from wheeldb.index.changes import Changes, in_order
from wheeldb.index.keys import (
    BLOCK,
    DUE,
    RUN,
    block_field,
    due_digest,
    due_key,
    due_key_parts,
    row_digest,
)
from wheeldb.index.runs import Run
from wheeldb.index.snapshot import Index, Snapshot

__all__ = ("take_out",)


def take_out(
    lifted: Mapping[int, tuple[Row, int]],
    lanes: Lanes,
    index: Index,
    changes: Changes,
    digests: Digests,
) -> set[int]:
    """Take out of blocks and runs what the index has there; return those numbers.

    Args:
        lifted: What the index has, by number, of tasks that were touched since.
        lanes: The numbers of lanes.
        index: As of the last checkpoint.
        changes: Takes the blocks and runs to write, and those to delete.
        digests: Follow.

    Raises:
        IndexDamaged: If a block or a run is damaged or can't be read.
    """
    # One with a higher LSN was touched before, and left its block then.
    numbers = [number for number, (old, _) in lifted.items() if old.lsn == number]
    if not numbers:
        return set()
    with index.snapshot() as view:
        fields = _take_tasks(view, in_order(numbers), changes, digests)
        due_keys = []
        for number, far_ms in fields.items():
            old, _ = lifted[number]
            field = block_field(old.due_ms, far_ms)
            due_keys.append(due_key(lanes.of_row(old), field, number))
        dues_ms = {number: lifted[number][0].due_ms for number in fields}
        _take_dues(view, in_order(due_keys), dues_ms, changes, digests)
    return set(fields)


def _take_tasks(
    view: Snapshot, numbers: list[int], changes: Changes, digests: Digests
) -> dict[int, int]:
    """Take tasks out of blocks; return those that were there, with their ``far_ms``."""
    taken: dict[int, int] = {}
    place = 0
    while place < len(numbers):
        block = view.block_at(numbers[place])
        if block is None:
            place += 1
            continue
        has_lost = False
        while place < len(numbers) and numbers[place] < block.end:
            number = numbers[place]
            place += 1
            if block.holds(number):
                block.drop(number)
                taken[number] = block.far_ms
                has_lost = True
        if has_lost:
            digests.subtract(BLOCK, row_digest(block.first, block.crc))
            if block.numbers():
                changes.block_rows.append(block.row(block.pack()))
                digests.add(BLOCK, row_digest(block.first, block.crc))
            else:
                changes.delete_blocks.append(block.first)
    return taken


def _take_dues(
    view: Snapshot,
    due_keys: list[bytes],
    dues_ms: Mapping[int, int],
    changes: Changes,
    digests: Digests,
) -> None:
    """Take due times out of runs, or delete their rows."""
    place = 0
    while place < len(due_keys):
        lane, field, number = due_key_parts(due_keys[place])
        run = view.run_at(lane, field, number)
        there = set() if run is None else set(run.numbers())
        # Whatever lies in its range is looked for in it now: it is read once.
        end = due_key(lane, field, max([number, *there]))
        gone = set()
        while place < len(due_keys) and due_keys[place] <= end:
            number = due_key_parts(due_keys[place])[2]
            place += 1
            if number in there:
                gone.add(number)
            else:
                changes.delete_due.append((lane, field, number))
                digest = due_digest(lane, field, number, dues_ms[number])
                digests.subtract(DUE, digest)
        if run is not None and gone:
            _write_run_back(run, lane, gone, changes, digests)


def _write_run_back(
    run: Run, lane: int, gone: set[int], changes: Changes, digests: Digests
) -> None:
    digests.subtract(RUN, row_digest(run.first, run.crc))
    left = run.without(gone)
    if left is None:
        changes.delete_runs.append((lane, run.field, run.first))
        return
    value, crc = left
    changes.run_rows.append((run.key, value))
    digests.add(RUN, row_digest(run.first, crc))
