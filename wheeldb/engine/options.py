"""The options of a request: the field of each, and how its value becomes the field's.

A converter judges what the caller gave and returns it in the form that goes into the
log, or ``None`` for the default, which is left out there:

    OPTIONS["priority"] == (F.PRIORITY, converter)       converter(3) == 3
    OPTIONS["queue"]    == (F.QUEUE, converter)          converter("default") is None
    OPTIONS["id"]       is None                          (judged by ``request.py``)
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from wheeldb.engine.moment import (
    DUE_MS_MAX,
    instant_ms,
    number_text,
    seconds_text,
    span_ms,
)
from wheeldb.engine.names import ID_BYTES_MAX, judge_text
from wheeldb.engine.row import QUEUE_DEFAULT
from wheeldb.events import F
from wheeldb.model import Exponential, Fixed, Linear, Retry

__all__ = ("OPTIONS", "lease_span_ms")

ATTEMPTS_MAX = 2**31 - 1
LEASE_MS_MAX = 366 * 86_400_000
BACKOFF_S_MAX = DUE_MS_MAX // 1000
TAGS_MAX = 32
HEADERS_BYTES_MAX = 8_192


def _integer(what: str, low: int, high: int) -> Callable[[object], int | None]:
    def convert(value: object) -> int | None:
        if type(value) is not int:
            raise TypeError(f"{what} is a {type(value).__name__}, not an int")
        if not low <= value <= high:
            raise ValueError(
                f"{what} is {number_text(value)}; it lies between {low} and {high}"
            )
        return value or None  # zero is the default

    return convert


def _queue(value: object) -> str | None:
    judge_text(value, "the queue", ID_BYTES_MAX)
    return None if value == QUEUE_DEFAULT else value  # type: ignore[return-value]


def _retry(value: object) -> list[object] | None:
    if value is None:
        return None
    if not isinstance(value, Retry):
        raise TypeError(f"retry is a {type(value).__name__}, not a wheeldb.Retry")
    attempts = value.max_attempts
    if type(attempts) is not int or not 1 <= attempts <= ATTEMPTS_MAX:
        raise ValueError(
            f"max_attempts is {number_text(attempts)}; it lies between 1 and "
            f"{ATTEMPTS_MAX}"
        )
    if not isinstance(value.on, tuple):
        raise TypeError(
            f"retry's `on` is a {type(value.on).__name__}, not a tuple of exceptions"
        )
    given: tuple[object, ...] = value.on
    for error in given:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise TypeError(
                f"retry's `on` holds {error!r}, which is no exception class"
            )
    names = [f"{error.__module__}.{error.__qualname__}" for error in value.on]
    numbers: list[float]
    match value.backoff:
        case Exponential(base, cap):
            kind, numbers = "exponential", [base, cap]
        case Linear(step, cap):
            kind, numbers = "linear", [step, cap]
        case Fixed(wait):
            kind, numbers = "fixed", [wait]
        case other:
            raise TypeError(
                f"backoff is a {type(other).__name__}; it is an Exponential, Linear "
                "or Fixed"
            )
    for number in numbers:
        if type(number) not in (int, float) or not 0 <= number <= BACKOFF_S_MAX:
            raise ValueError(
                f"a back-off is {seconds_text(number)}; it is a number, and lies "
                f"between 0 and {BACKOFF_S_MAX} seconds"
            )
    return [value.max_attempts, kind, *numbers, names]


def lease_span_ms(value: object) -> int:
    """Return how long a lease is to last.

    Raises:
        TypeError, ValueError: If that is no number of seconds, or out of its range.
    """
    lease_ms = span_ms(value, "lease")
    if not 1 <= lease_ms <= LEASE_MS_MAX:
        raise ValueError(
            f"lease is {seconds_text(value)}; it lies between 0.001 and "
            f"{LEASE_MS_MAX // 1000} seconds"
        )
    return lease_ms


def _expires(value: object) -> int | list[int] | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return [instant_ms(value, "expires")]
    expires_ms = span_ms(value, "expires")
    if not 0 <= expires_ms <= DUE_MS_MAX:
        raise ValueError(
            f"expires is {seconds_text(value)}; it lies between 0 and "
            f"{DUE_MS_MAX // 1000} seconds"
        )
    return expires_ms


def _tags(value: object) -> list[str] | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("tags are a list or tuple of str")
    for tag in value:
        judge_text(tag, "a tag", ID_BYTES_MAX)
    if len(value) > TAGS_MAX:
        raise ValueError(f"{len(value)} tags; a task has at most {TAGS_MAX}")
    return list(value) or None


def _headers(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"headers are a {type(value).__name__}, not a mapping")
    size = 0
    for key, text in value.items():
        judge_text(key, "a header's name", ID_BYTES_MAX)
        if type(text) is not str:
            raise TypeError(f"the header {key!r} is a {type(text).__name__}, not a str")
        try:
            size += len(key) + len(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"the header {key!r} is not Unicode text") from error
    if size > HEADERS_BYTES_MAX:
        raise ValueError(f"{size} bytes of headers; at most {HEADERS_BYTES_MAX}")
    return dict(value) or None


def _flag(value: object) -> bool | None:
    if type(value) is not bool:
        raise TypeError(f"at_most_once is a {type(value).__name__}, not a bool")
    return value or None


OPTIONS: dict[str, tuple[int, Callable[[object], object]] | None] = {
    "delay": None,
    "at": None,
    "id": None,
    "if_exists": None,
    "durability": None,
    "version": (F.VERSION, _integer("version", 0, 2**53 - 1)),
    "queue": (F.QUEUE, _queue),
    "priority": (F.PRIORITY, _integer("priority", -128, 127)),
    "retry": (F.RETRY, _retry),
    "lease": (F.LEASE, lease_span_ms),
    "expires": (F.EXPIRES, _expires),
    "tags": (F.TAGS, _tags),
    "headers": (F.HEADERS, _headers),
    "at_most_once": (F.AT_MOST_ONCE, _flag),
}
