"""wheeldb's own workload: hands that do everything a store can, and say so.

    python -m tools.powercut.workload DIRECTORY SEED [--steps N] [--hands N] …

Each round opens ``DIRECTORY/store``, lets the hands take their steps, and closes it. A
hand schedules (alone, many, again under the same id), cancels, reschedules, pauses,
resumes, batches, and leases, to ack (with follow-ups), nack, reject, release or be
cancelled meanwhile; now and then one asks for a checkpoint or a snapshot. Segments are
small, so the log rotates. `tools.powercut.promises` says what the lines mean.

An error ends the process with status 1, unless ``--errors``: then what a failing disk
may raise is an answer. It goes to standard error; the work goes on until the store is
poisoned, and it is wrong only (status 3) that a call succeeds after that.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import wheeldb
from tools.powercut.promises import Entry, State

__all__ = ("FAR_SECONDS", "OPTIONS", "Hand", "main", "say")

FAR_SECONDS = 7_200
OPTIONS: wheeldb.OpenOptions = {
    "segment_bytes": 64 * 2**10,
    "window_max": 100,
    "recoveries_max": 1_000_000,
}
_RETRY = wheeldb.Retry(1_000)
_STDOUT = 1
CALLS_AFTER_POISON = 3


def say(*words: object) -> None:
    """Write a line, whole: with one call, and shorter than a pipe takes at once."""
    data = json.dumps(words).encode() + b"\n"
    assert len(data) <= 4_096, f"a line of {len(data)} bytes"
    os.write(_STDOUT, data)


class Hand:
    """One thread's work: calls drawn from a seed, on tasks of its own.

    Args:
        name: What its lines call it.
        seed: What its calls are drawn from.
        prefix: Its queue, with which its keys begin; the name unless given.
        state: What its tasks are.

    Attributes:
        number: How many calls it has made.
        state: What they have made of which keys.
        held: Keys that are leased: a call to settle them was refused.
    """

    def __init__(
        self,
        name: str,
        seed: str,
        *,
        prefix: str | None = None,
        state: State | None = None,
    ) -> None:
        self.name = name
        self.prefix = name if prefix is None else prefix
        self.number = 0
        self.held: set[str] = set()
        self.state: State = {} if state is None else state
        self._random = Random(seed)
        self._settles: list[Callable[[wheeldb.WheelDB, wheeldb.Lease], None]] = [
            *[self.ack] * 4,
            *(self.nack, self.release, self.reject, self.cancel_leased),
        ]
        self._steps: list[Callable[[wheeldb.WheelDB], None]] = [
            *[self.schedule] * 6,
            *[self.work] * 6,
            *[self.cancel] * 3,
            *[self.schedule_many] * 2,
            *[self.batch] * 2,
            *(self.replace, self.reschedule, self.pause, self.resume),
            *(self.checkpoint, self.snapshot),
        ]

    def begin(self) -> None:
        """Begin with a store that was opened anew, which has ended what was leased."""
        for key in self.held:
            if self.state[key].is_once:
                self.state[key] = self.state[key]._replace(state="dead")
        self.held.clear()

    def step(self, db: wheeldb.WheelDB) -> None:
        """Take one step."""
        self._random.choice(self._steps)(db)

    def call(
        self,
        work: Callable[[], object],
        changes: State,
        level: str = "fsync",
    ) -> None:
        """Announce a change, make it and say that it is made.

        Args:
            work: Makes it; receipts in what it returns show their LSNs.
            changes: What becomes of which keys.
            level: The durability asked for.
        """
        number = self.number
        say("ask", self.name, number, level, changes)
        try:
            answer = work()
        except (wheeldb.StorageFullError, wheeldb.StorePoisoned):
            say("refused", self.name, number)
            raise
        except wheeldb.BatchRefused as error:
            say("refused", self.name, number)
            raise error.__cause__ or error from error
        except OSError as error:
            raise RuntimeError(f"a call does not raise a bare {error!r}") from error
        self.number += 1
        self.state |= changes
        say("did", self.name, number, _highest_lsn(answer))

    # Scheduling.

    def schedule(self, db: wheeldb.WheelDB) -> None:
        """Schedule one task, for now or later, under an id or without one."""
        key, task, entry = self._new(0)
        level = self._random.choice(("fsync", "fsync", "written"))
        task.options["durability"] = level
        self.call(partial(_schedule, db, task), {key: entry}, level)

    def replace(self, db: wheeldb.WheelDB) -> None:
        """Schedule a task under an id that is there already, or was."""
        keys = {key for key, entry in self.state.items() if entry.has_id} - self.held
        if not keys:
            return
        key = self._random.choice(sorted(keys))
        task, entry = self._task(key, has_id=True)
        task.options["if_exists"] = "replace"
        self.call(partial(_schedule, db, task), {key: entry})

    def schedule_many(self, db: wheeldb.WheelDB) -> None:
        """Schedule 8 to 20 tasks: all or none."""
        new = [self._new(i) for i in range(self._random.randint(8, 20))]
        tasks = [task for _, task, _ in new]
        self.call(
            lambda: db.schedule_many(tasks), {key: entry for key, _, entry in new}
        )

    def batch(self, db: wheeldb.WheelDB) -> None:
        """Cancel one, reschedule one and schedule two: all or nothing."""
        keys = self._drawn("live", 2)
        new = [self._new(i) for i in range(2)]
        changes = {key: entry for key, _, entry in new}
        for key, becomes in zip(keys, ("cancelled", "far"), strict=False):
            entry = self.state[key]
            changes[key] = (
                entry._replace(state="cancelled")
                if becomes == "cancelled"
                else entry._replace(is_far=True)
            )

        def work() -> object:
            with db.batch() as batch:
                for key in keys[:1]:
                    batch.cancel(key, expect=wheeldb.CancelOutcome.CANCELLED)
                for key in keys[1:]:
                    batch.reschedule(key, delay=FAR_SECONDS)
                for _, task, _ in new:
                    batch.schedule(task.name, task.payload, **task.options)
            return batch.results

        self.call(work, changes)

    # Changing.

    def cancel(self, db: wheeldb.WheelDB) -> None:
        """Cancel a task."""
        for key in self._drawn("live", 1):
            changes = {key: self.state[key]._replace(state="cancelled")}
            self.call(partial(_cancel, db, key, "cancelled"), changes)

    def reschedule(self, db: wheeldb.WheelDB) -> None:
        """Give a task another due time."""
        for key in self._drawn("live", 1):
            is_far = self._random.random() < 0.5
            delay = FAR_SECONDS if is_far else 0
            self.call(
                partial(db.reschedule, key, delay=delay),
                {key: self.state[key]._replace(is_far=is_far)},
            )

    def pause(self, db: wheeldb.WheelDB) -> None:
        """Pause a task."""
        for key in self._drawn("live", 1):
            changes = {key: self.state[key]._replace(state="paused")}
            self.call(partial(db.pause, key), changes)

    def resume(self, db: wheeldb.WheelDB) -> None:
        """Resume one."""
        for key in self._drawn("paused", 1):
            changes = {key: self.state[key]._replace(state="live")}
            self.call(partial(db.resume, key), changes)

    def checkpoint(self, db: wheeldb.WheelDB) -> None:
        """Have the changes written to the index."""
        db.checkpoint()

    def snapshot(self, db: wheeldb.WheelDB) -> None:
        """Have a snapshot written; for once in a while."""
        if self._random.random() < 0.3:
            db.snapshot()

    # Working.

    def work(self, db: wheeldb.WheelDB) -> None:
        """Lease some tasks and settle each."""
        for lease in db.lease(self.prefix, limit=self._random.randint(1, 4)):
            self.settle(db, lease, self._random.choice(self._settles))

    def settle(
        self,
        db: wheeldb.WheelDB,
        lease: wheeldb.Lease,
        settle: Callable[[wheeldb.WheelDB, wheeldb.Lease], None],
    ) -> None:
        """Say that a task was started, and settle it."""
        key = key_of(lease)
        say("started", key, lease.fence, lease.may_have_run)
        self.held.add(key)
        settle(db, lease)
        self.held.remove(key)

    def ack(self, db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
        """Ack it, with up to two follow-ups."""
        new = [self._new(i) for i in range(self._random.choice((0, 0, 1, 2)))]
        changes = {key: entry for key, _, entry in new}
        changes |= self._becomes(lease, state="done")
        then = [task for _, task, _ in new]
        self.call(partial(lease.ack, {"at": self.number}, then), changes)

    def nack(self, db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
        """Let it fail; it is due again, now or later."""
        is_far = self._random.random() < 0.5
        retry_in = FAR_SECONDS if is_far else 0
        becomes = self._becomes(lease, is_far=is_far)
        if self.state[key_of(lease)].is_once:
            # There is no next time.
            becomes = self._becomes(lease, state="dead")
        self.call(partial(lease.nack, "failed", retry_in=retry_in), becomes)

    def release(self, db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
        """Give it back."""
        self.call(lease.release, self._becomes(lease, is_far=False))

    def reject(self, db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
        """Make it dead."""
        self.call(partial(lease.reject, "never"), self._becomes(lease, state="dead"))

    def cancel_leased(self, db: wheeldb.WheelDB, lease: wheeldb.Lease) -> None:
        """Cancel it while it runs, and let it end well all the same."""
        self.call(
            partial(_cancel, db, lease.id, "leased"),
            self._becomes(lease, state="cancelled"),
        )
        self.call(lease.ack, self._becomes(lease, state="done"))

    # The parts.

    def _new(self, position: int) -> tuple[str, wheeldb.NewTask, Entry]:
        key = f"{self.prefix}.{self.number}.{position}"
        return key, *self._task(key, has_id=self._random.random() < 0.7)

    def _task(self, key: str, *, has_id: bool) -> tuple[wheeldb.NewTask, Entry]:
        is_far = self._random.random() < 0.3
        fill = "x" * self._random.choice((0, 30, 300, 3_000))
        payload = {"key": key, "stamp": self.number, "fill": fill}
        task = wheeldb.NewTask("work", payload, queue=self.prefix, retry=_RETRY)
        task.options["delay"] = FAR_SECONDS if is_far else 0
        if has_id:
            task.options["id"] = key
        is_once = self._random.random() < 0.15
        if is_once:
            task.options["at_most_once"] = True
        return task, Entry(has_id, "live", self.number, is_far, is_once)

    def _drawn(self, state: str, count: int) -> list[str]:
        keys = [
            key
            for key, entry in self.state.items()
            if entry.has_id and entry.state == state and key not in self.held
        ]
        return self._random.sample(keys, min(count, len(keys)))

    def _becomes(self, lease: wheeldb.Lease, **changed: object) -> State:
        key = key_of(lease)
        return {key: self.state[key]._replace(**changed)}  # type: ignore[arg-type]


def key_of(lease: wheeldb.Lease) -> str:
    """Return the key that a task's payload holds."""
    payload = lease.payload
    assert isinstance(payload, dict), payload
    return str(payload["key"])


def _schedule(db: wheeldb.WheelDB, task: wheeldb.NewTask) -> wheeldb.Receipt:
    return db.schedule(task.name, task.payload, **task.options)


def _cancel(db: wheeldb.WheelDB, task_id: str, expected: str) -> None:
    outcome = db.cancel(task_id)
    assert outcome == expected, f"{task_id}: {outcome}"


def _highest_lsn(answer: object) -> int:
    """Return the highest LSN in what a call returned, 0 if it shows none."""
    if isinstance(answer, wheeldb.Receipt):
        return answer.lsn
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return max(map(_highest_lsn, answer), default=0)
    return 0


# The process.


def main(arguments: Sequence[str] | None = None) -> int:
    """Work as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("seed")
    parser.add_argument("--steps", type=int, default=120, help="of each hand")
    parser.add_argument("--hands", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--errors", action="store_true", help="errors are answers")
    options = parser.parse_args(arguments)
    hands = [Hand(f"h{i}", f"{options.seed} {i}") for i in range(options.hands)]
    steps = options.steps // options.rounds
    for _ in range(options.rounds):
        try:
            with wheeldb.open(options.directory / "store", **OPTIONS) as db:
                say("opened", db.statistics().last_lsn)
                errors = _run(hands, db, steps, has_errors=options.errors)
                if errors and options.errors:
                    return _call_after(errors[0], db)
        except (wheeldb.WheelDBError, OSError) as error:
            # Of the opening or the close: what is left is for the verifier.
            if not options.errors:
                raise
            _tell(error)
            return 0
        if errors:
            raise errors[0]
    return 0


def _run(
    hands: Sequence[Hand], db: wheeldb.WheelDB, steps: int, *, has_errors: bool
) -> list[Exception]:
    """Let every hand take its steps; return what has ended one."""
    ends: list[Exception] = []

    def work(hand: Hand) -> None:
        hand.begin()
        try:
            for _ in range(steps):
                try:
                    hand.step(db)
                except OSError as error:
                    # The disk's word, and nothing has changed.
                    if not has_errors:
                        raise
                    _tell(error)
        except Exception as error:
            ends.append(error)

    if len(hands) == 1:
        work(hands[0])
        return ends
    threads = [threading.Thread(target=work, args=[hand]) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def _call_after(error: Exception, db: wheeldb.WheelDB) -> int:
    """Call on after an error that has ended a hand; return the process's status."""
    if not isinstance(error, wheeldb.CommitUnknown | wheeldb.StorePoisoned):
        raise error
    _tell(error)
    for _ in range(CALLS_AFTER_POISON):
        try:
            db.schedule("work", {"key": "poison"}, delay=0, queue="poison")
        except wheeldb.StorePoisoned:
            continue
        print("a call succeeded after poison", file=sys.stderr)
        return 3
    return 0


def _tell(error: BaseException) -> None:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
