"""The index: every pending task by number and by due time, as of the last checkpoint.

It is a cache of the log.  What it loses can be rebuilt, so it is allowed to be wrong;
what it must not do is to be wrong unnoticed, or to take the process with it.  Seven
tables (`keys` draws them) take the `Changes` of a checkpoint in one transaction and are
read through a `Snapshot`:

    index = create_index("store/index", disk=disk)
    index.apply(Changes(put_tasks=[(9, 9, b"body")], put_due=[(16, 5_000, 9, 5_000)]))
    with index.snapshot() as view:
        view.due(16, None, 100)                    # [(5000, 9, 5000)]
        view.task(9)                               # (9, b"body")

There are two kinds, `LmdbIndex` in a directory and `MemoryIndex`; `open_index` decides
whether the one in a directory may be opened at all.  The index knows rows, not the log,
and nothing of what a row's body means.
"""

from wheeldb.index.blocks import Block
from wheeldb.index.changes import Changes
from wheeldb.index.keys import (
    BLOCK,
    COARSE_MS,
    DIGEST_MASK,
    DUE,
    FINISHED,
    ID,
    META,
    RUN,
    TABLES,
    TASK,
    due_digest,
    due_field,
    id_digest,
    id_hash,
    number_key,
    row_crc,
    row_digest,
)
from wheeldb.index.memory import MemoryIndex
from wheeldb.index.opening import create_index, open_index, set_aside
from wheeldb.index.snapshot import Index, IndexDamaged, IndexStatistics, Snapshot
from wheeldb.index.tables import LmdbIndex
from wheeldb.index.vet import Verdict, vet

__all__ = (
    "BLOCK",
    "COARSE_MS",
    "DIGEST_MASK",
    "DUE",
    "FINISHED",
    "ID",
    "META",
    "RUN",
    "TABLES",
    "TASK",
    "Block",
    "Changes",
    "Index",
    "IndexDamaged",
    "IndexStatistics",
    "LmdbIndex",
    "MemoryIndex",
    "Snapshot",
    "Verdict",
    "create_index",
    "due_digest",
    "due_field",
    "id_digest",
    "id_hash",
    "number_key",
    "open_index",
    "row_crc",
    "row_digest",
    "set_aside",
    "vet",
)
