"""The soak's submitting thread: everything that a program asks of a store.

    schedule  schedule_many  batch  replace  cancel  reschedule  pause  resume  run_now

It knows the tasks that it scheduled and those that were there at the opening, no more
than so many of each; others may have run them meanwhile, and it asks all the same.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeAlias
from zlib import crc32

import wheeldb
from tools.soak.calls import Calls
from wheeldb.clock import Clock

__all__ = ("QUEUES", "SLOW", "Load", "Maker", "fill_of", "take_up")

# The leases of this queue are short, and some of them are left to run out.
SLOW = "slow"
QUEUES = ("first", "second", SLOW)
LEASE_S, LEASE_SLOW_S = 3_600, 20
MAX_ATTEMPTS = 3
DELAYS_S = (0, 0, 0.001, 1, 30, 600, 6 * 3_600, 3 * 86_400)
INSTANTS_S = (-60, 0, 1, 30, 600, 6 * 3_600, 3 * 86_400)
FILL_BYTES_MAX = 1_500
KNOWN_MAX = 5_000
LOOK_EVERY = 50

Known: TypeAlias = tuple[str, str]
Turn: TypeAlias = tuple[float, Callable[[], None]]


def fill_of(token: str) -> str:
    """Return the filling that belongs to a token."""
    return token * (crc32(token.encode()) % FILL_BYTES_MAX // len(token))


def take_up(calls: Calls, draw: Random) -> list[Known]:
    """Return the tasks that are there; bring the dead ones back, or let them go."""
    pending: list[Known] = []
    dead: list[Known] = []
    for task in calls.db.tasks():
        assert isinstance(task.payload, dict), f"a payload of {task.id}"
        is_dead = task.state == wheeldb.TaskState.DEAD
        (dead if is_dead else pending).append((task.payload["token"], task.id))
    for token, id in dead:
        if draw.random() < 0.5:
            calls("revive", lambda id=id: calls.db.revive(id), token=token)  # type: ignore[misc]
        else:
            calls("cancel", lambda id=id: calls.db.cancel(id), str, token=token)  # type: ignore[misc]
    draw.shuffle(pending)
    return pending[:KNOWN_MAX]


class Maker:
    """Makes tasks, each with a token that never comes twice."""

    def __init__(self, clock: Clock, draw: Random, prefix: str) -> None:
        self._clock = clock
        self._draw = draw
        self._prefix = prefix
        self._count = 0

    def make(
        self, *, id: str | None = None, **options: object
    ) -> tuple[wheeldb.NewTask, dict[str, object]]:
        """Return a task, and what the ledger is to know of it."""
        draw = self._draw
        self._count += 1
        token = f"{self._prefix}-{self._count}"
        if id is None and draw.random() < 0.5:
            id = token
        due, told = self.due()
        queue = draw.choice(QUEUES)
        given: dict[str, object] = {
            "queue": queue,
            "priority": draw.choice((0, 0, 0, 5, -5)),
            "lease": LEASE_SLOW_S if queue == SLOW else LEASE_S,
            "retry": wheeldb.Retry(MAX_ATTEMPTS, wheeldb.Fixed(5)),
            **due,
            **options,
        }
        if id is not None:
            given["id"] = id
        payload = {"token": token, "fill": fill_of(token)}
        task = wheeldb.NewTask("soak", payload, **given)  # type: ignore[arg-type]
        return task, {"token": token, "id": id, "queue": queue, **told}

    def due(self) -> tuple[dict[str, object], dict[str, object]]:
        """Return a due time as an argument, and as the ledger is told it."""
        if self._draw.random() < 0.75:
            delay_s = self._draw.choice(DELAYS_S)
            return {"delay": delay_s}, {"delay_ms": round(1_000 * delay_s)}
        shown_ms = self._clock.read().wall_ms
        at_ms = shown_ms + round(1_000 * self._draw.choice(INSTANTS_S))
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(0, at_ms))
        return {"at": at}, {"at_ms": max(0, at_ms)}


class Load:
    """Submits and changes until it is stopped."""

    def __init__(
        self,
        calls: Calls,
        pending: list[Known],
        seed: int,
        session: int,
        pending_max: int,
    ) -> None:
        self._calls = calls
        self._db = calls.db
        self._draw = Random(f"load {seed}")
        self._maker = Maker(calls.clock, self._draw, f"{session}")
        self._pending = pending
        self._paused: list[Known] = []
        self._pending_max = pending_max

    def run(self) -> None:
        """Go on until told to stop."""
        grow: tuple[Turn, ...] = (
            (0.35, self._schedule),
            (0.45, self._schedule_many),
            (0.55, self._batch),
            (0.60, self._replace),
        )
        change: tuple[Turn, ...] = (
            (0.78, self._cancel),
            (0.90, self._reschedule),
            (0.94, self._pause),
            (0.98, self._resume),
            (1.00, self._run_now),
        )
        turn = 0
        is_full = False
        while not self._calls.stop.is_set():
            if turn % LOOK_EVERY == 0:
                is_full = self._db.statistics().pending_count > self._pending_max
            turn += 1
            if is_full and not self._pending:
                # What is there is known to nobody here: let it be worked off.
                self._calls.stop.wait(0.05)
                continue
            dice = self._draw.random()
            if is_full or not self._pending:
                dice = 0.60 + 0.2 * dice if is_full else 0.45 * dice
            for below, do in (*grow, *change):
                if dice < below:
                    do()
                    break

    def _take(self) -> Known:
        # From anywhere, and out of the list in one step.
        position = self._draw.randrange(len(self._pending))
        self._pending[position], self._pending[-1] = (
            self._pending[-1],
            self._pending[position],
        )
        return self._pending.pop()

    def _keep(self, token: object, id: object) -> None:
        if len(self._pending) < KNOWN_MAX:
            self._pending.append((str(token), str(id)))

    def _schedule(self) -> None:
        durability = self._draw.choice(("fsync", "written"))
        task, told = self._maker.make(durability=durability)
        receipt = self._calls(
            "schedule",
            lambda: self._db.schedule(task.name, task.payload, **task.options),
            lambda receipt: [receipt.lsn],
            tasks=[told],
        )
        if receipt is not None:
            self._keep(told["token"], receipt.id)

    def _schedule_many(self) -> None:
        made = [self._maker.make() for _ in range(self._draw.randrange(2, 20))]
        receipts = self._calls(
            "schedule",
            lambda: self._db.schedule_many([task for task, _ in made]),
            lambda receipts: [receipt.lsn for receipt in receipts],
            tasks=[told for _, told in made],
        )
        for receipt, (_, told) in zip(receipts or (), made, strict=False):
            self._keep(told["token"], receipt.id)

    def _batch(self) -> None:
        if not self._pending:
            return
        token, id = self._take()
        made = [self._maker.make() for _ in range(2)]

        def change() -> list[object]:
            with self._db.batch() as batch:
                batch.cancel(id, expect=wheeldb.CancelOutcome.CANCELLED)
                for task, _ in made:
                    batch.schedule(task.name, task.payload, **task.options)
            return batch.results

        results = self._calls(
            "batch",
            change,
            lambda results: [result.lsn for result in results[1:]],  # type: ignore[attr-defined]
            token=token,
            tasks=[told for _, told in made],
        )
        if results is not None:
            for result, (_, told) in zip(results[1:], made, strict=True):
                assert isinstance(result, wheeldb.Receipt), result
                self._keep(told["token"], result.id)

    def _replace(self) -> None:
        token, id = self._take() if self._pending else ("", "")
        if not id or id.startswith("@") or "-" not in id:
            return
        task, told = self._maker.make(id=id, if_exists="replace")
        receipt = self._calls(
            "replace",
            lambda: self._db.schedule(task.name, task.payload, **task.options),
            lambda receipt: [receipt.lsn],
            token=token,
            tasks=[told],
        )
        if receipt is not None:
            self._keep(told["token"], receipt.id)

    def _cancel(self) -> None:
        token, id = self._take()
        self._calls("cancel", lambda: self._db.cancel(id), str, token=token)

    def _reschedule(self) -> None:
        token, id = self._take()
        due, told = self._maker.due()
        receipt = self._calls(
            "reschedule",
            lambda: self._db.reschedule(id, **due),  # type: ignore[arg-type]
            lambda receipt: receipt.lsn,
            token=token,
            **told,
        )
        if receipt is not None:
            self._keep(token, id)

    def _pause(self) -> None:
        token, id = self._take()
        self._calls("pause", lambda: self._db.pause(id), token=token)
        self._paused.append((token, id))

    def _resume(self) -> None:
        if self._paused:
            token, id = self._paused.pop(0)
            self._calls("resume", lambda: self._db.resume(id), token=token)
            self._keep(token, id)

    def _run_now(self) -> None:
        token, id = self._take()
        receipt = self._calls(
            "run_now",
            lambda: self._db.run_now(id),
            lambda receipt: receipt.lsn,
            token=token,
        )
        if receipt is not None:
            self._keep(token, id)
