"""Events: round trips, what other releases wrote, what cannot be applied."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.errors import FormatError
from wheeldb.events import (
    FIELD_NAMES,
    RESERVED_KINDS,
    EventRecord,
    F,
    Kind,
    iterate_events,
    pack_author,
    pack_event,
    pack_fields,
    unpack_fields,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(0, 200), inner, max_size=4)
    ),
    max_leaves=8,
)
fields = st.dictionaries(st.integers(1, 200), values, max_size=6)
events = st.tuples(
    st.sampled_from(sorted(Kind)), st.integers(0, 2**32 - 1), fields, st.text("ab")
)


@given(st.lists(events, max_size=6))
def test_a_payload_comes_back_as_it_was_packed(
    written: list[tuple[Kind, int, dict[int, object], str]],
) -> None:
    payload = b"".join(
        pack_author(by) + pack_event(kind, count, pack_fields(content))
        for kind, count, content, by in written
    )

    expected = [
        (by, EventRecord(kind, count, content)) for kind, count, content, by in written
    ]
    assert expected == list(iterate_events(payload))


def test_an_author_stands_for_all_events_behind_it() -> None:
    event = pack_event(Kind.ACKED, 1, pack_fields({F.NUMBER: [7]}))
    payload = pack_author("library") + event + event + pack_author("wheel") + event

    assert [by for by, _ in iterate_events(payload)] == ["library", "library", "wheel"]


def test_a_field_of_a_newer_release_is_kept() -> None:
    payload = pack_event(Kind.ACKED, 1, pack_fields({F.NUMBER: [7], 250: "new"}))

    [(_, record)] = iterate_events(payload)

    assert record.fields[250] == "new"


@pytest.mark.parametrize("kind", [0, 99, 127, *RESERVED_KINDS])
def test_an_event_of_a_newer_release_is_refused(kind: int) -> None:
    # Passing it over would lose a fact: agronholm/apscheduler#341.
    payload = pack_event(kind, 1, pack_fields({}))

    with pytest.raises(FormatError, match=f"kind {kind} "):
        list(iterate_events(payload))


@given(st.lists(events, min_size=1, max_size=3), st.data())
def test_a_payload_that_is_cut_is_refused(
    written: list[tuple[Kind, int, dict[int, object], str]], data: st.DataObject
) -> None:
    *before, last = [
        pack_event(kind, count, pack_fields(content))
        for kind, count, content, _ in written
    ]
    cut = data.draw(st.integers(1, len(last) - 1))

    with pytest.raises(FormatError):
        list(iterate_events(b"".join(before) + last[:cut]))


@pytest.mark.parametrize(
    "item", [None, 7, b"", [], [2], [2, 1], [2, 1, []], ["2", 1, {}], [2, 1, {}, 4]]
)
def test_what_is_no_event_is_refused(item: object) -> None:
    packed = msgpack.packb(item)
    assert isinstance(packed, bytes)

    with pytest.raises(FormatError):
        list(iterate_events(packed))


def test_fields_that_are_no_map_are_refused() -> None:
    with pytest.raises(FormatError, match="not a map"):
        unpack_fields(b"\x90")
    with pytest.raises(FormatError, match="do not decode"):
        unpack_fields(b"\x81")


def test_no_number_means_two_things() -> None:
    assert len(FIELD_NAMES) == len([name for name in vars(F) if name.isupper()])
    assert not set(RESERVED_KINDS) & {int(kind) for kind in Kind}
    assert all(0 < kind < 128 for kind in (*Kind, *RESERVED_KINDS))
