"""Several changes at once: one frame, one sync, all or nothing.

::

    with db.batch() as batch:
        batch.cancel("pay-42", expect=CancelOutcome.CANCELLED)
        batch.schedule("order.unshipped", {"order": 42}, delay=172_800, id="ship-42")
    batch.results        # [CancelOutcome.CANCELLED, Receipt(…)]

The calls only collect; they are judged together when the block ends, each seeing what
those before it did.  If one is refused, or an ``expect`` is not met, nothing happens
and ``BatchRefused`` says which.  An exception in the block writes nothing either.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, Unpack

from wheeldb.access import Access
from wheeldb.engine import admission, amendment
from wheeldb.engine.admission import Scheduled
from wheeldb.engine.commit import Need
from wheeldb.engine.decide import Decider
from wheeldb.engine.history import judge_lsn
from wheeldb.engine.names import lookup_id
from wheeldb.engine.request import judge_size
from wheeldb.engine.row import Row
from wheeldb.errors import BatchRefused, TaskError
from wheeldb.model import CancelOutcome, NewTask, Seconds, TaskOptions

__all__ = ("Batch",)

_Operation = Callable[[Decider], object]


class Batch:
    """Collects changes in a ``with`` block and commits them at its end.

    Attributes:
        results: After the block: one receipt or outcome per call, in order.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._operations: list[tuple[_Operation, CancelOutcome | None]] = []
        self._ids: list[str] = []
        self._need = Need.RESERVE
        self._size = 0
        self._is_open = False
        self.results: list[object] = []

    def schedule(
        self, name: str, payload: object = None, **options: Unpack[TaskOptions]
    ) -> None:
        """Schedule a task; see ``WheelDB.schedule``.

        Raises:
            TypeError, ValueError: For an argument that can't be right.
        """
        request = self._access.request_one(name, payload, options)
        self._add(
            lambda decider: admission.schedule(decider, request),
            ids=request.ids,
            size=request.size,
        )

    def schedule_many(self, tasks: Sequence[NewTask]) -> None:
        """Schedule several tasks; their result is a sequence of receipts.

        Raises:
            TypeError, ValueError: For an argument that can't be right.
        """
        if not len(tasks):
            self._add(lambda decider: [], need=Need.RESERVE, size=0)
            return
        request = self._access.request(tasks)
        self._add(
            lambda decider: [admission.schedule(decider, request)],
            ids=request.ids,
            size=request.size,
        )

    def cancel(
        self, id: str, *, running: bool = False, expect: CancelOutcome | None = None
    ) -> None:
        """Cancel a task; see ``WheelDB.cancel``.

        Args:
            id: The task's id.
            running: End a running attempt, too.
            expect: The outcome without which the whole batch is refused.
        """
        self._amend(
            id,
            lambda decider: amendment.cancel(decider, id, running=running),
            need=Need.RESERVE,
            expect=expect,
        )

    def reschedule(
        self,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        expect_lsn: int | None = None,
    ) -> None:
        """Give a task another due time; see ``WheelDB.reschedule``."""
        due = self._access.due(delay, at)
        if expect_lsn is not None:
            judge_lsn(expect_lsn, "expect_lsn")
        self._amend(
            id,
            lambda decider: amendment.reschedule(
                decider, id, *due(decider), expect_lsn
            ),
        )

    def revive(self, id: str) -> None:
        """Make a dead task due again; its result is how many were: 0 or 1."""
        self._amend(id, lambda decider: int(amendment.revive(decider, id)))

    def run_now(self, id: str) -> None:
        """Make a task due at once; see ``WheelDB.run_now``."""
        self._amend(id, lambda decider: amendment.run_now(decider, id))

    def pause(self, id: str) -> None:
        """Pause a task; see ``WheelDB.pause``."""
        self._amend(id, lambda decider: amendment.pause(decider, id))

    def resume(self, id: str, *, now: bool = False) -> None:
        """Resume a task; see ``WheelDB.resume``."""
        self._amend(id, lambda decider: amendment.resume(decider, id, now=now))

    def _amend(
        self,
        task_id: str,
        operation: _Operation,
        *,
        need: Need = Need.BALLAST,
        expect: CancelOutcome | None = None,
    ) -> None:
        lookup_id(task_id)  # judged now, not within the decision
        self._add(operation, need=need, ids=[task_id], expect=expect)

    def _add(
        self,
        operation: _Operation,
        *,
        need: Need = Need.REFUSE,
        ids: Sequence[str] = (),
        expect: CancelOutcome | None = None,
        size: int = 64,
    ) -> None:
        if not self._is_open:
            raise RuntimeError("a batch is filled within its `with` block")
        judge_size(self._size + size)
        self._operations.append((operation, expect))
        self._ids += ids
        # On a full disk it can do what the weakest of its calls could do alone.
        self._need = min(self._need, need)
        self._size += size

    def _decide(self, decider: Decider) -> list[object]:
        results: list[object] = []
        with decider.atomic():
            for index, (operation, expect) in enumerate(self._operations):
                try:
                    outcome = operation(decider)
                except TaskError as refusal:
                    raise BatchRefused(
                        f"call {index} of the batch was refused, so nothing was "
                        f"changed: {refusal}",
                        index,
                    ) from refusal
                if expect is not None and outcome != expect:
                    raise BatchRefused(
                        f"call {index} of the batch came to {outcome!r}, expected was "
                        f"{expect!r}; nothing was changed",
                        index,
                        outcome,
                    )
                results.append(outcome)
        return results

    def _commit(self) -> None:
        if not self._operations:
            return
        results = self._access.commit(
            self._decide, need=self._need, size=self._size, ids=self._ids
        )
        self.results = [self._present(result) for result in results]

    def _present(self, result: object) -> object:
        access = self._access
        if isinstance(result, Scheduled):
            return access.receipt_at(result, 0, None)
        if isinstance(result, list):
            return access.receipts(result[0], None) if result else []
        if isinstance(result, Row):
            return access.receipt(result)
        return result

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        if error is None:
            self._commit()
