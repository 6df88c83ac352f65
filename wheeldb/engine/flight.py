"""In flight: events that are numbered and applied, and not seen by anybody yet.

::

    decide     a group's calls, one after the other, each against a state that holds
               everything numbered before: refused, or an event
    take_back  as if that had not happened; possible until its frame is written
    show       readers see the events, the window gets the changes

Groups are shown in any order, an unsynced one before the synced one in front of it. So
a reader is told for each group that is not shown what it replaced (``undos``), and the
window hears of changes again, in LSN order, when an older group catches up.

All methods but the constructor are called with the state's lock held; ``decide`` and
``take_back`` with the pen, too: nobody decides on top of what may be taken back.
"""

from collections.abc import Iterator

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Timekeeper
from wheeldb.engine.decide import Decider
from wheeldb.engine.group import DECIDED, FORMED, Call, Group
from wheeldb.engine.line import GROUP_BYTES_MAX, GROUP_EVENTS_MAX
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo, roll_back
from wheeldb.engine.window import Window
from wheeldb.errors import (
    CorruptionError,
    PayloadTooLarge,
    StorageFullError,
    TaskError,
)
from wheeldb.log.frame import PAYLOAD_BYTES_MAX

__all__ = ("BrokenDecision", "Flight")

_REFUSALS = (TaskError, StorageFullError, CorruptionError)


class BrokenDecision(Exception):
    """Raised when deciding the same call has failed twice: no interrupt, a fault."""


class Flight:
    """Groups between their first number and the eyes of readers."""

    def __init__(
        self,
        state: State,
        window: Window,
        decider: Decider,
        clock: Clock,
        keeper: Timekeeper,
        hlc: HybridClock,
    ) -> None:
        self.state = state
        self.window = window
        self.decider = decider
        self._clock = clock
        self._keeper = keeper
        self._hlc = hlc
        # From the oldest that is not shown.
        self._groups: list[Group] = []
        state.touched = []

    def undos(self) -> Iterator[Undo]:
        """Yield the undo records of what is not to be seen yet, oldest first."""
        for group in self._groups:
            if not group.is_shown and group.undo is not None:
                yield group.undo

    # Deciding.

    def decide(self, group: Group) -> None:
        """Decide a group's calls; afterwards it is DECIDED, or FORMED: begin again.

        Raises:
            BrokenDecision: It fails for no reason of the caller's; all is taken back.
        """
        if group.undo is not None:
            self.take_back(group)
        state, decider = self.state, self.decider
        reading = self._clock.read()
        group.hlc = stamp = self._hlc.now(reading.wall_ms)
        decider.begin(self._keeper.now(reading), stamp)
        group.parts, group.taken = decider.parts, decider.taken
        group.undo = state.undo = undo = Undo(state)
        self._groups.append(group)
        try:
            if not self._decide_calls(group):
                self.take_back(group)
                return
            if decider.stamp > stamp + 1:
                self._hlc.restore(decider.stamp - 1)
            group.rests_on = decider.rests_on
            undo.last_lsn = state.last_lsn
            if state.touched:
                group.touched, state.touched = state.touched, []
            state.undo = None
            group.step = DECIDED
        except BaseException as error:
            if group.step < DECIDED:
                self.take_back(group)
                if _is_repeated(group.deciding, error):
                    raise BrokenDecision(str(error)) from error
            raise

    def _decide_calls(self, group: Group) -> bool:
        """Decide them, or as many as make a frame; return False to begin again."""
        state, decider, is_synced = self.state, self.decider, group.is_synced
        first_lsn = state.last_lsn
        for position, call in enumerate(group.calls):
            if call.is_settled or call.is_synced is not is_synced:
                continue
            if call.is_abandoned:
                call.is_settled = True
                continue
            size = decider.size
            if state.last_lsn - first_lsn >= GROUP_EVENTS_MAX or size > GROUP_BYTES_MAX:
                # The others are still in the line.
                del group.calls[position:]
                break
            group.deciding = call
            self._decide_call(call)
            added = decider.size - size
            if added > PAYLOAD_BYTES_MAX:
                call.error = PayloadTooLarge(
                    f"the call takes {added} bytes of log, at most {PAYLOAD_BYTES_MAX} "
                    "are written at once; make several calls of it"
                )
                call.is_settled = True
                return False
            if decider.size > PAYLOAD_BYTES_MAX:
                del group.calls[position:]
                return False
        return True

    def _decide_call(self, call: Call) -> None:
        state, decider = self.state, self.decider
        before, taken_count = state.last_lsn, len(decider.taken)
        decider.author = call.author
        call.error = None
        try:
            call.result = call.decide(decider)
        except _REFUSALS as refusal:
            if state.last_lsn != before:
                message = f"a refused call has changed the state ({refusal})"
                raise AssertionError(message) from refusal
            call.error = refusal
            # A lease may have taken tasks before it met a damaged row.
            for entry in decider.taken[taken_count:]:
                self.window.make_ready(entry)
            del decider.taken[taken_count:]
            # Whatever it was that refused it must not be gone after a power cut.
            decider.rests_on = before

    def take_back(self, group: Group) -> None:
        """Take back what a group decided; nothing of it is in the log.

        May be called again if it was interrupted; without a decision it does nothing.
        """
        group.step = FORMED
        group.placed = None
        undo = group.undo
        if undo is None:
            return
        state, window = self.state, self.window
        if state.undo is not None and state.undo is not undo:
            roll_back(state, state.undo)  # a batch's own, cut short
        roll_back(state, undo)
        state.undo = None
        state.touched = []
        window.forget_lanes()
        # What was taken from the window, or moved in it, is placed anew.
        for entry in group.taken:
            window.make_ready(entry)
        window.reconcile([(None, row) for row in undo.rows.values()])
        group.parts = []
        group.taken = []
        group.touched = []
        if group in self._groups:
            self._groups.remove(group)
        group.undo = None

    # Showing.

    def show(self, group: Group) -> None:
        """Let readers and the window see a group's events; again does no harm."""
        groups = self._groups
        group.is_shown = True
        if group in groups:
            for shown in groups[groups.index(group) :]:
                if shown.is_shown and shown.touched:
                    self.window.reconcile(shown.touched)
            while groups and groups[0].is_shown:
                del groups[0]


def _is_repeated(call: Call | None, error: BaseException) -> bool:
    """Note whose decision broke off: once may be a signal handler's doing."""
    if call is None or not isinstance(error, Exception):
        return False
    call.strikes += 1
    return call.strikes > 1
