"""The demo's data: one whole day, moved by one number of days."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.cli.departures import load_departures

BUILD = datetime(2026, 11, 1, tzinfo=UTC)


def test_day_is_whole() -> None:
    days, departures = load_departures(BUILD)

    assert len(departures) == 842
    assert len({departure.flight for departure in departures}) == 842
    assert {departure.origin for departure in departures} == {"EWR", "JFK", "LGA"}
    assert days == 722 * 7
    first = departures[0]
    assert (first.flight, first.destination) == ("UA1545", "IAH")
    assert first.departs_at.isoformat() == "2026-11-03T05:15:00-05:00"
    assert first.boards_at == datetime(2026, 11, 3, 9, 35, tzinfo=UTC)


@pytest.mark.parametrize("days_later", range(9))
def test_day_lies_behind_the_instant(days_later: int) -> None:
    after = BUILD + timedelta(days=days_later, hours=23)

    days, departures = load_departures(after)

    assert days % 7 == 0
    assert after < departures[0].boards_at < after + timedelta(days=9)


@given(st.integers(0, 365 * 80))
def test_departures_are_in_order_of_time(days_later: int) -> None:
    after = BUILD + timedelta(days=days_later)

    _, departures = load_departures(after)

    instants = [departure.departs_at for departure in departures]
    assert instants == sorted(instants)
    assert instants[0] > after
