"""Both ends of the pipe between a parent that judges and a child that is killed.

The child writes each step with the readings of the moment, a line of JSON each; the
parent starts it, reads its reports and ends it.

    {"kind": "started", "wall_ms": …, "boottime_ms": …, "process_us": …, "id": …}

The pipe outlives the child: what it wrote before a SIGKILL is still read. A last line
that the kill cut short is dropped, as a report of something that may not have been
done.
"""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from wheeldb.cli.demo_ledger import Report
from wheeldb.cli.output import plain
from wheeldb.clock import Clock

__all__ = ("Reporter", "WorkerFailed", "WorkerProcess")

CHUNK_BYTES = 65_536
STDOUT = 1


class Reporter:
    """The child's end: writes what happens, from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writing = threading.Lock()

    def __call__(self, kind: str, **fields: object) -> None:
        """Write one report.

        Raises:
            BrokenPipeError: The parent is gone.
        """
        reading = self._clock.read()
        report = {
            "kind": kind,
            "wall_ms": reading.wall_ms,
            "boottime_ms": reading.boottime_ms,
            "process_us": self._clock.process_ns() // 1_000,
            **fields,
        }
        # One system call: what it has taken, the parent reads, whatever happens to us.
        data = json.dumps(plain(report)).encode() + b"\n"
        with self._writing:
            while data:
                data = data[os.write(STDOUT, data) :]


class WorkerFailed(Exception):
    """Raised when the child ends or falls silent although nobody killed it."""


class WorkerProcess:
    """One child process; leaving the block ends it in any case.

    Args:
        module: What is run in it; it finds the plan, as JSON, in `sys.argv[1]`.
        plan: What it shall do.
        silence_s_max: So long without a report means that it hangs.
    """

    def __init__(
        self, module: str, plan: Mapping[str, object], silence_s_max: float
    ) -> None:
        command = [sys.executable, "-m", module, json.dumps(plan)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self._silence_s_max = silence_s_max
        self.was_killed = False

    def kill(self) -> None:
        """Send SIGKILL; `reports` goes on to the end of the pipe."""
        self._process.kill()
        self.was_killed = True

    def terminate(self) -> None:
        """Send SIGTERM, and expect the child to end by itself."""
        self._process.terminate()

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
