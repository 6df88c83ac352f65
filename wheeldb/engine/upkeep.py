"""Upkeep: what has to be done from time to time, and when the next of it is.

``step()`` does what is due and is quick, ``tidy()`` what takes its time::

    step   now     move due tasks; end leases that ran out, tasks that nobody started
                   in time, and waits that took too long; renew leases that are kept
           50 ms   after an unsynced frame: sync the log.  After quiet: an empty frame
                   that tells the log how far it is durable
           60 s    while a delay is pending: an anchor, so that a power cut costs a
                   delay no more than that (the elapsed mark); also at each step of the
                   wall clock
    tidy   60 s    after the last change, or when enough has gathered: finished ids are
                   forgotten if there are too many; a checkpoint, and a snapshot when
                   the log has grown past the last one

``plan()`` then tells until when nothing else has to be done.  With nothing to do that
is "never": the driver sleeps until something happens.  Nothing is done early either: a
clock that is not believed is looked at every 10 s, and only while it holds a task.

On a full disk what has to be written waits, and is tried again every 10 s; so does the
rebuild of an index that the disk refuses.  Due tasks and waits go on.  This module
knows the engine, but no thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop

from wheeldb.clock.timekeeper import Now
from wheeldb.disk import NO_ROOM
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.engine import Engine
from wheeldb.engine.expiry import Expiries
from wheeldb.engine.repayment import repay
from wheeldb.engine.retention import forget_finished
from wheeldb.engine.row import SCHEDULED, Row
from wheeldb.engine.sweep import STRETCH_COUNT, sweep
from wheeldb.errors import (
    CorruptionError,
    IndexUnavailable,
    LeaseLost,
    StorePoisoned,
)
from wheeldb.events import ELAPSED, WALL

__all__ = ("Upkeep", "Wait")

TAIL_MS = 50
# A shift of the wall clock against boottime that is worth an anchor.
SHIFT_MS = 1_000
HELD_LOOK_MS = 10_000
FULL_DISK_LOOK_MS = 10_000
SNAPSHOT_RETRY_MS = 600_000
# Stale ends of leases that may lie in the heap before it is built anew.
STALE_ENDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Wait:
    """Until when nothing has to be done; ``None`` is for ever."""

    boottime_ms: int | None
    wall_ms: int | None


class Upkeep:
    """Keeps one engine going; one thread at a time steps it, and one tidies."""

    def __init__(
        self,
        engine: Engine,
        *,
        elapsed_mark_ms: int,
        snapshot: Callable[[], object],
        wants_snapshot: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.leases_expired = 0
        self._expiries = Expiries(engine)
        # Why the last snapshot could not be written; it is tried again.
        self.snapshot_error: OSError | CorruptionError | None = None
        self._elapsed_mark_ms = elapsed_mark_ms
        self._snapshot = snapshot
        self._wants_snapshot = wants_snapshot
        now = engine.now()
        self._anchored_ms = now.boottime_ms
        self._trust = now.trust
        self._told_lsn = engine.committer.writer.last_lsn
        # Nothing is written before, since the disk was full.
        self._full_until_ms = 0
        self._snapshot_from_ms = 0
        # A snapshot is due whatever the log's size; set by an opening.
        self.is_snapshot_due = False
        self._swept = 0
        # Leases to renew, by who asked: the row, and until when it holds.
        self._kept: dict[object, tuple[Row, int]] = {}

    def step(self) -> None:
        """Do what is due and quick.

        Raises:
            StorePoisoned: If the log has failed.
        """
        self.engine.advance()
        if self.tend():
            self.engine.advance()

    def tend(self) -> bool:
        """Do what is due but moving tasks; return whether that has made some due."""
        engine = self.engine
        poison = engine.committer.poison
        if poison is not None:
            raise StorePoisoned(
                f"a write or sync of the log has failed ({poison}); close the store "
                "and open it again"
            ) from poison
        now = engine.now()
        engine.end_waits(now.boottime_ms)
        has_more = False
        if now.boottime_ms >= self._full_until_ms:
            with self._putting_off(now):
                has_more = repay(engine)
                self._renew_kept(now)
                has_more = self._expire_leases(now) or has_more
                self._expiries.tend(now)
                # What is due again is not pending; the next look tells what is.
                self._tend_anchor(now, is_marking=not has_more)
        self._tend_tail(now)
        return has_more

    @contextmanager
    def _putting_off(self, now: Now) -> Iterator[None]:
        """Let what finds a full disk, or no index, wait for its next turn."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM and not isinstance(error, IndexUnavailable):
                raise
            self._full_until_ms = now.boottime_ms + FULL_DISK_LOOK_MS

    def plan(self, *, is_tidying: bool = False) -> Wait:
        """Return until when there is nothing to do, but to tidy if that goes on.

        Called with the state's lock held, it is right until that is given up.
        """
        engine = self.engine
        with engine.lock:
            now = engine.now()
            elapsed_ms = self.next_due(ELAPSED, now.elapsed_ms)
            wall_ms = self.next_due(WALL, now.wall_ms)
            wall_end_ms = self._expiries.next_ms(WALL, now.wall_ms)
            if wall_end_ms is not None and self._full_until_ms <= now.boottime_ms:
                wall_ms = wall_end_ms if wall_ms is None else min(wall_ms, wall_end_ms)
            elapsed_end_ms = self._expiries.next_ms(ELAPSED, now.elapsed_ms)
            if elapsed_end_ms is not None:
                elapsed_end_ms = engine.keeper.elapsed_to_boottime(elapsed_end_ms)
            writes = [
                self._next_lease_end(),
                elapsed_end_ms,
                min(map(_renewal_ms, self._kept.values()), default=None),
                self._next_anchor(),
                None if is_tidying else self._next_tidy(),
            ]
            looks = [*engine.deadlines.values()]
            looks += [max(at, self._full_until_ms) for at in writes if at is not None]
            if elapsed_ms is not None:
                looks.append(engine.keeper.elapsed_to_boottime(elapsed_ms))
            tail_ms = self.next_tail()
            if tail_ms is not None:
                looks.append(tail_ms)
            if engine.keeper.is_owed and now.trust != "untrusted":
                looks.append(max(now.boottime_ms, self._full_until_ms))
            if wall_ms is not None and now.trust == "untrusted":
                # Held: the clock may be put right at any moment.
                looks.append(now.boottime_ms + HELD_LOOK_MS)
            return Wait(min(looks, default=None), engine.keeper.wall_wait(wall_ms))

    def next_due(self, timeline: int, now_ms: int) -> int | None:
        """Return when the window wants to be advanced next; hold the lock.

        That is the first entry's due time, or a lane's horizon.  A horizon that has
        come with ready tasks in front of it waits until those are taken, and all of
        them wait for an index while there is none.
        """
        window = self.engine.window
        first = window.wheels[timeline].next_expiration()
        if self.engine.index_damage is not None:
            return first
        for lane, (due_ms, _) in window.horizons.items():
            if (
                (first is None or due_ms < first)
                and lane not in window.closed
                and window.lanes.key(lane)[0] == timeline
                and (due_ms > now_ms or window.runs_low(lane))
            ):
                first = due_ms
        return first

    def next_in(self) -> float | None:
        """Return seconds until a task becomes due or expires, or a lease ends.

        ``None`` is never.
        Tasks that are due already don't count, so that a loop which polls at that
        instant never spins.  A held task counts as the clocks run now, without the
        correction that it waits for.
        """
        engine = self.engine
        while engine.refill(engine.now()):
            pass  # what is not loaded can't be told
        with engine.lock:
            now = engine.now()
            elapsed_ms = self.next_due(ELAPSED, now.elapsed_ms)
            wall_ms = self.next_due(WALL, now.wall_ms)
            end_ms = self._next_lease_end()
            waits_ms = []
            for timeline, now_ms in ((ELAPSED, now.elapsed_ms), (WALL, now.wall_ms)):
                expiry_ms = self._expiries.next_ms(timeline, now_ms)
                if expiry_ms is not None:
                    waits_ms.append(expiry_ms - now_ms)
            if elapsed_ms is not None:
                waits_ms.append(elapsed_ms - now.elapsed_ms)
            if end_ms is not None:
                waits_ms.append(end_ms - now.boottime_ms)
            if wall_ms is not None:
                shown_ms = engine.reading().wall_ms
                waits_ms.append(wall_ms - min(shown_ms, now.wall_ms))
        return max(min(waits_ms), 0) / 1000 if waits_ms else None

    # Leases.

    def keep_lease(self, asked_by: object, row: Row, until_ms: int) -> None:
        """Renew a lease from now on, each time a third of it has passed."""
        with self.engine.lock:
            self._kept[asked_by] = kept = (row, until_ms)
            self.engine.nudge(_renewal_ms(kept))

    def keep_lease_no_more(self, asked_by: object) -> None:
        """Let a lease run out again."""
        with self.engine.lock:
            self._kept.pop(asked_by, None)

    def _renew_kept(self, now: Now) -> None:
        for asked_by, kept in list(self._kept.items()):
            if _renewal_ms(kept) > now.boottime_ms:
                continue
            row = kept[0]
            try:
                until_ms = self._renew(row)
            except LeaseLost:
                # Who asked for it finds out when settling.
                self.keep_lease_no_more(asked_by)
                continue
            with self.engine.lock:
                if asked_by in self._kept:
                    self._kept[asked_by] = (row, until_ms)

    def _renew(self, row: Row) -> int:
        return self.engine.commit(
            lambda decider: attempts.renew(
                decider, row.number, row.fence, row.task_id, None
            ),
            synced=False,
            need=Need.BALLAST,
            author="wheel",
        )

    def _expire_leases(self, now: Now) -> bool:
        with self.engine.lock:
            end_ms = self._next_lease_end()
        if end_ms is None or end_ms > now.boottime_ms:
            return False
        self.leases_expired += self.engine.commit(
            _expire_leases, synced=False, need=Need.BALLAST, author="wheel"
        )
        return True

    def _next_lease_end(self) -> int | None:
        """Return when the first lease runs out; hold the lock."""
        leased, ends = self.engine.state.leased, self.engine.decider.lease_ends
        if len(ends) > 2 * len(leased) + STALE_ENDS_MAX:
            ends[:] = [(row.until_ms, row.number) for row in leased.values()]
            heapify(ends)
        while ends:
            until_ms, number = ends[0]
            row = leased.get(number)
            if row is not None and row.until_ms == until_ms:
                return until_ms
            heappop(ends)
        return None

    # The log's tail.

    def _tend_tail(self, now: Now) -> None:
        """Sync what is unsynced for long enough, and say so once it is quiet."""
        engine, committer = self.engine, self.engine.committer
        unsynced_ms = engine.unsynced_ms
        if unsynced_ms is not None and now.boottime_ms - unsynced_ms >= TAIL_MS:
            self._sync()
        if (
            committer.writer.last_lsn != self._told_lsn
            and now.boottime_ms - engine.tail_ms >= TAIL_MS
            and not committer.has_unsynced()
        ):
            self._tell_tail()

    def _sync(self) -> None:
        engine = self.engine
        with engine.lock:
            # What is written from here on counts from then.
            engine.unsynced_ms = None
        engine.committer.sync()

    def _tell_tail(self) -> None:
        committer = self.engine.committer
        last_lsn = committer.writer.last_lsn
        if committer.has_unsynced():
            self._sync()
        committer.write_watermark()
        self._told_lsn = last_lsn

    def next_tail(self) -> int | None:
        """Return when the log's tail wants a look; hold the lock."""
        engine, committer = self.engine, self.engine.committer
        if engine.unsynced_ms is not None:
            return engine.unsynced_ms + TAIL_MS
        last_lsn = committer.writer.position.last_lsn
        if last_lsn == self._told_lsn or last_lsn > committer.durable_lsn:
            # Nothing to tell, or a sync goes on: its end is a change.
            return None
        return engine.tail_ms + TAIL_MS

    # Anchors.

    def _tend_anchor(self, now: Now, *, is_marking: bool) -> None:
        with self.engine.lock:
            mark_ms = self._next_anchor() if is_marking else None
        if mark_ms is not None and mark_ms <= now.boottime_ms:
            self._mark(now)
        else:
            self.note_step(now)

    def note_step(self, now: Now) -> None:
        """Write down where the timelines stand if the clock was set meanwhile."""
        if now.trust != self._trust or abs(now.shift_ms) >= SHIFT_MS:
            self._mark(now)

    def _mark(self, now: Now) -> None:
        self.anchor()
        # Right away, not in a wake-up of its own.
        self._tell_tail()
        self._trust = now.trust
        self._anchored_ms = now.boottime_ms

    def anchor(self, *, synced: bool = False) -> None:
        """Write down where both timelines stand."""
        self.engine.anchor(synced=synced)

    def _next_anchor(self) -> int | None:
        if self._has_delays():
            return self._anchored_ms + self._elapsed_mark_ms
        return None

    def _has_delays(self) -> bool:
        """Return whether a power cut could make a delay longer; hold the lock."""
        window, state = self.engine.window, self.engine.state
        if len(window.wheels[ELAPSED]):
            return True
        for lane in {*window.horizons, *window.closed}:
            timeline, queue, _ = window.lanes.key(lane)
            if timeline == ELAPSED and state.pending.get((queue, SCHEDULED)):
                return True
        return False

    # Tidying up.

    def wants_tidy(self) -> bool:
        """Return whether a checkpoint is due."""
        with self.engine.lock:
            tidy_ms = self._next_tidy()
            now_ms = self.engine.reading().boottime_ms
        return tidy_ms is not None and max(tidy_ms, self._full_until_ms) <= now_ms

    def tidy(self) -> None:
        """Write a checkpoint, and a snapshot if one is due."""
        engine = self.engine
        now = engine.now()
        with self._putting_off(now):
            forget_finished(engine, now)
            engine.checkpoint()
            _, self._swept = sweep(
                engine, after=self._swept, count=STRETCH_COUNT, mend=True
            )
            wants = self.is_snapshot_due or self._wants_snapshot()
            if now.boottime_ms >= self._snapshot_from_ms and wants:
                self.is_snapshot_due = False
                self._take_snapshot(now)
            self._tell_tail()

    def _take_snapshot(self, now: Now) -> None:
        try:
            self._snapshot()
            self.snapshot_error = None
        except (OSError, CorruptionError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise
            # The store goes on without: its log holds everything.
            self.snapshot_error = error
            self._snapshot_from_ms = now.boottime_ms + SNAPSHOT_RETRY_MS

    def _next_tidy(self) -> int | None:
        """Return when a checkpoint is due, 0 for now; hold the lock."""
        engine, limits = self.engine, self.engine.thresholds
        active = engine.state.active
        frame_bytes = (
            engine.committer.writer.position.frame_bytes - engine.checkpoint_frame_bytes
        )
        if (
            self.is_snapshot_due
            or engine.index_damage is not None
            or len(active) >= limits.entries
            or active.payload_bytes >= limits.payload_bytes
            or active.events >= limits.events
            or frame_bytes >= limits.log_bytes
        ):
            return 0
        if len(active) or engine.state.frozen is not None:
            return engine.changed_ms + limits.quiet_ms
        return None


def _renewal_ms(kept: tuple[Row, int]) -> int:
    row, until_ms = kept
    return until_ms - 2 * row.lease_ms // 3


def _expire_leases(decider: Decider) -> int:
    """End what has run out by the time of the decision; return how many."""
    now_ms = decider.now.boottime_ms
    rows = [row for row in decider.state.leased.values() if row.until_ms <= now_ms]
    attempts.expire_leases(decider, rows)
    return len(rows)
