"""How a store is held against the model: all that can be seen, compared.

`differences` says in words where the two differ; an empty list is agreement. Nothing
here changes the store.
"""

from datetime import timedelta

from machine_draws import EPOCH
from store_model import StoreModel
from sweep_oracle import EXPLAINED

import wheeldb
from wheeldb.engine.row import Row
from wheeldb.payload import unpack_payload
from wheeldb.testing import CrashableDisk

IDS = ("a", "b", "c")


def differences(db: wheeldb.WheelDB, model: StoreModel) -> list[str]:
    """Return how what the store shows differs from what the model says."""
    findings = []
    shown = {task.number: task for task in db.tasks()}
    if list(shown) != sorted(model.tasks):
        findings.append(f"tasks {list(shown)}, not {sorted(model.tasks)}")
    for number, task in sorted(model.tasks.items()):
        timeline, due_ms = task.behind or (task.timeline, task.due_ms)
        expected: dict[str, object] = {
            "id": model.id_of(task),
            "name": task.asked.name,
            "queue": task.asked.queue,
            "payload": task.asked.payload,
            "state": model.shown(task),
            "version": task.asked.version,
            "due_kind": timeline,
            "due_in": (due_ms - model.now_ms(timeline)) / 1000,
            "priority": task.asked.priority,
            "attempts": task.attempts,
            "recoveries": task.recoveries,
            "error": task.error,
        }
        one = shown.get(number)
        if one is not None:
            if one != db.get(one.id):
                findings.append(f"{one} and {db.get(one.id)}")
            found = {name: getattr(one, name) for name in expected}
            if found != expected:
                findings.append(f"task {number}: {found}, not {expected}")
    return findings + ended_differences(db, model)


def learn_ends(db: wheeldb.WheelDB, model: StoreModel) -> None:
    """Take over when tasks ended: that is told by the store's own clock."""
    for task_id, ended in model.ended.items():
        one = db.get(task_id) if ended.finished_ms is None else None
        if one is not None and one.finished_at is not None:
            ended.finished_ms = (one.finished_at - EPOCH) // timedelta(milliseconds=1)


def ended_differences(db: wheeldb.WheelDB, model: StoreModel) -> list[str]:
    findings = []
    for task_id in IDS:
        if model.live(task_id) is not None:
            continue
        one = db.get(task_id)
        ended = model.remembered(task_id)
        if ended is not None and ended.was_old and one is None:
            # The wall clock was set back, and can't bring back what is forgotten.
            del model.ended[task_id]
            continue
        found = None
        if one is not None:
            found = (
                one.number,
                one.state,
                one.version,
                one.attempts,
                one.recoveries,
                one.result,
            )
        expected = None
        if ended is not None:
            expected = (
                ended.number,
                ended.state,
                ended.asked.version,
                ended.attempts,
                ended.recoveries,
                ended.result,
            )
        if found != expected:
            findings.append(f"id {task_id}: {found}, not {expected}")
    return findings


def hidden_differences(db: wheeldb.WheelDB, model: StoreModel) -> list[str]:
    """Return what differs of that which shows only later."""
    paused = set(db._engine.state.paused_queues)
    if paused != model.paused_queues:
        return [f"paused {sorted(paused)}, not {sorted(model.paused_queues)}"]
    findings = []
    for task in model.tasks.values():
        row = db._engine.find(model.id_of(task))
        assert isinstance(row, Row)
        cursor = None if row.cursor is None else unpack_payload(row.cursor)
        if cursor != task.cursor:
            findings.append(f"cursor of {task.number}: {cursor}, not {task.cursor}")
    return findings


def count_differences(db: wheeldb.WheelDB, model: StoreModel) -> list[str]:
    """Return what is wrong with the counts, and with the state behind them."""
    pending: dict[str, dict[str, int]] = {}
    for task in model.tasks.values():
        counts = pending.setdefault(task.asked.queue, {})
        counts[task.state] = counts.get(task.state, 0) + 1
    found = db.statistics().pending
    findings = [] if found == pending else [f"pending {found}, not {pending}"]
    engine = db._engine
    checked = [*engine.state.check(), *engine.window.check()]
    return findings + [str(one) for one in checked]


def strange_files(disk: CrashableDisk, store: str) -> list[str]:
    """Return the files that no store has."""
    paths = [path.removeprefix(store + "/") for path in disk.dump()]
    return [path for path in paths if not EXPLAINED.fullmatch(path)]
