"""What is wrong with an index: every rule that its tables keep between each other.

Each rule is one pass over the tables it is about, in key order.  What a pass has to
compare with all of another table is summed up, not kept: equal sums over the numbers of
tasks and over those of due times leave no room for one too few here and too many there.
Only if they differ are the due times looked up one by one, to name those that lead
nowhere.  `Snapshot.check` says what holds when nothing is found.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wheeldb.index.keys import (
    BLOCK,
    DIGEST_MASK,
    DUE,
    FINISHED,
    ID,
    RUN,
    TASK,
    due_key_parts,
    id_key_parts,
    number_digest,
    number_key_part,
)

if TYPE_CHECKING:
    from wheeldb.index.snapshot import Snapshot

__all__ = ("findings_of",)


def findings_of(view: "Snapshot") -> Iterator[str]:
    """Yield what is wrong between the rows that a view sees, each of which checks.

    Raises:
        IndexDamaged: If a row is damaged or can't be read.
    """
    yield from _check_blocks(view)
    yield from _check_runs(view)
    yield from _check_due(view)
    yield from _check_ids(view)


def _check_blocks(view: "Snapshot") -> Iterator[str]:
    """Yield blocks that overlap, and tasks that a block and a row of their own know."""
    end = 0
    for key, value in view.scan(BLOCK, b""):
        block = view.block(key, value)
        if block.first < end:
            yield f"block {block.first} begins below {end}, where the last one ends"
        end = block.end
        numbers = block.numbers()
        if not numbers:
            yield f"block {block.first} is empty"
        for number in numbers:
            if view.has_row(TASK, number):
                yield f"task {number} is in a block and has a row of its own"


def _check_runs(view: "Snapshot") -> Iterator[str]:
    """Yield runs that are out of order, in themselves or with the one before."""
    before, last = b"", -1
    for key, value in view.scan(RUN, b""):
        numbers = view.run(key, value).numbers()
        lane, field, first = due_key_parts(key)
        if key[:12] != before:
            before, last = key[:12], -1
        if first <= last or any(
            number <= one
            for one, number in zip([last, *numbers], numbers, strict=False)
        ):
            yield f"run {lane}/{field}/{first} is not behind the one before"
        last = numbers[-1]


def _check_due(view: "Snapshot") -> Iterator[str]:
    balance = tasks = dues = 0
    for number in _task_numbers(view):
        tasks += 1
        balance += number_digest(number)
    for _, number in _due_numbers(view):
        dues += 1
        balance -= number_digest(number)
    if balance & DIGEST_MASK == 0:
        return
    for key, number in _due_numbers(view):
        if not view.has_task(number):
            lane, field, _ = due_key_parts(key)
            yield f"due time {lane}/{field} names task {number}: no such"
    yield (
        f"{tasks} tasks and {dues} due times: not every task has exactly one due time"
    )


def _task_numbers(view: "Snapshot") -> Iterator[int]:
    for key, _ in view.scan(TASK, b""):
        yield number_key_part(key)
    for key, value in view.scan(BLOCK, b""):
        yield from view.block(key, value).numbers()


def _due_numbers(view: "Snapshot") -> Iterator[tuple[bytes, int]]:
    """Yield the key and the task's number of every due time."""
    for key, _ in view.scan(DUE, b""):
        yield key, due_key_parts(key)[2]
    for key, value in view.scan(RUN, b""):
        for number in view.run(key, value).numbers():
            yield key, number


def _check_ids(view: "Snapshot") -> Iterator[str]:
    finished = 0
    for key, value in view.scan(ID, b""):
        _, number = id_key_parts(key)
        if not value:
            if not view.has_task(number):
                yield f"id row {key.hex()} names task {number}: no such"
            continue
        finished += 1
        lsn = number_key_part(value)
        if not view.has_row(FINISHED, lsn):
            yield f"id row {key.hex()} names {lsn}, not in table finished"
    if finished != view.count(FINISHED):
        yield f"{finished} finished id rows and {view.count(FINISHED)} finished rows"
