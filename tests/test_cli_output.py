"""Tables and JSON lines."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.cli.output import (
    TABLE_ROWS_TOGETHER,
    plain,
    print_fields,
    print_json,
    print_table,
    shown,
)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    bytes_count: int
    ratio: float


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    at: datetime | None


AT = datetime(2026, 12, 1, 2, 3, 4, 567_000, UTC)


def test_plain_knows_every_value() -> None:
    assert plain(Outer("x", Inner(1, 0.5), AT)) == {
        "name": "x",
        "inner": {"bytes_count": 1, "ratio": 0.5},
        "at": "2026-12-01T02:03:04.567000+00:00",
    }
    assert plain((Colour.RED, timedelta(minutes=1), Path("a/b"), None, True)) == [
        "red",
        60.0,
        "a/b",
        None,
        True,
    ]
    assert plain({"data": b"\x00\xff"}) == {"data": {"$bytes": "AP8="}}
    assert plain(float("nan")) == {"$float": "nan"}


payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(payloads)
def test_any_payload_is_one_line_of_strict_json(payload: object) -> None:
    line = json.dumps(plain(payload), allow_nan=False)

    assert "\n" not in line


@given(st.text())
def test_no_cell_steers_the_terminal(text: str) -> None:
    assert shown(text).isprintable()


def test_shown() -> None:
    assert shown(None) == "-"
    assert shown("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert shown(AT) == "2026-12-01 02:03:04.567Z"
    assert shown({"valve": 7}) == '{"valve": 7}'
    assert shown(True) == "yes"


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    count = print_table(("id", "state"), [("a", "due"), ("long-id", None)])

    assert count == 2
    assert capsys.readouterr().out == "ID       STATE\na        due\nlong-id  -\n"


def test_long_table_has_one_head(capsys: pytest.CaptureFixture[str]) -> None:
    rows = 2 * TABLE_ROWS_TOGETHER

    assert print_table(("n",), ((n,) for n in range(rows))) == rows
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["N", *(str(n) for n in range(rows))]


def test_empty_table_has_a_head(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_table(("id",), []) == 0
    assert capsys.readouterr().out == "ID\n"


def test_fields_are_nested(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields(Outer("x", Inner(1, 0.5), None))

    assert capsys.readouterr().out == (
        "name   x\ninner\n  bytes_count  1\n  ratio        0.500\nat     -\n"
    )


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\nb"})

    assert capsys.readouterr().out == '{"text": "a\\nb"}\n'
