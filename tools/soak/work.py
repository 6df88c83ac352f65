"""The soak's working threads: lease, and settle in every way there is.

    ack  ack(then=)  ack_many  nack  release  reject  renew and save  nothing at all

A start is reported before anything is done about it, with the instant until which
nobody else may have the task.
"""

import threading
from random import Random

import wheeldb
from tools.soak.calls import PAUSE_S, Calls
from tools.soak.load import MAX_ATTEMPTS, QUEUES, Maker

__all__ = ("Worker",)

WAIT_S = 5.0


class Worker:
    """Leases and settles until it is stopped."""

    def __init__(
        self,
        calls: Calls,
        stepping: threading.Lock,
        seed: int,
        session: int,
        number: int,
    ) -> None:
        self._calls = calls
        self._db = calls.db
        self._stepping = stepping
        self._draw = Random(f"work {seed} {number}")
        self._maker = Maker(calls.clock, self._draw, f"{session}.{number}")

    def run(self) -> None:
        """Go on until told to stop."""
        while not self._calls.stop.is_set():
            limit = self._draw.choice((1, 2, 8))
            try:
                leases = self._db.lease(list(QUEUES), limit=limit, wait=WAIT_S)
            except wheeldb.StorageFullError:
                self._calls.report("crowded")
                self._calls.stop.wait(PAUSE_S)
                continue
            for lease in leases:
                self._tell(lease)
            if len(leases) > 1 and self._draw.random() < 0.3:
                self._ack_many(leases)
                continue
            for lease in leases:
                self._settle(lease)

    def _tell(self, lease: wheeldb.Lease) -> None:
        payload = lease.payload
        assert isinstance(payload, dict), f"a payload of {lease.id}: {payload!r}"
        # A suspend between the two readings would make the lease look longer.
        with self._stepping:
            boottime_ms = self._calls.clock.read().boottime_ms
            self._calls.report(
                "started",
                token=payload["token"],
                id=lease.id,
                fence=lease.fence,
                may_have_run=lease.may_have_run,
                until_ms=boottime_ms + round(1_000 * lease.remaining),
            )

    def _ack_many(self, leases: list[wheeldb.Lease]) -> None:
        tokens = [token_of(lease) for lease in leases]
        self._calls(
            "ack_many",
            lambda: self._db.ack_many(leases),
            lambda lost: [token_of(lease) for lease in lost],
            tokens=tokens,
            fence=min(lease.fence for lease in leases),
        )

    def _settle(self, lease: wheeldb.Lease) -> None:
        calls, token, draw = self._calls, token_of(lease), self._draw
        dice = draw.random()
        if dice < 0.55:
            calls("ack", lease.ack, token=token, fence=lease.fence)
        elif dice < 0.65:
            made = [self._maker.make() for _ in range(draw.randrange(1, 3))]
            calls(
                "ack",
                lambda: lease.ack(then=[task for task, _ in made]),
                token=token,
                fence=lease.fence,
                tasks=[told for _, told in made],
            )
        elif dice < 0.77:
            retry_s = draw.choice((None, 0, 3, 60))
            calls(
                "nack",
                lambda: lease.nack("the soak wants it so", retry_in=retry_s),
                token=token,
                fence=lease.fence,
                is_last=lease.attempt >= MAX_ATTEMPTS,
                delay_ms=1_000 * (retry_s or 0),
            )
        elif dice < 0.84:
            delay_s = draw.choice((0, 5))
            calls(
                "release",
                lambda: lease.release(delay=delay_s),
                token=token,
                fence=lease.fence,
                delay_ms=1_000 * delay_s,
            )
        elif dice < 0.87:
            calls(
                "reject",
                lambda: lease.reject("the soak is cruel"),
                token=token,
                fence=lease.fence,
            )
        elif dice < 0.95:
            calls("renew", lease.renew, token=token, fence=lease.fence)
            calls(
                "save",
                lambda: lease.save({"at": token}),
                token=token,
                fence=lease.fence,
            )
            calls("ack", lease.ack, token=token, fence=lease.fence)
        # The rest is left to run out, or to the death of the process.


def token_of(lease: wheeldb.Lease) -> str:
    """Return the token that a lease's task carries."""
    payload = lease.payload
    assert isinstance(payload, dict), f"a payload of {lease.id}: {payload!r}"
    return str(payload["token"])
