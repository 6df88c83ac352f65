"""A log of somebody else's, and a power cut at each of its operations.

    python examples/power_cuts.py

`LineLog` appends lines to a file: forty lines of storage code that know nothing of
wheeldb. All that it has to do to be tested is to make its system calls through an
object, here a `CrashableDisk`; with `wheeldb.disk.OsDisk` the same code runs on a real
one. It is right. `HastyLog` forgets one sync, and the sweep tells which pieces have to
be lost for a promise to be broken.
"""

import sys
import zlib
from collections.abc import Callable

from wheeldb.testing import CrashableDisk, CrashFound, crash_sweep

DIRECTORY = "/log"
PATH = "/log/lines"


class LineLog:
    """An append-only log: a checksum, a space and a text on each line."""

    def __init__(self, disk: CrashableDisk) -> None:
        self._disk = disk
        disk.make_directory(DIRECTORY)
        self._file = disk.open(PATH, create=True)
        self._sync_names()
        self.lines, self._end = self._read()
        # What a power cut left behind the last whole line must not be built upon.
        disk.truncate(self._file, self._end)
        disk.sync_data(self._file)

    def append(self, text: str) -> None:
        """Append a line; on return it is durable."""
        data = b"%08x %s\n" % (zlib.crc32(text.encode()), text.encode())
        self._disk.pwrite(self._file, data, self._end)
        self._disk.sync_data(self._file)
        self.lines.append(text)
        self._end += len(data)

    def _sync_names(self) -> None:
        self._disk.sync_directory(DIRECTORY)
        self._disk.sync_directory("/")

    def _read(self) -> tuple[list[str], int]:
        """Return the whole lines, and where the last of them ends."""
        lines, end = [], 0
        data = self._disk.pread(self._file, self._disk.size(self._file), 0)
        for line in data.split(b"\n")[:-1]:
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                break
            lines.append(text.decode())
            end += len(line) + 1
        return lines, end


class HastyLog(LineLog):
    """The same, but it believes that syncing a file makes its name durable, too."""

    def _sync_names(self) -> None:
        self._disk.sync_directory("/")


def sweep(kind: type[LineLog]) -> None:
    """Cut the power everywhere, and print what came of it."""

    def program(disk: CrashableDisk, promise: Callable[[object], None]) -> None:
        log = kind(disk)
        for number in range(20):
            text = f"{number} " + "x" * 70 * number
            log.append(text)
            promise(text)

    def check(disk: CrashableDisk, promised: list[object]) -> None:
        log = kind(disk)
        assert log.lines[: len(promised)] == promised, (
            f"{len(promised)} lines were promised, {len(log.lines)} are there"
        )
        assert len(log.lines) <= len(promised) + 1, "a line that nobody appended"

    try:
        report = crash_sweep(program, check, images_max=32)
    except CrashFound as found:
        print(f"{kind.__name__}: {found}")
    else:
        print(
            f"{kind.__name__}: nothing is lost in {report.images:,} power cuts at "
            f"{report.operations} operations"
        )


def main() -> int:
    """Sweep both."""
    sweep(LineLog)
    sweep(HastyLog)
    return 0


if __name__ == "__main__":
    sys.exit(main())
