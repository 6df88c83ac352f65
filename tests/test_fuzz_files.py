"""The small files, the index's rows and meta pages, and what people type.

Goal: none of them makes a reader raise anything but its typed errors; a line of JSON
whose checksum is right and which holds something else vouches for nothing; a command
line ends with one of its exit statuses, whatever the words. Method: as in
`test_fuzz_fields`.
"""

import json

import pytest
from fuzz_helpers import inputs
from hypothesis import given
from hypothesis import strategies as st

from tools.fuzz.targets import TARGETS
from wheeldb.cli import VERBS, main
from wheeldb.cli.opening import ExitStatus
from wheeldb.index.keys import RUN, TABLES

NAMES = ["index", "meta pages", "FORMAT", "VOUCH", "words"]
# What a test can't let run: they work for long, or write where they please.
NOT_RUN = {"demo", "bench"}

_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=5,
)
VOUCH = {
    "boot_id": "5f0c",
    "boottime_ms": 81_234,
    "checkpoint_lsn": 900,
    "closed_lsn": 900,
    "place": [2_049, 1_310],
    "proven_lsn": 900,
    "segment": 7,
    "starts": 1,
    "time_namespace": "4026",
}


@pytest.mark.parametrize("name", NAMES)
def test_sound_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].read(seed)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_nearly_right_bytes(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(inputs(TARGETS[name])))


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_run_of_numbers_beyond_all(number: int) -> None:
    # Found by atheris: an entry adds to the number in the key.
    key = (16).to_bytes(4) + number.to_bytes(8) + number.to_bytes(8)
    row = bytes((TABLES.index(RUN), len(key), 128 + 8)) + key + b"\xff" * 8
    TARGETS["index"].check(row)


@given(changes=st.dictionaries(st.sampled_from(sorted(VOUCH)), _JSON, max_size=3))
def test_vouch_of_anything(changes: dict[str, object]) -> None:
    TARGETS["VOUCH"].check(json.dumps(VOUCH | changes).encode())


@pytest.mark.parametrize("text", ["[" * 4_000, '{"a":' * 700, "1" * 4_096])
def test_vouch_that_is_deep_or_long(text: str) -> None:
    TARGETS["VOUCH"].check(text.encode())


WORDS = st.one_of(
    st.sampled_from(["--json", "--delay", "15m", "--id", "--at", "--until", "--limit"]),
    st.sampled_from(
        ["--salvage", "--to", "--queue", "--from", "1e400", "-1", "9" * 30]
    ),
    st.just("\udc80"),
    st.text(st.characters(exclude_characters="\0/"), max_size=6),
)


@given(
    verb=st.sampled_from(sorted(VERBS.keys() - NOT_RUN)),
    words=st.lists(WORDS, max_size=5),
)
def test_any_words_end_with_an_exit_status(
    tmp_path_factory: pytest.TempPathFactory, verb: str, words: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("words") / "missing"
    try:
        status = main([verb, str(directory), *words])
    except SystemExit as exit_:  # --help and --version
        status = int(exit_.code or 0)
    assert status in set(ExitStatus)
    assert not directory.exists()
