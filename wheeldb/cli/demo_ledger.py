"""The demo's judge: a book of what was promised, kept outside the store.

The worker reports every call before and after it, one line of JSON each, into a pipe
that outlives it. From these lines alone the ledger says what the store should have
done:

    asked      about to schedule these tasks     from here on the promise may exist
    accepted   the call has returned             the promise exists
    started    a task was handed out, nothing of its work is done
    finishing  about to ack                      its follow-up may exist from here on
    finished   the ack has returned              its follow-up exists

A process killed between `started` and `finished` may start its task again; then the
store must announce that (`may_have_run`). A start behind `finished` is wrong in any
case. The ledger never asks the store; only at the very end it is told the final state
of each task, which settles those that were killed between `finishing` and `finished`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ("Entry", "Lateness", "Ledger", "Report", "Tally", "lateness_of")

Report = Mapping[str, object]


@dataclass(slots=True)
class Entry:
    """What the ledger knows of one task.

    Attributes:
        group: The column of the verdict it counts in.
        due_ms: No start before this, on `timeline`; None while no bound is known.
        timeline: The reading to compare with: `wall_ms`, `boottime_ms`, `process_us`.
        follow_up: The id of the task that its ack schedules.
        delay_ms: The delay behind the call that schedules it.
    """

    group: str
    due_ms: int | None = None
    timeline: str = "wall_ms"
    follow_up: str | None = None
    delay_ms: int | None = None
    is_accepted: bool = False
    is_finished: bool = False
    starts: int = 0
    starts_announced: int = 0
    starts_unannounced: int = 0
    starts_early: int = 0
    lates_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How late tasks started, in real milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The verdict on one group of tasks.

    Attributes:
        accepted: Promised by the store.
        fired: Started at least once.
        fired_again_announced: Further starts that said so.
        fired_again_unannounced: Further starts that didn't, or came behind the end.
        fired_early: Starts before their time.
        lost: Promised, and never started or never brought to their end.
        late_ms: Lateness of the first starts.
    """

    accepted: int
    fired: int
    fired_again_announced: int
    fired_again_unannounced: int
    fired_early: int
    lost: int
    late_ms: Lateness

    @property
    def is_fine(self) -> bool:
        """Whether everything was kept."""
        wrong = (self.fired_again_unannounced, self.fired_early, self.lost)
        return not any(wrong)


class Ledger:
    """The book of one demo.

    Args:
        rate: How many clock milliseconds pass in a real one.
    """

    def __init__(self, rate: int = 1) -> None:
        self.entries: dict[str, Entry] = {}
        self.reports_count = 0
        self._rate = rate

    def expect(self, id: str, entry: Entry) -> None:
        """Enter a task before it is asked for."""
        assert id not in self.entries, f"{id} stands in the ledger already"
        self.entries[id] = entry

    def note(self, report: Report) -> None:
        """Book one report of the worker.

        Raises:
            KeyError: It names a task that nobody entered.
        """
        self.reports_count += 1
        kind = report["kind"]
        if kind in {"asked", "accepted"}:
            ids = report["ids"]
            assert isinstance(ids, list), ids
            for id in ids:
                self._note_scheduling(self.entries[id], report)
        elif kind == "started":
            self._note_start(self.entries[str(report["id"])], report)
        elif kind in {"finishing", "finished"}:
            entry = self.entries[str(report["id"])]
            entry.is_finished = entry.is_finished or kind == "finished"
            if entry.follow_up is not None:
                follow_up = self.entries[entry.follow_up]
                if kind == "finished":
                    follow_up.is_accepted = True
                else:
                    _bound(follow_up, report)

    def tally(self, group: str, final_states: Mapping[str, str]) -> Tally:
        """Return the verdict on one group.

        Args:
            group: The entries to count.
            final_states: The state of each task in the store at the end.
        """
        chosen = {id: e for id, e in self.entries.items() if e.group == group}
        entries = chosen.values()
        return Tally(
            accepted=sum(entry.is_accepted for entry in entries),
            fired=sum(entry.starts > 0 for entry in entries),
            fired_again_announced=sum(entry.starts_announced for entry in entries),
            fired_again_unannounced=sum(entry.starts_unannounced for entry in entries),
            fired_early=sum(entry.starts_early for entry in entries),
            lost=sum(
                entry.starts == 0
                or not (entry.is_finished or final_states.get(id) == "done")
                for id, entry in chosen.items()
            ),
            late_ms=lateness_of([late for entry in entries for late in entry.lates_ms]),
        )

    def _note_scheduling(self, entry: Entry, report: Report) -> None:
        if report["kind"] == "accepted":
            entry.is_accepted = True
        elif not entry.is_accepted:
            _bound(entry, report)

    def _note_start(self, entry: Entry, report: Report) -> None:
        # A task that is handed out was accepted, whatever a killed process could say.
        entry.is_accepted = True
        if entry.is_finished or (entry.starts and not report["may_have_run"]):
            entry.starts_unannounced += 1
        elif entry.starts:
            entry.starts_announced += 1
        entry.starts += 1
        now_ms = _integer(report, entry.timeline)
        if entry.due_ms is None or now_ms < entry.due_ms:
            entry.starts_early += 1
        elif entry.starts == 1:
            entry.lates_ms.append((now_ms - entry.due_ms) / self._rate)


def _bound(entry: Entry, report: Report) -> None:
    # A second call replaces the bound of the first: had the first been carried out,
    # there would be no second.
    if entry.delay_ms is not None:
        entry.due_ms = _integer(report, entry.timeline) + entry.delay_ms


def _integer(report: Report, name: str) -> int:
    value = report[name]
    assert isinstance(value, int), f"{name} is {value!r} in {report}"
    return value


def lateness_of(lates_ms: Sequence[float]) -> Lateness:
    """Return the percentiles of some latenesses, zeros if there are none."""
    if not lates_ms:
        return Lateness(p50=0.0, p99=0.0, max=0.0)
    ordered = sorted(lates_ms)

    def percentile(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return Lateness(p50=percentile(0.5), p99=percentile(0.99), max=ordered[-1])
