"""Listing tasks while everything goes on.

Tasks are listed by number, which never changes: a task that exists throughout is listed
exactly once.  Finished ones are listed by the LSN at which they finished, which does
not change either.  Each step opens a view of the index and notes, in the same moment
and under the lock, what the hot table has in that range and what is not shown yet; the
lock is not held between steps, and no view outlives one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from heapq import nsmallest

from wheeldb.engine.decoding import decode_finished, decode_row
from wheeldb.engine.engine import Engine
from wheeldb.engine.moment import instant_ms
from wheeldb.engine.row import Finished, Row
from wheeldb.model import Task, TaskState

__all__ = ("Filter", "finished_rows", "iterate_tasks", "unfinished_rows")

STEP_COUNT = 1_000
_FINISHED = frozenset({TaskState.DONE, TaskState.CANCELLED, TaskState.EXPIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks are wanted; ``None`` is any.

    Raises:
        TypeError, ValueError: For what no task can have.
    """

    state: TaskState | None = None
    queue: str | None = None
    name: str | None = None
    tag: str | None = None
    series: str | None = None
    due_before: datetime | None = None

    def __post_init__(self) -> None:
        for what in ("queue", "name", "tag", "series"):
            text = getattr(self, what)
            if text is not None and type(text) is not str:
                raise TypeError(f"{what} is a {type(text).__name__}, not a str")
        if self.due_before is not None:
            instant_ms(self.due_before, "due_before")

    @property
    def is_finished(self) -> bool:
        """Whether finished tasks are wanted."""
        return self.state in _FINISHED

    def matches(self, task: Task) -> bool:
        """Return whether a task is wanted."""
        return (
            (self.state is None or task.state == self.state)
            and (self.queue is None or task.queue == self.queue)
            and (self.name is None or task.name == self.name)
            and (self.tag is None or self.tag in task.tags)
            and (self.series is None or task.series == self.series)
            and (
                self.due_before is None
                or (task.due_at is not None and task.due_at < self.due_before)
            )
        )


def iterate_tasks(
    engine: Engine,
    present: Callable[[Row | Finished], Task],
    wanted: Filter,
    limit: int | None,
    after: int,
) -> Iterator[Task]:
    """Yield the wanted tasks above a number (finished ones: above an LSN), in order.

    Finished ones are listed only if their state is asked for.
    """
    rows: Iterator[Row | Finished]
    if wanted.is_finished:
        rows = _remembered(engine, after)
    else:
        rows = unfinished_rows(engine, after)
    count = 0
    for kept in rows:
        if limit is not None and count >= limit:
            return
        task = present(kept)
        if wanted.matches(task):
            count += 1
            yield task


def _remembered(engine: Engine, after: int) -> Iterator[Finished]:
    for kept in finished_rows(engine, after):
        if engine.decider.remembered(kept, engine.now()) is not None:
            yield kept


def unfinished_rows(engine: Engine, after: int) -> Iterator[Row]:
    """Yield the rows of unfinished tasks above a number, in order."""
    while True:
        rows, after, is_last = engine.mended(partial(_step, engine, after))
        yield from rows
        if is_last:
            return


def _step(engine: Engine, after: int) -> tuple[list[Row], int, bool]:
    """Return the rows of a step, the number it reached, and whether it is the last."""
    state = engine.state
    with engine.lock, state.index.snapshot() as view:
        undos = list(engine.committer.undos())
        indexed = view.tasks(after, STEP_COUNT)
        hot = nsmallest(
            STEP_COUNT, (number for number in state.changed_numbers() if number > after)
        )
        ends = []
        if len(indexed) == STEP_COUNT:
            ends.append(indexed[-1][0])
        if len(hot) == STEP_COUNT:
            ends.append(hot[-1])
        end = min(ends, default=None)
        found: dict[int, Row | None] = {
            number: decode_row(number, lsn, body)
            for number, lsn, body in indexed
            if end is None or number <= end
        }
        for number in hot:
            if end is None or number <= end:
                found[number] = state.hot_row(number)
        for undo in reversed(undos):
            for number, old in undo.rows.items():
                if number in found or after < number <= (end or number):
                    found[number] = old
            for number in found:
                if undo.first_lsn <= number <= undo.last_lsn:
                    found[number] = None
    rows = [row for _, row in sorted(found.items()) if row is not None]
    return rows, end if end is not None else after, end is None


def finished_rows(engine: Engine, after: int = 0) -> Iterator[Finished]:
    """Yield what is kept of tasks that finished above an LSN, in order."""
    after = max(after, engine.state.forgotten_through)
    while True:
        kept, end = engine.mended(partial(_finished_step, engine, after))
        yield from kept
        if end is None:
            return
        after = end


def _finished_step(engine: Engine, after: int) -> tuple[list[Finished], int | None]:
    """Return what finished in one step, and the LSN it reached if there is more."""
    state = engine.state
    with engine.lock, state.index.snapshot() as view:
        found: dict[int, Finished | None] = {
            lsn: decode_finished(lsn, body)
            for lsn, body in view.finished_range(after, STEP_COUNT)
        }
        end = max(found) if len(found) == STEP_COUNT else None
        for table in (state.frozen, state.active):
            if table is not None:
                found.update(_within(table.finished, after, end))
        for undo in reversed(list(engine.committer.undos())):
            found.update(_within(undo.finished, after, end))
            for lsn in found:
                if undo.first_lsn <= lsn <= undo.last_lsn:
                    found[lsn] = None
    return [kept for _, kept in sorted(found.items()) if kept is not None], end


def _within(
    table: Mapping[int, Finished | None], after: int, end: int | None
) -> dict[int, Finished | None]:
    return {
        lsn: kept
        for lsn, kept in table.items()
        if after < lsn and (end is None or lsn <= end)
    }
