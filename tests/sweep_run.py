"""Running sweeps: all cuts of a scenario, to the second depth, or any part of them.

A `Part` says which cuts to try: one share of many, so that a large sweep can be done in
slices, or a sample by lot. Cuts are drawn from their own names and a seed alone, so a
slice gives the same whenever and wherever it is run.

Every scenario is led on two media: on a disk, which damages nothing beside a write,
and on flash, which may ("block"), and where a store writes to blocks of their own.

The second depth cuts the recovery itself, at every operation, for the first image of
each operation and profile: by the same profile, all prefixes, four of what is drawn.
"""

import zlib
from dataclasses import dataclass, field
from random import Random

from sweep_oracle import DEEP_PROFILES, Judge, Verdicts, clock_after
from sweep_scenarios import Scenario
from sweep_story import Story, open_on

from wheeldb.testing import CrashableDisk, Image
from wheeldb.testing.index import INDEX_FATES
from wheeldb.testing.profiles import PROFILES
from wheeldb.testing.sweep import Cut, Sweep

# What each medium may do when the power goes.
MEDIA = {
    "disk": tuple(profile for profile in PROFILES if profile != "block"),
    "flash": ("block",),
}

IMAGES_MAX = 64
IMAGES_MAX_DEEP = 4
LOTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which cuts to try.

    Attributes:
        slice_number: This slice
        slice_count: of so many; the slices together are everything.
        lots: And of those only so many in 10,000,
        deep_lots: at the second depth so many.
        seed: Of everything that is drawn.
    """

    slice_number: int = 0
    slice_count: int = 1
    lots: int = LOTS
    deep_lots: int = LOTS
    seed: int = 0

    def has(self, name: str, lots: int) -> bool:
        """Return whether a cut of this name is to be tried."""
        number = zlib.crc32(f"{self.seed} slice {name}".encode())
        return number % self.slice_count == self.slice_number and self.lot(name) < lots

    def lot(self, name: str) -> int:
        """Return a number from 0 to 9,999, drawn from the name."""
        return zlib.crc32(f"{self.seed} lot {name}".encode()) % LOTS

    @property
    def deep_share(self) -> int:
        """Of how many recoveries in 10,000 some cuts are tried.

        With few lots most recoveries would be gone through for nothing.
        """
        return min(LOTS, 50 * self.deep_lots)


@dataclass(slots=True)
class Result:
    """What a sweep has tried.

    Attributes:
        operations: How many operations the scenario has.
        images: Distinct cuts of it that were judged.
        deep_images: Cuts of recoveries that were judged.
        verdicts: What they came to.
        by_profile: Both kinds of images, by profile.
    """

    operations: int = 0
    images: int = 0
    deep_images: int = 0
    verdicts: Verdicts = field(default_factory=Verdicts)
    by_profile: dict[str, int] = field(default_factory=dict)

    def count(self, profile: str) -> None:
        self.by_profile[profile] = self.by_profile.get(profile, 0) + 1


class ScenarioSweep:
    """Sweeps one scenario on one medium."""

    def __init__(self, scenario: Scenario, medium: str, part: Part) -> None:
        self._scenario = scenario
        self._medium = medium
        self._name = f"{scenario.name} on {medium}"
        self._part = part
        self._story = Story(seed=part.seed, profile=medium, **scenario.options)
        self._is_begun = False
        self.result = Result()

    def run(self) -> Result:
        """Live the scenario once, and judge what its cuts leave.

        Raises:
            CrashFound: One of them left what must not be.
        """
        story, part = self._story, self._part
        sweep = Sweep(
            story.disk,
            self._judge,
            profiles=MEDIA[self._medium],
            images_max=IMAGES_MAX,
            seed=part.seed,
            wants=self._wants,
            index_fate=draw_fate,
        )

        def begin() -> None:
            story.rest()
            self._is_begun = True

        report = sweep.run(lambda: self._scenario.live(story, begin))
        self.result.operations = report.operations
        return self.result

    def _wants(self, cut: Cut) -> bool:
        if not self._is_begun:
            return False
        name = f"{self._name} {cut}"
        return self._part.has(name, self._part.lots) or self._goes_deep(cut)

    def _goes_deep(self, cut: Cut) -> bool:
        """Return whether the recovery of this image is swept, too.

        Damage is not: what is refused has no recovery.
        """
        if cut.number or cut.profile == "damage" or not self._part.deep_lots:
            return False
        return self._part.has(f"deep {self._name} {cut}", self._part.deep_share)

    def _judge(self, disk: CrashableDisk, cut: Cut, image: Image) -> None:
        judge = Judge(self._story.promise(), self.result.verdicts)
        if self._part.has(f"{self._name} {cut}", self._part.lots):
            self.result.images += 1
            self.result.count(cut.profile)
            judge.judge(disk.clone(), cut, image)
        if self._goes_deep(cut):
            self._go_deep(disk, cut, judge)

    def _go_deep(self, disk: CrashableDisk, first: Cut, judge: Judge) -> None:
        """Cut the recovery of an image at each of its operations."""
        promise, part = judge.promise, self._part
        prefix = f"{self._name} {first}"
        lots = part.deep_lots * LOTS // part.deep_share

        def check(after: CrashableDisk, cut: Cut, image: Image) -> None:
            self.result.deep_images += 1
            self.result.count(cut.profile)
            judge.judge(after, cut, image, depth=2)

        def recover() -> None:
            try:
                open_on(disk, clock_after(promise, first, 1), prefix, **promise.options)
            except Exception:
                # Judged by itself: a lying drive's log may be refused.
                if first.profile not in DEEP_PROFILES:
                    raise

        sweep = Sweep(
            disk,
            check,
            profiles=(first.profile,),
            images_max=IMAGES_MAX_DEEP,
            seed=part.seed,
            wants=lambda cut: part.lot(f"{prefix} {cut}") < lots,
            index_fate=draw_fate,
        )
        sweep.run(recover)


def draw_fate(random: Random) -> str:
    """Draw what becomes of the index: mostly nothing."""
    return random.choice(("new",) * len(INDEX_FATES) + INDEX_FATES)
