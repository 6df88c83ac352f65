"""Accidents: power cuts, kills and failing disks, and what has to hold behind them.

An accident comes between two steps, or waits within the disk for its operation
(`is_armed`): the power goes, or a call fails, once or until the disk is healed. What a
power cut takes is drawn piece by piece by Hypothesis, so that a walk that fails is made
shorter together with what it lost: a piece that isn't needed for the failure survives.

Behind every opening the store stands at one of the moments (O1, O2), also if the power
went in the opening before (O3); its numbers and stamps go on (O6), and no file is left
that nobody knows (O8). After a failed write or sync nothing succeeds before it (O9).
The walk goes on with what was recovered (O4, O5). Damage of durable bytes (O7), and
drives that lie, are left to the sweeps.
"""

import errno
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from machine_calls import Calls
from machine_checks import strange_files
from machine_draws import action, one_of
from machine_walk import STORE, SYNCS, TROUBLE
from store_model import StoreModel
from sweep_oracle import POISON, require_dead

import wheeldb
from wheeldb.testing import Image, PowerCut
from wheeldb.testing.index import INDEX_FATES

# A drive that keeps its promises; "block" asks for a store that reckons with flash.
PROFILES = (
    "all", "none", "prefix", "subset", "split_rename", "torn", "stale_tail",
    "failed_sync",
)  # fmt: skip
OPERATIONS = (
    "allocate", "close", "index", "info", "list", "open", "pread", "pwrite", "rename",
    "size", "sync", "sync_data", "sync_directory", "truncate", "unlink",
)  # fmt: skip
ERRORS: tuple[int | str, ...] = (
    errno.EIO, errno.ENOSPC, errno.EROFS, errno.EINTR, "short",
)  # fmt: skip
LOUD = (wheeldb.CorruptionError, wheeldb.FormatError)
# How often an attempt may be cut short before its task is dead.
KILLS_MAX, POWER_CUTS_MAX = 3, 10
# Above so many, pieces are lost or kept in groups: the draws of a walk are bounded.
DRAWN_MAX = 48


class Accidents(Calls):
    """Calls, time and accidents."""

    # Arming.

    @action(
        2,
        operation=one_of((*OPERATIONS, *sorted(SYNCS), "pwrite", "pwrite")),
        error=one_of(ERRORS),
        nth=one_of([1, 1, 2, 3, 5]),
        forever=one_of([False, True]),
    )
    def inject(self, operation: str, error: int | str, nth: int, forever: bool) -> None:
        """Let an operation fail, the nth from now or all from then on."""
        if error == "short" and operation not in ("pread", "pwrite"):
            error = errno.EIO
        # An index that can't be replaced either is left out: such a store takes no new
        # tasks, which the model doesn't know.
        is_lasting = forever and operation != "index"
        self.disk.fail(operation, error, nth, forever=is_lasting)
        self.is_armed = True

    def heal(self) -> None:
        """Let the disk work again."""
        self.disk.heal()
        # A cut that waited for its operation waits no more either.
        self.disk._faults.restore_power()
        self.is_armed = False

    @action(
        2,
        operation=one_of(range(1, 13)),
        call=one_of(["any", "poll", "checkpoint", "snapshot", "close", "any"]),
    )
    def cut_power_within(self, operation: int, call: str) -> None:
        """Cut the power in the middle of a call, or of one of the next."""
        self.disk.crash_at(operation)
        self.is_armed = True
        if call == "poll":
            self.poll()
        elif call == "close":
            self.come_back("close", 5)
        elif call != "any":
            self.care(call)

    # Striking.

    @action(3, action=one_of(["checkpoint", "checkpoint", "snapshot", "check"]))
    def care(self, action: str) -> None:
        if action == "check":
            findings = self.db.check()
            # What an operation failed to tell it is among them.
            assert self.is_armed or not findings, findings
        else:
            getattr(self.db, action)()
        self.settle()

    @action(
        1,
        accident=one_of(["close", "kill", "power"]),
        off=one_of([0, 5, 100_000]),
    )
    def come_back(self, accident: str, off: int) -> None:
        """End the process, or cut the power, and open the store again."""
        if accident == "power":
            self.lose_power(off)
            return
        was_armed = self.is_armed
        moments = [self.model]
        if accident == "close":
            given_back = self.model.copy()
            given_back.give_back()
            try:
                self.db.close()
            except PowerCut:
                self.moments.append(given_back)
                raise
            except TROUBLE as error:
                self.judge_trouble(error)
            moments = [given_back]
        else:
            self.disk.kill()
        if was_armed:
            moments = [*self.moments, *moments]
        self.reopen(moments, KILLS_MAX)

    def lose_power(self, off: int) -> None:
        """Cut the power, now or where it is gone already."""
        image = self.draw_image()
        note("\n".join(["power cut:", *self.disk.describe(image)]))
        self.disk.crash(image)
        self.clock.reboot(off=off)
        if self.data.draw(st.booleans(), label="the battery is flat"):
            self.clock.step_wall(-3600)
        self.reopen(self.moments, POWER_CUTS_MAX)

    def draw_image(self) -> Image:
        """Draw what a power cut leaves: how it may take, and which pieces it takes."""
        draw = self.data.draw
        profiles = (*PROFILES, "block") if self.is_on_flash else PROFILES
        profile = draw(st.sampled_from(profiles), label="profile")
        index = draw(st.sampled_from(INDEX_FATES), label="index")
        random = Random(draw(st.integers(0, 2**16), label="seed"))
        image = self.disk.image(profile, random=random, index=index)
        if not len(image):
            return image
        # With 0, nearly all goes that the profile chose; each piece shrinks to "kept".
        kept = draw(st.sampled_from((0, 50, 90)), label="kept of 100")
        size = -(-len(image) // DRAWN_MAX)
        count = -(-len(image) // size)
        lots = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
        spared = [n for n in range(len(image)) if lots[n // size] <= kept]
        return image.without(spared)

    # Coming back.

    def judge_trouble(self, error: BaseException) -> None:
        """Only an error that was injected may come out of a call."""
        note(f"{error!r}")
        if not (self.is_armed or self.is_lied_to):
            raise error

    def meet_trouble(self, error: BaseException) -> None:
        """A call has failed: it has done nothing, or the store is dead."""
        self.judge_trouble(error)
        self.notice_lies()
        if self.is_poisoned:
            self.bury()
            return
        assert not isinstance(error, POISON), "a store that isn't dead says it is"
        possible, self.possible = self.possible, []
        if possible:
            self.heal()
            self.model = self.find_moment(possible)
            self.settle()

    def look(self) -> None:
        """Compare while faults wait; one of them may meet the look."""
        self.now()
        findings = self.differences()
        assert not findings, findings

    def bury(self) -> None:
        """Nothing succeeds on a dead store (O9); then end it and open it again."""
        self.heal()
        db = self.db
        require_dead(db, "a")
        end = self.data.draw(st.sampled_from(("kill", "close", "power")), label="end")
        if end == "power":
            self.lose_power(5)
            return
        if end == "close":
            try:
                db.close()
            except POISON:
                note("the close says that the store is dead")
        else:
            self.disk.kill()
        self.reopen(self.moments, KILLS_MAX)

    def reopen(self, moments: Sequence[StoreModel], recoveries_max: int) -> None:
        """Open the store again and find out at which of the moments it stands."""
        self.notice_lies()
        moments = [moment.copy() for moment in moments]
        before = (self.highest_lsn, self.highest_hlc)
        try:
            is_cut = self.open_at_last()
        except LOUD:
            # What a sync lied about may be what everything else is built on.
            assert self.is_lied_to, "a crash alone must never refuse"
            self.begin(flash=self.is_on_flash, failed_sync="late")
            return
        backs_ms, bounds = [0], {recoveries_max}
        if is_cut:
            # The recovery before may have ended the attempts in its own time.
            backs_ms, bounds = [0, 3_000, 6_000], {recoveries_max, POWER_CUTS_MAX}
            # A kill takes nothing, but what was not durable goes with the power.
            moments = [*self.moments, *moments]
        candidates = []
        for moment, bound, back_ms in product(moments, bounds, backs_ms):
            model = moment.copy()
            now = self.db._engine.now()
            model.at(now)
            model.elapsed_ms -= back_ms
            model.interrupt(bound)
            candidates.append(model)
        self.model = self.find_moment(candidates)
        state = self.db._engine.state
        if self.is_lied_to:
            self.highest_lsn = self.highest_hlc = self.highest_seen = 0
        else:
            assert state.last_lsn > before[0], "O6: a number came back"
            assert state.last_hlc > before[1], (
                f"O6: a stamp came back: {state.last_hlc:x}, {before[1]:x}"
            )
        strange = strange_files(self.disk, STORE)
        assert not strange, f"O8: {strange}"
        findings = self.db.check()
        assert not findings, findings
        self.settle()

    def open_at_last(self) -> bool:
        """Open the store, perhaps not at the first try.

        Returns:
            Whether the power was cut in a recovery.
        """
        draw = self.data.draw
        self.possible = []
        if self.is_armed and draw(st.booleans(), label="opened while the disk fails"):
            try:
                self.open()
                self.heal()
                return False
            except PowerCut:
                self.disk.kill()
            except TROUBLE as error:
                note(f"opening: {error!r}")
                self.notice_lies()
        self.heal()
        cut_at = draw(st.sampled_from((0, 0, 0, *range(1, 25))), label="cut again at")
        if cut_at:
            self.disk.crash_at(cut_at)
        try:
            self.open_healed()
        except PowerCut:
            self.disk.crash(self.draw_image())
            self.clock.reboot(off=3)
            self.open_healed()
            return True
        self.heal()
        return False

    def open_healed(self) -> None:
        """Open the store; an error may still be owed for a sync that has lied."""
        try:
            self.open()
        except LOUD:
            raise
        except TROUBLE as error:
            self.judge_trouble(error)
            # It is owed to the process that made the sync.
            self.disk.kill()
            self.open()

    def take_step(self, name: str, arguments: dict[str, Any]) -> None:
        """Take one step, and bear what comes of it."""
        try:
            getattr(self, name)(**arguments)
            if self.is_armed:
                self.look()
        except PowerCut:
            self.lose_power(3)
        except TROUBLE as error:
            self.meet_trouble(error)
