"""The store against the plain model, call by call, through kills and power cuts.

`StoreMachine` walks: calls of the public interface, moves of the clock, accidents.
After each step all that can be seen is compared. A power cut takes what was not
durable, in the order of the log; so the machine remembers the model as it was after
each event, and finds the moment to which the store has come back.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from store_model import ELAPSED, Asked, Ended, Kept, Refused, StoreModel

import wheeldb
from wheeldb.engine.engine import Thresholds
from wheeldb.errors import (
    CommitUnknown,
    StorePoisoned,
    TaskError,
)
from wheeldb.leases import Lease
from wheeldb.testing import CrashableDisk, ManualClock, PowerCut

_Value = TypeVar("_Value")
_Method = TypeVar("_Method", bound=Callable[..., None])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATES = ("scheduled", "leased", "dead")


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


class StoreMachine(RuleBasedStateMachine):
    """Calls, time and accidents."""

    @rule(seed=st.integers(0, 2**32 - 1))
    def step(self, seed: int) -> None:
        """Take one step. All of it follows from the seed, so that others can be left
        out when a failing walk is made shorter."""
        random = Random(seed)
        name = random.choice(ALWAYS + (WITH_LEASE if self.leases else []))
        arguments = {key: pick(random) for key, pick in ARGUMENTS[name].items()}
        method = getattr(self, name)
        if "random" in method.__annotations__:
            arguments["random"] = random
        note(f"{name}({arguments})")
        method(**arguments)

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashableDisk(seed=5)
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC), elapsed=1000.0)
        self.model = StoreModel()
        # The model after each event that a power cut may still take away, and one
        # before them.
        self.moments: list[StoreModel] = []
        self.leases: list[Lease] = []
        # Numbers of tasks that were started, and of whose end the store can't know.
        self.started: set[int] = set()
        self.highest_lsn = 0
        self.operations = 0
        self.open()
        self.settle()

    # Opening and ending.

    def open(self) -> None:
        self.db = wheeldb.open(
            "/store",
            disk=self.disk,
            clock=self.clock,
            entropy=SeededBytes(),
            driver=False,
            reserve=False,
            segment_bytes=64 * 1024,
            window_max=100,
        )
        self.db._engine.thresholds = Thresholds(
            entries=12, payload_bytes=600, events=40, log_bytes=30_000, quiet_ms=5_000
        )
        self.leases = []
        self.now()

    def reopen(self, moments: Sequence[StoreModel], recoveries_max: int) -> None:
        """Open the store again and find out at which of the moments it stands."""
        self.operations = len(self.disk.operations)
        self.open()
        last_lsn = self.db._engine.state.last_lsn
        assert last_lsn > self.highest_lsn, "a number came back"
        findings = []
        for moment in reversed(moments):
            model = moment.copy()
            model.at(self.db._engine.now())
            model.interrupt(recoveries_max)
            self.learn_ends(model)
            findings = self.differences(model)
            if not findings:
                self.model = model
                break
        else:
            raise AssertionError(f"no moment is like the store: {findings}")
        assert self.db.check() == []
        self.settle()

    def teardown(self) -> None:
        assert self.db.check() == []
        self.db.close()

    def now(self) -> None:
        self.model.at(self.db._engine.now())

    def settle(self) -> None:
        """Remember the model as it is, and forget the moments that are durable."""
        self.highest_lsn = max(self.highest_lsn, self.db._engine.state.last_lsn)
        self.now()
        self.learn_ends(self.model)
        if self.db.durable_lsn >= self.db._engine.state.last_lsn:
            self.moments = []
        self.moments.append(self.model.copy())

    def both(
        self, call: Callable[[], Any], expected: Callable[[], Any]
    ) -> tuple[Any, Any] | None:
        """Do the same on both sides; `None` if both refuse."""
        self.now()
        backup = self.model.copy()
        refusal = None
        result = answer = None
        try:
            result = call()
        except TaskError as error:
            refusal = error
        try:
            answer = expected()
        except Refused as error:
            name = error.args[0]
        else:
            name = None
        if name is not None:
            self.model = backup
            assert type(refusal).__name__ == name, f"{refusal!r}, not {name}"
            self.settle()
            return None
        if refusal is not None:
            raise AssertionError("only the store refuses") from refusal
        self.settle()
        return result, answer

    # Scheduling.

    def arguments(self, asked: Asked) -> dict[str, Any]:
        """Return the keyword arguments that ask for the same."""
        options: dict[str, Any] = {
            "version": asked.version,
            "if_exists": asked.if_exists,
            "queue": asked.queue,
            "priority": asked.priority,
            "at_most_once": asked.at_most_once,
            "lease": asked.lease_ms / 1000,
            "retry": wheeldb.Retry(asked.attempts_max, wheeldb.Fixed(2)),
        }
        if asked.id is not None:
            options["id"] = asked.id
        if asked.delay_ms is not None:
            options["delay"] = timedelta(milliseconds=asked.delay_ms)
        if asked.at_ms is not None:
            options["at"] = instant(asked.at_ms)
        if asked.expires_ms is not None:
            options["expires"] = asked.expires_ms / 1000
        if asked.expires_at_ms is not None:
            options["expires"] = instant(asked.expires_at_ms)
        return options

    def placed(self, asked: Asked, timeline: str) -> Asked:
        """Return it with an instant instead of a delay, for two of the timelines."""
        if timeline == "delay":
            return asked
        self.now()
        values = {name: getattr(asked, name) for name in asked.__slots__}
        at_ms = self.model.wall_ms + values["delay_ms"]
        if timeline == "at_expires":
            values["expires_ms"], values["expires_at_ms"] = None, at_ms + 50_000
        values["delay_ms"], values["at_ms"] = None, at_ms
        return Asked(**values)

    def check_receipt(
        self, receipt: wheeldb.Receipt, standing: Kept | Ended, created: bool
    ) -> None:
        assert receipt.created == created
        if isinstance(standing, Kept):
            assert receipt.id == self.model.id_of(standing)
            assert receipt.state == self.model.shown(standing)
        else:
            assert receipt.state == standing.state
        assert receipt.version == standing.asked.version

    @action(
        8,
        asked=draw_asked,
        timeline=TIMELINES,
        durability=one_of([None, None, "written", "fsync"]),
    )
    def schedule(self, asked: Asked, timeline: str, durability: str | None) -> None:
        self.ask(asked, timeline, durability)

    def ask(self, asked: Asked, timeline: str, durability: str | None) -> None:
        asked = self.placed(asked, timeline)
        before = self.db._engine.state.last_lsn
        options = self.arguments(asked)
        if durability is not None:
            options["durability"] = durability
        done = self.both(
            lambda: self.db.schedule(asked.name, asked.payload, **options),
            lambda: self.model.schedule(asked, before + 1),
        )
        if done is not None:
            receipt, (standing, created) = done
            self.check_receipt(receipt, standing, created)
            if created:
                assert receipt.lsn == before + 1
            assert receipt.durability == (durability or "fsync")
            if receipt.durability == "fsync":
                assert self.db.durable_lsn >= receipt.lsn

    @action(3, many=draw_alike)
    def schedule_alike(self, many: list[Asked]) -> None:
        if len(self.model.tasks) < 60:
            self.ask_many(many)

    @action(3, many=several(draw_asked, 1, 6))
    def schedule_many(self, many: list[Asked]) -> None:
        self.ask_many(many)

    def ask_many(self, many: list[Asked]) -> None:
        before = self.db._engine.state.last_lsn

        def expected() -> list[tuple[Kept | Ended, bool]]:
            # What is superseded takes its number first; then come the new ones, each
            # id once, where it stands last.
            trial = self.model.copy()
            standing = [trial.schedule(one, -n) for n, one in enumerate(many, 1)]
            numbers = self.numbers_of(many, standing, before)
            answers = []
            for one, number in zip(many, numbers, strict=True):
                task, created = self.model.schedule(one, number)
                # As it stands now: a later one of the call may change it.
                answers.append((copy(task), created))
            return answers

        tasks = [
            wheeldb.NewTask(one.name, one.payload, **self.arguments(one))
            for one in many
        ]
        done = self.both(lambda: self.db.schedule_many(tasks), expected)
        if done is None:
            return
        receipts, answers = done
        for receipt, (standing, created) in zip(receipts, answers, strict=True):
            if isinstance(standing, Kept) and standing.number not in self.model.tasks:
                continue  # replaced within the call
            self.check_receipt(receipt, standing, created)

    @staticmethod
    def numbers_of(
        many: list[Asked], standing: list[tuple[Kept | Ended, bool]], before: int
    ) -> list[int]:
        """Return the number that each task of a call gets, if it gets one."""
        last: dict[object, int] = {}
        for position, (_, created) in enumerate(standing):
            if created:
                key = many[position].id
                last[position if key is None else key] = position
        order = sorted(at for at in last.values() if standing[at][0].number < 0)
        superseded = len(last) - len(order)
        numbers = {
            position: before + superseded + index
            for index, position in enumerate(order, 1)
        }
        return [numbers.get(position, 0) for position in range(len(many))]

    # Changing.

    def draw_id(self, random: Random) -> str:
        """Draw an id, mostly one of a task that there is."""
        live = [self.model.id_of(task) for task in self.model.tasks.values()]
        numbers = sorted(self.model.numbers)[-3:]
        others = ["a", "b", "c", "nobody", *(f"t{number:014x}" for number in numbers)]
        return random.choice((live or others) * 4 + others)

    @action(2, running=one_of([False, True]))
    def cancel(self, random: Random, running: bool) -> None:
        task_id = self.draw_id(random)
        done = self.both(
            lambda: self.db.cancel(task_id, running=running),
            lambda: self.model.cancel(task_id, running=running),
        )
        assert done is not None, "a cancel is never refused"
        assert done[0] == done[1]

    @action(
        2,
        delay_ms=DELAYS,
        timeline=TIMELINES,
        expect=one_of(["no", "right", "wrong"]),
    )
    def reschedule(
        self, random: Random, delay_ms: int, timeline: str, expect: str
    ) -> None:
        task_id = self.draw_id(random)
        self.now()
        task = self.db.get(task_id)
        expected_lsn = None
        if task is not None and expect != "no":
            expected_lsn = task.lsn if expect == "right" else task.lsn - 1
        at_ms = None if timeline == "delay" else self.model.wall_ms + delay_ms
        times: dict[str, Any] = {"delay": delay_ms / 1000}
        if at_ms is not None:
            times = {"at": instant(at_ms)}

        def expected() -> Kept | None:
            found = self.model.live(task_id)
            if found is not None and expect == "wrong":
                raise Refused("StaleVersion")
            self.model.reschedule(task_id, delay_ms if at_ms is None else None, at_ms)
            return found

        done = self.both(
            lambda: self.db.reschedule(task_id, expect_lsn=expected_lsn, **times),
            expected,
        )
        if done is not None:
            self.check_receipt(done[0], done[1], False)

    @action(3, action=one_of(["revive", "run_now", "pause"]))
    def change(self, random: Random, action: str) -> None:
        task_id = self.draw_id(random)
        done = self.both(
            lambda: getattr(self.db, action)(task_id),
            lambda: getattr(self.model, action)(task_id),
        )
        if done is not None and action == "revive":
            assert done[0] == done[1]

    @action(1, now=one_of([False, True]))
    def resume(self, random: Random, now: bool) -> None:
        task_id = self.draw_id(random)
        self.both(
            lambda: self.db.resume(task_id, now=now),
            lambda: self.model.resume(task_id, now=now),
        )

    @action(1, queue=QUEUES, now=one_of([False, True]))
    def pause_or_resume_queue(self, queue: str, now: bool) -> None:
        if queue not in self.model.paused_queues:
            self.both(
                lambda: self.db.pause(queue=queue),
                lambda: self.model.paused_queues.add(queue),
            )
        else:
            self.both(
                lambda: self.db.resume(queue=queue, now=now),
                lambda: self.model.resume_queue(queue, now=now),
            )

    @action(
        2,
        asked=draw_asked,
        expect=one_of([None, *wheeldb.CancelOutcome]),
        fails=one_of([False, True]),
    )
    def batch(
        self,
        random: Random,
        asked: Asked,
        expect: wheeldb.CancelOutcome | None,
        fails: bool,
    ) -> None:
        cancelled = self.draw_id(random)
        paused = self.draw_id(random)
        self.now()
        trial = self.model.copy()
        outcome = trial.cancel(cancelled)
        is_changed = outcome == "leased" and not self.is_marked(cancelled)
        before = self.db._engine.state.last_lsn
        number = before + (1 if outcome == "cancelled" or is_changed else 0) + 1
        if outcome == "cancelled" and self.model.live(cancelled) is None:
            number -= 1

        def call() -> list[object]:
            with self.db.batch() as batch:
                batch.cancel(cancelled, expect=expect)
                batch.schedule(asked.name, asked.payload, **self.arguments(asked))
                if fails:
                    batch.pause(paused)
            return batch.results

        def expected() -> list[object]:
            try:
                found = self.model.cancel(cancelled)
                if expect is not None and found != expect:
                    raise Refused("BatchRefused")
                standing = self.model.schedule(asked, number)
                if fails:
                    self.model.pause(paused)
            except Refused as refused:
                raise Refused("BatchRefused") from refused
            return [found, standing]

        done = self.both(call, expected)
        if done is not None:
            (found, receipt, *_), (known, (standing, created)) = done
            assert found == known
            assert isinstance(receipt, wheeldb.Receipt)
            assert receipt.created == created
            assert receipt.version == standing.asked.version

    def is_marked(self, task_id: str) -> bool:
        task = self.model.live(task_id)
        return task is not None and task.is_cancelled

    # Working.

    @action(
        8,
        queues=one_of([["default"], ["other"], ["other", "default"]]),
        limit=one_of([1, 2, 50]),
        names=one_of([None, None, None, ["odd"]]),
        milliseconds=one_of([0, 0, 1_000, 100_000, 50_000_000]),
    )
    def lease(
        self,
        queues: list[str],
        limit: int,
        names: list[str] | None,
        milliseconds: int,
    ) -> None:
        self.take(queues, limit, names, milliseconds)

    def take(
        self,
        queues: list[str],
        limit: int,
        names: list[str] | None,
        milliseconds: int,
    ) -> None:
        self.clock.advance(milliseconds / 1000)
        # The first may add off-time to the elapsed timeline, and so let more expire.
        self.tend(self.db.poll)
        self.tend(self.db.poll)
        got = self.db.lease(queues, limit=limit, names=names)
        expected = self.model.candidates(queues, names)[:limit]
        assert [one.number for one in got] == [task.number for task in expected]
        for lease, task in zip(got, expected, strict=True):
            assert lease.fence > self.highest_lsn, "fences rise"
            self.highest_lsn = lease.fence
            assert lease.attempt == task.attempts + 1
            assert lease.recoveries == task.recoveries
            assert lease.payload == task.asked.payload
            assert lease.cursor == task.cursor
            if task.number in self.started:
                assert lease.may_have_run or lease.attempt > 1, "started unannounced"
            self.started.add(task.number)
            self.model.lease(task, lease.fence)
        self.leases += got
        self.settle()

    def draw_lease(self, random: Random) -> Lease:
        """Draw a lease, mostly one of the last."""
        return random.choice(self.leases[-3:] * 3 + self.leases)

    def settled(self, lease: Lease) -> None:
        """The store has been told how an attempt ended."""
        self.started.discard(lease.number)

    @action(
        2,
        needs_lease=True,
        result=one_of([None, [1, 2]]),
        then=several(draw_asked, 0, 2),
    )
    def ack(self, random: Random, result: object, then: list[Asked]) -> None:
        lease = self.draw_lease(random)
        before = self.db._engine.state.last_lsn + 1

        def expected() -> None:
            attempt = (lease.number, lease.fence, lease.id, result)
            trial = self.model.copy()
            standing = trial.ack(*attempt, [(one, -n) for n, one in enumerate(then, 1)])
            numbers = self.numbers_of(then, standing, before)
            self.model.ack(*attempt, list(zip(then, numbers, strict=True)))

        tasks = [
            wheeldb.NewTask(one.name, one.payload, **self.arguments(one))
            for one in then
        ]
        if self.both(lambda: lease.ack(result, tasks), expected) is not None:
            self.settled(lease)

    @action(
        2,
        needs_lease=True,
        retry_ms=one_of([None, 0, 700, 50_000]),
    )
    def nack(self, random: Random, retry_ms: int | None) -> None:
        lease = self.draw_lease(random)
        retry_in = None if retry_ms is None else retry_ms / 1000

        def expected() -> None:
            wait_ms = retry_ms
            if wait_ms is None:
                # The wait is drawn; the model takes it from the store.
                task = self.db.get(lease.id)
                wait_ms = 0
                if task is not None and task.due_in is not None:
                    wait_ms = round(task.due_in * 1000)
                held = self.model.held(lease.number, lease.fence)
                if held.behind is None and held.state != "dead":
                    assert wait_ms <= 2_000
            self.model.nack(lease.number, lease.fence, "it broke", wait_ms)

        if self.both(lambda: lease.nack("it broke", retry_in), expected) is not None:
            self.settled(lease)

    @action(2, needs_lease=True, delay_ms=one_of([0, 0, 900]))
    def release(self, random: Random, delay_ms: int) -> None:
        lease = self.draw_lease(random)
        done = self.both(
            lambda: lease.release(delay_ms / 1000),
            lambda: self.model.release(lease.number, lease.fence, delay_ms),
        )
        if done is not None:
            self.settled(lease)

    @action(2, needs_lease=True)
    def reject(self, random: Random) -> None:
        lease = self.draw_lease(random)
        done = self.both(
            lambda: lease.reject("no good"),
            lambda: self.model.reject(lease.number, lease.fence, "no good"),
        )
        if done is not None:
            self.settled(lease)

    @action(
        2,
        needs_lease=True,
        lease_ms=one_of([None, 100, 90_000]),
    )
    def renew(self, random: Random, lease_ms: int | None) -> None:
        lease = self.draw_lease(random)
        seconds = None if lease_ms is None else lease_ms / 1000
        self.both(
            lambda: lease.renew(seconds),
            lambda: self.model.renew(lease.number, lease.fence, lease_ms),
        )

    @action(2, needs_lease=True, cursor=one_of(range(10)))
    def save(self, random: Random, cursor: int) -> None:
        lease = self.draw_lease(random)
        self.both(
            lambda: lease.save(cursor),
            lambda: self.model.save(lease.number, lease.fence, cursor),
        )

    @action(2, needs_lease=True)
    def ack_many(self) -> None:
        self.now()
        lost = self.db.ack_many(self.leases)
        expected = []
        for lease in self.leases:
            try:
                self.model.ack(lease.number, lease.fence, lease.id)
                self.settled(lease)
            except Refused:
                expected.append(lease)
        assert lost == expected
        self.settle()

    # Time.

    def tend(self, call: Callable[[], Any]) -> None:
        """Do something that also ends what has run out."""
        self.now()
        before_ms = self.model.elapsed_ms
        call()
        for step in (self.model.poll, self.model.expire):
            self.moments.append(self.model.copy())
            step()
            self.learn_ends(self.model)
        self.now()
        if self.model.elapsed_ms > before_ms:
            self.moments.append(self.model.copy())
            self.follow_jump(self.model.elapsed_ms - before_ms)

    def follow_jump(self, jump_ms: int) -> None:
        """Move on the delays that the store has moved when it added off-time."""
        for task in self.model.tasks.values():
            timeline, due_ms = task.behind or (task.timeline, task.due_ms)
            shown = self.db.get(self.model.id_of(task))
            if shown is None or shown.due_in is None or timeline != ELAPSED:
                continue
            if round(shown.due_in * 1000) == due_ms + jump_ms - self.model.elapsed_ms:
                assert task.number > 0
                if task.behind is None:
                    task.due_ms += jump_ms
                else:
                    task.behind = timeline, due_ms + jump_ms

    @action(
        3,
        milliseconds=one_of(
            [0, 1, 39, 500, 2_000, 31_000, 100_000, 6_000_000, 50_000_000, 10**10]
        ),
    )
    def advance(self, milliseconds: int) -> None:
        before = self.db._engine.now()
        self.clock.advance(milliseconds / 1000)
        after = self.db._engine.now()
        passed_ms = after.elapsed_ms - before.elapsed_ms
        if before.trust == "untrusted":
            # Off-time that was owed may have been added.
            assert passed_ms >= milliseconds
        else:
            assert passed_ms == milliseconds
        self.now()

    @action(1, seconds=one_of([-100_000, -3_600, -1, 1, 60, 3_600, 90_000]))
    def step_wall(self, seconds: int) -> None:
        before = self.db._engine.now()
        self.clock.step_wall(seconds)
        after = self.db._engine.now()
        assert after.elapsed_ms >= before.elapsed_ms
        if before.trust != "untrusted":
            assert after.elapsed_ms == before.elapsed_ms
        self.now()

    @action(3)
    def poll(self) -> None:
        self.tend(self.db.poll)
        self.settle()

    # Care and accidents.

    @action(3, action=one_of(["checkpoint", "checkpoint", "snapshot", "check"]))
    def care(self, action: str) -> None:
        if action == "check":
            assert self.db.check() == []
        else:
            getattr(self.db, action)()
        self.settle()

    @action(
        1,
        accident=one_of(["close", "kill", "none", "all", "prefix", "subset"]),
        off=one_of([0, 5, 100_000]),
    )
    def come_back(self, accident: str, off: int) -> None:
        """End the process, or cut the power, and open the store again."""
        moments, recoveries_max = [self.model], 3
        if accident == "close":
            self.db.close()
            self.model.give_back()
        elif accident == "kill":
            self.disk.kill()
        else:
            self.disk.crash(accident)
            self.clock.reboot(off=off)
            moments, recoveries_max = self.moments, 10
        self.reopen(moments, recoveries_max)

    @action(
        1,
        operation=one_of(range(1, 13)),
        profile=one_of(["none", "all", "prefix", "subset", "torn"]),
        asked=draw_asked,
        action=one_of(["schedule", "poll", "checkpoint", "snapshot", "close"]),
    )
    def cut_power_within(
        self, operation: int, profile: str, asked: Asked, action: str
    ) -> None:
        """Cut the power in the middle of a call; afterwards both is right."""
        self.now()
        if action == "poll" and self.db._engine.keeper.is_owed:
            return
        self.disk.crash_at(operation)
        before = self.db._engine.state.last_lsn
        is_done = False
        try:
            if action == "schedule":
                self.db.schedule(asked.name, asked.payload, **self.arguments(asked))
            else:
                getattr(self.db, action)()
            is_done = True
        except (PowerCut, CommitUnknown, StorePoisoned, TaskError):
            pass
        moments = list(self.moments)
        if action == "schedule":
            try:
                after = self.model.copy()
                after.schedule(asked, before + 1)
                moments.append(after)
                if is_done:
                    self.model = after
                    self.settle()
                    moments = self.moments
            except Refused:
                pass
        elif action == "poll":
            for step in (self.model.poll, self.model.expire):
                step()
                moments.append(self.model.copy())
        elif action == "close":
            self.model.give_back()
            moments.append(self.model.copy())
        self.disk.crash(profile)
        self.clock.reboot(off=3)
        self.reopen(moments, 10)

    # What has to be so at all times.

    def differences(self, model: StoreModel) -> list[str]:
        """Return how what the store shows differs from what the model says."""
        findings = []
        shown = {task.number: task for task in self.db.tasks()}
        if list(shown) != sorted(model.tasks):
            findings.append(f"tasks {list(shown)}, not {sorted(model.tasks)}")
        for number, task in sorted(model.tasks.items()):
            timeline, due_ms = task.behind or (task.timeline, task.due_ms)
            expected: dict[str, object] = {
                "id": model.id_of(task),
                "name": task.asked.name,
                "queue": task.asked.queue,
                "payload": task.asked.payload,
                "state": model.shown(task),
                "version": task.asked.version,
                "due_kind": timeline,
                "due_in": (due_ms - model.now_ms(timeline)) / 1000,
                "priority": task.asked.priority,
                "attempts": task.attempts,
                "recoveries": task.recoveries,
                "error": task.error,
            }
            one = shown.get(number)
            if one is not None:
                if one != self.db.get(one.id):
                    findings.append(f"{one} and {self.db.get(one.id)}")
                found = {name: getattr(one, name) for name in expected}
                if found != expected:
                    findings.append(f"task {number}: {found}, not {expected}")
        return findings + self.ended_differences(model)

    def learn_ends(self, model: StoreModel) -> None:
        """Take over when tasks ended: that is told by the store's own clock."""
        for task_id, ended in model.ended.items():
            one = self.db.get(task_id) if ended.finished_ms is None else None
            if one is not None and one.finished_at is not None:
                ended.finished_ms = (one.finished_at - EPOCH) // timedelta(
                    milliseconds=1
                )

    def ended_differences(self, model: StoreModel) -> list[str]:
        findings = []
        for task_id in ("a", "b", "c"):
            if model.live(task_id) is not None:
                continue
            one = self.db.get(task_id)
            ended = model.remembered(task_id)
            if ended is not None and ended.was_old and one is None:
                # The wall clock was set back, and can't bring back what is forgotten.
                del model.ended[task_id]
                continue
            found = None
            if one is not None:
                found = (
                    one.number,
                    one.state,
                    one.version,
                    one.attempts,
                    one.recoveries,
                    one.result,
                )
            expected = None
            if ended is not None:
                expected = (
                    ended.number,
                    ended.state,
                    ended.asked.version,
                    ended.attempts,
                    ended.recoveries,
                    ended.result,
                )
            if found != expected:
                findings.append(f"id {task_id}: {found}, not {expected}")
        return findings

    @invariant()
    def agrees(self) -> None:
        self.now()
        findings = self.differences(self.model)
        assert not findings, findings
        pending: dict[str, dict[str, int]] = {}
        for task in self.model.tasks.values():
            counts = pending.setdefault(task.asked.queue, {})
            counts[task.state] = counts.get(task.state, 0) + 1
        assert self.db.statistics().pending == pending
        engine = self.db._engine
        assert engine.state.check() == []
        assert engine.window.check() == []


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_does_what_the_model_does() -> None:
    _run(examples=10, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_store_does_what_the_model_does_for_long() -> None:
    _run(examples=300, steps=60)
