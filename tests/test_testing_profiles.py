"""What each crash profile keeps, and the damage it is there for.

Goal: a test that passes on `CrashableDisk` can be believed. Method: each profile must
keep what it promises to keep, for many seeds, *and* must show its damage under some
seed; known mistakes of storage code, such as a missing sync of the directory, must be
seen.
"""

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheeldb.testing import CrashableDisk, PowerCut

SEEDS = range(40)

# What keeps synced bytes and names; "damage" and "lying_sync" are there to break that.
HONEST = (
    "none", "all", "prefix", "subset", "split_rename", "torn", "block", "stale_tail",
    "failed_sync",
)  # fmt: skip


def raises_errno(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def put(disk: CrashableDisk, path: str, data: bytes, offset: int = 0) -> None:
    """Write through a handle of its own, without a sync."""
    handle = disk.open(path, create=True)
    disk.pwrite(handle, data, offset)
    disk.close(handle)


def sync(disk: CrashableDisk, path: str) -> None:
    """Sync a file through a handle of its own."""
    handle = disk.open(path)
    disk.sync_data(handle)
    disk.close(handle)


def crashes(
    prepare: Callable[[CrashableDisk], None], profile: str
) -> list[dict[str, bytes]]:
    """Return what each seed leaves on a disk that was prepared the same way."""
    disk = CrashableDisk()
    prepare(disk)
    images = []
    for seed in SEEDS:
        copy = disk.clone(seed=seed)
        copy.crash(profile)
        images.append(copy.dump())
    return images


class TestPromises:
    """What every honest profile keeps."""

    @pytest.mark.parametrize("profile", HONEST)
    def test_synced_bytes_under_a_synced_name_stay(self, profile: str) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.make_directory("/log")
            put(disk, "/log/1", b"a" * 5000)
            sync(disk, "/log/1")
            disk.sync_directory("/log")
            disk.sync_directory("/")
            put(disk, "/log/1", b"b" * 5000, 8192)
            put(disk, "/log/2", b"c")

        for image in crashes(prepare, profile):
            assert image["/log/1"][:5000] == b"a" * 5000
            assert len(image["/log/1"]) <= 8192 + 5000

    @given(
        writes=st.lists(
            st.tuples(st.integers(0, 6000), st.integers(1, 3000), st.booleans()),
            min_size=1,
            max_size=8,
        ),
        profile=st.sampled_from([p for p in HONEST if p != "block"]),
        random=st.randoms(use_true_random=False),
    )
    def test_bytes_outside_unsynced_writes_never_change(
        self, writes: list[tuple[int, int, bool]], profile: str, random: Random
    ) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b""})
        handle = disk.open("/a")
        synced = b""
        touched: set[int] = set()
        for number, (offset, size, is_synced) in enumerate(writes):
            disk.pwrite(handle, bytes((number + 1,)) * size, offset)
            touched |= set(range(offset, offset + size))
            if is_synced:
                disk.sync_data(handle)
                synced = disk.dump()["/a"]
                touched.clear()
        full = disk.dump()["/a"]

        disk.crash(profile, random=random)

        found = disk.dump()["/a"]
        assert len(synced) <= len(found) <= len(full)
        for at, byte in enumerate(found):
            if at not in touched:
                assert byte == (synced[at] if at < len(synced) else 0), at

    @pytest.mark.parametrize("profile", HONEST)
    def test_name_needs_a_sync_of_its_directory(self, profile: str) -> None:
        def prepare(disk: CrashableDisk) -> None:
            put(disk, "/a", b"data")
            sync(disk, "/a")

        images = crashes(prepare, profile)

        # The bytes are safe wherever the name is.
        assert all(image.get("/a", b"data") == b"data" for image in images)
        names = {"/a" in image for image in images}
        kept = {True} if profile in {"all", "stale_tail", "failed_sync"} else {False}
        if profile in {"prefix", "subset", "split_rename", "torn", "block"}:
            kept = {True, False}
        assert names == kept

    @pytest.mark.parametrize("profile", [p for p in HONEST if p != "split_rename"])
    def test_rename_is_atomic(self, profile: str) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"new", "/b": b"old", "/c": b"new"})
            disk.rename("/a", "/b")
            disk.make_directory("/d")
            disk.sync_directory("/")
            disk.rename("/c", "/d/c")

        first = {"/a": b"new", "/b": b"old", "/c": b"new"}
        for image in crashes(prepare, profile):
            assert image in (
                {"/b": b"new", "/c": b"new"},
                {"/b": b"new", "/d/c": b"new"},
            )

        def renamed(disk: CrashableDisk) -> None:
            disk.load(first)
            disk.rename("/a", "/b")

        for image in crashes(renamed, profile):
            assert image in (first, {"/b": b"new", "/c": b"new"})

    @pytest.mark.parametrize("synced", ["/x", "/y"])
    def test_one_sync_makes_a_rename_between_directories_whole(
        self, synced: str
    ) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/x/a": b"data", "/y/other": b""})
            disk.rename("/x/a", "/y/a")
            disk.sync_directory(synced)

        whole = {"/y/a": b"data", "/y/other": b""}
        for profile in HONEST:
            if profile != "split_rename":
                assert all(image == whole for image in crashes(prepare, profile))
        # POSIX alone promises no more than each directory's own half.
        lost = {"/y/other": b""}
        twice = {"/x/a": b"data", **whole}
        split = crashes(prepare, "split_rename")
        assert (lost in split, twice in split) == (synced == "/x", synced == "/y")


class TestDamageIsSeen:
    """Every profile shows, under some seed, what it is there for."""

    def test_none(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"old", "/b": b"gone soon"})
            put(disk, "/a", b"new")
            disk.unlink("/b")
            put(disk, "/c", b"")

        for image in crashes(prepare, "none"):
            assert image == {"/a": b"old", "/b": b"gone soon"}

    def test_all(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/b": b""})
            put(disk, "/a", b"new")
            disk.unlink("/b")

        for image in crashes(prepare, "all"):
            assert image == {"/a": b"new"}

    @staticmethod
    def two_files(disk: CrashableDisk) -> None:
        disk.load({"/a": b"-" * 1024, "/b": b"-" * 1024})
        put(disk, "/a", b"x" * 1024)
        put(disk, "/b", b"y" * 1024)

    def test_prefix_keeps_the_order(self) -> None:
        steps = [
            b"x" * 512 * min(n, 2) + b"-" * 512 * (2 - min(n, 2))
            + b"y" * 512 * max(0, n - 2) + b"-" * 512 * (2 - max(0, n - 2))
            for n in range(5)
        ]  # fmt: skip

        found = {i["/a"] + i["/b"] for i in crashes(self.two_files, "prefix")}

        assert found == set(steps)

    def test_subset_reorders(self) -> None:
        found = {i["/a"] + i["/b"] for i in crashes(self.two_files, "subset")}

        # The last sector written without the first, and a hole in the middle.
        assert any(image.endswith(b"y" * 512) and image[0:1] == b"-" for image in found)
        assert len(found) > 8
        assert all(
            len(set(image[n : n + 512])) == 1 for image in found for n in (0, 512)
        )

    def test_growing_file_may_have_any_length(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"-" * 700})
            put(disk, "/a", b"x" * 1000, 700)

        found = {i["/a"] for i in crashes(prepare, "subset")}

        assert {len(image) for image in found} == {700, 1024, 1536, 1700}
        # A length without the bytes it covers shows zeros.
        assert any(b"\0" * 512 in image for image in found)

    @pytest.mark.parametrize("crash", [False, True])
    def test_growing_again_shows_zeros(self, crash: bool) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old old"})
        handle = disk.open("/a")
        disk.truncate(handle, 3)
        disk.truncate(handle, 7)

        if crash:
            disk.crash("all")

        assert disk.dump() == {"/a": b"old\0\0\0\0"}

    def test_bytes_that_arrived_without_the_length_are_gone(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old"})
        put(disk, "/a", b"new", 3)
        assert disk.pending() == ["bytes 3–6 of /a", "length 6 of /a"]

        disk.crash("subset", keep=[0])
        disk.truncate(disk.open("/a"), 6)

        assert disk.dump() == {"/a": b"old\0\0\0"}

    def test_split_rename(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"new", "/b": b"old"})
            disk.rename("/a", "/b")

        found = crashes(prepare, "split_rename")

        assert {} in found
        assert {"/a": b"new", "/b": b"new"} in found
        assert {"/a": b"new"} in found

    def test_torn_sector(self) -> None:
        found = {i["/a"][:512] for i in crashes(self.two_files, "torn")}

        mixed = [image for image in found if set(image) == set(b"-x")]
        assert any(image.startswith(b"x") for image in mixed)
        assert any(image.startswith(b"-") for image in mixed)
        assert any(not set(image) <= set(b"-x") for image in found)

    def test_block_is_damaged_around_an_unsynced_write(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"-" * 12_288})
            put(disk, "/a", b"x", 5000)

        found = [i["/a"] for i in crashes(prepare, "block")]

        assert all(image[:4096] == b"-" * 4096 for image in found)
        assert all(image[8192:] == b"-" * 4096 for image in found)
        around = {image[4096:5000] + image[5001:8192] for image in found}
        assert len(around) > 3

    @pytest.mark.parametrize("how", ["unlink", "truncate", "replace"])
    def test_stale_tail(self, how: str) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/old": b"".join(bytes((n,)) * 512 for n in range(1, 9))})
            disk.load({"/a": b"-" * 512, "/b": b""})
            if how == "unlink":
                disk.unlink("/old")
            elif how == "truncate":
                disk.truncate(disk.open("/old"), 0)
            else:
                disk.rename("/b", "/old")
            put(disk, "/a", b"x" * 1536, 512)

        found = [i["/a"] for i in crashes(prepare, "stale_tail")]

        assert {len(image) for image in found} == {2048}
        assert all(image[:512] == b"-" * 512 for image in found)
        last = {image[1536:] for image in found}
        assert bytes(512) in last
        assert any(bytes((n,)) * 512 in last for n in range(1, 9))
        assert any(len(set(image)) > 50 for image in last)
        assert b"x" * 512 in last

    def test_failed_sync(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"old old"})
        handle = disk.open("/a")
        disk.pwrite(handle, b"new", 0)
        disk.fail("sync_data", errno.EIO)
        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        # The retry that must not be trusted: it succeeds and syncs later writes only.
        disk.pwrite(handle, b"NEW", 4)
        disk.sync_data(handle)

        assert disk.pread(handle, 9, 0) == b"new NEW"
        images = {p: disk.clone() for p in ("failed_sync", "none", "all")}
        for profile, image in images.items():
            image.crash(profile)
        assert images["failed_sync"].dump() == {"/a": b"old NEW"}
        assert images["none"].dump() == {"/a": b"old NEW"}
        assert images["all"].dump() == {"/a": b"new NEW"}
        disk.drop_cache(handle)
        assert disk.pread(handle, 9, 0) == b"old NEW"

    def test_failed_sync_long_ago(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"-" * 13})
        handle = disk.open("/a")
        disk.pwrite(handle, b"lost?", 8)
        disk.fail("sync", errno.EIO)
        with raises_errno(errno.EIO):
            disk.sync(handle)

        for number in range(10):
            disk.pwrite(handle, b"x", number)
            disk.sync(handle)
        disk.pwrite(handle, b"p", 4)

        images = {p: disk.clone() for p in ("none", "failed_sync", "all")}
        for profile, image in images.items():
            image.crash(profile)
        assert images["none"].dump() == {"/a": b"xxxxxxxxxx---"}
        assert images["failed_sync"].dump() == {"/a": b"xxxxpxxxxx---"}
        assert images["all"].dump() == {"/a": b"xxxxpxxxxxst?"}

    def test_failed_sync_of_a_directory(self) -> None:
        disk = CrashableDisk()
        put(disk, "/a", b"")
        disk.fail("sync_directory", errno.EIO)
        with raises_errno(errno.EIO):
            disk.sync_directory("/")

        disk.sync_directory("/")

        assert disk.list("/") == ["a"]
        disk.crash("failed_sync")
        assert disk.list("/") == []

    def test_lying_sync_loses_only_the_last_flushes(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/a": b"-" * 10})
            handle = disk.open("/a")
            for number in range(10):
                disk.pwrite(handle, b"x", number)
                disk.sync_data(handle)

        found = {i["/a"] for i in crashes(prepare, "lying_sync")}

        assert all(image[:6] == b"xxxxxx" for image in found)
        assert any(image[9:] == b"-" for image in found)
        assert any(b"-" in image[6:7] for image in found)
        assert {i["/a"] for i in crashes(prepare, "none")} == {b"x" * 10}

    def test_lying_sync_cannot_lose_what_was_loaded(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/d/a": b"old"})
            disk.corrupt("/d/a", 0, 1)

        assert all(i == {"/d/a": b"nld"} for i in crashes(prepare, "lying_sync"))

    def test_damage_hits_one_file(self) -> None:
        files = {"/a": Random(1).randbytes(3000), "/d/b": Random(2).randbytes(100)}

        kinds = set()
        for seed in range(200):
            disk = CrashableDisk(seed)
            disk.load(files)
            story = disk.crash("damage")
            found = disk.dump()
            changed = [path for path in files if found.get(path) != files[path]]
            kinds.add(story[-1].removeprefix("damaged: ").partition(" in ")[0])
            assert changed == [story[-1].partition(" in ")[2]], story
        assert kinds == {
            "bit flip", "zeroed sector", "cut", "missing", "swapped sectors",
            "misdirected write",
        }  # fmt: skip

    def test_damage_without_files(self) -> None:
        assert CrashableDisk().crash("damage") == []


def replace_without_sync(disk: CrashableDisk) -> None:
    put(disk, "/F.tmp", b"new")
    disk.rename("/F.tmp", "/F")
    disk.sync_directory("/")


def replace_without_directory_sync(disk: CrashableDisk) -> None:
    put(disk, "/F.tmp", b"new")
    sync(disk, "/F.tmp")
    disk.rename("/F.tmp", "/F")


def overwrite_in_place(disk: CrashableDisk) -> None:
    put(disk, "/F", b"new")
    sync(disk, "/F")


class TestMistakesAreSeen:
    """Storage code that is wrong in a known way fails here."""

    def test_rename_before_sync(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/F": b"old"})
            replace_without_sync(disk)

        assert {i["/F"] for i in crashes(prepare, "subset")} > {b""}

    def test_no_directory_sync(self) -> None:
        def prepare(disk: CrashableDisk) -> None:
            disk.load({"/F": b"old"})
            replace_without_directory_sync(disk)

        assert {i["/F"] for i in crashes(prepare, "none")} == {b"old"}

    def test_overwriting_in_place(self) -> None:
        found = set()
        for seed in SEEDS:
            disk = CrashableDisk(seed)
            disk.load({"/F": b"old"})
            disk.crash_at(2)
            with pytest.raises(PowerCut):
                overwrite_in_place(disk)
            disk.crash("torn")
            found.add(disk.dump()["/F"])

        assert found - {b"old", b"new"}
