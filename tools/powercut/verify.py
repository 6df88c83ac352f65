"""wheeldb's own verifier: opens what a power cut has left, and holds it to its word.

    python -m tools.powercut.verify DIRECTORY [--kill] < LINES

It looks at the store read-only, opens it, compares, and then uses it:

- every hand's tasks are as they were behind one of the calls that it may have come to;
  what was done stays done (`tools.powercut.promises`);
- a reader sees the same as the opening, and so does a second opening;
- `check` finds nothing, before and after;
- LSNs and fences go on above all that were ever seen;
- every task that is due starts, no other does, and a start that may be the second one
  says so;
- new tasks are taken, in one call and many, and are there after another opening.

What it does it says on standard output, as the workload does, so that a cut of its own
run can be judged. Findings go to standard error, with status 1. With ``--kill`` nothing
but the process has ended: then calls of level ``written`` must be there as well.
"""

import argparse
import sys
from collections.abc import Mapping, Set
from pathlib import Path

import wheeldb
from tools.powercut.promises import Ledger, Seen, State, hand_of, visible
from tools.powercut.workload import FAR_SECONDS, OPTIONS, Hand, key_of, say
from wheeldb.model import TaskState

__all__ = ("judge", "main", "observe")

_FINISHED = (TaskState.DONE, TaskState.CANCELLED, TaskState.EXPIRED)
_LIVE = {TaskState.SCHEDULED, TaskState.DUE, TaskState.LEASED}
# Without a driver nothing moves between two looks.
_OPTIONS: wheeldb.OpenOptions = {**OPTIONS, "driver": False}
LEASES = 100
SETTLED = 12
FINDINGS_MAX = 20


def observe(
    db: wheeldb.WheelDB, *, leased: str = "live"
) -> tuple[dict[str, Seen], list[str]]:
    """Return what can be seen of each task, and what is wrong with the sight.

    Args:
        db: An open store.
        leased: What to call the state of a leased task.
    """
    seen: dict[str, Seen] = {}
    findings: list[str] = []
    for state in _FINISHED:
        for task in db.tasks(state=state):
            seen[task.id] = (str(state), 0, False)
    for task in db.tasks():
        payload = task.payload
        assert isinstance(payload, dict), payload
        key, state_word = payload["key"], str(task.state)
        if key in seen:
            findings.append(f"{key} is there twice: {seen[key]}, {task.state}")
        if task.state in _LIVE:
            state_word = leased if task.state == TaskState.LEASED else "live"
        is_far = task.due_in is not None and task.due_in > FAR_SECONDS / 2
        seen[key] = (state_word, payload["stamp"], is_far)
    return seen, findings


def judge(directory: Path, ledger: Ledger) -> list[str]:
    """Return everything that is wrong with the store in a directory."""
    path = directory / "store"
    findings = list(ledger.findings)
    before = None
    try:
        with wheeldb.open(path, readonly=True) as reader:
            before, _ = observe(reader, leased="leased")
    except (wheeldb.FormatError, FileNotFoundError):
        # Only before its creation has ended; then opening makes it.
        if ledger.is_opened:
            raise
    db = wheeldb.open(path, **_OPTIONS)
    try:
        seen, wrong = observe(db)
        findings += wrong
        if before is not None:
            # An opening ends the leases of the process before: its tasks are due again,
            # or cancelled where they were cancelled meanwhile.
            leased = {key for key, (state, _, _) in before.items() if state == "leased"}
            unlike = _unlike(before, seen, leased)
            if unlike:
                findings.append(f"a reader saw another state: {unlike}")
        last_lsn = db.statistics().last_lsn
        if last_lsn <= ledger.lsn_highest:
            findings.append(f"at LSN {last_lsn}; {ledger.lsn_highest} was seen before")
        findings += [f"check: {finding}" for finding in db.check()]
        numbers: dict[str, int] = {}
        dead: list[str] = []
        found: State = {}
        for name in ledger.hands:
            own = {k: s for k, s in seen.items() if name in {"", hand_of(k)}}
            match = ledger.match(name, own)
            if match is None:
                findings += ledger.differences(name, own)
            else:
                numbers[name], state, more = match
                found |= state
                dead += more
        stray = {hand_of(key) for key in seen} - set(ledger.hands)
        if stray and "" not in ledger.hands:
            findings.append(f"tasks of {sorted(stray)}, who asked for none")
        if findings:
            return findings
        say("opened", last_lsn)
        say("found", numbers, dead)
        hand = Hand("", f"verify {last_lsn}", prefix=f"v{last_lsn}", state=found)
        findings += _use(db, hand, ledger)
    finally:
        db.close()
    return findings or _judge_again(path, hand.state)


def _use(db: wheeldb.WheelDB, hand: Hand, ledger: Ledger) -> list[str]:
    """Add some tasks, start all that is due, settle the first of them."""
    findings = []
    for add in (hand.schedule, hand.schedule_many, hand.batch, hand.replace):
        add(db)
    db.checkpoint()
    started: set[str] = set()
    highest = ledger.fence_highest
    queues = sorted({hand_of(key) for key in hand.state})
    while leases := db.lease(queues, limit=LEASES):
        for lease in leases:
            key = key_of(lease)
            if key in started or key not in _due(hand.state):
                findings.append(f"{key} starts, and is {hand.state.get(key)}")
                return findings
            if lease.fence <= highest:
                findings.append(f"fence {lease.fence} of {key} is not above {highest}")
            if key in ledger.unended and not lease.may_have_run:
                findings.append(f"{key} was started before, and does not say so")
            started.add(key)
            highest = max(highest, lease.fence)
            if len(started) <= SETTLED:
                ends = (hand.ack, hand.reject, hand.cancel_leased)
                hand.settle(db, lease, ends[len(started) % len(ends)])
    for key in started & _due(hand.state):
        if hand.state[key].is_once:
            # It is leased, and stays so until an opening ends it.
            hand.state[key] = hand.state[key]._replace(state="dead")
    if missing := _due(hand.state) - started:
        findings.append(f"due, and not started: {sorted(missing)}")
    db.snapshot()
    return findings


def _due(state: State) -> set[str]:
    return {
        key
        for key, entry in state.items()
        if entry.state == "live" and not entry.is_far
    }


def _judge_again(path: Path, state: State) -> list[str]:
    """Open the store once more, and compare with what was done to it."""
    with wheeldb.open(path, **_OPTIONS) as db:
        findings = [f"check, later: {finding}" for finding in db.check()]
        seen, wrong = observe(db)
        findings += wrong
        if unlike := _unlike(visible(state), seen):
            findings.append(f"not as it was left: {unlike}")
    return findings


def _unlike(
    before: Mapping[str, Seen], after: Mapping[str, Seen], apart: Set[str] = frozenset()
) -> str:
    """Return in words what differs, apart from some keys; nothing if nothing does."""
    return ", ".join(
        f"{key} {before.get(key)} → {after.get(key)}"
        for key in sorted((before.keys() | after.keys()) - apart)
        if before.get(key) != after.get(key)
    )


def main() -> int:
    """Judge the directory on the command line by the lines on standard input."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill", action="store_true", help="not the machine")
    options = parser.parse_args()
    ledger = Ledger(is_kill=options.kill)
    for line in sys.stdin:
        ledger.take(line)
    findings = judge(options.directory, ledger)
    for finding in findings[:FINDINGS_MAX]:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
