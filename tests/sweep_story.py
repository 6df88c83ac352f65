"""A life of a store that remembers, call by call, what was promised.

A `Story` holds a store on a `CrashableDisk` against the plain `StoreModel`. Before each
call it notes the state to which the call will lead (a *moment*); when the call returns,
it notes how far everything is durable by the store's own word. So at any operation of
the disk it is known what a power cut may leave:

    moments    m0   m1   m2   m3   m4
                    ▲    ▲         ▲
              vouched    durable   the call that is under way

The state found afterwards must be one of m2 … m4, whole calls, in their order. Where
durable bytes were damaged, the last synced frame may be lost, for nothing vouches for
it yet: m1 … m4, or a loud refusal. A story makes no image and judges nothing.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from store_model import Asked, StoreModel

import wheeldb
from wheeldb.leases import Lease
from wheeldb.testing import CrashableDisk, ManualClock
from wheeldb.testing.faults import Operation

T = TypeVar("T")

STORE = "/store"
SEGMENT_BYTES = 64 * 1024
WALL = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE_S = 20.0
REFUSALS = (wheeldb.TaskError, wheeldb.StorageFullError)

Effect = Callable[[StoreModel], object]


class SeededBytes:
    """Bytes that are the same in every run."""

    def __init__(self, seed: object) -> None:
        self._random = Random(str(seed))

    def bytes(self, count: int, /) -> bytes:
        return self._random.randbytes(count)


def open_on(
    disk: CrashableDisk, clock: ManualClock, entropy: object, **options: Any
) -> wheeldb.WheelDB:
    """Open a store without a driver, with the segments that sweeps are made for."""
    chosen: dict[str, Any] = {
        "disk": disk,
        "clock": clock,
        "entropy": SeededBytes(entropy),
        "driver": False,
        "reserve": False,
        "profile": "disk",
        "segment_bytes": SEGMENT_BYTES,
    }
    return wheeldb.open(STORE, **(chosen | options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What was promised when the power went."""

    moments: tuple[StoreModel, ...]
    durable: int
    vouched: int
    ids: frozenset[str]
    lsn_highest: int
    hlc_highest: int
    wall: datetime
    boottime_ms: int
    boots: int
    options: dict[str, Any]


class Story:
    """One store, its clock and its model."""

    def __init__(
        self, *, seed: int = 0, failed_sync: str = "keep", **options: Any
    ) -> None:
        self.disk = CrashableDisk(seed, failed_sync=failed_sync)
        self.clock = ManualClock(WALL, elapsed=1000.0)
        self.boots = 1
        self.options = options
        retention_ms = round(options.get("retention", 86_400.0) * 1000)
        self.model = StoreModel(retention_ms=retention_ms)
        self.moments: list[StoreModel] = [self.model]
        self.durable = 0
        self.vouched = 0
        self.ids: set[str] = set()
        self.lsn_highest = 0
        self.hlc_highest = 0
        self._db: wheeldb.WheelDB | None = None
        self._openings = 0

    @property
    def db(self) -> wheeldb.WheelDB:
        """The open store."""
        assert self._db is not None, "the story has not opened it yet"
        return self._db

    @property
    def is_open(self) -> bool:
        """Whether there is an open store."""
        return self._db is not None

    def promise(self) -> Promise:
        """Return what is promised at this moment."""
        reading = self.clock.read()
        return Promise(
            moments=tuple(self.moments),
            durable=self.durable,
            vouched=self.vouched,
            ids=frozenset(self.ids),
            lsn_highest=self.lsn_highest,
            hlc_highest=self.hlc_highest,
            wall=EPOCH + timedelta(milliseconds=reading.wall_ms),
            boottime_ms=reading.boottime_ms,
            boots=self.boots,
            options=self.options,
        )

    # Opening and ending.

    def open(self, *, recoveries_max: int | None = None) -> None:
        """Open the store; an end before it in disorder interrupts what was leased."""
        self._openings += 1
        if recoveries_max is not None:
            self._foresee(lambda model: self._interrupt(model, recoveries_max))
        self._db = open_on(
            self.disk, self.clock, f"story {self._openings}", **self.options
        )
        if recoveries_max is None and self._db.recovery.interrupted:
            del self.moments[-1]  # closed without room to give leases back
            self._foresee(lambda model: model.interrupt(3))
        self._note()

    def _interrupt(self, model: StoreModel, recoveries_max: int) -> None:
        passed_ms = self.clock.read().wall_ms - model.wall_ms
        model.elapsed_ms += passed_ms
        model.wall_ms += passed_ms
        model.interrupt(recoveries_max)

    def cut_power(self, profile: str, *, index: str = "new") -> None:
        """Lose the power, and nothing that the model doesn't know of."""
        self.disk.crash(profile, index=index)
        self.clock.reboot(off=3)
        self.boots += 1
        self._db = None

    def rest(self) -> None:
        """Begin the sweep here: nothing from before can be lost any more."""
        if self._db is not None:
            self.poll(0.06)  # an empty frame vouches for all before it
            self.vouched = len(self.moments) - 1
        self.disk.settle()
        self.durable = len(self.moments) - 1

    # One call, in the store and in the model.

    def do(self, call: Callable[[], T], *effects: Effect) -> T:
        """Make a call that has these effects, in frames of their own.

        Raises:
            TaskError, StorageFullError: It was refused, and had none.
        """
        before = len(self.moments)
        for effect in effects:
            self._foresee(effect)
        try:
            result = call()
        except REFUSALS:
            del self.moments[before:]
            raise
        self._note()
        return result

    def _foresee(self, effect: Effect) -> None:
        after = self.moments[-1].copy()
        if self._db is not None:
            after.at(self._db._engine.now())
        effect(after)
        for ended in after.ended.values():
            if ended.finished_ms is None:
                ended.finished_ms = after.wall_ms
        self.moments.append(after)

    def _note(self) -> None:
        self.model = self.moments[-1]
        engine = self.db._engine
        self.lsn_highest = max(self.lsn_highest, engine.state.last_lsn)
        last = len(self.moments) - 1
        if self.db.durable_lsn >= engine.state.last_lsn:
            self.hlc_highest = max(self.hlc_highest, engine.state.last_hlc)
            if last > self.durable:
                self.vouched, self.durable = self.durable, last

    # What stories are made of.

    def next_lsn(self, offset: int = 1) -> int:
        """Return the number that the next event will have."""
        return self.db._engine.state.last_lsn + offset

    def schedule(
        self, asked: Asked, *, durability: str | None = None
    ) -> wheeldb.Receipt:
        """Schedule a task."""
        self.learn(asked)
        number = self.next_lsn()
        options = options_of(asked)
        if durability is not None:
            options["durability"] = durability
        return self.do(
            lambda: self.db.schedule(asked.name, asked.payload, **options),
            lambda model: model.schedule(asked, number),
        )

    def schedule_many(self, many: Sequence[Asked]) -> None:
        """Schedule tasks that are all new, in one frame."""
        self.learn(*many)
        number = self.next_lsn()

        def effect(model: StoreModel) -> None:
            for place, asked in enumerate(many):
                model.schedule(asked, number + place)

        tasks = [new_task(asked) for asked in many]
        self.do(lambda: self.db.schedule_many(tasks), effect)

    def learn(self, *many: Asked) -> None:
        """Note the ids that will be asked for."""
        self.ids |= {asked.id for asked in many if asked.id is not None}

    def lease(self, limit: int = 1, queue: str = "default") -> list[Lease]:
        """Lease what is due."""

        def effect(model: StoreModel) -> None:
            for task in model.candidates([queue], None)[:limit]:
                model.lease(task, 0)

        leases = self.do(lambda: list(self.db.lease(queue, limit=limit)), effect)
        expected = [n for n, task in self.model.tasks.items() if task.fence == 0]
        for lease in leases:
            assert lease.number in expected, f"{lease.id} was not to be leased"
            self.model.tasks[lease.number].fence = lease.fence
        return leases

    def ack(self, lease: Lease, then: Sequence[Asked] = ()) -> None:
        """Finish a task, with follow-ups."""
        self.learn(*then)
        number = self.next_lsn()
        follow = [(asked, number + n) for n, asked in enumerate(then, 1)]
        self.do(
            lambda: lease.ack({"done": 1}, [new_task(asked) for asked in then]),
            lambda model: model.ack(
                lease.number, lease.fence, lease.id, {"done": 1}, follow
            ),
        )

    def nack(self, lease: Lease, retry_in: float = 5.0) -> None:
        """Fail an attempt."""
        self.do(
            lambda: lease.nack("it broke", retry_in),
            lambda model: model.nack(
                lease.number, lease.fence, "it broke", round(retry_in * 1000)
            ),
        )

    def cancel(self, task_id: str, *, running: bool = False) -> None:
        """Cancel a task."""
        self.do(
            lambda: self.db.cancel(task_id, running=running),
            lambda model: model.cancel(task_id, running=running),
        )

    def poll(self, seconds: float = 0.0) -> None:
        """Let time pass, and do what a driver would do, unless the disk is full."""
        self.clock.advance(seconds)
        before = len(self.moments)
        self.do(self.db.poll, StoreModel.poll, StoreModel.expire)
        while len(self.moments) > before and not self._counts_agree():
            self.moments.pop()  # it is put off
        self.durable = min(self.durable, len(self.moments) - 1)
        self.model = self.moments[-1]

    def _counts_agree(self) -> bool:
        """Return whether the store counts its tasks as the last moment does."""
        pending: dict[str, dict[str, int]] = {}
        for task in self.moments[-1].tasks.values():
            counts = pending.setdefault(task.asked.queue, {})
            counts[task.state] = counts.get(task.state, 0) + 1
        return self.db.statistics().pending == pending

    def close(self) -> None:
        """End in good order; leases are given back if there is room for it."""
        self._foresee(StoreModel.give_back)
        try:
            self.db.close()
        finally:
            self._db = None

    def group(self, first: Asked, others: Sequence[Asked]) -> None:
        """Schedule from several threads: the others share the frame behind the first.

        They come while the first one syncs, in this order, and are one group.
        """
        self.learn(first, *others)
        committer = self.db._engine.committer
        watcher = self.disk._faults.watcher
        threads: list[threading.Thread] = []
        errors: list[BaseException] = []

        def schedule(asked: Asked) -> None:
            try:
                self.db.schedule(asked.name, asked.payload, **options_of(asked))
            except BaseException as error:
                errors.append(error)

        def let_them_queue() -> None:
            number = self.next_lsn()

            def effect(model: StoreModel) -> None:
                for place, asked in enumerate(others):
                    model.schedule(asked, number + place)

            self._foresee(effect)
            for place, asked in enumerate(others, 1):
                thread = threading.Thread(target=schedule, args=(asked,), daemon=True)
                threads.append(thread)
                thread.start()
                # The first one stands in the line as long as it leads.
                _wait_until(lambda place=place: len(committer._lines[True]) >= place)  # type: ignore[misc]

        def on_operation(operation: Operation) -> None:
            if operation.name == "sync_data" and not threads:
                let_them_queue()
            if watcher is not None:
                watcher(operation)

        number = self.next_lsn()
        self._foresee(lambda model: model.schedule(first, number))
        at = len(self.moments) - 1
        self.disk.watch(on_operation)
        try:
            schedule(first)
            if not errors:
                self.vouched, self.durable = self.durable, at
        finally:
            for thread in threads:
                thread.join(PATIENCE_S)
            self.disk.watch(watcher)
        if any(not isinstance(error, REFUSALS) for error in errors):
            raise next(error for error in errors if not isinstance(error, REFUSALS))
        if errors:
            # Refused one by one; of a group that is refused nothing is there.
            del self.moments[at + (len(errors) == len(others)) :]
            raise errors[0]
        self._note()


def _wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 10_000)):
        if holds():
            return
        pause.wait(0.0001)
    raise TimeoutError("it never came to that")


def options_of(asked: Asked) -> dict[str, Any]:
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
        options["at"] = EPOCH + timedelta(milliseconds=asked.at_ms)
    if asked.expires_ms is not None:
        options["expires"] = asked.expires_ms / 1000
    if asked.expires_at_ms is not None:
        options["expires"] = EPOCH + timedelta(milliseconds=asked.expires_at_ms)
    return options


def new_task(asked: Asked) -> wheeldb.NewTask:
    """Return the same as a task to be scheduled."""
    return wheeldb.NewTask(asked.name, asked.payload, **options_of(asked))


def several(prefix: str, count: int, **fields: Any) -> list[Asked]:
    """Return requests that differ by their id alone."""
    fields = {"delay_ms": 60_000, **fields}
    return [replace(Asked(**fields), id=f"{prefix}-{n}") for n in range(count)]
