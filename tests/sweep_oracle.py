"""What must hold after every power cut: the judge of the sweeps.

`judge` opens the store on a disk as a cut has left it, and raises `AssertionError` for
the first of these that does not hold:

    O1  what was acknowledged is there, what was refused is not
    O2  the state is one that the log's order makes, whole calls only
    O3  opening again gives the same
    O4  the store takes new writes, which outlive the next cut
    O5  what is done never comes again, all else does, at last
    O6  numbers, fences and stamps never go back and never come twice
    O7  damage of durable bytes: the exact state, or a loud refusal
    O8  no file is left that nobody knows

That nothing succeeds after a failed sync (O9) is for the sweep that injects errors.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from store_model import StoreModel
from sweep_story import STORE, Promise, open_on

import wheeldb
from wheeldb.testing import CrashableDisk, Image, ManualClock
from wheeldb.testing.sweep import Cut

# Under these, what a sync has covered may be gone.
DEEP_PROFILES = frozenset({"lying_sync", "damage"})
LOUD = (wheeldb.CorruptionError, wheeldb.FormatError)

# What says that the store is dead.
POISON = (wheeldb.CommitUnknown, wheeldb.StorePoisoned)

EXPLAINED = re.compile(
    r"LOCK|FORMAT|log/\d{8}-[0-9a-f]{16}\.seg|log/reserve|log/ballast|log/spare"
    r"|index/VOUCH|snapshots/[0-9a-z-]+\.snap|aside/\d{8}-[0-9a-f]{16}\.seg\.torn"
)
_NEW_ID = "written after the cut"
_FAR_AHEAD_S = 10**8
_OFF_S = 3.0


@dataclass(slots=True)
class Verdicts:
    """How often it came to what."""

    exact: int = 0
    refused: int = 0


class Judge:
    """Judges the images of one sweep.

    Attributes:
        promise: What held as the power went.
        verdicts: The count.
    """

    def __init__(self, promise: Promise, verdicts: Verdicts) -> None:
        self.promise = promise
        self.verdicts = verdicts

    def judge(
        self, disk: CrashableDisk, cut: Cut, image: Image, *, depth: int = 1
    ) -> None:
        """Open what a cut has left, and look at it from all sides."""
        promise = self.promise
        first = self._first_moment(disk, cut, image)
        clock = clock_after(promise, cut, depth)
        name = f"{cut} {depth}"
        try:
            db = open_on(disk, clock, name, **promise.options)
        except LOUD:
            assert cut.profile in DEEP_PROFILES, "a crash alone must never refuse"
            self.verdicts.refused += 1
            return
        except wheeldb.StorageFullError:
            disk.full(None)
            db = open_on(disk, clock, name, **promise.options)
        self.verdicts.exact += 1
        model = self._match(db, first, cut, depth)
        self._check_numbers(db, has_all=first == promise.durable)
        lsn = db._engine.state.last_lsn
        if cut.number % 2 == 0:
            disk.full(None)
            receipt = db.schedule("new", id=_NEW_ID, delay=timedelta(days=30))
            assert receipt.lsn > lsn, "O6: a number came twice"
        before = view(db, promise.ids)
        disk.crash("none")
        db = open_on(disk, clock, f"{name} again", **promise.options)  # O3, O4
        assert view(db, promise.ids) == before, "O3: opening again gave another state"
        assert (db.get(_NEW_ID) is not None) == (cut.number % 2 == 0), "O4: it is lost"
        findings = db.check()
        if cut.profile in DEEP_PROFILES:
            # What is damaged and harmless is told.
            findings = [one for one in findings if one.where in ("index", "memory")]
        assert findings == [], findings
        files = [path.removeprefix(STORE + "/") for path in disk.dump()]
        strange = [path for path in files if not EXPLAINED.fullmatch(path)]
        assert not strange, f"O8: {strange}"
        if cut.number % 4 == 0:
            self._check_firing(db, clock, model)

    # O1, O2, O7.

    def _first_moment(self, disk: CrashableDisk, cut: Cut, image: Image) -> int:
        """Return the oldest moment at which the store may stand.

        Damage may be taken for a torn tail where nothing vouches for the bytes: that is
        the last synced frame, and with a sector or more, all that the last segment has
        behind it.
        """
        if cut.profile == "lying_sync":
            return 0
        for one in image.damages:
            segments = [path for path in disk.dump() if path.endswith(".seg")]
            if one.path >= max(segments, default=""):
                if one.path.endswith(".seg") and one.kind != "bit flip":
                    return 0
                return self.promise.vouched
        return self.promise.durable

    def _match(
        self, db: wheeldb.WheelDB, first: int, cut: Cut, depth: int
    ) -> StoreModel:
        """Return the moment at which the store stands, brought to the present."""
        promise = self.promise
        found = view(db, promise.ids)
        recoveries_max = 3 if is_killed(cut, depth) else 10
        # A recovery that was cut itself may have ended the attempts in its own time.
        ended_ms = [round(_OFF_S * 1000) * back for back in range(2 * depth - 1)]
        differences = ""
        for moment in reversed(promise.moments[first:]):
            for back_ms in ended_ms:
                model = moment.copy()
                now = db._engine.now()
                model.at(now)
                model.elapsed_ms -= back_ms
                model.interrupt(recoveries_max)
                model.at(now)
                expected = view_of_model(model, promise.ids)
                if found == expected:
                    return model
                differences += _difference(found, expected)
        raise AssertionError(
            f"O1, O2: none of the moments {first}–{len(promise.moments) - 1} is like "
            f"the store ({db.recovery}): {differences}"
        )

    # O5.

    @staticmethod
    def _check_firing(
        db: wheeldb.WheelDB, clock: ManualClock, model: StoreModel
    ) -> None:
        clock.set_synchronised(True)
        for task in db.tasks():
            if task.state == "paused":
                db.resume(task.id)
        for queue in model.paused_queues:
            db.resume(queue=queue)
        clock.advance(_FAR_AHEAD_S)
        for _ in range(3):
            db.poll()
        queues = sorted({task.asked.queue for task in model.tasks.values()})
        fired = {one.number for one in db.lease([*queues, "default"], limit=1000)}
        expected = {
            number
            for number, task in model.tasks.items()
            if task.state != "dead"
            and task.asked.expires_ms is None
            and task.asked.expires_at_ms is None
        }
        others = fired - expected
        assert not expected - fired, f"O5: never started: {expected - fired}"
        known = {n for n, task in model.tasks.items() if task.state != "dead"}
        assert {n for n in others if n in model.numbers} <= known, "O5: came again"

    # O6.

    def _check_numbers(self, db: wheeldb.WheelDB, *, has_all: bool) -> None:
        # What is lost with all that tells of it can't be known to have been there.
        if has_all and db.recovery.reason != "new":
            state = db._engine.state
            assert state.last_lsn > self.promise.lsn_highest, "O6: a number came twice"
            assert state.last_hlc > self.promise.hlc_highest, "O6: a stamp went back"


def is_killed(cut: Cut, depth: int) -> bool:
    """Return whether only the process has died: the boot is the same."""
    return cut.profile == "all" and depth == 1


def clock_after(promise: Promise, cut: Cut, depth: int) -> ManualClock:
    """Return the clock of the machine that comes up after the cut."""
    up = timedelta(milliseconds=promise.boottime_ms)
    clock = ManualClock(promise.wall - up)
    for _ in range(promise.boots - 1):
        clock.reboot()
    clock.advance(up.total_seconds())
    if is_killed(cut, depth):
        return clock
    for _ in range(depth):
        clock.reboot(off=_OFF_S)
    if cut.number % 5 == 4:
        clock.step_wall(-3600)  # a battery that is going flat
    return clock


def view(db: wheeldb.WheelDB, ids: frozenset[str]) -> dict[object, object]:
    """Return all that a store shows, by number, and by id what has ended."""
    shown: dict[object, object] = {}
    live = set()
    for task in db.tasks():
        live.add(task.id)
        if task.id != _NEW_ID:
            due_in = task.due_in
            shown[task.number] = (
                task.id, task.name, task.queue, task.payload, str(task.state),
                task.version, task.due_kind,
                None if due_in is None else round(due_in * 1000),
                task.priority, task.attempts, task.recoveries, task.error,
            )  # fmt: skip
    for task_id in ids - live:
        ended = db.get(task_id)
        if ended is not None:
            shown[task_id] = (
                ended.number, str(ended.state), ended.version, ended.attempts,
                ended.recoveries, ended.result,
            )  # fmt: skip
    return shown


def view_of_model(model: StoreModel, ids: frozenset[str]) -> dict[object, object]:
    """Return what a store must show that stands where the model stands."""
    shown: dict[object, object] = {}
    for number, task in model.tasks.items():
        timeline, due_ms = task.behind or (task.timeline, task.due_ms)
        asked = task.asked
        shown[number] = (
            model.id_of(task), asked.name, asked.queue, asked.payload,
            model.shown(task), asked.version, timeline,
            due_ms - model.now_ms(timeline),
            asked.priority, task.attempts, task.recoveries, task.error,
        )  # fmt: skip
    for task_id in ids:
        ended = model.remembered(task_id)
        if ended is not None and model.live(task_id) is None:
            shown[task_id] = (
                ended.number, ended.state, ended.asked.version, ended.attempts,
                ended.recoveries, ended.result,
            )  # fmt: skip
    return shown


def _difference(found: dict[Any, object], expected: dict[Any, object]) -> str:
    lines = [
        f"\n    {key}: {_short(found.get(key))}, not {_short(expected.get(key))}"
        for key in {**found, **expected}
        if found.get(key) != expected.get(key)
    ]
    return "".join(lines[:3]) + "\n   --"


def _short(value: object) -> str:
    return re.sub(r"(\w)\1{20,}", r"\1…", str(value))


def require_dead(db: wheeldb.WheelDB, id: str) -> None:
    """Try every kind of change of a store whose log has failed: none may succeed."""
    for change in (
        lambda: db.schedule("job", delay=1),
        lambda: db.schedule("job", delay=1, durability="written"),
        lambda: db.cancel(id),
        lambda: db.lease("default"),
        db.checkpoint,
        db.snapshot,
        db.poll,
    ):
        try:
            change()
        except POISON:
            continue
        raise AssertionError("O9: something succeeded on a dead store")
