"""The child process that reads a doubtful index from end to end, and may die of it.

    python -m wheeldb.index.verify DIR/index

First py-lmdb's own verifier walks the pages without LMDB, then LMDB reads every row and
every row's check is made.  Sound: prints rows and digest of each table as JSON and
exits with 0.  Damaged: says what, in one line on standard error, and exits with 4.
Killed by a signal: damaged too.  It changes nothing.
"""

import json
import sys

from lmdb.verify import VerifyError, verify

from wheeldb.disk import OsDisk
from wheeldb.index.snapshot import IndexDamaged
from wheeldb.index.tables import DATA_FILE, LmdbIndex
from wheeldb.index.vet import STATUS_DAMAGED

__all__ = ("main",)


def main(path: str) -> int:
    """Read the index in a directory and return the exit status."""
    try:
        problems: list[str] = verify(  # type: ignore[no-untyped-call]
            f"{path}/{DATA_FILE}", subdir=False
        )
        if problems:
            sys.stderr.write(f"{len(problems)} problems, the first: {problems[0]}\n")
            return STATUS_DAMAGED
        index = LmdbIndex(path, disk=OsDisk(), readonly=True, lock=False)
        with index.snapshot() as view:
            digests = view.digests()
    except (IndexDamaged, VerifyError) as error:
        reason = error.reason if isinstance(error, IndexDamaged) else error
        sys.stderr.write(f"{reason}\n")
        return STATUS_DAMAGED
    json.dump(digests, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
