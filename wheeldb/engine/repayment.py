"""Off-time that is owed, added to the elapsed timeline once a clock can tell it.

A machine whose clock has no battery starts in 1970; for how long it was off is known
only when the clock is put right.  The elapsed timeline then jumps forward by that.  A
delay that was given before the power went has waited for the off-time, and comes due so
much earlier.  A delay that was given since has not, and must not::

    elapsed      60 min ·· power off ·· 60 min      70 min ──► 130 min
                                          │ "in 30 min":       │ the clock is right
                                          due at 90 min ─────► due at 150 min

So in the step that lets the timeline jump, every delay that was given since the owing
began is moved along, in the same frame as the anchor that says so.  Which ones is told
by their last change: one that was touched for another reason is moved, too, and is late
by the off-time at most.

Assumes, for requests: what was reckoned before the jump and is decided after it is
moved by ``admission.py``.
"""

from wheeldb.engine.commit import Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.engine import Engine
from wheeldb.engine.fold import Fact
from wheeldb.engine.listing import unfinished_rows
from wheeldb.engine.moment import DUE_MS_MAX
from wheeldb.engine.row import LEASED, SCHEDULED, Row
from wheeldb.events import ELAPSED, F, Kind

__all__ = ("repay",)


def repay(engine: Engine) -> bool:
    """Add the off-time that is owed, if a clock can tell it now; return whether.

    Raises:
        StorageFullError, StorePoisoned: As the log says; it is still owed.
    """
    keeper = engine.keeper
    with engine.lock:
        if keeper.owed_ms(engine.reading()) is None:
            return False
        since_lsn = keeper.owed_since
    if since_lsn < keeper.opening_lsn or engine.index_rebuilds:
        # Some may be in the index alone: given in an opening before, or put there anew.
        engine.unpaid.update(
            row.number for row in unfinished_rows(engine, 0) if row.lsn >= since_lsn
        )
    repayment = _Repayment(engine)
    try:
        # With the reserve, for a full disk must not come between the two halves.
        engine.commit(repayment, synced=False, need=Need.RESERVE, author="wheel")
    except OSError:
        with engine.lock:
            repayment.take_back()
        raise
    return True


class _Repayment:
    """The decision; a second try moves the same tasks by the same time."""

    def __init__(self, engine: Engine) -> None:
        self.owed_ms: int | None = None
        self._engine = engine
        self._since_lsn = 0
        self._elapsed_ms = 0

    def take_back(self) -> None:
        """Let the off-time be owed again."""
        if self.owed_ms is not None:
            self._engine.keeper.owe(self.owed_ms, self._since_lsn)

    def __call__(self, decider: Decider) -> None:
        engine, keeper = self._engine, self._engine.keeper
        reading = engine.reading()
        if self.owed_ms is None:
            owed_ms = keeper.owed_ms(reading)
            if owed_ms is None:
                return  # another thread was quicker, or the clock was set back
            self._since_lsn = keeper.owed_since
            self._elapsed_ms = keeper.now(reading).elapsed_ms
            self.owed_ms = owed_ms
            keeper.repay(owed_ms)
        for row in self._rows_to_move():
            _move(decider, row, self.owed_ms)
        anchor = keeper.anchor(reading)
        decider.emit(Fact(Kind.ANCHORED, 1, {F.ANCHOR: anchor.to_fields()}))
        # Who is decided in the same group reckons from behind the jump.
        decider.now = keeper.now(reading)
        engine.unpaid.clear()

    def _rows_to_move(self) -> list[Row]:
        state = self._engine.state
        rows = []
        for number in sorted({*state.changed_numbers(), *self._engine.unpaid}):
            row = state.lookup(number)
            if row is None or row.lsn < self._since_lsn:
                continue
            timeline, due_ms = row.behind or (row.timeline, row.due_ms)
            is_waiting = row.state == SCHEDULED or (
                row.state == LEASED and row.behind is not None
            )
            if is_waiting and timeline == ELAPSED and due_ms > self._elapsed_ms:
                rows.append(row)
        return rows


def _move(decider: Decider, row: Row, owed_ms: int) -> None:
    _, due_ms = row.behind or (row.timeline, row.due_ms)
    fields: dict[int, object] = {
        F.NUMBER: [row.number],
        F.DUE: min(due_ms + owed_ms, DUE_MS_MAX),
    }
    decider.emit(Fact(Kind.RESCHEDULED, 1, fields))
