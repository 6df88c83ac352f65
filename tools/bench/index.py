"""How fast the index takes a checkpoint, and how many bytes that writes.

    python tools/bench/index.py [--pending 50000 700000] [--directory DIR]

For each number of pending tasks and each kind of due key (exact; coarse, as wheeldb
uses it) an index is filled with tasks due at random moments of the next 30 days.  Then
four checkpoints bring 25,000 new tasks each, and four take away the 25,000 that are due
first.  One line for each: tasks a second and the bytes that went to the disk for each
task (`write_bytes` of /proc/self/io, whole pages), coming and going; the size of the
file; how long the digests of all rows take.
"""

import argparse
import heapq
import random
import shutil
import tempfile
import time
from pathlib import Path

from wheeldb.disk import OsDisk
from wheeldb.index import Changes, LmdbIndex, due_field

LANE = 16
BODY = b"x" * 100
CHECKPOINT_TASKS = 25_000
CHECKPOINTS = 4
SPAN_MS = 30 * 86_400_000


class Pending:
    """What is in the index, so that the tasks due first can be taken away."""

    def __init__(self, *, coarse: bool) -> None:
        self._coarse = coarse
        self._dice = random.Random(1)
        self._number = 0
        self._now = 0
        # Due time, due field and number, the first due on top.
        self._tasks: list[tuple[int, int, int]] = []

    def come(self, count: int) -> Changes:
        """Return a checkpoint with new tasks."""
        changes = Changes(meta={"lsn": b"1"})
        for _ in range(count):
            self._number += 1
            due = self._now + self._dice.randrange(SPAN_MS)
            field = due_field(due, self._now) if self._coarse else due
            heapq.heappush(self._tasks, (due, field, self._number))
            changes.put_tasks.append((self._number, self._number, BODY))
            changes.put_due.append((LANE, field, self._number, due))
        return changes

    def go(self, count: int) -> Changes:
        """Return a checkpoint in which the tasks due first are gone."""
        changes = Changes(meta={"lsn": b"2"})
        for _ in range(count):
            self._now, field, number = heapq.heappop(self._tasks)
            changes.delete_tasks.append(number)
            changes.delete_due.append((LANE, field, number))
        return changes


def main() -> None:
    """Run every combination and print a line for each."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pending", type=int, nargs="+", default=[50_000, 700_000])
    parser.add_argument("--directory", help="where to write; default: as tempfile says")
    arguments = parser.parse_args()
    print(
        "  pending due keys |  new/s bytes/task | gone/s bytes/task | file MB digest s"
    )
    for pending in arguments.pending:
        for coarse in (False, True):
            directory = tempfile.mkdtemp(dir=arguments.directory)
            try:
                print(measure(f"{directory}/index", pending, coarse=coarse), flush=True)
            finally:
                shutil.rmtree(directory)


def measure(path: str, pending: int, *, coarse: bool) -> str:
    """Fill an index, make the checkpoints and return the line."""
    index = LmdbIndex.create(path, disk=OsDisk())
    tasks = Pending(coarse=coarse)
    for start in range(0, pending, CHECKPOINT_TASKS):
        index.apply(tasks.come(min(CHECKPOINT_TASKS, pending - start)))

    new = [apply(index, tasks.come(CHECKPOINT_TASKS)) for _ in range(CHECKPOINTS)]
    gone = [apply(index, tasks.go(CHECKPOINT_TASKS)) for _ in range(CHECKPOINTS)]
    began = time.perf_counter()
    with index.snapshot() as view:
        view.digests()
    digest_s = time.perf_counter() - began
    size_mb = index.statistics().bytes / 1e6
    index.close()
    return (
        f"{pending:>9} {'coarse' if coarse else 'exact':>8} | {rates(new)} | "
        f"{rates(gone)} | {size_mb:>7,.0f} {digest_s:>8.1f}"
    )


def apply(index: LmdbIndex, changes: Changes) -> tuple[float, int]:
    """Apply one checkpoint and return the seconds it took and the bytes it wrote."""
    bytes_before, began = bytes_written(), time.perf_counter()
    index.apply(changes)
    return time.perf_counter() - began, bytes_written() - bytes_before


def rates(checkpoints: list[tuple[float, int]]) -> str:
    """Return tasks a second and bytes a task over some checkpoints."""
    total = len(checkpoints) * CHECKPOINT_TASKS
    took_s = sum(seconds for seconds, _ in checkpoints)
    written = sum(count for _, count in checkpoints)
    return f"{total / took_s:>6,.0f} {written / total:>10,.0f}"


def bytes_written() -> int:
    """Return the bytes that this process caused to be written to a disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    message = "/proc/self/io has no write_bytes; this needs Linux"
    raise OSError(message)


if __name__ == "__main__":
    main()
