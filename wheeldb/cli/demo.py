"""`wheeldb demo`: a real day of departures, killed twice, and a ledger that judges.

Each of the 842 departures becomes a boarding task at an instant; its ack schedules the
gate's closing after a delay. A child process runs them on a clock on which an hour
takes a second. This process kills it with SIGKILL at two random moments, starts it
again, and keeps its own ledger of what was promised. A last phase measures lateness for
three seconds on the real clock. The story goes to stderr, the verdict to stdout.

    exit 0  nothing was lost, early, or repeated without being announced
    exit 1  otherwise

`--seed` repeats the moments of the kills as far as an operating system lets it:
they are counted in reports, not in seconds.
"""

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import wheeldb
from wheeldb.cli.arguments import UsageError, store_path
from wheeldb.cli.demo_clock import FastClock
from wheeldb.cli.demo_ledger import Entry, Lateness, Ledger, Report, Tally
from wheeldb.cli.demo_process import WorkerFailed, WorkerProcess
from wheeldb.cli.demo_worker import (
    BUILD_AT,
    GATE_DELAY_MS,
    Plan,
    boarding_id,
    gate_id,
)
from wheeldb.cli.departures import Departure, load_departures
from wheeldb.cli.opening import ExitStatus
from wheeldb.cli.output import plain, print_json, print_table, say
from wheeldb.clock.system import SystemClock

__all__ = ("Story", "configure", "run")

ZONE = "America/New_York"
DAY_BEGINS_HOUR = 3  # the first boarding is at 04:35
REAL_SECONDS = 3
REAL_TASKS = 300
SILENCE_SECONDS_MAX = 20.0
WORKER = "wheeldb.cli.demo_worker"
# boarding and gate: started, finishing, finished; and asked, accepted for each batch
REPORTS_PER_DEPARTURE = 6


@dataclass(slots=True)
class Story:
    """What happened, for the verdict.

    Attributes:
        seed: Where the kills and the real phase's delays come from.
        days_moved: By how many days the departures were moved.
        kills: The report behind which each SIGKILL came.
        recoveries: What each opening of the day's store found.
        tallies: The verdict on each group.
        findings: What `check` found at the end.
        failure: Why the story broke off, None if it didn't.
    """

    seed: int
    days_moved: int
    kills: list[Report] = field(default_factory=list)
    recoveries: list[object] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    findings: list[wheeldb.Finding] = field(default_factory=list)
    failure: str | None = None

    @property
    def is_fine(self) -> bool:
        """Whether every promise was kept."""
        return (
            self.failure is None
            and not self.findings
            and len(self.tallies) == 3
            and all(tally.is_fine for tally in self.tallies.values())
        )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "--directory",
        metavar="DIR",
        type=store_path,
        help="keep the stores there; it must not exist",
    )
    parser.add_argument(
        "--seed", type=int, metavar="NUMBER", help="repeat an earlier demo"
    )
    parser.add_argument(
        "--hour",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="length of an hour, 1 unless given",
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Tell the whole story and return its verdict.

    Raises:
        OSError: There is no time zone database.
    """
    if not 0.05 <= arguments.hour <= 60:
        raise UsageError("wheeldb demo: --hour is from 0.05 to 60 seconds")
    try:
        ZoneInfo(ZONE)
    except ZoneInfoNotFoundError as error:
        # Small images of systems come without it.
        raise OSError(
            f"this system knows no time zone {ZONE}: install its package tzdata, or "
            "pip install tzdata"
        ) from error
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    if arguments.directory is not None:
        Path(arguments.directory).mkdir(mode=0o700)
        story = _tell(Path(arguments.directory), seed, arguments.hour)
    else:
        with tempfile.TemporaryDirectory(prefix="wheeldb-demo-") as directory:
            story = _tell(Path(directory), seed, arguments.hour)
    if arguments.json:
        print_json({"ok": story.is_fine, **_fields(story)})
    else:
        _print_verdict(story)
    return ExitStatus.FINE if story.is_fine else ExitStatus.FINDINGS


def _fields(story: Story) -> Mapping[str, object]:
    fields = plain(story)
    assert isinstance(fields, dict), fields
    return fields


def _tell(directory: Path, seed: int, hour_s: float) -> Story:
    days, departures = load_departures(BUILD_AT)
    story = Story(seed=seed, days_moved=days)
    day = departures[0].departs_at.date()
    say(
        f"{len(departures)} departures of 2013-01-01, moved by {days} days to {day}; "
        f"an hour takes {hour_s:g} s; seed {seed}"
    )
    try:
        _run_day(directory / "day.wheeldb", departures, round(3_600 / hour_s), story)
        _run_real(directory / "real.wheeldb", story)
    except WorkerFailed as error:
        story.failure = str(error)
    return story


def _run_day(
    directory: Path, departures: Sequence[Departure], rate: int, story: Story
) -> None:
    begins_at = departures[0].departs_at.replace(hour=DAY_BEGINS_HOUR, minute=0)
    plan: Plan = {
        "mode": "day",
        "directory": str(directory),
        "origin_ns": SystemClock().process_ns(),
        "wall_ms": round(begins_at.timestamp() * 1_000),
        "rate": rate,
        "delays_ms": [],
    }
    ledger = _ledger_of_day(departures, rate)
    chance = random.Random(story.seed)
    total = REPORTS_PER_DEPARTURE * len(departures)
    kills = [
        chance.randint(1, round(0.45 * total)),
        chance.randint(round(0.5 * total), round(0.9 * total)),
    ]
    while True:
        with WorkerProcess(WORKER, plan, SILENCE_SECONDS_MAX) as worker:
            for report in worker.reports():
                _show(report, story)
                ledger.note(report)
                is_time = bool(kills) and ledger.reports_count >= kills[0]
                # What a killed worker had written before is still being read.
                if is_time and not worker.was_killed:
                    kills.pop(0)
                    worker.kill()
                    story.kills.append(report)
                    say(f"{_clock_time(report)}  SIGKILL behind: {_said(report)}")
            if not worker.was_killed:
                break
    clock = FastClock(
        origin_ns=plan["origin_ns"], wall_ms=plan["wall_ms"], rate=plan["rate"]
    )
    with wheeldb.open(str(directory), readonly=True, create=False, clock=clock) as db:
        story.findings.extend(db.check())
        final_states = _final_states(db, ledger)
    for group in ("boarding", "gate"):
        story.tallies[group] = ledger.tally(group, final_states)


def _ledger_of_day(departures: Sequence[Departure], rate: int) -> Ledger:
    ledger = Ledger(rate)
    for departure in departures:
        follow_up = gate_id(departure.flight)
        ledger.expect(
            boarding_id(departure.flight),
            Entry(
                group="boarding",
                due_ms=round(departure.boards_at.timestamp() * 1_000),
                follow_up=follow_up,
            ),
        )
        ledger.expect(
            follow_up,
            Entry(group="gate", timeline="boottime_ms", delay_ms=GATE_DELAY_MS),
        )
    return ledger


def _run_real(directory: Path, story: Story) -> None:
    say(f"{REAL_TASKS} delays within {REAL_SECONDS} s on the real clock")
    chance = random.Random(story.seed)
    delays_ms = [chance.randrange(1_000 * REAL_SECONDS) for _ in range(REAL_TASKS)]
    plan: Plan = {
        "mode": "real",
        "directory": str(directory),
        "origin_ns": 0,
        "wall_ms": 0,
        "rate": 1,
        "delays_ms": delays_ms,
    }
    ledger = Ledger(rate=1_000)
    for number, delay_ms in enumerate(delays_ms):
        # Microseconds: whole milliseconds would say little about lateness.
        entry = Entry(group="real", timeline="process_us", delay_ms=1_000 * delay_ms)
        ledger.expect(f"tick-{number}", entry)
    with WorkerProcess(WORKER, plan, SILENCE_SECONDS_MAX) as worker:
        for report in worker.reports():
            ledger.note(report)
    with wheeldb.open(str(directory), readonly=True, create=False) as db:
        story.findings.extend(db.check())
        final_states = _final_states(db, ledger)
    story.tallies["real"] = ledger.tally("real", final_states)


def _final_states(db: wheeldb.WheelDB, ledger: Ledger) -> dict[str, str]:
    states = {}
    for id in ledger.entries:
        task = db.get(id)
        if task is not None:
            states[id] = task.state.value
    return states


def _clock_time(report: Report) -> str:
    wall_ms = report["wall_ms"]
    assert isinstance(wall_ms, int), report
    return datetime.fromtimestamp(wall_ms / 1_000, ZoneInfo(ZONE)).strftime("%H:%M")


def _said(report: Report) -> str:
    ids = report.get("ids")
    if isinstance(ids, list):
        return f"{report['kind']} {len(ids)} tasks"
    return f"{report['kind']} {report.get('id', '')}".rstrip()


def _show(report: Report, story: Story) -> None:
    if report["kind"] == "opened":
        recovery = report["recovery"]
        story.recoveries.append(recovery)
        say(f"{_clock_time(report)}  opened: {_recovery_line(recovery)}")
    elif report["kind"] == "closed":
        say(f"{_clock_time(report)}  the day is over, the store closed")


def _recovery_line(recovery: object) -> str:
    assert isinstance(recovery, dict), recovery
    return (
        f"{recovery['reason']}, index {recovery['index']}; "
        f"{recovery['events']} events read, {recovery['torn_bytes']} torn bytes, "
        f"{recovery['interrupted']} tasks interrupted, "
        f"{1_000 * recovery['duration']:.0f} ms"
    )


def _print_verdict(story: Story) -> None:
    names = (
        "accepted",
        "fired",
        "fired_again_announced",
        "fired_again_unannounced",
        "fired_early",
        "lost",
    )
    titles = {"boarding": "boarding", "gate": "gate closes", "real": "real clock"}
    groups = list(story.tallies)
    if not groups:
        print(f"FAILED: {story.failure}")
        return
    rows: list[tuple[object, ...]] = [
        (
            name.replace("again_", "again, ").replace("_", " "),
            *(getattr(story.tallies[group], name) for group in groups),
        )
        for name in names
    ]
    for part in ("p50", "p99", "max"):
        lates: list[Lateness] = [story.tallies[group].late_ms for group in groups]
        values = [f"{getattr(late, part):.1f}" for late in lates]
        rows.append((f"late, real ms, {part}", *values))
    print_table(("", *(titles[group] for group in groups)), rows)
    if "boarding" in story.tallies:
        print("On the fast clock the restarts are part of the lateness.")
    for finding in story.findings:
        print(f"check: {finding.where}: {finding.what}")
    if story.failure is not None:
        print(f"FAILED: {story.failure}")
    elif story.is_fine:
        print("Nothing lost, nothing early, nothing repeated unannounced; check is OK.")
    else:
        print("FAILED: see above.")
