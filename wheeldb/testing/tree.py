"""The files below a `CrashableDisk`: names, bytes, room, and what a crash keeps.

Paths are absolute or relative to the root, which always exists. Every call is one step
on the inodes of `wheeldb.testing.pieces`; what is not durable stays a piece there until
a sync, and `crash` lets a profile choose among the pieces that are left.

The tree knows no handles, locks, faults or threads: those are the disk's.
"""

import contextlib
import errno
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from random import Random

from wheeldb.disk.naming import judge_places, judge_replacing, names_of
from wheeldb.testing.faults import disk_error
from wheeldb.testing.images import (
    Image,
    describe_fate,
    describe_fragment,
    survivors,
)
from wheeldb.testing.pieces import (
    BLOCK_BYTES,
    Change,
    Directory,
    Entry,
    File,
    Fragment,
    Piece,
    Resize,
    State,
    Write,
    fragments_of,
)
from wheeldb.testing.profiles import (
    LYING_FLUSHES_MAX,
    PROFILES,
    Choice,
    Fate,
    plan_damage,
    splits_names,
)

__all__ = ("Tree",)

_ROOT = 1
_FREE_BYTES_UNLIMITED = 1 << 40

# What deleted files leave behind for "stale_tail".
_STALE_FILES_MAX = 8
_STALE_BYTES_MAX = 1 << 20


class Tree:
    """All inodes of one disk.

    Attributes:
        bytes_max: The capacity, None for no limit. Names take no room.
    """

    def __init__(self) -> None:
        self.bytes_max: int | None = None
        self._inodes: dict[int, File | Directory] = {_ROOT: Directory(_ROOT)}
        self._next_inode = _ROOT + 1
        self._pins: Counter[int] = Counter()
        self._order = 0
        self._flush = 0
        self._flushed: deque[tuple[int, int]] = deque()
        self._stale: list[bytes] = []
        self._new_state = State.PENDING

    # Looking.

    def find(self, path: str) -> File | Directory | None:
        """Return what the path leads to, None if there is nothing.

        Raises:
            OSError: ENOTDIR, a file stands where the path needs a directory.
        """
        found: File | Directory | None = self._inodes[_ROOT]
        for name in names_of(path):
            if not isinstance(found, Directory):
                raise disk_error(errno.ENOTDIR, path)
            number = found.cached.inodes.get(name)
            if number is None:
                return None
            found = self._inodes[number]
        return found

    def file(self, path: str) -> File:
        """Return the file at a path, or raise ENOENT or EISDIR."""
        found = self.find(path)
        if found is None:
            raise disk_error(errno.ENOENT, path)
        if isinstance(found, Directory):
            raise disk_error(errno.EISDIR, path)
        return found

    def directory(self, path: str) -> Directory:
        """Return the directory at a path, or raise ENOENT or ENOTDIR."""
        found = self.find(path)
        if found is None:
            raise disk_error(errno.ENOENT, path)
        if isinstance(found, File):
            raise disk_error(errno.ENOTDIR, path)
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        names = names_of(path)
        if not names:
            raise disk_error(errno.EBUSY, path)
        return self.directory("/".join(names[:-1])), names[-1]

    def walk(self) -> Iterator[tuple[str, File | Directory]]:
        """Yield every path a reader sees, parents first, sorted."""
        waiting = [("", _ROOT)]
        while waiting:
            path, number = waiting.pop()
            inode = self._inodes[number]
            yield path or "/", inode
            if isinstance(inode, Directory):
                entries = sorted(inode.cached.inodes.items(), reverse=True)
                waiting += [(f"{path}/{name}", entry) for name, entry in entries]

    def room(self) -> int:
        """Return the bytes left below the capacity."""
        if self.bytes_max is None:
            return _FREE_BYTES_UNLIMITED
        seen = {inode.number: inode for _, inode in self.walk()}
        seen |= {n: self._inodes[n] for n in self._pins if n in self._inodes}
        used = sum(len(f.blocks) for f in seen.values() if isinstance(f, File))
        return max(0, self.bytes_max - used * BLOCK_BYTES)

    # Changing.

    def create(self, path: str) -> File:
        """Make an empty file."""
        file = File(self._next_inode)
        self._name(path, file)
        return file

    def make_directory(self, path: str) -> None:
        """Make an empty directory."""
        self._name(path, Directory(self._next_inode))

    def _name(self, path: str, inode: File | Directory) -> None:
        parent, name = self._parent(path)
        self._next_inode += 1
        self._inodes[inode.number] = inode
        parent.add(self._piece(Entry(name, inode.number)))

    def write(self, file: File, data: bytes, offset: int, path: str) -> int:
        """Write what there is room for and return its length."""
        if offset < 0:
            raise disk_error(errno.EINVAL, path)
        if not data:
            return 0
        new = _blocks(offset, len(data)) - file.blocks
        if self.bytes_max is not None:
            spare = self.room() // BLOCK_BYTES
            if len(new) > spare:
                stop = sorted(new)[spare] * BLOCK_BYTES
                data = data[: max(0, stop - offset)]
                if not data:
                    raise disk_error(errno.ENOSPC, path)
                new = _blocks(offset, len(data)) - file.blocks
        file.blocks |= new
        end = offset + len(data)
        if end > file.cached.size:
            write = Write(offset, data, file.cached.size)
            file.add(self._piece(write, Resize(end)))
        else:
            file.add(self._piece(Write(offset, data)))
        return len(data)

    def resize(self, file: File, size: int) -> None:
        """Cut or extend a file; a cut gives the room beyond it back."""
        if size < file.cached.size:
            self._remember_stale(file)
        last = -(-size // BLOCK_BYTES)
        file.blocks = {block for block in file.blocks if block < last}
        file.add(self._piece(Resize(size)))

    def allocate(self, file: File, offset: int, size: int, path: str) -> None:
        """Reserve room. It survives a crash; on a real disk it need not."""
        if offset < 0 or size <= 0:
            raise disk_error(errno.EINVAL, path)
        new = _blocks(offset, size) - file.blocks
        if len(new) * BLOCK_BYTES > self.room():
            raise disk_error(errno.ENOSPC, path)
        file.blocks |= new

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing a file or an empty directory."""
        source_parent, source_name = self._parent(source)
        target_parent, target_name = self._parent(target)
        number = source_parent.cached.inodes.get(source_name)
        if number is None:
            raise disk_error(errno.ENOENT, source)
        judge_places(source, target)
        replaced = self.find(target)
        if replaced is not None:
            if replaced.number == number:
                return
            judge_replacing(
                target,
                moves_directory=isinstance(self._inodes[number], Directory),
                entries_count=len(replaced.cached.inodes)
                if isinstance(replaced, Directory)
                else None,
            )
            if isinstance(replaced, File):
                self._remember_stale(replaced)
        added, removed = Entry(target_name, number), Entry(source_name, None)
        if source_parent is target_parent:
            source_parent.add(self._piece(added, removed))
            return
        first, second = self._piece(added), self._piece(removed)
        first.twin, second.twin = second, first
        target_parent.add(first)
        source_parent.add(second)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._remember_stale(self.file(path))
        parent, name = self._parent(path)
        parent.add(self._piece(Entry(name, None)))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        if self.directory(path).cached.inodes:
            raise disk_error(errno.ENOTEMPTY, path)
        parent, name = self._parent(path)
        parent.add(self._piece(Entry(name, None)))

    def pin(self, file: File) -> None:
        """Keep a file while a handle is open, whatever becomes of its name."""
        self._pins[file.number] += 1

    def unpin(self, file: File) -> None:
        """Take back one `pin`."""
        self._pins -= Counter((file.number,))

    def forget_failed(self) -> None:
        """Drop from the cache what failed syncs have left there alone."""
        for inode in self._inodes.values():
            inode.forget_failed()

    def settle(self) -> None:
        """Let everything be durable that was ever written; nothing can lose it."""
        for inode in self._inodes.values():
            inode.sync(self._flush)
            inode.merge(self._flush)
        self._flushed.clear()
        self._collect()

    def sync(self, inode: File | Directory) -> None:
        """Make what is pending in one inode durable."""
        self._flush += 1
        inode.sync(self._flush)
        self._flushed.append((self._flush, inode.number))
        while len(self._flushed) > LYING_FLUSHES_MAX:
            flush, number = self._flushed.popleft()
            if number in self._inodes:
                self._inodes[number].merge(flush)
        if isinstance(inode, Directory):
            self._collect()

    @contextlib.contextmanager
    def durably(self) -> Iterator[None]:
        """Make every change inside the block without the need of a sync."""
        self._new_state = State.SYNCED
        try:
            yield
        finally:
            self._new_state = State.PENDING

    def load(self, path: str, data: bytes) -> None:
        """Put a file in place, with the directories it needs."""
        names = names_of(path)
        for depth in range(1, len(names)):
            above = "/".join(names[:depth])
            if self.find(above) is None:
                self.make_directory(above)
        file = self.create(path) if self.find(path) is None else self.file(path)
        self.resize(file, 0)
        if self.write(file, data, 0, path) < len(data):
            raise disk_error(errno.ENOSPC, path)

    def _piece(self, *changes: Change) -> Piece:
        self._order += 1
        return Piece(order=self._order, changes=changes, state=self._new_state)

    def _remember_stale(self, file: File) -> None:
        if file.cached.size:
            self._stale.append(file.cached.read(_STALE_BYTES_MAX, 0))
            del self._stale[:-_STALE_FILES_MAX]

    def _collect(self) -> None:
        """Forget the inodes that no name and no handle can reach any more."""
        waiting = [_ROOT, *self._pins]
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            inode = self._inodes[number]
            if isinstance(inode, Directory):
                waiting += inode.inodes_ever()
        self._inodes = {n: inode for n, inode in self._inodes.items() if n in seen}

    # Crashing.

    def unpin_all(self) -> None:
        """Drop every handle's hold, as the end of the process does."""
        self._pins.clear()
        self._collect()

    def pending(self, *, split_names: bool = False) -> list[str]:
        """Return in words what a crash may lose, in the order of `keep`."""
        paths = self._paths()
        return [
            describe_fragment(fragment, paths)
            for fragment in self._fragments(split_names=split_names)
            if fragment.state is not State.SYNCED
        ]

    def image(
        self, profile: str, random: Random, keep: Collection[int] | None = None
    ) -> Image:
        """Choose what a power cut leaves; nothing happens yet.

        Args:
            profile: A key of `PROFILES`.
            random: The source of every choice.
            keep: The indexes of the survivors among `pending`, in place of a choice.
        """
        choice = self._choice(profile, random)
        if keep is None:
            fates = PROFILES[profile](choice)
        else:
            unsafe = enumerate(choice.unsafe())
            fates = [Fate(index) for place, (index, _) in unsafe if place not in keep]
        damages = []
        if profile == "damage":
            files = {p: i.cached for p, i in self.walk() if isinstance(i, File)}
            if files:
                damages.append(plan_damage(random, files))
        return Image(profile=profile, fates=tuple(fates), damages=tuple(damages))

    def unsafe_count(self) -> int:
        """Return how many fragments no sync has covered; a rename counts as one."""
        if all(not inode.pieces for inode in self._inodes.values()):
            return 0
        return sum(
            fragment.state is not State.SYNCED
            for fragment in self._fragments(split_names=False)
        )

    def describe(self, image: Image) -> list[str]:
        """Return in words what an image of this moment loses, tears and damages."""
        fragments, paths = self._image_fragments(image), self._paths()
        story = [describe_fate(fate, fragments, paths) for fate in image.fates]
        return story + [f"damaged: {one.kind} in {one.path}" for one in image.damages]

    def after(self, image: Image) -> "Tree":
        """Return what an image of this moment leaves; this tree stays as it is."""
        changes = survivors(self._image_fragments(image), image)
        other = Tree()
        other.bytes_max = self.bytes_max
        other._next_inode, other._order = self._next_inode, self._order
        other._flush, other._stale = self._flush, self._stale.copy()
        other._inodes = {
            number: inode.survivor(changes.get(number, ()))
            for number, inode in self._inodes.items()
        }
        other._collect()
        for one in image.damages:
            other._damage(one.path, one.kind, one.changes)
        return other

    def _fragments(self, *, split_names: bool) -> list[Fragment]:
        return fragments_of(self._inodes.values(), split_names=split_names)

    def _image_fragments(self, image: Image) -> list[Fragment]:
        return self._fragments(split_names=splits_names(image.profile))

    def _choice(self, profile: str, random: Random) -> Choice:
        fragments = self._fragments(split_names=splits_names(profile))
        return Choice(random, fragments, self._stale, self._flush)

    def _paths(self) -> dict[int, str]:
        return {inode.number: path for path, inode in self.walk()}

    def _damage(self, path: str, kind: str, changes: Sequence[Change]) -> None:
        file = self.find(path)
        if not isinstance(file, File):
            return  # lost with its name
        parent, name = self._parent(path)
        if kind == "missing":
            self._inodes[parent.number] = parent.survivor((Entry(name, None),))
        else:
            self._inodes[file.number] = file.survivor(changes)


def _blocks(offset: int, size: int) -> set[int]:
    return set(range(offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)))
