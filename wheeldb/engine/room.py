"""What happens on a full disk: who is refused, and who gets what was set apart.

::

    new tasks              refused, and with them nothing else of the group
    leases, retries, …     the ballast: one segment's worth
    what ends a task       the room reserved when it was accepted, then the ballast

New tasks are taken only while ballast and reserve are held: what was given up is made
again before the next one is accepted. Whoever calls ``require`` holds the state's
lock, whoever calls ``give`` or ``keep_block`` the pen.
"""

import errno
from typing import TYPE_CHECKING

from wheeldb.engine.group import Need
from wheeldb.errors import StorageFullError
from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import BLOCK_BYTES
from wheeldb.log.spare import SpareBlock

if TYPE_CHECKING:
    from wheeldb.log.writer import Placed

__all__ = ("Room",)

# What is given back of the reserve at a time.
ROOM_BYTES = 2**20


class Room:
    """The reserve and the ballast of one store; either may be missing.

    So may the spare block, where writing a block again does it no harm.

    Attributes:
        is_tight: Whether the disk was full and what was given up is not made again:
            what ends a task is then written without padding, as it was reserved.
    """

    def __init__(
        self,
        reserve: Reserve | None,
        ballast: Ballast | None,
        spare: SpareBlock | None,
    ) -> None:
        self._reserve = reserve
        self._ballast = ballast
        self._spare = spare
        # What is held is enough for so many tasks, and not too much for so many.
        self._tasks_least = 0
        self._tasks_most = -1
        self.is_tight = False

    @property
    def is_kept(self) -> bool:
        """Whether room is set apart at all."""
        return self._reserve is not None

    def require(self, tasks: int) -> None:
        """Make sure that so many unfinished tasks can be ended; call it first.

        Raises:
            StorageFullError: If the disk can't promise that; nothing was accepted.
        """
        if self._tasks_least <= tasks <= self._tasks_most:
            return
        try:
            if self._ballast is not None and not self._ballast.restore():
                raise StorageFullError(
                    errno.ENOSPC,
                    "the disk is full: the room that leases and retries may need can't "
                    "be set apart, so no new task was accepted; free some. Cancelling "
                    "and finishing tasks goes on",
                )
            if self._reserve is not None:
                self._reserve.ensure(tasks)
                self._tasks_least = tasks // 2
                self._tasks_most = self._reserve.tasks
            self.is_tight = False
        except StorageFullError:
            raise
        except OSError as error:
            raise StorageFullError(
                error.errno or errno.EIO,
                f"no room could be reserved for {tasks} tasks ({error.strerror}); "
                "nothing was accepted",
            ) from error

    def give(self, need: Need) -> bool:
        """Free room for a call; return whether there was any that it may use."""
        self._tasks_most = -1
        if need == Need.REFUSE:
            return False
        self.is_tight = self.is_kept
        if (
            need == Need.RESERVE
            and self._reserve is not None
            and self._reserve.give_back(ROOM_BYTES)
        ):
            return True
        return self.give_up_ballast()

    def give_up_ballast(self) -> bool:
        """Free the ballast; return whether there was any."""
        self._tasks_most = -1
        return self._ballast is not None and self._ballast.release()

    def is_shared(self, need: Need) -> bool:
        """Return whether a frame goes into the block that holds the one before."""
        if not self.is_tight or need < Need.RESERVE:
            return False
        return self._spare is None or self._spare.is_there

    def keep_block(self, placed: "Placed") -> None:
        """Keep what lies before a frame in its block, which is written again.

        Where there is no place for it, only unsynced frames share a block.

        Raises:
            LogSyncError: If the sync failed.
            OSError: If it could not be written.
        """
        spare = self._spare
        if spare is not None and spare.is_there and placed.offset % BLOCK_BYTES:
            before = placed.before
            spare.keep(before.fd, before.header.salt, placed.offset)

    def close(self) -> None:
        """Close the files; their blocks stay allocated."""
        for file in (self._reserve, self._ballast, self._spare):
            if file is not None:
                file.close()
