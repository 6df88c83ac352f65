"""What every kind of index does, and the view through which all are read.

A `Snapshot` sees the index as it was when it was taken, whatever is written meanwhile.
It stands on a `Source`, the four primitives that a kind of `Index` has to offer, so
that every kind checks and unpacks rows alike:

    with index.snapshot() as view:
        for due_field, number, exact_due in view.due(16, None, 1_000, until=None):
            lsn, body = view.task(number)

Whether a task is in a row of its own or in a block, its due time in a row or a run,
makes no difference to those who read.

Whatever doesn't check raises `IndexDamaged`; the index is a cache, so the caller goes
on from memory and has it rebuilt from snapshot and log.  A view must not live long: it
keeps the writer from using the pages again that it sees.  It belongs to one thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Protocol

from wheeldb.errors import CorruptionError
from wheeldb.index.blocks import Block
from wheeldb.index.changes import Changes
from wheeldb.index.checking import findings_of
from wheeldb.index.keys import (
    BLOCK,
    DIGEST_MASK,
    DIGEST_TABLES,
    DUE,
    FINISHED,
    ID,
    KEY_BYTES,
    META,
    RUN,
    TASK,
    due_digest,
    due_key,
    due_key_parts,
    id_digest,
    id_key_parts,
    number_key,
    number_key_part,
    row_digest,
    unpack_due,
    unpack_row,
)
from wheeldb.index.runs import Run

__all__ = ("Index", "IndexDamaged", "IndexStatistics", "Snapshot", "Source")

# What has more than this wrong is not worth a longer list.
_FINDINGS_MAX = 100

_ROWS_MAX = 2**62
_FIELD_MAX = 2**64 - 1
# Lane and due field, in a due key.
_FIELD_END = 12


class IndexDamaged(CorruptionError):
    """Raised when the index can't be trusted any more; it never leaves the store.

    Attributes:
        code: The system's error number where it was one (``ENOSPC``), or ``None``.
    """

    def __init__(
        self, reason: str, *, path: str | None = None, code: int | None = None
    ) -> None:
        super().__init__(reason, path=path)
        self.args = (
            f"{path or 'index'}: {reason}; the index is a cache: put it aside and "
            "rebuild it from snapshot and log",
        )
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatistics:
    """What the index holds and takes.

    Attributes:
        rows: The number of rows by table.
        bytes: The bytes in use by the file, free pages inside it included.
        pages: The same in pages.
        map_bytes: How far the file can grow before the map is enlarged.
        commits: Transactions committed since opening.
    """

    rows: dict[str, int]
    bytes: int
    pages: int
    map_bytes: int
    commits: int


class Source(Protocol):
    """What a kind of index offers to a `Snapshot`: raw rows as of one moment."""

    @property
    def path(self) -> str:
        """The directory, for messages."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value under a key, ``None`` without one."""

    def last_to(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row whose key is `key` or less, ``None`` without one."""

    def scan(
        self, table: str, start: bytes, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield up to `limit` rows from `start` on, in key order and small pieces."""

    def count(self, table: str) -> int:
        """Return the number of rows, in O(1)."""


class Snapshot:
    """The rows of the index as of one moment; see the module's example.

    Every method also raises `ClosedError` if the index was closed meanwhile.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def task(self, number: int) -> tuple[int, bytes] | None:
        """Return LSN and body of a task, ``None`` without one.

        Raises:
            IndexDamaged: If its row or block is damaged or can't be read.
        """
        key = number_key(number)
        value = self._source.get(TASK, key)
        if value is not None:
            return self._row(TASK, key, value)
        block = self.block_at(number)
        if block is None or not block.holds(number):
            return None
        return number, block.body(number)

    def block_at(self, number: int) -> Block | None:
        """Return the block in whose range a number is, also if that task is gone.

        Raises:
            IndexDamaged: If the block is damaged or can't be read.
        """
        found = self._source.last_to(BLOCK, number_key(number))
        if found is None:
            return None
        block = self.block(*found)
        return block if number < block.end else None

    def run_at(self, lane: int, due_field: int, number: int) -> Run | None:
        """Return the run that may know a task's due time.

        Raises:
            IndexDamaged: If the run is damaged or can't be read.
        """
        key = due_key(lane, due_field, number)
        found = self._source.last_to(RUN, key)
        if found is None or not found[0].startswith(key[:_FIELD_END]):
            return None
        return self.run(*found)

    def rows(self, numbers: Sequence[int]) -> list[tuple[int, int, bytes]]:
        """Return number, LSN and body for numbers that this view's due rows named.

        Raises:
            IndexDamaged: If a row is damaged, or one that must be there is missing.
        """
        found = []
        for number in numbers:
            row = self.task(number)
            if row is None:
                raise self._damaged(f"task {number} has a due row and no task row")
            found.append((number, *row))
        return found

    def tasks(self, after: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return number, LSN and body of the tasks with a higher number than `after`.

        Args:
            after: The last number already seen; -1 begins at the beginning.
            limit: The most tasks to return.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        rows = self._numbered(TASK, after, limit)
        return list(islice(merge(rows, self._in_blocks(after, limit)), limit))

    def task_rows(self, after: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return the same for the rows of the task table alone.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        return list(self._numbered(TASK, after, limit))

    def block_rows(self, after: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return first number, LSN and body of blocks that begin above a number.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        return list(self._numbered(BLOCK, after, limit))

    def due(
        self,
        lane: int,
        after_key: tuple[int, int] | None,
        limit: int,
        until: int | None = None,
    ) -> list[tuple[int, int, int]]:
        """Return due field, number and exact due time of a lane's tasks, in that order.

        Args:
            lane: The lane.
            after_key: Due field and number of the last one already seen, or ``None``.
            limit: The most to return.
            until: The highest due field wanted, or ``None`` for all.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        after = (0, -1) if after_key is None else after_key
        end = _FIELD_MAX if until is None else until
        rows = self._due_rows(lane, after, end, limit)
        return list(islice(merge(rows, self._in_runs(lane, after, end, limit)), limit))

    def numbers_for(self, hash8: bytes) -> list[tuple[int, int | None]]:
        """Return number and finishing LSN (``None``: live) of the tasks under a hash.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        found = []
        for key, value in self.scan(ID, hash8):
            found_hash, number, finishing_lsn = self._id(key, value)
            if found_hash != hash8:
                break
            found.append((number, finishing_lsn))
        return found

    def finished(self, lsn: int) -> bytes | None:
        """Return the body of the row of the task that finished at an LSN.

        Raises:
            IndexDamaged: If the row is damaged or can't be read.
        """
        key = number_key(lsn)
        value = self._source.get(FINISHED, key)
        return None if value is None else self._row(FINISHED, key, value)[1]

    def finished_range(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return LSN and body of what finished later than `after`, oldest first.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        return [
            (number_key_part(key), self._row(FINISHED, key, value)[1])
            for key, value in self.scan(FINISHED, _behind_number(after), limit)
        ]

    def meta(self, name: str) -> bytes | None:
        """Return a packed value by name.

        Raises:
            IndexDamaged: If the row is damaged or can't be read.
        """
        key = name.encode()
        value = self._source.get(META, key)
        return None if value is None else self._row(META, key, value)[1]

    def count(self, table: str) -> int:
        """Return the number of rows in a table, in O(1).

        Raises:
            IndexDamaged: If the table can't be read.
        """
        return self._source.count(table)

    def digests(self) -> dict[str, tuple[int, int]]:
        """Return rows and digest of each table, computed from every row.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        return {table: self._digest(table) for table in DIGEST_TABLES}

    def check(self) -> list[str]:
        """Return what is wrong with the index, empty if nothing is.

        Ensures, when empty:
        1. every row reads and checks;
        2. every task is in the task table or in one block, and has exactly one due
           time, in the due table or in one run; every due time has a task;
        3. blocks don't overlap, nor do the runs of a lane and due field;
        4. every id row names a task, or a finished one, and every finished row has an
           id row.
        """
        findings: list[str] = []
        try:
            self.digests()
            for finding in islice(findings_of(self), _FINDINGS_MAX):
                findings.append(finding)  # noqa: PERF402 -- damage may end it midway
        except IndexDamaged as damage:
            findings.append(damage.reason)
        return findings

    # Rows as they are, for the check.

    def scan(
        self, table: str, start: bytes, limit: int = _ROWS_MAX
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a table from a key on.

        Raises:
            IndexDamaged: If the table can't be read.
        """
        width = KEY_BYTES.get(table)
        for piece in self._source.scan(table, start, limit):
            for key, value in piece:
                if width is not None and len(key) != width:
                    raise self._damaged_row(table, key)
                yield key, value

    def block(self, key: bytes, value: bytes) -> Block:
        """Return the block in a row of its table.

        Raises:
            IndexDamaged: If it is damaged.
        """
        block = Block.unpack(key, value)
        if block is None:
            raise self._damaged_row(BLOCK, key)
        return block

    def run(self, key: bytes, value: bytes) -> Run:
        """Return the run in a row of its table.

        Raises:
            IndexDamaged: If it is damaged.
        """
        run = Run.unpack(key, value)
        if run is None:
            raise self._damaged_row(RUN, key)
        return run

    def has_row(self, table: str, number: int) -> bool:
        """Return whether a table has a row under a number.

        Raises:
            IndexDamaged: If it can't be read.
        """
        return self._source.get(table, number_key(number)) is not None

    def has_task(self, number: int) -> bool:
        """Return whether a task is there, in a row of its own or in a block.

        Raises:
            IndexDamaged: If its block is damaged or can't be read.
        """
        if self.has_row(TASK, number):
            return True
        block = self.block_at(number)
        return block is not None and block.holds(number)

    def _digest(self, table: str) -> tuple[int, int]:
        rows = digest = 0
        for key, value in self.scan(table, b""):
            rows += 1
            if table == DUE:
                exact_due = unpack_due(key, value)
                if exact_due is None:
                    raise self._damaged_row(table, key)
                digest += due_digest(*due_key_parts(key), exact_due)
            elif table == RUN:
                run = self.run(key, value)
                digest += row_digest(run.first, run.crc)
            elif table == ID:
                digest += id_digest(*self._id(key, value))
            else:
                row = unpack_row(key, value)
                if row is None or len(key) != 8:
                    raise self._damaged_row(table, key)
                digest += row_digest(number_key_part(key), row[1])
        if rows != self.count(table):
            raise self._damaged(
                f"table {table} has {rows} rows, not {self.count(table)}"
            )
        return rows, digest & DIGEST_MASK

    def _numbered(
        self, table: str, after: int, limit: int
    ) -> Iterator[tuple[int, int, bytes]]:
        for key, value in self.scan(table, _behind_number(after), limit):
            lsn, body = self._row(table, key, value)
            yield number_key_part(key), lsn, body

    def _in_blocks(self, after: int, limit: int) -> Iterator[tuple[int, int, bytes]]:
        start = _behind_number(after)
        inside = self._source.last_to(BLOCK, number_key(max(after, 0)))
        if inside is not None:
            start = inside[0]
        # None is empty but perhaps the one that `after` is in.
        for key, value in self.scan(BLOCK, start, limit + 1):
            for number, body in self.block(key, value).bodies(after):
                yield number, number, body

    def _due_rows(
        self, lane: int, after: tuple[int, int], end: int, limit: int
    ) -> Iterator[tuple[int, int, int]]:
        for key, value in self.scan(DUE, _behind_due(lane, after), limit):
            exact_due = unpack_due(key, value)
            if exact_due is None:
                raise self._damaged_row(DUE, key)
            found_lane, field, number = due_key_parts(key)
            if found_lane != lane or field > end:
                return
            yield field, number, exact_due

    def _in_runs(
        self, lane: int, after: tuple[int, int], end: int, limit: int
    ) -> Iterator[tuple[int, int, int]]:
        field, number = after
        start = _behind_due(lane, after)
        inside = self._source.last_to(RUN, due_key(lane, field, max(number, 0)))
        if inside is not None and inside[0].startswith(start[:_FIELD_END]):
            start = inside[0]
        # None is empty but perhaps the one that `after` is in.
        for key, value in self.scan(RUN, start, limit + 1):
            found_lane, found_field, _ = due_key_parts(key)
            if found_lane != lane or found_field > end:
                return
            above = number if found_field == field else -1
            for found_number, exact_due in self.run(key, value).entries():
                if found_number > above:
                    yield found_field, found_number, exact_due

    def _row(self, table: str, key: bytes, value: bytes) -> tuple[int, bytes]:
        row = unpack_row(key, value)
        if row is None:
            raise self._damaged_row(table, key)
        lsn, _, body = row
        return lsn, body

    def _id(self, key: bytes, value: bytes) -> tuple[bytes, int, int | None]:
        if len(key) != 16 or len(value) not in {0, 8}:
            raise self._damaged_row(ID, key)
        hash8, number = id_key_parts(key)
        return hash8, number, number_key_part(value) if value else None

    def _damaged(self, reason: str) -> IndexDamaged:
        return IndexDamaged(reason, path=self._source.path)

    def _damaged_row(self, table: str, key: bytes) -> IndexDamaged:
        return self._damaged(f"row {key.hex()} of table {table} fails its check")


class Index(Protocol):
    """Every pending task by number and by due time, as of the last checkpoint.

    Writes come from one thread at a time; views may be taken from any.
    """

    @property
    def path(self) -> str:
        """The directory of the index."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a view of the index as of now, for the length of a block.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses.
        """

    def apply(self, changes: Changes) -> None:
        """Write all changes in one transaction and sync it, or nothing.

        Deletes come before puts; a delete of what isn't there is no error.

        Raises:
            ClosedError: If the index is closed.
            OSError: If there is no room; the index is as it was.
            IndexDamaged: If LMDB refuses; the index is of no use any more.
        """

    def statistics(self) -> IndexStatistics:
        """Return what the index holds and takes.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses.
        """

    def keep_room(self, room_bytes: int = 32 * 2**20) -> bool:
        """Keep room on the disk behind the last page; return whether it is there.

        Raises:
            ClosedError: If the index is closed.
            OSError: As the disk says; ENOSPC: there is no such room.
        """

    def close(self) -> None:
        """Close it; a second call does nothing.  Views must be left before."""


def _behind_number(after: int) -> bytes:
    return b"" if after < 0 else number_key(after) + b"\0"


def _behind_due(lane: int, after: tuple[int, int]) -> bytes:
    field, number = after
    if number < 0:
        return due_key(lane, field, 0)
    return due_key(lane, field, number) + b"\0"
