"""Numbers as callers give them, through every door: what is refused says why.

Goal: whatever is no number, not finite or out of its range is a TypeError or ValueError
that names the argument, shows what was given, and says which numbers are right, in
which unit. Method: one table of doors, one of values.
"""

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from field_helpers import Bench

import wheeldb
from wheeldb import Exponential, Fixed, Linear, NewTask, Retry, WheelDB
from wheeldb.engine.moment import number_text, seconds_text

Door = Callable[[WheelDB, Any], object]

HUGE = 10**5_000
NO_NUMBERS = ["5", True, b"1", [1]]
NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A store with a task to be changed."""
    with Bench() as bench:
        bench.db.schedule("task", delay=60, id="known")
        yield bench


def open_with(option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    wheeldb.open(":memory:", driver=False, **options).close()


def leased(db: WheelDB) -> wheeldb.Lease:
    db.schedule("task", delay=0)
    return db.lease()[0]


def retried(backoff: object) -> NewTask:
    return NewTask("task", delay=1, retry=Retry(backoff=backoff))  # type: ignore[arg-type]


# Each with the name that the refusal gives, and the largest number that is right.
SECONDS: dict[str, tuple[Door, str, float]] = {
    "delay": (lambda db, n: db.schedule("a", delay=n), "delay", 2e11),
    "delays": (
        lambda db, n: db.schedule_many([NewTask("a", delay=n)] * 2), "delay", 2e11,
    ),
    "reschedule": (lambda db, n: db.reschedule("known", delay=n), "delay", 2e11),
    "retry_in": (lambda db, n: leased(db).nack("no", retry_in=n), "retry_in", 2e11),
    "release": (lambda db, n: leased(db).release(n), "delay", 2e11),
    "lease": (lambda db, n: db.schedule("a", delay=1, lease=n), "lease", 31_622_400),
    "renew": (lambda db, n: leased(db).renew(n), "lease", 31_622_400),
    "expires": (
        lambda db, n: db.schedule("a", delay=1, expires=n), "expires", 253_402_300_799,
    ),
}  # fmt: skip
OPTIONS = {"retention": 0, "elapsed_mark": 1, "shutdown_budget": 0}
COUNTS: dict[str, tuple[Door, str, int]] = {
    "version": (lambda db, n: db.schedule("a", delay=1, version=n), "0", 2**53 - 1),
    "priority": (lambda db, n: db.schedule("a", delay=1, priority=n), "-128", 127),
    "lease limit": (lambda db, n: db.lease(limit=n), "1", 10_000),
    "poll limit": (lambda db, n: db.poll(n), "0", 2**53),
    "tasks limit": (lambda db, n: list(db.tasks(limit=n)), "0", 2**53),
    "attempts": (
        lambda db, n: db.schedule("a", delay=1, retry=Retry(max_attempts=n)),
        "1", 2**31 - 1,
    ),
}  # fmt: skip
LSNS: dict[str, Door] = {
    "expect_lsn": lambda db, n: db.reschedule("known", delay=1, expect_lsn=n),
    "expect_lsn of a batch": lambda db, n: db.batch().reschedule(
        "known", delay=1, expect_lsn=n
    ),
    "from_lsn": lambda db, n: list(db.events(n)),
    "from_lsn of a watch": lambda db, n: db.watch(n),
}


@pytest.mark.parametrize("door", SECONDS)
def test_seconds_out_of_their_range_say_range_and_unit(bench: Bench, door: str) -> None:
    call, name, right = SECONDS[door]
    for number in (1e308, 1e15, HUGE, timedelta.max):
        with pytest.raises(
            ValueError, match=rf"^{name} is .*(9999|\d seconds)"
        ) as told:
            call(bench.db, number)
        assert len(str(told.value)) < 200
        assert "timedelta(" not in str(told.value)
    for number in NOT_FINITE:
        with pytest.raises(ValueError, match=rf"^{name} is -?\w+; seconds are finite"):
            call(bench.db, number)
    for value in NO_NUMBERS:
        with pytest.raises(TypeError, match=rf"^{name} is a \w+; seconds are a float"):
            call(bench.db, value)
    call(bench.db, right)


@pytest.mark.parametrize("door", ["lease", "renew", "expires"])
def test_so_do_negative_ones(bench: Bench, door: str) -> None:
    call, name, _ = SECONDS[door]
    for number in (-1, -1e308, -HUGE, timedelta.min):
        with pytest.raises(ValueError, match=rf"^{name} is .*between .* seconds$"):
            call(bench.db, number)


@pytest.mark.parametrize("backoff", [Exponential, Linear, Fixed])
def test_a_wait_between_attempts_says_range_and_unit(
    bench: Bench, backoff: type
) -> None:
    for number in (-1, 1e308, HUGE, -HUGE, *NOT_FINITE, *NO_NUMBERS):
        with pytest.raises(ValueError, match=r"^a back-off is .*0 and \d+ seconds"):
            bench.db.schedule_many([retried(backoff(number))])


@pytest.mark.parametrize("option", OPTIONS)
def test_so_does_an_option_of_open(option: str) -> None:
    least = OPTIONS[option]
    for number in (1e308, -1e308, HUGE, -HUGE, -1, timedelta.max):
        with pytest.raises(
            ValueError, match=rf"^{option} is .*between {least} and \d+ seconds$"
        ):
            open_with(option, number)
    for number in NOT_FINITE:
        with pytest.raises(ValueError, match=rf"^{option} is .*seconds are finite"):
            open_with(option, number)


@pytest.mark.parametrize("door", COUNTS)
def test_a_count_out_of_its_range_says_the_range(bench: Bench, door: str) -> None:
    call, low, high = COUNTS[door]
    for number in (int(low) - 1, high + 1, HUGE, -HUGE):
        with pytest.raises(ValueError, match=f"between {low} and {high}$"):
            call(bench.db, number)
    for value in (*NO_NUMBERS, *NOT_FINITE, 1.5, 1e308):
        with pytest.raises((TypeError, ValueError)):
            call(bench.db, value)
    call(bench.db, high)


@pytest.mark.parametrize("door", LSNS)
def test_a_log_position_is_a_whole_number(bench: Bench, door: str) -> None:
    name = door.split()[0]
    for number in (-1, -HUGE):
        with pytest.raises(ValueError, match=f"^{name} is .*; the log begins at 0$"):
            LSNS[door](bench.db, number)
    for value in (*NO_NUMBERS, *NOT_FINITE, 1.5):
        with pytest.raises(TypeError, match=f"^{name} is a .*, not an int$"):
            LSNS[door](bench.db, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (-1.5, "-1.5"),
        ("x", "'x'"),
        (2**127, str(2**127)),
        (2**128, "2^128 or more"),
        (-(2**128), "-2^128 or less"),
    ],
)
def test_a_number_is_told_however_long_it_is(value: object, text: str) -> None:
    assert number_text(value) == text


def test_seconds_are_told_with_their_unit() -> None:
    assert seconds_text(1e308) == "1e+308 seconds"
    assert seconds_text(timedelta(days=2)) == "2 days, 0:00:00"
