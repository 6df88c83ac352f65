"""Bytes that claim to be more than they are.

Goal: a length is believed only as far as there are bytes for it. What a reader takes is
bounded by a multiple of what it was given, however large the lengths in it and however
deep the nesting. Method: the known bombs for msgpack and for lengths of frames, read
under `tracemalloc`.
"""

import tracemalloc
from collections.abc import Callable

import pytest

from tools.fuzz.targets import TARGETS
from wheeldb.index.blocks import Block

SIZE = 64 * 2**10
# A list of small numbers takes 8 bytes for each byte of input, a map of them about 100.
MULTIPLE = 160

ARRAYS = b"\xdd" + (SIZE - 8).to_bytes(4)
EVENT = b"\x93\x02\x01\x81\x03"
MAPS = b"\xdf" + (SIZE // 2 - 8).to_bytes(4)
BOMBS = {
    "array of 2**32": b"\xdd\xff\xff\xff\xff", "map of 2**32": b"\xdf\xff\xff\xff\xff",
    "text of 2**32": b"\xdb\xff\xff\xff\xff", "bytes of 2**32": b"\xc6\xff\xff\xff\xff",
    "extension of 2**32": b"\xc9\xff\xff\xff\xff\x01", "deep arrays": b"\x91" * SIZE,
    "deep maps": b"\x81" * SIZE, "arrays of arrays, each of all that is left": (ARRAYS *
    1_000).ljust(SIZE, b"\xc0"), "maps of maps, each of all that is left": (MAPS +
    b"\xc0") * 1_000, "an event of such arrays": (b"\x93\x02\x01\x81\x03" + ARRAYS *
    900).ljust(SIZE, b"\0"), "many empty arrays": b"\xdc\xff\xff" + b"\x90" * 65_535,
    "many small maps": b"\xdc\x80\x00" + b"\x81\x01" * 32_768, "a map of half its size":
    b"\xde\x7f\xff" + b"".join(
        b"\xcd" + key.to_bytes(2) + b"\x01" for key in range(32_767)
    ),
}  # fmt: skip


def peak_of(read: Callable[[bytes], object], data: bytes) -> int:
    """Return how much memory a reader takes at most, beside the input."""
    read(data[:16])  # What is made once is not the input's.
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", ["events", "fields", "row", "tables", "payload"])
def test_msgpack_bombs(name: str, bomb: str) -> None:
    data = BOMBS[bomb]
    assert peak_of(TARGETS[name].check, data) < MULTIPLE * max(len(data), 1_024)


@pytest.mark.parametrize("bomb", BOMBS)
def test_msgpack_bombs_in_a_block(bomb: str) -> None:
    data = BOMBS[bomb]
    peak_bytes = peak_of(lambda body: Block.from_body(9, body), data)
    assert peak_bytes < MULTIPLE * max(len(data), 1_024)


@pytest.mark.parametrize("length", [32 * 2**20, 32 * 2**20 + 1, 2**32 - 1])
def test_a_frame_that_claims_to_be_long(length: int) -> None:
    # Its checksum is right, its payload is not there.
    frame = bytearray(TARGETS["frame"].seeds()[1])
    frame[12:16] = length.to_bytes(4, "little")
    assert peak_of(TARGETS["raw log"].check, bytes(frame)) < 4 * 2**20
