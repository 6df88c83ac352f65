"""The soak's book: what was acknowledged, and what therefore must hold.

It hears everything through the child's reports (`tools.soak.worker`), knows each task
by its token, and raises `Violation` at the first thing that can't be:

    a start    before its time on the task's own timeline; of what was done, cancelled,
               replaced, paused or never asked for; of what another still holds;
               again, without `may_have_run`, though an earlier one has no known end
    a fence    that was seen before, or lies below one of an earlier process
    an LSN     the same
    a refusal  for want of room while there is plenty

Calls of several threads overlap, so their reports may come in another order than the
store carried them out. What is known of the order is used: a start whose fence lies
below the LSN at which something held was a start from before it. A call that is still
open when its process dies may have been carried out, or not; `tools.soak.inquest` finds
out which.

True time goes on through reboots; no clock of the child shows it. A delay may end late
after a night without power, but not before its time has truly passed.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wheeldb.cli.demo_ledger import Report

__all__ = ("Call", "Entry", "Ledger", "Violation", "number_of", "text_of")

# So many ended tasks are remembered; of the rest no start may come either.
ENDED_MAX = 20_000
STORY_MAX = 12
PEAKS_MAX = 64
# The child shows its clock at its reports; it went on behind the last one.
WALL_SLACK_S = 2
# The store has so long to notice that there is room again.
ROOM_SLACK_S = 10
# How far the two ends of a lease's report may lie apart.
LEASE_SLACK_MS = 2_000

# What holds of a task, as far as anybody was told.
ABSENT, LIVE, DEAD, DONE = "absent", "live", "dead", "done"
CANCELLED, GONE, ENDING = "cancelled", "gone", "ending"
ENDS = frozenset({DONE, CANCELLED, GONE})
_OTHER = {DONE: CANCELLED, CANCELLED: DONE}

SETTLES = frozenset({"ack", "ack_many", "nack", "release", "reject"})
MOVES = frozenset({"reschedule", "run_now"})


class Violation(Exception):
    """Raised when the store broke a promise."""


@dataclass(slots=True)
class Entry:
    """What the ledger knows of one task.

    Attributes:
        token: Its name here.
        id: The caller's id, None for a generated one.
        queue: Its queue.
        settled: What may hold of it by the calls that have returned.
        open: What each call that has not returned may make of it.
        due_ms: No start before this, on the timeline.
        is_wall: Whether that is the wall clock's; else it is true time.
        due_turn: When that was asked for.
        due_lsn: A start from before this LSN had another due time.
        fence: Of its last start.
        is_started: Whether that start has no known end.
        is_moved: Whether it was given another due time behind that start.
        until_ms: Until when it is the holder's alone, in this session.
        ended_lsn: No start comes behind this.
        paused_lsn: Nor behind this, until it is resumed.
        story: The last things that happened to it.
    """

    token: str
    id: str | None
    queue: str
    settled: set[str]
    open: dict[int, str] = field(default_factory=dict)
    due_ms: int = 0
    is_wall: bool = False
    due_turn: int = 0
    due_lsn: int = 0
    fence: int = 0
    is_started: bool = False
    is_moved: bool = False
    until_ms: int = 0
    ended_lsn: int | None = None
    paused_lsn: int | None = None
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_MAX))

    def is_over(self) -> bool:
        """Return whether it has ended for certain."""
        return self.settled <= ENDS

    def possible(self) -> set[str]:
        """Return everything that may hold of it now."""
        return self.settled | set(self.open.values())


@dataclass(slots=True)
class Call:
    """A call that was begun."""

    does: str
    report: Report
    entries: list[Entry] = field(default_factory=list)  # those it is about
    created: list[Entry] = field(default_factory=list)  # those it schedules


class Ledger:
    """The book of one soak.

    Attributes:
        live: The tasks that have not ended, by token.
        ended: Those that have, the oldest first.
        calls: The calls that were begun and have not returned.
        counts: What happened how often, for the verdict.
    """

    def __init__(self, rate: int) -> None:
        self.live: dict[str, Entry] = {}
        self.ended: OrderedDict[str, Entry] = OrderedDict()
        self.calls: dict[int, Call] = {}
        self.counts: dict[str, int] = {}
        self.highest_lsn = 0
        self._lsn_before = 0
        self._seen: set[int] = set()
        self._paused_queues: dict[str, int] = {}
        self._wall_slack_ms = 1_000 * WALL_SLACK_S * rate
        self._peaks: deque[tuple[int, int]] = deque()
        self._highest_wall_ms = 0
        self._floor_ms = 0
        self._is_below_floor = False
        self._turn = 0
        self._last_wall_ms = 0
        self._true_origin_ms = 0
        self._room_us: int | None = 0  # since when there is room; None: there is none

    # The course of a session.

    def begin(self, true_origin_ms: int) -> None:
        """Begin with the next process."""
        self._true_origin_ms = true_origin_ms
        self._lsn_before = self.highest_lsn
        self._seen.clear()
        self._floor_ms = self._highest_wall_ms + self._wall_slack_ms
        self._is_below_floor = False
        for entry in self.live.values():
            entry.until_ms = 0

    def end(self) -> None:
        """Note that the process is gone."""
        self._peak()

    def note_room(self, now_us: int, *, is_full: bool) -> None:
        """Note that the disk was filled up, or is about to be emptied."""
        self._room_us = None if is_full else now_us

    def count(self, what: str, number: int = 1) -> None:
        """Count something for the verdict."""
        self.counts[what] = self.counts.get(what, 0) + number

    def note(self, report: Report) -> None:
        """Book one report of the work, behind `ready`.

        Raises:
            Violation: It tells of something that can't be.
        """
        self.pass_time(report)
        kind = report["kind"]
        if kind == "asked":
            self._note_asked(report)
        elif kind == "answered":
            self._note_answered(report)
        elif kind == "started":
            self._note_started(report)
        elif kind == "stepping":
            self.count("steps")
            self._peak()
        elif kind == "crowded":
            self.require_full(report, report, "a lease was refused")
        elif kind == "trouble":
            raise Violation(f"the child fell over:\n{report['what']}")

    def pass_time(self, report: Report) -> None:
        """Take in the readings of any report."""
        self._turn += 1
        wall_ms = self._last_wall_ms = number_of(report, "wall_ms")
        self._highest_wall_ms = max(self._highest_wall_ms, wall_ms)
        if wall_ms < self._floor_ms:
            self._is_below_floor = True

    def see_lsn(self, lsn: int, what: str) -> None:
        """Take in a number that was handed out, which nobody had before.

        Raises:
            Violation: Somebody had.
        """
        if lsn in self._seen:
            raise Violation(f"{what} has the number {lsn}, which came before")
        if lsn <= self._lsn_before:
            raise Violation(
                f"{what} has the number {lsn}; an earlier process had seen "
                f"{self._lsn_before}"
            )
        self._seen.add(lsn)
        self.highest_lsn = max(self.highest_lsn, lsn)

    def find(self, token: str) -> Entry | None:
        """Return what is known of a task, ended or not."""
        return self.live.get(token) or self.ended.get(token)

    def finish(self, entry: Entry, state: str, lsn: int | None = None) -> None:
        """Note that a task has ended, in a way that is known."""
        if state in (DONE, CANCELLED) and entry.settled == {_OTHER[state]}:
            raise Violation(
                f"{entry.token} is {state}, and was told otherwise: {entry}"
            )
        if not entry.is_over():
            entry.settled = {state}
        entry.is_started = False
        if entry.ended_lsn is None:
            entry.ended_lsn = self.highest_lsn if lsn is None else lsn
        is_new = self.live.pop(entry.token, None) is not None
        if state == ABSENT:
            return
        if is_new:
            self.count(state)
        self.ended[entry.token] = entry
        while len(self.ended) > ENDED_MAX:
            self.ended.popitem(last=False)

    def require_full(self, asked: Report, answered: Report, what: str) -> None:
        """Judge a refusal for want of room.

        Raises:
            Violation: There is plenty, and has been for a while.
        """
        if self._room_us is None:
            return
        asked_us = number_of(asked, "process_us")
        if asked_us > self._room_us + 1_000_000 * ROOM_SLACK_S:
            raise Violation(f"{what} for want of room, and there is plenty: {answered}")

    # What is asked.

    def _note_asked(self, report: Report) -> None:
        number, does = number_of(report, "call"), text_of(report, "does")
        call = self.calls[number] = Call(does, report)
        for token in _tokens(report):
            entry = self.find(token)
            if entry is not None:
                entry.open[number] = _effect(does)
                entry.story.append(f"{does} asked, call {number}")
                call.entries.append(entry)
        for told in _told(report):
            entry = Entry(
                token=text_of(told, "token"),
                id=told["id"] if isinstance(told["id"], str) else None,
                queue=text_of(told, "queue"),
                settled={ABSENT},
            )
            entry.open[number] = LIVE
            self._bound(entry, told, report)
            self.live[entry.token] = entry
            call.created.append(entry)
        if does == "replace":
            # From here on the id may be the new one's.
            for entry in call.entries:
                entry.id = None
        elif does == "resume_queue":
            self._paused_queues.pop(text_of(report, "queue"), None)
        elif does in MOVES:
            # From here on the earlier of both may be what holds.
            for entry in call.entries:
                entry.is_moved = entry.is_moved or entry.is_started
                self._bound(entry, report, report, is_open=True)
        if does in ("resume", "run_now"):
            for entry in call.entries:
                entry.paused_lsn = None

    def _bound(
        self, entry: Entry, told: Report, report: Report, *, is_open: bool = False
    ) -> None:
        """Set before when a task must not start."""
        is_wall = "at_ms" in told
        if is_wall:
            due_ms = number_of(told, "at_ms")
        else:
            delay_ms = told.get("delay_ms", 0)
            assert isinstance(delay_ms, int), told
            due_ms = self._true_ms(report) + delay_ms
        if is_open:
            if is_wall != entry.is_wall:
                # Which of two timelines holds is open: nothing is early by both.
                entry.is_wall, entry.due_ms = False, 0
                return
            entry.due_ms = min(entry.due_ms, due_ms)
            return
        entry.is_wall, entry.due_ms, entry.due_turn = is_wall, due_ms, self._turn

    # What is answered.

    def _note_answered(self, report: Report) -> None:
        call = self.calls.pop(number_of(report, "call"))
        outcome = text_of(report, "outcome")
        for entry in (*call.entries, *call.created):
            entry.open.pop(number_of(report, "call"), None)
            entry.story.append(
                f"{call.does} {outcome} {report.get('value', report.get('error', ''))}"
            )
        if outcome == "ok":
            self._note_success(call, report, number_of(report, "lsn"))
            return
        self.count(outcome)
        if outcome == "no room":
            self.require_full(call.report, report, f"{call.does} was refused")
        for entry in call.created:
            if not entry.fence:
                self.finish(entry, ABSENT)

    def _note_success(self, call: Call, report: Report, lsn: int) -> None:
        value = report["value"]
        # Of a task that was cancelled while it ran, the follow-ups are dropped.
        is_unsure = any(ENDING in entry.possible() for entry in call.entries)
        for entry in call.created:
            self.count("accepted")
            if entry.settled == {ABSENT}:
                entry.settled = {LIVE, ABSENT} if is_unsure else {LIVE}
        if call.created and call.does != "ack":
            assert isinstance(value, list), report
            for one, entry in zip(value, call.created, strict=True):
                self.see_lsn(one, f"the scheduling of {entry.token}")
        if call.does == "ack_many":
            assert isinstance(value, list), report
            call.entries = [e for e in call.entries if e.token not in value]
        for entry in call.entries:
            self._note_change(entry, call, report, lsn)
        if call.does == "pause_queue":
            queue = text_of(call.report, "queue")
            is_resumed = any(
                other.does == "resume_queue" and other.report["queue"] == queue
                for other in self.calls.values()
            )
            if not is_resumed:
                self._paused_queues[queue] = lsn
        elif call.does == "check" and value:
            raise Violation(f"check found {value}")

    def _note_change(self, entry: Entry, call: Call, report: Report, lsn: int) -> None:
        does, value = call.does, report["value"]
        if does in ("ack", "ack_many") and entry.is_moved and LIVE in entry.settled:
            # The attempt has ended, and the task goes on where it was moved to; unless
            # the move came behind the attempt before this one.
            entry.settled.add(DONE)
            entry.is_started, entry.is_moved, entry.until_ms = False, False, 0
        elif does in ("ack", "ack_many"):
            self.finish(entry, DONE, lsn)
        elif does == "batch" or (does == "cancel" and value == "cancelled"):
            self.finish(entry, CANCELLED, lsn)
        elif does == "replace":
            self.finish(entry, GONE, lsn)
        elif entry.is_over():
            pass  # its end was told first
        elif does in SETTLES and number_of(call.report, "fence") < entry.fence:
            pass  # the next start was told first
        elif does == "cancel":
            if value == "leased":
                entry.settled, entry.ended_lsn = {ENDING}, lsn
            elif entry.settled == {LIVE} and not entry.open:
                # Who ended it would have said before that he was about to.
                self._violate(entry, f"is {value}, and nobody ended it", report)
        elif does in ("nack", "release", "reject"):
            entry.is_started = False
            if entry.settled == {ENDING}:
                self.finish(entry, CANCELLED, lsn)
                return
            is_dead = does == "reject" or (does == "nack" and call.report["is_last"])
            entry.settled = {DEAD} if is_dead else {LIVE}
            if is_dead and (entry.is_moved or self._is_moving(entry)):
                entry.settled.add(LIVE)
            entry.until_ms, entry.due_lsn = 0, lsn
            if is_dead or entry.is_moved or not call.report["delay_ms"]:
                # What it was moved to meanwhile, or its due time from before.
                entry.due_ms, entry.is_wall = 0, False
            else:
                self._bound(entry, call.report, call.report)
            entry.is_moved = False
        elif does == "revive":
            entry.settled = {LIVE}
            entry.due_ms, entry.is_wall, entry.due_lsn = 0, False, lsn
        elif does in MOVES and number_of(report, "value") > entry.fence:
            entry.due_lsn = number_of(report, "value")
            is_ending = any(c.does in SETTLES for c in self._calls_about(entry))
            # A dead task is brought back by it; one that ran goes on behind its end.
            entry.settled = (
                {LIVE, DEAD} if is_ending else entry.settled - {DEAD} | {LIVE}
            )
            if not entry.is_started and not entry.open:
                self._bound(entry, call.report, call.report)
        elif does == "pause" and not any(
            other.does == "resume" for other in self._calls_about(entry)
        ):
            entry.paused_lsn = lsn

    def _is_moving(self, entry: Entry) -> bool:
        return any(call.does in MOVES for call in self._calls_about(entry))

    def _calls_about(self, entry: Entry) -> list[Call]:
        return [self.calls[n] for n in entry.open if n in self.calls]

    # What is started.

    def _note_started(self, report: Report) -> None:
        token, fence = text_of(report, "token"), number_of(report, "fence")
        entry = self.find(token)
        if entry is None:
            raise Violation(f"{token} was started, and has ended long ago or never was")
        entry.story.append(
            f"started under fence {fence}"
            + (", may have run" if report["may_have_run"] else "")
        )
        self.see_lsn(fence, f"the start of {token}")
        self.count("starts")
        if entry.ended_lsn is not None and fence > entry.ended_lsn:
            self._violate(entry, "was started after its end", report)
        if entry.paused_lsn is not None and fence > entry.paused_lsn:
            self._violate(entry, "was started while paused", report)
        if fence > self._paused_queues.get(entry.queue, fence):
            self._violate(entry, f"was started though {entry.queue} is paused", report)
        if fence > entry.due_lsn:
            self._judge_time(entry, report)
        if fence < entry.fence:
            return  # told late: another start came behind it
        is_settling = any(call.does in SETTLES for call in self._calls_about(entry))
        if entry.is_started and not is_settling:
            if not report["may_have_run"]:
                self._violate(entry, "was started again, unannounced", report)
            now_ms = number_of(report, "boottime_ms")
            if entry.until_ms > now_ms + LEASE_SLACK_MS:
                self._violate(entry, "was started while another held it", report)
            self.count("announced")
        entry.fence, entry.is_started = fence, True
        entry.is_moved = fence < entry.due_lsn or self._is_moving(entry)
        entry.until_ms = number_of(report, "until_ms")
        is_revived = DEAD in entry.settled and self._is_moving(entry)
        if entry.settled & {ABSENT, LIVE} or is_revived:
            entry.settled = {LIVE}

    def _judge_time(self, entry: Entry, report: Report) -> None:
        if not entry.is_wall:
            early_ms = entry.due_ms - self._true_ms(report)
        else:
            # A clock that shows less than it did before isn't believed: what was due
            # by then is let through.
            walls = [number_of(report, "wall_ms")]
            walls += [wall for turn, wall in self._peaks if turn >= entry.due_turn]
            if self._is_below_floor:
                walls.append(self._floor_ms)
            early_ms = entry.due_ms - max(walls)
        if early_ms > 0:
            self._violate(entry, f"was started {early_ms} ms early", report)

    def _peak(self) -> None:
        # Of the oldest the higher one is kept: a bound may become looser, not wrong.
        self._peaks.append((self._turn, self._last_wall_ms + self._wall_slack_ms))
        if len(self._peaks) > PEAKS_MAX:
            _, oldest_ms = self._peaks.popleft()
            turn, wall_ms = self._peaks[0]
            self._peaks[0] = turn, max(oldest_ms, wall_ms)

    def _true_ms(self, report: Report) -> int:
        return number_of(report, "boottime_ms") + self._true_origin_ms

    def _violate(self, entry: Entry, what: str, report: Report) -> None:
        story = "\n  ".join(entry.story)
        raise Violation(f"{entry.token} {what}: {report}\n{entry}\n  {story}")


def _effect(does: str) -> str:
    """Return what a call makes of the task it is about, if it is carried out."""
    if does in ("ack", "ack_many"):
        return DONE
    if does in ("nack", "reject"):
        return DEAD
    if does == "cancel":
        return ENDING
    if does == "batch":
        return CANCELLED
    if does == "replace":
        return GONE
    return LIVE


def _tokens(report: Report) -> Sequence[str]:
    tokens = report.get("tokens", ())
    assert isinstance(tokens, list | tuple), report
    if "token" in report:
        return [text_of(report, "token"), *tokens]
    return tokens


def _told(report: Report) -> Sequence[Mapping[str, object]]:
    told = report.get("tasks", ())
    assert isinstance(told, list | tuple), report
    return told


def number_of(report: Report, name: str) -> int:
    """Return a whole number of a report."""
    value = report[name]
    assert isinstance(value, int), f"{name} is {value!r} in {report}"
    return value


def text_of(report: Report, name: str) -> str:
    """Return a text of a report."""
    value = report[name]
    assert isinstance(value, str), f"{name} is {value!r} in {report}"
    return value
