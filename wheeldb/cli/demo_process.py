"""The demo's handle on its child process: start it, read its reports, kill it.

The pipe outlives the child: what it wrote before a SIGKILL is still read. A last line
that the kill cut short is dropped, as a report of something that may not have been
done.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from wheeldb.cli.demo_ledger import Report
from wheeldb.cli.demo_worker import Plan

__all__ = ("WorkerFailed", "WorkerProcess")

CHUNK_BYTES = 65_536


class WorkerFailed(Exception):
    """Raised when the child ends or falls silent although nobody killed it."""


class WorkerProcess:
    """One child process; leaving the block ends it in any case.

    Args:
        plan: What it shall do.
        silence_s_max: So long without a report means that it hangs.
    """

    def __init__(self, plan: Plan, silence_s_max: float) -> None:
        command = [sys.executable, "-m", "wheeldb.cli.demo_worker", json.dumps(plan)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self._silence_s_max = silence_s_max
        self.was_killed = False

    def kill(self) -> None:
        """Send SIGKILL; `reports` goes on to the end of the pipe."""
        self._process.kill()
        self.was_killed = True

    def reports(self) -> Iterator[Report]:
        """Yield each report as it comes, until the child has ended.

        Raises:
            WorkerFailed: It ended with an error, or says nothing any more.
        """
        pipe = self._process.stdout
        assert pipe is not None
        rest = b""
        while True:
            if not select.select([pipe], [], [], self._silence_s_max)[0]:
                raise WorkerFailed(f"no report within {self._silence_s_max:g} s")
            chunk = os.read(pipe.fileno(), CHUNK_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)
        status = self._process.wait()
        if status != 0 and not self.was_killed:
            raise WorkerFailed(f"the worker ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
