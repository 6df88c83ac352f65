"""Tables of costs and ratios, as text for people and as JSON for programs.

A benchmark measures some costs of its *subject* and of what it is compared with, and
leaves the arithmetic and the layout to this module::

    table = ratio_table(
        "1,000 timers",
        {"insert, ns": {"wheel": 250.0, "heapq": 500.0}},
        subject="wheel",
    )
    print(table.text())

    1,000 timers
    measure     wheel  heapq  heapq / wheel
    ----------  -----  -----  -------------
    insert, ns    250    500           2.00

A ratio says how many times the subject's cost the other one's is: above 1 the subject
is cheaper. It measures nothing itself and draws no conclusions.
"""

import argparse
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ("Cell", "Table", "add_json_option", "ratio", "ratio_table")

Cell = str | int | float | None
"""What a table holds; None is a figure that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table.

    Attributes:
        title: What was measured, with the sizes that matter.
        columns: The heads; the first column names the rows.
        rows: As many cells each as there are columns.
        notes: Sentences printed below.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table as lines of text, figures flush right."""
        heads = list(self.columns)
        body = [[_shown(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
        rule = ["-" * width for width in widths]
        lines = [self.title]
        for cells in (heads, rule, *body):
            first, *others = (
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            lines.append("  ".join((first, *others)).rstrip())
        return "\n".join((*lines, *self.notes))

    def json(self) -> str:
        """Return the table as a JSON object, rows as objects keyed by the heads.

        Python, machine and number of CPUs are named beside it.
        """
        return json.dumps(
            {
                "title": self.title,
                "rows": [
                    dict(zip(self.columns, row, strict=True)) for row in self.rows
                ],
                "notes": self.notes,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "cpu_count": os.cpu_count(),
            },
            indent=2,
            ensure_ascii=False,
        )


def ratio_table(
    title: str,
    costs: Mapping[str, Mapping[str, float]],
    *,
    subject: str,
    notes: tuple[str, ...] = (),
) -> Table:
    """Return a table of costs, with ratios to those of `subject`.

    Args:
        title: What was measured.
        costs: For each measure, the cost by contender, less being better. A contender
            may lack a measure; the subject may not.
        subject: The contender that the others are divided by; it stands first.
        notes: Sentences to print below.
    """
    others = list(
        dict.fromkeys(name for row in costs.values() for name in row if name != subject)
    )
    columns = ["measure", subject]
    for name in others:
        columns += [name, f"{name} / {subject}"]
    rows = []
    for measure, by_name in costs.items():
        base = by_name[subject]
        row: list[Cell] = [measure, base]
        for name in others:
            cost = by_name.get(name)
            row += [cost, None if cost is None else ratio(cost, base)]
        rows.append(tuple(row))
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), notes=notes)


def ratio(cost: float, base: float) -> float | None:
    """Return how many times the base a cost is; None where the base is nothing.

    A file system in memory writes no bytes to a disk, for instance.
    """
    return cost / base if base else None


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to the options of a benchmark."""
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object instead of a table"
    )


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) < 100 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
