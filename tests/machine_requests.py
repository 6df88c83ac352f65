"""The steps with which callers ask for tasks and change them.

Each calls the store and the model, and compares what they answer. None knows what an
accident is: what one raises goes through, and `Walk.both` has noted what may be now.
"""

from copy import copy
from random import Random
from typing import Any

from machine_draws import (
    DELAYS,
    QUEUES,
    TIMELINES,
    action,
    draw_alike,
    draw_asked,
    instant,
    one_of,
    several,
)
from machine_walk import Walk
from store_model import Asked, Ended, Kept, Refused
from sweep_story import options_of

import wheeldb


class Requests(Walk):
    """Scheduling and changing."""

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
            known_id = self.model.id_of(standing)
            assert receipt.id == known_id, f"{receipt.id}, not {known_id}"
            shown = self.model.shown(standing)
            assert receipt.state == shown, f"{receipt.state}, not {shown}"
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
        before = self.last_lsn
        options = options_of(asked)
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
                self.see_numbers(receipt.lsn)
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
        before = self.last_lsn

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
            wheeldb.NewTask(one.name, one.payload, **options_of(one)) for one in many
        ]
        done = self.both(lambda: self.db.schedule_many(tasks), expected)
        if done is None:
            return
        receipts, answers = done
        if fresh := [receipt.lsn for receipt in receipts if receipt.created]:
            self.see_numbers(*fresh)
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
                lambda: self.model.resume_queue(queue, self.remember, now=now),
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
        before = self.last_lsn
        number = before + (1 if outcome == "cancelled" or is_changed else 0) + 1
        if outcome == "cancelled" and self.model.live(cancelled) is None:
            number -= 1

        def call() -> list[object]:
            with self.db.batch() as batch:
                batch.cancel(cancelled, expect=expect)
                batch.schedule(asked.name, asked.payload, **options_of(asked))
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
