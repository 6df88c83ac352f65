"""The same events make the same state, live and when the log is read again."""

from random import Random

import pytest
from engine_helpers import everything
from field_helpers import Bench
from test_engine_undo import IDS, add_any, prepare

import wheeldb
from wheeldb import TaskError
from wheeldb.engine.engine import Thresholds
from wheeldb.index import MemoryIndex
from wheeldb.index.keys import DUE, FINISHED, ID, TASK


def read_beside(bench: Bench) -> dict[str, object]:
    """Return what a reader makes of the log, without the owner's state."""
    reader = wheeldb.open(bench.path, readonly=True, disk=bench.disk, clock=bench.clock)
    try:
        return everything(reader, IDS)
    finally:
        reader.close()


def walk(bench: Bench, random: Random) -> None:
    prepare(bench, random)
    for _ in range(8):
        try:
            with bench.db.batch() as batch:
                add_any(batch, random)
        except TaskError:
            pass
        bench.clock.advance(random.choice([0, 1, 40, 2_000]))
        if random.random() < 0.3:
            bench.clock.step_wall(random.choice([-50, 50]))
        bench.db.poll()


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_finds_the_state_of_the_owner(seed: int) -> None:
    random = Random(seed)
    with Bench(retention_max=5) as bench:
        bench.db._engine.thresholds = Thresholds(entries=9)
        for _ in range(3):
            walk(bench, random)
            assert read_beside(bench) == everything(bench.db, IDS)


@pytest.mark.parametrize("seed", range(6))
def test_without_an_index_it_is_the_same(seed: int) -> None:
    bench = Bench()
    walk(bench, Random(seed))
    if seed % 2:
        bench.db.snapshot()
        walk(bench, Random(seed + 100))
    before = everything(bench.db, IDS)
    bench.disk.kill()
    (index,) = bench.disk.indexes.values()
    assert isinstance(index, MemoryIndex)
    index.clear()
    assert read_beside(bench) == before


def test_the_index_holds_what_the_events_make_at_every_checkpoint() -> None:
    random = Random(7)
    with Bench() as bench:
        for _ in range(15):
            walk(bench, random)
            bench.db.checkpoint()
            engine = bench.db._engine
            with engine.state.index.snapshot() as view:
                assert engine.digests.differences(view.digests()) == []


@pytest.mark.parametrize("table", [TASK, DUE, ID, FINISHED])
@pytest.mark.parametrize("damage", ["flipped", "gone", "moved"])
def test_a_damaged_row_is_found(table: str, damage: str) -> None:
    bench = Bench()
    db = bench.db
    db.schedule("a", {"n": 1}, delay=60, id="a")
    db.schedule("b", {"n": 1}, delay=60, id="b")
    db.schedule("c", delay=60, id="c")
    db.cancel("c")
    db.checkpoint()
    assert db.check() == []
    (index,) = bench.disk.indexes.values()
    assert isinstance(index, MemoryIndex)
    rows = index._tables[table]
    # Of ids, the one that is finished: its row has a value.
    key = next(key for key in rows.keys if rows.values[key])
    if damage == "flipped":
        index.corrupt(table, key, offset=len(rows.values[key]) - 1, xor=4)
    else:
        value = rows.values.pop(key)
        rows.keys.remove(key)
        if damage == "moved":
            other = key[:-1] + bytes([key[-1] ^ 64])
            rows.values[other] = value
            rows.keys.append(other)
            rows.keys.sort()
    assert db.check() != []
