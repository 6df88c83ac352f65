"""Decisions: what is refused, and what becomes an event.

A ``Decider`` works for one group commit at a time, under the state's lock, against a
state that already holds everything numbered before.  What is judged, call by call,
stands in functions that take it as their first argument (``admission.py``,
``amendment.py``, ``attempts.py``): each raises a refusal, having changed nothing, or
emits the facts that grant it; ``emit`` gives a fact its numbers, applies it and keeps
its bytes for the frame.

    decider.begin(now, stamp)
    amendment.cancel(decider, "valve-7", running=False)    # CancelOutcome.CANCELLED
    decider.parts                                          # the bytes of one event

An answer that needs no event of its own may rest on one that is not durable yet;
``rests_on`` tells which.  What is taken from the window's ready heaps is in ``taken``,
so that an interrupted decision can be undone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.fold import Fact, apply
from wheeldb.engine.names import lookup_id
from wheeldb.engine.row import Finished, Row
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo, merge, roll_back
from wheeldb.engine.window import Window
from wheeldb.errors import TaskNotFound
from wheeldb.events import pack_author

__all__ = ("Bounds", "Decider")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that decisions keep."""

    tasks_max: int | None
    bytes_max: int | None
    retention_ms: int
    retention_max: int
    recoveries_max: int

    def is_old(self, finished: Finished, now: Now) -> bool:
        """Return whether the retention of a finished id is over.

        Never while the wall clock is not believed: the time that it counts from then
        lies ahead of what it shows.
        """
        age_ms = now.wall_ms - finished.finished_ms
        return now.trust != "untrusted" and age_ms >= self.retention_ms


class Decider:
    """Judges calls, one after the other, for one group."""

    def __init__(
        self,
        state: State,
        window: Window,
        bounds: Bounds,
    ) -> None:
        self.state = state
        self.window = window
        self.bounds = bounds
        # Makes the public value of a task for a refusal that shows it.
        self.existing: Callable[[Row | Finished], object] = lambda kept: kept
        # Makes sure of the room that so many unfinished tasks need to end.
        self.reserve: Callable[[int], None] = lambda count: None
        self.parts: list[bytes] = []
        # How many bytes the parts have.
        self.size = 0
        self.taken: list[int] = []
        self.rests_on = 0
        # A heap of (until, number): when leases run out, in boottime.  Hints, as the
        # window's entries are: the leased row says whether it is still so.
        self.lease_ends: list[tuple[int, int]] = []
        # Tasks accepted since the opening; what is taken back later counts, too.
        self.scheduled_count = 0
        self.author = ""
        self._written_author: str | None = None
        # The stamp that the next event gets.
        self.stamp = 0

    def begin(self, now: Now, stamp: int) -> None:
        """Start a group: its moment and the stamp of its first event."""
        self.now = now
        self.parts = []
        self.size = 0
        self.taken = []
        self.rests_on = 0
        self.stamp = stamp
        self._written_author = None

    def emit(self, fact: Fact) -> int:
        """Number and apply a fact and keep its bytes; return its first LSN."""
        state = self.state
        lsn = state.last_lsn + 1
        packed = fact.pack()
        if self.author != self._written_author:
            packed = pack_author(self.author) + packed
            self._written_author = self.author
        self.parts.append(packed)
        self.size += len(packed)
        apply(state, fact, lsn, self.stamp)
        if fact.columns is not None:
            self.scheduled_count += fact.count
        self.stamp += 1
        return lsn

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """All or nothing: what is refused within takes back everything within."""
        state, outer = self.state, self.state.undo
        inner = Undo(state)
        parts_count, size, author = len(self.parts), self.size, self._written_author
        stamp = self.stamp
        state.undo = inner
        try:
            yield
        except BaseException:
            roll_back(state, inner)
            del self.parts[parts_count:]
            self.size = size
            self._written_author = author
            self.stamp = stamp
            raise
        finally:
            # An interrupt before the last line leaves `inner` to be rolled back.
            if outer is not None:
                merge(outer, inner)
            state.undo = outer

    # Finding the task that an id means.

    def find(self, task_id: str) -> Row | Finished | None:
        """Return what stands under an id, as callers give it."""
        key = lookup_id(task_id)
        if type(key) is int:
            row = self.state.lookup(key)
            return row if row is not None and row.id is None else None
        number = self.state.number_of(key)  # type: ignore[arg-type]
        if number:
            return self.state.lookup(number)
        return self.remembered(self.state.finished_of(key), self.now)  # type: ignore[arg-type]

    def unfinished(self, task_id: str) -> Row:
        found = self.find(task_id)
        if isinstance(found, Row):
            return found
        raise TaskNotFound(
            f"no unfinished task has the id {task_id!r}"
            + (f"; it is {found.state}" if found is not None else "")
        )

    def remembered(self, finished: Finished | None, now: Now) -> Finished | None:
        """Return a finished task unless its id has been forgotten by now."""
        if finished is None:
            return None
        is_old = self.bounds.is_old(finished, now)
        return None if is_old else finished
