"""Frames as bytes.

Goal: what is packed is read back exactly, and no other bytes are taken for a frame.
Method: round trips over drawn values, every bit of a frame flipped, and a search for
frames among bytes that look like them.
"""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.log.frame import (
    HEADER_BYTES,
    LSN_BOUND_STEP,
    LSN_MAX,
    OPENED,
    PAYLOAD_BYTES_MAX,
    Flaw,
    Frame,
    FrameHeader,
    FrameType,
    find_next_frame,
    frame_bytes,
    header_checksum,
    lsn_bound,
    pack_frame,
    parse_header,
    payload_checksum,
)

SALT = b"\x01salt\x02\x03\x04"
NUMBERS = st.integers(1, LSN_MAX - 2**33)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def pack(
    payload: bytes = b"payload", *, salt: bytes = SALT, first_lsn: int = 7
) -> bytes:
    return pack_frame(
        salt,
        FrameType.SYNCED,
        payload,
        first_lsn=first_lsn,
        count=2,
        previous_crc=99,
        hlc=5,
        watermark=first_lsn - 1,
        bound=first_lsn + 100,
    )


def reseal(data: bytes) -> bytes:
    """Return a frame whose header was changed, with a good header checksum."""
    crc = zlib.crc32(data[: HEADER_BYTES - 4])
    return data[: HEADER_BYTES - 4] + struct.pack("<I", crc) + data[HEADER_BYTES:]


@given(
    salt=st.binary(min_size=8, max_size=8).filter(lambda salt: any(salt)),
    kind=st.sampled_from(FrameType),
    payload=st.binary(max_size=300),
    first_lsn=NUMBERS,
    count=U32,
    previous_crc=U32,
    hlc=U64,
    bound=st.integers(0, LSN_MAX),
    flags=st.sampled_from([0, OPENED]),
    front=st.binary(max_size=40),
)
def test_round_trip(
    salt: bytes,
    kind: FrameType,
    payload: bytes,
    first_lsn: int,
    count: int,
    previous_crc: int,
    hlc: int,
    bound: int,
    flags: int,
    front: bytes,
) -> None:
    data = pack_frame(
        salt,
        kind,
        payload,
        first_lsn=first_lsn,
        count=count,
        previous_crc=previous_crc,
        hlc=hlc,
        watermark=first_lsn - 1,
        bound=bound,
        flags=flags,
    )
    header = parse_header(front + data, len(front), salt)

    assert isinstance(header, FrameHeader)
    assert header == FrameHeader(
        type=kind,
        flags=flags,
        length=len(payload),
        first_lsn=first_lsn,
        lsn_count=count,
        previous_crc=previous_crc,
        hlc=hlc,
        watermark=first_lsn - 1,
        bound=bound,
        payload_crc=payload_checksum(payload, salt, first_lsn),
        crc=header_checksum(data),
    )
    assert len(data) == frame_bytes(len(payload))
    assert len(data) % 8 == 0
    assert header.last_lsn == first_lsn + count - 1
    assert header.is_opened == bool(flags)
    assert Frame(header, payload, 1, 4096).end == 4096 + len(data)


def test_every_flipped_bit_is_noticed() -> None:
    data = pack(b"some payload of odd length!")
    length = len(b"some payload of odd length!")
    for bit in range((HEADER_BYTES + length) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        header = parse_header(bytes(flipped), 0, SALT)
        if bit < HEADER_BYTES * 8:
            assert isinstance(header, Flaw), f"bit {bit}"
        else:
            assert isinstance(header, FrameHeader)
            payload = bytes(flipped[HEADER_BYTES : HEADER_BYTES + length])
            assert payload_checksum(payload, SALT, 7) != header.payload_crc


def test_a_payload_is_good_in_one_place_only() -> None:
    payload = b"the same bytes"
    checksums = {
        payload_checksum(payload, SALT, 7),
        payload_checksum(payload, SALT, 8),
        payload_checksum(payload, b"another!", 7),
    }
    assert len(checksums) == 3


def test_zeros_are_no_frame() -> None:
    assert parse_header(bytes(200), 8, SALT) is Flaw.ZEROS
    assert parse_header(b"", 0, SALT) is Flaw.ZEROS
    # Not even for a salt of zeros, which no segment has.
    assert isinstance(parse_header(bytes(200), 0, bytes(8)), Flaw)


def test_flaws_have_names() -> None:
    data = pack()
    assert parse_header(data[:63], 0, SALT) is Flaw.SHORT
    assert parse_header(data[:20], 0, b"another!") is Flaw.SHORT
    assert parse_header(data, 0, b"another!") is Flaw.SALT
    assert parse_header(data[:63] + b"\xff", 0, SALT) is Flaw.HEADER


def test_a_newer_format_is_not_called_damage() -> None:
    data = bytearray(pack())
    data[9] = 2
    assert parse_header(reseal(bytes(data)), 0, SALT) is Flaw.FORMAT


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        (8, "<B", 0),  # no type
        (8, "<B", 5),  # an unknown one
        (12, "<I", PAYLOAD_BYTES_MAX + 1),
        (16, "<Q", 0),  # LSN 0
        (16, "<Q", LSN_MAX),
        (40, "<Q", 7),  # a watermark that covers the frame itself
    ],
)
def test_impossible_numbers_are_refused(offset: int, form: str, value: int) -> None:
    data = bytearray(pack())
    struct.pack_into(form, data, offset, value)
    assert parse_header(reseal(bytes(data)), 0, SALT) is Flaw.TYPE


def test_a_payload_over_the_limit_is_refused() -> None:
    assert len(pack(bytes(PAYLOAD_BYTES_MAX))) == HEADER_BYTES + PAYLOAD_BYTES_MAX
    with pytest.raises(ValueError, match="33554432 bytes, not 33554433"):
        pack(bytes(PAYLOAD_BYTES_MAX + 1))


def test_the_bound_stays_below_the_last_number() -> None:
    assert lsn_bound(10) == 10 + LSN_BOUND_STEP
    assert lsn_bound(LSN_MAX - 1) == LSN_MAX


def test_search_finds_the_next_whole_header() -> None:
    frame = pack()
    # The salt alone, a frame on an odd place, and another segment's frame are passed.
    noise = SALT.ljust(80, b"x") + b"?" + frame + bytes(-(len(frame) + 1) % 8)
    noise += pack(salt=b"another!")
    buffer = noise + frame
    found = find_next_frame(buffer, SALT, 0)

    assert found is not None
    position, header = found
    assert position == len(noise)
    assert header.first_lsn == 7
    assert find_next_frame(buffer, SALT, position + 1) is None


def test_search_counts_places_in_the_file() -> None:
    frame = pack()
    assert find_next_frame(b"123" + frame, SALT, 0) is None
    found = find_next_frame(b"123" + frame, SALT, 0, base=4096 + 5)
    assert found is not None
    assert found[0] == 3
