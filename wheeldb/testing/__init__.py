"""What wheeldb's own tests run on, for yours: a clock that is moved by hand."""

from wheeldb.testing.clock import ManualClock as ManualClock

__all__ = ("ManualClock",)
