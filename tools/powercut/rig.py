"""The rig: records a run, cuts the power in the record, and has each image judged.

    with scratch_place(None) as place:
        tally = Rig(plan, place).run()
    tally.violations        []

`Plan` is what to do, `Tally` what came of it. One image after the other: the file
systems of two images have one identity. With `recoveries` the verifier's run on some
images is recorded, too, and cut `recovery_cuts` times each; the second verifier then
gets the lines of the workload and of the first.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tools.powercut.filesystems import FILESYSTEMS, make_filesystem
from tools.powercut.images import (
    Builder,
    Cut,
    Piece,
    choose_cuts,
    copy_sparse,
    draw_pieces,
)
from tools.powercut.record import Record
from tools.powercut.stage import Ended, Unmountable, mounted, recorded, run

__all__ = ("Plan", "Rig", "RunFailed", "Tally", "Violation", "judge_kept")

VERIFY_SECONDS_MAX = 60.0
WORKLOAD_SECONDS_MAX = 300.0
_KEPT_IMAGE, _KEPT_CUT, _KEPT_LINES = "image", "cut.json", "lines"


class RunFailed(Exception):
    """The workload itself failed, or recorded nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do.

    Attributes:
        filesystem: A key of `FILESYSTEMS`.
        images: How many cuts of the workload's record.
        seed: Of the workload and of every draw.
        workload: The command under load.
        verify: The command that judges.
        recoveries: On how many of the images the verifier's run is recorded and cut.
        recovery_cuts: How often each of these is cut.
        keep: Where to keep the images of violations.
    """

    filesystem: str
    images: int
    seed: int
    workload: str
    verify: str
    recoveries: int = 0
    recovery_cuts: int = 4
    keep: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One image on which something promised was missing.

    Attributes:
        cut: Where the power failed, and how the pending writes were drawn.
        recovery: The cut of the recovery behind it, if that was what failed.
        pieces: What had reached the disk: write:begin-end of each.
        status: The verifier's.
        said: What it said.
    """

    filesystem: str
    seed: int
    cut: Cut
    recovery: Cut | None
    pieces: str
    status: int | None
    said: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of a plan.

    Attributes:
        flushes: Of the workload's record.
        writes: Likewise.
        lines: Likewise.
        images: Images judged.
        recovery_images: Those of them whose cut lay in a recovery.
        by_mode: Images by the way their pending writes were drawn.
        unmountable: Images that the kernel could not mount, with its words.
        violations: Images on which something was missing.
    """

    filesystem: str
    seed: int
    flushes: int = 0
    writes: int = 0
    lines: int = 0
    images: int = 0
    recovery_images: int = 0
    by_mode: dict[str, int] = field(default_factory=dict)
    unmountable: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


class Rig:
    """Carries out one plan in one scratch directory."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self._plan = plan
        self._place = place
        self._filesystem = FILESYSTEMS[plan.filesystem]
        self.tally = Tally(filesystem=plan.filesystem, seed=plan.seed)

    def run(self) -> Tally:
        """Record, cut, judge.

        Raises:
            RunFailed: The workload failed.
        """
        base = self._place / "base.img"
        make_filesystem(self._filesystem, str(base))
        ended, record = self._record(self._plan.workload, base, "workload", "")
        if ended.status != 0:
            raise RunFailed(f"the workload ended with {ended.status}: {ended.said}")
        tally = self.tally
        tally.flushes = len(record.flushes)
        tally.writes = len(record.pending(0, record.end))
        tally.lines = len(record.lines(record.end))
        random = Random(f"{self._plan.seed} cuts {tally.flushes}")
        cuts = choose_cuts(record, self._plan.images, random)
        chosen = min(self._plan.recoveries, len(cuts))
        recorded_too = set(random.sample(range(len(cuts)), chosen))
        builder = Builder(record, base, self._place, "workload")
        for number, cut in enumerate(cuts):
            pieces = self._draw(record, cut, number)
            image = builder.build(cut, pieces)
            lines = record.lines(cut.end)
            if number in recorded_too:
                self._cut_recovery(image, lines, cut, number)
            self._judge(image, lines, cut, None, pieces)
        record.close()
        return tally

    def _record(
        self, command: str, base: Path, name: str, lines: str
    ) -> tuple[Ended, Record]:
        """Run a command on a copy of an image, over the recorder."""
        image, path = self._place / f"{name}.img", self._place / f"{name}.record"
        path.unlink(missing_ok=True)
        copy_sparse(base, image)
        with recorded(self._place, self._filesystem, image, path) as (disk, pipe):
            ended = run(
                command,
                self._place,
                disk,
                seed=self._plan.seed,
                seconds_max=WORKLOAD_SECONDS_MAX,
                lines=lines,
                output=pipe,
            )
        image.unlink()
        return ended, Record.load(str(path))

    def _draw(self, record: Record, cut: Cut, number: int) -> list[Piece]:
        writes = record.pending(cut.start, cut.end)
        random = Random(f"{self._plan.seed} pieces {number}")
        return draw_pieces(writes, cut.mode, self._filesystem.whole, random)

    def _cut_recovery(
        self, image: Path, lines: list[str], cut: Cut, number: int
    ) -> None:
        """Record the verifier's run on an image, and cut that."""
        try:
            _, record = self._record(
                self._plan.verify, image, "recovery", _joined(lines)
            )
        except Unmountable:
            # The image's own turn counts it.
            return
        base = self._place / "recovery-base.img"
        copy_sparse(image, base)
        random = Random(f"{self._plan.seed} recovery {number} {len(record.flushes)}")
        builder = Builder(record, base, self._place, "recovery")
        for later in choose_cuts(record, self._plan.recovery_cuts, random):
            writes = record.pending(later.start, later.end)
            pieces = draw_pieces(writes, later.mode, self._filesystem.whole, random)
            self.tally.recovery_images += 1
            self._judge(
                builder.build(later, pieces),
                lines + record.lines(later.end),
                cut,
                later,
                pieces,
            )
        record.close()

    def _judge(
        self,
        image: Path,
        lines: list[str],
        cut: Cut,
        recovery: Cut | None,
        pieces: Sequence[Piece],
    ) -> None:
        plan, tally = self._plan, self.tally
        mode = (recovery or cut).mode
        tally.images += 1
        tally.by_mode[mode] = tally.by_mode.get(mode, 0) + 1
        kept = None
        if plan.keep is not None:
            # Mounting and recovering change the image.
            kept = self._place / "kept.img"
            copy_sparse(image, kept)
        ended = _verify(plan.verify, self._place, plan.filesystem, image, lines)
        if isinstance(ended, str):
            tally.unmountable.append(f"flush {cut.flush}, {mode}: {ended}")
        elif ended.status != 0:
            violation = Violation(
                filesystem=plan.filesystem,
                seed=plan.seed,
                cut=cut,
                recovery=recovery,
                pieces=_told(pieces),
                status=ended.status,
                said=ended.said.strip(),
            )
            tally.violations.append(violation)
            if kept is not None and plan.keep is not None:
                number = len(tally.violations)
                where = plan.keep / f"{plan.filesystem}-{plan.seed}-{number}"
                _keep(where, kept, violation, lines)


def judge_kept(kept: Path, verify: str, place: Path) -> Ended:
    """Judge a kept image again; it stays as it is.

    Raises:
        Unmountable: The kernel can't mount it.
    """
    filesystem = json.loads((kept / _KEPT_CUT).read_text())["filesystem"]
    image = place / "kept.img"
    copy_sparse(kept / _KEPT_IMAGE, image)
    lines = (kept / _KEPT_LINES).read_text().splitlines()
    ended = _verify(verify, place, filesystem, image, lines)
    if isinstance(ended, str):
        raise Unmountable(ended)
    return ended


def _verify(
    command: str, place: Path, filesystem: str, image: Path, lines: Sequence[str]
) -> Ended | str:
    """Return how the verifier ended on an image, or why that can't be mounted."""
    try:
        with mounted(place, FILESYSTEMS[filesystem], image) as directory:
            return run(
                command,
                place,
                directory,
                seed=0,
                seconds_max=VERIFY_SECONDS_MAX,
                lines=_joined(lines),
            )
    except Unmountable as error:
        return str(error)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _told(pieces: Sequence[Piece]) -> str:
    return " ".join(f"{piece.write}:{piece.begin}-{piece.end}" for piece in pieces)


def _keep(where: Path, image: Path, violation: Violation, lines: list[str]) -> None:
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    copy_sparse(image, where / _KEPT_IMAGE)
    (where / _KEPT_CUT).write_text(json.dumps(asdict(violation), indent=2) + "\n")
    (where / _KEPT_LINES).write_text(_joined(lines))
