"""Damages of LMDB's file, each met by a store that opens in a child process.

LMDB has no checksum and trusts what it maps, so a damage may end the process by a
signal, which no ``except`` catches.  The file is that of a real store on a real disk,
left in three ways, which an opening treats otherwise::

    closed      VOUCH says so: the file is used without being read first
    killed      the same boot: likewise
    power cut   another boot: a child process reads all of it before

The damages are the known ways to kill LMDB (meta pages, truncation, zeroed pages),
every bit of both meta pages' headers by lot, and by chance bits, bytes, pages that are
zero, garbage, older or another's.  A visitor (``visitor.py``) then opens the store,
looks at all of it in one of three orders, works on, and opens it once more.  It has to
find the exact state; it may have refused with a typed error.  A signal, a hang or
another state is a violation.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tools.bitrot.sweep import VIOLATIONS_MAX, Count
from tools.bitrot.visitor import ORDERS, Order, State, visit, work_and_leave

__all__ = ("LEFT", "Left", "damages_of", "index_counts", "leave")

PAGE = 4_096
LEFT = ("closed", "killed", "power cut")
# A meta page's fields in front of its end: header, magic, version, size, trees, last
# page.
_META_BYTES = 152


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A store as one of the three ways has left it.

    Attributes:
        how: Which one.
        path: Its directory.
        data: LMDB's file, up to the last page in use.
        older: The same file a checkpoint before.
        states: What a visitor must find, by the order in which it looks.
    """

    how: str
    path: Path
    data: bytes
    older: bytes
    states: dict[Order, State]

    @property
    def has_rebooted(self) -> bool:
        """Whether the machine was started anew since."""
        return self.how == "power cut"

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """Lend the store for a visit, and put everything back behind it.

        The directory stays the same one, so that VOUCH still speaks of it: what a copy
        of it would be is another matter.
        """
        kept = self.path.with_name("kept")
        if not kept.exists():
            shutil.copytree(self.path, kept)
        try:
            yield self.path
        finally:
            for one in self.path.iterdir():
                if one.is_dir():
                    shutil.rmtree(one)
                else:
                    one.unlink()
            shutil.copytree(kept, self.path, dirs_exist_ok=True)

    def try_damages(self, cases: int, seed: int) -> Count:
        """Return what came of the known damages and of some by chance."""
        count, dice = Count(), Random(f"{seed} {self.how}")
        for number, (name, change) in enumerate(damages_of(self, cases, dice)):
            data = bytearray(self.data)
            change(data)
            count.cases += 1
            if data == self.data:
                count.same += 1
                continue
            order = ORDERS[number % len(ORDERS)]
            with self.copied() as path:
                (path / "index" / "data.mdb").write_bytes(data)
                found = visit(path, order, has_rebooted=self.has_rebooted)
            if found == self.states[order]:
                count.outcomes["exact"] += 1
            elif isinstance(found, str) and found.startswith("refused"):
                count.outcomes["refused"] += 1
            else:
                count.violation_count += 1
                if len(count.violations) < VIOLATIONS_MAX:
                    what = found if isinstance(found, str) else "the state is another"
                    count.violations.append(f"{name}, {order} first: {what}")
        return count


def index_counts(
    cases: int, seed: int, ways: Sequence[str] = LEFT
) -> Iterator[tuple[str, Count]]:
    """Yield for each way of leaving the store what came of so many damages.

    The known ways to kill LMDB come first, whatever the number.
    """
    with tempfile.TemporaryDirectory(prefix="wheeldb-bitrot-") as scratch:
        for number, how in enumerate(ways):
            left = leave(Path(scratch, str(number)), how)
            yield f"index, {how}", left.try_damages(cases, seed)


def leave(directory: Path, how: str) -> Left:
    """Make a store and leave it in one of the ways."""
    directory.mkdir()
    path = directory / "store"
    older = work_and_leave(path, is_closed=how == "closed")
    data = (path / "index" / "data.mdb").read_bytes()
    left = Left(how=how, path=path, data=data, older=older, states={})
    for order in ORDERS:
        with left.copied() as path:
            found = visit(path, order, has_rebooted=left.has_rebooted)
        assert isinstance(found, State), f"the sound store: {found}"
        left.states[order] = found
    return left


def damages_of(
    left: Left, cases: int, dice: Random
) -> Iterator[tuple[str, Callable[[bytearray], object]]]:
    """Yield names and changes: the known ways to kill LMDB, then some by chance."""
    used = _pages_used(left.data)
    yield from _known(used)
    for _ in range(cases):
        yield _by_chance(left, used, dice)


def _known(used: int) -> Iterator[tuple[str, Callable[[bytearray], object]]]:
    half = used // 2 * PAGE
    yield "empty", lambda data: data.clear()
    yield "one meta page alone", lambda data: _cut(data, PAGE)
    yield "both meta pages zeroed", lambda data: _zero(data, 0, 2 * PAGE)
    yield "the first meta page zeroed", lambda data: _zero(data, 0, PAGE)
    yield "the second meta page zeroed", lambda data: _zero(data, PAGE, 2 * PAGE)
    yield "a magic number damaged", lambda data: _flip(data, 16, 1)
    yield "cut to half", lambda data: _cut(data, half)
    yield "the last page cut", lambda data: _cut(data, (used - 1) * PAGE)
    yield "the second half zeroed", lambda data: _zero(data, half, used * PAGE)
    yield "all but the meta pages zeroed", lambda data: _zero(data, 8192, used * PAGE)


def _by_chance(
    left: Left, used: int, dice: Random
) -> tuple[str, Callable[[bytearray], object]]:
    page = dice.randrange(2, used)
    start = page * PAGE
    match dice.randrange(8):
        case 0:
            place = dice.randrange(2) * PAGE + dice.randrange(_META_BYTES)
            bit = dice.randrange(8)
            return f"meta bit {bit} of byte {place}", lambda data: _flip(
                data, place, 1 << bit
            )
        case 1:
            return f"page {page} zeroed", lambda data: _zero(data, start, start + PAGE)
        case 2:
            garbage = dice.randbytes(PAGE)
            return f"page {page} garbage", lambda data: _put(data, start, garbage)
        case 3:
            other = dice.randrange(2, used) * PAGE
            moved = left.data[other : other + PAGE]
            return f"page {page} holds page {other // PAGE}", lambda data: _put(
                data, start, moved
            )
        case 4:
            old = left.older[start : start + PAGE]
            return f"page {page} is the older one", lambda data: _put(data, start, old)
        case 5:
            # The header of a page and the offsets of its rows.
            place = start + dice.randrange(64)
            value = bytes((dice.randrange(256),))
            return f"byte {place} is {value[0]}", lambda data: _put(data, place, value)
        case _:
            place, bit = start + dice.randrange(PAGE), dice.randrange(8)
            return f"bit {bit} of byte {place}", lambda data: _flip(
                data, place, 1 << bit
            )


def _pages_used(data: bytes) -> int:
    return (
        max(
            int.from_bytes(data[start + 136 : start + 144], "little")
            for start in (0, PAGE)
        )
        + 1
    )


def _cut(data: bytearray, size: int) -> None:
    del data[size:]


def _zero(data: bytearray, start: int, end: int) -> None:
    data[start:end] = bytes(len(data[start:end]))


def _put(data: bytearray, start: int, piece: bytes) -> None:
    data[start : start + len(piece)] = piece


def _flip(data: bytearray, place: int, mask: int) -> None:
    data[place] ^= mask
