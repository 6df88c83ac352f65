"""Room set apart, so that finishing a task never fails for lack of it.

Two files beside the segments, which hold no data, only blocks::

    log/reserve    at least 128 bytes for each unfinished task: the end of each, cancel,
                   reject or ack, can be written even on a full disk
    log/ballast    one segment: leases and retries go on while space is freed

New work is refused before it would need the reserve. When an essential event meets a
full disk, blocks are given back to the file system, and the write is tried again
(after beanstalkd, which reserves the delete record as it accepts the job, and
Pebble's ballast file). Another process may be quicker to take them: this makes such a
failure unlikely, not impossible.

On a file system that can't allocate, both are empty and say so.
"""

from dataclasses import dataclass

from wheeldb.disk import NO_ROOM, Disk
from wheeldb.log.frame import LSN_MAX
from wheeldb.log.segment import BLOCK_BYTES

__all__ = ("RESERVE_BYTES_PER_TASK", "Ballast", "Reserve", "ReserveStatistics")

RESERVE_BYTES_PER_TASK = 128

_STEP_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveStatistics:
    """What is set apart.

    Attributes:
        reserved_bytes: The blocks held at this moment.
        wanted_bytes: What the last call asked for.
        is_supported: Whether the file system can allocate.
    """

    reserved_bytes: int
    wanted_bytes: int
    is_supported: bool


class Reserve:
    """Keeps a file allocated in proportion to the unfinished tasks."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Open the file; what an earlier opening held can be given back at once.

        Raises:
            OSError: If it can't be opened.
        """
        self._room = _Room(disk, path)

    @property
    def tasks(self) -> int:
        """For how many unfinished tasks the room that is held is enough."""
        if self._room.is_missing:
            return LSN_MAX
        return self._room.held_bytes // RESERVE_BYTES_PER_TASK

    def ensure(self, tasks: int) -> None:
        """Hold room for so many unfinished tasks; call it before accepting them.

        The file grows in steps of 1 MiB, never falls below the need, and shrinks only
        when it holds twice the need and 8 MiB.

        Raises:
            OSError: ENOSPC; what was held is still held.
        """
        need = _round_up(tasks * RESERVE_BYTES_PER_TASK, _STEP_BYTES)
        self._room.wanted_bytes = need
        if self._room.is_missing:
            return
        if need > self._room.held_bytes or not self._room.is_sure:
            self._room.hold(need)
        elif self._room.held_bytes > 2 * need + 8 * _STEP_BYTES:
            self._room.shrink(need)

    def give_back(self, size: int) -> int:
        """Return at least `size` bytes to the file system; return how many went."""
        before = self._room.held_bytes
        self._room.shrink(max(0, before - _round_up(size, BLOCK_BYTES)))
        return before - self._room.held_bytes

    def close(self) -> None:
        """Close the file; its blocks stay allocated."""
        self._room.close()

    def statistics(self) -> ReserveStatistics:
        """Return what is held."""
        return self._room.statistics()


class Ballast:
    """Holds one segment's worth of room until it is released."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        """Open the file; call `restore` to be sure of the room.

        Raises:
            OSError: If it can't be opened.
        """
        self._room = _Room(disk, path)
        self._room.wanted_bytes = size

    @property
    def is_held(self) -> bool:
        """Return whether there is room to be released."""
        return self._room.held_bytes > 0

    def release(self) -> bool:
        """Give the room to the file system; return whether there was any."""
        was_held = self.is_held
        self._room.shrink(0)
        return was_held

    def restore(self) -> bool:
        """Take the room again; return False if the disk is too full for it.

        Where it is held already, or can't be, this costs nothing.

        Raises:
            OSError: If allocating failed for another reason than room.
        """
        if self._room.is_missing:
            return True
        if self._room.is_sure and self._room.held_bytes >= self._room.wanted_bytes:
            return True
        try:
            self._room.hold(self._room.wanted_bytes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def close(self) -> None:
        """Close the file; its blocks stay allocated."""
        self._room.close()

    def statistics(self) -> ReserveStatistics:
        """Return what is held."""
        return self._room.statistics()


class _Room:
    """A file whose length says how many blocks it holds."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._fd = disk.open(path, create=True)
        self.held_bytes = disk.size(self._fd)
        self.wanted_bytes = 0
        self.is_supported = True
        # After a power cut the length may be there without the blocks.
        self.is_sure = False

    @property
    def is_missing(self) -> bool:
        """Whether the file system has said that it can't allocate."""
        return self.is_sure and not self.is_supported

    def hold(self, size: int) -> None:
        # First the blocks, which may fail, then the length, by which they are cut off
        # again. A length alone would be a hole.
        size = max(size, self.held_bytes)
        if size:
            self.is_supported = self._disk.allocate(self._fd, 0, size)
            if self.is_supported:
                self._disk.truncate(self._fd, size)
                self.held_bytes = size
        self.is_sure = True

    def shrink(self, size: int) -> None:
        if size < self.held_bytes:
            self._disk.truncate(self._fd, size)
            self.held_bytes = size

    def close(self) -> None:
        self._disk.close(self._fd)

    def statistics(self) -> ReserveStatistics:
        return ReserveStatistics(
            reserved_bytes=self.held_bytes,
            wanted_bytes=self.wanted_bytes,
            is_supported=self.is_supported,
        )


def _round_up(size: int, step: int) -> int:
    return size + -size % step
