"""The index: both kinds do the same, and what LMDB does beyond that.

Goal: every kind of index keeps the contract, and the LMDB one neither loses a change
nor lets damage or an error pass. Method: one class of tests run for each kind, a state
machine that drives both and a plain model side by side, and LMDB-only tests in which
the map is too small, the file can't grow or the process forks.
"""

import errno
import os
import resource
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wheeldb.disk import OsDisk
from wheeldb.errors import ClosedError, CorruptionError
from wheeldb.index import (
    BLOCK,
    DIGEST_MASK,
    DUE,
    FINISHED,
    ID,
    META,
    RUN,
    TABLES,
    TASK,
    Changes,
    Index,
    IndexDamaged,
    LmdbIndex,
    MemoryIndex,
    Snapshot,
    due_digest,
    id_digest,
    id_hash,
    number_key,
    row_crc,
    row_digest,
    tables,
)
from wheeldb.index.changes import PIECE_ROWS_MAX, encode
from wheeldb.index.keys import pack_row

LANE = 16


@pytest.fixture(params=["lmdb", "memory"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    """Each kind of index, empty."""
    made: Index
    if request.param == "lmdb":
        made = LmdbIndex.create(str(tmp_path / "index"), disk=OsDisk())
    else:
        made = MemoryIndex()
    yield made
    made.close()


@pytest.fixture
def lmdb_index(tmp_path: Path) -> Iterator[LmdbIndex]:
    """An empty index in a directory, with a map that fills up soon."""
    path = str(tmp_path / "index")
    made = LmdbIndex.create(path, disk=OsDisk(), map_bytes=2**20)
    yield made
    made.close()


def some_tasks(first: int, last: int, *, body: bytes = b"body") -> Changes:
    """Return puts of whole tasks, each with its due row one second after the other."""
    numbers = range(first, last)
    return Changes(
        put_tasks=[(number, number + 1, body) for number in numbers],
        put_due=[(LANE, 1_000 * number, number, 1_000 * number) for number in numbers],
    )


class TestIndex:
    """What every kind of index does."""

    def test_empty(self, index: Index) -> None:
        with index.snapshot() as view:
            assert view.task(1) is None
            assert view.tasks(-1, 10) == []
            assert view.due(LANE, None, 10) == []
            assert view.numbers_for(id_hash("a")) == []
            assert view.finished(1) is None
            assert view.finished_range(-1, 10) == []
            assert view.meta("lsn") is None
            tables = (TASK, BLOCK, DUE, RUN, ID, FINISHED)
            assert view.digests() == dict.fromkeys(tables, (0, 0))
            assert view.check() == []

    def test_tasks_by_number(self, index: Index) -> None:
        index.apply(
            Changes(put_tasks=[(3, 30, b"c"), (1, 10, b""), (300, 5, b"z" * 99)])
        )

        with index.snapshot() as view:
            assert view.task(1) == (10, b"")
            assert view.task(2) is None
            assert view.rows([300, 1]) == [(300, 5, b"z" * 99), (1, 10, b"")]
            assert view.tasks(-1, 2) == [(1, 10, b""), (3, 30, b"c")]
            assert view.tasks(1, 10) == [(3, 30, b"c"), (300, 5, b"z" * 99)]
            assert view.tasks(300, 10) == []
            assert view.tasks(-1, 0) == []

    def test_due_rows_of_a_lane(self, index: Index) -> None:
        index.apply(
            Changes(
                put_due=[
                    (LANE, 2_000, 7, 2_500),
                    (LANE, 1_000, 9, 1_001),
                    (LANE, 2_000, 6, 2_999),
                    (LANE - 1, 1_500, 1, 1_500),
                    (LANE + 1, 0, 2, 0),
                ]
            )
        )
        rows = [(1_000, 9, 1_001), (2_000, 6, 2_999), (2_000, 7, 2_500)]

        with index.snapshot() as view:
            assert view.due(LANE, None, 10) == rows
            assert view.due(LANE, None, 2) == rows[:2]
            assert view.due(LANE, (1_000, 9), 10) == rows[1:]
            assert view.due(LANE, (1_000, 8), 10) == rows
            assert view.due(LANE, (2_000, 7), 10) == []
            assert view.due(LANE, None, 10, until=1_999) == rows[:1]
            assert view.due(LANE, None, 10, until=2_000) == rows
            assert view.due(LANE + 1, None, 10) == [(0, 2, 0)]
            assert view.due(0, None, 10) == []

    def test_numbers_of_an_id(self, index: Index) -> None:
        one, other = id_hash("a"), id_hash("b")
        index.apply(Changes(put_ids=[(one, 9, None), (one, 4, 17), (other, 5, None)]))

        with index.snapshot() as view:
            assert view.numbers_for(one) == [(4, 17), (9, None)]
            assert view.numbers_for(other) == [(5, None)]
            assert view.numbers_for(id_hash("c")) == []

    def test_finished_by_lsn(self, index: Index) -> None:
        index.apply(Changes(put_finished=[(20, b"b"), (10, b"a")]))

        with index.snapshot() as view:
            assert view.finished(10) == b"a"
            assert view.finished(11) is None
            assert view.finished_range(-1, 10) == [(10, b"a"), (20, b"b")]
            assert view.finished_range(10, 1) == [(20, b"b")]

    def test_meta_is_replaced_by_name(self, index: Index) -> None:
        index.apply(Changes(meta={"lsn": b"1", "clock": b"x"}))
        index.apply(Changes(meta={"lsn": b"2"}))

        with index.snapshot() as view:
            assert view.meta("lsn") == b"2"
            assert view.meta("clock") == b"x"

    def test_deletes_come_before_puts(self, index: Index) -> None:
        index.apply(some_tasks(1, 4))
        index.apply(
            Changes(
                delete_tasks=[1, 2, 99],
                put_tasks=[(2, 50, b"new")],
                delete_due=[(LANE, 1_000, 1), (LANE, 2_000, 2), (LANE, 1, 99)],
                put_due=[(LANE, 2_000, 2, 2_001)],
            )
        )

        with index.snapshot() as view:
            assert view.tasks(-1, 10) == [(2, 50, b"new"), (3, 4, b"body")]
            assert view.due(LANE, None, 9) == [(2_000, 2, 2_001), (3_000, 3, 3_000)]
            assert view.check() == []

    def test_the_last_put_of_a_key_counts(self, index: Index) -> None:
        index.apply(Changes(put_tasks=[(1, 9, b"b"), (1, 2, b"a"), (1, 5, b"c")]))

        with index.snapshot() as view:
            assert view.task(1) == (5, b"c")
            assert view.count(TASK) == 1

    def test_every_table_loses_what_is_deleted(self, index: Index) -> None:
        hash8 = id_hash("a")
        index.apply(
            Changes(put_ids=[(hash8, 1, 5)], put_finished=[(5, b"x"), (6, b"y")])
        )
        index.apply(Changes(delete_ids=[(hash8, 1)], delete_finished=[5]))

        with index.snapshot() as view:
            assert view.numbers_for(hash8) == []
            assert view.finished_range(-1, 9) == [(6, b"y")]

    def test_a_view_sees_one_moment(self, index: Index) -> None:
        index.apply(some_tasks(1, 3))
        with index.snapshot() as before:
            index.apply(Changes(delete_tasks=[1], put_tasks=[(2, 9, b"new")]))
            index.apply(some_tasks(5, 100))
            with index.snapshot() as after:
                assert before.tasks(-1, 9) == [(1, 2, b"body"), (2, 3, b"body")]
                assert before.count(DUE) == 2
                assert after.tasks(-1, 2) == [(2, 9, b"new"), (5, 6, b"body")]
        assert index.statistics().rows[TASK] == 96

    def test_more_rows_than_one_piece(self, index: Index) -> None:
        last = 2 * PIECE_ROWS_MAX + 10
        changes = some_tasks(0, last)
        changes.put_tasks.reverse()
        index.apply(changes)

        with index.snapshot() as view:
            assert [row[0] for row in view.tasks(-1, last + 9)] == list(range(last))
            assert len(view.tasks(-1, PIECE_ROWS_MAX + 1)) == PIECE_ROWS_MAX + 1
            assert len(view.due(LANE, None, last - 1)) == last - 1
            assert view.check() == []
        index.apply(Changes(delete_tasks=list(range(last - 1))))
        with index.snapshot() as view:
            assert view.tasks(-1, 9) == [(last - 1, last, b"body")]

    def test_digests_follow_from_the_rows(self, index: Index) -> None:
        hash8 = id_hash("a")
        index.apply(
            Changes(
                put_tasks=[(1, 2, b"x"), (3, 4, b"y")],
                put_due=[(LANE, 1_000, 1, 1_001)],
                put_ids=[(hash8, 1, None), (hash8, 9, 8)],
                put_finished=[(8, b"z")],
            )
        )
        task = row_digest(1, row_crc(number_key(1), 2, b"x"))
        task += row_digest(3, row_crc(number_key(3), 4, b"y"))
        ids = id_digest(hash8, 1, None) + id_digest(hash8, 9, 8)

        with index.snapshot() as view:
            assert view.digests() == {
                TASK: (2, task & DIGEST_MASK),
                BLOCK: (0, 0),
                RUN: (0, 0),
                DUE: (1, due_digest(LANE, 1_000, 1, 1_001)),
                ID: (2, ids & DIGEST_MASK),
                FINISHED: (1, row_digest(8, row_crc(number_key(8), 8, b"z"))),
            }

    def test_check_finds_a_task_without_due_row(self, index: Index) -> None:
        changes = some_tasks(1, 4)
        changes.put_due[1] = (LANE, 5_000, 3, 5_000)
        index.apply(changes)

        with index.snapshot() as view:
            findings = view.check()
        assert len(findings) == 1
        assert "exactly one due time" in findings[0]

    def test_check_finds_a_due_row_without_task(self, index: Index) -> None:
        changes = some_tasks(1, 4)
        del changes.put_tasks[0]
        index.apply(changes)

        with index.snapshot() as view:
            findings = view.check()
            with pytest.raises(IndexDamaged, match="task 1 has a due row and no task"):
                view.rows([2, 1])
        assert "names task 1" in findings[0]

    def test_check_finds_ids_that_lead_nowhere(self, index: Index) -> None:
        hash8 = id_hash("a")
        index.apply(
            Changes(put_ids=[(hash8, 1, None), (hash8, 2, 7)], put_finished=[(8, b"x")])
        )

        with index.snapshot() as view:
            findings = view.check()
        assert len(findings) == 2
        assert "names task 1: no such" in findings[0]
        assert "names 7, not in table finished" in findings[1]

        index.apply(Changes(delete_ids=[(hash8, 1), (hash8, 2)]))
        with index.snapshot() as view:
            assert view.check() == ["0 finished id rows and 1 finished rows"]

    def test_bad_number_writes_nothing(self, index: Index) -> None:
        changes = some_tasks(1, 4)
        changes.put_due.append((LANE, -1, 9, 9))

        with pytest.raises(struct.error):
            index.apply(changes)

        assert index.statistics().rows[TASK] == 0

    def test_closed(self, index: Index) -> None:
        index.close()
        index.close()

        with pytest.raises(ClosedError, match="is closed"), index.snapshot():
            pass
        with pytest.raises(ClosedError, match="is closed"):
            index.apply(Changes())

    def test_keep_room_and_statistics(self, index: Index) -> None:
        index.apply(some_tasks(0, 100))
        index.apply(Changes(meta={"lsn": b"1"}))

        assert index.keep_room(2**20) in {True, False}

        statistics = index.statistics()
        assert statistics.rows[TASK] == statistics.rows[DUE] == 100
        assert set(statistics.rows) == set(TABLES)
        assert statistics.commits == 2


class TestLmdbIndex:
    """What concerns the file, the map and the process."""

    def test_what_was_applied_is_there_after_reopening(
        self, lmdb_index: LmdbIndex
    ) -> None:
        lmdb_index.apply(some_tasks(1, 100))
        lmdb_index.close()
        again = LmdbIndex(lmdb_index.path, disk=OsDisk())
        again.probe()

        with again.snapshot() as view:
            assert view.count(TASK) == 99
            assert view.check() == []
        again.close()

    def test_files_are_for_the_owner_only(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(1, 100))

        names = sorted(os.listdir(lmdb_index.path))
        assert names == ["data.mdb", "lock.mdb"]
        for name in names:
            assert os.stat(f"{lmdb_index.path}/{name}").st_mode & 0o777 == 0o600

    def test_map_is_doubled_when_it_is_full(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 20_000, body=b"x" * 100))

        statistics = lmdb_index.statistics()
        assert statistics.rows == {
            TASK: 20_000,
            DUE: 20_000,
            BLOCK: 0,
            RUN: 0,
            ID: 0,
            FINISHED: 0,
            META: 1,
        }
        assert statistics.map_bytes >= statistics.bytes > 2**20
        assert statistics.map_bytes % 2**20 == 0
        with lmdb_index.snapshot() as view:
            assert view.check() == []

    def test_pages_are_full_of_rows_that_come_in_order(
        self, lmdb_index: LmdbIndex
    ) -> None:
        # Of rows like blocks two fit on a page.
        for first in range(0, 400, 100):
            changes = some_tasks(first, first + 100, body=b"x" * 1_984)
            changes.put_tasks += some_tasks(first // 2, first, body=b"y").put_tasks
            lmdb_index.apply(changes)

        with lmdb_index._environment.begin() as transaction:
            pages = transaction.stat(lmdb_index.databases[TASK])["leaf_pages"]
        assert pages <= 210
        with lmdb_index.snapshot() as view:
            assert [row[0] for row in view.tasks(-1, 1_000)] == list(range(400))

    def test_growing_waits_for_open_views(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 10))
        changes = some_tasks(10, 10_000, body=b"x" * 100)
        thread = Thread(target=lmdb_index.apply, args=(changes,))
        growing = Event()
        # The gate asks this before it waits; nothing else of the index is replaced.
        wait_for = lmdb_index._gate.wait_for

        def tell_and_wait(*args: object) -> bool:
            growing.set()
            return wait_for(*args)  # type: ignore[arg-type]

        with lmdb_index.snapshot() as view:
            lmdb_index._gate.wait_for = tell_and_wait  # type: ignore[method-assign, assignment]
            thread.start()
            assert growing.wait(60)
            assert thread.is_alive()
            assert view.count(TASK) == 10
            assert view.task(9) == (10, b"body")
        thread.join(60)

        assert lmdb_index.statistics().rows[TASK] == 10_000

    def test_growing_gives_up_under_a_view_that_stays(
        self, lmdb_index: LmdbIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tables, "GROW_WAIT_S", 0)
        lmdb_index.apply(some_tasks(0, 10))
        with (
            lmdb_index.snapshot(),
            pytest.raises(IndexDamaged, match="can't grow under 1 open view"),
        ):
            lmdb_index.apply(some_tasks(10, 10_000, body=b"x" * 100))

        # It refuses from now on, and the file has the last good state.
        with pytest.raises(IndexDamaged, match="can't grow"), lmdb_index.snapshot():
            pass
        lmdb_index.close()
        again = LmdbIndex(lmdb_index.path, disk=OsDisk())
        assert again.statistics().rows[TASK] == 10
        again.close()

    def test_map_has_a_limit(
        self, lmdb_index: LmdbIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tables, "MAP_BYTES_MAX", 2**21)

        with pytest.raises(IndexDamaged, match="the map of 2097152 bytes is full"):
            lmdb_index.apply(some_tasks(0, 30_000, body=b"x" * 100))

    def test_map_is_halved_where_address_space_is_short(
        self, lmdb_index: LmdbIndex
    ) -> None:
        lmdb_index.close()
        # More than a process of 47 address bits has.
        again = LmdbIndex(lmdb_index.path, disk=OsDisk(), map_bytes=2**48)

        assert tables.MAP_BYTES_MIN <= again.statistics().map_bytes < 2**48
        again.close()

    def test_error_of_the_system_is_final(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 10))
        size = os.stat(f"{lmdb_index.path}/data.mdb").st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(CorruptionError) as caught:
                lmdb_index.apply(some_tasks(10, 5_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert isinstance(caught.value, IndexDamaged)
        assert caught.value.code in {errno.EFBIG, errno.EIO}
        assert "put it aside and rebuild it" in str(caught.value)
        # LMDB would go on as if nothing had been.
        with pytest.raises(IndexDamaged):
            lmdb_index.apply(Changes())
        lmdb_index.close()
        again = LmdbIndex(lmdb_index.path, disk=OsDisk())
        assert again.statistics().rows[TASK] == 10
        again.close()

    def test_forked_child_may_not_touch_it(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 10))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with lmdb_index.snapshot():
                    status = 2
            except ClosedError as error:
                status = 0 if "before a fork" in str(error) else 3
            finally:
                os._exit(status)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lmdb_index.statistics().rows[TASK] == 10

    def test_view_left_after_closing(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 10))

        with lmdb_index.snapshot() as view:
            lmdb_index.close()
            with pytest.raises(ClosedError):
                view.task(1)

    def test_build_beside_and_swap(self, lmdb_index: LmdbIndex) -> None:
        lmdb_index.apply(some_tasks(0, 10))
        beside = LmdbIndex.build(lmdb_index.path, disk=OsDisk())
        beside.apply(some_tasks(0, 20))
        assert lmdb_index.statistics().rows[TASK] == 10

        lmdb_index.close()
        swapped = beside.swap_in()

        assert swapped.statistics().rows[TASK] == 20
        assert sorted(os.listdir(swapped.path)) == ["data.mdb", "lock.mdb"]
        with pytest.raises(ClosedError):
            beside.statistics()
        swapped.close()

    def test_lock_file_has_no_hole(self, lmdb_index: LmdbIndex) -> None:
        # LMDB writes through a map into it: without a block that is a SIGBUS.
        beside = LmdbIndex.build(lmdb_index.path, disk=OsDisk())
        for name in ("lock.mdb", "new.mdb-lock"):
            status = os.stat(f"{lmdb_index.path}/{name}")
            assert status.st_blocks * 512 >= status.st_size == 8192
        lmdb_index.close()
        swapped = beside.swap_in()

        status = os.stat(f"{swapped.path}/lock.mdb")
        assert status.st_blocks * 512 >= status.st_size == 8192
        swapped.close()

    def test_left_over_of_a_build_is_written_over(self, lmdb_index: LmdbIndex) -> None:
        beside = LmdbIndex.build(lmdb_index.path, disk=OsDisk())
        beside.apply(some_tasks(0, 20))
        beside.close()
        lmdb_index.close()

        again = LmdbIndex.create(lmdb_index.path, disk=OsDisk())

        assert again.statistics().rows[TASK] == 0
        again.close()

    def test_room_is_kept_behind_the_last_page(self, lmdb_index: LmdbIndex) -> None:
        if not lmdb_index.keep_room(8 * 2**20):
            pytest.skip("this file system can't keep room")
        status = os.stat(f"{lmdb_index.path}/data.mdb")

        assert status.st_blocks * 512 >= 8 * 2**20
        assert status.st_size < 2**20

    def test_reader_without_lock_sees_the_last_commit(
        self, lmdb_index: LmdbIndex
    ) -> None:
        lmdb_index.apply(some_tasks(0, 10))
        lmdb_index.close()
        os.unlink(f"{lmdb_index.path}/lock.mdb")
        reader = LmdbIndex(lmdb_index.path, disk=OsDisk(), readonly=True, lock=False)

        with reader.snapshot() as view:
            assert view.count(TASK) == 10
        with pytest.raises(IndexDamaged):
            reader.apply(some_tasks(10, 11))
        reader.close()
        assert os.listdir(lmdb_index.path) == ["data.mdb"]


def test_memory_index_keeps_its_rows_over_reopening() -> None:
    index = MemoryIndex("store/index")
    index.apply(some_tasks(0, 10))
    index.close()
    index.reopen()

    assert index.statistics().rows[TASK] == 10
    index.clear()
    assert index.statistics().rows[TASK] == 0


def test_memory_index_shows_damage() -> None:
    index = MemoryIndex()
    index.apply(some_tasks(0, 10))
    index.corrupt(TASK, number_key(5), offset=12, xor=4)

    with index.snapshot() as view:
        assert view.task(4) == (5, b"body")
        with pytest.raises(IndexDamaged, match="row 0000000000000005 of table task"):
            view.task(5)
        with pytest.raises(IndexDamaged):
            view.digests()
        assert len(view.check()) == 1


def test_rows_that_are_missing_show_in_the_digest() -> None:
    class Short:
        """A source that has one row fewer than it says."""

        path = "short"

        def get(self, table: str, key: bytes) -> bytes | None:
            return None

        def last_to(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
            return None

        def scan(
            self, table: str, start: bytes, limit: int
        ) -> Iterator[list[tuple[bytes, bytes]]]:
            key = number_key(1)
            yield [(key, pack_row(key, 1, b""))]

        def count(self, table: str) -> int:
            return 2

    with pytest.raises(IndexDamaged, match="table task has 1 rows, not 2"):
        Snapshot(Short()).digests()


def test_encode_sorts_and_leaves_out_what_is_not_touched() -> None:
    numbers = [(7 * number) % 10_007 for number in range(5_000)]
    changes = Changes(
        put_tasks=[(number, 1, b"") for number in numbers],
        delete_tasks=[1, 1, 7, 10_000],
    )

    (only,) = encode(changes)

    assert only.table == TASK
    assert [key for key, _ in only.puts] == sorted(map(number_key, numbers))
    # 7 is put again; a delete would be undone.
    assert only.deletes == [number_key(1), number_key(10_000)]


NUMBERS = st.integers(0, 12)
DUES = st.integers(0, 3)
HASHES = st.sampled_from([id_hash("a"), id_hash("b")])
BODIES = st.binary(max_size=6)
CHANGES = st.builds(
    Changes,
    put_tasks=st.lists(st.tuples(NUMBERS, NUMBERS, BODIES), max_size=6),
    delete_tasks=st.lists(NUMBERS, max_size=4),
    put_due=st.lists(st.tuples(DUES, DUES, NUMBERS, DUES), max_size=6),
    delete_due=st.lists(st.tuples(DUES, DUES, NUMBERS), max_size=6),
    put_ids=st.lists(st.tuples(HASHES, NUMBERS, st.none() | NUMBERS), max_size=4),
    delete_ids=st.lists(st.tuples(HASHES, NUMBERS), max_size=4),
    put_finished=st.lists(st.tuples(NUMBERS, BODIES), max_size=4),
    delete_finished=st.lists(NUMBERS, max_size=4),
    meta=st.dictionaries(st.sampled_from(["lsn", "clock"]), BODIES, max_size=2),
)


class Model:
    """The index as plain dictionaries, written without any of its code."""

    def __init__(self) -> None:
        self.tasks: dict[int, tuple[int, bytes]] = {}
        self.due: dict[tuple[int, int, int], int] = {}
        self.ids: dict[tuple[bytes, int], int | None] = {}
        self.finished: dict[int, bytes] = {}
        self.meta: dict[str, bytes] = {}

    def copy(self) -> "Model":
        model = Model()
        for name, table in vars(self).items():
            setattr(model, name, dict(table))
        return model

    def apply(self, changes: Changes) -> None:
        for number in changes.delete_tasks:
            self.tasks.pop(number, None)
        for lane, field, number in changes.delete_due:
            self.due.pop((lane, field, number), None)
        for hash8, number in changes.delete_ids:
            self.ids.pop((hash8, number), None)
        for lsn in changes.delete_finished:
            self.finished.pop(lsn, None)
        for number, lsn, body in changes.put_tasks:
            self.tasks[number] = (lsn, body)
        for lane, field, number, exact_due in changes.put_due:
            self.due[lane, field, number] = exact_due
        for hash8, number, finishing_lsn in changes.put_ids:
            self.ids[hash8, number] = finishing_lsn
        self.finished.update(changes.put_finished)
        self.meta.update(changes.meta)


class IndexMachine(RuleBasedStateMachine):
    """Drives both kinds and the model; views are taken, kept and compared later."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="wheeldb-index-")
        self.path = f"{self.directory}/index"
        self.lmdb = LmdbIndex.create(self.path, disk=OsDisk())
        self.memory = MemoryIndex()
        self.model = Model()
        self.views: list[tuple[ExitStack, list[Snapshot], Model]] = []

    @rule(changes=CHANGES)
    def apply(self, changes: Changes) -> None:
        self.lmdb.apply(changes)
        self.memory.apply(changes)
        self.model.apply(changes)

    @precondition(lambda self: len(self.views) < 3)
    @rule()
    def take_views(self) -> None:
        stack = ExitStack()
        views = [
            stack.enter_context(self.lmdb.snapshot()),
            stack.enter_context(self.memory.snapshot()),
        ]
        self.views.append((stack, views, self.model.copy()))

    @precondition(lambda self: self.views)
    @rule()
    def leave_views(self) -> None:
        stack, views, model = self.views.pop(0)
        for view in views:
            self.compare(view, model)
        stack.close()

    @precondition(lambda self: not self.views)
    @rule()
    def reopen(self) -> None:
        self.lmdb.close()
        self.lmdb = LmdbIndex(self.path, disk=OsDisk())
        self.memory.close()
        self.memory.reopen()

    @rule(lane=DUES, after=st.none() | st.tuples(DUES, NUMBERS), limit=NUMBERS,
          until=st.none() | DUES)  # fmt: skip
    def read_due(
        self, lane: int, after: tuple[int, int] | None, limit: int, until: int | None
    ) -> None:
        expected = [
            (field, number, exact_due)
            for (found_lane, field, number), exact_due in sorted(self.model.due.items())
            if found_lane == lane
            and (after is None or (field, number) > after)
            and (until is None or field <= until)
        ][:limit]
        for index in (self.lmdb, self.memory):
            with index.snapshot() as view:
                assert view.due(lane, after, limit, until) == expected

    @invariant()
    def all_agree(self) -> None:
        with self.lmdb.snapshot() as one, self.memory.snapshot() as other:
            self.compare(one, self.model)
            self.compare(other, self.model)
            assert one.digests() == other.digests()
            assert one.check() == other.check()

    def compare(self, view: Snapshot, model: Model) -> None:
        """Hold everything that can be read against the model."""
        tasks = sorted((number, *row) for number, row in model.tasks.items())
        assert view.tasks(-1, 100) == tasks
        assert view.tasks(5, 3) == [row for row in tasks if row[0] > 5][:3]
        assert view.count(DUE) == len(model.due)
        for hash8 in (id_hash("a"), id_hash("b")):
            assert view.numbers_for(hash8) == sorted(
                (number, lsn)
                for (one, number), lsn in model.ids.items()
                if one == hash8
            )
        assert view.finished_range(-1, 100) == sorted(model.finished.items())
        assert all(view.meta(name) == body for name, body in model.meta.items())

    def teardown(self) -> None:
        for stack, _, _ in self.views:
            stack.close()
        self.lmdb.close()
        shutil.rmtree(self.directory)


IndexMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=20)
TestIndexMachine = IndexMachine.TestCase
