"""Reading the log on as it grows, from where the last look ended.

::

    follower = LogFollower(disk, "log", database=uuid, from_lsn=seen_lsn)
    for frame in follower.frames(durable_lsn): …      # what there is
    for frame in follower.frames(durable_lsn): …      # later: what has come since

Between two looks it holds no file open: only the place, which is a segment, the end of
the last frame read in it, that frame's number and checksum.  So a look costs what has
come since, whatever the segment's size.  A segment that is retired in front of it is
``Compacted``; one that was read to its last number may go.

It reads durable frames alone, so whatever is wrong in front of them is damage.  What
the end of a log means that nobody has vouched for is the affair of
`wheeldb.log.reader`.
"""

import os.path
from collections.abc import Generator, Iterator

from wheeldb.disk import Disk
from wheeldb.errors import Compacted, CorruptionError
from wheeldb.log.cursor import FrameCursor
from wheeldb.log.frame import Flaw, Frame
from wheeldb.log.reader import read_segment_header
from wheeldb.log.segment import SegmentHeader, SegmentName, list_segments
from wheeldb.log.source import ByteSource

__all__ = ("LogFollower",)

# What came since the last look is mostly a frame or two.
_PIECE_BYTES = 2**16


class LogFollower:
    """A place in the log, and the way on from there."""

    def __init__(
        self, disk: Disk, directory: str, *, database: bytes, from_lsn: int
    ) -> None:
        """Stand in front of the first frame above an LSN that the log still has.

        Args:
            disk: The seam to the file system.
            directory: Where the segments lie.
            database: The UUID that they must have.
            from_lsn: Frames that end at or below it are passed over.

        Raises:
            CorruptionError: If there is no segment, or its header is damaged.
            FormatError: If it is of another database or a newer format.
        """
        self._disk = disk
        self._directory = directory
        self._database = database
        self._from_lsn = from_lsn
        # Where it stands in the segment; ``None`` is behind its header.
        self._cursor: FrameCursor | None = None
        while True:
            names = list_segments(disk, directory)
            if not names:
                raise CorruptionError(
                    "there is no segment of the log", path=directory, lsn=from_lsn
                )
            begun = [name for name in names if name.first_lsn <= from_lsn + 1]
            try:
                self._header = self._read_header(max(begun, default=names[0]))
            except FileNotFoundError:
                # It was retired between the listing and the look at it.
                continue
            break
        self.oldest_lsn = names[0].first_lsn
        # Whether the log no longer has all that it once had above ``from_lsn``.
        self.is_cut = self._header.predecessor_last_lsn > from_lsn

    def frames(self, until_lsn: int) -> Iterator[Frame]:
        """Yield the frames behind those that were yielded before.

        Args:
            until_lsn: The last number known to be durable.

        Raises:
            Compacted: If some of them were retired before they were reached.
            CorruptionError: If one is damaged or missing.
            FormatError: If one is of a newer format.
        """
        try:
            while self._last_lsn < until_lsn:
                successor = self._find_successor()
                try:
                    flaw = yield from self._read(until_lsn, successor)
                except FileNotFoundError:
                    if successor is None or not self._is_before(successor):
                        raise
                    self._header, self._cursor = successor, None
                    continue
                if self._last_lsn < until_lsn:
                    # It may have been begun after the look for it.
                    self._leave_for(successor or self._find_successor(), flaw)
        except FileNotFoundError as error:
            names = list_segments(self._disk, self._directory)
            raise Compacted(names[0].first_lsn if names else until_lsn) from error

    @property
    def _path(self) -> str:
        return os.path.join(self._directory, self._header.name.file_name)

    @property
    def _last_lsn(self) -> int:
        cursor = self._cursor
        return self._header.predecessor_last_lsn if cursor is None else cursor.last_lsn

    def _read(
        self, until_lsn: int, successor: SegmentHeader | None
    ) -> Generator[Frame, None, Flaw | None]:
        """Yield what the segment has; return what is wrong behind that, if anything."""
        with ByteSource(self._disk, self._path, piece_bytes=_PIECE_BYTES) as source:
            limit = source.size() if successor is None else successor.predecessor_bytes
            cursor = self._cursor
            if cursor is None:
                cursor = self._cursor = FrameCursor(source, self._header, limit)
            cursor.source, cursor.limit = source, limit
            while cursor.last_lsn < until_lsn and cursor.offset < limit:
                found = cursor.next()
                if isinstance(found, Flaw):
                    return found
                if found.header.lsn_count and found.header.last_lsn > self._from_lsn:
                    yield found
        return None

    def _leave_for(self, successor: SegmentHeader | None, flaw: Flaw | None) -> None:
        """Go to the next segment, which says where this one ended.

        Raises:
            CorruptionError: If it says something else, or there is none.
        """
        cursor = self._cursor
        assert cursor is not None, "the segment was read"
        place = (cursor.offset, cursor.last_lsn, cursor.previous_crc)
        if successor is None or place != (
            successor.predecessor_bytes,
            successor.predecessor_last_lsn,
            successor.predecessor_crc,
        ):
            behind = flaw or (
                "the log ends here"
                if successor is None
                else f"the segment does not end as {successor.name.file_name} says"
            )
            raise CorruptionError(
                f"{behind}, and what follows was durable",
                path=self._path,
                offset=cursor.torn_offset,
                lsn=cursor.last_lsn + 1,
            )
        self._header, self._cursor = successor, None

    def _is_before(self, successor: SegmentHeader) -> bool:
        """Return whether nothing is left to be read in front of a segment."""
        return self._last_lsn == successor.predecessor_last_lsn

    def _find_successor(self) -> SegmentHeader | None:
        """Return the header of the next segment, ``None`` if this is the last one.

        Raises:
            FileNotFoundError: If it was retired.
        """
        number = self._header.number
        names = list_segments(self._disk, self._directory)
        behind = [name for name in names if name.number > number]
        if not behind:
            return None
        if behind[0].number != number + 1:
            raise FileNotFoundError(f"segment {number + 1} is not there any more")
        return self._read_header(behind[0])

    def _read_header(self, name: SegmentName) -> SegmentHeader:
        path = os.path.join(self._directory, name.file_name)
        return read_segment_header(self._disk, path, name, self._database)[0]
