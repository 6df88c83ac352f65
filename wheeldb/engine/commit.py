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
hand-over for a single caller.  Three locks, always taken in this order: ``turn`` (one
synced group at a time), ``pen`` (one frame at a time), ``lock`` (the state).

**Interrupts.**  A ``KeyboardInterrupt`` may be raised between any two bytecodes of the
main thread.  So a group is an object, known to the committer before anything happens,
with the ``step`` it has reached, and each step can be begun again:

    step       if its leader leaves, the next one …
    DECIDING   rolls the state back and decides anew
    PLACED     writes the same bytes to the same offset
    WRITTEN    syncs
    SYNCED     settles; the sync's answer was stored by the C call that made it, so a
               sync that answered is never repeated

A leader that is interrupted finishes its group before the interrupt goes on to its
caller.  An interrupt may even fall between the last line of a ``with`` block and its
end, so ``submit`` then gives back whatever lock the thread still owns (``_let_go``);
the locks are re-entrant because only those know their owner.

**Poison.**  A failed write other than for lack of room, any failed sync, and a decision
that fails twice for no reason of the caller's: the group gets ``CommitUnknown``, every
later call ``StorePoisoned``.  What was not durable is never shown.
"""

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import islice

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Timekeeper
from wheeldb.engine import undo as undoing
from wheeldb.engine.columns import Columns
from wheeldb.engine.decide import Decider
from wheeldb.engine.row import Row
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo
from wheeldb.engine.window import Window
from wheeldb.errors import (
    CommitUnknown,
    CorruptionError,
    StorageFullError,
    StorePoisoned,
    TaskError,
)
from wheeldb.log.frame import FrameType, lsn_bound
from wheeldb.log.reserve import Ballast, Reserve
from wheeldb.log.segment import LogSyncError
from wheeldb.log.writer import LogStatistics, LogWriter, Placed

__all__ = ("Call", "Committer", "Need")

# A group stops at whichever comes first, but holds one call at least.
GROUP_EVENTS_MAX = 4_096
GROUP_BYTES_MAX = 2**20
# What is given back of the reserve at a time.
ROOM_BYTES = 2**20

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_REFUSALS = (TaskError, StorageFullError, CorruptionError)


class Need(IntEnum):
    """How far a call may go to find room on a full disk."""

    REFUSE = 0  # new tasks: refuse
    BALLAST = 1  # leases, retries: use the ballast
    RESERVE = 2  # what ends tasks: use the room that was reserved for it


class Call:
    """One caller's change, from its submission to its answer."""

    __slots__ = (
        "author",
        "decide",
        "error",
        "ids",
        "is_abandoned",
        "is_settled",
        "need",
        "result",
        "size",
        "strikes",
        "synced",
    )

    def __init__(
        self,
        decide: Callable[[Decider], object],
        *,
        synced: bool,
        need: Need = Need.REFUSE,
        author: str = "",
        size: int = 64,
        ids: Sequence[str] = (),
    ) -> None:
        self.decide = decide
        self.synced = synced
        self.need = need
        self.author = author
        self.size = size
        self.ids = ids
        self.result: object = None
        self.error: BaseException | None = None
        self.is_settled = False
        self.is_abandoned = False
        self.strikes = 0


class Step(IntEnum):
    """How far a group has come."""

    FORMED = 0
    DECIDING = 1
    DECIDED = 2
    PLACED = 3
    WRITTEN = 4
    SYNCING = 5
    SYNCED = 6
    SETTLED = 7


class Group:
    """The calls that share one frame, and how far they have come."""

    __slots__ = (
        "answers",
        "calls",
        "covered_lsn",
        "deciding",
        "fd",
        "hlc",
        "is_shown",
        "is_synced_kind",
        "parts",
        "placed",
        "rests_on",
        "step",
        "taken",
        "touched",
        "undo",
    )

    def __init__(self, calls: list[Call], *, synced: bool) -> None:
        self.calls = calls
        self.is_synced_kind = synced
        self.step = Step.FORMED
        self.undo: Undo | None = None
        self.deciding: Call | None = None
        self.parts: list[bytes] = []
        self.taken: list[int] = []
        self.touched: list[tuple[Row | None, Row | None] | Columns] = []
        self.rests_on = 0
        self.hlc = 0
        self.placed: Placed | None = None
        self.fd = -1
        self.covered_lsn = 0
        self.answers: list[None] = []
        self.is_shown = False


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
    ) -> None:
        self.state = state
        self.window = window
        self.decider = decider
        self.writer = writer
        self.clock = clock
        self.keeper = keeper
        self.hlc = hlc
        self.reserve = reserve
        self.ballast = ballast
        self.lock = threading.RLock()
        self.pen = threading.RLock()
        self.turn = threading.RLock()
        self.durable_lsn = durable_lsn
        self.syncs = 0
        self.poison: BaseException | None = None
        # Called with the lock held, whenever events have become visible.
        self.on_settled: Callable[[], None] = lambda: None
        self._bound = writer.position.bound
        self._waiting: dict[bool, deque[Call]] = {True: deque(), False: deque()}
        # The group that its leader has not brought to an end yet, by kind.
        self._open: dict[bool, Group | None] = {True: None, False: None}
        # Groups whose events are numbered but not shown, oldest first.
        self._flying: list[Group] = []
        state.touched = []

    # What callers use.

    def submit(self, call: Call) -> object:
        """Commit a call, alone or with others, and return its answer.

        Raises:
            TaskError, StorageFullError: The call was refused; nothing was written.
            CommitUnknown: A write or sync failed while it was on its way.
            StorePoisoned: One had failed before.
        """
        synced = call.synced
        waiting = self._waiting[synced]
        try:
            waiting.append(call)
            with self.turn if synced else self.pen:
                while not call.is_settled:
                    self._lead(synced)
        except BaseException as error:
            call.is_abandoned = True
            self._let_go()
            self._finish_open(error)
            raise
        if call.error is not None:
            raise call.error
        return call.result

    def sync(self) -> None:
        """Make everything that was written durable.

        Raises:
            StorePoisoned: If that failed, now or before.
        """
        self.submit(Call(_rest_on_everything, synced=True, need=Need.RESERVE))

    def settle_all(self) -> None:
        """Bring every begun group to its end and sync; hold turn and pen.

        Raises:
            StorePoisoned: If that failed, now or before.
        """
        for synced in (False, True):
            group = self._open[synced]
            if group is not None:
                self._carry_on(group)
                self._open[synced] = None
        self._require_sound()
        if self.has_unsynced():
            lsn = self.writer.last_lsn
            try:
                self.writer.sync_data(self.writer.fd)
            except OSError as error:
                self._poison_with(error, ())
                self._require_sound()
            self.syncs += 1
            with self.lock:
                self._note_durable(lsn)

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
                self._poison_with(error, ())
                self._require_sound()

    def has_unsynced(self) -> bool:
        """Return whether something was written that no sync has covered."""
        return self.writer.last_lsn > self.durable_lsn

    def write_watermark(self) -> None:
        """Tell the log, in an empty frame, that everything in it is durable."""
        with self.pen:
            self._require_sound()
            writer = self.writer
            if writer.position.last_type == FrameType.WATERMARK:
                return
            if self.has_unsynced() or any(self._open.values()):
                return
            if writer.must_rotate(0):
                return
            placed = writer.place(
                FrameType.WATERMARK,
                b"",
                first_lsn=writer.last_lsn + 1,
                count=0,
                hlc=self.hlc.last,
                watermark=self.durable_lsn,
                bound=lsn_bound(writer.last_lsn),
            )
            try:
                writer.write(placed)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    self._poison_with(error, ())
                else:
                    writer.undo_write(placed)
                return
            writer.landed(placed)

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
                writer.sync_data(writer.fd)
                writer.cut()
            except OSError as error:
                self._poison_with(error, ())
                if not isinstance(error, LogSyncError) and error.errno in NO_ROOM:
                    raise StorageFullError(error.errno, "no room for a footer") from error
                self._require_sound()
            return writer.last_lsn

    def close(self) -> None:
        """Close the log's files; nothing is written or synced."""
        with self.turn, self.pen:
            self.writer.close()
            for room in (self.reserve, self.ballast):
                if room is not None:
                    room.close()

    def undos(self) -> Iterator[Undo]:
        """Yield the undo records of what is not to be seen yet; hold the lock."""
        for group in self._flying:
            if group.undo is not None:
                yield group.undo

    # Leading a group.

    def _lead(self, synced: bool) -> None:
        """Bring one group to its end; the turn (or the pen) is held."""
        group = self._open[synced]
        if group is None:
            calls = self._take(synced)
            if not calls:
                return
            if self.poison is not None:
                self._settle_calls(calls, self._poisoned_error())
                self._drop_settled(synced)
                return
            group = Group(calls, synced=synced)
            self._open[synced] = group
        self._carry_on(group)
        self._open[synced] = None
        self._drop_settled(synced)

    def _take(self, synced: bool) -> list[Call]:
        calls: list[Call] = []
        size = 0
        for call in islice(list(self._waiting[synced]), GROUP_EVENTS_MAX):
            if call.is_settled:
                continue
            if call.is_abandoned:
                call.is_settled = True
                continue
            size += call.size
            if calls and size > GROUP_BYTES_MAX:
                break
            calls.append(call)
        return calls

    def _drop_settled(self, synced: bool) -> None:
        waiting = self._waiting[synced]
        while waiting and waiting[0].is_settled:
            waiting.popleft()

    def _carry_on(self, group: Group) -> None:
        """Take a group from the step it has reached to its end."""
        try:
            if group.step < Step.WRITTEN:
                with self.pen:
                    self._clear_pen(group)
                    self._decide_and_write(group)
            if group.step in (Step.WRITTEN, Step.SYNCING) and group.is_synced_kind:
                self._sync(group)
            self._settle(group)
        except OSError as error:
            # Lack of room was dealt with; nobody knows what the log holds now.
            self._poison_with(error, group.calls)
            group.step = Step.SETTLED

    def _clear_pen(self, group: Group) -> None:
        """Bring a frame that an interrupted leader left half-way out of the way."""
        other = self._open[not group.is_synced_kind]
        if other is not None and Step.FORMED < other.step < Step.WRITTEN:
            self._decide_and_write(other)

    def _decide_and_write(self, group: Group) -> None:
        while group.step < Step.WRITTEN:
            if group.step < Step.DECIDED:
                self._decide(group)
            try:
                self._write(group)
            except LogSyncError:
                raise
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._find_room(group, error)

    def _decide(self, group: Group) -> None:
        """Decide a group's calls against the state; the pen is held."""
        with self.lock:
            if group.undo is not None:
                self._undo(group)
            state, decider = self.state, self.decider
            reading = self.clock.read()
            decider.begin(self.keeper.now(reading), self.hlc.now(reading.wall_ms))
            group.undo = state.undo = undoing.mark(state)
            group.hlc = decider.stamp
            group.parts, group.taken = decider.parts, decider.taken
            if group not in self._flying:
                self._flying.append(group)
            group.step = Step.DECIDING
            try:
                for call in group.calls:
                    if not call.is_settled:
                        group.deciding = call
                        self._decide_call(call)
                self.hlc.restore(max(group.hlc, decider.stamp - 1))
                group.rests_on = decider.rests_on
                group.touched = state.touched or []
                state.touched = []
                state.undo = None
                group.step = Step.DECIDED
            except BaseException as error:
                if group.step < Step.DECIDED:
                    self._blame(group, error)
                raise

    def _decide_call(self, call: Call) -> None:
        before = self.state.last_lsn
        self.decider.author = call.author
        call.error = None
        try:
            call.result = call.decide(self.decider)
        except _REFUSALS as refusal:
            if self.state.last_lsn != before:
                raise AssertionError("a refused call has changed the state") from refusal
            call.error = refusal

    def _undo(self, group: Group) -> None:
        """Take back what a group decided; nothing of it is in the log."""
        undo = group.undo
        if undo is None:
            return
        state = self.state
        undoing.roll_back(state, undo)
        state.undo = None
        if state.touched is None:
            state.touched = []
        # What was taken from the window, or moved in it, is placed anew.
        for entry in group.taken:
            self.window.make_ready(entry)
        self.window.reconcile([(None, row) for row in undo.rows.values()])
        group.undo = None
        group.placed = None
        group.parts = []
        group.taken = []
        group.touched = []
        if group in self._flying:
            self._flying.remove(group)
        group.step = Step.FORMED

    def _blame(self, group: Group, error: BaseException) -> None:
        """Note that a decision was cut short; twice the same call is no accident."""
        self._undo(group)
        call = group.deciding
        if call is None:
            return
        call.strikes += 1
        if call.strikes > 1 and isinstance(error, Exception):
            self._poison_with(error, group.calls)
            group.step = Step.SETTLED

    def _write(self, group: Group) -> None:
        """Write a group's frame; the pen is held."""
        writer = self.writer
        if not group.parts:
            group.fd = writer.fd
            group.covered_lsn = writer.last_lsn
            group.step = Step.WRITTEN
            return
        if group.placed is None:
            payload = b"".join(group.parts)
            if writer.must_rotate(len(payload)):
                self._note_durable(writer.rotate())
            first_lsn = writer.last_lsn + 1
            count = self.state.last_lsn - first_lsn + 1
            need = min(call.need for call in group.calls)
            group.placed = writer.place(
                FrameType.SYNCED if group.is_synced_kind else FrameType.UNSYNCED,
                payload,
                first_lsn=first_lsn,
                count=count,
                hlc=group.hlc,
                watermark=self.durable_lsn,
                bound=lsn_bound(first_lsn + count - 1),
                align=need < Need.RESERVE,
            )
            group.step = Step.PLACED
        writer.write(group.placed)
        writer.landed(group.placed)
        group.fd = group.placed.before.fd
        group.covered_lsn = group.placed.last_lsn
        group.step = Step.WRITTEN

    def _find_room(self, group: Group, error: OSError) -> None:
        """Deal with a full disk: refuse what may be refused, else give up reserves."""
        if group.placed is not None:
            self.writer.undo_write(group.placed)
        with self.lock:
            self._undo(group)
        needy = [call for call in group.calls if not call.is_settled]
        weakest = min((call.need for call in needy), default=Need.RESERVE)
        if weakest > Need.REFUSE and self._give_room(weakest):
            return
        refusal = StorageFullError(
            errno.ENOSPC,
            "the disk is full and nothing was accepted; free some room. Cancelling "
            "and finishing tasks goes on",
        )
        refusal.__cause__ = error
        refused = [call for call in needy if call.need == weakest]
        self._settle_calls(refused, refusal)

    def _give_room(self, need: Need) -> bool:
        if need == Need.RESERVE and self.reserve is not None:
            if self.reserve.give_back(ROOM_BYTES):
                return True
        return self.ballast is not None and self.ballast.release()

    def _sync(self, group: Group) -> None:
        """Make a group durable; the turn is held."""
        if not group.parts and group.rests_on <= self.durable_lsn:
            group.step = Step.SYNCED
            return
        if group.step == Step.WRITTEN:
            # Everything that has landed by now is covered.
            group.fd, group.covered_lsn = self.writer.fd, self.writer.last_lsn
            group.step = Step.SYNCING
        if not group.answers:
            group.answers.extend(map(self.writer.sync_data, (group.fd,)))  # type: ignore[arg-type]
            self.syncs += 1
        group.step = Step.SYNCED

    def _settle(self, group: Group) -> None:
        """Show a group's events and answer its callers."""
        if group.step == Step.SETTLED:
            return
        with self.lock:
            if group.is_synced_kind and group.answers:
                self._note_durable(group.covered_lsn)
            group.is_shown = True
            while self._flying and self._flying[0].is_shown:
                del self._flying[0]
            self.window.reconcile(group.touched)
            self._settle_calls(group.calls, None)
            group.step = Step.SETTLED
            self.on_settled()

    def _note_durable(self, lsn: int) -> None:
        if lsn > self.durable_lsn:
            self.durable_lsn = lsn

    @staticmethod
    def _settle_calls(calls: Iterable[Call], error: BaseException | None) -> None:
        for call in calls:
            if not call.is_settled:
                if error is not None:
                    call.error = error
                call.is_settled = True

    # When things go wrong.

    def _let_go(self) -> None:
        """Give back every lock that an interrupt has left in this thread's hands."""
        for lock in (self.lock, self.pen, self.turn):
            while lock._is_owned():  # type: ignore[attr-defined]
                lock.release()

    def _finish_open(self, error: BaseException) -> None:
        """Bring to an end what an interrupted leader has begun."""
        for synced, lock in ((False, self.pen), (True, self.turn)):
            if self._open[synced] is None:
                continue
            with lock:
                group = self._open[synced]
                if group is None:
                    continue
                failure = _sync_failure(error)
                if failure is not None and group.step == Step.SYNCING:
                    self._poison_with(failure, group.calls)
                    self._open[synced] = None
                    continue
                if group.step < Step.DECIDED:
                    with self.lock:
                        self._undo(group)
                    self._open[synced] = None
                    continue
                self._carry_on(group)
                self._open[synced] = None

    def _poison_with(self, error: BaseException, calls: Iterable[Call]) -> None:
        """Let nothing succeed any more; called with whatever locks are held."""
        if self.poison is None:
            self.poison = error
        for call in calls:
            if not call.is_settled:
                unknown = CommitUnknown(
                    f"writing the log failed ({error}); whether the change is durable "
                    "is unknown: reopen the store and look",
                    call.ids,
                )
                unknown.__cause__ = error
                call.error = unknown
                call.is_settled = True

    def _poisoned_error(self) -> StorePoisoned:
        refusal = StorePoisoned(
            f"a write or sync of the log failed before ({self.poison}); nothing more "
            "is accepted: close the store and open it again"
        )
        refusal.__cause__ = self.poison
        return refusal

    def _require_sound(self) -> None:
        if self.poison is not None:
            raise self._poisoned_error()


def _rest_on_everything(decider: Decider) -> None:
    decider.rests_on = decider.state.last_lsn


def _sync_failure(error: BaseException | None) -> OSError | None:
    """Return the system's error that an interrupt has covered up, if there is one."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__context__
    return None
