"""Upkeep: what has to be done from time to time, and when the next of it is.

``step()`` does what is due and returns until when nothing else will be::

    now    move due tasks; end expired leases; load the window
    50 ms  after an unsynced frame: sync the log; after quiet: an empty frame that
           tells the log how far it is durable
    60 s   while a delay is pending: an anchor, so that a power cut costs a delay no
           more than that (the elapsed mark)
    60 s   after the last change, or when enough has gathered: a checkpoint
    then   a snapshot, when the log has grown past the last one

Nothing is done when there is nothing to do, and the answer is then "never": the driver
sleeps until something happens.  This module knows the engine, but no thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from wheeldb.clock.timekeeper import Now
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.engine import Engine
from wheeldb.engine.row import Row
from wheeldb.engine.sweep import STRETCH_COUNT, sweep
from wheeldb.errors import LeaseLost, StorageFullError
from wheeldb.events import ELAPSED, WALL, F, Kind

__all__ = ("Upkeep", "Wait")

TAIL_MS = 50
# A shift of the wall clock against boottime that is worth an anchor.
SHIFT_MS = 1_000
HELD_LOOK_MS = 10_000
FULL_DISK_LOOK_MS = 10_000


@dataclass(frozen=True, slots=True)
class Wait:
    """Until when nothing has to be done; ``None`` is for ever."""

    boottime_ms: int | None
    wall_ms: int | None


class Upkeep:
    """Keeps one engine going; one thread at a time may step it."""

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
        self._elapsed_mark_ms = elapsed_mark_ms
        self._snapshot = snapshot
        self._wants_snapshot = wants_snapshot
        self._lease_heap: list[tuple[int, int]] = [
            (row.until_ms, row.number) for row in engine.state.leased.values()
        ]
        heapify(self._lease_heap)
        now = engine.now()
        self._anchored_ms = now.boottime_ms
        self._trust = now.trust
        self._seen_lsn = engine.committer.writer.last_lsn
        self._changed_ms = now.boottime_ms
        self._is_tail_told = True
        self._retry_ms = 0
        self._swept = 0
        self._ticket = -1
        # Leases to renew: by fence, the row and until when it holds.
        self._kept: dict[int, tuple[Row, int]] = {}

    def watch_leases(self, rows: list[Row]) -> None:
        """Take note of leases, so that they are ended when they have run out."""
        with self.engine.lock:
            for row in rows:
                heappush(self._lease_heap, (row.until_ms, row.number))

    def watch_lease(self, number: int, until_ms: int) -> None:
        """The same for one that was renewed."""
        with self.engine.lock:
            heappush(self._lease_heap, (until_ms, number))

    def keep_lease(self, row: Row) -> None:
        """Renew a lease from now on, each time a third of it has passed."""
        with self.engine.lock:
            self._kept[row.fence] = (row, row.until_ms)
        self.engine.alarm()

    def keep_lease_no_more(self, row: Row) -> None:
        """Let a lease run out again."""
        with self.engine.lock:
            self._kept.pop(row.fence, None)

    def step(self) -> Wait:
        """Do what is due; return until when nothing else is.

        Raises:
            StorePoisoned: If the log has failed.
        """
        self.engine.advance()
        return self.tend()

    def tend(self) -> Wait:
        """Do what is due but moving tasks; see ``step``."""
        engine = self.engine
        now = engine.now()
        keep_ms = self._renew_kept(now)
        self._expire_leases(now)
        tail_ms = self._tend_tail(now)
        mark_ms = self._tend_anchor(now)
        checkpoint_ms = self._tend_checkpoint(now)
        self._ticket = engine.ticket
        if tail_ms is None:
            tail_ms = self._tend_tail(now)
        return self._wait(now, keep_ms, tail_ms, mark_ms, checkpoint_ms)

    def is_stale(self) -> bool:
        """Return whether something has changed since the last step looked."""
        return self._ticket != self.engine.ticket

    # Leases.

    def _renew_kept(self, now: Now) -> int | None:
        """Renew the kept leases that want it; return when the next one does."""
        next_ms: int | None = None
        for fence, (row, until_ms) in list(self._kept.items()):
            renew_ms = until_ms - 2 * row.lease_ms // 3
            if renew_ms <= now.boottime_ms:
                number, task_id = row.number, row.task_id
                try:
                    until_ms = self.engine.commit(
                        lambda decider, n=number, f=fence, t=task_id: attempts.renew(
                            decider,  # type: ignore[misc]
                            n,
                            f,
                            t,
                            None,
                        ),
                        synced=False,
                        need=Need.BALLAST,
                        author="wheel",
                    )
                except LeaseLost:
                    self.keep_lease_no_more(row)
                    continue
                with self.engine.lock:
                    if fence in self._kept:
                        self._kept[fence] = (row, until_ms)
                    heappush(self._lease_heap, (until_ms, number))
                renew_ms = until_ms - 2 * row.lease_ms // 3
            next_ms = renew_ms if next_ms is None else min(next_ms, renew_ms)
        return next_ms

    def _expire_leases(self, now: Now) -> None:
        expired = []
        with self.engine.lock:
            leased, heap = self.engine.state.leased, self._lease_heap
            while heap and heap[0][0] <= now.boottime_ms:
                until_ms, number = heappop(heap)
                row = leased.get(number)
                if row is not None and row.until_ms == until_ms:
                    expired.append(row)
        if expired:
            self.leases_expired += len(expired)
            self.engine.commit(
                lambda decider: attempts.expire_leases(decider, expired),
                synced=False,
                need=Need.BALLAST,
                author="wheel",
            )

    def _next_lease_ms(self) -> int | None:
        leased, heap = self.engine.state.leased, self._lease_heap
        while heap:
            until_ms, number = heap[0]
            row = leased.get(number)
            if row is not None and row.until_ms == until_ms:
                return until_ms
            heappop(heap)
        return None

    # The log's tail.

    def _tend_tail(self, now: Now) -> int | None:
        """Sync what is unsynced, and say so once it is quiet; return when to look."""
        committer = self.engine.committer
        last_lsn = committer.writer.last_lsn
        if last_lsn != self._seen_lsn:
            self._seen_lsn = last_lsn
            self._changed_ms = now.boottime_ms
            self._is_tail_told = False
        if self._is_tail_told:
            return None
        if now.boottime_ms - self._changed_ms < TAIL_MS:
            return self._changed_ms + TAIL_MS
        self._tell_tail()
        return None

    def _tell_tail(self) -> None:
        """Sync the log, and let it say itself that all of it is durable."""
        committer = self.engine.committer
        if committer.has_unsynced():
            committer.sync()
        committer.write_watermark()
        self._seen_lsn = committer.writer.last_lsn
        self._is_tail_told = True

    # Anchors.

    def _tend_anchor(self, now: Now) -> int | None:
        """Write an anchor if one is due; return when the next one is."""
        is_marking = self._has_delays()
        if (
            now.trust != self._trust
            or abs(now.shift_ms) >= SHIFT_MS
            or (
                is_marking
                and now.boottime_ms - self._anchored_ms >= self._elapsed_mark_ms
            )
        ):
            self.anchor()
            # Right away, not in a wake-up of its own.
            self._tell_tail()
            self._trust = now.trust
            self._anchored_ms = now.boottime_ms
        return self._anchored_ms + self._elapsed_mark_ms if is_marking else None

    def anchor(self, *, synced: bool = False) -> None:
        """Write down where both timelines stand."""
        engine = self.engine
        anchor = engine.keeper.anchor(engine.reading())
        engine.note(Kind.ANCHORED, {F.ANCHOR: anchor.to_fields()}, synced=synced)

    def _has_delays(self) -> bool:
        window = self.engine.window
        return len(window.wheels[ELAPSED]) > 0 or any(
            window.lanes.key(lane)[0] == ELAPSED for lane in window.horizons
        )

    # Checkpoints.

    def _tend_checkpoint(self, now: Now) -> int | None:
        """Write a checkpoint if one is due; return when the next one is."""
        engine, limits = self.engine, self.engine.thresholds
        active = engine.state.active
        has_changes = len(active) > 0 or engine.state.frozen is not None
        frame_bytes = (
            engine.committer.writer.position.frame_bytes - engine.checkpoint_frame_bytes
        )
        is_due = (
            len(active) >= limits.entries
            or active.payload_bytes >= limits.payload_bytes
            or active.events >= limits.events
            or frame_bytes >= limits.log_bytes
            or (has_changes and now.boottime_ms - self._changed_ms >= limits.quiet_ms)
        )
        if is_due and now.boottime_ms >= self._retry_ms:
            try:
                engine.checkpoint()
                _, self._swept = sweep(
                    engine, after=self._swept, count=STRETCH_COUNT, mend=True
                )
                if self._wants_snapshot():
                    self._snapshot()
                self._tell_tail()
            except StorageFullError:
                self._retry_ms = now.boottime_ms + FULL_DISK_LOOK_MS
                return self._retry_ms
            return None
        if not has_changes:
            return None
        return max(self._changed_ms + limits.quiet_ms, self._retry_ms)

    # Waiting.

    def next_in(self) -> float | None:
        """Return seconds until something is due or a lease ends, ``None`` for never."""
        engine = self.engine
        now = engine.now()
        with engine.lock:
            waits_ms = [
                instant - now_ms
                for instant, now_ms in (
                    (engine.window.next_expiration(ELAPSED), now.elapsed_ms),
                    (engine.window.next_expiration(WALL), now.wall_ms),
                    (self._next_lease_ms(), now.boottime_ms),
                )
                if instant is not None
            ]
        return max(min(waits_ms), 0) / 1000 if waits_ms else None

    def _wait(self, now: Now, *boottimes_ms: int | None) -> Wait:
        engine = self.engine
        with engine.lock:
            elapsed_ms = engine.window.next_expiration(ELAPSED)
            wall_ms = engine.window.next_expiration(WALL)
            lease_ms = self._next_lease_ms()
        due_ms = None
        if elapsed_ms is not None:
            due_ms = engine.keeper.elapsed_to_boottime(elapsed_ms)
        candidates = [
            instant
            for instant in (due_ms, lease_ms, *boottimes_ms)
            if instant is not None
        ]
        if wall_ms is not None and now.trust == "untrusted":
            # Held: the clock may be put right at any moment.
            candidates.append(now.boottime_ms + HELD_LOOK_MS)
        return Wait(min(candidates, default=None), engine.keeper.wall_wait(wall_ms))
