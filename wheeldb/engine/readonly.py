"""An engine that only reads: the state at the log's end, and no way to change it.

It holds no lock and writes nothing, so that it works beside a running owner and on a
store that can't be repaired.
"""

import io
import threading
from collections.abc import Iterator

from wheeldb.clock import Clock
from wheeldb.clock.hlc import HybridClock
from wheeldb.clock.timekeeper import Timekeeper
from wheeldb.disk import Disk
from wheeldb.engine.decide import Bounds, Decider
from wheeldb.engine.digests import Digests
from wheeldb.engine.engine import Engine, Thresholds
from wheeldb.engine.state import State
from wheeldb.engine.undo import Undo
from wheeldb.engine.window import Window
from wheeldb.log.reader import LogScan
from wheeldb.log.writer import LogStatistics

__all__ = ("ReadonlyCommitter", "ReadonlyEngine")


class ReadonlyCommitter:
    """Stands where a committer stands, and refuses every change."""

    def __init__(self, lock: threading.RLock, scan: LogScan) -> None:
        self.lock = lock
        self.turn = threading.RLock()
        self.pen = threading.RLock()
        self.durable_lsn = scan.end.watermark
        self.syncs = 0
        self.poison = None

    def submit(self, call: object) -> object:
        """Refuse."""
        raise io.UnsupportedOperation(
            "the store was opened with readonly=True; open it without to change it"
        )

    def sync(self) -> None:
        """Do nothing: everything shown is on disk."""

    def undos(self) -> Iterator[Undo]:
        """Yield nothing: nothing is in flight."""
        return iter(())

    def log_statistics(self) -> LogStatistics:
        """Return counts of zero: nothing is written."""
        return LogStatistics(
            segment=0,
            segment_bytes=0,
            segment_bytes_max=0,
            last_lsn=0,
            frames=0,
            frame_bytes=0,
            bytes_written=0,
            rotations=0,
        )

    def check_log(self) -> list[str]:
        """Return nothing: there is no writing end."""
        return []

    def close(self) -> None:
        """Do nothing."""


class ReadonlyEngine(Engine):
    """An engine without a writing end."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        database: bytes,
        clock: Clock,
        keeper: Timekeeper,
        state: State,
        scan: LogScan,
        digests: Digests,
        checkpoint_lsn: int,
    ) -> None:
        now = keeper.now(clock.read())
        window = Window(state.lanes, 1, now.elapsed_ms, now.wall_ms)
        # Nobody takes tasks from here: no lane is ever loaded.
        for lane in state.lanes.numbers.values():
            window.close_lane(lane)
        bounds = Bounds(
            tasks_max=None,
            bytes_max=None,
            retention_ms=2**62,
            retention_max=2**62,
            recoveries_max=0,
        )
        super().__init__(
            disk=disk,
            path=path,
            database=database,
            clock=clock,
            keeper=keeper,
            hlc=HybridClock(state.last_hlc),
            state=state,
            window=window,
            decider=Decider(state, window, bounds),
            committer=ReadonlyCommitter(threading.RLock(), scan),  # type: ignore[arg-type]
            digests=digests,
            thresholds=Thresholds(),
            checkpoint_lsn=checkpoint_lsn,
            entropy=None,  # type: ignore[arg-type]
        )
