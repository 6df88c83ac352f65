"""Starts, ends and starts again: the soak's parent.

Each session draws how its child ends, when, and what happens to the room and the clock
around it:

    kill       SIGKILL behind a drawn report, or after a drawn moment of the opening
    terminate  SIGTERM: the child closes its store; sometimes SIGKILL meets it there
    finish     the child closes its store by itself
    full       for a while its file system has no room left
    reboot     before the next one: another boot, hours later, perhaps in 1970
"""

import dataclasses
import threading
from collections.abc import Callable
from random import Random

from tools.soak.clock import Sky, Weather
from tools.soak.inquest import Inquest
from tools.soak.ledger import Ledger, Violation
from tools.soak.room import Room
from wheeldb.cli.demo_ledger import Report
from wheeldb.cli.demo_process import WorkerFailed, WorkerProcess
from wheeldb.clock.system import BUILD_MS, SystemClock

__all__ = ("ENDINGS", "Soak")

WORKER = "tools.soak.worker"
ENDINGS = ("kill", "kill", "kill", "terminate", "finish")
RATE = 60
DAY_MS = 86_400_000
SILENCE_S_MAX = 60.0
OPENING_S = (0.05, 0.8)
CLOSING_S = (0.0, 0.1)
KNOWN_MAX = 300
OFFS_MS = (1_000, 60_000, 3_600_000, 2 * DAY_MS)
# So long after a step its anchor is on disk, if there is room for it.
ANCHOR_S = 2


class Soak:
    """One store, and everything that happens to it.

    Args:
        room: Where it lies.
        seed: Where the draws come from.
        endings: How a child may end.
        pending_max: About how many tasks there are at most.
        reports_max: Behind so many reports of a child its end comes at the latest.
    """

    def __init__(
        self,
        room: Room,
        seed: int,
        *,
        endings: tuple[str, ...] = ENDINGS,
        pending_max: int = 2_000,
        reports_max: int = 4_000,
    ) -> None:
        real = SystemClock()
        self._real = real
        self._room = room
        self._draw = Random(seed)
        self.endings = endings
        self._pending_max = pending_max
        self._reports_max = reports_max
        self._sky = Sky(
            Weather(
                origin_ns=real.process_ns(), wall_ms=BUILD_MS + 30 * DAY_MS, rate=RATE
            )
        )
        self._stepped_us: int | None = None
        self._full_us = 0  # when there was no room for the last time
        self._is_full = False
        self.session = 0
        self.ledger = Ledger(RATE)

    def run_session(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Start a child, and end it as the draws say.

        Args:
            is_over: Whether to end it in good order at once.

        Raises:
            Violation: The store broke a promise, or the child ended by itself.
        """
        draw, ledger = self._draw, self.ledger
        self.session += 1
        ending = draw.choice(self.endings)
        reports_max = int(self._reports_max ** draw.random())
        ledger.begin(self._sky.true_origin_ms)
        ledger.count(ending)
        timers: list[threading.Timer] = []
        try:
            with WorkerProcess(
                WORKER, self._plan(ending, reports_max), SILENCE_S_MAX
            ) as worker:
                if ending == "kill" and draw.random() < 0.25:
                    timers.append(
                        threading.Timer(draw.uniform(*OPENING_S), worker.kill)
                    )
                    timers[-1].start()
                is_closed = self._listen(worker, ending, reports_max, timers, is_over)
        except WorkerFailed as error:
            raise Violation(f"the child failed: {error}") from error
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
            self._free()
        ledger.end()
        self._between(is_closed=is_closed)

    def _now_us(self) -> int:
        return self._real.process_ns() // 1_000

    def _plan(self, ending: str, reports_max: int) -> dict[str, object]:
        draw = self._draw
        ended = [
            token for token, entry in self.ledger.ended.items() if entry.id == token
        ]
        plan: dict[str, object] = {
            "directory": str(self._room.path),
            "seed": draw.randrange(2**32),
            "session": self.session,
            "weather": dataclasses.asdict(self._sky.weather),
            "durability": draw.choice(("fsync", "fsync", "written")),
            "segment_bytes": draw.choice((2**16, 2**18, 2**20)),
            "pending_max": self._pending_max,
            "calls_max": reports_max if ending == "finish" else 0,
            "known": draw.sample(ended, min(KNOWN_MAX, len(ended))),
        }
        if self._room.flag is not None:
            plan["flag"] = str(self._room.flag)
        return plan

    def _listen(
        self,
        worker: WorkerProcess,
        ending: str,
        reports_max: int,
        timers: list[threading.Timer],
        is_over: Callable[[], bool],
    ) -> bool:
        """Book what the child says until it is gone; return whether it closed."""
        draw = self._draw
        full_at, free_at = self._full_times(reports_max)
        inquest = Inquest(self.ledger)
        is_closed = is_ending = False
        for count, report in enumerate(worker.reports()):
            self._book(report, inquest)
            is_closed = is_closed or report["kind"] in ("closed", "unopened")
            if count == full_at:
                self._fill()
            elif count == free_at:
                self._free()
            if is_ending or worker.was_killed:
                continue
            if is_over():
                is_ending = True
                worker.terminate()
            elif count == reports_max and ending == "kill":
                worker.kill()
            elif count == reports_max and ending == "terminate":
                is_ending = True
                worker.terminate()
                if draw.random() < 0.3:
                    timers.append(
                        threading.Timer(draw.uniform(*CLOSING_S), worker.kill)
                    )
                    timers[-1].start()
        if not is_closed and not worker.was_killed:
            raise Violation("the child ended, and did not close its store")
        return is_closed

    def _full_times(self, reports_max: int) -> tuple[int | None, int | None]:
        """Draw behind which reports the disk runs full, and has room again."""
        draw = self._draw
        length = draw.randrange(1, reports_max + 2)
        if draw.random() < 0.03:
            self._fill()  # the opening meets it
            return None, length
        if draw.random() < 0.15:
            start = draw.randrange(reports_max + 1)
            return start, start + length
        return None, None

    def _book(self, report: Report, inquest: Inquest) -> None:
        kind = report["kind"]
        if inquest.is_over:
            self.ledger.note(report)
        else:
            inquest.note(report)
        if kind == "ready":
            # Each opening writes an anchor.
            self._stepped_us = None
        elif kind == "stepping":
            self._stepped_us = self._now_us()
            weather = report["weather"]
            assert isinstance(weather, dict), report
            self._sky.weather = Weather(**weather)

    def _between(self, *, is_closed: bool) -> None:
        """Turn the power off for a while, now and then."""
        draw = self._draw
        is_wanted, in_1970 = draw.random() < 0.3, draw.random() < 0.3
        off_ms = int(draw.choice(OFFS_MS) * draw.random())
        # A step that no anchor tells of counts as off-time: so it is promised.
        is_anchored = self._stepped_us is None or (
            self._full_us < self._stepped_us
            and (is_closed or self._now_us() - self._stepped_us > 1_000_000 * ANCHOR_S)
        )
        if is_wanted and is_anchored:
            self.ledger.count("reboots")
            self._sky.reboot(off_ms, in_1970=in_1970)

    def _fill(self) -> None:
        self._room.fill()
        self._is_full = True
        self.ledger.count("full")
        self.ledger.note_room(self._now_us(), is_full=True)

    def _free(self) -> None:
        if self._is_full:
            self._is_full = False
            self._full_us = self._now_us()
            self._room.free()
            self.ledger.note_room(self._now_us(), is_full=False)
