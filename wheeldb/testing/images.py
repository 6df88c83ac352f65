"""What one power cut leaves, as a value: told in words, tried again, made smaller.

    image = disk.image("torn")            # chosen, nothing has happened yet
    found = disk.after(image)             # another disk, as it is after that cut
    print(disk.describe(image))           # what was lost, torn, damaged
    small = shrink(image, fails)          # the least of it that still fails

An image belongs to the moment of the disk at which it was chosen. It holds only what
does *not* simply survive, so the empty image is a killed process, and shrinking takes
away from it: what is left is what the failure needs. Nothing is drawn here at random.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from wheeldb.testing.pieces import Change, Entry, Fragment, Write
from wheeldb.testing.profiles import Damage, Fate

__all__ = ("Image", "describe_fate", "describe_fragment", "shrink", "survivors")

# Enough to halve a few hundred pieces down to a handful.
TRIES_MAX = 300

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What becomes of everything that isn't safe when the power goes.

    Attributes:
        profile: By which rules it was chosen.
        fates: The pieces that are lost or changed.
        damages: What decay does besides.
        indexes: Path, fate and seed of each index whose fate isn't "new"; see
            `wheeldb.testing.index`.
    """

    profile: str
    fates: tuple[Fate, ...] = ()
    damages: tuple[Damage, ...] = ()
    indexes: tuple[tuple[str, str, int], ...] = ()

    def __len__(self) -> int:
        """Return how many things are not as a killed process would leave them."""
        return len(self.fates) + len(self.damages) + len(self.indexes)

    def without(self, places: Sequence[int]) -> "Image":
        """Return it without some of these things, counted through."""
        damages_from = len(self.fates)
        indexes_from = damages_from + len(self.damages)
        return replace(
            self,
            fates=_without(self.fates, 0, places),
            damages=_without(self.damages, damages_from, places),
            indexes=_without(self.indexes, indexes_from, places),
        )


def _without(
    group: tuple[ItemT, ...], start: int, places: Sequence[int]
) -> tuple[ItemT, ...]:
    return tuple(one for place, one in enumerate(group, start) if place not in places)


def survivors(fragments: Sequence[Fragment], image: Image) -> dict[int, list[Change]]:
    """Return what arrives on the medium, by inode, in the order of the calls."""
    fates = {fate.place: fate for fate in image.fates if not fate.is_beside}
    changes: dict[int, list[Change]] = {}
    for index, fragment in enumerate(fragments):
        fate = fates.get(index)
        if fate is None:
            for number, change in fragment.parts:
                changes.setdefault(number, []).append(change)
        elif fate.instead is not None:
            changes.setdefault(fragment.parts[0][0], []).append(fate.instead)
    for fate in image.fates:
        if fate.is_beside and fate.instead is not None:
            number = fragments[fate.place].parts[0][0]
            changes.setdefault(number, []).append(fate.instead)
    return changes


def shrink(
    image: Image, fails: Callable[[Image], bool], *, tries_max: int = TRIES_MAX
) -> Image:
    """Return a small image with which it still fails; the given one does.

    Takes away halves, quarters and so on, then single pieces, as delta debugging does
    (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).

    Args:
        image: One that fails.
        fails: Tries an image, `disk.after` it, and says whether it fails.
        tries_max: Stop after so many.
    """
    tries = 0
    size = max(1, len(image) // 2)
    while tries < tries_max and len(image):
        start, is_smaller = 0, False
        while start < len(image) and tries < tries_max:
            smaller = image.without(range(start, min(start + size, len(image))))
            tries += 1
            if fails(smaller):
                image, is_smaller = smaller, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(1, size // 2)
    return image


def describe_fragment(fragment: Fragment, paths: Mapping[int, str]) -> str:
    """Return a fragment in words, such as "bytes 0–512 of /log/1.seg"."""
    return " and ".join(
        _words(change, paths.get(number, f"a removed file (inode {number})"))
        for number, change in fragment.parts
    )


def describe_fate(
    fate: Fate, fragments: Sequence[Fragment], paths: Mapping[int, str]
) -> str:
    """Return what became of a fragment, such as "lost: length 512 of /log/1.seg"."""
    fragment = fragments[fate.place]
    meant = describe_fragment(fragment, paths)
    if fate.instead is None:
        return f"lost: {meant}"
    number = fragment.parts[0][0]
    arrived = _words(fate.instead, paths.get(number, f"inode {number}"))
    kind = "zeros" if _is_zeros(fate.instead) else "other bytes"
    if fate.is_beside:
        return f"damaged: {arrived}, beside {meant}: {kind}"
    before = fragment.parts[0][1]
    if isinstance(fate.instead, Write) and isinstance(before, Write):
        if len(fate.instead.data) < len(before.data):
            return f"torn: {meant}, of which only {arrived} arrived"
        return f"lost: {meant}: {kind} are there"
    return f"changed: {meant} to {arrived}"


def _words(change: Change, path: str) -> str:
    if isinstance(change, Write):
        end = change.offset + len(change.data)
        return f"bytes {change.offset}–{end} of {path}"
    if isinstance(change, Entry):
        verb = "removing" if change.inode is None else "naming"
        return f"{verb} {change.name} in {path}"
    return f"length {change.size} of {path}"


def _is_zeros(change: Change) -> bool:
    return isinstance(change, Write) and not change.data.strip(b"\0")
