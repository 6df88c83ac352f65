"""What has been proved so far: one line of JSON for each slice.

    {"kind": "cuts", "commit": "235f6e0…", "seed": 0, "scenario": "rotation",
     "medium": "flash", "slice": 7, "slices": 100, "images": 61, "deep_images": 204,
     "exact": 265, "refused": 0, "cpu_seconds": 2.41, "verdict": "passed"}

A line is appended whole and at once, so that several processes may share the file. A
failure's verdict is its text, which names the cut by which it comes again.
"""

import json
import os
import subprocess
from pathlib import Path

__all__ = ("PASSED", "Record", "commit_of")

PASSED = "passed"

Line = dict[str, object]

_NAMES = ("kind", "commit", "seed", "scenario", "medium", "slice", "slices")


class Record:
    """The lines of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[Line]:
        """Return every line so far."""
        if not self.path.exists():
            return []
        return [json.loads(text) for text in self.path.read_text().splitlines()]

    def passed(self) -> set[tuple[object, ...]]:
        """Return the names of the slices that have passed."""
        return {name_of(line) for line in self.lines() if line.get("verdict") == PASSED}

    def add(self, line: Line) -> None:
        """Append a line."""
        data = (json.dumps(line) + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)


def name_of(line: Line) -> tuple[object, ...]:
    """Return by what a slice is known."""
    return tuple(line.get(name) for name in _NAMES)


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, marked if something is changed."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--", "wheeldb", "tests")
    return f"{commit}-changed" if changed else commit
