"""The steps of a worker, and time going on.

As in `machine_requests`: each calls the store and the model and compares the answers,
and what an accident raises goes through.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from machine_checks import learn_ends
from machine_draws import action, draw_asked, one_of, several
from machine_requests import Requests
from machine_walk import TROUBLE
from store_model import ELAPSED, Asked, Kept, Refused
from sweep_oracle import POISON
from sweep_story import options_of

import wheeldb
from wheeldb.leases import Lease
from wheeldb.testing import PowerCut

# One for each lane that holds tasks which expire.
POLLS = 4


class Calls(Requests):
    """Working, and time going on."""

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
        if self.is_armed and self.owes_off_time:
            return
        self.tend_to_all()
        self.now()
        expected = self.model.candidates(queues, names)[:limit]
        try:
            got = self.db.lease(queues, limit=limit, names=names)
        except (PowerCut, *POISON):
            self.expect_either(self.model.copy(), lambda: self.start(expected))
            raise
        assert [one.number for one in got] == [task.number for task in expected]
        for lease, task in zip(got, expected, strict=True):
            self.see_start(lease, task)
            self.model.lease(task, lease.fence)
        self.leases += got
        # It has polled once more, and may have seen the rest of what was overdue.
        self.model.expire(self.shown())
        self.settle()

    def start(self, tasks: list[Kept]) -> None:
        """Lease tasks in the model alone; nobody has learnt of the fences."""
        for task in tasks:
            self.model.lease(task, -1)

    def see_start(self, lease: Lease, task: Kept) -> None:
        """A worker gets a lease."""
        assert lease.fence > self.highest_lsn, "O6: fences rise"
        self.highest_lsn = lease.fence
        self.see_numbers(lease.fence)
        assert lease.attempt == task.attempts + 1
        assert lease.recoveries == task.recoveries
        assert lease.payload == task.asked.payload
        assert lease.cursor == task.cursor
        if task.number in self.started:
            assert lease.may_have_run, "O5: started again, and nobody was told"
        self.started.add(task.number)

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
        before = self.last_lsn + 1

        def expected() -> None:
            attempt = (lease.number, lease.fence, lease.id, result)
            trial = self.model.copy()
            standing = trial.ack(*attempt, [(one, -n) for n, one in enumerate(then, 1)])
            numbers = self.numbers_of(then, standing, before)
            self.model.ack(*attempt, list(zip(then, numbers, strict=True)))

        tasks = [
            wheeldb.NewTask(one.name, one.payload, **options_of(one)) for one in then
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
        if self.is_armed and retry_ms is None:
            # What is drawn for an attempt of which nobody hears can't be known.
            retry_ms = 700
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
        leases = list(self.leases)

        def expected() -> list[Lease]:
            lost = []
            for lease in leases:
                try:
                    self.model.ack(lease.number, lease.fence, lease.id)
                except Refused:
                    lost.append(lease)
            return lost

        done = self.both(lambda: self.db.ack_many(leases), expected)
        assert done is not None, "it refuses none"
        assert done[0] == done[1]
        for lease in leases:
            if lease not in done[0]:
                self.settled(lease)

    # Time.

    def tend(self, call: Callable[[], Any]) -> None:
        """Do something that also ends what has run out."""
        self.now()
        if self.is_armed and self.owes_off_time:
            return
        before_ms = self.model.elapsed_ms
        trouble: BaseException | None = None
        try:
            call()
        except (PowerCut, *TROUBLE) as error:
            trouble = error
        before = self.model.copy()
        states = []
        unseen = self.unseen() if trouble is None else set()
        for step in (self.model.poll, lambda: self.model.expire(unseen)):
            self.remember()
            states.append(self.model.copy())
            step()
            if not self.is_armed:
                learn_ends(self.db, self.model)
        if self.is_armed:
            # Without room it is put off, and an error may have come between.
            self.remember()
            self.possible = [*states, self.model]
            self.model = before
            if trouble is not None:
                raise trouble
            self.model = self.find_moment(self.possible)
            self.possible = []
        elif trouble is not None:
            raise trouble
        self.now()
        if self.model.elapsed_ms > before_ms:
            self.remember()
            self.follow_jump(self.model.elapsed_ms - before_ms)

    def tend_to_all(self) -> None:
        """Poll until nothing is left to be done now.

        The first may add off-time to the elapsed timeline, and so let more expire.
        """
        if self.is_armed:
            self.tend(self.poll_through)
            return
        for _ in range(POLLS):
            self.tend(self.db.poll)

    def poll_through(self) -> None:
        """Poll until all is seen that is due: each poll loads no more than a slice."""
        for _ in range(POLLS):
            self.db.poll()

    def unseen(self) -> set[int]:
        """Return the tasks that may be overdue and not loaded.

        A lane is loaded slice by slice; until its horizon is ahead of the present, what
        lies behind that waits, and can't be started either.
        """
        window = self.db._engine.window
        if window.has_fresh():
            return self.shown()
        present = (self.model.elapsed_ms, self.model.wall_ms)
        for lane, horizon in window.horizons.items():
            if horizon[0] <= present[window.lanes.key(lane)[0]]:
                return self.shown()
        return set()

    def shown(self) -> set[int]:
        """Return the numbers of the unfinished tasks in the store."""
        return {task.number for task in self.db.tasks()}

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
        self.tend_to_all()
        self.settle()
