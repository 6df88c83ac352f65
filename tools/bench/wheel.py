"""The timing wheel against a heap with lazy deletion, and against asyncio's timers.

    python -m tools.bench.wheel [--timers 1000000] [--span-s 3600] [--rounds 3] [--json]

The contenders hold the same number of timers, due at random within the same span:

wheel    `wheeldb.wheel`.
heap     `heapq` over the same packed ints, with a set of those that are alive. A
         cancelled one stays in the heap until it comes to the top, or until more than
         half are cancelled and the heap is made anew, as asyncio does it.
recipe   The priority queue from the documentation of `heapq`: a list for each timer, a
         dict to find it by its key, cancelled ones marked. It never shrinks by itself.
asyncio  `call_at` and `cancel` of an event loop that does not run.

Each measure is the least of some rounds, taken by turns, in nanoseconds a timer:

insert            One after the other into an empty contender.
insert many       As one batch, where there is a call for that.
replace           With all timers pending: insert one, cancel the oldest.
cancel            All, in random order.
insert + cancel   The sum of those two.
timeouts          Each timer is inserted, nine of ten are cancelled before they are due,
                  time goes on to the end, and what is due comes out 64 at a time.
advance           All come out, 64 at a time, in one step of time; none is cancelled.
one by one        All come out, time stepping from each due instant to the next.
bytes             What tracemalloc counts for a timer, its entry or key included.
"""

import argparse
import asyncio
import gc
import heapq
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

if not __package__:  # Run as a file: the checkout takes the place of this directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.table import add_json_option, ratio_table
from wheeldb.wheel import DUE_SHIFT, Wheel

__all__ = ("main", "measure")

BASE_MS = 1_800_000_000_000
LANE = 1 << 53
BATCH_COUNT = 64

Costs = dict[str, dict[str, float]]


def main() -> None:
    """Measure as the command line says and print the table."""
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--span-s", type=int, default=3_600)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    options = parser.parse_args()
    costs = measure(options.timers, options.span_s * 1000, options.rounds)
    table = ratio_table(
        f"{options.timers:,} timers due within {options.span_s:,} s, "
        f"ns a timer, best of {options.rounds}",
        costs,
        subject="wheel",
        notes=("Above 1: the wheel is cheaper.",),
    )
    print(table.json() if options.json else table.text())


class Timers(Protocol):
    """What is measured of a contender."""

    def insert(self, entry: int) -> object:
        """Take a timer."""

    def insert_many(self, entries: Iterable[int]) -> object:
        """Take many."""

    def cancel(self, entry: int) -> object:
        """Give up a timer."""

    def advance(self, now_ms: int, limit: int) -> list[int]:
        """Take out what is due, at most `limit` timers."""

    def next_expiration(self) -> int | None:
        """Return when the next timer is due."""


class HeapTimers:
    """A heap of packed ints and a set of those alive."""

    __slots__ = ("_alive", "_heap")

    def __init__(self) -> None:
        self._alive: set[int] = set()
        self._heap: list[int] = []

    def insert(self, entry: int) -> bool:
        """Take a timer."""
        if entry in self._alive:
            return False
        self._alive.add(entry)
        heapq.heappush(self._heap, entry)
        return True

    def insert_many(self, entries: Iterable[int]) -> None:
        """Take many."""
        alive, heap, push = self._alive, self._heap, heapq.heappush
        for entry in entries:
            if entry not in alive:
                alive.add(entry)
                push(heap, entry)

    def cancel(self, entry: int) -> bool:
        """Give up a timer."""
        if entry not in self._alive:
            return False
        self._alive.remove(entry)
        if len(self._heap) > 2 * len(self._alive) + 100:
            self._heap = list(self._alive)
            heapq.heapify(self._heap)
        return True

    def advance(self, now_ms: int, limit: int) -> list[int]:
        """Take out what is due."""
        alive, heap = self._alive, self._heap
        end = now_ms + 1 << DUE_SHIFT
        expired: list[int] = []
        while heap and heap[0] < end and len(expired) < limit:
            entry = heapq.heappop(heap)
            if entry in alive:
                alive.remove(entry)
                expired.append(entry)
        return expired

    def next_expiration(self) -> int | None:
        """Return when the next timer is due."""
        alive, heap = self._alive, self._heap
        while heap and heap[0] not in alive:
            heapq.heappop(heap)
        return heap[0] >> DUE_SHIFT if heap else None


class RecipeTimers:
    """The heap of lists that the documentation of `heapq` describes."""

    __slots__ = ("_by_key", "_heap")

    def __init__(self) -> None:
        self._by_key: dict[int, list[int]] = {}
        self._heap: list[list[int]] = []

    def insert(self, entry: int) -> bool:
        """Take a timer."""
        key = entry & (LANE - 1)
        if key in self._by_key:
            return False
        item = [entry >> DUE_SHIFT, key, entry]
        self._by_key[key] = item
        heapq.heappush(self._heap, item)
        return True

    def insert_many(self, entries: Iterable[int]) -> None:
        """Take many."""
        for entry in entries:
            self.insert(entry)

    def cancel(self, entry: int) -> bool:
        """Give up a timer."""
        item = self._by_key.pop(entry & (LANE - 1), None)
        if item is None:
            return False
        item[2] = 0
        return True

    def advance(self, now_ms: int, limit: int) -> list[int]:
        """Take out what is due."""
        expired: list[int] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(expired) < limit:
            _, key, entry = heapq.heappop(heap)
            if entry:
                del self._by_key[key]
                expired.append(entry)
        return expired

    def next_expiration(self) -> int | None:
        """Return when the next timer is due."""
        heap = self._heap
        while heap and not heap[0][2]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None


class Entries:
    """The same random timers for every contender, and the orders to treat them in."""

    def __init__(self, count: int, span_ms: int) -> None:
        dice = random.Random(1)
        self.span_ms = span_ms
        self.delays_ms = [dice.randrange(span_ms) for _ in range(count)]
        self.first = [
            BASE_MS + delay_ms << DUE_SHIFT | LANE | number
            for number, delay_ms in enumerate(self.delays_ms)
        ]
        self.second = [
            BASE_MS + dice.randrange(span_ms) << DUE_SHIFT | LANE | number
            for number in range(count, 2 * count)
        ]
        self.second_shuffled = dice.sample(self.second, count)
        self.cancelled = dice.sample(self.first, count * 9 // 10)


def measure(count: int, span_ms: int, rounds: int) -> Costs:
    """Return the costs by measure and contender, the least of all rounds."""
    entries = Entries(count, span_ms)
    contenders: dict[str, Callable[[], Timers]] = {
        "wheel": lambda: Wheel(BASE_MS),
        "heap": HeapTimers,
        "recipe": RecipeTimers,
    }
    costs: Costs = {}
    for _ in range(rounds):
        for name, make in contenders.items():
            _keep_least(costs, name, measure_timers(make, entries))
        _keep_least(costs, "asyncio", measure_asyncio(entries))
    costs["bytes"] = {
        name: bytes_per_timer(make().insert, entries)
        for name, make in contenders.items()
    }
    loop = asyncio.new_event_loop()
    costs["bytes"]["asyncio"] = bytes_per_timer(
        lambda entry: loop.call_at(entry >> DUE_SHIFT, print, entry), entries
    )
    loop.close()
    return costs


def measure_timers(make: Callable[[], Timers], entries: Entries) -> dict[str, float]:
    """Return what each operation costs one contender."""
    count = len(entries.first)
    end_ms = BASE_MS + entries.span_ms

    timers = make()
    insert_ns = _time(count, lambda: _each(timers.insert, entries.first))
    replace_ns = _time(
        count,
        lambda: _pairs(timers.insert, timers.cancel, entries.second, entries.first),
    )
    cancel_ns = _time(count, lambda: _each(timers.cancel, entries.second_shuffled))

    timers = make()
    insert_many_ns = _time(count, lambda: timers.insert_many(entries.first))
    advance_ns = _time(count, lambda: _drain(timers, end_ms, count))

    timers = make()
    timers.insert_many(entries.first)
    one_by_one_ns = _time(count, lambda: _step(timers, count))

    timers = make()
    timeouts_ns = _time(count, lambda: _let_time_out(timers, entries))
    return {
        "insert": insert_ns,
        "cancel": cancel_ns,
        "insert + cancel": insert_ns + cancel_ns,
        "insert many": insert_many_ns,
        "replace": replace_ns,
        "advance": advance_ns,
        "one by one": one_by_one_ns,
        "timeouts": timeouts_ns,
    }


def measure_asyncio(entries: Entries) -> dict[str, float]:
    """Return what the timers of an event loop cost."""
    count = len(entries.first)
    loop = asyncio.new_event_loop()
    handles: list[asyncio.TimerHandle] = []

    def insert() -> None:
        call_at, append = loop.call_at, handles.append
        for entry in entries.first:
            append(call_at(entry >> DUE_SHIFT, print, entry))

    def cancel() -> None:
        for handle in handles:
            handle.cancel()

    insert_ns = _time(count, insert)
    random.Random(2).shuffle(handles)
    cancel_ns = _time(count, cancel)
    loop.close()
    return {
        "insert": insert_ns,
        "cancel": cancel_ns,
        "insert + cancel": insert_ns + cancel_ns,
    }


def bytes_per_timer(insert: Callable[[int], object], entries: Entries) -> float:
    """Return the bytes that a timer takes, with the int that it is made of."""
    gc.collect()
    tracemalloc.start()
    try:
        for number, delay_ms in enumerate(entries.delays_ms):
            insert(BASE_MS + delay_ms << DUE_SHIFT | LANE | number)
        return tracemalloc.get_traced_memory()[0] / len(entries.delays_ms)
    finally:
        tracemalloc.stop()


def _time(count: int, work: Callable[[], object]) -> float:
    """Return how many nanoseconds each of `count` steps of the work took."""
    gc.collect()
    began_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began_ns) / count


def _each(call: Callable[[int], object], entries: list[int]) -> None:
    for entry in entries:
        call(entry)


def _pairs(
    insert: Callable[[int], object],
    cancel: Callable[[int], object],
    new: list[int],
    old: list[int],
) -> None:
    for entry, oldest in zip(new, old, strict=True):
        insert(entry)
        cancel(oldest)


def _let_time_out(timers: Timers, entries: Entries) -> None:
    _each(timers.insert, entries.first)
    _each(timers.cancel, entries.cancelled)
    count = len(entries.first) - len(entries.cancelled)
    _drain(timers, BASE_MS + entries.span_ms, count)


def _step(timers: Timers, count: int) -> None:
    while (due_ms := timers.next_expiration()) is not None:
        count -= len(timers.advance(due_ms, BATCH_COUNT))
    if count:
        message = f"{count} timers did not come out"
        raise RuntimeError(message)


def _drain(timers: Timers, now_ms: int, count: int) -> None:
    while expired := timers.advance(now_ms, BATCH_COUNT):
        count -= len(expired)
    if count:
        message = f"{count} timers did not come out"
        raise RuntimeError(message)


def _keep_least(costs: Costs, name: str, measured: dict[str, float]) -> None:
    for measure_name, cost in measured.items():
        by_name = costs.setdefault(measure_name, {})
        by_name[name] = min(cost, by_name.get(name, cost))


if __name__ == "__main__":
    main()
