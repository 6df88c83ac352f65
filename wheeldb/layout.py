"""What lies where in a store's directory, and FORMAT, which says what it is.

::

    DIR/FORMAT       wheeldb            BACKUP/FORMAT     wheeldb backup
                     format 1                             format 1
                     database 6f1c…                       database 6f1c…
    DIR/log/         the segments       BACKUP/snapshots/ one snapshot
    DIR/snapshots/   the snapshots
    DIR/index/       the index, VOUCH beside it
    DIR/aside/       torn tails, a bad index
    DIR/archive/     segments that are kept, if they are

FORMAT is written last when a store is made: a directory without one is no store.  Once
there it is a hint for everything but the number of the format: a file that is empty or
holds only zeros, as some file systems leave behind, is read as what the log's segments
say of themselves.  Lines that this release does not know are passed over.
"""

import os
import posixpath
from contextlib import suppress
from dataclasses import dataclass

from wheeldb.disk import Disk, OsDisk, replace_file
from wheeldb.errors import CorruptionError, FormatError
from wheeldb.log.segment import (
    SEGMENT_HEADER_BYTES,
    list_segments,
    parse_segment_header,
)
from wheeldb.log.source import ByteSource

__all__ = (
    "FORMAT_VERSION",
    "RELEASE",
    "Layout",
    "judge_path",
    "mend_format",
    "read_backup_format",
    "read_format",
    "require_outside",
    "sync_names",
    "write_format",
)

FORMAT_VERSION = 1
# Who writes, for the ``opened`` event.
RELEASE = "0.1.0"
STORE, BACKUP = "wheeldb", "wheeldb backup"
_FORMAT_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The names inside a store's directory."""

    path: str

    @property
    def format(self) -> str:
        """What the directory is."""
        return f"{self.path}/FORMAT"

    @property
    def log(self) -> str:
        """The directory of segments."""
        return f"{self.path}/log"

    @property
    def reserve(self) -> str:
        """Room set apart for the ends of tasks."""
        return f"{self.path}/log/reserve"

    @property
    def ballast(self) -> str:
        """Room set apart for what else must go on."""
        return f"{self.path}/log/ballast"

    @property
    def index(self) -> str:
        """The directory of the index."""
        return f"{self.path}/index"

    @property
    def snapshots(self) -> str:
        """The directory of snapshots."""
        return f"{self.path}/snapshots"

    @property
    def aside(self) -> str:
        """The directory of what was taken out."""
        return f"{self.path}/aside"

    @property
    def archive(self) -> str:
        """The directory of segments that are kept for replay."""
        return f"{self.path}/archive"

    @property
    def vouch(self) -> str:
        """Who opened the index last, and how that ended."""
        return f"{self.path}/index/VOUCH"


def read_format(disk: Disk, layout: Layout) -> bytes | None:
    """Return the database's UUID, ``None`` if there is no store.

    Raises:
        FormatError: If the directory is something else, or of a newer release.
        CorruptionError: If FORMAT can't be read, or is blank and the log can't stand in
            for it.
    """
    text = _read(disk, layout)
    if text is None:
        return None
    if _is_blank(text):
        return _database_of_log(disk, layout)
    name, database = _parse(text, layout)
    if name == BACKUP:
        raise FormatError(
            f"{layout.path} is a backup, which is never opened itself; make a store "
            "of it: wheeldb.restore(backup, dest), `wheeldb restore BACKUP DEST`"
        )
    return database


def read_backup_format(disk: Disk, layout: Layout) -> bytes:
    """Return the UUID of the database that a backup was made of.

    Raises:
        FormatError: If the directory is no backup, or one of a newer release.
    """
    text = _read(disk, layout)
    if text is not None and not _is_blank(text):
        name, database = _parse(text, layout)
        if name == BACKUP:
            return database
    raise FormatError(
        f"{layout.path} is no backup; db.backup(dest) and `wheeldb backup DIR DEST` "
        "make one"
    )


def judge_path(path: str) -> None:
    """Refuse a path that a store can't have: LMDB's binding takes UTF-8 only.

    Raises:
        ValueError: If it is not UTF-8.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the path {path!r} is not UTF-8; choose another directory"
        ) from error


def require_outside(disk: Disk, dest: str) -> None:
    """Refuse to make anything inside a store or a backup.

    Every file in there is the store's, which may remove those that it doesn't know.

    Raises:
        ValueError: If ``dest`` lies in one, also by way of a symbolic link.
    """
    inner = os.path.realpath(dest) if isinstance(disk, OsDisk) else dest
    while (outer := posixpath.dirname(inner)) != inner:
        if _is_taken(disk, Layout(path=outer or ".")):
            raise ValueError(
                f"{dest} lies inside the store or backup {outer or '.'}; name a "
                "directory outside of it"
            )
        inner = outer


def _is_taken(disk: Disk, layout: Layout) -> bool:
    """Return whether a directory is a store, a backup, or what is left of one."""
    with suppress(PermissionError):
        # What may not be looked at belongs to somebody else: /var has a log, too.
        info = disk.info(layout.format)
        if info is not None and not info.is_directory:
            name, *_ = (_read(disk, layout) or b"").splitlines() or [b""]
            if name in (STORE.encode(), BACKUP.encode()):
                return True
        log = disk.info(layout.log)
        if log is not None and log.is_directory:
            return bool(list_segments(disk, layout.log))
    return False


def write_format(
    disk: Disk, layout: Layout, database: bytes, *, is_backup: bool = False
) -> None:
    """Say durably what the directory is: from here on it is one.

    Raises:
        OSError: As the disk says.
    """
    name = BACKUP if is_backup else STORE
    text = f"{name}\nformat {FORMAT_VERSION}\ndatabase {database.hex()}\n"
    replace_file(disk, layout.format, text.encode())


def mend_format(disk: Disk, layout: Layout, database: bytes) -> None:
    """Write FORMAT anew if it is blank, and remove what lies beside it.

    Where a rename is a link and an unlink, a power cut may have left both names.
    """
    aside = layout.format + ".tmp"
    if disk.info(aside) is not None:
        disk.unlink(aside)
    text = _read(disk, layout)
    if text is not None and _is_blank(text):
        write_format(disk, layout, database)


def sync_names(disk: Disk, layout: Layout) -> None:
    """Make the names in the directory durable, and its own name.

    The process that made them may have died before it came to that.

    Raises:
        OSError: As the disk says.
    """
    disk.sync_directory(layout.path)
    # Whoever may not read the directory above has not made this one either.
    with suppress(PermissionError):
        disk.sync_directory(posixpath.dirname(layout.path) or ".")


def _read(disk: Disk, layout: Layout) -> bytes | None:
    if disk.info(layout.format) is None:
        return None
    with ByteSource(disk, layout.format, piece_bytes=_FORMAT_BYTES_MAX) as source:
        return source.read(0, _FORMAT_BYTES_MAX)


def _is_blank(text: bytes) -> bool:
    return not text.strip(b"\0")


def _parse(text: bytes, layout: Layout) -> tuple[str, bytes]:
    try:
        name, format_line, *rest = text.decode("ascii").splitlines()
        word, version = format_line.split()
        if name not in (STORE, BACKUP) or word != "format":
            raise ValueError(name)
        number = int(version)
    except ValueError as error:
        raise _foreign(layout) from error
    if number > FORMAT_VERSION:
        raise FormatError(
            f"{layout.path} has format {number}, this release knows {FORMAT_VERSION}; "
            "open it with the release that wrote it. Nothing was changed"
        )
    # Only now: what stands below the second line is another format's own affair.
    lines = [line for line in rest if line.startswith("database ")]
    try:
        database = bytes.fromhex(lines[0].removeprefix("database "))
    except (ValueError, IndexError) as error:
        raise _foreign(layout) from error
    if len(database) != 16:
        raise _foreign(layout)
    return name, database


def _foreign(layout: Layout) -> FormatError:
    return FormatError(
        f"{layout.format} is not that of a wheeldb store; is {layout.path} the right "
        "directory?"
    )


def _database_of_log(disk: Disk, layout: Layout) -> bytes:
    """Return the UUID in which all segments agree."""
    databases = set()
    if disk.info(layout.log) is not None:
        for name in list_segments(disk, layout.log):
            path = f"{layout.log}/{name.file_name}"
            with ByteSource(disk, path) as source:
                block = source.read(0, SEGMENT_HEADER_BYTES)
                databases.add(parse_segment_header(block, path=path).database)
    if len(databases) != 1:
        raise CorruptionError(
            "the file is blank, and the segments of the log name "
            f"{len(databases) or 'no'} databases",
            path=layout.format,
            offset=0,
        )
    return databases.pop()
