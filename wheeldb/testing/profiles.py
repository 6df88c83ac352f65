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
    damage         everything, and one durable thing is damaged (`damage`)

The reasons are those of real file systems and media: reordering and split renames as
searched by ALICE (Pillai et al., OSDI 2014), torn and shorn writes and lost flushes as
measured by Zheng et al., "Understanding the Robustness of SSDs under Power Fault", FAST
2013. Each function is a pure choice from its `random`; nothing here touches a file.
"""

from collections.abc import Callable
from random import Random

from wheeldb.testing.pieces import (
    BLOCK_BYTES,
    SECTOR_BYTES,
    Change,
    Content,
    Entry,
    Fragment,
    State,
    Write,
)

__all__ = (
    "LYING_FLUSHES_MAX",
    "PROFILES",
    "Choice",
    "damage",
    "describe",
    "splits_names",
)

# How many flushes a lying drive may lose.
LYING_FLUSHES_MAX = 4

# Later than every call.
_LAST = 1 << 62


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

    def keep(self, wanted: Callable[[Fragment], bool]) -> list[Fragment]:
        """Return the synced fragments and the others that are wanted."""
        return [f for f in self.fragments if f.state is State.SYNCED or wanted(f)]

    def coin(self) -> Callable[[Fragment], bool]:
        """Return a coin, biased differently at each crash, to ask for each fragment."""
        odds = self.random.choice((0.1, 0.5, 0.9))
        return lambda _: self.random.random() < odds

    def garbage(self, size: int) -> bytes:
        """Return bytes that nobody wrote."""
        return self.random.randbytes(size)


def splits_names(profile: str) -> bool:
    """Return whether a rename may survive in part."""
    return profile == "split_rename"


def _none(choice: Choice) -> list[Fragment]:
    return choice.keep(lambda _: False)


def _all(choice: Choice) -> list[Fragment]:
    return list(choice.fragments)


def _prefix(choice: Choice) -> list[Fragment]:
    unsynced = sum(f.state is not State.SYNCED for f in choice.fragments)
    left = iter(range(choice.random.randint(0, unsynced)))
    return choice.keep(lambda _: next(left, None) is not None)


def _subset(choice: Choice) -> list[Fragment]:
    return choice.keep(choice.coin())


def _torn(choice: Choice) -> list[Fragment]:
    kept = []
    for fragment in _subset(choice):
        number, change = fragment.parts[0]
        if fragment.state is not State.SYNCED and isinstance(change, Write):
            torn = _tear(choice, change)
            fragment = fragment._replace(parts=((number, torn),))
        kept.append(fragment)
    return kept


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


def _block(choice: Choice) -> list[Fragment]:
    kept = _torn(choice)
    for fragment in choice.fragments:
        number, change = fragment.parts[0]
        if fragment.state is State.SYNCED or not isinstance(change, Write):
            continue
        if choice.random.random() < 0.5:
            start = change.offset - change.offset % BLOCK_BYTES
            start += choice.random.randrange(BLOCK_BYTES)
            room = BLOCK_BYTES - start % BLOCK_BYTES
            size = choice.random.randint(1, min(room, SECTOR_BYTES))
            hit = Write(start, choice.garbage(size))
            kept.append(Fragment(_LAST, ((number, hit),)))
    return kept


def _stale_tail(choice: Choice) -> list[Fragment]:
    """Lose each file's unsynced data from some point on and keep all lengths."""
    writes: dict[int, int] = {}
    for fragment in choice.fragments:
        number, change = fragment.parts[0]
        if fragment.state is not State.SYNCED and isinstance(change, Write):
            writes[number] = writes.get(number, 0) + 1
    left = {n: choice.random.randint(0, count) for n, count in sorted(writes.items())}
    fill = {n: choice.random.choice((_zeros, _garbage, _stale)) for n in sorted(writes)}
    kept = []
    for fragment in choice.fragments:
        number, change = fragment.parts[0]
        if fragment.state is State.SYNCED or not isinstance(change, Write):
            kept.append(fragment)
        elif left[number] > 0:
            left[number] -= 1
            kept.append(fragment)
        elif change.grew_from >= 0:
            data = fill[number](choice, change)
            lost: Change = Write(change.offset, data, change.grew_from)
            kept.append(fragment._replace(parts=((number, lost),)))
    return kept


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


def _failed_sync(choice: Choice) -> list[Fragment]:
    return choice.keep(lambda fragment: fragment.state is not State.FAILED)


def _lying_sync(choice: Choice) -> list[Fragment]:
    # Flush 0 marks what never needed one.
    honest = max(0, choice.flush - choice.random.randint(1, LYING_FLUSHES_MAX))
    coin = choice.coin()
    return [
        fragment
        for fragment in choice.fragments
        if (fragment.state is State.SYNCED and fragment.flush <= honest)
        or coin(fragment)
    ]


PROFILES: dict[str, Callable[[Choice], list[Fragment]]] = {
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


def damage(random: Random, files: dict[str, Content]) -> tuple[str, str]:
    """Damage one of the files, chosen by size-blind chance, and say which and how.

    Returns:
        The path and the kind: "missing" is left to the caller, the others are done.
    """
    path = random.choice(sorted(files))
    content = files[path]
    sectors = -(-content.size // SECTOR_BYTES)
    kinds = ["bit flip", "zeroed sector", "cut", "missing"]
    if sectors > 1:
        kinds += ["swapped sectors", "misdirected write"]
    kind = random.choice(kinds) if sectors else "missing"
    here, there = (n * SECTOR_BYTES for n in random.sample(range(max(2, sectors)), 2))
    first = content.read(SECTOR_BYTES, here)
    second = content.read(SECTOR_BYTES, there)
    if not first:
        here, first = there, second
    if kind == "bit flip":
        at = here + random.randrange(len(first))
        byte = content.read(1, at)[0] ^ (1 << random.randrange(8))
        content.apply(Write(at, bytes((byte,))))
    elif kind == "zeroed sector":
        content.apply(Write(here, bytes(len(first))))
    elif kind == "cut":
        content.size = random.randrange(content.size)
    elif kind == "swapped sectors":
        content.apply(Write(here, second))
        content.apply(Write(there, first))
    elif kind == "misdirected write":
        content.apply(Write(there, first))
    content.settle()
    return path, kind


def describe(fragment: Fragment, paths: dict[int, str]) -> str:
    """Return a fragment in words, such as "bytes 0–512 of /log/1.seg"."""
    texts = []
    for number, change in fragment.parts:
        path = paths.get(number, f"a removed file (inode {number})")
        if isinstance(change, Write):
            end = change.offset + len(change.data)
            texts.append(f"bytes {change.offset}–{end} of {path}")
        elif isinstance(change, Entry):
            verb = "removing" if change.inode is None else "naming"
            texts.append(f"{verb} {change.name} in {path}")
        else:
            texts.append(f"length {change.size} of {path}")
    return " and ".join(texts)
