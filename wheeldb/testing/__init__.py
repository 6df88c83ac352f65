"""What wheeldb's own tests run on, for yours.

`ManualClock` is moved by hand; `CrashableDisk` loses power when told to.
"""

from wheeldb.testing.clock import ManualClock as ManualClock
from wheeldb.testing.disk import CrashableDisk as CrashableDisk
from wheeldb.testing.faults import PowerCut as PowerCut
from wheeldb.testing.images import Image as Image
from wheeldb.testing.images import shrink as shrink

__all__ = ("CrashableDisk", "Image", "ManualClock", "PowerCut", "shrink")
