"""Files and directories that remember which of their changes are durable.

An inode is two versions and the changes between them:

    durable    what is on the medium for certain
    pieces     the changes since, oldest first, each pending, synced or failed
    cached     durable with every piece applied: what a reader sees

A sync marks the pending pieces synced; a power cut applies the synced ones and any
selection of the others to `durable`. A write is one piece here and is cut into sectors
only when the power goes (`fragments_of`). A file's names are pieces of its directory,
not of the file: syncing the one says nothing about the other, as in fsync(2).

Synced pieces stay apart for a few flushes, so that a drive that lies about its last
flushes can be played. This module draws no random numbers and raises nothing.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

__all__ = (
    "BLOCK_BYTES",
    "SECTOR_BYTES",
    "Change",
    "Content",
    "Directory",
    "Entry",
    "File",
    "Fragment",
    "Inode",
    "Names",
    "Piece",
    "Resize",
    "State",
    "Version",
    "Write",
    "fragments_of",
)

# What a medium writes whole, and what it may read and rewrite to do so.
SECTOR_BYTES = 512
BLOCK_BYTES = 4096


class Write(NamedTuple):
    """Bytes of a file, without their effect on its length.

    `grew_from` is the length before, if the write lies (partly) beyond it, else -1.
    """

    offset: int
    data: bytes
    grew_from: int = -1


class Resize(NamedTuple):
    """A file's new length, longer or shorter."""

    size: int


class Entry(NamedTuple):
    """A name in a directory and the inode it leads to, None for "no longer there"."""

    name: str
    inode: int | None


Change: TypeAlias = Write | Resize | Entry


class State(enum.Enum):
    """How far a change has come."""

    PENDING = "pending"
    SYNCED = "synced"
    # A sync reported an error: the kernel has marked the pages clean, so no later sync
    # writes them, and only a reader of the cache still sees them (Rebello et al., "Can
    # Applications Recover from fsync Failures?", USENIX ATC 2020).
    FAILED = "failed"


@dataclass(slots=True, eq=False, kw_only=True)
class Piece:
    """Changes that one call made to one inode."""

    order: int
    changes: tuple[Change, ...]
    state: State = State.PENDING
    flush: int = 0
    # The other half of a rename from one directory to another.
    twin: "Piece | None" = None


class Version(Protocol):
    """One version of a file or directory."""

    def apply(self, change: Change) -> None:
        """Make one change."""

    def settle(self) -> None:
        """Forget what no reader can see."""

    def copy(self) -> Self:
        """Return a copy."""


VersionT = TypeVar("VersionT", bound=Version)


class Content:
    """A version of a file.

    `data` may be shorter than `size` (a hole, zeros) or longer: bytes that arrived
    before the length that shows them.
    """

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self.size = len(data)

    def apply(self, change: Change) -> None:
        """Make one change."""
        if isinstance(change, Write):
            missing = change.offset - len(self.data)
            if missing > 0:
                self.data += bytes(missing)
            self.data[change.offset : change.offset + len(change.data)] = change.data
        elif isinstance(change, Resize):
            self.size = change.size
            # Growing again must show zeros, not what was cut off.
            del self.data[change.size :]
        else:
            raise AssertionError(f"{change} on a file")

    def settle(self) -> None:
        """Forget the bytes beyond the length."""
        del self.data[self.size :]

    def copy(self) -> "Content":
        """Return a copy."""
        twin = Content(self.data)
        twin.size = self.size
        return twin

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes at `offset`."""
        end = min(offset + size, self.size)
        data = bytes(self.data[offset:end])
        return data + bytes(max(0, end - offset - len(data)))


class Names:
    """A version of a directory."""

    __slots__ = ("inodes",)

    def __init__(self, inodes: Mapping[str, int] | None = None) -> None:
        self.inodes = dict(inodes or {})

    def apply(self, change: Change) -> None:
        """Make one change."""
        assert isinstance(change, Entry), f"{change} in a directory"
        if change.inode is None:
            self.inodes.pop(change.name, None)
        else:
            self.inodes[change.name] = change.inode

    def settle(self) -> None:
        """Do nothing: every name is visible."""

    def copy(self) -> "Names":
        """Return a copy."""
        return Names(self.inodes)


class Inode(Generic[VersionT]):
    """A file or directory: two versions and the pieces between them.

    Without pieces the two are one object, and an inode that has survived a crash shares
    it with the one before; whoever changes a version makes it his own first.
    """

    def __init__(self, number: int, durable: VersionT) -> None:
        self.number = number
        self.durable = durable
        self.cached = durable
        self.pieces: list[Piece] = []
        self._is_shared = False

    def add(self, piece: Piece) -> None:
        """Make a change that readers see at once."""
        if self.cached is self.durable:
            self.cached = self.durable.copy()
        for change in piece.changes:
            self.cached.apply(change)
        self.pieces.append(piece)

    def sync(self, flush: int) -> None:
        """Make the pending pieces durable. Failed ones stay failed."""
        for piece in self.pieces:
            if piece.state is State.PENDING:
                piece.state = State.SYNCED
                piece.flush = flush

    def fail_sync(self) -> None:
        """Mark the pending pieces clean without having written them."""
        for piece in self.pieces:
            if piece.state is State.PENDING:
                piece.state = State.FAILED

    def merge(self, flush: int) -> None:
        """Move the pieces synced up to a flush into the durable version.

        One that stands behind an unsynced piece has to wait for it.
        """
        count = 0
        for piece in self.pieces:
            if piece.state is not State.SYNCED or piece.flush > flush:
                break
            if self._is_shared:
                self.durable = self.durable.copy()
                self._is_shared = False
            for change in piece.changes:
                self.durable.apply(change)
            count += 1
        del self.pieces[:count]

    def forget_failed(self) -> None:
        """Drop the failed pieces from the cache, as an evicted page drops them."""
        if all(piece.state is not State.FAILED for piece in self.pieces):
            return
        left = [p for p in self.pieces if p.state is not State.FAILED]
        self.pieces, self.cached = [], self.durable
        for piece in left:
            self.add(piece)

    def _survive(self, twin: Self, changes: Iterable[Change]) -> None:
        """Let a new inode begin with the durable version, changed so."""
        self._is_shared = twin._is_shared = True
        for change in changes:
            if twin._is_shared:
                twin.durable = self.durable.copy()
                twin._is_shared = False
            twin.durable.apply(change)
        if not twin._is_shared:
            twin.durable.settle()
        twin.cached = twin.durable


class File(Inode[Content]):
    """A regular file; `blocks` are the numbers of its allocated blocks."""

    def __init__(self, number: int, durable: Content | None = None) -> None:
        super().__init__(number, Content() if durable is None else durable)
        self.blocks: set[int] = set()

    def survivor(self, changes: Iterable[Change]) -> "File":
        """Return what a power cut leaves of it: the durable version, changed so."""
        twin = File(self.number, self.durable)
        twin.blocks = set(self.blocks)
        self._survive(twin, changes)
        return twin


class Directory(Inode[Names]):
    """A directory."""

    def __init__(self, number: int, durable: Names | None = None) -> None:
        super().__init__(number, Names() if durable is None else durable)

    def survivor(self, changes: Iterable[Change]) -> "Directory":
        """Return what a power cut leaves of it: the durable version, changed so."""
        twin = Directory(self.number, self.durable)
        self._survive(twin, changes)
        return twin

    def inodes_ever(self) -> Iterator[int]:
        """Yield every inode that a name leads to, now or after some power cut."""
        yield from self.durable.inodes.values()
        for piece in self.pieces:
            for change in piece.changes:
                if isinstance(change, Entry) and change.inode is not None:
                    yield change.inode


class Fragment(NamedTuple):
    """What a power cut keeps or loses as a whole: changes to one inode, or to two."""

    order: int
    parts: tuple[tuple[int, Change], ...]
    state: State = State.PENDING
    flush: int = 0


def fragments_of(
    inodes: Iterable[File | Directory], *, split_names: bool
) -> list[Fragment]:
    """Cut every piece to the fragments that survive or vanish alone, oldest first.

    A synced piece is not cut further: it survives, or a lying drive lost all of it.

    Args:
        inodes: All files and directories.
        split_names: Whether a rename falls into its parts: the target removed, the
            target linked, the source removed.
    """
    pieces = sorted(
        ((inode.number, piece) for inode in inodes for piece in inode.pieces),
        key=lambda item: item[1].order,
    )
    numbers = {id(piece): number for number, piece in pieces}
    fragments: list[Fragment] = []
    for number, piece in pieces:
        mark = piece.state, piece.flush
        if isinstance(piece.changes[0], Entry) and not split_names:
            fragment = _whole_rename(number, piece, numbers)
            if fragment is not None:
                fragments.append(fragment)
        elif piece.state is State.SYNCED:
            parts = tuple((number, change) for change in piece.changes)
            fragments.append(Fragment(piece.order, parts, *mark))
        else:
            fragments += [
                Fragment(piece.order, ((number, change),), *mark)
                for change in _split(piece)
            ]
    return fragments


def _whole_rename(
    number: int, piece: Piece, numbers: dict[int, int]
) -> Fragment | None:
    """Return a directory's piece together with its twin; None for the second twin."""
    parts = [(number, change) for change in piece.changes]
    state, flush = piece.state, piece.flush
    twin = piece.twin
    if twin is not None:
        twin_number = numbers.get(id(twin))
        if twin.state is State.SYNCED and state is not State.SYNCED:
            # The half that was synced decides for both; it stands in the list itself
            # or is merged already.
            state, flush = State.SYNCED, twin.flush
        elif state is not State.SYNCED and twin_number is not None:
            if twin.order < piece.order:
                return None
            parts += [(twin_number, change) for change in twin.changes]
    return Fragment(piece.order, tuple(parts), state, flush)


def _split(piece: Piece) -> Iterator[Change]:
    first = piece.changes[0]
    if isinstance(first, Write):
        # The new length behind a write comes in steps, with its sectors.
        yield from _sectors(first)
        return
    is_rename = len(piece.changes) > 1 or piece.twin is not None
    for change in piece.changes:
        if is_rename and isinstance(change, Entry) and change.inode is not None:
            yield Entry(change.name, None)
        yield change


def _sectors(write: Write) -> Iterator[Change]:
    """Yield a write's sectors, and behind each that grows the file its new length."""
    start = write.offset
    end = write.offset + len(write.data)
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        data = write.data[start - write.offset : stop - write.offset]
        grows = write.grew_from >= 0 and stop > write.grew_from
        yield Write(start, data, write.grew_from if grows else -1)
        if grows:
            yield Resize(stop)
        start = stop
