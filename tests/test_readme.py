"""The README's programs run as they stand, and its tables name what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[number]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(README.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 3


def test_every_verb_stands_in_the_table() -> None:
    verbs = {
        path.stem.replace("_", "-")
        for path in (README.parent / "wheeldb" / "cli").glob("*.py")
        if "def configure(" in path.read_text("utf-8") and path.stem != "__init__"
    }
    table = TEXT[TEXT.index("| verb | does |") :]
    named = set(re.findall(r"`([a-z-]+)`", table[: table.index("Data goes to")]))

    assert verbs <= named, verbs - named
