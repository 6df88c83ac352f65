"""What the tests of whole stores share: a bench with a clock and a disk, and children.

A `Bench` keeps one store on a disk in memory and a clock moved by hand, and can open it
again, closed or killed in between. `Child` runs a script in a real process of its own
and talks with it over pipes, a line at a time; nothing here sleeps.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import wheeldb
from wheeldb.testing import CrashableDisk, ManualClock

ROOT = Path(__file__).parent.parent


class Bench:
    """One store whose disk and clock are in the test's hands."""

    path = "/store"

    def __init__(self, **options: Unpack[wheeldb.OpenOptions]) -> None:
        self.disk = CrashableDisk()
        self.clock = ManualClock()
        self.options = options
        options["disk"], options["clock"] = self.disk, self.clock
        options.setdefault("driver", False)
        self.db = self.open()

    def open(self) -> wheeldb.WheelDB:
        """Open the store, without a driver unless one was asked for."""
        self.db = wheeldb.open(self.path, **self.options)
        return self.db

    def stay(self) -> wheeldb.WheelDB:
        """Leave the store as it is, where others open it again."""
        return self.db

    def reopen(self) -> wheeldb.WheelDB:
        """Close the store and open it again."""
        self.db.close()
        return self.open()

    def kill(self) -> wheeldb.WheelDB:
        """End the process without a goodbye, and open the store in the next one."""
        self.disk.kill()
        return self.open()

    def started(self, limit: int = 1_000) -> list[str]:
        """Lease and ack what is due; return the ids in order."""
        ids: list[str] = []
        while leases := self.db.lease(limit=limit):
            ids += [lease.id for lease in leases]
            assert not self.db.ack_many(leases), "a lease was lost"
        return ids

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            assert self.db.check() == []
            self.db.close()


class Child:
    """A script in a process of its own.

    It finds its arguments in `sys.argv[1:]`; what it prints is read line by line, and
    it reads what it is told from standard input.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def line(self) -> str:
        """Wait for the next line it prints; empty once it has ended."""
        assert self.process.stdout is not None, "a pipe was asked for"
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, text: str = "") -> None:
        """Write it a line."""
        assert self.process.stdin is not None, "a pipe was asked for"
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[str, int]:
        """Close its input, wait for its end; return the rest it said and its status."""
        assert self.process.stdin is not None, "a pipe was asked for"
        assert self.process.stdout is not None, "a pipe was asked for"
        self.process.stdin.close()
        # Not `communicate`: it passes over what `line` has read ahead.
        said = self.process.stdout.read()
        self.process.wait()
        return said, self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
