"""What a payload may be, and its bytes.

A payload is ``None``, a bool, an integer of 64 bits, a float, a string, bytes, a list
of payloads or a dict of them with string keys; nested at most 64 deep.  It comes back
equal and of the same types.  Everything else is refused when the task is scheduled,
with the place of the offending value::

    pack_payload({"valve": 7, "when": datetime.now()})
    TypeError: payload['when'] is a datetime; allowed are None, bool, int of 64 bits …

Subclasses count as something else, since they would come back as their base, and so
do tuples, which would come back as lists.  The bytes are msgpack without extension
types.  This module knows nothing of tasks.
"""

from itertools import chain

import msgpack

from wheeldb.errors import PayloadTooLarge
from wheeldb.unpacking import unpack_whole

__all__ = ("DEPTH_MAX", "pack_flat", "pack_payload", "unpack_payload")

DEPTH_MAX = 64

_ALLOWED = (
    "allowed are None, bool, int of 64 bits, float, str, bytes, list, and dict with "
    "str keys"
)
_SCALARS = frozenset({type(None), bool, float, bytes})
# What a flat dict may hold: msgpack itself refuses an integer of more than 64 bits and
# text that is not Unicode.
_FLAT = _SCALARS | {int, str}
_TEXT = frozenset({str})
_DICT = frozenset({dict})
# So many are judged by one C call, which lets no other thread run.
_STRETCH_COUNT = 500
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def pack_payload(payload: object, bytes_max: int) -> bytes:
    """Return the payload's bytes.

    Raises:
        TypeError: If it holds a value of a type that would not come back the same.
        ValueError: If it is nested too deep, or holds an integer of more than 64
            bits or text that is not Unicode.
        PayloadTooLarge: If it is longer than ``bytes_max``.
    """
    if not _is_flat(payload):
        _judge(payload, "payload", 0)
    try:
        packed: bytes = msgpack.Packer().pack(payload)
    except (OverflowError, ValueError):
        _judge(payload, "payload", 0)  # says where
        raise
    if len(packed) > bytes_max:
        raise PayloadTooLarge(
            f"the payload takes {len(packed)} bytes, {bytes_max} are allowed; keep "
            "large data elsewhere and schedule its name, or open with a larger "
            "payload_bytes_max"
        )
    return packed


def pack_flat(payloads: list[object], bytes_max: int) -> list[bytes] | None:
    """Return the bytes of payloads that are all flat dicts, or ``None``.

    ``None`` also if something is wrong with one of them: ``pack_payload`` says what.
    """
    # One packer for all of them takes half the time of a new one each.
    pack = msgpack.Packer(use_bin_type=True).pack
    packed: list[bytes] = []
    try:
        for start in range(0, len(payloads), _STRETCH_COUNT):
            stretch = payloads[start : start + _STRETCH_COUNT]
            if not _are_flat(stretch):
                return None
            packed += map(pack, stretch)
    except (OverflowError, ValueError):
        return None
    return packed if max(map(len, packed), default=0) <= bytes_max else None


def unpack_payload(packed: bytes) -> object:
    """Return the payload that ``packed`` holds.

    Raises:
        FormatError: If it holds none.
    """
    return unpack_whole(packed, text_keys=True)


def _is_flat(payload: object) -> bool:
    """Return whether it is a dict of scalars; msgpack itself refuses wrong ones."""
    return (
        type(payload) is dict
        and _TEXT.issuperset(map(type, payload))
        and _FLAT.issuperset(map(type, payload.values()))
    )


def _are_flat(payloads: list[object]) -> bool:
    """Return whether all are: judged together, in a third of the time."""
    if not _DICT.issuperset(map(type, payloads)):
        return False
    dicts: list[dict[object, object]] = payloads  # type: ignore[assignment]
    return _TEXT.issuperset(map(type, chain.from_iterable(dicts))) and _FLAT.issuperset(
        map(type, chain.from_iterable(map(dict.values, dicts)))
    )


def _judge(value: object, place: str, depth: int) -> None:
    """Raise for the first value in it that would not come back as it went in."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if type(value) is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise ValueError(f"{place} is {value!r}, an integer of more than 64 bits")
        return
    if type(value) is str:
        _judge_text(value, place)
        return
    if depth == DEPTH_MAX:
        raise ValueError(
            f"{place} is nested deeper than {DEPTH_MAX} levels, or holds itself"
        )
    if type(value) is list:
        items: list[object] = value
        for index, item in enumerate(items):
            if type(item) not in _SCALARS:
                _judge(item, f"{place}[{index}]", depth + 1)
        return
    if type(value) is dict:
        entries: dict[object, object] = value
        for key, item in entries.items():
            if type(key) is not str:
                raise TypeError(
                    f"{place} has the key {key!r}, a {type(key).__name__}; "
                    "keys must be str"
                )
            if not key.isascii():
                _judge_text(key, f"a key of {place}")
            if type(item) not in _SCALARS:
                _judge(item, f"{place}[{key!r}]", depth + 1)
        return
    raise TypeError(f"{place} is a {kind.__name__}; {_ALLOWED}")


def _judge_text(text: str, place: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place} is not Unicode text: {error.reason}") from error
