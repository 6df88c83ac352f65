"""What the state machine draws: requests, arguments, and the table of its steps.

    @action(2, running=one_of([False, True]))
    def cancel(self, random: Random, running: bool) -> None: ...

is a step that is drawn twice as often as one of weight 1, with `running` drawn from the
two values. All of it follows from one `Random`; what a power cut takes does not, see
`machine_accidents`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from store_model import Asked

_Value = TypeVar("_Value")
_Method = TypeVar("_Method", bound=Callable[..., None])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SeededBytes:
    """Bytes that are the same in every run."""

    def __init__(self) -> None:
        self._random = Random(1)

    def bytes(self, count: int, /) -> bytes:
        return self._random.randbytes(count)


def instant(unix_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=unix_ms)


def one_of(values: Sequence[_Value]) -> Callable[[Random], _Value]:
    """Return what draws one of the values."""
    return lambda random: random.choice(values)


def several(
    pick: Callable[[Random], _Value], low: int, high: int
) -> Callable[[Random], list[_Value]]:
    """Return what draws a list of low to high values."""
    return lambda random: [pick(random) for _ in range(random.randint(low, high))]


QUEUES = one_of(["default", "other"])
# Milliseconds; the long ones have coarse keys in the index.
DELAYS = one_of([-5, 0, 1, 40, 1_000, 90_000, 5_000_000, 40_000_000])
TIMELINES = one_of(["delay", "delay", "at", "at_expires"])


def draw_alike(random: Random) -> list[Asked]:
    """Draw tasks that a checkpoint takes as a block: many, and of one lane."""
    choice = random.choice
    delays = [DELAYS(random) for _ in range(3)]
    alike = Asked(
        queue=QUEUES(random),
        priority=choice([0, 5]),
        expires_ms=choice([None, None, 100_000]),
    )
    return [
        replace(alike, payload=choice([None, n, "x" * 30]), delay_ms=choice(delays))
        for n in range(random.randint(8, 14))
    ]


def draw_asked(random: Random) -> Asked:
    """Draw a request; few of everything, so that requests meet."""
    choice = random.choice
    return Asked(
        name=choice(["job", "odd"]),
        payload=choice([None, {"n": 1}, "x" * 30]),
        delay_ms=DELAYS(random),
        id=choice(["a", "b", "c", None]),
        version=choice([0, 0, 0, 0, 1, 2]),
        if_exists=choice(["same", "keep", "replace"]),
        queue=QUEUES(random),
        priority=choice([0, 0, 5, -3]),
        expires_ms=choice([None, None, None, 0, 500, 100_000]),
        at_most_once=choice([False, False, True]),
        lease_ms=choice([30_000, 400]),
        attempts_max=choice([3, 1]),
    )


# What a walk may do: the name of each method as often as it is to be drawn, and what
# its arguments are drawn from.
ALWAYS: list[str] = []
WITH_LEASE: list[str] = []
ARGUMENTS: dict[str, dict[str, Callable[[Random], Any]]] = {}


def action(
    weight: int, *, needs_lease: bool = False, **arguments: Callable[[Random], Any]
) -> Callable[[_Method], _Method]:
    """Let a method be one of the steps.

    As rules of their own they would be drawn alike, and the walk would open and close
    the store more often than it works with it.
    """

    def register(method: _Method) -> _Method:
        names = WITH_LEASE if needs_lease else ALWAYS
        names += [method.__name__] * weight
        ARGUMENTS[method.__name__] = arguments
        return method

    return register
