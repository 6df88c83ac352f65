"""msgpack, read with bounds: what a length claims is believed when the bytes are there.

msgpack makes room for a list as soon as it has read how long it is to be, and does so
for each list within it: a few kilobytes of nested lengths, each within the limits, take
gigabytes.  So longer input is first skipped over, which makes nothing, and read when it
was found whole.  After that no item takes less than a byte of input, and memory stays a
multiple of its length::

    unpack_whole(b"\\x93\\x01\\x02\\x03")           # [1, 2, 3]
    unpack_whole(b"\\xdd\\xff\\xff\\xff\\xff")      # FormatError

Nesting ends at msgpack's own limit, 1,024.  What the values mean is not known here.
"""

import struct
from collections.abc import Iterator

import msgpack

from wheeldb.errors import FormatError

__all__ = ("MISSHAPEN", "iterate_whole", "misshapen", "unpack_whole")

# What comes of using a value that is of another shape than was expected.
MISSHAPEN = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)
# A key of a map that is a list is a TypeError.
_UNREADABLE = (ValueError, TypeError, msgpack.UnpackException)
# Up to here the worst nesting takes a few megabytes.
_SMALL_BYTES = 2_048


def unpack_whole(packed: bytes, *, text_keys: bool = False) -> object:
    """Return the one value that bytes hold.

    Args:
        packed: The bytes.
        text_keys: Whether keys of maps have to be text, or bytes.

    Raises:
        FormatError: If they don't hold one value and nothing else.
    """
    try:
        if len(packed) > _SMALL_BYTES:
            _require_whole(packed)
        value: object = msgpack.unpackb(packed, raw=False, strict_map_key=text_keys)
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return value


def iterate_whole(packed: bytes) -> Iterator[object]:
    """Yield the values that stand one behind the other.

    Raises:
        FormatError: If there is anything else; what came before was yielded.
    """
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, max_buffer_size=max(len(packed), 1)
    )
    unpacker.feed(packed)
    end = 0
    try:
        if len(packed) > _SMALL_BYTES:
            _require_whole(packed)
        for item in unpacker:
            # Behind an item that is cut short, `tell` would count its bytes as well.
            end = unpacker.tell()
            yield item
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    if end != len(packed):
        raise FormatError("the bytes end within a value although their checksum holds")


def misshapen(what: str, error: Exception) -> FormatError:
    """Return the refusal of something whose checksum holds and whose shape is wrong."""
    return FormatError(
        f"{what} is not what this release writes ({error!r}), although its checksum "
        "holds; open the store with the release that wrote it"
    )


def _require_whole(packed: bytes) -> None:
    """Raise unless there are bytes for everything that the lengths claim."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
    unpacker.feed(packed)
    while unpacker.tell() < len(packed):
        unpacker.skip()


def _unreadable(error: Exception) -> FormatError:
    return FormatError(
        f"bytes do not decode although their checksum holds: {error}; the store may "
        "come from a newer release"
    )
