"""A lock on a `CrashableDisk`: held until it is released, or the process ends.

What is written into its file goes through the disk, and can be lost and fail with it.
"""

from typing import TYPE_CHECKING

from wheeldb.testing.pieces import File

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("MemoryLock",)


class MemoryLock:
    """Implements `wheeldb.disk.Lock`; the disk makes it.

    Attributes:
        path: The lock's file,
        file: and the same, however it is renamed.
        holder: The line that tells who has it.
    """

    def __init__(
        self,
        path: str,
        file: File,
        write_holder: "Callable[[MemoryLock, str], None]",
        let_go: "Callable[[MemoryLock], None]",
    ) -> None:
        self.path = path
        self.file = file
        self.holder = ""
        self._write_holder = write_holder
        self._let_go = let_go

    def write(self, text: str) -> None:
        """Replace the line that tells people who holds the lock."""
        self._write_holder(self, text)
        self.holder = text

    def release(self) -> None:
        """Give the lock up; nothing if it is gone already."""
        self._let_go(self)
