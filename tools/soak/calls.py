"""Calls into the store, each reported before and after: what the child may say of it.

    asked     {"call": 7, "does": "cancel", "token": "3-41"}
    answered  {"call": 7, "outcome": "ok", "value": "cancelled", "lsn": 5012}

    ok         it returned; `value` is the part of its answer that the ledger judges
    refused    it raised what says that nothing was changed; `error` is its name
    no room    the same, for want of room
    (nothing)  the store was closed meanwhile: it may have been carried out

`lsn` is a position at or above that of the change: what has a higher one came later.
"""

import itertools
import threading
from collections.abc import Callable
from typing import TypeVar

import wheeldb
from wheeldb.cli.demo_process import Reporter
from wheeldb.clock import Clock
from wheeldb.disk import NO_ROOM

__all__ = ("PAUSE_S", "Calls")

_Value = TypeVar("_Value")

# How long to leave a full disk alone.
PAUSE_S = 0.01


class Calls:
    """The store, and what is told about each call into it."""

    def __init__(
        self,
        db: wheeldb.WheelDB,
        clock: Clock,
        report: Reporter,
        stop: threading.Event,
        *,
        calls_max: int,
    ) -> None:
        self.db = db
        self.clock = clock
        self.report = report
        self.stop = stop
        self._calls_max = calls_max
        self._numbers = itertools.count(1)

    def __call__(
        self,
        does: str,
        function: Callable[[], _Value],
        value_of: Callable[[_Value], object] = lambda _: None,
        **fields: object,
    ) -> _Value | None:
        """Make one call; return what it returned, None if it was refused."""
        number = next(self._numbers)
        if 0 < self._calls_max <= number:
            self.stop.set()
        self.report("asked", call=number, does=does, **fields)
        try:
            value = function()
        except (wheeldb.TaskError, TimeoutError) as error:
            self.report(
                "answered", call=number, outcome="refused", error=type(error).__name__
            )
            return None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.report("answered", call=number, outcome="no room")
            self.stop.wait(PAUSE_S)
            return None
        self.report(
            "answered",
            call=number,
            outcome="ok",
            value=value_of(value),
            lsn=self.db.statistics().last_lsn,
        )
        return value
