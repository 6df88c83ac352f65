"""Backups: the state of an open store in a directory of its own, and a store from it.

    db.backup("/mnt/usb/gateway.backup")              # online; changes go on meanwhile
    wheeldb.restore("/mnt/usb/gateway.backup", "gateway.wheeldb")

::

    BACKUP/FORMAT                      wheeldb backup …
    BACKUP/snapshots/<LSN>.snap        the state as of one checkpoint, read back

A backup is not opened: two stores that go on from one state would hand out the same
fences.  ``restore`` makes a store of it, in a new incarnation that numbers on from far
above (``planting.py``).  A backup is one moment; for any other there is ``replay``.
"""

import os

from wheeldb.care import write_state
from wheeldb.clock import Clock
from wheeldb.clock.system import SystemClock
from wheeldb.disk import Disk, OsDisk
from wheeldb.engine.engine import Engine
from wheeldb.engine.snapshots import read_tables
from wheeldb.entropy import system_entropy
from wheeldb.errors import CorruptionError
from wheeldb.layout import Layout, read_backup_format
from wheeldb.log.segment import Entropy
from wheeldb.log.snapshot import copy_snapshot, list_snapshots
from wheeldb.planting import Origin, Planting

__all__ = ("backup_store", "place_text", "restore")


def backup_store(engine: Engine, dest: str | os.PathLike[str]) -> str:
    """Write a backup of an open store to a new directory; return the directory.

    Raises:
        FileExistsError: If there is something at ``dest``.
        ValueError: If ``dest`` is not UTF-8, or lies inside a store or a backup.
        CorruptionError: If the index is not what the events make: no backup is better
            than a wrong one.
        StorePoisoned: If the log has failed.
        TimeoutError: If ``dest`` is so slow that it takes more than a minute: the index
            is not held up for longer.  Back up to a faster disk, and copy from there.
        OSError: As the disk says; nothing stays at ``dest``.
    """
    with Planting(engine.disk, place_text(engine.disk, dest)) as planting:
        write_state(engine, planting.layout.snapshots)
        planting.finish(engine.database, is_backup=True)
    return planting.dest


def restore(
    backup: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> None:
    """Make a store of a backup, in a new directory.

    Args:
        backup: The backup; it is not changed.
        dest: The new store.
        disk: The disk seam, for tests.
        clock: The clock seam, for tests.
        entropy: The source of random bytes, for tests.

    Raises:
        FileExistsError: If there is something at ``dest``.
        ValueError: If ``dest`` is not UTF-8, or lies inside a store or a backup.
        FormatError: If ``backup`` is not one, or one of a newer release.
        CorruptionError: If the backup is damaged.
        OSError: As the disk says; nothing stays at ``dest``.
    """
    disk = disk or OsDisk()
    source = Layout(path=place_text(disk, backup))
    database = read_backup_format(disk, source)
    names = list_snapshots(disk, source.snapshots)
    if not names:
        raise CorruptionError("the backup has no snapshot", path=source.snapshots)
    path = f"{source.snapshots}/{names[0].file_name}"
    with Planting(disk, place_text(disk, dest)) as planting:
        info = copy_snapshot(disk, path, planting.layout.snapshots, database=database)
        tables = read_tables(disk, path, database=database)
        origin = Origin(
            database=database,
            incarnation=tables.incarnation,
            anchor=tables.anchor,
            lsn=info.lsn,
            bound=info.bound,
            hlc=max(info.hlc, tables.last_hlc),
            reason="restored",
        )
        planting.begin_log(origin, clock or SystemClock(), entropy or system_entropy)
        planting.finish(database)


def place_text(disk: Disk, path: str | os.PathLike[str]) -> str:
    """Return a path as text; a relative one is made absolute on the real disk."""
    text = os.fspath(path)
    return os.path.abspath(text) if isinstance(disk, OsDisk) else text
