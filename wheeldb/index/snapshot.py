"""What every kind of index does, and the view through which all are read.

A `Snapshot` sees the index as it was when it was taken, whatever is written meanwhile.
It stands on a `Source`, the three primitives that a kind of `Index` has to offer, so
that every kind checks and unpacks rows alike:

    with index.snapshot() as view:
        for due_field, number, exact_due in view.due(16, None, 1_000, until=None):
            lsn, body = view.task(number)

Whatever doesn't check raises `IndexDamaged`; the index is a cache, so the caller goes
on from memory and has it rebuilt from snapshot and log.  A view must not live long: it
keeps the writer from using the pages again that it sees.  It belongs to one thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from wheeldb.errors import CorruptionError
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    DIGEST_MASK,
    DIGEST_TABLES,
    DUE,
    FINISHED,
    ID,
    META,
    TASK,
    due_digest,
    due_key,
    due_key_parts,
    id_digest,
    id_key_parts,
    number_digest,
    number_key,
    number_key_part,
    row_digest,
    unpack_due,
    unpack_row,
)

__all__ = ("Index", "IndexDamaged", "IndexStatistics", "Snapshot", "Source")

# A table of which more than this is wrong is not worth a longer list.
_FINDINGS_MAX = 100

_ROWS_MAX = 2**62


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
        """Return LSN and body of a task's row, ``None`` without one.

        Raises:
            IndexDamaged: If the row is damaged or can't be read.
        """
        key = number_key(number)
        value = self._source.get(TASK, key)
        return None if value is None else self._row(TASK, key, value)

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
            limit: The most rows to return.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        rows = []
        for key, value in self._scan(TASK, _behind_number(after), limit):
            lsn, body = self._row(TASK, key, value)
            rows.append((number_key_part(key), lsn, body))
        return rows

    def due(
        self,
        lane: int,
        after_key: tuple[int, int] | None,
        limit: int,
        until: int | None = None,
    ) -> list[tuple[int, int, int]]:
        """Return due field, number and exact due time of a lane's rows, in key order.

        Args:
            lane: The lane.
            after_key: Due field and number of the last row already seen, or ``None``.
            limit: The most rows to return.
            until: The highest due field wanted, or ``None`` for all.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        start = due_key(lane, 0, 0) if after_key is None else due_key(lane, *after_key)
        if after_key is not None:
            start += b"\0"
        rows = []
        for key, value in self._scan(DUE, start, limit):
            exact_due = unpack_due(key, value)
            if exact_due is None:
                raise self._damaged_row(DUE, key)
            found_lane, field, number = due_key_parts(key)
            if found_lane != lane or (until is not None and field > until):
                break
            rows.append((field, number, exact_due))
        return rows

    def numbers_for(self, hash8: bytes) -> list[tuple[int, int | None]]:
        """Return number and finishing LSN (``None``: live) of the tasks under a hash.

        Raises:
            IndexDamaged: If a row is damaged or can't be read.
        """
        found = []
        for key, value in self._scan(ID, hash8, _ROWS_MAX):
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
            for key, value in self._scan(FINISHED, _behind_number(after), limit)
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
        2. every task has exactly one due row, and every due row a task;
        3. every id row names a task, or a finished one, and every finished row has an
           id row.
        """
        findings: list[str] = []
        try:
            self.digests()
            self._check_due(findings)
            self._check_ids(findings)
        except IndexDamaged as damage:
            findings.append(damage.reason)
        return findings

    def _check_due(self, findings: list[str]) -> None:
        # Equal counts and no due row without a task leave one hole: two due rows for
        # one task and none for another.  The digest of the numbers closes it without
        # holding them all.
        balance = 0
        for key, _ in self._scan(TASK, b"", _ROWS_MAX):
            balance += number_digest(number_key_part(key))
        for key, _ in self._scan(DUE, b"", _ROWS_MAX):
            lane, field, number = due_key_parts(key)
            balance -= number_digest(number)
            if self._source.get(TASK, number_key(number)) is None:
                findings.append(f"due row {lane}/{field} names task {number}: no such")
                if len(findings) >= _FINDINGS_MAX:
                    return
        if balance & DIGEST_MASK:
            findings.append(
                f"{self.count(TASK)} tasks and {self.count(DUE)} due rows: not every "
                "task has exactly one due row"
            )

    def _check_ids(self, findings: list[str]) -> None:
        finished = 0
        for key, value in self._scan(ID, b"", _ROWS_MAX):
            _, number, lsn = self._id(key, value)
            table, target = (TASK, number) if lsn is None else (FINISHED, lsn)
            finished += lsn is not None
            if self._source.get(table, number_key(target)) is None:
                findings.append(
                    f"id row {key.hex()} names {target}, not in table {table}"
                )
                if len(findings) >= _FINDINGS_MAX:
                    return
        if finished != self.count(FINISHED):
            findings.append(
                f"{finished} finished id rows and {self.count(FINISHED)} finished rows"
            )

    def _digest(self, table: str) -> tuple[int, int]:
        rows = digest = 0
        for key, value in self._scan(table, b"", _ROWS_MAX):
            rows += 1
            if table == DUE:
                exact_due = unpack_due(key, value)
                if exact_due is None:
                    raise self._damaged_row(table, key)
                digest += due_digest(*due_key_parts(key), exact_due)
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

    def _scan(
        self, table: str, start: bytes, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        for piece in self._source.scan(table, start, limit):
            yield from piece

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
