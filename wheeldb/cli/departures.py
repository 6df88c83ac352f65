"""The demo's data: one real day of departures, moved to a day that a clock may show.

    {"flight": "UA1545", "origin": "EWR", "destination": "IAH",
     "departs": "2013-01-01T05:15:00", "zone": "America/New_York", "tail": "N14228"}

A clock that shows 2013 is wrong for certain, and on a right one every departure would
be overdue. So the whole day moves forward by one number of days, whole weeks, to the
first Tuesday after a given instant. The departure keeps its time on the airport's
clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

__all__ = ("Departure", "load_departures")

FILE = "departures-2013-01-01.jsonl"
DAY = date(2013, 1, 1)
BOARDING_BEFORE = timedelta(minutes=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """One flight on its day.

    Attributes:
        flight: Carrier and number, unique within the day.
        origin: The airport it leaves from.
        destination: Where it goes.
        departs_at: The scheduled departure, moved.
    """

    flight: str
    origin: str
    destination: str
    departs_at: datetime

    @property
    def boards_at(self) -> datetime:
        """When boarding begins."""
        # Through UTC: local times subtract wrongly across a change of the clocks.
        return self.departs_at.astimezone(ZoneInfo("UTC")) - BOARDING_BEFORE


def load_departures(after: datetime) -> tuple[int, Sequence[Departure]]:
    """Return by how many days the day was moved, and its departures in order.

    Args:
        after: The day is the first Tuesday behind this instant's.
    """
    days = 7 * max((after.date() - DAY).days // 7 + 1, 0)
    text = files("wheeldb.cli").joinpath("data", FILE).read_text("utf-8")
    departures = []
    for line in text.splitlines():
        row = json.loads(line)
        departs = datetime.fromisoformat(row["departs"]) + timedelta(days=days)
        departures.append(
            Departure(
                flight=row["flight"],
                origin=row["origin"],
                destination=row["destination"],
                departs_at=departs.replace(tzinfo=ZoneInfo(row["zone"])),
            )
        )
    return days, departures
