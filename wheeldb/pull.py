"""Pulling: from tasks that are due to leases in the caller's hand.

``take`` looks for due tasks of the queues asked for, leases them in one frame, or
waits until something is due.  A lease is written, not synced, before it is handed out:
the page cache survives a killed process.  It is synced where the start may not be
forgotten in a power cut either: for tasks that run at most once, and for a while after
a power cut, so that a task which causes them is counted.
"""

from collections.abc import Sequence

from wheeldb.access import Access
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.moment import number_text
from wheeldb.engine.names import ID_BYTES_MAX, judge_text
from wheeldb.engine.row import Row
from wheeldb.events import WALL, F
from wheeldb.leases import Lease, Leases
from wheeldb.model import Seconds

__all__ = ("LIMIT_MAX", "take")

LIMIT_MAX = 10_000


def take(
    access: Access,
    queue: str | Sequence[str],
    limit: int,
    wait: Seconds | None,
    names: Sequence[str] | None,
) -> Leases:
    """Lease due tasks; see ``WheelDB.lease``."""
    queues = [queue] if isinstance(queue, str) else list(queue)
    if not queues:
        raise ValueError("there is no queue to lease from in an empty list")
    for one in queues:
        judge_text(one, "the queue", ID_BYTES_MAX)
    if isinstance(names, str):
        raise TypeError(f"names is the str {names!r}, not a list of names")
    for one in names or ():
        judge_text(one, "a task's name", ID_BYTES_MAX)
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise ValueError(
            f"limit is {number_text(limit)}; it lies between 1 and {LIMIT_MAX}"
        )
    wanted = None if names is None else frozenset(names)
    deadline_ms = access.deadline_ms(wait)
    access.require_open()
    engine = access.engine
    while True:
        ticket = engine.ready_ticket
        may_wait = access.may_wait()
        access.poll()
        if engine.has_ready(queues):
            rows = _lease(access, queues, limit, wanted)
            while len(rows) < limit and engine.refill(engine.now(), queues):
                # What was ready, or is not asked for, hid what is loaded now.
                access.poll()
                rows += _lease(access, queues, limit - len(rows), wanted)
            if rows:
                return _hand_out(access, rows)
            if engine.advance():
                # What was ready was stale, and hid what is loaded now.
                continue
        if not may_wait or not engine.wait_for_ready(ticket, deadline_ms):
            return Leases(access, [])


def _lease(
    access: Access, queues: Sequence[str], limit: int, names: frozenset[str] | None
) -> list[Row]:
    engine = access.engine
    is_synced = engine.syncs_leases
    rows = access.commit(
        lambda decider: attempts.lease(decider, queues, limit, names),
        need=Need.BALLAST,
        synced=is_synced,
    )
    if not is_synced and any(row.options.get(F.AT_MOST_ONCE) for row in rows):
        engine.committer.sync()
    return rows


def _hand_out(access: Access, rows: list[Row]) -> Leases:
    engine = access.engine
    now = engine.now()
    leases = []
    for row in rows:
        now_ms = now.wall_ms if row.timeline == WALL else now.elapsed_ms
        late_ms = max(now_ms - row.due_ms, 0)
        engine.lateness.add(late_ms)
        leases.append(Lease(access, row, late_ms / 1000))
    return Leases(access, leases)
