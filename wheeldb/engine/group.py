"""What is committed: a caller's ``Call``, and the ``Group`` that shares one frame.

A group carries everything that its leader knows, so that another thread can take it up
where an interrupt has made the leader leave::

    step       if its leader leaves, who comes next …
    FORMED     decides
    DECIDED    builds the frame
    PLACED     writes the same bytes to the same offset
    WRITTEN    syncs
    SYNCING    syncs, unless the answer is there: the C call that made the sync has
               stored it, so one that answered is never repeated
    SYNCED     settles
    SETTLED    does nothing

These are values; what is done with them is in ``commit.py``.
"""

import threading
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING

from wheeldb.log.frame import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wheeldb.engine.columns import Columns
    from wheeldb.engine.decide import Decider
    from wheeldb.engine.line import Line
    from wheeldb.engine.row import Row
    from wheeldb.engine.undo import Undo
    from wheeldb.log.writer import Placed, Position

__all__ = (
    "DECIDED",
    "FORMED",
    "PLACED",
    "SETTLED",
    "SYNCED",
    "SYNCING",
    "WRITTEN",
    "Call",
    "Group",
    "Need",
)

# How far a group has come.
FORMED, DECIDED, PLACED, WRITTEN, SYNCING, SYNCED, SETTLED = range(7)


class Need(IntEnum):
    """How far a call may go to find room on a full disk."""

    REFUSE = 0  # new tasks: refuse
    BALLAST = 1  # leases, retries: use the ballast
    RESERVE = 2  # what ends tasks: use the room that was reserved for it


class Call:
    """One caller's change, from its submission to its answer.

    Attributes:
        decide: Judges it, on the leader's thread; may be asked more than once.
        is_synced: Whether the answer waits for a sync.
        need: What it may use on a full disk.
        author: Who is behind it.
        size: About how many bytes it adds to the frame.
        ids: The tasks that ``CommitUnknown`` will name.
        is_abandoned: Its caller was interrupted and wants no answer.
        line: The line in which it waits.
    """

    __slots__ = (
        "author",
        "decide",
        "error",
        "gate",
        "ids",
        "is_abandoned",
        "is_settled",
        "is_synced",
        "line",
        "need",
        "result",
        "size",
        "strikes",
    )

    def __init__(
        self,
        decide: "Callable[[Decider], object]",
        synced: bool,
        need: Need,
        author: str = "",
        size: int = 64,
        ids: "Sequence[str]" = (),
    ) -> None:
        self.decide = decide
        self.is_synced = synced
        self.need = need
        self.author = author
        self.size = size
        self.ids = ids
        self.result: object = None
        self.error: BaseException | None = None
        self.is_settled = False
        self.is_abandoned = False
        # How often deciding it broke off.
        self.strikes = 0
        self.line: Line | None = None
        # Locked while its caller waits for a leader to look after it.
        self.gate: threading.Lock | None = None

    def close_gate(self) -> None:
        """Make what ``wake`` opens."""
        gate = threading.Lock()
        gate.acquire()
        self.gate = gate

    def wait(self, patience_s: float) -> None:
        """Wait until ``wake`` is called, or the patience is used up."""
        assert self.gate is not None, "nobody could wake it"
        self.gate.acquire(timeout=patience_s)

    def wake(self) -> None:
        """Let its caller look again; too often does no harm."""
        gate = self.gate
        if gate is not None and gate.locked():
            with suppress(RuntimeError):  # another thread was quicker
                gate.release()


class Group:
    """The calls that share one frame, and how far they have come.

    Attributes:
        kind: The type of its frame.
        is_synced: Whether its answers wait for a sync.
        undo: What its events replaced, from the moment the first may change anything.
        deciding: The call that is judged just now.
        parts: The events' bytes; none: there is no frame, only answers.
        taken: What was taken out of the window's ready heaps.
        touched: What the window has to place anew.
        rests_on: The highest LSN that an answer without an event relies on.
        hlc: The stamp of its first event.
        placed: The frame and its place.
        position: Where the log stood as the sync began: what that covers.
        answers: Holds one item once the sync has answered.
        is_shown: Whether readers see its events.
    """

    __slots__ = (
        "answers",
        "calls",
        "deciding",
        "hlc",
        "is_shown",
        "is_synced",
        "kind",
        "parts",
        "placed",
        "position",
        "rests_on",
        "step",
        "taken",
        "touched",
        "undo",
    )

    def __init__(self, calls: list[Call], kind: FrameType) -> None:
        self.calls = calls
        self.kind = kind
        self.is_synced = kind is FrameType.SYNCED
        self.step: int = FORMED
        self.undo: Undo | None = None
        self.deciding: Call | None = None
        self.parts: list[bytes] = []
        self.taken: list[int] = []
        self.touched: list[tuple[Row | None, Row | None] | Columns] = []
        self.rests_on = 0
        self.hlc = 0
        self.placed: Placed | None = None
        self.position: Position | None = None
        self.answers: list[None] = []
        self.is_shown = False

    def need(self) -> Need:
        """Return the least need of the calls that are still to be answered."""
        return min(
            (call.need for call in self.calls if not call.is_settled),
            default=Need.RESERVE,
        )
