"""Salvage: a state from events of which some are lost.

The fold refuses an event about a task that it does not know, for in a whole log there
is none.  Here such an event is taken apart: what it says about tasks that are there is
applied, the rest is dropped and reported.  A task whose end was lost comes back; it is
marked as one that may have run.  An id that is scheduled anew although its task is
still there has ended in between: the later one counts.

This module knows neither files nor frames; ``replay.py`` brings the events.
"""

from typing import Any

from wheeldb.engine.fold import Fact, apply, apply_record
from wheeldb.engine.state import State
from wheeldb.errors import CorruptionError
from wheeldb.events import EventRecord, F, Kind

__all__ = ("apply_what_fits",)


def apply_what_fits(state: State, record: EventRecord, lsn: int, hlc: int) -> list[str]:
    """Apply what an event says about tasks that there are; return what was dropped."""
    dropped: list[str] = []
    kind = Kind(record.kind)
    if kind == Kind.SCHEDULED:
        record, dropped = _without_contradictions(state, record, lsn)
    try:
        apply_record(state, record, lsn, hlc)
    except CorruptionError:
        dropped += _apply_singly(state, record, lsn, hlc)
    for number in _numbers(record):
        row = state.lookup(number)
        if row is not None and row.attempts < 0:
            row.attempts = 0  # its start was lost
    return dropped


def _without_contradictions(
    state: State, record: EventRecord, lsn: int
) -> tuple[EventRecord, list[str]]:
    """Return a ``SCHEDULED`` event that replaces exactly what is in its way."""
    fields: dict[int, Any] = dict(record.fields)
    dropped = []
    replaces = {}
    for position, number in fields.get(F.REPLACES, {}).items():
        if state.lookup(number) is not None:
            replaces[position] = number
        else:
            dropped.append(
                f"LSN {lsn + position} replaces task {number}, which is lost"
            )
    for position, task_id in enumerate(fields.get(F.ID) or ()):
        live = state.number_of(task_id) if task_id is not None else 0
        if live and live not in replaces.values():
            replaces[position] = live
            dropped.append(
                f"task {live}, {task_id!r}: its end is lost; the id was scheduled anew "
                f"at LSN {lsn + position}"
            )
    fields.pop(F.REPLACES, None)
    if replaces:
        fields[F.REPLACES] = replaces
    return record._replace(fields=fields), dropped


def _apply_singly(state: State, record: EventRecord, lsn: int, hlc: int) -> list[str]:
    """Apply an event about several tasks one by one."""
    dropped = []
    kind = Kind(record.kind).name.lower()
    fields: dict[int, Any] = record.fields
    for position, number in enumerate(_numbers(record)):
        if state.lookup(number) is None:
            dropped.append(
                f"LSN {lsn + position}, {kind}: task {number}, which it concerns, is "
                "lost"
            )
            continue
        single = {**fields, F.NUMBER: [number]}
        if type(fields.get(F.UNTIL)) is list:
            single[F.UNTIL] = [fields[F.UNTIL][position]]
        results = single.pop(F.RESULT, None)
        if results and position in results:
            single[F.RESULT] = {0: results[position]}
        apply(state, Fact(record.kind, 1, single), lsn + position, hlc)
    state.last_lsn = lsn + Fact.from_record(record).count - 1
    state.last_hlc = hlc
    return dropped


def _numbers(record: EventRecord) -> list[int]:
    """Return the tasks that an event concerns, by position; none for its own."""
    numbers: Any = record.fields.get(F.NUMBER)
    if numbers is None:
        return []
    return numbers if type(numbers) is list else [numbers]
