"""Every operation of a scenario fails, in every way, once or for ever.

A `Fault` is one of them: the n-th call of an operation, an error, and what the file
system makes of a failed sync. `try_fault` lives the scenario with it and raises
`AssertionError` unless

- it was told: by an error of the call, by the statistics, or it is one of `HARMLESS`;
- nothing succeeds after the log has failed, until the store is opened again (O9);
- the next opening, after a kill and after power cuts, finds what was promised (O1–O8).
"""

import errno
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from store_model import Asked
from sweep_oracle import POISON, Judge, Verdicts, require_dead
from sweep_scenarios import Scenario
from sweep_story import Story

from wheeldb.testing.faults import AFTER_FAILED_SYNC
from wheeldb.testing.sweep import Cut

if TYPE_CHECKING:
    from wheeldb.testing import CrashableDisk

ERRORS: tuple[int | str, ...] = (
    errno.EIO, errno.ENOSPC, errno.EROFS, errno.EINTR, "short",
)  # fmt: skip
SHORT_OPERATIONS = frozenset({"pread", "pwrite"})
SYNCS = frozenset({"sync", "sync_data", "sync_directory"})
# Errors that need no telling: the call was repeated, or what it was for is a help only.
# For want of room it is repeated with what was reserved, a rotation as a whole.
HARMLESS = frozenset(
    {
        ("pread", "short"),
        ("pwrite", "short"),
        ("pwrite", errno.ENOSPC),
        ("truncate", errno.ENOSPC),
        ("allocate", errno.ENOSPC),
        ("open", errno.ENOSPC),
        ("rename", errno.ENOSPC),
    }
)
# Where what is written is a help only, or is written again: the index is a cache, VOUCH
# spares reading it, LOCK tells people who has it, torn bytes are kept if there is room.
# An older snapshot that can't be read stays, with all that it needs; `check` names it.
HARMLESS_PATHS = re.compile(
    r"/store(/index(/VOUCH(\.tmp)?)?|/LOCK|/aside.*|/snapshots/.*\.snap)?"
)
# Tidying up behind a failure that is told, or that is got over.
TIDYING = frozenset({"size", "unlink"})


class Fault(NamedTuple):
    """One way to fail, written "sync_data EIO 3 once keep"."""

    operation: str
    error: int | str
    nth: int
    is_forever: bool
    failed_sync: str

    def __str__(self) -> str:
        error = self.error
        name = error if isinstance(error, str) else errno.errorcode[error]
        how = "for ever" if self.is_forever else "once"
        return f"{self.operation} {name} {self.nth} {how} {self.failed_sync}"


def faults_of(scenario: Scenario) -> Iterator[Fault]:
    """Yield every fault that a scenario can meet."""
    story = Story(**scenario.options)
    calls = story.disk._faults.calls

    def begin() -> None:
        story.rest()
        calls.clear()

    scenario.live(story, begin)
    for operation, count in sorted(calls.items()):
        kinds = AFTER_FAILED_SYNC if operation in SYNCS else ("keep",)
        for error in ERRORS:
            if error == "short" and operation not in SHORT_OPERATIONS:
                continue
            for nth in range(1, count + 1):
                for is_forever in (False, True):
                    for kind in kinds:
                        yield Fault(operation, error, nth, is_forever, kind)


def try_fault(scenario: Scenario, fault: Fault) -> None:
    """Live the scenario with a fault.

    Raises:
        AssertionError: The store did not bear it as it must.
    """
    story = Story(failed_sync=fault.failed_sync, **scenario.options)
    told: Exception | None = None

    def begin() -> None:
        story.rest()
        story.disk.fail(
            fault.operation, fault.error, fault.nth, forever=fault.is_forever
        )

    try:
        scenario.live(story, begin)
    except AssertionError:
        raise
    except Exception as error:
        told = error
    hits = story.disk._faults.hits
    if hits and told is None and not _is_told(story, fault):
        untold = [hit for hit in hits if not HARMLESS_PATHS.fullmatch(hit.path)]
        assert all(name in TIDYING for name, _ in untold), f"nobody was told: {untold}"
    story.disk.heal()
    if story.is_open:
        _go_on(story)
    _judge(story, fault)


def _is_told(story: Story, fault: Fault) -> bool:
    if (fault.operation, fault.error) in HARMLESS or fault.failed_sync == "late":
        return True  # what fails late, behind the last sync of a file, nobody can know
    if not story.is_open:
        # A close whose writes find no room leaves no footer; a failed sync it tells.
        return fault.error == errno.ENOSPC and fault.operation not in SYNCS
    if story.db._engine.committer.poison is not None:
        return True  # a watermark, which is nobody's call: the next one is told
    statistics = story.db.statistics()
    return bool(statistics.snapshot_error or statistics.index_rebuilds)


def _go_on(story: Story) -> None:
    """A dead store stays dead, and any other one works again."""
    db = story.db
    if db._engine.committer.poison is None:
        try:
            story.schedule(Asked(delay_ms=60_000, id="after the fault"))
        except POISON:
            assert story.disk._failed_sync == "late", "a healed disk fails again"
        return
    require_dead(db, "due-1")


def _judge(story: Story, fault: Fault) -> None:
    """Open what is left, after a kill and after power cuts."""
    promise = story.promise()
    # A sync that lied in good faith: what it covered may be gone.
    is_lie = fault.failed_sync == "late"
    for number, profile in enumerate(("all", "none", "failed_sync", "all")):
        disk: CrashableDisk = story.disk.clone()
        if number == 3:
            disk.drop_caches()
        image = disk.image(profile)
        cut = Cut(fault.nth, "lying_sync" if is_lie else profile, number)
        Judge(promise, Verdicts()).judge(disk.after(image), cut, image)
