"""What exists throughout is listed exactly once, whatever happens meanwhile."""

from random import Random

import pytest
from field_helpers import Bench

from wheeldb import NewTask, Task
from wheeldb.engine import listing


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "STEP_COUNT", 7)


@pytest.mark.parametrize("seed", range(8))
def test_a_listing_beside_changes(seed: int) -> None:
    random = Random(seed)
    with Bench(retention_max=50) as bench:
        db = bench.db
        db.schedule_many([NewTask("stays", delay=60) for _ in range(60)])
        db.schedule_many(
            [NewTask("goes", delay=0, id=f"g{number}") for number in range(40)]
        )
        stays = [task.number for task in db.tasks(name="stays")]
        listed = []
        for task in db.tasks():
            listed.append(task.number)
            match random.randrange(8):
                case 0:
                    db.checkpoint()
                case 1:
                    db.cancel(f"g{random.randrange(40)}")
                case 2:
                    db.schedule("new", delay=random.choice([0, 90]))
                case 3:
                    db.reschedule(
                        f"t{random.choice(stays):014x}", delay=random.choice([30, 90])
                    )
                case 4:
                    for lease in db.lease(limit=3, names=["goes", "new"]):
                        if random.random() < 0.5:
                            lease.ack()
                        else:
                            lease.release()
                case 5:
                    db.run_now(f"t{random.choice(stays):014x}")
                    for lease in db.lease(limit=50):
                        lease.release()
        assert listed == sorted(set(listed))
        assert [number for number in listed if number in set(stays)] == stays


@pytest.mark.parametrize("seed", range(4))
def test_pages_of_unfinished_tasks_meet(seed: int) -> None:
    random = Random(seed)
    with Bench() as bench:
        db = bench.db
        db.schedule_many([NewTask("a", delay=60) for _ in range(50)])
        expected = [task.number for task in db.tasks()]
        found: list[int] = []
        last: Task | str | int | None = None
        while page := list(db.tasks(limit=random.randint(1, 9), after=last)):
            found += [task.number for task in page]
            task = page[-1]
            ways: list[Task | str | int] = [task, task.id, task.number]
            last = random.choice(ways)
            if random.random() < 0.3:
                db.checkpoint()
        assert found == expected


def test_pages_of_finished_tasks_meet() -> None:
    with Bench() as bench:
        db = bench.db
        ids = [f"f{number}" for number in range(30)]
        db.schedule_many([NewTask("a", delay=0, id=one) for one in ids])
        order = ids.copy()
        Random(3).shuffle(order)
        for one in order[:20]:
            db.cancel(one)
        db.checkpoint()
        for one in order[20:]:
            db.cancel(one)
        found: list[str] = []
        last: Task | str | None = None
        while page := list(db.tasks(state="cancelled", limit=4, after=last)):
            found += [task.id for task in page]
            last = page[-1] if len(found) % 8 else page[-1].id
        # In the order in which they finished.
        assert found == order


def test_nothing_lies_behind_the_highest_numbers() -> None:
    with Bench() as bench:
        bench.db.schedule("a", delay=0, id="a")
        for after in (2**53, 2**64, 2**80):
            assert list(bench.db.tasks(after=after)) == []
            assert list(bench.db.tasks(after=after, state="done")) == []


def test_finished_tasks_are_listed_as_long_as_they_are_remembered() -> None:
    with Bench(retention=100.0) as bench:
        bench.db.schedule("a", delay=0, id="a")
        bench.db.cancel("a")
        assert [task.id for task in bench.db.tasks(state="cancelled")] == ["a"]
        bench.clock.advance(100)
        assert bench.db.get("a") is None
        assert list(bench.db.tasks(state="cancelled")) == []
