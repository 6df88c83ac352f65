"""A full disk below LMDB, which calls it an input/output error.

Goal: where a commit was written short, room decides: without any it is the disk that is
full, and the index is as it was; with room left, or a medium that fails, the index is
damaged. Method: a limit on the size of files makes the system write short, as a full
disk does, and needs no root; whether there is room is what the disk seam then says.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from wheeldb.disk import OsDisk
from wheeldb.index import IndexDamaged, LmdbIndex
from wheeldb.index.changes import Changes
from wheeldb.index.keys import TASK


class Judge(OsDisk):
    """The real disk, but for what it says about room."""

    refusal: int | None = None
    asked = 0

    def allocate(self, handle: int, offset: int, size: int, /) -> bool:
        """Refuse with an error if there is one to refuse with."""
        self.asked += 1
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return True


@pytest.fixture
def disk() -> Judge:
    return Judge()


@pytest.fixture
def index(tmp_path: Path, disk: Judge) -> Iterator[LmdbIndex]:
    made = LmdbIndex.create(str(tmp_path / "index"), disk=disk)
    made.apply(tasks(0, 10))
    yield made
    made.close()


def tasks(first: int, last: int) -> Changes:
    numbers = range(first, last)
    return Changes(
        put_tasks=[(number, number + 1, b"body" * 10) for number in numbers],
        put_due=[(16, 1_000 * number, number, 1_000 * number) for number in numbers],
    )


@contextmanager
def short_writes(index: LmdbIndex) -> Iterator[None]:
    """Let files end within the first page behind what the index has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = os.stat(f"{index.path}/data.mdb").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EDQUOT])
def test_written_short_without_room_is_a_full_disk(
    index: LmdbIndex, disk: Judge, refusal: int
) -> None:
    disk.refusal = refusal
    for _ in range(2):
        with short_writes(index), pytest.raises(OSError, match="no room") as caught:
            index.apply(tasks(10, 500))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == index.path
        cause = caught.value.__cause__
        assert isinstance(cause, lmdb.Error)
        assert cause.code == errno.EIO, "the system wrote short"
    # Nothing of it counts, and it is of use as before.
    assert index.statistics().rows[TASK] == 10
    with index.snapshot() as view:
        assert view.check() == []
    index.apply(tasks(10, 500))
    assert index.statistics().rows[TASK] == 500
    with index.snapshot() as view:
        assert view.check() == []


@pytest.mark.parametrize("refusal", [None, errno.EIO, errno.EROFS])
def test_written_short_for_another_reason_is_damage(
    index: LmdbIndex, disk: Judge, refusal: int | None
) -> None:
    disk.refusal = refusal
    with short_writes(index), pytest.raises(IndexDamaged) as caught:
        index.apply(tasks(10, 500))
    assert caught.value.code == errno.EIO
    assert disk.asked == 1
    with pytest.raises(IndexDamaged):
        index.apply(Changes())
