"""What one checkpoint does to the index, and the bytes it comes to.

A `Changes` collects what the caller knows (numbers, lanes, bodies); `encode` turns it
into keys and values, table by table and in key order, because LMDB takes sorted puts
about three times as fast as random ones.

    changes = Changes(meta={"lsn": b"12"})
    changes.put_tasks.append((9, 12, b"body"))     # number, LSN, body
    changes.delete_due.append((16, 5_000, 9))      # lane, due field, number
    encode(changes)
    # [TableChanges(table="task", deletes=[], puts=[(key, row)]),
    #  TableChanges(table="due", deletes=[key], puts=[]),
    #  TableChanges(table="meta", deletes=[], puts=[(key, row)])]

In every table the deletes come first, so a row that moves may name its old key in a
delete and its new key in a put, also when the two are the same.  Of several puts under
one key the last counts.  Nothing here is written anywhere.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import TypeVar

from wheeldb.index.bulk import Rows
from wheeldb.index.keys import (
    BLOCK,
    DUE,
    FINISHED,
    ID,
    META,
    RUN,
    TASK,
    due_key,
    id_key,
    number_key,
    pack_due,
    pack_row,
)

__all__ = (
    "PIECE_ROWS_MAX",
    "Changes",
    "TableChanges",
    "encode",
    "in_order",
    "piece_sizes",
)

# No call into C works on more rows than this: it would hold the interpreter's lock for
# longer than a caller of `schedule` should wait (a sort of 50,000 took 32 ms).
PIECE_ROWS_MAX = 2_000
_RUN_ROWS_MAX = 16 * PIECE_ROWS_MAX

_Item = TypeVar("_Item", int, bytes, tuple[bytes, bytes])


@dataclass(slots=True, kw_only=True)
class Changes:
    """The rows that one checkpoint puts and deletes.

    Attributes:
        put_tasks: Number, LSN and body.
        delete_tasks: Numbers.
        put_due: Lane, due field, number and exact due time.
        delete_due: Lane, due field and number.
        put_ids: Hash of the id, number, and the finishing LSN (``None``: live).
        delete_ids: Hash of the id and number.
        put_finished: Finishing LSN and body.
        delete_finished: Finishing LSNs.
        task_rows: Rows of the task table that are keys and values already; their keys
            differ from each other and from those of ``put_tasks``.
        due_rows: The same for the due table.
        block_rows: All that is put into the block table, as keys and values.
        delete_blocks: First numbers.
        run_rows: All that is put into the run table, as keys and values.
        delete_runs: Lane, due field and first number.
        meta: Packed values by name; these are only ever put.
    """

    put_tasks: list[tuple[int, int, bytes]] = field(default_factory=list)
    delete_tasks: list[int] = field(default_factory=list)
    put_due: list[tuple[int, int, int, int]] = field(default_factory=list)
    delete_due: list[tuple[int, int, int]] = field(default_factory=list)
    put_ids: list[tuple[bytes, int, int | None]] = field(default_factory=list)
    delete_ids: list[tuple[bytes, int]] = field(default_factory=list)
    put_finished: list[tuple[int, bytes]] = field(default_factory=list)
    delete_finished: list[int] = field(default_factory=list)
    task_rows: Rows = field(default_factory=list)
    due_rows: Rows = field(default_factory=list)
    block_rows: Rows = field(default_factory=list)
    delete_blocks: list[int] = field(default_factory=list)
    run_rows: Rows = field(default_factory=list)
    delete_runs: list[tuple[int, int, int]] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """The same for one table, in bytes: both lists sorted, no key twice in either."""

    table: str
    deletes: list[bytes]
    puts: list[tuple[bytes, bytes]]


def encode(changes: Changes) -> list[TableChanges]:
    """Return the changes as sorted keys and values, without the tables left alone.

    Raises:
        struct.error: If a number is negative or too large, which no caller should ask
            for; nothing was written.
    """
    tasks = {}
    for number, lsn, body in changes.put_tasks:
        key = number_key(number)
        tasks[key] = pack_row(key, lsn, body)
    due = {}
    for lane, due_field, number, exact_due in changes.put_due:
        key = due_key(lane, due_field, number)
        due[key] = pack_due(key, exact_due)
    ids = {}
    for hash8, number, finishing_lsn in changes.put_ids:
        assert len(hash8) == 8, f"an id's hash has 8 bytes, not {len(hash8)}"
        value = b"" if finishing_lsn is None else number_key(finishing_lsn)
        ids[id_key(hash8, number)] = value
    finished = {}
    for lsn, body in changes.put_finished:
        key = number_key(lsn)
        finished[key] = pack_row(key, lsn, body)
    meta = {}
    for name, body in changes.meta.items():
        key = name.encode()
        meta[key] = pack_row(key, 0, body)

    gone_tasks = map(number_key, changes.delete_tasks)
    gone_blocks = map(number_key, changes.delete_blocks)
    gone_due = (due_key(*one) for one in changes.delete_due)
    gone_runs = (due_key(*one) for one in changes.delete_runs)
    gone_ids = (id_key(*one) for one in changes.delete_ids)
    gone_finished = map(number_key, changes.delete_finished)
    tables = (
        _table(TASK, gone_tasks, [*changes.task_rows, *tasks.items()]),
        _table(BLOCK, gone_blocks, changes.block_rows),
        _table(DUE, gone_due, [*changes.due_rows, *due.items()]),
        _table(RUN, gone_runs, changes.run_rows),
        _table(ID, gone_ids, [*ids.items()]),
        _table(FINISHED, gone_finished, [*finished.items()]),
        _table(META, (), [*meta.items()]),
    )
    return [table for table in tables if table.deletes or table.puts]


def piece_sizes(limit: int) -> Iterator[int]:
    """Yield the sizes in which to read up to `limit` rows, the first ones small.

    Who looks for one row shouldn't wait for 2,000.
    """
    size = 8
    while limit > 0:
        yield min(size, limit)
        limit -= size
        size = min(size * 8, PIECE_ROWS_MAX)


def _table(table: str, deletes: Iterable[bytes], puts: Rows) -> TableChanges:
    gone = set(deletes)
    if gone:
        # A delete whose key is put again would only cost a search.
        gone.difference_update(key for key, _ in puts)
    return TableChanges(table=table, deletes=in_order(list(gone)), puts=in_order(puts))


def in_order(items: list[_Item]) -> list[_Item]:
    """Return the items in order without one long call into C.

    A sort finds the runs that are in order already and merges them in a quarter of the
    time, so it may be given more of those; beyond that the merging is Python's.
    """
    if len(items) <= PIECE_ROWS_MAX:
        return sorted(items)
    pieces = [
        sorted(items[start : start + PIECE_ROWS_MAX])
        for start in range(0, len(items), PIECE_ROWS_MAX)
    ]
    if len(items) <= _RUN_ROWS_MAX:
        joined = [item for piece in pieces for item in piece]
        joined.sort()
        return joined
    return [item for item in merge(*pieces)]  # noqa: C416 -- list() would be such a call
