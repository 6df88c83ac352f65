"""The scenarios of the sweeps: thirteen short lives of a store.

Each takes a fresh `Story`; what it does before it calls `begin` is only preparation,
and from there on the power may go at every operation. They are kept small, because each
operation is worth some hundred images: a segment holds 64 KiB, a payload up to 25 KB.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from store_model import Asked, StoreModel
from sweep_story import Story, several

import wheeldb
from wheeldb.index.keys import TASK
from wheeldb.index.memory import MemoryIndex

Begin = Callable[[], None]

LARGE = "x" * 25_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """A life, and the options that it is led with."""

    name: str
    live: Callable[[Story, Begin], None]
    options: dict[str, Any] = field(default_factory=dict)


def _first_creation(story: Story, begin: Begin) -> None:
    begin()
    story.open()
    story.schedule(several("first", 1)[0])


def _single_commits(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("before", 3))
    begin()
    story.schedule(Asked(name="a", delay_ms=60_000, id="one"))
    story.schedule(Asked(name="a", delay_ms=60_000), durability="written")
    story.schedule(Asked(name="b", delay_ms=0, payload={"n": 1}))
    story.schedule_many(several("many", 4, payload="x" * 700))
    story.schedule(Asked(name="a", delay_ms=0, id="two"), durability="written")
    story.schedule(Asked(name="a", delay_ms=60_000, id="three", payload=b"\0" * 1500))
    story.poll(1)


def _group_commit(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule(several("before", 1)[0])
    begin()
    first, *others = several("group", 5, payload="y" * 400)
    story.group(first, others)
    story.schedule(Asked(name="a", delay_ms=0), durability="written")
    story.group(*_split(several("again", 4)))


def _split(many: list[Asked]) -> tuple[Asked, list[Asked]]:
    return many[0], many[1:]


def _rotation(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("before", 2, payload=LARGE))
    begin()
    for number in range(4):
        story.schedule(Asked(name="a", delay_ms=60_000, id=f"l{number}", payload=LARGE))
        story.schedule(Asked(name="a", delay_ms=60_000), durability="written")


def _checkpoint(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("before", 4, delay_ms=0))
    story.do(story.db.checkpoint)
    begin()
    leases = story.lease(2)
    story.schedule_many(several("behind", 10))
    story.do(story.db.checkpoint)
    story.ack(leases[0])
    story.cancel("behind-1")
    story.schedule(Asked(name="a", delay_ms=60_000), durability="written")
    story.do(story.db.checkpoint)
    story.poll(61)


def _snapshot(story: Story, begin: Begin) -> None:
    story.open()
    _some_of_each(story)
    begin()
    story.do(story.db.snapshot)
    story.schedule_many(several("behind", 2))
    story.do(story.db.snapshot)


def _some_of_each(story: Story) -> None:
    """Have tasks in every state."""
    story.schedule_many(several("due", 5, delay_ms=0, attempts_max=1))
    # So many of one call share rows of the index.
    story.schedule_many(several("later", 11, queue="other"))
    done, failed, rejected, held = story.lease(4)
    story.ack(done)
    story.nack(failed)
    story.do(
        lambda: rejected.reject("no good"),
        lambda model: model.reject(rejected.number, rejected.fence, "no good"),
    )
    story.do(
        lambda: held.save({"at": 3}),
        lambda model: model.save(held.number, held.fence, {"at": 3}),
    )
    story.cancel("later-1")
    story.do(
        lambda: story.db.pause("later-2"),
        lambda model: model.pause("later-2"),
    )


def _segment_removal(story: Story, begin: Begin) -> None:
    story.open()
    for number in range(3):
        story.schedule(Asked(name="a", delay_ms=60_000, id=f"a{number}", payload=LARGE))
    story.do(story.db.snapshot)
    for number in range(3):
        story.schedule(Asked(name="a", delay_ms=60_000, id=f"b{number}", payload=LARGE))
    begin()
    story.do(story.db.snapshot)
    story.cancel("a1")
    story.schedule(Asked(name="a", delay_ms=60_000, id="c", payload=LARGE))
    story.do(story.db.snapshot)


def _unclean_end(story: Story, begin: Begin) -> None:
    """Repair: an opening after a cut that has left frames unproven and a torn tail."""
    story.open()
    story.schedule_many(several("before", 4, delay_ms=0))
    story.do(story.db.checkpoint)
    story.schedule(Asked(name="a", delay_ms=60_000, id="synced"))
    story.lease(2)
    story.schedule(Asked(name="a", delay_ms=60_000, id="w"), durability="written")
    segment = max(path for path in story.disk.dump() if path.endswith(".seg"))
    end = story.db._engine.committer.writer.position.offset
    story.cut_power("all")
    # Half of a frame that was under way.
    handle = story.disk.open(segment)
    story.disk.pwrite(handle, b"torn" * 300, end)
    story.disk.close(handle)
    begin()
    story.open(recoveries_max=10)
    story.schedule(Asked(name="a", delay_ms=60_000, id="after"))


def _index_rebuild(story: Story, begin: Begin) -> None:
    """The index is lost twice: while the store is closed, and while it runs."""
    story.open()
    _some_of_each(story)
    story.do(story.db.snapshot)
    story.schedule_many(several("behind", 3))
    story.do(story.db.checkpoint)
    story.schedule_many(several("last", 2))
    story.cut_power("all", index="unopenable")
    begin()
    story.open(recoveries_max=10)
    story.do(story.db.checkpoint)
    (index,) = story.disk.indexes.values()
    assert isinstance(index, MemoryIndex)
    number = story.moments[-1].live("behind-1").number  # type: ignore[union-attr]
    index.corrupt(TASK, number.to_bytes(8, "big"), offset=14, xor=1)
    story.do(lambda: story.db.get("behind-1"))
    story.cancel("behind-1")
    story.schedule(Asked(name="a", delay_ms=60_000, id="after"))


def _leases(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("due", 8, delay_ms=0))
    story.schedule(Asked(name="once", delay_ms=0, id="once", at_most_once=True))
    story.schedule(Asked(name="short", delay_ms=100, id="short", lease_ms=400))
    story.schedule(Asked(name="late", delay_ms=200, id="late", expires_ms=500))
    begin()
    a, b, c, d = story.lease(4)
    story.ack(a, then=several("then", 2))
    story.nack(b)
    story.do(
        lambda: c.release(1.0),
        lambda model: model.release(c.number, c.fence, 1000),
    )
    story.do(
        lambda: d.renew(90.0), lambda model: model.renew(d.number, d.fence, 90_000)
    )
    story.do(lambda: d.save([1]), lambda model: model.save(d.number, d.fence, [1]))
    story.poll(0.06)
    e, f = story.lease(2)
    story.do(
        lambda: e.reject("no"), lambda model: model.reject(e.number, e.fence, "no")
    )
    story.do(
        lambda: story.db.ack_many([d, f]),
        lambda model: [model.ack(x.number, x.fence, x.id) for x in (d, f)],
    )
    story.poll(0.1)
    story.lease(3)
    story.poll(1)
    story.lease(4)
    story.poll(0.06)


def _changes(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("t", 8))
    story.schedule_many(several("q", 2, queue="other", delay_ms=0))
    story.schedule_many(several("d", 1, delay_ms=0, attempts_max=1))
    (lease,) = story.lease()
    story.nack(lease)
    begin()
    db = story.db
    story.cancel("t-0")
    story.do(
        lambda: db.reschedule("t-1", delay=120),
        lambda model: model.reschedule("t-1", 120_000, None),
    )
    story.do(lambda: db.run_now("t-2"), lambda model: model.run_now("t-2"))
    story.do(lambda: db.pause("t-3"), lambda model: model.pause("t-3"))
    story.do(lambda: db.resume("t-3"), lambda model: model.resume("t-3", now=False))
    story.do(lambda: db.revive("d-0"), lambda model: model.revive("d-0"))
    story.do(
        lambda: db.pause(queue="other"),
        lambda model: model.paused_queues.add("other"),
    )
    story.do(
        lambda: db.resume(queue="other"),
        lambda model: model.resume_queue("other", now=False),
    )
    (lease,) = story.lease()
    story.schedule(Asked(name="new", delay_ms=90_000, id=lease.id, version=1))
    story.schedule(Asked(name="a", delay_ms=90_000, id="t-4", if_exists="replace"))
    _batch(story)
    _refused(story)
    story.cancel(lease.id, running=True)


def _batch(story: Story) -> None:
    story.ids.add("b-1")
    number = story.next_lsn()
    asked = Asked(name="b", delay_ms=60_000, id="b-1")

    def call() -> None:
        with story.db.batch() as batch:
            batch.cancel("t-5", expect=wheeldb.CancelOutcome.CANCELLED)
            batch.schedule("b", delay=60, id="b-1", lease=30, retry=wheeldb.Retry(3))
            batch.reschedule("t-6", delay=5)

    def effect(model: StoreModel) -> None:
        model.cancel("t-5")
        model.schedule(asked, number + 1)
        model.reschedule("t-6", 5_000, None)

    story.do(call, effect)


def _refused(story: Story) -> None:
    """Ask for what is refused; nothing of it may ever be there."""

    def call() -> None:
        with story.db.batch() as batch:
            batch.schedule("never", delay=1, id="never")
            batch.cancel("t-5", expect=wheeldb.CancelOutcome.LEASED)

    story.ids.add("never")
    for refused in (
        call,
        lambda: story.db.schedule("other", delay=1, id="t-1"),
        lambda: story.db.reschedule("never", delay=1),
    ):
        try:
            story.do(refused)
        except wheeldb.TaskError:
            continue
        raise AssertionError("it was not refused")


def _forgetting(story: Story) -> None:
    """Let the ids of finished tasks be forgotten."""
    story.clock.advance(200)

    def forget(model: StoreModel) -> None:
        assert model.ended, "there is nothing to be forgotten"
        model.ended = {
            key: ended
            for key, ended in model.ended.items()
            if model.wall_ms - (ended.finished_ms or 0) < model.retention_ms
        }

    story.do(story.db._upkeep.tidy, forget)  # type: ignore[union-attr]


def _orderly_end(story: Story, begin: Begin) -> None:
    """What SIGTERM does, twice, and an opening in between."""
    story.open()
    _some_of_each(story)
    begin()
    story.close()
    story.open()
    story.schedule(Asked(name="a", delay_ms=0, id="between"))
    story.lease(1)
    _forgetting(story)
    story.close()


def _full_disk(story: Story, begin: Begin) -> None:
    story.open()
    story.schedule_many(several("due", 4, delay_ms=0, payload="x" * 500))
    story.schedule_many(several("later", 6, payload="x" * 500))
    leases = story.lease(3)
    used = 10**9
    story.disk.full(used)
    used -= story.disk.free_bytes()
    story.disk.full(used + 40_000)
    begin()
    for number in range(60):
        try:
            story.schedule(Asked(delay_ms=0, id=f"fill-{number}", payload="y" * 4_000))
        except wheeldb.StorageFullError:
            break
    else:
        raise AssertionError(f"the disk did not fill up: {story.disk.free_bytes()}")
    story.ack(leases[0])
    story.cancel("later-0")
    story.do(
        lambda: leases[1].reject("no"),
        lambda model: model.reject(leases[1].number, leases[1].fence, "no"),
    )
    story.lease(2)
    story.poll(0.06)
    story.do(story.db.checkpoint)
    story.disk.full(None)
    story.schedule(Asked(delay_ms=0, id="room again"))


SCENARIOS = (
    Scenario("first creation", _first_creation),
    Scenario("single commits", _single_commits),
    Scenario("group commit", _group_commit),
    Scenario("rotation", _rotation),
    Scenario("checkpoint", _checkpoint),
    Scenario("snapshot", _snapshot),
    Scenario("segment removal", _segment_removal),
    Scenario("unclean end", _unclean_end),
    Scenario("index rebuild", _index_rebuild),
    Scenario("leases", _leases),
    Scenario("changes", _changes),
    Scenario("orderly end", _orderly_end, {"retention": 100.0}),
    Scenario("full disk", _full_disk, {"reserve": True}),
)
