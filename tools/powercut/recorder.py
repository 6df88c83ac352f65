"""The recorder: a process that serves one file over FUSE and writes the record.

    python -m tools.powercut.recorder MOUNTPOINT FILE RECORD BYTES_MAX LINES

``MOUNTPOINT/disk`` then is FILE, and every write and every flush of it goes to RECORD,
together with the lines that come through descriptor LINES. It is a process of its own,
so that nothing which waits for the disk can keep it from answering. It ends when its
mount does.

It answers one request after the other. That, and the pipe being emptied before each,
makes the order: a line is recorded before any write or flush that begins after it was
written, and after every one that had been answered.
"""

import errno
import importlib
import os
import select
import stat
import sys
import threading

from tools.powercut.record import END, FLUSH, LINE, WRITE, Writer

__all__ = ("DISK_NAME", "Recorder", "main")

DISK_NAME = "disk"
_DISK_PATH = f"/{DISK_NAME}"


class Recorder:
    """The operations of the file system, as mfusepy calls them.

    Args:
        path: The file behind it.
        writer: Where the record goes.
        lines: The pipe of acknowledgements, read until its end.
    """

    use_ns = True

    def __init__(self, path: str, writer: Writer, lines: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._writer = writer
        self._lines = lines
        self._rest = b""
        self._has_ended = False
        self._order = threading.Lock()
        os.set_blocking(lines, False)

    def listen(self) -> None:
        """Take in lines while nothing is written, so that the pipe never fills up."""
        poll = select.poll()
        poll.register(self._lines, select.POLLIN)
        while not self._has_ended:
            poll.poll()
            with self._order:
                self._take_lines()

    def _take_lines(self) -> None:
        while not self._has_ended:
            try:
                data = os.read(self._lines, 65_536)
            except BlockingIOError:
                return
            if not data:
                self._has_ended = True
                self._writer.append(END)
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._writer.append(LINE, line)

    # What the kernel asks for.

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Return what stat(2) shows."""
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path != _DISK_PATH:
            raise FileNotFoundError(errno.ENOENT, "there is one file only", path)
        size = os.fstat(self._descriptor).st_size
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in the directory."""
        return [".", "..", DISK_NAME]

    def open(self, path: str, flags: int) -> int:
        """Open the file."""
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return what was written last, flushed or not."""
        return os.pread(self._descriptor, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Write, and record it."""
        with self._order:
            self._take_lines()
            if not self._writer.append(WRITE, data, offset):
                raise OSError(errno.EIO, "the record has reached its bound")
        return os.pwrite(self._descriptor, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """Record that all before it is on the disk."""
        with self._order:
            self._take_lines()
            self._writer.append(FLUSH)
        return 0

    def destroy(self, path: str) -> None:
        """End the record: the mount is gone."""
        with self._order:
            self._take_lines()
            self._writer.close()
            self._has_ended = True


def main() -> None:
    """Serve the file that the command line names until it is unmounted."""
    mountpoint, path, record, bytes_max, lines = sys.argv[1:]
    # Loaded by name: type checkers find no types for it, installed or not.
    mfusepy = importlib.import_module("mfusepy")
    recorder = Recorder(path, Writer(record, int(bytes_max)), int(lines))
    threading.Thread(target=recorder.listen, daemon=True).start()
    mfusepy.FUSE(
        recorder,
        mountpoint,
        foreground=True,
        nothreads=True,
        fsname="wheeldb-powercut",
    )


if __name__ == "__main__":
    main()
