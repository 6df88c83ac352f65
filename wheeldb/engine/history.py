"""History: what happened to a task, and what happens now, read from the log.

The log is the truth; what is told here is what stands there, each fact with its
author, its stamp and its position.  Only synced events are told.  An event about many
tasks is told once for each of them.
"""

from collections.abc import Callable, Iterator, Mapping

from wheeldb.clock.hlc import physical_ms
from wheeldb.engine.columns import Columns
from wheeldb.engine.engine import Engine
from wheeldb.engine.moment import number_text
from wheeldb.engine.names import lookup_id
from wheeldb.engine.row import generated_id
from wheeldb.engine.values import instant
from wheeldb.errors import Compacted
from wheeldb.events import FIELD_NAMES, EventRecord, F, Kind, iterate_events
from wheeldb.log.follower import LogFollower
from wheeldb.log.frame import Frame
from wheeldb.log.reader import LogScan
from wheeldb.log.segment import list_segments
from wheeldb.model import Event
from wheeldb.payload import unpack_payload

__all__ = (
    "History",
    "TaskIds",
    "events_of_frame",
    "iterate_log",
    "judge_lsn",
    "oldest_lsn",
    "read_history",
    "scan_frames",
    "watch_events",
)

# Fields whose bytes are a packed payload.
_PACKED = frozenset({F.PAYLOAD, F.RESULT, F.CURSOR})
# Columns of events about many tasks: one value for each, by position.
_BY_POSITION = frozenset({F.NUMBER, F.UNTIL})

# Ids that are remembered while the log is read.
IDS_MAX = 100_000


class History(list[Event]):
    """Events of one task, oldest first.

    Attributes:
        is_complete: Whether the log still has its scheduling.
        oldest_lsn: Where the log begins.
    """

    def __init__(self, events: list[Event], oldest_lsn: int) -> None:
        super().__init__(events)
        self.oldest_lsn = oldest_lsn
        self.is_complete = any(event.kind == "scheduled" for event in events)


def scan_frames(engine: Engine, from_lsn: int) -> LogScan:
    """Return a scan of what the log still has above an LSN.

    Snapshots replace the segments before: that those are gone is no damage here.  The
    owner may write meanwhile, and retire segments: iterating then raises
    ``FileNotFoundError``.
    """
    directory = f"{engine.path}/log"
    while True:
        names = list_segments(engine.disk, directory)
        try:
            return LogScan(
                engine.disk,
                directory,
                database=engine.database,
                from_lsn=max(from_lsn, names[0].first_lsn - 1) if names else from_lsn,
            )
        except FileNotFoundError:
            if names == list_segments(engine.disk, directory):
                raise
            # One was retired between the listing and the look at it.


def oldest_lsn(scan: LogScan) -> int:
    """Return the first LSN that the log still has."""
    return scan.segments[0].header.first_lsn


def read_history(engine: Engine, task_id: str) -> History:
    """Return what the log has about a task, under all numbers its id has had."""
    key = lookup_id(task_id)
    numbers: set[int] = set()
    if type(key) is int:
        numbers.add(key)
    else:
        kept = engine.find(task_id)
        if kept is not None:
            numbers.add(kept.number)
    engine.committer.sync()
    while True:
        scan = scan_frames(engine, 0)
        try:
            events = _events_about(engine, scan, task_id, key, set(numbers))
        except FileNotFoundError:
            # The oldest segment was retired meanwhile.
            continue
        return History(events, oldest_lsn(scan))


def _events_about(
    engine: Engine, scan: LogScan, task_id: str, key: int | str, numbers: set[int]
) -> list[Event]:
    """Return the events of an id, and of the numbers that it turns out to have had."""
    events = []
    for frame in scan:
        if frame.header.last_lsn > engine.committer.durable_lsn:
            break
        for event, number in events_of_frame(frame):
            if event.id is not None and number is not None:
                if event.id == task_id:
                    numbers.add(number)
                elif number == key:
                    # The number is that of a task with an id of its own.
                    return []
            if number in numbers:
                events.append(event)
    # The later events name the number alone.
    return [_with_id(event, task_id) for event in events]


def judge_lsn(lsn: object, what: str = "from_lsn") -> int:
    """Return it if it can be a log position.

    Raises:
        TypeError, ValueError: It can't.
    """
    if type(lsn) is not int:
        raise TypeError(f"{what} is a {type(lsn).__name__}, not an int")
    if lsn < 0:
        raise ValueError(f"{what} is {number_text(lsn)}; the log begins at 0")
    return lsn


class TaskIds:
    """Tells whose number it is that an event names.

    A generated id is its number; an id that the caller gave stands in the scheduling
    event alone, which may lie before what is read here, or be gone.
    """

    def __init__(self, engine: Engine, since_lsn: int) -> None:
        self._engine = engine
        # Scheduling events above it were seen; the caller's ids among them are known.
        self._since_lsn = since_lsn
        self._known: dict[int, str] = {}
        self._has_looked_back = False

    def learn(self, number: int, task_id: str) -> None:
        """Take note of a scheduling event."""
        if task_id != generated_id(number):
            if len(self._known) >= IDS_MAX:
                self._known.clear()
                self._since_lsn = number - 1
            self._known[number] = task_id

    def of(self, number: int) -> str | None:
        """Return the id of a task, ``None`` if nothing tells it any more."""
        task_id = self._known.get(number)
        if task_id is not None:
            return task_id
        row = self._engine.view(number)
        if row is not None:
            return row.task_id
        if number <= self._since_lsn and not self._has_looked_back:
            self._look_back()
            return self.of(number)
        return generated_id(number) if number > self._since_lsn else None

    def _look_back(self) -> None:
        """Learn from what the log has before that; done once, if it is needed."""
        self._has_looked_back = True
        scan = scan_frames(self._engine, 0)
        until_lsn, self._since_lsn = self._since_lsn, oldest_lsn(scan) - 1
        for frame in scan:
            if frame.header.first_lsn > until_lsn:
                break
            for event, number in events_of_frame(frame):
                if event.id is not None and number is not None:
                    self.learn(number, event.id)


def iterate_log(engine: Engine, from_lsn: int) -> Iterator[Event]:
    """Yield every durable event above an LSN that the log still has.

    Raises:
        Compacted: If some of them are retired before they were reached.
    """
    durable_lsn = engine.committer.durable_lsn
    if durable_lsn <= from_lsn:
        return
    follower = _follow(engine, from_lsn)
    ids = TaskIds(engine, max(from_lsn, follower.oldest_lsn - 1))
    for frame in follower.frames(durable_lsn):
        for event, _ in events_of_frame(frame, ids):
            if event.lsn > from_lsn:
                yield event


def watch_events(
    engine: Engine, from_lsn: int, require_open: Callable[[], None]
) -> Iterator[Event]:
    """Yield synced events above an LSN, and wait for more.

    Raises:
        Compacted: If some of them are gone.
    """
    ids = TaskIds(engine, from_lsn)
    follower: LogFollower | None = None
    told_lsn = from_lsn
    while True:
        ticket = engine.ticket
        require_open()
        durable_lsn = engine.committer.durable_lsn
        if durable_lsn > told_lsn:
            if follower is None:
                follower = _follow(engine, from_lsn)
                if follower.is_cut:
                    raise Compacted(follower.oldest_lsn)
            for frame in follower.frames(durable_lsn):
                for event, _ in events_of_frame(frame, ids):
                    if event.lsn > from_lsn:
                        yield event
            told_lsn = durable_lsn
        elif not engine.wait_for_change(ticket, None):
            return


def _follow(engine: Engine, from_lsn: int) -> LogFollower:
    return LogFollower(
        engine.disk, f"{engine.path}/log", database=engine.database, from_lsn=from_lsn
    )


def events_of_frame(
    frame: Frame, ids: TaskIds | None = None
) -> Iterator[tuple[Event, int | None]]:
    """Yield each event of a frame, once per task, with the task's number."""
    header = frame.header
    lsn, stamp = header.first_lsn, header.hlc
    for by, record in iterate_events(frame.payload):
        for position in range(record.lsn_count):
            number, task_id, fields = _at_position(record, lsn, position)
            if number is not None and ids is not None:
                if task_id is not None:
                    ids.learn(number, task_id)
                else:
                    task_id = ids.of(number)
            yield (
                Event(
                    lsn=lsn + position,
                    hlc=stamp,
                    at=instant(physical_ms(stamp)),
                    by=by,
                    kind=Kind(record.kind).name.lower(),
                    id=task_id,
                    fields=fields,
                ),
                number,
            )
        lsn += record.lsn_count
        stamp += 1


def _at_position(
    record: EventRecord, lsn: int, position: int
) -> tuple[int | None, str | None, Mapping[str, object]]:
    """Return number, named fields and, where it stands there, id of an event's task."""
    if record.kind == Kind.SCHEDULED:
        columns = Columns.from_fields(record.fields)
        columns.first = lsn
        row = columns.row_at(position)
        fields: dict[int, object] = {
            F.NAME: row.name,
            F.PAYLOAD: row.payload,
            F.TIMELINE: row.timeline,
            F.DUE: row.due_ms,
            **row.options,
        }
        replaces = record.fields.get(F.REPLACES)
        if replaces and position in replaces:  # type: ignore[operator]
            fields[F.REPLACES] = replaces[position]  # type: ignore[index]
        return row.number, row.task_id, _named(fields)
    fields = dict(record.fields)
    numbers = fields.get(F.NUMBER)
    number: int | None = None
    if type(numbers) is int:
        number = numbers
    elif type(numbers) is list:
        number = numbers[position]
    for code in _BY_POSITION:
        column = fields.get(code)
        if type(column) is list:
            fields[code] = column[position]
    results = fields.pop(F.RESULT, None)
    if type(results) is dict and position in results:
        fields[F.RESULT] = results[position]
    return number, None, _named(fields)


def _named(fields: dict[int, object]) -> dict[str, object]:
    named: dict[str, object] = {}
    for code, value in fields.items():
        if code == F.DEFINITION:
            named["definition"] = _named(value)  # type: ignore[arg-type]
            continue
        if code in _PACKED and type(value) is bytes:
            value = unpack_payload(value)
        named[FIELD_NAMES.get(code, str(code))] = value
    return named


def _with_id(event: Event, task_id: str) -> Event:
    return Event(
        lsn=event.lsn,
        hlc=event.hlc,
        at=event.at,
        by=event.by,
        kind=event.kind,
        id=task_id,
        fields=event.fields,
    )
