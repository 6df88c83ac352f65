"""Real system calls that fail, or are the last of their process.

Goal: whatever call a process is killed at, and whatever the kernel answers to one, all
that was acknowledged is there, the error is told and nothing succeeds after poison; and
the sweep would notice if it were not so. Method: `tools.syscalls` on a sample of cases,
with wheeldb and with copies of it that have one fault each. Needs strace.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.syscalls import ENDS, Case, draw

ROOT = Path(__file__).parent.parent


def is_tracing() -> bool:
    """Return whether strace is there and may trace and inject."""
    if shutil.which("strace") is None:
        return False
    inject = ("--trace", "fsync", "--inject", "fsync:error=EIO:when=99")
    command = ["strace", "--follow-forks", "--seccomp-bpf", *inject, "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(not is_tracing(), reason="needs strace")


def sweep(*arguments: str, root: Path = ROOT) -> tuple[int, dict[str, Any]]:
    """Run the sweep; return its status and what it tells."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.syscalls", "--json", *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=550,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    tally: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, tally


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_strace
def test_no_call_that_ends_badly_loses_anything() -> None:
    status, tally = sweep("--cases", "70")

    assert status == 0, tally["findings"]
    assert sum(tally["cases"].values()) == 70
    assert tally["cases"].keys() == set(ENDS)
    assert tally["missed"] < 10, "the sweep hardly hits anything"


# Faults for a copy of wheeldb/disk/system.py: what it does, and what it is made to do.
DEAF = """

def _deaf_write(handle: int, data: bytes, offset: int) -> int:
    try:
        return os.pwrite(handle, data, offset)
    except OSError:
        return len(data)


def _deaf_sync(handle: int) -> None:
    with contextlib.suppress(OSError):
        os.fdatasync(handle)


class OsDisk:
"""
FAULTS = {
    "pwrite64": ("staticmethod(os.pwrite)", "staticmethod(_deaf_write)"),
    "fdatasync": ("staticmethod(os.fdatasync)", "staticmethod(_deaf_sync)"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_strace
@pytest.mark.parametrize("call", FAULTS)
def test_an_error_that_nobody_hears_of_is_found(call: str, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    for name in ("wheeldb", "tools"):
        shutil.copytree(ROOT / name, root / name)
    disk = root / "wheeldb" / "disk" / "system.py"
    text = disk.read_text("utf-8")
    for right, wrong in (FAULTS[call], ("\nclass OsDisk:\n", DEAF)):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    disk.write_text(text, "utf-8")

    status, tally = sweep("--call", call, "--end", "EIO", "--cases", "8", root=root)

    assert status == 1
    found = [finding["what"] for finding in tally["findings"]]
    assert any("nobody was told" in what for what in found), found


def test_a_draw_has_every_call_and_every_end_first() -> None:
    cases = [
        Case(call, number, end)
        for call in ("fsync", "rename", "pwrite64")
        for number in range(1, 50)
        for end in ENDS
    ]

    drawn = draw(cases, 40, seed=3)

    assert drawn == draw(cases, 40, seed=3)
    assert drawn != draw(cases, 40, seed=4)
    assert len(set(drawn)) == 40
    assert {(case.call, case.end) for case in drawn} == {
        (case.call, case.end) for case in cases
    }
    assert draw(cases, 10_000, seed=3) == sorted(cases)
