"""The engine: state, window, log and index of one opened store, tied together.

Callers reach it through four doors:

    commit(decide, …)      a change; returns once the promised durability is reached
    view(…), find(…)       what is shown now; never what is still in flight
    advance()              time has gone on: move what is due, tell who waits for it
    checkpoint()           the hot table goes into the index

What has to be done from time to time is in ``upkeep.py``; this module starts nothing
by itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wheeldb.clock import Clock, Reading
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Now, Timekeeper
from wheeldb.disk import NO_ROOM, Disk
from wheeldb.engine import refill
from wheeldb.engine.checkpointing import Checkpoint, Freezing, write_checkpoint
from wheeldb.engine.commit import Call, Committer, Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.digests import Digests
from wheeldb.engine.fold import Fact
from wheeldb.engine.hot import HotTable
from wheeldb.engine.lateness import Lateness
from wheeldb.engine.names import lookup_id
from wheeldb.engine.row import Finished, Row
from wheeldb.engine.state import Awaited, State
from wheeldb.engine.window import Window
from wheeldb.errors import IndexUnavailable, StorageFullError
from wheeldb.events import ELAPSED, WALL, F, Kind
from wheeldb.index.refusal import refusal_of
from wheeldb.index.snapshot import Index, IndexDamaged
from wheeldb.log.segment import Entropy

if TYPE_CHECKING:
    from wheeldb.engine.caution import Caution

__all__ = ("Engine", "Thresholds")

_Answer = TypeVar("_Answer")

ADVANCE_MAX = 64
# How old the last anchor may be when tasks come due.
MARK_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How much may gather in memory before a checkpoint is due."""

    entries: int = 25_000
    payload_bytes: int = 8 * 2**20
    events: int = 100_000
    log_bytes: int = 16 * 2**20
    quiet_ms: int = 60_000


class Engine:
    """One opened store, below its public face."""

    def __init__(
        self,
        *,
        disk: Disk,
        path: str,
        database: bytes,
        clock: Clock,
        keeper: Timekeeper,
        hlc: HybridClock,
        state: State,
        window: Window,
        decider: Decider,
        committer: Committer,
        digests: Digests,
        thresholds: Thresholds,
        checkpoint_lsn: int,
        entropy: Entropy,
    ) -> None:
        self.disk = disk
        self.path = path
        self.database = database
        self.clock = clock
        self.keeper = keeper
        self.hlc = hlc
        self.state = state
        self.window = window
        self.decider = decider
        self.committer = committer
        self.digests = digests
        self.thresholds = thresholds
        self.checkpoint_lsn = checkpoint_lsn
        self.checkpoint_frame_bytes = committer.log_statistics().frame_bytes
        self.checkpoints = 0
        self.entropy = entropy
        self.snapshotting = threading.RLock()
        self.snapshot_bytes = self.snapshot_frame_bytes = 0
        self.sweep_lost = self.expired_count = self.forgotten_count = 0
        self.lateness = Lateness()
        self.index_rebuilds = self.index_retry_ms = 0
        # Replaces a damaged index, and why it last could not; see ``rebuilding.py``.
        self.mend: Callable[[Index, IndexDamaged], None] = _cannot_mend
        self.index_damage: IndexDamaged | None = None
        # Tasks that were changed while off-time is owed and are in the index by now.
        self.unpaid: set[int] = set()
        # Set by an opening after a power cut, until it is over.
        self.caution: Caution | None = None
        self.lock = committer.lock
        # Rises whenever events have become visible; who waits for them compares it.
        self.ticket = 0
        self.changed = threading.Condition(self.lock)
        # The same for tasks that may have become ready.
        self.ready_ticket = 0
        self.became_ready = threading.Condition(self.lock)
        # Who waits for either.
        self._waiting: set[object] = set()
        # Until when threads wait, in boottime; whoever runs the upkeep wakes them.
        self.deadlines: dict[object, int] = {}
        # When, in boottime, the log last grew (`tail_ms`), and when the tasks last
        # changed; since when something is written and not synced.
        self.tail_ms = self.changed_ms = clock.read().boottime_ms
        self.unsynced_ms: int | None = None
        self._settled_lsn = 0
        self.checkpointing = threading.RLock()
        # The checkpoint that was begun and has not come to its end.
        self.freezing: Freezing | None = None
        # Asks whoever runs the upkeep to look again: the driver's waiter.
        self.alarm: Callable[[], None] = lambda: None
        # The same if a change needs it, or by some boottime; the lock is held.
        self.nudge: Callable[[int | None], None] = lambda at_ms: None
        committer.on_settled = self._settled

    # Time.

    def now(self) -> Now:
        """Return where the timelines stand.

        Reading and reckoning are one step: of two threads, the later sees no less.
        """
        with self.lock:
            return self.keeper.now(self.clock.read())

    def reading(self) -> Reading:
        """Return the clocks themselves."""
        return self.clock.read()

    @property
    def syncs_leases(self) -> bool:
        """Whether a lease is to be synced before its handler starts."""
        caution = self.caution
        if caution is None:
            return False
        if caution.is_over(self.clock.read().boottime_ms):
            self.caution = None
            return False
        return True

    def note_good_runs(self, count: int) -> None:
        """Take note of attempts that were acked: after so many, caution ends."""
        caution = self.caution
        if caution is not None:
            caution.note_good_runs(count)

    # Changing.

    def commit(
        self,
        decide: Callable[[Decider], _Answer],
        synced: bool,
        need: Need = Need.REFUSE,
        author: str = "",
        size: int = 64,
        ids: Sequence[str] = (),
    ) -> _Answer:
        """Commit one call, alone or in a group, and return its answer.

        Raises:
            TaskError, StorageFullError: It was refused; nothing was written.
            IndexUnavailable, CorruptionError: So it was, as `mended` says.
            CommitUnknown, StorePoisoned: The log failed.
        """
        submit, state, thresholds = self.committer.submit, self.state, self.thresholds
        index = state.index
        try:
            answer = submit(Call(decide, synced, need, author, size, ids))
        except IndexDamaged as damage:
            answer = self._do_again(
                lambda: submit(Call(decide, synced, need, author, size, ids)),
                index,
                damage,
            )
        active = state.active
        if (
            len(active.rows) + len(active.finished) >= thresholds.entries
            or active.payload_bytes >= thresholds.payload_bytes
        ):
            self._make_way()
        return answer  # type: ignore[return-value]

    def note(self, kind: Kind, fields: dict[int, object], *, synced: bool) -> int:
        """Commit a fact about the store itself; return its LSN."""
        changed_ms = self.changed_ms
        lsn = self.commit(
            lambda decider: decider.emit(Fact(kind, 1, fields)),
            synced=synced,
            need=Need.BALLAST,
            author="wheel",
        )
        # No task has changed: that must not put off a checkpoint.
        self.changed_ms = changed_ms
        return lsn

    def _make_way(self) -> None:
        """The hot table is full: have it written, or do it if that goes on already."""
        if self.state.frozen is None:
            self.alarm()
        if len(self.state.active) >= 2 * self.thresholds.entries or (
            self.state.frozen is not None
            and len(self.state.active) >= self.thresholds.entries
        ):
            # The caller's change is done.  If there is no room for the checkpoint,
            # there is none for new tasks either: the table grows no further.
            with contextlib.suppress(StorageFullError, IndexUnavailable):
                self.checkpoint()

    def _settled(self) -> None:
        """Events have become visible, or the log has failed; the lock is held."""
        committer, now = self.committer, self.decider.now
        self.ticket += 1
        if self._waiting:
            self.changed.notify_all()
        if committer.poison is not None:
            # Nothing becomes ready any more; who waits for it has to know.
            self._tell_ready()
            self.alarm()
            return
        elapsed, wall = self.window.wheels
        # Asked at every commit, and nearly always no: spare the call.
        if (elapsed.first_ms <= now.elapsed_ms and elapsed.is_due(now.elapsed_ms)) or (
            wall.first_ms <= now.wall_ms and wall.is_due(now.wall_ms)
        ):
            self._tell_ready()
        last_lsn = committer.writer.position.last_lsn
        if last_lsn != self._settled_lsn:
            self._settled_lsn = last_lsn
            self.tail_ms = self.changed_ms = now.boottime_ms
        if last_lsn <= committer.durable_lsn:
            self.unsynced_ms = None
        elif self.unsynced_ms is None:
            self.unsynced_ms = now.boottime_ms
        self.nudge(None)

    def _tell_ready(self) -> None:
        self.ready_ticket += 1
        if self._waiting:
            self.became_ready.notify_all()

    def wake_waiters(self) -> None:
        """Let everybody who waits look again."""
        with self.lock:
            self.ticket += 1
            self.changed.notify_all()
            self._tell_ready()

    # A damaged index.

    def mended(self, work: Callable[[], _Answer]) -> _Answer:
        """Do what may meet a damaged index; if it does, rebuild that and do it again.

        Raises:
            StorageFullError, IndexUnavailable: It can't be, or was damaged again.
            CorruptionError: Nor do snapshots and log make what is in memory.
        """
        index = self.state.index
        try:
            return work()
        except IndexDamaged as damage:
            return self._do_again(work, index, damage)

    def _do_again(
        self, work: Callable[[], _Answer], index: Index, damage: IndexDamaged
    ) -> _Answer:
        self.mend(index, damage)
        try:
            return work()
        except IndexDamaged as again:
            raise refusal_of(again) from again

    def adopt(self, index: Index, digests: Digests) -> None:
        """Go on with an index that holds everything there is; the lock is held."""
        state = self.state
        state.index = index
        state.active, state.frozen = HotTable(), None
        self.freezing = None
        self.digests = digests
        self.checkpoint_lsn = state.last_lsn
        self.index_rebuilds += 1
        self.index_damage = None

    # Seeing.

    def view(self, number: int) -> Row | None:
        """Return an unfinished task as it is shown."""
        return self.mended(lambda: self._view(number))

    def _view(self, number: int) -> Row | None:
        with self.lock:
            return self.state.view(number, self.committer.undos())

    def find(self, task_id: str) -> Row | Finished | None:
        """Return what is shown under an id.

        Raises:
            TypeError, ValueError: If the id is no ``str``, or not Unicode.
        """
        return self.mended(lambda: self._find(lookup_id(task_id)))

    def _find(self, key: int | str) -> Row | Finished | None:
        with self.lock:
            undos = list(self.committer.undos())
            state = self.state
            if isinstance(key, int):
                row = state.view(key, undos)
                return row if row is not None and row.id is None else None
            number, finishing_lsn = state.shown_under(key, undos)
            if number:
                return state.view(number, undos)
            if finishing_lsn:
                return self.decider.remembered(
                    state.finished_at(finishing_lsn, undos), self.now()
                )
            return None

    # Time goes on.

    def anchor(self, *, synced: bool = False) -> None:
        """Write down where both timelines stand."""
        with self.lock:
            anchor = self.keeper.anchor(self.reading())
        self.note(Kind.ANCHORED, {F.ANCHOR: anchor.to_fields()}, synced=synced)

    def _mark_time(self) -> None:
        """Write an anchor before tasks start that lie far behind the last one.

        A lease may be lost with the power, and then the log's end tells which tasks may
        have been started: those that were due by then, or a little later. So between
        that end and the present there must not be a long suspend.
        """
        with self.lock:
            anchor, now, wheels = self.state.anchor, self.now(), self.window.wheels
            is_late = False
            if anchor is not None and now.elapsed_ms - anchor.elapsed_ms > MARK_MS:
                is_late = wheels[ELAPSED].is_due(now.elapsed_ms)
            if anchor is not None and now.wall_ms - anchor.high_water_ms > MARK_MS:
                is_late = is_late or wheels[WALL].is_due(now.wall_ms)
        if is_late:
            # Without room it goes unmarked; that tasks come due is worth more.
            with contextlib.suppress(StorageFullError):
                self.anchor(synced=True)

    def advance(self, limit: int | None = None) -> int:
        """Move what is due to where it is leased from; return how many."""
        moved = 0
        self._mark_time()
        while limit is None or moved < limit:
            with self.lock:
                now = self.now()
                step = ADVANCE_MAX if limit is None else min(ADVANCE_MAX, limit - moved)
                count = self.window.advance(now.elapsed_ms, now.wall_ms, step)
                if count:
                    self._tell_ready()
            moved += count
            if count < step and not self.refill(now):
                break
        return moved

    def refill(self, now: Now, queues: Sequence[str] = ()) -> bool:
        """Load one slice from the index if the window wants it; return whether.

        With queues, one that is due in these, even if enough is ready.
        """
        # Without an index what is in memory goes on; the rest comes once it is there.
        try:
            return self.mended(lambda: self._refill(now, queues))
        except (StorageFullError, IndexUnavailable):
            return False

    def _refill(self, now: Now, queues: Sequence[str]) -> bool:
        with self.lock:
            lanes = self.state.lanes
            slice_ = refill.begin(
                self.state,
                self.window,
                (now.elapsed_ms, now.wall_ms),
                [lane for queue in queues for lane in lanes.of_queue(queue)] or None,
            )
        if slice_ is None:
            return False
        slice_.scan()
        with self.lock:
            slice_.finish(list(self.committer.undos()))
        return True

    def has_ready(self, queues: Sequence[str]) -> bool:
        """Return whether a task of one of the queues may be ready."""
        with self.lock:
            lanes, ready = self.state.lanes, self.window.ready
            return any(
                lane in ready for queue in queues for lane in lanes.of_queue(queue)
            )

    def wait_for_change(self, ticket: int, deadline_ms: int | None) -> bool:
        """Wait until events have become visible since ``ticket``.

        Returns:
            False if the deadline came first.  It is on boottime; whoever runs the
            upkeep ends the wait (``end_waits``), so that one thread alone knows timers.
        """
        return self._wait(self.changed, lambda: self.ticket != ticket, deadline_ms)

    def wait_for_ready(self, ticket: int, deadline_ms: int | None) -> bool:
        """Wait likewise until a task may have become ready since ``ready_ticket``."""
        return self._wait(
            self.became_ready, lambda: self.ready_ticket != ticket, deadline_ms
        )

    def _wait(
        self,
        condition: threading.Condition,
        is_over: Callable[[], bool],
        deadline_ms: int | None,
    ) -> bool:
        mine = object()
        with condition:
            self._waiting.add(mine)
            try:
                while not is_over():
                    if deadline_ms is not None:
                        if self.clock.read().boottime_ms >= deadline_ms:
                            return False
                        if mine not in self.deadlines:
                            self.deadlines[mine] = deadline_ms
                            self.nudge(deadline_ms)
                    condition.wait()
                return True
            finally:
                self.deadlines.pop(mine, None)
                self._waiting.discard(mine)

    def end_waits(self, boottime_ms: int) -> None:
        """Wake who has waited until now."""
        with self.lock:
            over = [
                waiting
                for waiting, deadline_ms in self.deadlines.items()
                if deadline_ms <= boottime_ms
            ]
            for waiting in over:
                del self.deadlines[waiting]
            if over:
                self.changed.notify_all()
                self.became_ready.notify_all()

    @contextlib.contextmanager
    def awaiting(self, number: int) -> Iterator[Callable[[], Finished | None]]:
        """Have the end of a task kept for the length of a block, whatever its id."""
        awaited = self.state.awaited
        with self.lock:
            kept = awaited.setdefault(number, Awaited())
            kept.waiters_count += 1
        try:
            yield lambda: kept.end
        finally:
            with self.lock:
                kept.waiters_count -= 1
                if not kept.waiters_count:
                    awaited.pop(number, None)

    def queue_changed(self) -> None:
        """Open and close lanes as their queues are paused or not."""
        with self.lock:
            paused, lanes = self.state.paused_queues, self.state.lanes
            self.window.paused_queues = paused
            for (_, queue, _), lane in lanes.numbers.items():
                if queue in paused and lane not in self.window.closed:
                    self.window.close_lane(lane)
                elif queue not in paused and lane in self.window.closed:
                    self.window.open_lane(lane)
            self._tell_ready()
        self.alarm()

    # Checkpoints.

    def checkpoint(self) -> Checkpoint:
        """Write the hot table into the index; return once that is durable.

        Raises:
            StorePoisoned: If the log has failed: nothing unproven goes into the index.
            StorageFullError: If there is no room for it; it is tried again later.
            IndexUnavailable: If the disk refuses it, and a new index as well; likewise.
        """
        try:
            if self.index_damage is not None:
                self.mend(self.state.index, self.index_damage)
            return self.mended(lambda: write_checkpoint(self))
        except OSError as error:
            if error.errno not in NO_ROOM or isinstance(error, StorageFullError):
                raise
            raise StorageFullError(error.errno, "no room for a checkpoint") from error


def _cannot_mend(index: Index, damage: IndexDamaged) -> None:
    raise damage
