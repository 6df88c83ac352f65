"""What a snapshot holds, and a state from it.

A snapshot is a compacted log of what the index holds at one checkpoint, as events::

    STATE_TABLES    the store's own tables (see ``tables.py``) and the digests
    STATE           [[number, LSN, body], …]     unfinished tasks with rows of their own
    STATE_BLOCKS    [[first number, body], …]    those in blocks (``index/blocks.py``)
    STATE_FINISHED  [[LSN, body], …]             every finished id

The rows' bytes are copied as they are, each checked against its CRC on the way.  While
they pass, their count and digest are summed up and compared with what the events
make: a snapshot that would copy a silent loss is refused, and with it the removal of
the log that could undo the loss.  Due times are not copied: the tasks tell them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from wheeldb.disk import Disk
from wheeldb.engine.checkpoint import DIGESTS_NAME, TABLES_NAME
from wheeldb.engine.digests import Digests
from wheeldb.engine.lanes import LANE_FIRST, LANE_LEASED, field_in_index
from wheeldb.engine.row import Finished, Row
from wheeldb.engine.state import State
from wheeldb.engine.tables import pack_tables, unpack_tables
from wheeldb.engine.untouched import Blocks
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.events import (
    EventRecord,
    F,
    Kind,
    iterate_events,
    pack_author,
    pack_event,
    pack_fields,
)
from wheeldb.index import MemoryIndex
from wheeldb.index.blocks import Block
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    BLOCK,
    DUE,
    FINISHED,
    ID,
    TASK,
    due_digest,
    id_digest,
    id_hash,
    number_key,
    row_crc,
    row_digest,
)
from wheeldb.index.snapshot import Snapshot
from wheeldb.log.snapshot import open_snapshot
from wheeldb.unpacking import MISSHAPEN, misshapen

__all__ = (
    "load_snapshot",
    "load_what_is_left",
    "read_tables",
    "snapshot_payloads",
)

# What a snapshot holds of a row: its key, its body at the end.
_Row = TypeVar("_Row", tuple[int, int, bytes], tuple[int, bytes])

_PIECE_COUNT = 1_000
_BLOCK_PIECE_COUNT = 200
_PIECE_BYTES = 2**19

# What is loaded goes into the index when so many rows, or bytes of them, have gathered.
_APPLIED_COUNT = 20_000
_APPLIED_BYTES = 8 * 2**20


def snapshot_payloads(
    view: Snapshot, tables: bytes, digests: Digests
) -> Iterator[bytes]:
    """Yield the payloads of a snapshot's frames.

    Args:
        view: The index as of the checkpoint.
        tables: The store's tables at the checkpoint.
        digests: What the index must hold by the events.

    Raises:
        IndexDamaged: If a row is damaged.
        CorruptionError: If the rows are not those that the events make.
    """
    found = Digests()
    head = pack_author("wheel")
    stored: dict[int, object] = {F.CHECKPOINT: tables, F.DIGESTS: digests.stored()}
    yield head + pack_event(Kind.STATE_TABLES, 1, pack_fields(stored))
    after = -1
    while rows := view.task_rows(after, _PIECE_COUNT):
        after = rows[-1][0]
        for number, lsn, body in rows:
            found.add(TASK, row_digest(number, row_crc(number_key(number), lsn, body)))
        for piece in _pieces(rows):
            fields = pack_fields({F.TASK_ROWS: piece})
            yield head + pack_event(Kind.STATE, len(piece), fields)
    after = -1
    while blocks := view.block_rows(after, _BLOCK_PIECE_COUNT):
        after = blocks[-1][0]
        for first, lsn, body in blocks:
            found.add(BLOCK, row_digest(first, row_crc(number_key(first), lsn, body)))
        for some in _pieces([(first, body) for first, _, body in blocks]):
            fields = pack_fields({F.BLOCK_ROWS: some})
            yield head + pack_event(Kind.STATE_BLOCKS, len(some), fields)
    after = 0
    while kept := view.finished_range(after, _PIECE_COUNT):
        after = kept[-1][0]
        for lsn, body in kept:
            found.add(FINISHED, row_digest(lsn, row_crc(number_key(lsn), lsn, body)))
        for small in _pieces(kept):
            fields = pack_fields({F.FINISHED_ROWS: small})
            yield head + pack_event(Kind.STATE_FINISHED, len(small), fields)
    for table in (TASK, BLOCK, FINISHED):
        if found.stored()[table] != digests.stored()[table]:
            raise CorruptionError(
                f"the index has lost or changed rows of table {table}: it holds "
                f"{found.counts[table]}, the events make {digests.counts[table]}"
            )


def _pieces(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in lists whose bodies take about half a megabyte at most."""
    piece: list[_Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row[-1])
        if size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def load_snapshot(
    disk: Disk, path: str, state: State, digests: Digests, *, database: bytes
) -> None:
    """Fill an empty state and its index from a snapshot.

    Raises:
        CorruptionError: If the file is damaged, or does not hold what it says.
    """
    loader = _Loader(state, digests)
    with open_snapshot(disk, path, database=database) as reader:
        loader.read(reader)
    loader.finish(path)


def load_what_is_left(
    disk: Disk, path: str, state: State, digests: Digests, *, database: bytes | None
) -> CorruptionError | None:
    """Fill an empty state and its index from a snapshot that may be damaged.

    Returns:
        The damage behind which nothing was read, ``None`` if there was none.

    Raises:
        CorruptionError: If not even its header is whole; nothing was loaded.
    """
    loader = _Loader(state, digests)
    damage = None
    with open_snapshot(disk, path, database=database) as reader:
        try:
            loader.read(reader)
        except CorruptionError as error:
            damage = error
        if damage is None:
            loader.finish(path)
        else:
            loader.finish_what_is_left(reader.lsn, reader.hlc)
    return damage


def read_tables(disk: Disk, path: str, *, database: bytes) -> State:
    """Return a state that has a snapshot's tables, and none of its rows.

    Raises:
        CorruptionError: If the file is damaged in front of them.
    """
    state = State(MemoryIndex())
    with open_snapshot(disk, path, database=database) as reader:
        for payload in reader:
            for _, record in iterate_events(payload):
                if record.kind == Kind.STATE_TABLES:
                    unpack_tables(state, _bytes(record.fields[F.CHECKPOINT]))
                    return state
    raise CorruptionError("the snapshot has no tables", path=path)


class _Loader:
    """Puts a snapshot's rows into an index, and sums them up."""

    def __init__(self, state: State, digests: Digests) -> None:
        self._state = state
        self._digests = digests
        self._begin_piece()
        self._tables: bytes | None = None
        self._expected: dict[str, list[int]] = {}
        # What the rows come to, should the tables be of more than there are.
        self._pending: Counter[tuple[str, int]] = Counter()
        self._payload_bytes = 0
        self._finished_count = 0

    def _begin_piece(self) -> None:
        self._changes = Changes()
        self._blocks = Blocks(self._changes, self._digests)
        self._count = self._body_bytes = 0

    def read(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            for _, record in iterate_events(payload):
                try:
                    self._add(record)
                except MISSHAPEN as error:
                    raise misshapen("an event of the snapshot", error) from error
            if self._count >= _APPLIED_COUNT or self._body_bytes >= _APPLIED_BYTES:
                self.write_piece()

    def _add(self, record: EventRecord) -> None:
        fields: dict[int, Any] = record.fields
        if record.kind == Kind.STATE_TABLES:
            self.tables(fields)
        elif record.kind == Kind.STATE:
            for number, lsn, body in fields[F.TASK_ROWS]:
                self.task(number, lsn, body)
        elif record.kind == Kind.STATE_BLOCKS:
            for first, body in fields[F.BLOCK_ROWS]:
                self.block(first, body)
        else:
            for lsn, body in fields[F.FINISHED_ROWS]:
                self.finished(lsn, body)

    def tables(self, fields: dict[int, Any]) -> None:
        self._tables = _bytes(fields[F.CHECKPOINT])
        self._expected = fields[F.DIGESTS]
        unpack_tables(self._state, self._tables)

    def task(self, number: int, lsn: int, body: bytes) -> None:
        state, changes, add = self._state, self._changes, self._digests.add
        row = Row.unpack(number, lsn, body)
        self._pending[row.queue, row.state] += 1
        self._payload_bytes += len(row.payload)
        self._count += 1
        self._body_bytes += len(body)
        lane = state.lanes.of_row(row)
        field = field_in_index(lane, row)
        due_ms = max(row.due_ms, 0)
        assert lane >= LANE_FIRST or field == 0, f"lane {lane} has due field {field}"
        changes.put_tasks.append((number, lsn, body))
        add(TASK, row_digest(number, row_crc(number_key(number), lsn, body)))
        changes.put_due.append((lane, field, number, due_ms))
        add(DUE, due_digest(lane, field, number, due_ms))
        if row.id is not None:
            self._id(row.id, number)
        if lane == LANE_LEASED:
            state.leased[number] = row

    def block(self, first: int, body: bytes) -> None:
        block = Block.from_body(first, body)
        if block is None:
            raise FormatError(
                f"block {first} of a snapshot does not decode although its checksum "
                "holds; open the store with the release that wrote it"
            )
        numbers = block.numbers()
        row = Row.unpack(numbers[0], numbers[0], block.body(numbers[0]))
        self._pending[row.queue, row.state] += len(numbers)
        self._payload_bytes += sum(map(len, filter(None, block.columns[F.PAYLOAD])))  # type: ignore[arg-type]
        self._count += len(numbers)
        self._body_bytes += len(body)
        # Tasks of one block are of one lane.
        self._blocks.put(block, body, self._state.lanes.of_row(row))
        for number, task_id in enumerate(block.columns.get(F.ID, ()), first):
            if task_id is not None:
                self._id(task_id, number)  # type: ignore[arg-type]

    def _id(self, task_id: str, number: int) -> None:
        hash8 = id_hash(task_id)
        self._changes.put_ids.append((hash8, number, None))
        self._digests.add(ID, id_digest(hash8, number, None))

    def finished(self, lsn: int, body: bytes) -> None:
        finished = Finished.unpack(lsn, body)
        self._finished_count += 1
        self._count += 1
        self._body_bytes += len(body)
        hash8, number = id_hash(finished.id), finished.number
        self._changes.put_finished.append((lsn, body))
        self._digests.add(
            FINISHED, row_digest(lsn, row_crc(number_key(lsn), lsn, body))
        )
        self._changes.put_ids.append((hash8, number, lsn))
        self._digests.add(ID, id_digest(hash8, number, lsn))

    def write_piece(self) -> None:
        self._blocks.finish()
        self._apply()

    def _apply(self) -> None:
        self._state.index.apply(self._changes)
        self._begin_piece()

    def finish(self, path: str) -> None:
        self._blocks.finish()
        if self._tables is None or not self._is_as_expected():
            raise CorruptionError(
                "the snapshot does not hold the rows that it says it holds", path=path
            )
        self._changes.meta[TABLES_NAME] = self._tables
        self._changes.meta[DIGESTS_NAME] = pack_fields(
            {F.DIGESTS: self._digests.stored()}
        )
        self._apply()

    def _is_as_expected(self) -> bool:
        """Return whether all came that is copied; due times are made here."""
        found, expected = self._digests, Digests(self._expected)
        return all(
            found.stored()[table] == expected.stored()[table]
            for table in (TASK, BLOCK, ID, FINISHED)
        )

    def finish_what_is_left(self, lsn: int, hlc: int) -> None:
        """Make the tables fit to the rows that were there."""
        state = self._state
        state.last_lsn, state.last_hlc = lsn, max(hlc, state.last_hlc)
        state.pending = dict(self._pending)
        state.pending_count = self._pending.total()
        state.payload_bytes = self._payload_bytes
        state.finished_count = self._finished_count
        self._tables = pack_tables(state)
        self._expected = self._digests.stored()
        self.finish("")


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise FormatError(
            f"the tables of a snapshot are a {type(value).__name__}, not bytes; open "
            "the store with the release that wrote it"
        )
    return value
