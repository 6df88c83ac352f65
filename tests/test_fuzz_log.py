"""Readers of the log meet bytes that nobody ever wrote.

Goal: whatever the bytes, with damaged checksums or with right ones, a reader of frames,
segments and snapshots returns or raises a typed error, and its promises about numbers
hold. Method: sound files are changed and sealed anew (`tools.fuzz.seals`), so that the
changes get past the checksums; Hypothesis draws and shrinks them.
"""

import pytest
from fuzz_helpers import edits, inputs
from hypothesis import given
from hypothesis import strategies as st

import wheeldb
from tools.bitrot.stores import STORE, build
from tools.fuzz.seals import pieces_of, seal, sealed_segment, site
from tools.fuzz.targets import TARGETS
from wheeldb.errors import FormatError
from wheeldb.log.segment import list_segments
from wheeldb.log.snapshot import list_snapshots

BY_EDITS = ["log", "wreck", "snapshot"]
BY_BYTES = ["frame", "segment header", "raw log"]


@pytest.mark.parametrize("name", [*BY_EDITS, *BY_BYTES])
def test_sound_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].check(seed)


def test_sealing_what_is_sound_changes_nothing() -> None:
    found = site()
    for name in list_segments(found.disk, f"{STORE}/log"):
        data = found.files[f"{STORE}/log/{name.file_name}"]
        sealed = sealed_segment(data, [])
        assert sealed == data[: len(sealed)]
        assert not data[len(sealed) :].strip(b"\0")
    for snapshot in list_snapshots(found.disk, f"{STORE}/snapshots"):
        data = found.files[f"{STORE}/snapshots/{snapshot.file_name}"]
        assert seal(list(pieces_of(data))) == data


def test_the_store_is_the_same_each_time() -> None:
    assert build(is_closed=False).files == site().files


@pytest.mark.parametrize("name", BY_EDITS)
@given(data=st.data())
def test_files_with_right_checksums(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(edits()))


@pytest.mark.parametrize("name", BY_BYTES)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(inputs(TARGETS[name])))


@pytest.mark.slow
@given(data=edits())
def test_whole_openings(data: bytes) -> None:
    TARGETS["store"].check(data)


def test_a_frame_that_counts_otherwise_than_its_events() -> None:
    found = site()
    name = list_segments(found.disk, f"{STORE}/log")[-1]
    path = f"{STORE}/log/{name.file_name}"
    pieces = list(pieces_of(found.files[path]))
    header = bytearray(pieces[-2])
    header[24] += 1
    pieces[-2] = bytes(header)
    disk = found.disk.clone()
    disk.load({path: seal(pieces)})
    with pytest.raises(FormatError, match="by its header"):
        wheeldb.open(STORE, disk=disk, clock=found.clock, driver=False)
