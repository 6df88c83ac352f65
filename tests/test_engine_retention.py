"""Finished ids are remembered for a time, and forgotten oldest first."""

from datetime import UTC, datetime, timedelta

from field_helpers import Bench

from wheeldb import CancelOutcome, NewTask
from wheeldb.engine.listing import finished_rows
from wheeldb.engine.retention import forget_finished


def finish(bench: Bench, *ids: str) -> None:
    bench.db.schedule_many([NewTask("a", delay=0, id=one) for one in ids])
    assert sorted(bench.started()) == sorted(ids)


def tidy(bench: Bench) -> None:
    bench.db._access.tending().tidy()


def known(bench: Bench, *ids: str) -> list[str]:
    return [one for one in ids if bench.db.get(one) is not None]


def test_the_oldest_go_first() -> None:
    with Bench(retention_max=2) as bench:
        for one in "abcd":
            finish(bench, one)
        tidy(bench)
        assert known(bench, *"abcd") == ["c", "d"]
        statistics = bench.db.statistics()
        assert (statistics.finished_count, statistics.finished_forgotten) == (2, 2)
        assert statistics.index_rows["finished"] == 2
        assert bench.db.cancel("a") == CancelOutcome.UNKNOWN
        # As if it had never been.
        assert bench.db.schedule("other", delay=0, id="a").created


def test_what_is_older_than_the_retention_goes() -> None:
    with Bench(retention=100.0) as bench:
        finish(bench, "a", "b")
        bench.clock.advance(60)
        finish(bench, "c")
        bench.clock.advance(50)
        tidy(bench)
        assert known(bench, *"abc") == ["c"]
        assert bench.db.statistics().finished_count == 1


def test_an_id_that_came_back_is_not_counted_twice() -> None:
    with Bench(retention_max=2) as bench:
        finish(bench, "a", "b", "c")
        bench.db.checkpoint()
        bench.db.schedule("a", delay=0, id="a", version=1)
        tidy(bench)
        assert known(bench, *"abc") == ["a", "b", "c"]
        bench.started()
        tidy(bench)
        # "b" was the oldest: "a" has finished anew since.
        assert known(bench, *"abc") == ["a", "c"]


def test_a_forgotten_row_hides_none_that_finished_later() -> None:
    with Bench(retention_max=1) as bench:
        finish(bench, "a", "b")
        bench.db.checkpoint()
        # Forgotten by now, and its row still in the index.
        engine = bench.db._engine
        assert forget_finished(engine, engine.now()) == 1
        finish(bench, "a")
        task = bench.db.get("a")
        assert task is not None
        assert task.state == "done"
        bench.db.checkpoint()
        assert bench.db.get("a") is not None


def test_it_survives_everything() -> None:
    with Bench(retention_max=3) as bench:
        for one in "abcdef":
            finish(bench, one)
        tidy(bench)
        finish(bench, "g")

        def snapshot() -> None:
            bench.db.snapshot()

        for again in (bench.reopen, bench.kill, snapshot, bench.reopen):
            again()
            assert known(bench, *"abcdefg") == ["d", "e", "f", "g"]
            listed = list(finished_rows(bench.db._engine))
            assert bench.db.statistics().finished_count == len(listed) == 4
        tidy(bench)
        assert known(bench, *"abcdefg") == ["e", "f", "g"]


def test_none_at_all() -> None:
    with Bench(retention_max=0) as bench:
        finish(bench, "a", "b")
        tidy(bench)
        assert known(bench, "a", "b") == []
        assert bench.db.statistics().finished_count == 0


def test_more_than_one_checkpoint_removes() -> None:
    with Bench(retention_max=10) as bench:
        for start in range(0, 3_000, 1_000):
            finish(bench, *(f"task-{one}" for one in range(start, start + 1_000)))
            bench.db.checkpoint()
        tidy(bench)
        assert bench.db.statistics().index_rows["finished"] == 10


def test_while_the_clock_is_not_believed_nothing_is_old() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with Bench() as bench:
        finish(bench, "before")
        # For a moment the clock is wrong by two days, and seen.
        bench.clock.set_wall(start + timedelta(2))
        bench.db.next_in()
        bench.clock.set_wall(start + timedelta(seconds=10))
        bench.db.poll()
        bench.disk.crash("all")
        bench.clock.reboot()
        bench.open()
        assert bench.db.statistics().clock_trust == "untrusted"
        finish(bench, "after")
        tidy(bench)
        assert known(bench, "before", "after") == ["before", "after"]
        assert not bench.db.schedule("a", delay=0, id="after").created
        bench.clock.set_wall(start + timedelta(3))
        assert known(bench, "before", "after") == []
