"""What wheeldb's own tests run on, for yours.

`ManualClock` is moved by hand; `CrashableDisk` loses power when told to; `crash_sweep`
cuts it at every operation of a program, which need not be wheeldb's.
"""

from wheeldb.testing.clock import ManualClock as ManualClock
from wheeldb.testing.disk import CrashableDisk as CrashableDisk
from wheeldb.testing.faults import PowerCut as PowerCut
from wheeldb.testing.images import Image as Image
from wheeldb.testing.images import shrink as shrink
from wheeldb.testing.sweep import CrashFound as CrashFound
from wheeldb.testing.sweep import SweepReport as SweepReport
from wheeldb.testing.sweep import crash_sweep as crash_sweep

__all__ = (
    "CrashFound",
    "CrashableDisk",
    "Image",
    "ManualClock",
    "PowerCut",
    "SweepReport",
    "crash_sweep",
    "shrink",
)
