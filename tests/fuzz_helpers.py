"""What the fuzz tests share: inputs that are nearly right.

Bytes drawn at random hardly ever get past the first length. So an input is a sound one
with a few bytes changed, or msgpack of the shape that a reader expects, with things in
it that it does not.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgpack
from hypothesis import strategies as st

from tools.fuzz.targets import TARGETS, Target
from wheeldb.events import F, Kind

__all__ = ("edits", "events", "fields", "inputs", "packed", "seeds_of")

FIELDS = sorted(number for name, number in vars(F).items() if type(number) is int)
KINDS = [int(kind) for kind in Kind]


# Where numbers stand in the headers of frames and segments, and what may be put there.
_PLACES = [8, 9, 10, 12, 16, 24, 28, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104]
_EDGES = st.sampled_from([0, 1, 0xFF, 2**32 - 1, 2**53, 2**64 - 1]).map(
    lambda number: number.to_bytes(8, "little")
)


@lru_cache(maxsize=32)
def seeds_of(name: str) -> Sequence[bytes]:
    """Return the sound inputs of a target, made once."""
    return tuple(TARGETS[name].seeds())


@st.composite
def _mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                data[place:place] = draw(st.binary(min_size=1, max_size=9))
            case 2:
                place -= place % 8
                data[place : place + 8] = draw(_EDGES)
            case 3:
                del data[place : place + draw(st.integers(1, 9))]
            case _:
                other = draw(st.sampled_from(seeds))
                start = draw(st.integers(0, len(other)))
                data[place:] = other[start:]
    return bytes(data)


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Return sound inputs of a target with changes, and any bytes."""
    return st.one_of(_mutated(seeds_of(target.name)), st.binary(max_size=80))


# Numbers on both sides of every limit that one of ours has.
_NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, -(2**63)]),
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    _NUMBERS,
    st.floats(),
    st.sampled_from(["", "default", "valve.close", "library"]),
    st.binary(max_size=12),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(_NUMBERS, st.just("elapsed_ms")), inner, max_size=4),
    ),
    max_leaves=8,
)


def packed(value: object) -> bytes:
    """Return msgpack of a value."""
    data: bytes = msgpack.Packer().pack(value)
    return data


def fields() -> st.SearchStrategy[bytes]:
    """Return maps of field numbers to anything, and things that are no map."""
    maps = st.dictionaries(st.sampled_from(FIELDS), _VALUES, max_size=8)
    return st.one_of(maps, _VALUES).map(packed)


def events() -> st.SearchStrategy[bytes]:
    """Return payloads of frames: events of every kind with any fields."""
    kinds = st.one_of(st.sampled_from(KINDS), _NUMBERS)
    maps = st.dictionaries(st.sampled_from(FIELDS), _VALUES, max_size=6)
    event = st.tuples(kinds, st.one_of(st.integers(0, 3), _SCALARS), maps).map(list)
    items = st.lists(st.one_of(event, event, _VALUES), max_size=3)
    return items.map(lambda found: b"".join(map(packed, found)))


def edits() -> st.SearchStrategy[bytes]:
    """Return what `seals.edits_of` reads: numbers, and any bytes to put there."""
    value = st.one_of(st.binary(max_size=31), _EDGES)
    offset = st.one_of(st.sampled_from(_PLACES), st.integers(0, 2**16 - 1))
    edit = st.tuples(st.integers(0, 2**16 - 1), offset, value)
    return st.lists(edit, min_size=1, max_size=4).map(
        lambda found: b"".join(
            part.to_bytes(2, "little")
            + offset.to_bytes(2, "little")
            + bytes((len(data),))
            + data
            for part, offset, data in found
        )
    )
