"""A copy of the checkout in which one fault at a time is planted.

    with Nursery() as nursery:
        nursery.run(mutant)     # Verdict(is_killed=True, by="tests/test_x.py::test_y")

The copy holds no compiled modules and makes none, so that no run sees the code of the
one before.  A mutant counts as killed only if a test fails: an error while tests are
collected, a crash of the runner or a deadline says nothing about the tests.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tools.mutants.catalogue import Mutant

__all__ = ("Nursery", "Verdict", "occurrences")

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("wheeldb", "tests", "tools", "examples")
_FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
DEADLINE_S = 600
_TESTS_FAILED = 1
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        is_killed: Whether a test failed on it.
        by: The first test that did.
        output: The end of what the run printed.
    """

    is_killed: bool
    by: str
    output: str


class Nursery:
    """The copy; it is removed at the end of the block."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="wheeldb-mutants-"))
        ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in _COPIED:
            shutil.copytree(ROOT / name, self._path / name, ignore=ignore)
        for name in _FILES:
            shutil.copy(ROOT / name, self._path / name)

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._path)

    def run(self, mutant: Mutant) -> Verdict:
        """Plant a fault, run the tests that have to see it, and take it out again.

        Raises:
            ValueError: If its text is not in the source exactly once.
        """
        path = self._path / mutant.file
        source = path.read_text()
        if source.count(mutant.old) != 1:
            raise ValueError(
                f"{mutant.name}: its text stands {source.count(mutant.old)} times in "
                f"{mutant.file}; it has to stand there once"
            )
        path.write_text(source.replace(mutant.old, mutant.new))
        try:
            return self._test(mutant.tests)
        finally:
            path.write_text(source)

    def is_sound(self, tests: list[str]) -> Verdict:
        """Run tests on the copy as it is; none may fail."""
        return self._test(tuple(tests))

    def _test(self, tests: tuple[str, ...]) -> Verdict:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *("-m", "slow or not slow", *tests),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self._path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(is_killed=False, by="", output="the tests did not end")
        found = _FAILED.search(done.stdout)
        return Verdict(
            is_killed=done.returncode == _TESTS_FAILED and found is not None,
            by=found[1] if found is not None else "",
            output=(done.stdout + done.stderr)[-2000:],
        )


def occurrences(mutant: Mutant) -> int:
    """Return how often a mutant's text stands in the checkout's source."""
    return (ROOT / mutant.file).read_text().count(mutant.old)
