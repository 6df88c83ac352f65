"""The soak's keeper: checkpoints, snapshots and checks; pauses of queues; the clock.

It moves the clock's hands as others do who know nothing of the store: a wall clock is
set forward or back, a lid is closed for the night, a clock without a battery is put
right at last.
"""

import dataclasses
import threading
from random import Random

from tools.soak.calls import Calls
from tools.soak.clock import ShiftedClock
from tools.soak.load import QUEUES

__all__ = ("Keeper",)

# An anchor is worth a shift from a second on; with less, off-time is as much longer.
STEPS_S = (2, 60, 3_600, 86_400)
SUSPENDS_S = (10, 600, 8 * 3_600)
# A clock that was set too often in one direction is set back.
SHIFT_S_MAX = 10 * 86_400
LOOK_AT = 50
EVERY_S = (0.005, 0.1)


class Keeper:
    """Looks after the store, and moves its clock, until it is stopped."""

    def __init__(
        self, calls: Calls, clock: ShiftedClock, stepping: threading.Lock, seed: int
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._stepping = stepping
        self._draw = Random(f"keep {seed}")
        self._base_ms = clock.weather.wall_shift_ms

    def run(self) -> None:
        """Go on until told to stop."""
        calls, db, draw = self._calls, self._calls.db, self._draw
        # What was paused when the process before ended is paused still.
        for queue in QUEUES:
            if draw.random() < 0.5:
                self._resume(queue)
        while not calls.stop.wait(draw.uniform(*EVERY_S)):
            dice = draw.random()
            if dice < 0.35:
                calls("checkpoint", db.checkpoint)
            elif dice < 0.45:
                calls("snapshot", db.snapshot)
            elif dice < 0.50:
                calls("check", db.check, lambda findings: findings)
            elif dice < 0.60:
                queue = draw.choice(QUEUES)
                calls("pause_queue", lambda: db.pause(queue=queue), queue=queue)  # noqa: B023
            elif dice < 0.80:
                self._resume(draw.choice(QUEUES))
            elif dice < 0.95:
                self._step()
            else:
                self._suspend()

    def _resume(self, queue: str) -> None:
        db = self._calls.db
        self._calls("resume_queue", lambda: db.resume(queue=queue), queue=queue)

    def _step(self) -> None:
        weather, draw = self._clock.weather, self._draw
        shift_ms = weather.wall_shift_ms
        if weather.right_shift_ms is not None:
            self._base_ms = shift_ms = weather.right_shift_ms
        elif not self._is_repaid():
            return
        else:
            step_ms = 1_000 * draw.choice(STEPS_S) * draw.choice((1, -1))
            if abs(shift_ms + step_ms - self._base_ms) > 1_000 * SHIFT_S_MAX:
                step_ms = -step_ms
            shift_ms += step_ms
        self._move(wall_shift_ms=shift_ms, right_shift_ms=None)

    def _is_repaid(self) -> bool:
        """Return whether the off-time that was missing has been added for certain.

        A step in front of that counts as off-time if the process ends in between: the
        next one could not tell it from the clock's being put right.
        """
        tasks = self._calls.db.tasks(limit=LOOK_AT)
        return any(
            task.due_kind == "elapsed" and task.due_at is not None for task in tasks
        )

    def _suspend(self) -> None:
        weather = self._clock.weather
        span_ms = 1_000 * self._draw.choice(SUSPENDS_S)
        right_ms = weather.right_shift_ms
        self._move(
            wall_shift_ms=weather.wall_shift_ms + span_ms,
            boottime_shift_ms=weather.boottime_shift_ms + span_ms,
            right_shift_ms=None if right_ms is None else right_ms + span_ms,
        )

    def _move(self, **changes: int | None) -> None:
        with self._stepping:
            weather = dataclasses.replace(self._clock.weather, **changes)  # type: ignore[arg-type]
            self._calls.report("stepping", weather=weather)
            self._clock.shift(weather)
