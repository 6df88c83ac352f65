"""What a store has promised, told from the lines of those who worked with it.

The lines are JSON lists. A *hand* is one thread with a queue and tasks of its own, so
that its calls follow each other; a *key* names a task (it is in its payload, and is its
id where the caller gave one)::

    ["opened", lsn]                           a store was opened; the LSN it stood at
    ["ask", hand, number, level, {key: …}]    about to call; what each key becomes
    ["did", hand, number, lsn]                it has returned; the highest LSN shown
    ["refused", hand, number]                 it has raised, and nothing has happened
    ["started", key, fence, may_have_run]     a lease is in a hand
    ["found", {hand: number}, [key, …]]       an opening has found the state behind so
                                              many calls, and these tasks dead of their
                                              one start: now that is what there is

What a key becomes is ``[has_id, state, stamp, is_far, is_once]``: whether it can be
found by its id; its state (``live`` stands for scheduled, due and leased: a lease ends
with its process); the number of the call that wrote its payload; whether it is due much
later; and whether it starts at most once. Then a crash in its attempt is its end, and
if nobody told of a start there may have been one all the same.

``level`` is ``fsync`` or ``written``. A call of level fsync that was asked when another
had returned proves that other one durable, too: the log is synced as a whole. Where
only the process was killed, every call that has returned is proven.

So each hand has a range of calls, from the last that is proven to the last that was
asked, and the store must stand exactly behind one of them: whole calls only, none left
out, nothing of a later one.

    ledger = Ledger()
    ledger.take('["ask", "a", 0, "fsync", {"x": [true, "live", 0, false, false]}]')
    ledger.match("a", {})          0: it has not happened
    ledger.take('["did", "a", 0, 17]')
    ledger.match("a", {})          None: it has, and is lost
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ("FINISHED", "Entry", "Ledger", "Seen", "State", "hand_of", "visible")

FINISHED = frozenset({"done", "cancelled"})


class Entry(NamedTuple):
    """What a key is to be."""

    has_id: bool
    state: str
    stamp: int
    is_far: bool
    is_once: bool = False


# What can be seen of a key: its state, and for an unfinished one stamp and is_far.
Seen = tuple[str, int, bool]
State = dict[str, Entry]


def hand_of(key: str) -> str:
    """Return whose task it is."""
    return key.partition(".")[0]


@dataclass(slots=True)
class _Call:
    changes: State
    is_synced: bool
    asked_at: int
    did_at: int | None = None


@dataclass(slots=True)
class _Hand:
    base: State = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    proven: int = 0


class Ledger:
    """The promises so far.

    Args:
        is_kill: Only the process dies, not the machine.

    Attributes:
        findings: What was wrong in the lines themselves: a fence that came twice.
        is_opened: Whether a store was ever open.
        fence_highest: The highest fence that anybody saw.
        lsn_highest: The highest LSN.
        unended: Keys that were started and of whose end nothing was asked.
    """

    def __init__(self, *, is_kill: bool = False) -> None:
        self._is_kill = is_kill
        self.findings: list[str] = []
        self.is_opened = False
        self.fence_highest = 0
        self.lsn_highest = 0
        self.unended: set[str] = set()
        self._fences: set[int] = set()
        self._fence_floor = 0
        self._hands: dict[str, _Hand] = {}
        self._lines = 0

    def take(self, line: str) -> None:
        """Take in one line."""
        word, *rest = json.loads(line)
        self._lines += 1
        if word == "ask":
            hand, number, level, changes = rest
            self._ask(hand, number, level, changes)
        elif word == "did":
            hand, number, lsn = rest
            self._did(hand, number)
            self.lsn_highest = max(self.lsn_highest, lsn)
        elif word == "refused":
            hand, number = rest
            assert number == len(self._hands[hand].calls) - 1, line
            self._hands[hand].calls.pop()
        elif word == "started":
            key, fence, _ = rest
            # Of two hands the lines may come in another order than their leases.
            if fence in self._fences or fence <= self._fence_floor:
                self.findings.append(f"{key} has fence {fence}, which is not new")
            self._fences.add(fence)
            self.fence_highest = max(self.fence_highest, fence)
            self.unended.add(key)
        elif word == "opened":
            self.is_opened = True
            self._fence_floor = self.fence_highest
            self.lsn_highest = max(self.lsn_highest, rest[0])
        else:
            assert word == "found", line
            self._found(*rest)

    def _ask(
        self, name: str, number: int, level: str, changes: Mapping[str, list[object]]
    ) -> None:
        hand = self._hands.setdefault(name, _Hand())
        assert number == len(hand.calls), f"{name} skips call {len(hand.calls)}"
        entries = {key: Entry(*entry) for key, entry in changes.items()}  # type: ignore[arg-type]
        hand.calls.append(_Call(entries, level == "fsync", self._lines))
        self.unended -= entries.keys()

    def _did(self, name: str, number: int) -> None:
        call = self._hands[name].calls[number]
        call.did_at = self._lines
        if self._is_kill:
            self._hands[name].proven = number + 1
        if not call.is_synced:
            return
        for hand in self._hands.values():
            while hand.proven < len(hand.calls):
                did_at = hand.calls[hand.proven].did_at
                if did_at is None or did_at > call.asked_at:
                    break
                hand.proven += 1
        self._hands[name].proven = number + 1

    def _found(self, numbers: Mapping[str, int], dead: Sequence[str]) -> None:
        merged: State = {}
        for name, hand in self._hands.items():
            merged |= self._state(hand, numbers[name])
        for key in dead:
            merged[key] = merged[key]._replace(state="dead")
        # Others may go on with tasks that were not theirs: one state for all.
        self._hands = {"": _Hand(base=merged)}

    # What there must be.

    @property
    def hands(self) -> list[str]:
        """The hands since an opening has found a state; then there is one, ""."""
        return list(self._hands)

    def match(
        self, name: str, seen: Mapping[str, Seen]
    ) -> tuple[int, State, list[str]] | None:
        """Return behind how many of its calls a hand's tasks are as seen.

        With it come the state there, and who is dead in it of his one start.
        """
        for number, state in self._states(name, seen):
            if visible(state) == seen:
                before = self._state(self._hands[name], number)
                dead = [key for key, entry in state.items() if entry != before[key]]
                return number, state, dead
        return None

    def differences(self, name: str, seen: Mapping[str, Seen]) -> list[str]:
        """Return how what was seen differs from the nearest of the states, in words."""
        nearest: list[str] = []
        for number, state in self._states(name, seen):
            expected = visible(state)
            lines = [
                f"{key} is {seen.get(key)}, behind call {number} it was to be "
                f"{expected.get(key)}"
                for key in sorted(expected.keys() | seen.keys())
                if expected.get(key) != seen.get(key)
            ]
            if not nearest or len(lines) < len(nearest):
                nearest = lines
        return nearest

    def _states(
        self, name: str, seen: Mapping[str, Seen]
    ) -> Iterator[tuple[int, State]]:
        """Yield each state in which a hand's tasks may be, the latest first.

        What starts at most once is dead in it if it was started, or is seen to be.
        """
        hand = self._hands[name]
        for number in range(len(hand.calls), hand.proven - 1, -1):
            state = self._state(hand, number)
            for key, entry in state.items():
                if not entry.is_once or entry.state != "live":
                    continue
                is_seen_dead = key in seen and seen[key][0] == "dead"
                if key in self.unended or is_seen_dead:
                    state[key] = entry._replace(state="dead")
            yield number, state

    def _state(self, hand: _Hand, number: int) -> State:
        state = dict(hand.base)
        for call in hand.calls[:number]:
            state |= call.changes
        return state


def visible(state: State) -> dict[str, Seen]:
    """Return what can be seen of a state: generated ids leave nothing when finished."""
    return {
        key: (entry.state, 0, False)
        if entry.state in FINISHED
        else (entry.state, entry.stamp, entry.is_far)
        for key, entry in state.items()
        if entry.has_id or entry.state not in FINISHED
    }
