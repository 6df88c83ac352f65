"""Leases: the exclusive right to run a task once, for a time.

::

    with db.lease("valves", limit=10, wait=5.0) as leases:
        for lease in leases:
            with lease:                     # acks at the end, nacks on an exception
                close(lease.payload, token=lease.fence)

The ``fence`` rises with every attempt of every task, over restarts, power cuts and
restores: who passes it on to what he changes can refuse a late attempt there.  A lease
that was lost (it ran out and another attempt began, or the task was replaced) raises
``LeaseLost`` at whatever would settle it, and changes nothing.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from wheeldb.access import Access
from wheeldb.engine import attempts
from wheeldb.engine.commit import Need
from wheeldb.engine.moment import delay_ms
from wheeldb.engine.options import lease_span_ms
from wheeldb.engine.policy import is_last_attempt
from wheeldb.engine.request import judge_size
from wheeldb.engine.row import Row, headers_of
from wheeldb.errors import LeaseLost
from wheeldb.model import NewTask, Seconds, Task
from wheeldb.payload import pack_payload, unpack_payload

__all__ = ("Lease", "Leases", "ack_many", "release_leases")

ERROR_CHARS_MAX = 2_000


class Lease:
    """One attempt at one task.

    Attributes:
        id: The task's id.
        name: Its name.
        queue: Its queue.
        due_at: When it was due; ``None`` for a delay while the clock is untrusted.
        late: Seconds from its due time to this lease.
        attempt: Which attempt this is, from 1.
        recoveries: Attempts that the death of their process cut short.
        may_have_run: Whether an earlier start may have happened whose end is unknown.
        fence: A number that rises with every attempt.
        headers: What the caller passed along.
    """

    def __init__(self, access: Access, row: Row, late: float) -> None:
        self._access = access
        self._row = row
        self._until_ms = row.until_ms
        self._is_settled = False
        self.id = row.task_id
        self.name = row.name
        self.queue = row.queue
        self.late = late
        self.attempt = row.attempts
        self.recoveries = row.recoveries
        self.may_have_run = row.may_have_run
        self.fence = row.fence

    @property
    def number(self) -> int:
        """The task's number, see ``Task``."""
        return self._row.number

    @property
    def payload(self) -> object:
        """The task's payload; a new copy each time."""
        return unpack_payload(self._row.payload)

    @property
    def headers(self) -> Mapping[str, str]:
        """What the caller passed along."""
        return headers_of(self._row)

    @property
    def due_at(self) -> datetime | None:
        """When it was due; ``None`` for a delay while the clock is untrusted."""
        return self._access.presenter.due_at(self._row.timeline, self._row.due_ms)

    @property
    def cursor(self) -> object:
        """What the attempt before has saved, or ``None``."""
        cursor = self._row.cursor
        return None if cursor is None else unpack_payload(cursor)

    @property
    def task(self) -> Task:
        """The task as it was when it was leased."""
        return self._access.present(self._row)

    @property
    def remaining(self) -> float:
        """Seconds until the lease runs out; negative when it has."""
        engine = self._access.engine
        with engine.lock:
            row = engine.state.leased.get(self.number)
            if row is not None and row.fence == self.fence:
                # It may have been renewed in the background.
                self._until_ms = row.until_ms
        return (self._until_ms - self._access.boottime_ms()) / 1000

    @property
    def deadline(self) -> datetime:
        """The instant at which it runs out, by the wall clock of this moment."""
        return self._access.instant_in(self.remaining)

    def ack(self, result: object = None, then: Sequence[NewTask] = ()) -> None:
        """Finish the task; what is in ``then`` is scheduled in the same step.

        Args:
            result: Kept for ids that the caller gave, like a payload.
            then: Follow-up tasks: all or nothing, together with the ack.

        Raises:
            LeaseLost: If the lease is stale.
            TaskExists, StaleVersion, QueueFull, TypeError, ValueError: A follow-up was
                refused; the lease stays.
        """
        access, row = self._access, self._row
        packed, request, size = None, None, 64
        if result is not None:
            packed = pack_payload(result, access.limits.payload_bytes_max)
            size += len(packed)
        if then:
            request = access.request(then)
            size += request.size
        judge_size(size)
        access.commit(
            lambda decider: attempts.ack(
                decider, row.number, row.fence, self.id, packed, request
            ),
            need=Need.REFUSE if then else Need.RESERVE,
            size=size,
            ids=[self.id] if request is None else [self.id, *request.ids],
        )
        self._is_settled = True
        access.engine.note_good_runs(1)

    def nack(self, error: BaseException | str, retry_in: Seconds | None = None) -> None:
        """Note that the attempt failed: the task waits for the next one, or is dead.

        Args:
            error: What went wrong.
            retry_in: Seconds until the next attempt instead of the policy's.

        Raises:
            LeaseLost: If the lease is stale.
        """
        row = self._row
        text = _describe(error)
        retry_ms = None if retry_in is None else delay_ms(retry_in, "retry_in")
        self._access.commit(
            lambda decider: attempts.nack(
                decider,
                row.number,
                row.fence,
                self.id,
                text,
                retry_ms,
            ),
            # That a task is dead ends it; only a retry has to ask for room.
            need=Need.RESERVE if is_last_attempt(row) else Need.BALLAST,
            ids=[self.id],
        )
        self._is_settled = True

    def release(self, delay: Seconds = 0) -> None:
        """Give the task back; no attempt is used.

        Raises:
            LeaseLost: If the lease is stale.
        """
        if release_leases(self._access, [self], delay_ms(delay)):
            raise LeaseLost(f"{self.id!r} is no longer leased under fence {self.fence}")
        self._is_settled = True

    def reject(self, reason: str) -> None:
        """Make the task dead, whatever attempts it has left.

        Raises:
            LeaseLost: If the lease is stale.
        """
        row = self._row
        if type(reason) is not str:
            raise TypeError(f"the reason is a {type(reason).__name__}, not a str")
        text = _describe(reason)
        self._access.commit(
            lambda decider: attempts.reject(
                decider, row.number, row.fence, self.id, text
            ),
            need=Need.RESERVE,
            ids=[self.id],
        )
        self._is_settled = True

    def renew(self, seconds: Seconds | None = None) -> None:
        """Restart the lease's clock, with its own duration or another.

        Raises:
            LeaseLost: If the lease is stale.
        """
        access, row = self._access, self._row
        lease_ms = None if seconds is None else lease_span_ms(seconds)
        self._until_ms = access.commit(
            lambda decider: attempts.renew(
                decider, row.number, row.fence, self.id, lease_ms
            ),
            need=Need.BALLAST,
            synced=False,
            ids=[self.id],
        )

    def save(self, cursor: object) -> None:
        """Keep a resume point for the next attempt; durable on return.

        Raises:
            LeaseLost: If the lease is stale.
        """
        access, row = self._access, self._row
        packed = pack_payload(cursor, access.limits.payload_bytes_max)
        access.commit(
            lambda decider: attempts.save(
                decider, row.number, row.fence, self.id, packed
            ),
            need=Need.BALLAST,
            ids=[self.id],
        )

    @contextlib.contextmanager
    def keep(self) -> Iterator[Self]:
        """Renew the lease in the background for the length of a block.

        The driver does it (or ``poll``), each time a third of the lease has passed.
        """
        upkeep = self._access.tending()
        block = object()
        try:
            upkeep.keep_lease(block, self._row, self._until_ms)
            yield self
        finally:
            upkeep.keep_lease_no_more(block)

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_settled:
            return
        if error is None:
            self.ack()
            return
        try:
            if isinstance(error, Exception):
                self.nack(error)
            else:
                # The program is being ended, the task did nothing wrong.
                self.release()
        except LeaseLost as lost:
            # What went wrong in the block comes first.
            error.add_note(f"nor could the attempt be settled: {lost}")

    def __repr__(self) -> str:
        return f"<Lease of {self.name} {self.id!r}, fence {self.fence}>"


class Leases(list[Lease]):
    """A list of leases; as a context manager it releases what was not settled."""

    def __init__(self, access: Access, leases: Sequence[Lease]) -> None:
        super().__init__(leases)
        self._access = access

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = [lease for lease in self if not lease._is_settled]
        if left:
            # What was lost meanwhile is somebody else's now.
            release_leases(self._access, left, 0)


def ack_many(access: Access, leases: Sequence[Lease]) -> list[Lease]:
    """Finish what is still held, in one frame; return what was lost.

    Raises:
        TypeError: Something among them is no ``Lease``.
    """
    leases = list(leases)
    for position, lease in enumerate(leases):
        if not isinstance(lease, Lease):
            raise TypeError(f"leases[{position}] is a {type(lease).__name__}, no Lease")
    keys = [(lease.number, lease.fence, lease.id) for lease in leases]
    if not keys:
        return []
    lost = set(
        access.commit(
            lambda decider: attempts.ack_many(decider, keys),
            need=Need.RESERVE,
            size=16 * len(keys),
            ids=[lease.id for lease in leases],
        )
    )
    for position, lease in enumerate(leases):
        if position not in lost:
            lease._is_settled = True
    access.engine.note_good_runs(len(keys) - len(lost))
    return [lease for position, lease in enumerate(leases) if position in lost]


def release_leases(access: Access, leases: Sequence[Lease], wait_ms: int) -> list[int]:
    """Give leases back unused, in one frame; return the positions of what was lost."""
    keys = [(lease.number, lease.fence, lease.id) for lease in leases]
    return access.commit(
        lambda decider: attempts.release(decider, keys, wait_ms),
        need=Need.RESERVE,
        ids=[lease.id for lease in leases],
    )


def _describe(error: BaseException | str) -> str:
    """Return what went wrong as text that can be kept, whatever it was.

    Raises:
        TypeError: It is neither an exception nor text.
    """
    if isinstance(error, str):
        text = error
    elif isinstance(error, BaseException):
        text = type(error).__name__
        # Without its words, if it can't be told: it must not hide behind another error.
        with contextlib.suppress(Exception):
            text = f"{text}: {error}"
    else:
        raise TypeError(
            f"the error is a {type(error).__name__}, not an exception or a str"
        )
    # A file name that is no UTF-8 is in a message as lone surrogates.
    return text[:ERROR_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
