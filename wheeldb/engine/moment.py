"""Time as callers give it: seconds and instants, made whole milliseconds.

Seconds are rounded up, and an instant too; now is rounded down, and ``cut_ms`` is what
that cut off.  So a delay is reckoned as ``elapsed_ms + cut_ms + delay_ms(…)``: nothing
is early by rounding.

    delay_ms(0.1) == 100        delay_ms(0.1001) == 101        delay_ms(-3) == 0

It reads no clock.
"""

import math
from datetime import UTC, datetime, timedelta

__all__ = (
    "DUE_MS_MAX",
    "delay_ms",
    "instant_ms",
    "number_text",
    "round_up_ms",
    "seconds_text",
    "span_ms",
)

# The last millisecond of the year 9999.
DUE_MS_MAX = 253_402_300_799_999
# The first one of the year 1, in UTC: what lies before it can't be shown.
_INSTANT_MS_MIN = -62_135_596_800_000

# A tenth of a second is a little more than 0.1 in floating point, and would count 101
# ms: what lies less than half a nanosecond above a millisecond is that millisecond.
_SLIP_MS = 5e-7

_SECONDS_MAX = 1e300
_SHOWN_BITS_MAX = 128

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def span_ms(seconds: object, what: str) -> int:
    """Return seconds, a number or a ``timedelta``, as milliseconds, rounded up.

    Raises:
        TypeError: If it is neither.
        ValueError: If it is not finite.
    """
    if type(seconds) is int:
        return seconds * 1000
    if isinstance(seconds, timedelta):
        # Not -(-seconds // …): the longest timedelta has no negative.
        whole, rest = divmod(seconds, _MILLISECOND)
        return whole + bool(rest)
    if type(seconds) is not float:
        raise TypeError(
            f"{what} is a {type(seconds).__name__}; seconds are a float, an int or a "
            "timedelta"
        )
    if not math.isfinite(seconds):
        raise ValueError(f"{what} is {seconds}; seconds are finite")
    # Beyond the largest float there is no number of milliseconds to refuse.
    seconds = max(-_SECONDS_MAX, min(seconds, _SECONDS_MAX))
    return math.ceil(seconds * 1000 - _SLIP_MS)


def number_text(value: object) -> str:
    """Return what was given for a number, as an error shows it.

    Python refuses to write out the longest integers, and nobody reads them.
    """
    if type(value) is int and value.bit_length() > _SHOWN_BITS_MAX:
        power = value.bit_length() - 1
        return f"2^{power} or more" if value > 0 else f"-2^{power} or less"
    return f"{value!r:.100}"


def seconds_text(seconds: object) -> str:
    """Return seconds, a number or a ``timedelta``, as an error shows them."""
    if isinstance(seconds, timedelta):
        return str(seconds)
    return f"{number_text(seconds)} seconds"


def round_up_ms(seconds: list[float]) -> list[int]:
    """Return what ``span_ms`` makes of each, all of them floats.

    Raises:
        OverflowError, ValueError: If one is not finite.
    """
    ceil = math.ceil
    return [ceil(one * 1000 - _SLIP_MS) for one in seconds]


def delay_ms(seconds: object, what: str = "delay") -> int:
    """Return a delay in milliseconds; zero and less is zero.

    Raises:
        TypeError, ValueError: As ``span_ms``, or if it ends behind the year 9999.
    """
    wait_ms = span_ms(seconds, what)
    if wait_ms > DUE_MS_MAX:
        raise ValueError(
            f"{what} is {seconds_text(seconds)}; it ends with the year 9999 at the "
            "latest"
        )
    return wait_ms if wait_ms > 0 else 0


def instant_ms(instant: object, what: str) -> int:
    """Return an aware ``datetime`` as Unix milliseconds, rounded up.

    Raises:
        TypeError: If it is no ``datetime``.
        ValueError: If it has no time zone, or lies before the year 1 in UTC.
    """
    if not isinstance(instant, datetime):
        raise TypeError(
            f"{what} is a {type(instant).__name__}; instants are aware datetimes"
        )
    if instant.utcoffset() is None:
        raise ValueError(
            f"{what} is {instant.isoformat()}, which names no time zone; give "
            "tzinfo=UTC or another zone"
        )
    instant_ms = -(-(instant - _EPOCH) // _MILLISECOND)
    if instant_ms < _INSTANT_MS_MIN:
        raise ValueError(f"{what} is {instant.isoformat()}, before the year 1 in UTC")
    return instant_ms
