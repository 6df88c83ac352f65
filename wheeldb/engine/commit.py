"""Group commit: the one order of every change.

::

    caller's thread      judges and packs its own arguments (request.py)
        │ submit(call)
        ▼
    leader, holding pen  decides the waiting calls one after the other, numbers and
        │    and lock    applies what is granted (decide.py)
        │ holding pen    joins the bytes to one frame and writes it
        ▼
    fdatasync            beside it others may write *unsynced* frames, and queue up
        │
        ▼
    settle, with lock    durable_lsn moves up, the window sees the changes, callers wake

A caller that finds nobody committing leads, as in LevelDB: no thread of its own, no
hand-over for a single caller. Three locks, always taken in this order:

    turn   one synced group at a time; all that syncs the log or begins a segment
    pen    one frame at a time, from the first decision to its last byte
    lock   the state

**Unsynced frames** are decided, written and settled with the pen alone. One that would
begin a segment, or reach the bound of the last synced frame (whose numbers might be
handed out again after a power cut), becomes a synced one. Groups settle in any order;
a reader sees each at its own level, the window gets their changes in LSN order.

**Interrupts.** A ``KeyboardInterrupt`` may be raised between any two bytecodes of the
main thread. So a group is known to the committer before anything happens, with the step
it has reached, and each step can be begun again (``group.py``). A leader that is
interrupted before its frame is laid out takes everything back, and its own call did
nothing; after that it brings the group to its end before the interrupt goes on. An
interrupt may even fall between the last line of a ``with`` block and its end, so
``submit`` then gives back whatever lock the thread still owns (``_let_go``); the locks
are re-entrant because only those know their owner.

**Poison.** A failed write other than for lack of room, any failed sync, and a decision
that fails twice for no reason of the caller's: the group gets ``CommitUnknown``, every
later call ``StorePoisoned``. What was not durable by then is never shown.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Timekeeper
from wheeldb.disk import NO_ROOM
from wheeldb.engine.decide import Decider
from wheeldb.engine.flight import BrokenDecision, Flight
from wheeldb.engine.group import (
    DECIDED,
    FORMED,
    PLACED,
    SETTLED,
    SYNCED,
    SYNCING,
    WRITTEN,
    Call,
    Group,
    Need,
)
from wheeldb.engine.line import Line
from wheeldb.engine.room import Room
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo
from wheeldb.engine.window import Window
from wheeldb.errors import (
    ClosedError,
    CommitUnknown,
    StorageFullError,
    StorePoisoned,
)
from wheeldb.log.frame import FrameType, lsn_bound
from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import LogSyncError, SegmentHeader
from wheeldb.log.spare import SpareBlock
from wheeldb.log.writer import LogStatistics, LogWriter, Position

__all__ = ("Call", "Committer", "Need")

# Who waits is woken. Only a leader that is interrupted twice may fail to do so.
PATIENCE_S = 1.0


class Committer:
    """Takes calls from any thread and commits them in groups."""

    def __init__(
        self,
        state: State,
        window: Window,
        decider: Decider,
        writer: LogWriter,
        clock: Clock,
        keeper: Timekeeper,
        hlc: HybridClock,
        *,
        durable_lsn: int,
        reserve: Reserve | None,
        ballast: Ballast | None,
        spare: SpareBlock | None,
        note_segment: Callable[[int], None],
    ) -> None:
        self.state = state
        self.writer = writer
        self.hlc = hlc
        self.room = Room(reserve, ballast, spare)
        decider.reserve = self.room.require
        self.lock = threading.RLock()
        self.pen = threading.RLock()
        self.turn = threading.RLock()
        self.durable_lsn = durable_lsn
        self.syncs = 0
        self.poison: BaseException | None = None
        # Called with the lock held, whenever events have become visible.
        self.on_settled: Callable[[], None] = lambda: None
        self._is_closed = False
        # Lets it be known outside of the log that a segment is there: the header of the
        # last one that is, and what tells a number.
        self._noted = writer.position.header
        self._note_segment = note_segment
        # No unsynced event takes a number at or above it.
        self._bound = writer.position.bound
        # By whether they are synced.
        self._lines = {
            True: Line(FrameType.SYNCED, self.turn),
            False: Line(FrameType.UNSYNCED, self.pen),
        }
        self._flight = Flight(state, window, decider, clock, keeper, hlc)

    # What callers use.

    def submit(self, call: Call) -> object:
        """Commit a call, alone or with others, and return its answer.

        Raises:
            TaskError, StorageFullError: The call was refused; nothing was written.
            CommitUnknown: A write or sync failed while it was on its way.
            StorePoisoned: One had failed before.
            ClosedError: The log was closed before it came to the call.
            RuntimeError: The thread is in the middle of another call.
        """
        if self.lock._is_owned() or self.pen._is_owned() or self.turn._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "this thread is committing a change already; a signal handler can't "
                "make another: set a flag in it, and make the change outside"
            )
        try:
            while not call.is_settled:
                line = self._lines[call.is_synced]
                if not line.join(call) and line.is_synced:
                    # Before there is a gate nobody can wake the caller: look again.
                    if call.gate is None:
                        call.close_gate()
                    else:
                        call.wait(PATIENCE_S)
                    continue
                with line.right:
                    self._lead(line, call)
        except BaseException as error:
            self._leave(call, error)
            raise
        if call.error is not None:
            raise call.error
        return call.result

    def sync(self) -> None:
        """Make everything that was written durable.

        Raises:
            StorePoisoned: If that failed, now or before.
        """
        self.submit(Call(_rest_on_everything, True, need=Need.RESERVE))

    def settle_all(self) -> None:
        """Bring every begun group to its end and sync; hold turn and pen.

        Raises:
            StorePoisoned: If that failed, now or before.
        """
        for synced in (False, True):
            self._resume(synced)
        self._require_sound()
        if self.has_unsynced():
            group = Group([], FrameType.SYNCED)
            group.rests_on = self.writer.last_lsn
            group.step = WRITTEN
            self._bring_to_end(group)
            self._require_sound()

    def has_unsynced(self) -> bool:
        """Return whether something was written that no sync has covered."""
        return self.writer.last_lsn > self.durable_lsn

    def undos(self) -> Iterator[Undo]:
        """Yield the undo records of what is not to be seen yet; hold the lock."""
        return self._flight.undos()

    # The log as a whole.

    def log_statistics(self) -> LogStatistics:
        """Return the log's counts."""
        return self.writer.statistics()

    def check_log(self) -> list[str]:
        """Return what is wrong between the log's cursor and its file."""
        with self.turn, self.pen:
            return self.writer.check()

    def retire(self, before_lsn: int, *, archive: str | None) -> None:
        """Remove the segments that hold only LSNs below ``before_lsn``.

        Raises:
            StorePoisoned: If the log has failed, or fails now.
        """
        with self.turn, self.pen:
            self._require_sound()
            try:
                self.writer.retire(before_lsn, archive=archive)
            except LogSyncError as error:
                self._poison_with(error)
                self._require_sound()

    def give_up_ballast(self) -> bool:
        """Free the ballast, for what frees more room; return whether there was any."""
        with self.pen:
            return self.room.give_up_ballast()

    def write_watermark(self) -> None:
        """Tell the log, in an empty frame, that everything in it is durable."""
        with self.pen:
            self._resume(False)
            self._require_sound()
            writer = self.writer
            if (
                writer.position.last_type == FrameType.WATERMARK
                or self.has_unsynced()
                or self._lines[True].group is not None
                or writer.must_rotate(0)
            ):
                return
            group = Group([], FrameType.WATERMARK)
            group.parts = [b""]
            group.hlc = self.hlc.last
            group.step = DECIDED
            self._bring_to_end(group)

    def write_footer(self, payload: bytes) -> int:
        """End the log: a synced frame behind which nothing comes; return its LSN.

        Raises:
            StorePoisoned: If the log has failed, or fails now.
            StorageFullError: If there is no room for it; the log simply has no footer.
        """
        with self.turn, self.pen:
            self.settle_all()
            writer = self.writer
            try:
                if writer.must_rotate(len(payload)):
                    writer.rotate()
                placed = writer.place(
                    FrameType.FOOTER,
                    payload,
                    first_lsn=writer.last_lsn + 1,
                    count=0,
                    hlc=self.hlc.last,
                    watermark=self.durable_lsn,
                    bound=lsn_bound(writer.last_lsn),
                )
                writer.write(placed)
                writer.landed(placed)
                # Also the footer's sync, whose failure is final without room, too.
                writer.cut()
            except OSError as error:
                self._poison_with(error)
                if not isinstance(error, LogSyncError) and error.errno in NO_ROOM:
                    raise StorageFullError(
                        error.errno, "no room for a footer"
                    ) from error
                self._require_sound()
            return writer.last_lsn

    def close(self) -> None:
        """Close the log's files; nothing is written or synced. Who waits is refused."""
        with self.turn, self.pen:
            if self._is_closed:
                return
            self._is_closed = True
            for line in self._lines.values():
                if line.group is not None:  # its leader was interrupted twice
                    self._fail(line.group)
            self.writer.close()
            self.room.close()

    # From step to step.

    def _lead(self, line: Line, call: Call) -> None:
        """Bring a group to its end if the call still waits; the right to is held."""
        if call.is_settled or call.is_synced is not line.is_synced:
            return
        group = line.group
        if group is None:
            calls = line.take()
            if self.poison is not None or self._is_closed:
                self._refuse(calls)
            elif calls:
                group = Group(calls, line.kind)
        if group is not None:
            self._bring_to_end(group)
        line.tidy()

    def _resume(self, synced: bool) -> None:
        group = self._lines[synced].group
        if group is not None:
            self._bring_to_end(group)

    def _bring_to_end(self, group: Group) -> None:
        """Take a group through the steps that it has not reached yet."""
        is_synced = group.is_synced
        line = self._lines[is_synced]
        line.group = group
        try:
            if group.step < WRITTEN:
                with self.pen:
                    other = self._lines[not is_synced].group
                    if other is not None:
                        self._clear_pen(other)
                    if self.poison is None:
                        self._decide_and_write(group)
            if is_synced and group.step < SYNCED and self.poison is None:
                self._sync(group)
        except BrokenDecision as error:
            self._poison_with(error.__cause__ or error)
            self._fail(group)
        except OSError as error:
            if error.errno is None or group.step < DECIDED:
                raise  # not from the log: a signal handler's, or a decision's
            self._poison_with(error)
            self._fail(group)
        self._settle(group)
        for call in group.calls:
            if call.gate is not None:
                call.wake()
        line.group = None

    def _clear_pen(self, other: Group) -> None:
        """Bring a frame that an interrupted leader left half-way out of the way."""
        if FORMED < other.step < WRITTEN:
            self._decide_and_write(other)
        elif other.undo is not None and other.step == FORMED:
            with self.lock:
                self._flight.take_back(other)

    def _decide_and_write(self, group: Group) -> None:
        """Take a group to WRITTEN, or back and there again; the pen is held."""
        while group.step < WRITTEN:
            if group.step == FORMED:
                with self.lock:
                    self._flight.decide(group)
                if group.step == FORMED:
                    continue
            try:
                if group.step == DECIDED:
                    self._place(group)
                placed = group.placed
                if placed is not None:
                    if self.room.is_tight:
                        self.room.keep_block(placed)
                    self.writer.write(placed)
                    self.writer.landed(placed)
                    group.step = WRITTEN
            except LogSyncError:
                raise
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._find_room(group, error)

    def _place(self, group: Group) -> None:
        """Join a group's events to a frame, and give that its place."""
        if not group.parts:
            group.step = WRITTEN
            return
        payload = b"".join(group.parts)
        writer, last_lsn = self.writer, self.state.last_lsn
        before_lsn = writer.position.last_lsn
        if last_lsn >= self._bound or writer.must_rotate(len(payload)):
            if not group.is_synced:
                self._make_synced(group)
                return
            if writer.must_rotate(len(payload)):
                writer.rotate()
                self._note_durable(writer.position)
        # Asked for each frame: an interrupt may have come between it and the rotation.
        if writer.position.header is not self._noted:
            self._note_last_segment(writer.position.header)
        group.placed = writer.place(
            group.kind,
            payload,
            before_lsn + 1,
            last_lsn - before_lsn,
            group.hlc,
            self.durable_lsn,
            lsn_bound(last_lsn),
            align=not self.room.is_shared(group.need()),
        )
        group.step = PLACED

    def _note_last_segment(self, header: SegmentHeader) -> None:
        # A guard against what no crash does: without it the store is as durable.
        with suppress(OSError):
            self._note_segment(header.number)
        self._noted = header

    def _make_synced(self, group: Group) -> None:
        """Leave it to the turn to begin a segment or raise the bound."""
        with self.lock:
            self._flight.take_back(group)
            for call in group.calls:
                # Their own threads take them over to the other line.
                call.is_synced = True
            group.step = SETTLED

    def _find_room(self, group: Group, error: OSError) -> None:
        """Deal with a full disk: refuse what may be refused, else give up reserves."""
        if group.placed is not None:
            self.writer.undo_write(group.placed)
        with self.lock:
            self._flight.take_back(group)
        weakest = group.need()
        if group.calls and self.room.give(weakest):
            return
        for call in group.calls:
            if not call.is_settled and call.need == weakest:
                refusal = StorageFullError(
                    error.errno or 0,
                    "the disk is full and nothing was accepted; free some room. "
                    "Cancelling and finishing tasks goes on",
                )
                refusal.__cause__ = error
                call.error = refusal
                call.is_settled = True
        if not group.calls:  # a watermark, which can wait
            group.step = SETTLED

    # Syncing and settling.

    def _sync(self, group: Group) -> None:
        """Make a group durable, and whatever landed before; the turn is held."""
        if not group.parts and group.rests_on <= self.durable_lsn:
            group.step = SYNCED
            return
        if group.step < SYNCING:
            # One value: descriptor and LSN belong together.
            group.position = self.writer.position
            group.step = SYNCING
        assert group.position is not None, "it was noted before the step"
        if not group.answers:
            group.answers.extend(map(self.writer.sync_data, (group.position.fd,)))
            self.syncs += 1
        group.step = SYNCED

    def _settle(self, group: Group) -> None:
        """Show a group's events and answer its callers."""
        with self.lock:
            if group.step == SETTLED:
                return
            if self.poison is not None:
                self._fail(group)
                return
            if group.answers and group.position is not None:
                self._note_durable(group.position)
            self._flight.show(group)
            for call in group.calls:
                if call.is_synced is group.is_synced:
                    call.is_settled = True
            if group.parts or group.answers:
                self.on_settled()
            group.step = SETTLED

    def _note_durable(self, position: Position) -> None:
        if position.last_lsn > self.durable_lsn:
            self.durable_lsn = position.last_lsn
        if position.bound > self._bound:
            self._bound = position.bound

    # When things go wrong.

    def _leave(self, call: Call, error: BaseException) -> None:
        """Bring to an end what an interrupted thread has begun."""
        call.is_abandoned = True
        self._let_go()
        for synced in (False, True):
            line = self._lines[synced]
            with line.right:
                group = line.group
                if group is not None:
                    failure = _sync_failure(error)
                    if failure is not None and group.step == SYNCING:
                        self._poison_with(failure)
                    if group.step >= DECIDED:
                        self._bring_to_end(group)
                    else:
                        with self.pen, self.lock:
                            self._flight.take_back(group)
                        line.group = None
                line.tidy()

    def _let_go(self) -> None:
        """Give back every lock that an interrupt has left in this thread's hands."""
        for lock in (self.lock, self.pen, self.turn):
            while lock._is_owned():  # type: ignore[attr-defined]
                lock.release()

    def _poison_with(self, error: BaseException) -> None:
        """Let nothing succeed any more; called with whatever locks are held."""
        with self.lock:
            if self.poison is None:
                self.poison = error
                self.on_settled()

    def _fail(self, group: Group) -> None:
        """Tell a group's callers that nobody knows what became of it."""
        for call in group.calls:
            if not call.is_settled and call.is_synced is group.is_synced:
                why = self.poison or "the store was closed meanwhile"
                unknown = CommitUnknown(
                    f"writing the log failed ({why}); whether the change is durable is "
                    "unknown: reopen the store and look",
                    call.ids,
                )
                unknown.__cause__ = self.poison
                call.error = unknown
                call.is_settled = True
        group.step = SETTLED

    def _refuse(self, calls: Iterable[Call]) -> None:
        """Answer calls that came when it was over."""
        for call in calls:
            try:
                self._require_sound()
            except (ClosedError, StorePoisoned) as refusal:
                call.error = refusal
            call.is_settled = True
            call.wake()

    def _require_sound(self) -> None:
        if self._is_closed:
            raise ClosedError("the store can't be used: it was closed")
        if self.poison is not None:
            raise StorePoisoned(
                f"a write or sync of the log failed before ({self.poison}); nothing "
                "more is accepted: close the store and open it again"
            ) from self.poison


def _rest_on_everything(decider: Decider) -> None:
    decider.rests_on = decider.state.last_lsn


def _sync_failure(error: BaseException | None) -> OSError | None:
    """Return the error of a sync that an interrupt has covered up, if there is one."""
    while error is not None:
        trace = error.__traceback__ if isinstance(error, OSError) else None
        while trace is not None:
            # Another one may be the caller's, who makes the call while handling it.
            if trace.tb_frame.f_code is Committer._sync.__code__:
                return error  # type: ignore[return-value]
            trace = trace.tb_next
        error = error.__context__
    return None
