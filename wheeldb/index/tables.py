"""The index in LMDB: one file of B+ trees, one named database for each table.

    index/data.mdb    the trees            index/new.mdb    one that is being built
    index/lock.mdb    LMDB's own locks     index/OPENING    see `wheeldb.index.opening`

Flags are fixed, not options: `sync` and `metasync` on, or a power cut damages the file;
`writemap` off, or a stray write into the map does; format 0.9, whatever the environment
variable says, since the formats can't read each other; no duplicate keys.  LMDB itself
never syncs its directory nor the file it creates, so a new index is built under another
name, synced and renamed.

Every `lmdb.Error` but a full map becomes `IndexDamaged`: after a failed write or sync
LMDB lets the next commit pass as if nothing had been.  An index that has refused once
refuses for good.  This module doesn't open files that may be damaged safely; nothing in
one process can (a page missing behind the map is a SIGBUS).  That is `opening`'s task.
"""

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOMEM
from itertools import islice
from operator import itemgetter
from threading import Condition
from typing import TypeAlias
from weakref import WeakSet

import lmdb

from wheeldb.disk import NO_ROOM, Disk, write_all
from wheeldb.errors import ClosedError
from wheeldb.index.bulk import Rows
from wheeldb.index.changes import (
    PIECE_ROWS_MAX,
    Changes,
    TableChanges,
    encode,
    piece_sizes,
)
from wheeldb.index.keys import FORMAT_NAME, INDEX_FORMAT, META, TABLES, unpack_row
from wheeldb.index.snapshot import IndexDamaged, IndexStatistics, Snapshot

__all__ = ("BUILD_FILE", "DATA_FILE", "LOCK_FILE", "LmdbIndex")

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
BUILD_FILE = "new.mdb"
_BUILD_LOCK_FILE = "new.mdb-lock"
# As long as LMDB makes it for its 126 readers.
LOCK_BYTES = 8192

# Address space, not memory; where there is less of it (an old kernel's limits, small
# boards) the first size is halved until it fits.
MAP_BYTES_FIRST = 16 * 2**30
MAP_BYTES_MIN = 64 * 2**20
MAP_BYTES_MAX = 2**40

# A file system that hasn't so much room left counts as full.
FULL_BYTES = 2**20

# How long enlarging the map waits for open views, which it would invalidate.
GROW_WAIT_S = 90.0

_Transaction: TypeAlias = "lmdb.Transaction[bytes]"

_key_of = itemgetter(0)


class LmdbIndex:
    """An `Index` in a directory; `open_index` opens one, `create` makes one."""

    def __init__(
        self,
        path: str,
        *,
        disk: Disk,
        readonly: bool = False,
        lock: bool = True,
        map_bytes: int = MAP_BYTES_FIRST,
        file: str = DATA_FILE,
    ) -> None:
        """Open an index that is known to be sound.

        Args:
            path: The directory.
            disk: Where the directory lies.
            readonly: Open for reading only.
            lock: Take part in LMDB's locking; without, a writer doesn't know of this
                reader and uses pages again that it looks at.
            map_bytes: The first size of the map.
            file: `BUILD_FILE` to begin a new one, see `build`.

        Raises:
            IndexDamaged: If LMDB refuses, or a table is missing.
            OSError: As the disk says.
        """
        self._path = path
        self._file = file
        self._disk = disk
        self._map_bytes = map_bytes
        self._page_bytes = 0
        self._commits = 0
        # Open views, and whether they have to wait: LMDB's map can't move under them.
        self._gate = Condition()
        self._views = 0
        self._is_growing = False
        # Why nothing is possible any more: it was closed, or LMDB refused once.
        self._closed_because = ""
        self._damage: IndexDamaged | None = None
        if lock and not readonly:
            self._fill_lock_file()
        self._environment = self._open_environment(readonly, lock)
        try:
            self.databases = self._open_databases()
            if not self._is_placed:
                self.apply(Changes(meta={FORMAT_NAME: INDEX_FORMAT}))
        except BaseException:
            self.close()
            raise
        _open_indexes.add(self)

    @classmethod
    def create(
        cls, path: str, *, disk: Disk, map_bytes: int = MAP_BYTES_FIRST
    ) -> "LmdbIndex":
        """Make an empty index, durably, in place of any that is there, and open it.

        Raises:
            IndexDamaged: If LMDB refuses.
            OSError: As the disk says.
        """
        return cls.build(path, disk=disk, map_bytes=map_bytes).swap_in()

    @classmethod
    def build(
        cls, path: str, *, disk: Disk, map_bytes: int = MAP_BYTES_FIRST
    ) -> "LmdbIndex":
        """Begin an empty index beside the one at `path`, to be filled and swapped in.

        Raises:
            IndexDamaged: If LMDB refuses.
            OSError: As the disk says.
        """
        disk.make_directory(path)
        for name in (BUILD_FILE, _BUILD_LOCK_FILE):
            _unlink_if_there(disk, f"{path}/{name}")
        return cls(path, disk=disk, map_bytes=map_bytes, file=BUILD_FILE)

    def swap_in(self) -> "LmdbIndex":
        """Put an index from `build` in the place it was built for, and open it there.

        Closes this object.  The index that was there may be open until the new one is:
        it keeps its file, whose name it loses, and must not be written any more.  It is
        replaced in one step: after a power cut either the old or the new one is there.

        Raises:
            IndexDamaged: If LMDB refuses.
            OSError: As the disk says.
        """
        assert not self._is_placed, f"{self._path} is in its place already"
        disk, path, map_bytes = self._disk, self._path, self._map_bytes
        self.close()
        handle = disk.open(f"{path}/{BUILD_FILE}")
        try:
            disk.sync(handle)
        finally:
            disk.close(handle)
        # Its lock file comes along: on a full disk there may be no room for another.
        disk.rename(f"{path}/{_BUILD_LOCK_FILE}", f"{path}/{LOCK_FILE}")
        disk.rename(f"{path}/{BUILD_FILE}", f"{path}/{DATA_FILE}")
        disk.sync_directory(path)
        disk.sync_directory(os.path.dirname(path) or ".")
        return type(self)(path, disk=disk, map_bytes=map_bytes)

    def discard(self) -> None:
        """Close an index from `build`, and remove what is left of it, for its room."""
        assert not self._is_placed, f"{self._path} is in its place"
        self.close()
        for name in (BUILD_FILE, _BUILD_LOCK_FILE):
            with suppress(OSError):
                _unlink_if_there(self._disk, f"{self._path}/{name}")

    @property
    def path(self) -> str:
        """The directory of the index."""
        return self._path

    @property
    def _is_placed(self) -> bool:
        return self._file == DATA_FILE

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Return a view of the index as of now, for the length of a block.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses.
        """
        # Before the gate: in a forked child nobody may ever open it.
        self._require_usable()
        with self._gate:
            self._gate.wait_for(lambda: not self._is_growing)
            self._views += 1
        try:
            with self._errors():
                transaction = self._begin_read()
            try:
                yield Snapshot(_LmdbSource(self, transaction))
            finally:
                transaction.abort()
        finally:
            with self._gate:
                self._views -= 1
                self._gate.notify_all()

    def apply(self, changes: Changes) -> None:
        """Write all changes in one transaction and sync it, or nothing.

        A full map is doubled and the transaction run again; that waits for the views
        that are open, so a thread must not hold one across this call.

        Raises:
            ClosedError: If the index is closed.
            OSError: If there is no room; the index is as it was.
            IndexDamaged: If LMDB refuses; the index is of no use any more.
        """
        batch = encode(changes)
        with self._errors():
            self._environment.reader_check()
            while True:
                try:
                    self._write(batch)
                except lmdb.MapFullError:
                    self._grow()
                except lmdb.Error as error:
                    if not self._is_full(error):
                        raise
                    # Nothing of the transaction counts, and what was there is whole.
                    raise OSError(
                        errno.ENOSPC, "no room for the index", self._path
                    ) from error
                else:
                    break
        self._commits += 1

    def statistics(self) -> IndexStatistics:
        """Return what the index holds and takes.

        Raises:
            ClosedError: If the index is closed.
            IndexDamaged: If LMDB refuses.
        """
        with self._errors():
            information = self._environment.info()
        with self.snapshot() as view:
            rows = {table: view.count(table) for table in TABLES}
        pages = information["last_pgno"] + 1
        return IndexStatistics(
            rows=rows,
            bytes=pages * self._page_bytes,
            pages=pages,
            map_bytes=self._map_bytes,
            commits=self._commits,
        )

    def keep_room(self, room_bytes: int = 32 * 2**20) -> bool:
        """Keep room on the disk behind the last page; return whether it is there.

        With it, a checkpoint that makes room elsewhere still fits on a full disk.

        Raises:
            ClosedError: If the index is closed.
            OSError: As the disk says; ENOSPC: there is no such room.
        """
        with self._errors():
            pages = self._environment.info()["last_pgno"] + 1
        # LMDB's own locks are on the other file: closing this one drops none.
        handle = self._disk.open(f"{self._path}/{self._file}")
        try:
            return self._disk.allocate(handle, pages * self._page_bytes, room_bytes)
        finally:
            self._disk.close(handle)

    def close(self) -> None:
        """Close it; a second call does nothing.  Views must be left before."""
        if not self._closed_because:
            self._closed_because = "is closed"
            self._environment.close()

    def probe(self) -> None:
        """Read the first row of every table.

        Raises:
            IndexDamaged: If something can't be read.
        """
        with self.snapshot() as view:
            view.tasks(-1, 1)
            view.due(0, None, 1)
            view.numbers_for(bytes(8))
            view.finished_range(-1, 1)

    def _fill_lock_file(self) -> None:
        # LMDB maps its lock file and writes into the hole that it makes of it: where
        # the disk has no room for that, the process dies of a SIGBUS.
        name = LOCK_FILE if self._is_placed else _BUILD_LOCK_FILE
        path = f"{self._path}/{name}"
        info = self._disk.info(path)
        if info is not None and info.size >= LOCK_BYTES:
            return
        handle = self._disk.open(path, create=True)
        try:
            write_all(self._disk, handle, bytes(LOCK_BYTES), 0)
        except BaseException:
            self._disk.truncate(handle, 0)
            raise
        finally:
            self._disk.close(handle)

    def _open_environment(self, readonly: bool, lock: bool) -> lmdb.Environment:
        path = self._path if self._is_placed else f"{self._path}/{self._file}"
        while True:
            try:
                with self._errors():
                    return lmdb.open(
                        path,
                        map_size=self._map_bytes,
                        subdir=self._is_placed,
                        readonly=readonly,
                        metasync=True,
                        sync=True,
                        mode=0o600,
                        create=not self._is_placed,
                        writemap=False,
                        max_dbs=len(TABLES),
                        max_spare_txns=0,
                        lock=lock,
                        lib_version=0,
                    )
            except IndexDamaged as damage:
                if damage.code != ENOMEM or self._map_bytes <= MAP_BYTES_MIN:
                    raise
                self._damage = None
                self._map_bytes = max(self._map_bytes // 2, MAP_BYTES_MIN)

    def _open_databases(self) -> dict[str, lmdb._Database]:
        create = not self._is_placed
        with self._errors():
            self._page_bytes = self._environment.stat()["psize"]
            meta = self._environment.open_db(META.encode(), create=create)
            if self._is_placed:
                self._require_format(meta)
            return {
                table: self._environment.open_db(table.encode(), create=create)
                for table in TABLES
            }

    def _require_format(self, meta: "lmdb._Database") -> None:
        """Refuse an index of another format, which has other tables."""
        key = FORMAT_NAME.encode()
        with self._begin_read() as transaction:
            row = unpack_row(key, transaction.get(key, b"", db=meta))
        found = None if row is None else row[2]
        if found != INDEX_FORMAT:
            raise IndexDamaged(f"index format {found!r}", path=self._path)

    def _begin_read(self) -> _Transaction:
        try:
            return self._environment.begin()
        except lmdb.ReadersFullError:
            # Readers that died keep their slots until somebody looks.
            self._environment.reader_check()
            return self._environment.begin()

    def _write(self, batch: list[TableChanges]) -> None:
        with self._environment.begin(write=True) as transaction:
            for changes in batch:
                database = self.databases[changes.table]
                for key in changes.deletes:
                    transaction.delete(key, db=database)
                with transaction.cursor(database) as cursor:
                    end = 0
                    if cursor.last():
                        end = bisect_right(changes.puts, cursor.key(), key=_key_of)
                    _put(cursor, changes.puts, 0, end, append=False)
                    # LMDB splits a page in the middle, and would leave those of two
                    # blocks half empty; what is appended fills them.
                    _put(cursor, changes.puts, end, len(changes.puts), append=True)

    def _grow(self) -> None:
        """Double the map.

        Assumes that no write transaction is open, and ensures that no read transaction
        is: LMDB moves the map, and they would look at the old place.
        """
        with self._gate:
            self._is_growing = True
            try:
                if not self._gate.wait_for(lambda: not self._views, GROW_WAIT_S):
                    raise self._refuse(
                        f"the map of {self._map_bytes} bytes is full and can't grow "
                        f"under {self._views} open views"
                    )
                if self._map_bytes * 2 > MAP_BYTES_MAX:
                    raise self._refuse(f"the map of {self._map_bytes} bytes is full")
                self._environment.set_mapsize(self._map_bytes * 2)
                self._map_bytes *= 2
            finally:
                self._is_growing = False
                self._gate.notify_all()

    def _is_full(self, error: lmdb.Error) -> bool:
        """Return whether a commit failed for lack of room.

        Where the system wrote less than asked for, LMDB tells of an input/output error.
        """
        if isinstance(error, lmdb.DiskError):
            return True
        if error.code != errno.EIO or isinstance(error, lmdb.PanicError):
            return False
        try:
            self.keep_room(FULL_BYTES)
        except OSError as refusal:
            return refusal.errno in NO_ROOM
        return False

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn LMDB's errors into ours, and refuse where there is no use in trying."""
        self._require_usable()
        try:
            yield
        except lmdb.Error as error:
            raise self._refusal_for(error) from error

    def _require_usable(self) -> None:
        if self._closed_because:
            raise ClosedError(f"{self._path}: the index {self._closed_because}")
        if self._damage is not None:
            raise self._refuse(self._damage.reason, self._damage.code)

    def _refusal_for(self, error: lmdb.Error) -> ClosedError | IndexDamaged:
        if self._closed_because:
            return ClosedError(f"{self._path}: the index {self._closed_because}")
        # Positive codes are the system's, negative ones LMDB's own.
        code = error.code if error.code > 0 else None
        return self._refuse(f"{type(error).__name__}: {error}", code)

    def _refuse(self, reason: str, code: int | None = None) -> IndexDamaged:
        self._damage = IndexDamaged(reason, path=self._path, code=code)
        return self._damage


class _LmdbSource:
    def __init__(self, index: LmdbIndex, transaction: _Transaction) -> None:
        self._index = index
        self._transaction = transaction
        self.path = index.path

    def get(self, table: str, key: bytes) -> bytes | None:
        # Not `_errors`, which costs as much as the look-up.
        try:
            return self._transaction.get(key, db=self._index.databases[table])
        except lmdb.Error as error:
            raise self._index._refusal_for(error) from error

    def last_to(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        # As `get`.
        try:
            cursor = self._transaction.cursor(self._index.databases[table])
            if cursor.set_range(key):
                found = cursor.key() == key or cursor.prev()
            else:
                found = cursor.last()
            return cursor.item() if found else None
        except lmdb.Error as error:
            raise self._index._refusal_for(error) from error

    def scan(
        self, table: str, start: bytes, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        with self._index._errors():
            cursor = self._transaction.cursor(self._index.databases[table])
            found = cursor.set_range(start) if start else cursor.first()
            rows = cursor.iternext()
        for size in piece_sizes(limit if found else 0):
            with self._index._errors():
                piece = list(islice(rows, size))
            if not piece:
                return
            yield piece

    def count(self, table: str) -> int:
        with self._index._errors():
            statistics = self._transaction.stat(self._index.databases[table])
        return statistics["entries"]


def _put(
    cursor: "lmdb.Cursor[bytes]", rows: Rows, start: int, end: int, *, append: bool
) -> None:
    for first in range(start, end, PIECE_ROWS_MAX):
        piece = rows[first : min(first + PIECE_ROWS_MAX, end)]
        cursor.putmulti(piece, append=append)


# A forked child has the parent's map and locks: using them "will corrupt the database
# or crash" (py-lmdb documentation, "Environment class").
_open_indexes: WeakSet[LmdbIndex] = WeakSet()


def _after_fork_in_child() -> None:
    for index in _open_indexes:
        if not index._closed_because:
            index._closed_because = "was opened before a fork; open it in this process"


os.register_at_fork(after_in_child=_after_fork_in_child)


def _unlink_if_there(disk: Disk, path: str) -> None:
    if disk.info(path) is not None:
        disk.unlink(path)
