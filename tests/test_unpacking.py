"""msgpack is believed only as far as there are bytes for what it claims.

Goal: one value comes back, or a typed error says that there is none; long input is
judged as short input is. Method: every way in which bytes can be no value, in front of
and behind the length from which on they are skipped over first.
"""

import msgpack
import pytest

from wheeldb.errors import FormatError
from wheeldb.unpacking import MISSHAPEN, iterate_whole, misshapen, unpack_whole

LONG = [1] * 5_000
WRONG = {
    "nothing": b"",
    "cut short": b"\x92\x01",
    "one too many": b"\x01\x01",
    "a byte that is never used": b"\xc1",
    "text that is none": b"\xa1\xff",
    "a list as a key": b"\x81\x90\x01",
    "too deep": b"\x91" * 2_000 + b"\xc0",
    "a length beyond the bytes": b"\xdd\xff\xff\xff\xff",
}


def packed(*values: object) -> bytes:
    return b"".join(map(msgpack.Packer().pack, values))


@pytest.mark.parametrize("value", [None, 7, "x", [1, {2: b"3"}], LONG])
def test_a_value_comes_back(value: object) -> None:
    assert unpack_whole(packed(value)) == value
    assert list(iterate_whole(packed(value, value))) == [value, value]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_value(name: str) -> None:
    with pytest.raises(FormatError, match="although their checksum holds"):
        unpack_whole(WRONG[name])


@pytest.mark.parametrize("name", WRONG.keys() - {"nothing", "one too many"})
@pytest.mark.parametrize("front", [b"", packed(LONG)], ids=["short", "long"])
def test_values_and_then_none(name: str, front: bytes) -> None:
    with pytest.raises(FormatError):
        list(iterate_whole(front + WRONG[name]))


def test_keys_that_are_no_text() -> None:
    assert unpack_whole(packed({1: 2})) == {1: 2}
    with pytest.raises(FormatError):
        unpack_whole(packed({1: 2}), text_keys=True)


def test_the_shape_that_was_not_expected_is_named() -> None:
    for kind in MISSHAPEN:
        refusal = misshapen("the event opened at LSN 7", kind("why"))
        assert "the event opened at LSN 7" in str(refusal)
        assert "why" in str(refusal)
