"""One walk through the life of a store: the store, its model, and what holds them.

`Walk` has no steps of its own. `both` does a call on the store and on the model; what
is known of the call afterwards is one of three things:

    acked      it returned: the model has it, and if it was durable, no crash takes it
    failed     it was refused: neither the model nor any later state has it
    unknown    a write, a sync or the power failed within it: both are right, until the
               next opening shows which

`moments` are the states at which a store may stand that is opened after a power cut,
oldest first: the last durable one and those after it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis.strategies import DataObject
from machine_checks import differences, hidden_differences, learn_ends
from store_model import Refused, StoreModel
from sweep_oracle import POISON

import wheeldb
from wheeldb.engine.engine import Thresholds
from wheeldb.engine.upkeep import SHIFT_MS
from wheeldb.testing import CrashableDisk, ManualClock, PowerCut

if TYPE_CHECKING:
    from wheeldb.leases import Lease

STORE = "/store"
SYNCS = frozenset({"sync", "sync_data", "sync_directory"})
# What an injected fault may come out as.
TROUBLE = (wheeldb.WheelDBError, OSError)


class SeededBytes:
    """Bytes that are the same in every run."""

    def __init__(self) -> None:
        self._random = Random(1)

    def bytes(self, count: int, /) -> bytes:
        return self._random.randbytes(count)


class Walk:
    """A store on a disk that may fail, and the model of it."""

    data: DataObject

    def begin(self, *, flash: bool, failed_sync: str) -> None:
        """Make a disk and a store on it; nothing is known of any other."""
        self.disk = CrashableDisk(seed=5, flash=flash, failed_sync=failed_sync)
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC), elapsed=1000.0)
        self.is_on_flash = flash
        self.is_late = failed_sync == "late"
        self.model = StoreModel()
        self.moments: list[StoreModel] = []
        self.leases: list[Lease] = []
        # Numbers of tasks that were started, and of whose end the store can't know.
        self.started: set[int] = set()
        self.highest_lsn = self.highest_hlc = 0
        # The highest of the numbers that callers have seen, fences among them.
        self.highest_seen = 0
        # Whether a fault or a cut waits for its operation.
        self.is_armed = False
        # Whether a sync has claimed success and lost what it covered.
        self.is_lied_to = False
        # The states in which a step may have left the store that an error broke off.
        self.possible: list[StoreModel] = []
        self.open()
        self.settle()

    def open(self) -> None:
        self.db = wheeldb.open(
            STORE,
            disk=self.disk,
            clock=self.clock,
            entropy=SeededBytes(),
            driver=False,
            reserve=False,
            segment_bytes=64 * 1024,
            window_max=100,
        )
        self.db._engine.thresholds = Thresholds(
            entries=12, payload_bytes=600, events=40, log_bytes=30_000, quiet_ms=5_000
        )
        self.leases = []
        self.now()

    def now(self) -> None:
        self.model.at(self.db._engine.now())

    @property
    def last_lsn(self) -> int:
        """The last position before the next change; a step of the clock takes one."""
        engine, upkeep = self.db._engine, self.db._access.tending()
        now = engine.now()
        is_step = now.trust != upkeep._trust or abs(now.shift_ms) >= SHIFT_MS
        return engine.state.last_lsn + is_step

    @property
    def is_poisoned(self) -> bool:
        return self.db._engine.committer.poison is not None

    @property
    def owes_off_time(self) -> bool:
        """Whether the elapsed timeline may jump with the next poll."""
        return bool(self.db._engine.keeper.is_owed)

    def settle(self) -> None:
        """Remember the model as it is, and forget the moments that are durable."""
        state = self.db._engine.state
        self.highest_lsn = max(self.highest_lsn, state.last_lsn)
        self.now()
        learn_ends(self.db, self.model)
        self.notice_lies()
        if self.db.durable_lsn >= state.last_lsn and not self.is_lied_to:
            self.moments = []
            # No stamp leaves the process before its event is durable.
            self.highest_hlc = max(self.highest_hlc, state.last_hlc)
        self.remember()

    def remember(self) -> None:
        """Let the model as it is be one of the moments."""
        self.moments.append(self.model.copy())

    def notice_lies(self) -> None:
        """See whether a sync has failed of which the error comes one sync late."""
        hits = self.disk._faults.hits
        if self.is_late and any(name in SYNCS for name, _ in hits):
            self.is_lied_to = True
        hits.clear()

    def both(
        self, call: Callable[[], Any], expected: Callable[[], Any]
    ) -> tuple[Any, Any] | None:
        """Do the same on both sides; `None` if both refuse.

        Raises:
            PowerCut, WheelDBError, OSError: An accident met the call. The model is as
                before; where the outcome is unknown, the moments know both.
        """
        self.now()
        backup = self.model.copy()
        refusal = None
        result = answer = None
        try:
            result = call()
        except wheeldb.TaskError as error:
            refusal = error
        except (PowerCut, *POISON):
            self.expect_either(backup, expected)
            raise
        try:
            answer = expected()
        except Refused as error:
            name = error.args[0]
        else:
            name = None
        if name is not None:
            self.model = backup
            assert type(refusal).__name__ == name, f"{refusal!r}, not {name}"
            self.settle()
            return None
        if refusal is not None:
            self.model = backup
            if self.is_armed and isinstance(refusal.__cause__, TROUBLE):
                raise refusal.__cause__
            raise AssertionError("only the store refuses") from refusal
        self.settle()
        return result, answer

    def expect_either(self, before: StoreModel, expected: Callable[[], Any]) -> None:
        """Note what a call would have led to, in vain or not."""
        try:
            expected()
        except Refused:
            pass
        else:
            self.remember()
        self.model = before

    def find_moment(self, moments: Sequence[StoreModel]) -> StoreModel:
        """Return the moment at which the open store stands."""
        findings = []
        for moment in reversed(moments):
            model = moment.copy()
            model.at(self.db._engine.now())
            learn_ends(self.db, model)
            findings = differences(self.db, model)
            findings = findings or hidden_differences(self.db, model)
            if not findings:
                return model
        raise AssertionError(f"O1, O2: no moment is like the store: {findings}")

    def see_numbers(self, *lsns: int) -> None:
        """A caller gets to see numbers or fences that are new."""
        assert min(lsns) > self.highest_seen, "O6: a number was seen before"
        self.highest_seen = max(lsns)

    def differences(self) -> list[str]:
        return differences(self.db, self.model)
