"""Durations, instants and JSON as people type them."""

import argparse
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.cli.arguments import (
    UNITS_MS,
    Parser,
    UsageError,
    duration,
    header,
    instant,
    json_value,
    log_position,
    priority,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("90s", 90),
        ("2h30m", 9_000),
        ("500ms", 0.5),
        ("1.5h", 5_400),
        ("1d", 86_400),
        ("1w2d3h4m5s6ms", 604_800 + 2 * 86_400 + 3 * 3_600 + 245.006),
        ("0s", 0),
        ("1m1ms", 60.001),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", "15", "m", "15 m", "-5m", "5x", "30m2h", "5m5m", "1h 2m", "1e3s", "5mm",
        "1.s", ".5s", "15m ", "15M",
    ],
)  # fmt: skip
def test_not_a_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a duration"):
        duration(text)


def test_bare_number_is_refused_with_a_hint() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="did you mean 900s"):
        duration("900")


def test_duration_beyond_time_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="longer than"):
        duration("9" * 30 + "w")


@given(st.lists(st.sampled_from(list(UNITS_MS)), min_size=1, unique=True), st.data())
def test_duration_adds_its_parts(units: list[str], data: st.DataObject) -> None:
    units.sort(key=lambda unit: -UNITS_MS[unit])
    numbers = [data.draw(st.integers(0, 10_000)) for _ in units]
    text = "".join(
        f"{number}{unit}" for number, unit in zip(numbers, units, strict=True)
    )

    expected_ms = sum(n * UNITS_MS[u] for n, u in zip(numbers, units, strict=True))

    assert duration(text) == timedelta(milliseconds=expected_ms)


def test_instant_needs_its_offset() -> None:
    two = datetime(2026, 12, 1, 2, tzinfo=UTC)

    assert instant("2026-12-01T02:00Z") == two
    assert instant("2026-12-01T03:00:00+01:00") == two
    with pytest.raises(argparse.ArgumentTypeError, match="no offset"):
        instant("2026-12-01T02:00")
    with pytest.raises(argparse.ArgumentTypeError, match="not an instant"):
        instant("tomorrow")


def test_json_value_says_where_it_breaks() -> None:
    assert json_value('{"valve": [7, null, "x"]}') == {"valve": [7, None, "x"]}
    with pytest.raises(argparse.ArgumentTypeError, match="at character 1"):
        json_value("valve")
    with pytest.raises(argparse.ArgumentTypeError, match="too deeply"):
        json_value("[" * 100_000)


def test_header_and_priority() -> None:
    assert header("trace=a=b") == ("trace", "a=b")
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        header("trace")
    assert priority("-128") == -128
    for text in ("128", "1.5", "high"):
        with pytest.raises(argparse.ArgumentTypeError, match="-128"):
            priority(text)


def test_a_log_position_is_a_whole_number() -> None:
    assert log_position("0") == 0
    assert log_position("9007199254740991") == 2**53 - 1
    for text in ("-1", "1.5", "", "x", "\N{SUPERSCRIPT TWO}", "9" * 5_000):
        with pytest.raises(argparse.ArgumentTypeError, match="position of the log"):
            log_position(text)


def test_parser_complains_in_one_raised_line() -> None:
    parser = Parser(prog="wheeldb add")
    parser.add_argument("--delay", type=duration)

    with pytest.raises(UsageError) as caught:
        parser.parse_args(["--delay", "5"])

    assert "wheeldb add: argument --delay: '5' is not a duration" in str(caught.value)
    assert "\n" not in str(caught.value)
