"""How long a failed task waits, from the policy stored with it.

A policy is kept as ``[max_attempts, "exponential", base, cap, [exceptions]]`` (or
``"linear", step, cap`` or ``"fixed", wait``), the numbers in seconds.  The wait is
drawn evenly between zero and the back-off, seeded by task and attempt: a replay, or
another process, waits the same ("full jitter", as in the AWS Architecture Blog,
"Exponential Backoff and Jitter", 2015).
"""

from hashlib import blake2b

from wheeldb.engine.moment import DUE_MS_MAX
from wheeldb.engine.row import Row
from wheeldb.events import F
from wheeldb.model import Exponential, Fixed, Linear, Retry

__all__ = ("is_last_attempt", "max_attempts", "retry_of", "retry_wait_ms")

_DEFAULT = Retry()


def max_attempts(row: Row) -> int:
    """Return how often the task may be started."""
    return retry_of(row).max_attempts


def is_last_attempt(row: Row) -> bool:
    """Return whether the task is dead if this attempt fails."""
    return row.attempts >= max_attempts(row) or bool(row.options.get(F.AT_MOST_ONCE))


def retry_of(row: Row) -> Retry:
    """Return the task's policy, its exceptions left out: they are names here."""
    stored = row.options.get(F.RETRY)
    if not stored:
        return _DEFAULT
    match stored:
        case [
            int(attempts),
            "exponential",
            int() | float() as base,
            int() | float() as cap,
            _,
        ]:
            return Retry(attempts, Exponential(base, cap))
        case [
            int(attempts),
            "linear",
            int() | float() as step,
            int() | float() as cap,
            _,
        ]:
            return Retry(attempts, Linear(step, cap))
        case [int(attempts), "fixed", int() | float() as wait, _]:
            return Retry(attempts, Fixed(wait))
    # A kind of back-off that only a newer release knows.
    return _DEFAULT


def retry_wait_ms(row: Row) -> int:
    """Return how long the task waits after the attempt that has just failed."""
    # A back-off that another release let through may be longer than time itself.
    wait_ms = min(retry_of(row).backoff.seconds(row.attempts) * 1000, DUE_MS_MAX)
    seed = blake2b(f"{row.number}/{row.attempts}".encode(), digest_size=7).digest()
    return int(wait_ms * int.from_bytes(seed) / 2**56)
