"""`schedule_many`, against packing the same tasks and one write and sync a batch.

    python -m tools.bench.many [--tasks 100000] [--batch 1000] [--rounds 5]

Two contenders take turns with the same tasks, made beforehand:

store   `db.schedule_many(batch)`, default options, generated ids. Given twice: the
        calls alone, with the checkpoints that fall into them, and the whole, where a
        round ends with a checkpoint, so that all the work its tasks cause is in it.
bare    The record of each task as a log without columns would keep it (a map of id,
        name, queue, payload, due time, time of creation and state), a batch packed by
        msgpack in one call, one pwrite and one fdatasync. Nothing is judged, kept in
        memory or found again.
"""

import math
import os
import sys
import time
from pathlib import Path
from statistics import median

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgpack

import wheeldb
from tools.bench.places import new_tasks, parser_for, print_table, scratch
from tools.bench.table import Table
from wheeldb.cli.measuring import BareLog, bare_log

__all__ = ("main", "measure")


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="for each round")
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with scratch(options.directory) as directory:
        table = measure(directory, options.tasks, options.batch, options.rounds)
    print_table(table, options)


def measure(directory: str, count: int, batch: int, rounds: int) -> Table:
    """Return the table."""
    tasks = new_tasks(0, count)
    batches = [tasks[start : start + batch] for start in range(0, count, batch)]
    records = [records_of(one) for one in batches]
    calls: list[float] = []
    whole: list[float] = []
    bare: list[float] = []
    with (
        wheeldb.open(os.path.join(directory, "store")) as db,
        bare_log(os.path.join(directory, "bare")) as log,
    ):
        for _ in range(rounds):
            began = time.perf_counter()
            for one in batches:
                db.schedule_many(one)
            calls.append(time.perf_counter() - began)
            db.checkpoint()
            whole.append(time.perf_counter() - began)
            began = time.perf_counter()
            for batch_records in records:
                append_packed(log, batch_records)
            bare.append(time.perf_counter() - began)
        checkpoints = db.statistics().checkpoints
    rows = [
        ("store", count / median(whole), _us(whole, count), _ratio(bare, whole)),
        ("calls alone", count / median(calls), _us(calls, count), _ratio(bare, calls)),
        ("bare", count / median(bare), _us(bare, count), 1.0),
    ]
    return Table(
        title=f"{count:,} tasks, {batch:,} a call, median of {rounds} rounds",
        columns=("contender", "tasks/s", "us a task", "ratio to bare"),
        rows=tuple(rows),
        notes=(f"{checkpoints} checkpoints in all.",),
    )


def records_of(tasks: list[wheeldb.NewTask]) -> list[dict[str, object]]:
    """Return what a log without columns would keep of the tasks."""
    now_ms, ceil = time.time_ns() // 1_000_000, math.ceil
    return [
        {
            "id": f"t{number:014x}",
            "name": task.name,
            "queue": "default",
            "payload": task.payload,
            "due": now_ms + ceil(task.options["delay"] * 1000),  # type: ignore[arg-type]
            "created": now_ms,
            "state": "scheduled",
        }
        for number, task in enumerate(tasks)
    ]


def append_packed(log: BareLog, records: list[dict[str, object]]) -> None:
    """Pack the records in one call, write them and sync."""
    packed = msgpack.packb(records)
    assert isinstance(packed, bytes)
    log.append(packed)


def _us(seconds: list[float], count: int) -> float:
    return median(seconds) / count * 1e6


def _ratio(bare: list[float], store: list[float]) -> float:
    return median(one / other for one, other in zip(bare, store, strict=True))


if __name__ == "__main__":
    main()
