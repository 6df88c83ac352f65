"""A batch that is refused at its end has never been, whatever it did until then."""

from random import Random
from typing import TYPE_CHECKING

import pytest
from engine_helpers import everything
from field_helpers import Bench

from wheeldb import (
    Batch,
    BatchRefused,
    CancelOutcome,
    LeaseLost,
    NewTask,
    TaskError,
    TaskExists,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDS = tuple("abcdefgh")


def prepare(bench: Bench, random: Random) -> None:
    """Have tasks in every state, some in the index and some not."""
    db = bench.db
    for step in range(12):
        one = random.choice(IDS)
        try:
            db.schedule(
                random.choice(["a", "b"]),
                {"n": step},
                delay=random.choice([0, 0, 90, 10**6]),
                id=random.choice([one, one, f"z{step}"]),
                if_exists="replace",
                queue=random.choice(["default", "other"]),
            )
            if random.random() < 0.4:
                for lease in db.lease(["default", "other"], limit=2):
                    end = random.choice([lease.ack, lease.release, None, None])
                    if end is not None:
                        end()
                    elif random.random() < 0.3:
                        lease.reject("no good")
            if random.random() < 0.3:
                db.cancel(random.choice(IDS))
            if random.random() < 0.2:
                db.pause(random.choice(IDS))
        except TaskError:
            pass
        if random.random() < 0.25:
            db.checkpoint()


def add_any(batch: Batch, random: Random) -> None:
    """Add a change that may well be refused, too."""
    one = random.choice(IDS)
    changes: list[Callable[[], None]] = [
        lambda: batch.schedule(
            "new",
            {"n": random.random()},
            delay=random.choice([0, 5]),
            id=one,
            if_exists="replace",
            queue=random.choice(["default", "other", "fresh"]),
        ),
        lambda: batch.schedule("new", delay=9, id=one, version=random.randint(1, 4)),
        lambda: batch.schedule_many([NewTask("many", delay=1, expires=3)] * 3),
        lambda: batch.cancel(one, running=random.random() < 0.5),
        lambda: batch.reschedule(one, delay=random.choice([0, 50])),
        lambda: batch.revive(one),
        lambda: batch.run_now(one),
        lambda: batch.pause(one),
        lambda: batch.resume(one, now=True),
    ]
    random.choice(changes)()


@pytest.mark.parametrize("seed", range(25))
def test_a_refused_batch_leaves_nothing(seed: int) -> None:
    random = Random(seed)
    with Bench() as bench:
        prepare(bench, random)
        db = bench.db
        for _ in range(12):
            before = everything(db, IDS)
            entries = sorted(set(db._engine.window.entries()))
            with pytest.raises(BatchRefused):
                refuse(bench, random)
            assert everything(db, IDS) == before
            assert entries == sorted(set(db._engine.window.entries()))
            if random.random() < 0.2:
                db.checkpoint()
                assert everything(db, IDS)["rows"] == before["rows"]
        assert db.check() == []
        bench.kill()
        assert bench.db.check() == []


def refuse(bench: Bench, random: Random) -> None:
    with bench.db.batch() as batch:
        for _ in range(random.randint(1, 8)):
            add_any(batch, random)
        batch.cancel("unknown", expect=CancelOutcome.CANCELLED)


def test_a_group_with_a_refused_call_keeps_the_others() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=0, id="a")
        (lease,) = bench.db.lease()
        bench.db.schedule("b", {"n": 1}, delay=60, id="b")
        before = everything(bench.db, IDS)
        new = [NewTask("c", delay=0, id="c"), NewTask("b", delay=60, id="b")]
        with pytest.raises(TaskExists):
            lease.ack(then=new)
        assert everything(bench.db, IDS) == before
        bench.db.checkpoint()
        lease.ack(then=new[:1])
        assert bench.db.get("c") is not None


def test_an_id_that_ends_and_comes_back_within_a_refused_batch() -> None:
    # The end has a number of the batch's own, which another event gets next.
    with Bench() as bench:
        bench.db.schedule("a", delay=60, id="a")
        before = everything(bench.db, IDS)

        def come_and_go() -> None:
            with bench.db.batch() as batch:
                batch.cancel("a")
                batch.schedule("a", delay=5, id="a", if_exists="replace")
                batch.cancel("a")
                batch.pause("unknown")

        with pytest.raises(BatchRefused):
            come_and_go()
        assert everything(bench.db, IDS) == before
        bench.db.schedule("b", delay=60, id="b")
        bench.db.checkpoint()
        assert bench.db.statistics().index_rows["finished"] == 0
        assert list(bench.db.tasks(state="cancelled")) == []


def test_a_lane_of_a_refused_batch_is_not_kept() -> None:
    with Bench() as bench:
        lanes = bench.db._engine.state.lanes

        def begin_a_lane() -> None:
            with bench.db.batch() as batch:
                batch.schedule("a", delay=5, queue="never", expires=5)
                batch.pause("unknown")

        with pytest.raises(BatchRefused):
            begin_a_lane()
        assert (lanes.keys, lanes.numbers, lanes.expiring) == ([], {}, frozenset())


def test_a_refused_settlement_changes_nothing() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=0, id="a")
        (lease,) = bench.db.lease()
        lease.release()
        before = everything(bench.db, IDS)
        with pytest.raises(LeaseLost):
            lease.ack()
        assert everything(bench.db, IDS) == before


class Unwalked(dict):  # type: ignore[type-arg]
    """A table that is never looked through from its beginning."""

    def __iter__(self) -> "Iterator[int]":
        raise AssertionError("the whole table is looked through")


def test_a_refused_batch_does_not_look_through_the_hot_table() -> None:
    with Bench() as bench:
        db, state = bench.db, bench.db._engine.state
        db.schedule_many([NewTask("a", delay=60)] * 100)
        db.schedule("a", delay=60, id="a")
        before = everything(db, IDS)
        rows, finished = state.active.rows, state.active.finished
        state.active.rows, state.active.finished = Unwalked(rows), Unwalked(finished)

        def refused() -> None:
            with db.batch() as batch:
                batch.schedule("b", delay=5, id="b")
                batch.cancel("a")
                batch.schedule("b", delay=5, id="c")
                batch.pause("unknown")

        with pytest.raises(BatchRefused):
            refused()
        state.active.rows = dict(state.active.rows.items())
        state.active.finished = dict(state.active.finished.items())
        assert everything(db, IDS) == before
