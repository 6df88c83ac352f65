"""Rows whose checksums hold and which are not what they should be.

Goal: a row that a faulty or another release wrote is taken for damage of the index,
whatever it holds; nothing else comes out of a reader. Method: sound ones with changes,
and msgpack of the right shape with wrong things in it, drawn by Hypothesis.
"""

import pytest
from fuzz_helpers import fields, inputs
from hypothesis import given
from hypothesis import strategies as st

from tools.fuzz.targets import TARGETS

OF_FIELDS = ["row", "finished"]


@pytest.mark.parametrize("name", OF_FIELDS)
def test_sound_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].check(seed)


@pytest.mark.parametrize("name", OF_FIELDS)
@given(data=st.data())
def test_nearly_right_bytes(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(inputs(TARGETS[name])))


@pytest.mark.parametrize("name", OF_FIELDS)
@given(data=fields())
def test_maps_of_anything(name: str, data: bytes) -> None:
    TARGETS[name].check(data)
