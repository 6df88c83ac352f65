"""What the benchmarks share: where to write, what to schedule, how to count it.

They write to the file system that the checkout lies on, or to ``--directory``: in a
file system of memory a sync costs nothing, and every ratio to it would mislead.
"""

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.bench.table import Table, add_json_option
from wheeldb import NewTask

__all__ = ("bytes_written", "new_tasks", "parser_for", "print_table", "scratch")

SPAN_S = 30 * 86_400
# An odd step that spreads the tasks over the span, the same ones in every run.
_STEP_S = 104_729.25


def parser_for(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark on a disk has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--directory", default=".", help="where to write, the current one unless given"
    )
    add_json_option(parser)
    return parser


@contextlib.contextmanager
def scratch(directory: str) -> Iterator[str]:
    """Return a new directory for the length of a block."""
    path = tempfile.mkdtemp(prefix="wheeldb-bench-", dir=os.path.abspath(directory))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def new_tasks(first: int, count: int) -> list[NewTask]:
    """Return tasks due within the next thirty days, each at another time."""
    return [
        NewTask(
            "order.unshipped",
            {"order": number, "k": "abc"},
            delay=60 + number * _STEP_S % SPAN_S,
        )
        for number in range(first, first + count)
    ]


def bytes_written() -> int:
    """Return the bytes that this process caused to be written to a disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    message = "/proc/self/io has no write_bytes; this needs Linux"
    raise OSError(message)


def print_table(table: Table, options: argparse.Namespace) -> None:
    """Print a table in the way that was asked for."""
    print(table.json() if options.json else table.text())
