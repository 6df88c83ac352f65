"""Keys, rows and digests of the index.

Goal: the bytes sort as the values do, no change of one bit goes unseen, and a digest
doesn't depend on order. Method: properties over random values, and a few bytes written
out by hand, so that the format can't change by accident.
"""

from hypothesis import given
from hypothesis import strategies as st

from wheeldb.index.keys import (
    COARSE_MS,
    due_digest,
    due_field,
    due_key,
    due_key_parts,
    id_digest,
    id_hash,
    id_key,
    id_key_parts,
    number_digest,
    number_key,
    number_key_part,
    pack_due,
    pack_row,
    row_crc,
    row_digest,
    unpack_due,
    unpack_row,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
DUE_PARTS = st.tuples(U32, U64, U64)


def test_bytes_of_the_format() -> None:
    key = number_key(9)

    assert key.hex() == "0000000000000009"
    assert due_key(16, 5_000, 9).hex() == "000000100000000000001388" + key.hex()
    assert id_key(b"abcdefgh", 9) == b"abcdefgh" + key
    assert pack_row(key, 12, b"body").hex() == (
        "000000000000000cb75ca8ca" + b"body".hex()
    )
    assert pack_due(due_key(16, 5_000, 9), 5_001).hex() == "000000000000138919f699c6"
    assert id_hash("valve-7").hex() == "d2ca7f1b70584a14"


@given(DUE_PARTS, DUE_PARTS)
def test_due_keys_sort_as_their_parts(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (due_key(*one) < due_key(*other)) == (one < other)
    assert due_key_parts(due_key(*one)) == one


@given(U64, st.binary(min_size=8, max_size=8))
def test_keys_come_apart_again(number: int, hash8: bytes) -> None:
    assert number_key_part(number_key(number)) == number
    assert id_key_parts(id_key(hash8, number)) == (hash8, number)


@given(U64, U64, st.binary(max_size=40), st.data())
def test_row_shows_every_flipped_bit(
    number: int, lsn: int, body: bytes, data: st.DataObject
) -> None:
    key = number_key(number)
    value = pack_row(key, lsn, body)
    bit = data.draw(st.integers(0, (len(key) + len(value)) * 8 - 1))
    damaged = _flip(key + value, bit)

    assert unpack_row(key, value) == (lsn, row_crc(key, lsn, body), body)
    assert unpack_row(damaged[: len(key)], damaged[len(key) :]) is None


@given(DUE_PARTS, U64, st.data())
def test_due_row_shows_every_flipped_bit(
    parts: tuple[int, int, int], exact_due: int, data: st.DataObject
) -> None:
    key = due_key(*parts)
    value = pack_due(key, exact_due)
    bit = data.draw(st.integers(0, (len(key) + len(value)) * 8 - 1))
    damaged = _flip(key + value, bit)

    assert unpack_due(key, value) == exact_due
    assert unpack_due(damaged[: len(key)], damaged[len(key) :]) is None


def test_row_cut_short_is_damaged() -> None:
    key = number_key(9)
    value = pack_row(key, 12, b"body")

    assert [unpack_row(key, value[:size]) for size in range(len(value))] == [
        None
    ] * len(value)
    assert unpack_due(due_key(1, 2, 3), pack_due(due_key(1, 2, 3), 4)[:-1]) is None


@given(st.integers(0, 2**48), st.integers(0, 2**48))
def test_due_field_is_exact_near_and_coarse_far(exact_due: int, now: int) -> None:
    field = due_field(exact_due, now)

    assert exact_due - COARSE_MS < field <= exact_due
    if exact_due - now < COARSE_MS:
        assert field == exact_due
    if exact_due - now >= 2 * COARSE_MS:
        assert field % COARSE_MS == 0


def test_due_field_at_its_border() -> None:
    assert due_field(5_999, 4_200, coarse_ms=1_000) == 5_999
    assert due_field(6_000, 4_200, coarse_ms=1_000) == 6_000
    assert due_field(6_789, 4_200, coarse_ms=1_000) == 6_000
    assert due_field(1_234, 4_200, coarse_ms=1_000) == 1_234


@given(DUE_PARTS, U64, st.data())
def test_digest_shows_every_flipped_bit(
    parts: tuple[int, int, int], exact_due: int, data: st.DataObject
) -> None:
    lane, field, number = parts
    bit = 1 << data.draw(st.integers(0, 31))
    plain = due_digest(lane, field, number, exact_due)

    assert 0 <= plain < 2**64
    assert due_digest(lane ^ bit, field, number, exact_due) != plain
    assert due_digest(lane, field ^ bit, number, exact_due) != plain
    assert due_digest(lane, field, number ^ bit, exact_due) != plain
    assert due_digest(lane, field, number, exact_due ^ bit) != plain


def test_digests_spread_over_all_bits() -> None:
    # Neighbouring rows are the common case, and the sum is as good as its parts.
    digests = [number_digest(number) for number in range(4_096)]

    for bit in range(64):
        ones = sum(digest >> bit & 1 for digest in digests)
        assert 1_800 < ones < 2_300, f"bit {bit} is set {ones} times of 4096"
    assert len({digest & 0xFFFFFFFF for digest in digests}) == 4_096


@given(st.integers(0, 2**53 - 1), st.data())
def test_row_digest_notices_any_bit_of_a_crc(number: int, data: st.DataObject) -> None:
    crc = data.draw(st.integers(0, 2**32 - 1))
    bit = 1 << data.draw(st.integers(0, 31))

    assert 0 <= row_digest(number, crc) < 2**64
    assert row_digest(number, crc) != row_digest(number, crc ^ bit)


def test_row_digests_tell_which_row_has_which_crc() -> None:
    first, second = 0x1234_5678, 0x9ABC_DEF0

    straight = row_digest(41, first) + row_digest(42, second)
    crossed = row_digest(41, second) + row_digest(42, first)
    assert straight != crossed


def test_id_digest_tells_live_from_finished() -> None:
    hash8 = id_hash("valve-7")
    digests = {id_digest(hash8, 9, lsn) for lsn in (None, 0, 1)}

    assert len(digests) == 3


def _flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
