"""The readers of bytes from outside, each with the errors that it may raise.

    target = TARGETS["events"]
    target.read(b"\\x93\\x02…")       # returns, or raises one of target.errors

Anything but the named errors, a hang, and more memory than a multiple of the input is a
fault.  What is read is not judged here beyond that: bytes whose checksums hold are as
true as who wrote them.
"""

import argparse
import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import wheeldb
from tools.bitrot.stores import SEGMENT_BYTES, STORE, SeededEntropy
from tools.fuzz.seals import edits_of, pieces_of, sealed_segment, sealed_snapshot, site
from wheeldb.cli import arguments
from wheeldb.clock.timekeeper import Anchor
from wheeldb.disk.memory import MemoryDisk
from wheeldb.engine.decoding import decode_finished, decode_row
from wheeldb.engine.digests import Digests
from wheeldb.engine.folding import fold_frame
from wheeldb.engine.snapshots import load_snapshot, load_what_is_left
from wheeldb.engine.state import State
from wheeldb.engine.tables import unpack_tables
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.events import iterate_events, unpack_fields
from wheeldb.index import TABLES, MemoryIndex, Snapshot, vet
from wheeldb.index.keys import BLOCK, DUE, ID, RUN, TASK, pack_due, pack_row
from wheeldb.layout import Layout, read_backup_format, read_format
from wheeldb.log.frame import FrameHeader, find_next_frame, parse_header
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import list_segments, parse_segment_header
from wheeldb.log.snapshot import list_snapshots
from wheeldb.log.wreck import Wreck
from wheeldb.payload import unpack_payload
from wheeldb.testing import ManualClock
from wheeldb.vouch import place_of, read_vouch

__all__ = ("TARGETS", "Target")

TYPED = (CorruptionError, FormatError)
_LAYOUT = Layout(path=STORE)
_ROWS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader.

    Attributes:
        name: What it reads.
        read: Reads bytes, and uses what comes out.
        errors: What it may raise.
        seeds: Makes a few sound inputs.
    """

    name: str
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]

    def check(self, data: bytes) -> None:
        """Read, and let pass what may be raised."""
        with contextlib.suppress(*self.errors):
            self.read(data)


# The log.


def _frame(data: bytes) -> None:
    """Parse a header whose checksum is right, and search for it in garbage."""
    header = bytearray(data[:64].ljust(64, b"\0"))
    header[60:] = zlib.crc32(header[:60]).to_bytes(4, "little")
    salt = bytes(header[:8])
    found = parse_header(bytes(header), 0, salt)
    if isinstance(found, FrameHeader):
        assert found.last_lsn < 2**53, found
        assert found.bound <= 2**53, found
    find_next_frame(data + bytes(header), salt, 0)


def _segment_header(data: bytes) -> None:
    block = bytearray(data[:4_096].ljust(4_096, b"\0"))
    block[108:112] = zlib.crc32(block[:108]).to_bytes(4, "little")
    header = parse_segment_header(bytes(block), path="log/x.seg")
    assert 1 <= header.first_lsn == header.predecessor_last_lsn + 1 < 2**53, header
    assert header.bound <= 2**53, header


def _log_disk(data: bytes) -> MemoryDisk:
    """Return a disk whose last segment has edits."""
    found = site()
    name = list_segments(found.disk, _LAYOUT.log)[-1]
    path = f"{_LAYOUT.log}/{name.file_name}"
    return _disk({path: sealed_segment(found.files[path], edits_of(data))})


def _log(data: bytes) -> None:
    disk = _log_disk(data)
    first = list_segments(disk, _LAYOUT.log)[0].first_lsn
    scan = LogScan(disk, _LAYOUT.log, database=site().database, from_lsn=first - 1)
    last = first - 1
    for frame in scan:
        assert frame.header.first_lsn > last, frame.header
        last = frame.header.last_lsn
    assert scan.end.last_lsn < 2**53
    assert scan.end.bound_highest <= 2**53, scan.end


def _raw_log(data: bytes) -> None:
    """Read bytes as they are behind a sound header."""
    disk = _log_disk(b"")
    path = f"{_LAYOUT.log}/{list_segments(disk, _LAYOUT.log)[0].file_name}"
    handle = disk.open(path)
    disk.pwrite(handle, data, 4_096 + len(data) % 4_096 // 8 * 8)
    scan = LogScan(disk, _LAYOUT.log, database=None, from_lsn=2**40)
    with contextlib.suppress(*TYPED):
        scan.finish()
    for frame in Wreck(disk, [_LAYOUT.log], database=None):
        assert frame.header.lsn_count, frame


def _wreck(data: bytes) -> None:
    last = 0
    for frame in Wreck(_log_disk(data), [_LAYOUT.log], database=None):
        assert frame.header.last_lsn > last, frame
        last = frame.header.last_lsn


def _snapshot(data: bytes) -> None:
    found = site()
    name = list_snapshots(found.disk, _LAYOUT.snapshots)[-1].file_name
    path = f"{_LAYOUT.snapshots}/{name}"
    disk = _disk({path: sealed_snapshot(found.files[path], edits_of(data))})
    with contextlib.suppress(*TYPED):
        load_what_is_left(
            disk, path, State(MemoryIndex()), Digests(), database=found.database
        )
    state = State(MemoryIndex())
    load_snapshot(disk, path, state, Digests(), database=found.database)


# What stands in frames and rows.


def _events(data: bytes) -> None:
    for by, record in iterate_events(data):
        assert isinstance(by, str), by
        assert record.lsn_count >= 0, record


def _fold(data: bytes) -> None:
    """Fold a payload on top of a few tasks."""
    state = State(MemoryIndex())
    for payload, first_lsn, hlc in _opening_frames():
        fold_frame(state, first_lsn, hlc, payload)
    fold_frame(state, state.last_lsn + 1, state.last_hlc + 1, data)
    assert not state.check(), state.check()


def _opening_frames() -> Iterator[tuple[bytes, int, int]]:
    """Yield the first frames of the store: an opening, and eight tasks or so."""
    found = site()
    name = list_segments(found.disk, _LAYOUT.log)[0]
    pieces = pieces_of(found.files[f"{_LAYOUT.log}/{name.file_name}"])
    for position in range(1, 17, 2):
        header = parse_header(pieces[position], 0, pieces[position][:8])
        if isinstance(header, FrameHeader) and header.lsn_count:
            yield pieces[position + 1], header.first_lsn, header.hlc


def _fields(data: bytes) -> None:
    unpack_fields(data)


def _row(data: bytes) -> None:
    for lsn in (7, 9):
        decode_row(7, lsn, data).pack()


def _finished(data: bytes) -> None:
    decode_finished(7, data).pack()


def _tables(data: bytes) -> None:
    unpack_tables(State(MemoryIndex()), data)


def _anchor(data: bytes) -> None:
    fields = unpack_fields(data)
    Anchor.from_fields(fields)  # type: ignore[arg-type]


def _payload(data: bytes) -> None:
    unpack_payload(data)


# The index.


class _Rows:
    """Rows of any bytes, as a `Snapshot` reads them."""

    path = "/fuzz"

    def __init__(self, data: bytes) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {name: {} for name in TABLES}
        position = 0
        while position + 3 <= len(data):
            table, key, value = data[position : position + 3]
            position += 3
            name = TABLES[table % len(TABLES)]
            middle = position + key % 32
            end = middle + value % 64
            found = data[position:middle]
            is_sealed = value >= 128
            self.tables[name][found] = (
                _sealed_row(name, found, data[middle:end])
                if is_sealed
                else data[middle:end]
            )
            position = end

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables[table].get(key)

    def last_to(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        keys = [one for one in sorted(self.tables[table]) if one <= key]
        return (keys[-1], self.tables[table][keys[-1]]) if keys else None

    def scan(
        self, table: str, start: bytes, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        rows = self.tables[table]
        found = [(key, rows[key]) for key in sorted(rows) if key >= start][:limit]
        if found:
            yield found

    def count(self, table: str) -> int:
        return len(self.tables[table])


def _sealed_row(table: str, key: bytes, body: bytes) -> bytes:
    """Return a row's value with its checksum right, whatever is in it."""
    if table == DUE:
        return pack_due(key, int.from_bytes(body[:8]))
    if table == RUN:
        return body + zlib.crc32(body, zlib.crc32(key)).to_bytes(4)
    return body if table == ID else pack_row(key, 1, body)


def _index(data: bytes) -> None:
    """Look at rows in every way; each may find that the index is damaged."""
    view = Snapshot(_Rows(data))
    looks: tuple[Callable[[], object], ...] = (
        lambda: view.tasks(-1, _ROWS_MAX),
        lambda: view.rows([1, 2]),
        lambda: view.due(16, None, _ROWS_MAX),
        lambda: view.due(0, (1, 1), _ROWS_MAX, until=2**40),
        lambda: view.numbers_for(data[:8].ljust(8, b"\0")),
        lambda: view.finished(1),
        lambda: view.finished_range(-1, _ROWS_MAX),
        lambda: view.meta("tables"),
        view.digests,
        view.check,
    )
    for look in looks:
        with contextlib.suppress(CorruptionError):
            look()


def _meta_pages(data: bytes) -> None:
    disk = _disk({"/index/data.mdb": data})
    assert vet("/index", disk=disk, vouched=True).reason


# Small files.


def _format(data: bytes) -> None:
    disk = _disk({_LAYOUT.format: data})
    with contextlib.suppress(FormatError):
        read_backup_format(disk, _LAYOUT)
    database = read_format(disk, _LAYOUT)
    assert database is not None, "a FORMAT that says nothing"
    assert len(database) == 16, database


def _vouch(data: bytes) -> None:
    """Read a VOUCH whose checksum is right, and rely on it."""
    line = data.partition(b"\n")[0]
    crc = b"%08x\n" % zlib.crc32(line)
    disk = _disk({_LAYOUT.vouch: line + b"\n" + crc})
    vouch = read_vouch(disk, _LAYOUT)
    if vouch is not None:
        vouch.is_good(ManualClock(), place_of(disk, STORE))
        assert max(vouch.closed_lsn or 0, vouch.proven_lsn) >= 0
        assert vouch.starts + 1 > 0
        assert vouch.checkpoint_lsn >= 0


# A whole opening, and the command line.


def _store(data: bytes) -> None:
    """Open a store whose last segment, or the older snapshot, has edits."""
    found = site()
    disk = found.disk.clone()
    if len(data) % 3 == 0:
        disk.indexes.clear()
    name = list_segments(disk, _LAYOUT.log)[-1]
    path = f"{_LAYOUT.log}/{name.file_name}"
    disk.load({path: sealed_segment(found.files[path], edits_of(data))})
    db = wheeldb.open(
        STORE,
        disk=disk,
        clock=found.clock,
        entropy=SeededEntropy(2),
        driver=False,
        reserve=False,
        profile="disk",
        segment_bytes=SEGMENT_BYTES,
        create=False,
    )
    try:
        for task in db.tasks():
            assert task.id
        db.poll()
        db.check()
    finally:
        disk.kill()


def _words(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for parse in (
        arguments.duration,
        arguments.instant,
        arguments.json_value,
        arguments.header,
        arguments.priority,
    ):
        with contextlib.suppress(argparse.ArgumentTypeError):
            parse(text)


# Seeds.


def _disk(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk(MemoryIndex)
    for path, data in files.items():
        names = path.strip("/").split("/")[:-1]
        for depth in range(len(names)):
            disk.make_directory("/" + "/".join(names[: depth + 1]))
        handle = disk.open(path, create=True)
        disk.pwrite(handle, data, 0)
        disk.close(handle)
    return disk


def _edit_seeds() -> list[bytes]:
    return [b"", b"\2\0\0\0\1x", b"\1\0\x10\0\x08" + b"\xff" * 8]


def _payload_seeds() -> list[bytes]:
    found = site()
    seeds: list[bytes] = []
    for name in list_segments(found.disk, _LAYOUT.log):
        pieces = pieces_of(found.files[f"{_LAYOUT.log}/{name.file_name}"])
        seeds += [piece for piece in pieces[2::2] if piece]
    # The smallest of each first byte or so: one of each kind of event.
    return sorted(set(seeds), key=len)[:60]


def _field_seeds() -> list[bytes]:
    index = found_index()
    with index.snapshot() as view:
        bodies = [row[2] for row in view.tasks(-1, 40)]
        bodies += [row[1] for row in view.finished_range(-1, 10)]
        tables = view.meta("tables")
    return [*sorted(bodies, key=len)[:20], *([tables] if tables else [])]


def found_index() -> MemoryIndex:
    """Return the index of the store."""
    index = site().disk.clone().indexes[_LAYOUT.index]
    assert isinstance(index, MemoryIndex), index
    index.reopen()
    return index


def _row_seeds() -> list[bytes]:
    """Return a task, a block of one, a due row and a run, sealed when they are read."""
    number, due_key = (7).to_bytes(8), (16).to_bytes(4) + bytes(8) + (7).to_bytes(8)
    rows = (
        (TASK, number, b"\x80"),
        (BLOCK, number, b"\x93\x00\x80\x81\x04\x91\xc4\x01\xc0"),
        (DUE, due_key, bytes(8)),
        (RUN, due_key, bytes(8)),
    )
    return [
        bytes((TABLES.index(table), len(key), 128 + len(value))) + key + value
        for table, key, value in rows
    ]


def _file_seeds(path: str) -> Callable[[], list[bytes]]:
    return lambda: [site().files[path]]


def _header_seeds() -> list[bytes]:
    name = list_segments(site().disk, _LAYOUT.log)[-1]
    pieces = pieces_of(site().files[f"{_LAYOUT.log}/{name.file_name}"])
    return [pieces[0], pieces[1], pieces[3]]


def _meta_seeds() -> list[bytes]:
    head = bytes(16) + (0xBEEFC0DE).to_bytes(4, "little") + b"\1\0\0\0" + bytes(16)
    page = head + (4_096).to_bytes(4, "little") + bytes(100)
    return [page.ljust(4_096, b"\0") * 2]


def _word_seeds() -> list[bytes]:
    texts = ["2h30m", "2026-12-01T02:00:00+01:00", '{"valve": [7, null]}', "a=b", "-5"]
    return [text.encode() for text in texts]


_ALL = (
    ("frame", _frame, (), _header_seeds),
    ("segment header", _segment_header, TYPED, _header_seeds),
    ("log", _log, TYPED, _edit_seeds),
    ("raw log", _raw_log, TYPED, _payload_seeds),
    ("wreck", _wreck, TYPED, _edit_seeds),
    ("snapshot", _snapshot, TYPED, _edit_seeds),
    ("events", _events, (FormatError,), _payload_seeds),
    ("fold", _fold, TYPED, _payload_seeds),
    ("fields", _fields, (FormatError,), _field_seeds),
    ("row", _row, (CorruptionError,), _field_seeds),
    ("finished", _finished, (CorruptionError,), _field_seeds),
    ("tables", _tables, TYPED, _field_seeds),
    ("anchor", _anchor, TYPED, _field_seeds),
    ("payload", _payload, TYPED, _field_seeds),
    ("index", _index, (), _row_seeds),
    ("meta pages", _meta_pages, (), _meta_seeds),
    ("FORMAT", _format, TYPED, _file_seeds(_LAYOUT.format)),
    ("VOUCH", _vouch, (), _file_seeds(_LAYOUT.vouch)),
    ("store", _store, TYPED, _edit_seeds),
    ("words", _words, (), _word_seeds),
)
TARGETS = {
    name: Target(name=name, read=read, errors=errors, seeds=seeds)
    for name, read, errors, seeds in _ALL
}
