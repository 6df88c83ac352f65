"""What an opening must show, after whatever came before it.

The child lists all unfinished tasks before it begins to work, and the states of some
that have ended. With them it is judged:

    every task that was accepted and has not ended is there, once, and unleased
    nothing is there that was never asked for, was refused, or has ended
    a call with several tasks that was cut off was carried out whole, or not at all
    the log has every number that anybody has seen

Then the book is put in order: what a cut-off call may have made of a task is known now.
"""

from tools.soak.ledger import (
    ABSENT,
    CANCELLED,
    DEAD,
    DONE,
    ENDING,
    GONE,
    LIVE,
    Call,
    Entry,
    Ledger,
    Violation,
    number_of,
)
from wheeldb.cli.demo_ledger import Report

__all__ = ("Inquest",)

# What a cut-off call may have been carried out as, though its task isn't there.
LOOKS_ABSENT = frozenset({ABSENT, DONE, CANCELLED, GONE, ENDING})
SCHEDULED_STATES = frozenset({"scheduled", "due", "paused"})


class Inquest:
    """Takes in what one opening shows, and judges it.

    Attributes:
        is_over: Whether it has been judged.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._found: dict[str, str] = {}
        self._known: dict[str, str | None] = {}
        self.is_over = False

    def note(self, report: Report) -> None:
        """Book one report up to `ready`.

        Raises:
            Violation: It tells of something that can't be.
        """
        kind = report["kind"]
        self._ledger.pass_time(report)
        if kind == "opened":
            self._note_opened(report)
        elif kind == "found":
            for token, _, state in _rows(report["tasks"]):
                if token in self._found:
                    raise Violation(f"{token} is listed twice: {report}")
                self._found[token] = state
        elif kind == "known":
            ids, states = report["ids"], report["states"]
            assert isinstance(ids, list), report
            assert isinstance(states, list), report
            self._known.update(zip(ids, states, strict=True))
        elif kind == "ready":
            self._judge()
            self.is_over = True
        elif kind == "unopened":
            self._ledger.require_full(report, report, "an opening was refused")
            self._ledger.count("unopened")
        elif kind == "trouble":
            raise Violation(f"the child fell over:\n{report['what']}")

    def _note_opened(self, report: Report) -> None:
        ledger = self._ledger
        recovery = report["recovery"]
        assert isinstance(recovery, dict), report
        ledger.count(f"opened {recovery['reason']}")
        if recovery["torn_bytes"]:
            ledger.count("torn")
        if report["findings"]:
            raise Violation(f"check found {report['findings']} after {recovery}")
        last_lsn = number_of(report, "last_lsn")
        if last_lsn < ledger.highest_lsn:
            raise Violation(
                f"the log ends at {last_lsn}, and {ledger.highest_lsn} was seen"
            )

    def _judge(self) -> None:
        ledger = self._ledger
        for number, call in sorted(ledger.calls.items()):
            if call.created:
                self._resolve(number, call)
        cut_off = {
            entry.token
            for call in ledger.calls.values()
            if call.does in ("nack", "release", "reject")
            for entry in call.entries
        }
        for token in self._found:
            if token not in ledger.live:
                self._judge_stranger(token)
        for entry in list(ledger.live.values()):
            self._judge_entry(entry)
            # Whether that attempt has ended nobody knows.
            if entry.token in cut_off:
                entry.is_started = False
                entry.due_ms, entry.is_wall = 0, False
        for id, state in self._known.items():
            self._judge_known(id, state)
        ledger.calls.clear()

    def _resolve(self, number: int, call: Call) -> None:
        """Find out whether a cut-off call with new tasks was carried out."""
        happened = {
            entry.token: entry.token in self._found or bool(entry.fence)
            for entry in call.created
        }
        if len(set(happened.values())) > 1:
            raise Violation(f"half of a {call.does} was carried out: {happened}")
        was_done = all(happened.values())
        for entry in call.entries:
            if not was_done and call.does == "ack" and ENDING in entry.possible():
                continue  # the follow-ups of what was cancelled are dropped
            effect = entry.open.pop(number, None)
            if was_done and effect is not None:
                entry.open[number] = effect
                if entry.token in self._found and effect != LIVE:
                    raise Violation(
                        f"half of a {call.does} was carried out: {entry.token} is "
                        f"still there, and so is {happened}"
                    )
        for entry in call.created:
            entry.open.pop(number, None)
            if not was_done:
                self._ledger.finish(entry, ABSENT)
            elif not entry.settled - {ABSENT}:
                entry.settled = {LIVE}
                self._ledger.count("accepted")

    def _judge_stranger(self, token: str) -> None:
        entry = self._ledger.find(token)
        if entry is None:
            raise Violation(f"{token} is there, and nobody asked for it, or long ago")
        raise Violation(f"{token} is there, though it has ended: {entry}")

    def _judge_entry(self, entry: Entry) -> None:
        state = self._found.get(entry.token)
        possible = entry.possible()
        # Its lease may have run out on its last attempt.
        if entry.is_started and LIVE in possible:
            possible.add(DEAD)
        entry.open.clear()
        entry.story.append(f"found {state} by an opening")
        if state is None:
            ends = possible & LOOKS_ABSENT
            if not ends:
                story = "\n  ".join(entry.story)
                raise Violation(f"{entry.token} is lost: {entry}\n  {story}")
            self._end(entry, ends)
        elif state == "dead":
            self._require(DEAD in possible, entry, state)
            entry.settled = {DEAD}
        else:
            self._require(state in SCHEDULED_STATES, entry, state)
            self._require(LIVE in possible, entry, state)
            entry.settled = {LIVE}

    def _end(self, entry: Entry, ends: set[str]) -> None:
        known = self._known.get(entry.id or "")
        if known in (DONE, CANCELLED):
            ends = {known}
        self._ledger.finish(entry, ends.pop() if len(ends) == 1 else GONE)

    def _judge_known(self, id: str, state: str | None) -> None:
        entry = self._ledger.ended.get(id)
        if entry is None or entry.settled & {GONE, ENDING}:
            return
        if state not in entry.settled:
            raise Violation(f"{id} is {state}, and was {entry.settled}: {entry}")

    def _require(self, is_so: bool, entry: Entry, state: str) -> None:
        if not is_so:
            story = "\n  ".join(entry.story)
            raise Violation(f"{entry.token} is {state}: {entry}\n  {story}")


def _rows(value: object) -> list[list[str]]:
    assert isinstance(value, list), value
    return value
