"""What a power cut leaves of the changes that were not synced: one function a profile.

    none           nothing: only what was synced
    all            everything, also what a failed sync reported lost
    prefix         the first n fragments, in the order of the calls
    subset         any selection, sector by sector, name by name; a rename is atomic
    split_rename   subset, and a rename falls into removing and linking
    torn           subset, and a kept sector may be mixed with its old bytes or garbage
    block          torn, and the 4,096 bytes around an unsynced write may be damaged
    stale_tail     lengths and names kept, data lost: zeros, garbage, deleted bytes
    failed_sync    everything but what a failed sync reported lost
    lying_sync     subset, reaching back over the last flushes that claimed success
    damage         everything, and one durable thing is damaged (`plan_damage`)

The reasons are those of real file systems and media: reordering and split renames as
searched by ALICE (Pillai et al., OSDI 2014), torn and shorn writes and lost flushes as
measured by Zheng et al., "Understanding the Robustness of SSDs under Power Fault", FAST
2013.

Each function names what becomes of the fragments that don't simply survive, as a list
of `Fate`; it is a pure choice from its `random`, and nothing here touches a file.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from wheeldb.testing.pieces import (
    BLOCK_BYTES,
    SECTOR_BYTES,
    Change,
    Content,
    Fragment,
    Resize,
    State,
    Write,
)

__all__ = (
    "LYING_FLUSHES_MAX",
    "PROFILES",
    "Choice",
    "Damage",
    "Fate",
    "plan_damage",
    "splits_names",
)

# How many flushes a lying drive may lose.
LYING_FLUSHES_MAX = 4


class Fate(NamedTuple):
    """What becomes of one fragment, where it doesn't simply survive.

    Attributes:
        place: Its place among all fragments.
        instead: What arrives in its place, None for nothing.
        is_beside: Whether that arrives in addition, after everything else.
    """

    place: int
    instead: Change | None = None
    is_beside: bool = False


class Damage(NamedTuple):
    """What decay does to one file, whatever was synced.

    Attributes:
        path: The file.
        kind: In words; "missing" takes the name away.
        changes: What it does to the bytes.
    """

    path: str
    kind: str
    changes: tuple[Change, ...]


class Choice:
    """What a profile chooses from.

    Attributes:
        random: The only source of chance.
        fragments: Everything since the last merge, synced fragments included.
        stale: Contents of deleted files, which may show up in new ones.
        flush: The number of the last flush.
    """

    def __init__(
        self, random: Random, fragments: list[Fragment], stale: list[bytes], flush: int
    ) -> None:
        self.random = random
        self.fragments = fragments
        self.stale = stale
        self.flush = flush

    def unsafe(self) -> Iterator[tuple[int, Fragment]]:
        """Yield the fragments that no sync has covered, with their places."""
        for index, fragment in enumerate(self.fragments):
            if fragment.state is not State.SYNCED:
                yield index, fragment

    def unsafe_writes(self) -> Iterator[tuple[int, int, Write]]:
        """Yield place, inode and change of those among them that are bytes."""
        for index, fragment in self.unsafe():
            number, change = fragment.parts[0]
            if isinstance(change, Write):
                yield index, number, change

    def coin(self) -> Callable[[], bool]:
        """Return a coin, biased differently at each crash, that says what is kept."""
        odds = self.random.choice((0.1, 0.5, 0.9))
        return lambda: self.random.random() < odds

    def garbage(self, size: int) -> bytes:
        """Return bytes that nobody wrote."""
        return self.random.randbytes(size)


def splits_names(profile: str) -> bool:
    """Return whether a rename may survive in part."""
    return profile == "split_rename"


def _lose_behind(choice: Choice, count: int) -> list[Fate]:
    """Keep the first so many unsafe fragments."""
    return [Fate(index) for index, _ in list(choice.unsafe())[count:]]


def _none(choice: Choice) -> list[Fate]:
    return _lose_behind(choice, 0)


def _all(_: Choice) -> list[Fate]:
    return []


def _prefix(choice: Choice) -> list[Fate]:
    unsafe = sum(1 for _ in choice.unsafe())
    return _lose_behind(choice, choice.random.randint(0, unsafe))


def _subset(choice: Choice) -> list[Fate]:
    coin = choice.coin()
    return [Fate(index) for index, _ in choice.unsafe() if not coin()]


def _torn(choice: Choice) -> list[Fate]:
    fates = _subset(choice)
    lost = {fate.place for fate in fates}
    for index, _, write in choice.unsafe_writes():
        if index not in lost:
            torn = _tear(choice, write)
            if torn != write:
                fates.append(Fate(index, torn))
    return fates


def _tear(choice: Choice, write: Write) -> Write:
    """Return a sector as it may arrive: whole, its first or last bytes, or garbage."""
    kind = choice.random.choice(("whole", "whole", "first", "last", "garbage"))
    cut = choice.random.randint(0, len(write.data))
    if kind == "first":
        return write._replace(data=write.data[:cut])
    if kind == "last":
        return write._replace(offset=write.offset + cut, data=write.data[cut:])
    if kind == "garbage":
        return write._replace(data=choice.garbage(len(write.data)))
    return write


def _block(choice: Choice) -> list[Fate]:
    fates = _torn(choice)
    for index, _, write in choice.unsafe_writes():
        if choice.random.random() < 0.5:
            start = write.offset - write.offset % BLOCK_BYTES
            start += choice.random.randrange(BLOCK_BYTES)
            room = BLOCK_BYTES - start % BLOCK_BYTES
            # Mostly a sector's worth; a controller that rewrites it may lose it all.
            size = choice.random.choice(
                (1, choice.random.randint(1, SECTOR_BYTES), BLOCK_BYTES)
            )
            size = min(size, room)
            data = choice.random.choice((bytes(size), choice.garbage(size)))
            fates.append(Fate(index, Write(start, data), is_beside=True))
    return fates


def _stale_tail(choice: Choice) -> list[Fate]:
    """Lose each file's unsynced data from some point on and keep all lengths."""
    writes: dict[int, int] = {}
    for _, number, _ in choice.unsafe_writes():
        writes[number] = writes.get(number, 0) + 1
    left = {n: choice.random.randint(0, count) for n, count in sorted(writes.items())}
    fill = {n: choice.random.choice((_zeros, _garbage, _stale)) for n in sorted(writes)}
    fates = []
    for index, number, write in choice.unsafe_writes():
        if left[number] > 0:
            left[number] -= 1
        elif write.grew_from >= 0:
            fates.append(Fate(index, write._replace(data=fill[number](choice, write))))
        else:
            fates.append(Fate(index))
    return fates


def _zeros(_: Choice, write: Write) -> bytes:
    return bytes(len(write.data))


def _garbage(choice: Choice, write: Write) -> bytes:
    return choice.garbage(len(write.data))


def _stale(choice: Choice, write: Write) -> bytes:
    """Return bytes of a deleted file, at the same place inside their sector."""
    if not choice.stale:
        return _zeros(choice, write)
    old = choice.random.choice(choice.stale)
    sector = choice.random.randrange(len(old) // SECTOR_BYTES + 1)
    start = sector * SECTOR_BYTES + write.offset % SECTOR_BYTES
    return old[start : start + len(write.data)].ljust(len(write.data), b"\0")


def _failed_sync(choice: Choice) -> list[Fate]:
    return [
        Fate(index)
        for index, fragment in choice.unsafe()
        if fragment.state is State.FAILED
    ]


def _lying_sync(choice: Choice) -> list[Fate]:
    # Flush 0 marks what never needed one.
    honest = max(0, choice.flush - choice.random.randint(1, LYING_FLUSHES_MAX))
    coin = choice.coin()
    return [
        Fate(index)
        for index, fragment in enumerate(choice.fragments)
        if not (fragment.state is State.SYNCED and fragment.flush <= honest)
        and not coin()
    ]


PROFILES: dict[str, Callable[[Choice], list[Fate]]] = {
    "none": _none,
    "all": _all,
    "prefix": _prefix,
    "subset": _subset,
    "split_rename": _subset,
    "torn": _torn,
    "block": _block,
    "stale_tail": _stale_tail,
    "failed_sync": _failed_sync,
    "lying_sync": _lying_sync,
    "damage": _all,
}


def plan_damage(random: Random, files: Mapping[str, Content]) -> Damage:
    """Choose one of the files, blind to its size, and what happens to it."""
    path = random.choice(sorted(files))
    content = files[path]
    sectors = -(-content.size // SECTOR_BYTES)
    kinds = ["bit flip", "zeroed sector", "cut", "missing", "misdirected write"]
    if sectors > 1:
        kinds.append("swapped sectors")
    kind = random.choice(kinds) if sectors else "missing"
    here, there = (n * SECTOR_BYTES for n in random.sample(range(max(2, sectors)), 2))
    if here >= content.size:
        here, there = there, here
    first = content.read(SECTOR_BYTES, here)
    second = content.read(SECTOR_BYTES, there)
    changes: tuple[Change, ...] = ()
    if kind == "bit flip":
        at = here + random.randrange(len(first))
        byte = content.read(1, at)[0] ^ (1 << random.randrange(8))
        changes = (Write(at, bytes((byte,))),)
    elif kind == "zeroed sector":
        changes = (Write(here, bytes(len(first))),)
    elif kind == "cut":
        changes = (Resize(random.randrange(content.size)),)
    elif kind == "swapped sectors":
        changes = (Write(here, second), Write(there, first))
    elif kind == "misdirected write":
        # A sector that was meant for another place, often in another file.
        meant = files[random.choice(sorted(files))]
        at = random.randrange(-(-meant.size // SECTOR_BYTES) or 1) * SECTOR_BYTES
        stray = meant.read(SECTOR_BYTES, at)[: len(first)]
        if first.startswith(stray):
            stray = bytes(byte ^ 0xFF for byte in first)
        changes = (Write(here, stray),)
    return Damage(path, kind, changes)
