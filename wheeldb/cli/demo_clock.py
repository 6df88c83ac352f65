"""The demo's clock: real time, made faster by a fixed factor.

    rate 3600: one hour passes in a second

    real    ├──── 1 s ────┤
    fast    03:00      04:00

Wall and boottime run together from an origin that all processes of one demo share, so
that a process that is killed and started again finds that time went on without it. It
does not read the system's clock itself: `SystemClock` does.
"""

from wheeldb.clock import Clock, Reading, Waiter
from wheeldb.clock.system import SystemClock

__all__ = ("FastClock",)

NS_PER_MS = 1_000_000


class FastClock:
    """A clock that implements `wheeldb.clock.Clock` at many times the speed.

    Args:
        origin_ns: The real `process_ns` at which it showed `wall_ms`. All processes of
            one boot count these nanoseconds alike.
        wall_ms: Unix time at the origin.
        rate: How many times faster it runs, a whole number.
    """

    # Boottime at the origin. Any value would do; it must not go below zero.
    BOOTTIME_MS = 1_000_000

    def __init__(self, *, origin_ns: int, wall_ms: int, rate: int) -> None:
        self._real: Clock = SystemClock()
        self._origin_ns = origin_ns
        self._wall_ms = wall_ms
        self._rate = rate

    @property
    def boot_id(self) -> str:
        """A boot of its own: its boottime is not the machine's."""
        return f"demo-{self._origin_ns}-{self._real.boot_id}"

    @property
    def time_namespace(self) -> str:
        """The real one."""
        return self._real.time_namespace

    @property
    def build_ms(self) -> int:
        """The real one: the demo's day lies behind it."""
        return self._real.build_ms

    def read(self) -> Reading:
        """Return fast wall and boottime, rounded down."""
        fast_ns = (self._real.process_ns() - self._origin_ns) * self._rate
        fast_ms, rest_ns = divmod(fast_ns, NS_PER_MS)
        return Reading(
            self._wall_ms + fast_ms, self.BOOTTIME_MS + fast_ms, 1 if rest_ns else 0
        )

    def process_ns(self) -> int:
        """Return real nanoseconds: work isn't done any faster."""
        return self._real.process_ns()

    def waiter(self) -> Waiter:
        """Return a waiter that sleeps until fast instants."""
        return _FastWaiter(self, self._real.waiter(), self._rate)


class _FastWaiter:
    """Sleeps for the real time that lies before the first of some fast instants."""

    def __init__(self, clock: FastClock, real: Waiter, rate: int) -> None:
        self._clock = clock
        self._real = real
        self._rate = rate

    @property
    def wakeups(self) -> int:
        return self._real.wakeups

    def wait(
        self,
        boottime_ms: int | None,
        wall_ms: int | None,
        timeout_ms: int | None = None,
    ) -> None:
        now = self._clock.read()
        waits_ms = []
        if boottime_ms is not None:
            waits_ms.append(boottime_ms - now.boottime_ms)
        if wall_ms is not None:
            waits_ms.append(wall_ms - now.wall_ms)
        if timeout_ms is not None:
            waits_ms.append(timeout_ms)
        if not waits_ms:
            self._real.wait(None, None)
            return
        # Rounded up: a wait may be late, but must never end before its instant.
        real_ms = -(-max(0, min(waits_ms)) // self._rate)
        self._real.wait(None, None, real_ms)

    def wake(self) -> None:
        self._real.wake()

    def close(self) -> None:
        self._real.close()
