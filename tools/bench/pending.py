"""What a million pending tasks cost: memory, opening, and the index's writes.

    python -m tools.bench.pending [--tasks 1000000] [--directory DIR]

Every line is measured in a process of its own, so that none has the memory of another:

loaded        Anonymous memory (RssAnon) right after scheduling all of them, 1,000 a
              call, everything at its default.
opened        The same after opening the store, and the time of `open()` after a clean
              close, wheeldb being imported already.
killed        The same after a SIGKILL in the midst of scheduling.
in memory     The baseline for memory: the same tasks in a heap and a dict.
reading       The baseline for opening: the log and the index read once, not parsed.

Then the bytes that a checkpoint of 25,000 new tasks writes to the disk for each, with
few and with many pending (write_bytes of /proc/self/io around the checkpoint).
"""

import argparse
import contextlib
import gc
import heapq
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import wheeldb
from tools.bench.places import (
    bytes_written,
    new_tasks,
    parser_for,
    print_table,
    scratch,
)
from tools.bench.table import Cell, Table, ratio

__all__ = ("main",)

ROOT = Path(__file__).resolve().parents[2]
BATCH = 1_000
Figures = dict[str, float]


def main() -> None:
    """Measure as the command line says and print the table, or be one of its parts."""
    parser = parser_for(__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=50_000, help="for the writes")
    parser.add_argument("--many", type=int, default=700_000)
    parser.add_argument("--entries", type=int, default=25_000, help="of a checkpoint")
    parser.add_argument("--part", choices=sorted(_PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(_PARTS[options.part](options)), flush=True)
        return
    with scratch(options.directory) as directory:
        table = _measure(directory, options)
    print_table(table, options)


def _measure(directory: str, options: argparse.Namespace) -> Table:
    store = os.path.join(directory, "store")
    loaded = _run("load", store, options)
    opened = _run("open", store, options)
    _run_and_kill(store, options)
    reading = _run("read", store, options)
    killed = _run("open", store, options)
    memory = _run("heap", store, options)
    writes = _run("writes", os.path.join(directory, "writes"), options)

    def mb(figures: Figures) -> tuple[Cell, Cell]:
        return figures["anonymous_mb"], figures["anonymous_mb"] / memory["anonymous_mb"]

    def opening(figures: Figures) -> tuple[Cell, Cell]:
        return figures["open_s"], figures["open_s"] / reading["read_s"]

    rows = (
        ("loaded", *mb(loaded), None, None),
        ("opened", *mb(opened), *opening(opened)),
        ("killed", *mb(killed), *opening(killed)),
        ("in memory", *mb(memory), None, None),
        ("reading", None, None, reading["read_s"], 1.0),
    )
    few, many = writes["few_bytes"], writes["many_bytes"]
    times = ratio(many, few)
    return Table(
        title=f"{options.tasks:,} pending tasks",
        columns=("what", "MB", "/ in memory", "open s", "/ reading"),
        rows=rows,
        notes=(
            f"A checkpoint writes {few:,.0f} bytes a task with {options.few:,} "
            f"pending, {many:,.0f} with {options.many:,}: "
            f"{'-' if times is None else f'{times:.2f}'} times that.",
        ),
    )


def _command(part: str, store: str, options: argparse.Namespace) -> list[str]:
    arguments = [sys.executable, "-m", "tools.bench.pending", "--part", part]
    for name in ("tasks", "few", "many", "entries"):
        arguments += [f"--{name}", str(getattr(options, name))]
    return [*arguments, "--directory", store]


def _run(part: str, store: str, options: argparse.Namespace) -> Figures:
    done = subprocess.run(
        _command(part, store, options), cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def _run_and_kill(store: str, options: argparse.Namespace) -> None:
    """Have more tasks scheduled, and kill that in the midst of it."""
    with subprocess.Popen(
        _command("go on", store, options), cwd=ROOT, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None, "it was asked for"
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)


# The parts, each in a process of its own.


def _load(options: argparse.Namespace) -> Figures:
    with wheeldb.open(options.directory) as db:
        for first in range(0, options.tasks, BATCH):
            db.schedule_many(new_tasks(first, min(BATCH, options.tasks - first)))
        return {"anonymous_mb": anonymous_mb()}


def _open(options: argparse.Namespace) -> Figures:
    began = time.perf_counter()
    with wheeldb.open(options.directory) as db:
        open_s = time.perf_counter() - began
        pending = db.statistics().pending_count
        if pending < options.tasks:
            message = f"{pending} tasks are pending, {options.tasks} were scheduled"
            raise RuntimeError(message)
        return {"anonymous_mb": anonymous_mb(), "open_s": open_s}


def _go_on(options: argparse.Namespace) -> Figures:
    with wheeldb.open(options.directory) as db:
        # Up to the middle between two checkpoints, as on average.
        end = options.tasks + options.entries // 2
        for first in range(options.tasks, end, BATCH):
            db.schedule_many(new_tasks(first, BATCH))
        print(flush=True)
        while True:
            db.schedule("order.unshipped", {"order": 0, "k": "abc"}, delay=60)


def _heap(options: argparse.Namespace) -> Figures:
    heap: list[tuple[float, int]] = []
    tasks: dict[int, tuple[str, object]] = {}
    for first in range(0, options.tasks, BATCH):
        batch = new_tasks(first, min(BATCH, options.tasks - first))
        for number, task in enumerate(batch, first):
            delay = task.options["delay"]
            assert isinstance(delay, float), "as `new_tasks` makes them"
            heapq.heappush(heap, (delay, number))
            tasks[number] = (task.name, task.payload)
    return {"anonymous_mb": anonymous_mb()}


def _read(options: argparse.Namespace) -> Figures:
    began = time.perf_counter()
    for path in sorted(Path(options.directory).rglob("*")):
        if path.suffix in (".seg", ".mdb"):
            with path.open("rb") as file:
                while file.read(2**20):
                    pass
    return {"read_s": time.perf_counter() - began}


def _writes(options: argparse.Namespace) -> Figures:
    figures = {}
    with wheeldb.open(options.directory, driver=False) as db:
        first = 0
        for name, pending in (("few", options.few), ("many", options.many)):
            while first < pending:
                db.schedule_many(new_tasks(first, BATCH))
                first += BATCH
                if first % options.entries == 0:
                    db.checkpoint()
            db.checkpoint()
            for end in range(first + BATCH, first + options.entries + 1, BATCH):
                db.schedule_many(new_tasks(first, BATCH))
                first = end
            before = bytes_written()
            db.checkpoint()
            figures[f"{name}_bytes"] = (bytes_written() - before) / options.entries
    return figures


_PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "load": _load,
    "open": _open,
    "go on": _go_on,
    "heap": _heap,
    "read": _read,
    "writes": _writes,
}


def anonymous_mb() -> float:
    """Return the process's memory that no file stands behind, in MB."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024 / 1e6
    message = "/proc/self/status has no RssAnon; this needs Linux"
    raise OSError(message)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
