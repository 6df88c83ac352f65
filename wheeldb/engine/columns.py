"""The tasks of one ``SCHEDULED`` event, kept as columns.

A call about a thousand tasks costs per object, not per byte.  So their names, payloads
and due times stay in one list each, from the call to the log and in the hot table,
where every number of the event refers to the same ``Columns``; a ``Row`` is made only
for a task that is looked at or changed.

    fields of the event                      columns
    NAME     "a" or ["a", "b"]               names    (a list, or one for all)
    PAYLOAD  [bytes, bytes]                  payloads
    DUE      1200 or [1200, 3400]            dues
    TIMELINE 0 or [0, 1]                     timelines
    ID       ["x", nil]                      ids      (absent: all generated)
    DIGEST   [bytes, nil]                    digests  (of the requests that have an id)
    SHARED   {option: value}                 shared   (options of all)
    SINGLE   {position: {option: value}}     single   (options of one)

The first number is set when the event is numbered, and then the lane.  Nothing here
judges what callers gave; that is ``request.py``.
"""

from collections.abc import Iterable, Sequence

import msgpack

from wheeldb.engine.row import QUEUE_DEFAULT, Row
from wheeldb.events import ELAPSED, F, pack_fields

__all__ = ("Columns",)

_NO_OPTIONS: dict[int, object] = {}
# Of every event that schedules tasks.
_NAME, _PAYLOAD, _DUE = F.NAME, F.PAYLOAD, F.DUE


class Columns:
    """The tasks of one event; position ``i`` has the number ``first + i``."""

    __slots__ = (
        "count",
        "created_ms",
        "digests",
        "dues",
        "first",
        "ids",
        "lane",
        "names",
        "payload_bytes",
        "payloads",
        "shared",
        "single",
        "timelines",
    )

    def __init__(
        self,
        names: str | list[str],
        payloads: list[bytes],
        dues: int | list[int],
        timelines: int | list[int] = ELAPSED,
        ids: list[str | None] | None = None,
        shared: dict[int, object] | None = None,
        single: dict[int, dict[int, object]] | None = None,
        digests: list[bytes | None] | None = None,
    ) -> None:
        self.count = len(payloads)
        self.names = names
        self.payloads = payloads
        self.payload_bytes = sum(map(len, payloads))
        self.dues = dues
        self.timelines = timelines
        self.ids = ids
        self.shared = shared if shared is not None else _NO_OPTIONS
        self.single = single
        self.digests = digests
        self.first = 0
        self.created_ms = 0
        # The lane of all of them; ``None`` if they have several.
        self.lane: int | None = None

    @classmethod
    def from_fields(cls, fields: dict[int, object]) -> "Columns":
        """Return the columns that an event's fields hold."""
        return cls(
            fields[F.NAME],  # type: ignore[arg-type]
            fields[F.PAYLOAD],  # type: ignore[arg-type]
            fields[F.DUE],  # type: ignore[arg-type]
            fields.get(F.TIMELINE, ELAPSED),  # type: ignore[arg-type]
            fields.get(F.ID),  # type: ignore[arg-type]
            fields.get(F.SHARED),  # type: ignore[arg-type]
            fields.get(F.SINGLE),  # type: ignore[arg-type]
            fields.get(F.DIGEST),  # type: ignore[arg-type]
        )

    def pack(self, replaces: dict[int, int] | None = None) -> bytes:
        """Return the bytes of the event's fields.

        Args:
            replaces: The numbers of the tasks whose place is taken, by position.
        """
        fields: dict[int, object] = {
            _NAME: self.names,
            _PAYLOAD: self.payloads,
            _DUE: self.dues,
        }
        if self.timelines != ELAPSED:
            fields[F.TIMELINE] = self.timelines
        if self.ids is not None:
            fields[F.ID] = self.ids
        if self.digests is not None:
            fields[F.DIGEST] = self.digests
        if self.shared:
            fields[F.SHARED] = self.shared
        if self.single:
            fields[F.SINGLE] = self.single
        if replaces:
            fields[F.REPLACES] = replaces
        return pack_fields(fields)

    def move_delays(self, by_ms: int) -> None:
        """Move the due times on the elapsed timeline; not once it is numbered."""
        self.dues = [
            self.due(position) + (by_ms if self.lane_key(position)[0] == ELAPSED else 0)
            for position in range(self.count)
        ]

    def select(self, positions: list[int]) -> "Columns":
        """Return columns that hold only the tasks at these positions."""
        names, dues, timelines = self.names, self.dues, self.timelines
        single = {
            new: self.single[old]
            for new, old in enumerate(positions)
            if self.single and old in self.single
        }
        return Columns(
            names if type(names) is str else [names[old] for old in positions],
            [self.payloads[old] for old in positions],
            dues if type(dues) is int else [dues[old] for old in positions],  # type: ignore[index]
            timelines
            if type(timelines) is int
            else [timelines[old] for old in positions],  # type: ignore[index]
            self.ids and [self.ids[old] for old in positions],
            self.shared,
            single or None,
            self.digests and [self.digests[old] for old in positions],
        )

    def options(self, position: int) -> dict[int, object]:
        """Return the options of one task, its digest left out."""
        if self.single:
            single = self.single.get(position)
            if single:
                return {**self.shared, **single}
        return self.shared

    def at(self, position: int) -> tuple[str | None, int, int, dict[int, object]]:
        """Return id, timeline, due time and options of one task."""
        ids, timelines, dues = self.ids, self.timelines, self.dues
        return (
            ids[position] if ids is not None else None,
            timelines if type(timelines) is int else timelines[position],  # type: ignore[index]
            dues if type(dues) is int else dues[position],  # type: ignore[index]
            self.options(position) if self.single else self.shared,
        )

    def due(self, position: int) -> int:
        """Return the due time of one task, in ms on its timeline."""
        return self.dues if type(self.dues) is int else self.dues[position]  # type: ignore[index]

    def id(self, position: int) -> str | None:
        """Return the id that a caller gave to one task."""
        return self.ids[position] if self.ids is not None else None

    def timeline(self, position: int) -> int:
        """Return the timeline of one task."""
        timelines = self.timelines
        return timelines if type(timelines) is int else timelines[position]  # type: ignore[index]

    def lane_key(self, position: int) -> tuple[int, str, int]:
        """Return (timeline, queue, priority) of one task."""
        timelines = self.timelines
        timeline: int = timelines if type(timelines) is int else timelines[position]  # type: ignore[index]
        options = self.options(position) if self.single else self.shared
        if not options:
            return timeline, QUEUE_DEFAULT, 0
        return (
            timeline,
            options.get(F.QUEUE, QUEUE_DEFAULT),  # type: ignore[return-value]
            options.get(F.PRIORITY, 0),
        )

    def pack_rows(self, numbers: Sequence[int], coarse: Iterable[bool]) -> list[bytes]:
        """Return what ``Row.pack`` makes of the rows of some tasks.

        Args:
            numbers: Their numbers.
            coarse: For each, whether the index keeps it under a due key that is rounded
                down.
        """
        if not self.is_uniform() or (self.ids is not None and None in self.ids):
            return [
                self.row(number).pack(coarse=is_coarse)
                for number, is_coarse in zip(numbers, coarse, strict=True)
            ]
        pack = msgpack.Packer(use_bin_type=True).pack
        positions = [number - self.first for number in numbers]
        near: dict[int, object] = {F.NAME: self.names, F.PAYLOAD: b""}
        if self.ids is not None:
            near[F.ID] = None
        if self.timelines != ELAPSED:
            near[F.TIMELINE] = self.timelines
        near |= {F.DUE: self.dues, F.CREATED: self.created_ms, **self.shared}
        if self.digests is not None:
            near[F.DIGEST] = None
        far = {**near, F.COARSE: True}
        # Each row is packed from one of the two, after what differs has been put in.
        lists = [
            (field, column)
            for field, column in (
                (F.NAME, self.names),
                (F.ID, self.ids),
                (F.DUE, self.dues),
                (F.DIGEST, self.digests),
            )
            if type(column) is list
        ]
        packed = []
        for position, is_coarse in zip(positions, coarse, strict=True):
            fields = far if is_coarse else near
            fields[F.PAYLOAD] = self.payloads[position]
            for field, column in lists:
                fields[field] = column[position]
            packed.append(pack(fields))
        return packed

    def split(self) -> tuple[dict[int, object], dict[int, list[object]]]:
        """Return the fields that all rows have alike, and columns of those that differ.

        That is for tasks of one lane.  The first column is that of the payloads, of
        which every task has one.
        """
        shared: dict[int, object] = {F.CREATED: self.created_ms, **self.shared}
        columns: dict[int, list[object]] = {F.PAYLOAD: self.payloads}  # type: ignore[dict-item]
        if self.timelines != ELAPSED:
            shared[F.TIMELINE] = self.timelines
        for field, column in (
            (F.NAME, self.names),
            (F.DUE, self.dues),
            (F.ID, self.ids),
            (F.DIGEST, self.digests),
        ):
            if type(column) is list:
                columns[field] = column  # type: ignore[assignment]
            elif column is not None:
                shared[field] = column
        return shared, columns

    def due_first(self) -> int:
        """Return the earliest due time."""
        return self.dues if type(self.dues) is int else min(self.dues)  # type: ignore[arg-type]

    def is_uniform(self) -> bool:
        """Return whether all tasks belong to one lane."""
        return type(self.timelines) is int and not self.single

    def row(self, number: int) -> Row:
        """Return the row of the task with this number."""
        return self.row_at(number - self.first)

    def row_at(self, position: int) -> Row:
        """Return the row of one task; it has no number before the event has one."""
        number = self.first + position
        names = self.names
        task_id, timeline, due_ms, options = self.at(position)
        digest = self.digests[position] if self.digests is not None else None
        if digest is not None:
            options = {**options, F.DIGEST: digest}
        return Row(
            number,
            names if type(names) is str else names[position],
            self.payloads[position],
            timeline,
            due_ms,
            self.created_ms,
            id=task_id,
            options=options,
        )
