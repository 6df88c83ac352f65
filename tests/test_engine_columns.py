"""The tasks of one event, kept as columns.

Goal: a column store is an economy, never a difference: what columns say of a task, its
row says too, from the request to the index.
Method: requests of every mixture of options; each answer of the columns is compared
with that of the rows they stand for.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.checkpoint import changes_of
from wheeldb.engine.columns import Columns
from wheeldb.engine.digests import Digests
from wheeldb.engine.hot import HotTable
from wheeldb.engine.lanes import Lanes
from wheeldb.engine.request import Limits, build
from wheeldb.events import unpack_fields
from wheeldb.index import MemoryIndex
from wheeldb.index.changes import encode
from wheeldb.model import NewTask

NOW = Now(
    elapsed_ms=5_000,
    wall_ms=1_800_000_000_000,
    boottime_ms=5_000,
    trust="assumed",
    reason="",
    shift_ms=0,
    cut_ms=1,
    offset_ms=0,
)
LIMITS = Limits(payload_bytes_max=2_000, batch_max=1_000)
FIRST = 4_711


def plain(position: int) -> NewTask:
    return NewTask("a", {"n": position}, delay=position * 3_600)


def with_id(position: int) -> NewTask:
    return NewTask("a", None, delay=position * 3_600, id=f"x-{position}")


def with_some_ids(position: int) -> NewTask:
    return with_id(position) if position % 2 else plain(position)


def at_an_instant(position: int) -> NewTask:
    return NewTask("a", [position], at=datetime(2027, 1, 1 + position, tzinfo=UTC))


def before_the_epoch(position: int) -> NewTask:
    return NewTask("a", [position], at=datetime(1969, 1, 1 + position, tzinfo=UTC))


def with_the_same_options(position: int) -> NewTask:
    return NewTask("a", position, delay=9, id=f"x-{position}", queue="red", tags=["b"])


def with_options_of_their_own(position: int) -> NewTask:
    return NewTask("abc"[position % 3], None, delay=position, priority=position)


def on_both_timelines(position: int) -> NewTask:
    return at_an_instant(position) if position % 3 else with_id(position)


kinds = pytest.mark.parametrize(
    "make",
    [
        plain,
        with_id,
        with_some_ids,
        at_an_instant,
        before_the_epoch,
        with_the_same_options,
        with_options_of_their_own,
        on_both_timelines,
    ],
)
Make = Callable[[int], NewTask]


def numbered(make: Make, count: int = 7) -> Columns:
    """Return the columns of some tasks as they are in the state."""
    columns = build([make(n) for n in range(count)], NOW, LIMITS).columns
    columns.first = FIRST
    columns.created_ms = NOW.wall_ms
    return columns


def hot_table(columns: Columns, numbers: list[int], *, as_rows: bool) -> HotTable:
    """Return a table ready to be written, with the tasks as columns or as rows."""
    table = HotTable()
    table.now = (NOW.elapsed_ms, NOW.wall_ms)
    for number in range(columns.first, columns.first + columns.count):
        entry = columns.row(number) if as_rows else columns
        table.rows[number] = entry if number in numbers else None
    return table


@kinds
def test_what_the_log_holds_comes_back(make: Make) -> None:
    columns = numbered(make)
    again = Columns.from_fields(unpack_fields(columns.pack()))
    again.first, again.created_ms = columns.first, columns.created_ms

    for number in range(FIRST, FIRST + columns.count):
        assert again.row(number).pack() == columns.row(number).pack()


@kinds
@given(chosen=some.lists(some.integers(0, 6), unique=True, min_size=1))
def test_a_selection_is_some_of_the_rows(make: Make, chosen: list[int]) -> None:
    columns = numbered(make)
    selected = columns.select(chosen)
    selected.created_ms = columns.created_ms

    assert selected.count == len(chosen)
    for new, old in enumerate(chosen):
        row, other = selected.row_at(new), columns.row_at(old)
        assert (row.id, row.pack()) == (other.id, other.pack())
        assert selected.lane_key(new) == columns.lane_key(old)


@kinds
@given(
    chosen=some.lists(
        some.tuples(some.integers(0, 6), some.booleans()),
        unique_by=lambda one: one[0],
    )
)
def test_packed_rows_are_those_of_the_rows(
    make: Make, chosen: list[tuple[int, bool]]
) -> None:
    columns = numbered(make)
    numbers = [FIRST + position for position, _ in chosen]

    assert columns.pack_rows(numbers, [is_coarse for _, is_coarse in chosen]) == [
        columns.row_at(position).pack(coarse=is_coarse)
        for position, is_coarse in chosen
    ]


@kinds
@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_checkpoint_writes_columns_as_it_writes_rows(make: Make, count: int) -> None:
    columns = numbered(make)
    numbers = list(range(FIRST, FIRST + columns.count, columns.count // count))
    written = []
    for as_rows in (False, True):
        table = hot_table(columns, numbers, as_rows=as_rows)
        digests = Digests()
        changes = changes_of(table, Lanes(), digests, [], MemoryIndex())
        written.append((encode(changes), digests.stored()))

    assert written[0] == written[1]
