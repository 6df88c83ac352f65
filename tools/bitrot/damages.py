"""The damages of one file, numbered, so that any slice or sample of them can be named.

A file of n bytes has 8 n + n + n + n of them, in this order::

    0 … 8n-1     bit i flipped
    8n … 9n-1    byte i zeroed
    9n … 10n-1   byte i set to 0xFF
    10n … 11n-1  cut to i bytes

A byte that is zero already is not zeroed: such a damage changes nothing and is passed
over by the sweep.  This module knows no file system.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = ("KINDS_PER_BYTE", "Damage", "Kind", "count_of", "damage_at")

KINDS_PER_BYTE = 11


class Kind(StrEnum):
    """What is done to a file."""

    FLIP = "flip"
    ZERO = "zero"
    SET = "set"
    CUT = "cut"


class Damage(NamedTuple):
    """One damage: its kind, the byte it begins at, and for a flip which bit."""

    kind: Kind
    offset: int
    bit: int = 0

    def __str__(self) -> str:
        """Return it as a report names it."""
        if self.kind is Kind.FLIP:
            return f"bit {self.bit} of byte {self.offset} flipped"
        if self.kind is Kind.CUT:
            return f"cut to {self.offset} bytes"
        return f"byte {self.offset} {'zeroed' if self.kind is Kind.ZERO else 'set'}"

    def bytes_of(self, before: bytes) -> bytes:
        """Return the whole file as it is afterwards."""
        if self.kind is Kind.CUT:
            return before[: self.offset]
        byte = self.byte_of(before[self.offset])
        return before[: self.offset] + bytes((byte,)) + before[self.offset + 1 :]

    def byte_of(self, before: int) -> int:
        """Return what the byte at its offset becomes."""
        if self.kind is Kind.FLIP:
            return before ^ 1 << self.bit
        return 0 if self.kind is Kind.ZERO else 0xFF


def count_of(size: int) -> int:
    """Return how many damages a file of so many bytes has."""
    return KINDS_PER_BYTE * size


def damage_at(number: int, size: int) -> Damage:
    """Return the damage with a number."""
    assert 0 <= number < count_of(size), f"damage {number} of {count_of(size)}"
    if number < 8 * size:
        return Damage(Kind.FLIP, number // 8, number % 8)
    kind = (Kind.ZERO, Kind.SET, Kind.CUT)[(number - 8 * size) // size]
    return Damage(kind, number % size)
