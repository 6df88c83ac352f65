"""Events, rows and payloads whose checksums hold and which are not what they should be.

Goal: a frame or row that a faulty or another release wrote is refused with a typed
error, whatever it holds; nothing else comes out of a reader. Method: sound ones with
changes, and msgpack of the right shape with wrong things in it, drawn by Hypothesis.
"""

import pytest
from fuzz_helpers import events, fields, inputs
from hypothesis import given
from hypothesis import strategies as st

from tools.fuzz.targets import TARGETS

OF_FIELDS = ["fields", "row", "finished", "tables", "anchor", "payload"]
OF_EVENTS = ["events", "fold"]


@pytest.mark.parametrize("name", [*OF_FIELDS, *OF_EVENTS])
def test_sound_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].check(seed)


@pytest.mark.parametrize("name", [*OF_FIELDS, *OF_EVENTS])
@given(data=st.data())
def test_nearly_right_bytes(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(inputs(TARGETS[name])))


@pytest.mark.parametrize("name", OF_FIELDS)
@given(data=fields())
def test_maps_of_anything(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


@pytest.mark.parametrize("name", OF_EVENTS)
@given(data=events())
def test_events_of_anything(name: str, data: bytes) -> None:
    TARGETS[name].check(data)
