"""The hot table: what changed since the last checkpoint, laid over the index.

A lookup asks the active table, then the frozen one (whose changes are on their way
into the index), then the index; the first that knows the key answers::

    rows        number → Row, Columns (see there), or None: gone
    ids         caller's id → number of the live task, or 0: none
    finished    LSN of finishing → Finished, or None: forgotten
    finished_ids  caller's id → LSN of finishing, or 0: none
    dropped     LSN of finishing → what the index holds of a task whose id came back
    lifted      number → the Row that the index holds, for rows changed or gone since,
                and the due field of its key there, unless it is in a block

All numbers of an event stand in ``rows`` side by side, in order: a ``Columns`` where
nothing has happened since, which a checkpoint takes by the block.

A checkpoint freezes the table, writes it to the index in one transaction and drops it.
The table holds at most what one checkpoint may write; the engine sees to that.
"""

from wheeldb.engine.columns import Columns
from wheeldb.engine.row import Finished, Row

__all__ = ("HotTable",)


class HotTable:
    """The changes between two checkpoints."""

    __slots__ = (
        "dropped",
        "events",
        "finished",
        "finished_ids",
        "forgotten_through",
        "ids",
        "lifted",
        "now",
        "payload_bytes",
        "rows",
    )

    def __init__(self) -> None:
        self.rows: dict[int, Row | Columns | None] = {}
        self.ids: dict[str, int] = {}
        self.finished: dict[int, Finished | None] = {}
        self.finished_ids: dict[str, int] = {}
        self.lifted: dict[int, tuple[Row, int]] = {}
        self.dropped: dict[int, Finished] = {}
        self.forgotten_through = 0
        self.payload_bytes = 0
        self.events = 0
        # The present on both timelines when it was frozen: the base of coarse due keys.
        self.now = (0, 0)

    def row(self, number: int) -> Row | None:
        """Return the row of a number that is a key of ``rows``."""
        entry = self.rows[number]
        return entry.row(number) if type(entry) is Columns else entry  # type: ignore[return-value]

    def is_full(self, entries_max: int, payload_bytes_max: int) -> bool:
        """Return whether as much has gathered as may be in memory."""
        return len(self) >= entries_max or self.payload_bytes >= payload_bytes_max

    def __len__(self) -> int:
        """Return how many entries a checkpoint would write."""
        return len(self.rows) + len(self.finished)
