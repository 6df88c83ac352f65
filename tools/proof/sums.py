"""The sums over the record, as the README has them.

    | tried on format 1 | so far | violations |
    | --- | --- | --- |
    | images of simulated power cuts | 434,918, of them 288,518 in a recovery | none |
    | power cuts under ext4 | 1,200, of them 200 in a recovery | 1, none open |
    | planted faults that a test saw | 45 | none |

Sums are over the slices that have passed, on any commit, each slice once for a commit;
only the planted faults are told apart by name. A violation is counted for ever; it is
*open* until its slice has passed on a later commit.
"""

from collections.abc import Iterable, Iterator, Sequence

from tools.powercut.filesystems import FILESYSTEMS
from tools.proof.record import PASSED, Line, name_of, open_violations

__all__ = ("BEGIN", "END", "filled", "table_of")

BEGIN = "<!-- Written by `python -m tools.proof --readme`. -->\n"
END = "<!-- The end of what it writes. -->\n"


def table_of(lines: Sequence[Line], format_version: int) -> str:
    """Return the table for one format."""
    ours = [line for line in lines if line["format"] == format_version]
    passed = list(_once([line for line in ours if line["verdict"] == PASSED]))
    deep = _sum(passed, "deep_images")
    images = _with_deep(_sum(passed, "images") + deep, deep)
    rows = [
        ("images of simulated power cuts", images, _violations(ours, "cuts")),
        _row("calls of a file system that fail", "faults", ours, passed, "faults"),
    ]
    for name in FILESYSTEMS:
        under = [line for line in passed if line["of"] == name]
        cuts = _with_deep(_sum(under, "power_cuts"), _sum(under, "recovery_cuts"))
        found = _violations(ours, "powercuts", name)
        rows.append((f"power cuts under {name}", cuts, found))
    killed = f"{len(_killed(passed)):,}"
    rows += [
        _row("damaged bits, bytes, ends of files", "bitrot", ours, passed, "damages"),
        _row("damages of the index's file", "index", ours, passed, "damages"),
        ("planted faults that a test saw", killed, _violations(ours, "mutants")),
    ]
    head = (f"tried on format {format_version}", "so far", "violations")
    return "".join(
        f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * 3, *rows)
    )


def filled(text: str, table: str) -> str:
    """Return a text with the table between its two marks.

    Raises:
        ValueError: It has not each mark once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError("the two marks of the table have to be there, once each")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _once(passed: Iterable[Line]) -> Iterator[Line]:
    """Yield no slice twice for one commit, as two runs side by side might leave it."""
    seen = set()
    for line in passed:
        name = (line["commit"], *name_of(line))
        if name not in seen:
            seen.add(name)
            yield line


def _sum(lines: Iterable[Line], name: str) -> int:
    counts = (line.get(name, 0) for line in lines)
    return sum(count for count in counts if isinstance(count, int))


def _with_deep(count: int, deep: int) -> str:
    return f"{count:,}, of them {deep:,} in a recovery"


def _row(
    title: str, kind: str, ours: Sequence[Line], passed: Sequence[Line], name: str
) -> tuple[str, str, str]:
    of_kind = [line for line in passed if line["kind"] == kind]
    return title, f"{_sum(of_kind, name):,}", _violations(ours, kind)


def _killed(passed: Iterable[Line]) -> set[str]:
    names: set[str] = set()
    for line in passed:
        killed = line.get("killed", [])
        if isinstance(killed, list):
            names |= set(killed)
    return names


def _violations(ours: Sequence[Line], kind: str, of: str | None = None) -> str:
    lines = [line for line in ours if line["kind"] == kind and of in (None, line["of"])]
    count = sum(line["verdict"] != PASSED for line in lines)
    if not count:
        return "none"
    return f"{count:,}, {len(open_violations(lines)) or 'none'} open"
