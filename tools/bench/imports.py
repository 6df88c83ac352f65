"""How long importing wheeldb takes, and what takes it.

    python -m tools.bench.imports [--rounds 7] [--top 12]

By turns a new interpreter imports nothing, asyncio (the baseline) and wheeldb; each
figure is the median of the rounds, without the start of the interpreter itself. Then
the modules that take longest by themselves, as `python -X importtime` tells; it takes
more time itself, so those say what is worth a look, not what it costs.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.places import parser_for, print_table
from tools.bench.table import Table

__all__ = ("main",)

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"nothing": "pass", "asyncio": "import asyncio", "wheeldb": "import wheeldb"}


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--top", type=int, default=12)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(options.rounds):
        for name, program in PROGRAMS.items():
            began = time.perf_counter()
            _python("-c", program)
            times[name].append((time.perf_counter() - began) * 1000)
    base_ms = median(times["nothing"])
    asyncio_ms = median(times["asyncio"]) - base_ms
    wheeldb_ms = median(times["wheeldb"]) - base_ms
    table = Table(
        title=f"import, median of {options.rounds} rounds",
        columns=("module", "ms", "/ asyncio"),
        rows=(
            ("wheeldb", wheeldb_ms, wheeldb_ms / asyncio_ms),
            ("asyncio", asyncio_ms, 1.0),
            ("python itself", base_ms, base_ms / asyncio_ms),
        ),
        notes=tuple(slowest(options.top)),
    )
    print_table(table, options)


def slowest(count: int) -> list[str]:
    """Return a line for each of the modules that take longest by themselves."""
    report = _python("-X", "importtime", "-c", PROGRAMS["wheeldb"])
    modules = []
    for line in report.splitlines():
        own, _, name = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            modules.append((int(own), name.strip()))
    modules.sort(reverse=True)
    return [f"{own_us / 1000:6.1f} ms  {name}" for own_us, name in modules[:count]]


def _python(*arguments: str) -> str:
    """Run a new interpreter in the checkout and return its standard error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stderr


if __name__ == "__main__":
    main()
