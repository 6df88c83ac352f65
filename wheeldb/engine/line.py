"""The line in which calls wait to be committed.

Callers join at the end; whoever has the right to lead takes as many from the front as
one frame may hold, and lets go of them when they have their answers::

    join(call)    any thread: does this call's own thread lead next?
    take()        the leader
    tidy()        the leader: forget who was answered, wake the next leader

There is one line for synced calls and one for the others. A call that is to be synced
after all leaves its line by itself: it has joined another. Each line has the lock that
is the right to lead it, and the group that was taken from it and has not ended.
"""

from collections import deque
from typing import TYPE_CHECKING

from wheeldb.engine.group import Call, Group
from wheeldb.log.frame import FrameType

if TYPE_CHECKING:
    import threading

__all__ = ("GROUP_BYTES_MAX", "GROUP_EVENTS_MAX", "Line")

# A group stops at whichever comes first, but holds one call at least.
GROUP_EVENTS_MAX = 4_096
GROUP_BYTES_MAX = 2**20


class Line:
    """Calls in the order in which they came."""

    __slots__ = ("_calls", "group", "is_synced", "kind", "right")

    def __init__(self, kind: FrameType, right: "threading.RLock") -> None:
        self.kind = kind
        self.is_synced = kind is FrameType.SYNCED
        self.right = right
        # What its leader has not brought to an end yet.
        self.group: Group | None = None
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        """Return how many have no answer yet."""
        return sum(1 for call in list(self._calls) if not call.is_settled)

    def join(self, call: Call) -> bool:
        """Put a call at the end, unless it waits here; return whether it is first."""
        calls = self._calls
        if call.line is not self:
            call.line = self
            calls.append(call)
        try:
            first = calls[0]
            position = 0
            while first.is_settled or first.is_abandoned:
                position += 1
                first = calls[position]
        except IndexError:
            return False
        return first is call

    def take(self) -> list[Call]:
        """Return the calls for the next group; they stay until they are answered."""
        taken: list[Call] = []
        size = 0
        for call in list(self._calls):
            if call.is_settled or call.is_synced is not self.is_synced:
                continue
            if call.is_abandoned:
                call.is_settled = True
                continue
            size += call.size
            if taken and (size > GROUP_BYTES_MAX or len(taken) == GROUP_EVENTS_MAX):
                break
            taken.append(call)
        return taken

    def tidy(self) -> None:
        """Forget who was answered or has left, and wake who is first now."""
        calls = self._calls
        while calls:
            call = calls[0]
            if not (call.is_settled or call.is_abandoned or call.line is not self):
                call.wake()
                return
            calls.popleft()
