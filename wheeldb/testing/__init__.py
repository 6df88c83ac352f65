"""What wheeldb's own tests run on, for yours.

`ManualClock` is moved by hand; `CrashableDisk` loses power when told to.
"""

from wheeldb.testing.clock import ManualClock as ManualClock
from wheeldb.testing.disk import CrashableDisk as CrashableDisk
from wheeldb.testing.disk import PowerCut as PowerCut

__all__ = ("CrashableDisk", "ManualClock", "PowerCut")
