"""A power cut at every operation of a program, each tried in many ways.

    def program(disk, promise):             # any storage code, through the disk
        log = Log(disk, "/log")
        for number in range(9):
            log.append(b"%d" % number)      # returns when it is durable
            promise(number)

    def check(disk, promised):              # after a cut: open again, and look
        assert list(Log(disk, "/log").read())[: len(promised)] == promised

    report = crash_sweep(program, check)    # CrashFound, or how much was tried

The program runs once. Before each of its operations, and behind the last, images are
chosen (`wheeldb.testing.images`), and each is checked on a disk of its own. A failure
names seed, operation, profile and number, by which it comes again, and tells the least
that has to be lost for it:

    CrashFound: before operation 12 (sync_data /log), profile "subset", image 3:
      AssertionError: [0, 1, 3]
      lost: bytes 512–1024 of /log
      again: crash_sweep(…, seed=0, only="12 subset 3")

It knows nothing of what a program promises: that is for `check` to judge.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from wheeldb.testing.disk import CrashableDisk
from wheeldb.testing.faults import Operation
from wheeldb.testing.images import Image, shrink

__all__ = (
    "HONEST_PROFILES",
    "CrashFound",
    "Cut",
    "Sweep",
    "SweepReport",
    "crash_sweep",
)

# What keeps everything synced. "block" does on media that don't rewrite what is beside.
HONEST_PROFILES = (
    "none", "all", "prefix", "subset", "split_rename", "torn", "stale_tail",
    "failed_sync",
)  # fmt: skip

# These leave one image at most; a prefix is never drawn.
_SINGLE = frozenset({"none", "all", "failed_sync"})
# These can damage what was synced long ago.
_DEEP = frozenset({"lying_sync", "damage"})
_SUBSETS = frozenset({"subset", "split_rename"})


class Cut(NamedTuple):
    """One image among all: before which operation, by which profile, the how many-th.

    It is written "12 subset 3".
    """

    operation: int
    profile: str
    number: int

    def __str__(self) -> str:
        return f"{self.operation} {self.profile} {self.number}"

    @classmethod
    def parse(cls, text: str) -> "Cut":
        """Return the cut that a text names."""
        operation, profile, number = text.split()
        return cls(int(operation), profile, int(number))

    def lot(self, seed: int) -> int:
        """Return a number from 0 to 9,999 by which to take part of all cuts."""
        return zlib.crc32(f"{seed} {self}".encode()) % 10_000


class CrashFound(AssertionError):
    """Raised when a check fails; tells the cut and the least that has to be lost.

    Attributes:
        cut: Which one it was.
        image: The shrunk image.
        story: The same in words.
    """

    def __init__(self, text: str, cut: Cut, image: Image, story: Sequence[str]) -> None:
        super().__init__(text)
        self.cut = cut
        self.image = image
        self.story = tuple(story)


@dataclass(slots=True)
class SweepReport:
    """How much was tried."""

    operations: int = 0
    images: int = 0
    images_by_profile: dict[str, int] = field(default_factory=dict)


class Sweep:
    """Cuts the power of one disk before each of its operations.

    Args:
        disk: Where the program runs.
        check: Is given a disk as a cut has left it, the cut and the image; raises if
            something is wrong.
        profiles: Which to try.
        images_max: For each operation and profile so many: all selections of the pieces
            if there are no more, else drawn ones.
        seed: Of what is drawn.
        wants: Says whether a cut is to be tried.
        index_fate: What becomes of the index, drawn with the image's own chance.
    """

    def __init__(
        self,
        disk: CrashableDisk,
        check: Callable[[CrashableDisk, Cut, Image], object],
        *,
        profiles: Sequence[str] = HONEST_PROFILES,
        images_max: int = 16,
        seed: int = 0,
        wants: Callable[[Cut], bool] = lambda _: True,
        index_fate: Callable[[Random], str] = lambda _: "new",
    ) -> None:
        self.report = SweepReport()
        self._disk = disk
        self._check = check
        self._profiles = profiles
        self._images_max = images_max
        self._seed = seed
        self._wants = wants
        self._index_fate = index_fate

    def run(self, program: Callable[[], object]) -> SweepReport:
        """Let the program run, and try its cuts.

        Raises:
            CrashFound: At the first check that fails.
        """
        self._disk.watch(self._try_cuts)
        try:
            program()
        finally:
            self._disk.watch(None)
        self._try_cuts(Operation("nothing", "the program has ended"))
        return self.report

    def _try_cuts(self, operation: Operation) -> None:
        self.report.operations += 1
        unsafe = self._disk.unsafe_count()
        for profile in self._profiles:
            if not unsafe and profile != "all" and profile not in _DEEP:
                continue  # nothing can be lost: all profiles say the same
            for number in range(self._count(profile, unsafe)):
                cut = Cut(self.report.operations, profile, number)
                if self._wants(cut):
                    self._try(cut, operation)

    def _count(self, profile: str, unsafe: int) -> int:
        """Return how many images an operation has by a profile."""
        if profile in _SINGLE:
            return 1
        if profile == "prefix":
            return unsafe + 1
        if profile in _SUBSETS and 2**unsafe <= self._images_max:
            return int(2**unsafe)
        return self._images_max

    def _image(self, cut: Cut, unsafe: int) -> Image:
        random = Random(f"{self._seed} {cut}")
        fate = self._index_fate(random)
        keep: Sequence[int] | None = None
        if cut.profile == "prefix":
            keep = range(cut.number)
        elif cut.profile == "subset" and 2**unsafe <= self._images_max:
            keep = [n for n in range(unsafe) if cut.number >> n & 1]
        return self._disk.image(cut.profile, keep=keep, random=random, index=fate)

    def _try(self, cut: Cut, operation: Operation) -> None:
        report = self.report
        report.images += 1
        counts = report.images_by_profile
        counts[cut.profile] = counts.get(cut.profile, 0) + 1
        image = self._image(cut, self._disk.unsafe_count())
        error = self._error(image, cut)
        if error is not None:
            raise self._found(image, cut, operation, error) from error

    def _error(self, image: Image, cut: Cut) -> Exception | None:
        try:
            self._check(self._disk.after(image), cut, image)
        except Exception as error:
            return error
        return None

    def _found(
        self, image: Image, cut: Cut, operation: Operation, error: Exception
    ) -> CrashFound:
        kind = type(error)
        small = shrink(image, lambda one: type(self._error(one, cut)) is kind)
        error = self._error(small, cut) or error
        story = self._disk.describe(small) or ["nothing was lost: a killed process"]
        name, path = operation
        text = (
            f'before operation {cut.operation} ({name} {path}), profile "{cut.profile}"'
            f", image {cut.number}:\n  {type(error).__name__}: {error}\n  "
            + "\n  ".join(story)
            + f'\n  again: seed={self._seed}, only="{cut}"'
        )
        return CrashFound(text, cut, small, story)


def crash_sweep(
    program: Callable[[CrashableDisk, Callable[[object], None]], object],
    check: Callable[[CrashableDisk, list[object]], object],
    *,
    profiles: Sequence[str] = HONEST_PROFILES,
    images_max: int = 16,
    seed: int = 0,
    only: str | None = None,
    disk: CrashableDisk | None = None,
) -> SweepReport:
    """Run a program once, and check what it has promised after every power cut.

    Args:
        program: Is given a disk, and a function to call with what it promises, as soon
            as it does.
        check: Is given a disk after the cut, and the promises made before it.
        profiles: What the power cuts may do; see `wheeldb.testing.profiles`.
        images_max: How many images for each operation and profile.
        seed: Of what is drawn.
        only: Try this cut alone, as a failure has named it.
        disk: Where to begin; an empty one unless given.

    Raises:
        CrashFound: A check failed.
    """
    disk = disk or CrashableDisk(seed)
    promised: list[object] = []
    wanted = None if only is None else Cut.parse(only)
    sweep = Sweep(
        disk,
        lambda after, *_: check(after, promised.copy()),
        profiles=profiles if wanted is None else (wanted.profile,),
        images_max=images_max,
        seed=seed,
        wants=lambda cut: wanted in (None, cut),
    )
    return sweep.run(lambda: program(disk, promised.append))
