"""The lines: what has been tried so far, one line of JSON for each slice.

    {"kind": "cuts", "of": "all", "seed": 0, "slice": 7, "slices": 200,
     "commit": "235f6e0…", "format": 1, "images": 731, "deep_images": 1446,
     "exact": 2031, "refused": 146, "verdict": "passed", "cpu_seconds": 14.26}

A line is appended whole and at once, so that several processes may share the file, and
none is ever changed. A failure's verdict is its text, which names what failed by what
makes it come again.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ("PASSED", "Line", "Record", "commit_of", "name_of", "open_violations")

PASSED = "passed"

Line = dict[str, object]

_NAMES = ("kind", "of", "seed", "slice", "slices")
_ROOMS = ("wheeldb", "tests", "tools")


class Record:
    """The lines of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[Line]:
        """Return every line so far.

        Raises:
            ValueError: One of them is not whole.
        """
        if not self.path.exists():
            return []
        return [
            self._parse(number, text)
            for number, text in enumerate(self.path.read_text().splitlines(), 1)
        ]

    def _parse(self, number: int, text: str) -> Line:
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number}: {error}") from None
        if not isinstance(line, dict):
            raise ValueError(f"{self.path}, line {number}: not an object")
        return line

    def add(self, line: Line) -> None:
        """Append a line."""
        data = (json.dumps(line, ensure_ascii=False) + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if os.write(handle, data) != len(data):
                raise OSError(f"{self.path} took only a part of a line")
        finally:
            os.close(handle)


def name_of(line: Line) -> tuple[object, ...]:
    """Return by what a slice is known, on whatever commit it was run."""
    return tuple(line.get(name) for name in _NAMES)


def open_violations(lines: Sequence[Line]) -> list[Line]:
    """Return the violations whose slice has not passed since, on another commit.

    A second try on the same commit closes nothing: what comes back only now and then is
    the worst kind.
    """
    still: list[Line] = []
    for line in lines:
        if line["verdict"] != PASSED:
            still.append(line)
        else:
            still = [one for one in still if not _is_closed_by(one, line)]
    return still


def _is_closed_by(violation: Line, line: Line) -> bool:
    is_same = name_of(violation) == name_of(line)
    return is_same and violation["commit"] != line["commit"]


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, marked if something is changed.

    The record itself may change: it is what a run adds to.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--", *_ROOMS, ":(exclude)*.jsonl")
    return f"{commit}-changed" if changed else commit
