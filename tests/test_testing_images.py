"""Images of a `CrashableDisk`: chosen, tried, told and made smaller.

Goal: a failure that a sweep finds can be repeated and understood. Method: images of
small disks whose every outcome can be written down; the four behaviours after a failed
sync and the fates of an index, one test each.
"""

import errno
from random import Random

import pytest

import wheeldb
from wheeldb.index import Changes, IndexDamaged, MemoryIndex, create_index, open_index
from wheeldb.testing import CrashableDisk, Image, ManualClock, shrink
from wheeldb.testing.faults import AFTER_FAILED_SYNC, Operation
from wheeldb.testing.index import INDEX_FATES
from wheeldb.testing.profiles import PROFILES


def raises_errno(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an `OSError` with this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def busy_disk(seed: int = 0) -> CrashableDisk:
    """Return a disk with some of everything pending."""
    disk = CrashableDisk(seed)
    disk.load({"/a": b"-" * 6000, "/old": b"o" * 2000})
    handle = disk.open("/a")
    disk.pwrite(handle, b"x" * 3000, 500)
    disk.sync_data(handle)
    disk.pwrite(handle, b"y" * 3000, 5500)
    disk.unlink("/old")
    fresh = disk.open("/b", create=True)
    disk.pwrite(fresh, b"z" * 1500, 0)
    disk.rename("/b", "/c")
    return disk


class TestImages:
    @pytest.mark.parametrize("profile", PROFILES)
    def test_after_is_what_a_crash_leaves(self, profile: str) -> None:
        for seed in range(8):
            disk = busy_disk(seed)
            before, pending = disk.dump(), disk.pending()
            image = disk.image(profile)

            first, second = disk.after(image), disk.after(image)

            assert first.dump() == second.dump()
            assert (disk.dump(), disk.pending()) == (before, pending)
            story = disk.describe(image)
            assert len(story) == len(image)
            first.crash("none")  # all of it is durable
            assert first.dump() == second.dump()
            assert disk.crash(image) == story
            assert disk.dump() == second.dump()

    def test_what_one_survivor_does_touches_no_other(self) -> None:
        disk = busy_disk()
        image = disk.image("all")
        first, second = disk.after(image), disk.after(image)
        before = second.dump()

        for one in (first, disk):
            handle = one.open("/a")
            one.pwrite(handle, b"later", 0)
            for _ in range(9):
                one.sync(handle)

        assert second.dump() == before
        second.crash("none")
        assert second.dump() == before

    def test_prefixes_are_all_of_them(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": b"-" * 1024})
        disk.pwrite(disk.open("/a"), b"x" * 1024, 0)

        count = disk.unsafe_count()
        images = [disk.image("prefix", keep=range(n)) for n in range(count + 1)]

        assert [disk.after(image).dump()["/a"] for image in images] == [
            b"-" * 1024, b"x" * 512 + b"-" * 512, b"x" * 1024,
        ]  # fmt: skip

    def test_an_image_that_fails_shrinks_to_what_it_takes(self) -> None:
        disk = CrashableDisk()
        disk.load({"/a": bytes(512 * 40)})
        disk.pwrite(disk.open("/a"), b"x" * 512 * 40, 0)
        tried = []

        def fails(image: Image) -> bool:
            tried.append(image)
            found = disk.after(image).dump()["/a"]
            return found[512 * 7] == 0 and found[512 * 30] != 0

        images = (disk.image("subset", random=Random(n)) for n in range(100))
        first = next(one for one in images if fails(one) and len(one) > 10)
        small = shrink(first, fails)

        assert disk.describe(small) == ["lost: bytes 3584–4096 of /a"]
        assert len(tried) < 200

    def test_shrinking_keeps_damage_that_is_needed(self) -> None:
        disk = busy_disk()
        image = next(
            image
            for n in range(50)
            if (image := disk.image("damage", random=Random(n))).damages[0].path == "/a"
        )
        whole = disk.dump()["/a"]

        small = shrink(image, lambda one: disk.after(one).dump().get("/a") != whole)

        assert small == image
        assert len(shrink(image, lambda _: True)) == 0

    def test_what_became_of_a_piece_is_told(self) -> None:
        told = set()
        for seed in range(60):
            disk = busy_disk(seed)
            for profile in ("block", "stale_tail", "split_rename", "damage"):
                for line in disk.describe(disk.image(profile)):
                    told.add(line.partition(":")[0])
                    assert "inode" not in line or "removed file" in line, line
        assert told == {"lost", "torn", "damaged"}

    def test_wrong_arguments(self) -> None:
        with pytest.raises(ValueError, match="fate of an index 'gone'"):
            CrashableDisk().image("none", index="gone")
        with pytest.raises(ValueError, match="failed_sync 'retry'"):
            CrashableDisk(failed_sync="retry")


class TestWatching:
    def test_each_operation_is_told_before_it_happens(self) -> None:
        disk = CrashableDisk()
        seen: list[tuple[Operation, int]] = []

        def watcher(operation: Operation) -> None:
            info = disk.info("/a")
            seen.append((operation, -1 if info is None else info.size))

        disk.watch(watcher)
        handle = disk.open("/a", create=True)
        disk.pwrite(handle, b"12", 0)
        disk.pread(handle, 1, 0)
        disk.truncate(handle, 5)
        disk.watch(None)
        disk.sync(handle)

        assert seen == [(("open", "/a"), -1), (("pwrite", "/a"), 0),
                        (("truncate", "/a"), 2)]  # fmt: skip

    def test_one_run_gives_the_images_of_every_cut(self) -> None:
        def program(disk: CrashableDisk) -> None:
            handle = disk.open("/a", create=True)
            disk.pwrite(handle, b"x", 0)
            disk.sync(handle)
            disk.sync_directory("/")
            disk.pwrite(handle, b"y", 1)

        disk = CrashableDisk()
        found = []
        disk.watch(lambda _: found.append(disk.after(disk.image("none")).dump()))
        program(disk)

        assert found == [{}, {}, {}, {}, {"/a": b"x"}]

    def test_settled_is_safe_even_from_lies(self) -> None:
        for seed in range(20):
            disk = busy_disk(seed)
            before = disk.dump()
            disk.settle()

            assert disk.pending() == []
            disk.crash("lying_sync")
            assert disk.dump() == before


class TestFailedSyncs:
    @staticmethod
    def failed(kind: str) -> tuple[CrashableDisk, int]:
        disk = CrashableDisk(failed_sync=kind)
        disk.load({"/a": b"old old"})
        handle = disk.open("/a")
        disk.pwrite(handle, b"new", 0)
        disk.fail("sync_data", errno.EIO)
        return disk, handle

    @pytest.mark.parametrize("kind", [k for k in AFTER_FAILED_SYNC if k != "late"])
    def test_it_is_told_once_and_lost_for_good(self, kind: str) -> None:
        disk, handle = self.failed(kind)
        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        disk.sync_data(handle)

        disk.crash("none")
        assert disk.dump() == {"/a": b"old old"}

    def test_keep(self) -> None:
        disk, handle = self.failed("keep")
        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        assert disk.pread(handle, 9, 0) == b"new old"
        assert disk.pread(disk.open("/a"), 9, 0) == b"new old"
        disk.drop_caches()
        assert disk.pread(handle, 9, 0) == b"old old"

    def test_evict(self) -> None:
        disk, handle = self.failed("evict")
        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        assert disk.pread(handle, 9, 0) == b"new old"
        assert disk.pread(disk.open("/a"), 9, 0) == b"old old"

    def test_revert(self) -> None:
        disk, handle = self.failed("revert")
        disk.pwrite(handle, b"longer", 5)
        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        assert disk.pread(handle, 20, 0) == b"old old"

    def test_late(self) -> None:
        disk, handle = self.failed("late")
        disk.sync_data(handle)  # it lies
        assert disk.after(disk.image("none")).dump() == {"/a": b"old old"}

        with raises_errno(errno.EIO):
            disk.sync_data(handle)

        disk.sync_data(handle)
        other = disk.clone()
        other.crash("failed_sync")
        assert other.dump() == {"/a": b"old old"}

    def test_what_is_owed_ends_with_the_process(self) -> None:
        disk, handle = self.failed("late")
        disk.sync_data(handle)
        disk.kill()

        disk.sync_data(disk.open("/a"))


class TestIndexes:
    @staticmethod
    def filled(disk: CrashableDisk) -> MemoryIndex:
        index = create_index("/index", disk=disk)
        for number in range(1, 8):
            index.apply(Changes(put_tasks=[(number, number, b"body")]))
        assert isinstance(index, MemoryIndex)
        return index

    @staticmethod
    def numbers(disk: CrashableDisk) -> list[int] | None:
        index = open_index("/index", disk=disk, vouched=False)
        if index is None:
            return None
        with index.snapshot() as view:
            return [n for n in range(1, 8) if view.task(n) is not None]

    def test_fates(self) -> None:
        disk = CrashableDisk()
        self.filled(disk)
        everything = list(range(1, 8))
        seen: dict[str, set[str]] = {}
        for fate in INDEX_FATES:
            for seed in range(30):
                index = disk.indexes["/index"].after(fate, Random(seed), lambda _: None)
                other = CrashableDisk()
                other.indexes["/index"] = index
                seen.setdefault(fate, set()).add(str(self.numbers(other)))

        assert seen["new"] == {str(everything)}
        assert seen["old"] == {str(everything[:-1])}
        assert seen["stale"] == {str(everything[:n]) for n in range(3, 7)}
        assert seen["unopenable"] == {"None"}
        assert len(seen["subtree missing"]) > 5
        assert seen["bit flip"] == {"None"}

    def test_a_crash_decides_once(self) -> None:
        disk = CrashableDisk()
        self.filled(disk)

        story = disk.crash("none", index="old")

        assert story == ["index /index: old"]
        assert self.numbers(disk) == [1, 2, 3, 4, 5, 6]
        disk.crash("none", index="old")
        assert self.numbers(disk) == [1, 2, 3, 4, 5, 6]

    def test_a_new_one_is_whole_again(self) -> None:
        disk = CrashableDisk()
        self.filled(disk)
        disk.crash("none", index="unopenable")
        assert self.numbers(disk) is None

        self.filled(disk)

        assert self.numbers(disk) == list(range(1, 8))

    def test_a_commit_is_an_operation_that_can_fail(self) -> None:
        disk = CrashableDisk()
        index = self.filled(disk)
        assert disk.operations[-1] == ("index", "/index")
        disk.fail("index", errno.ENOSPC)

        with pytest.raises(IndexDamaged) as caught:
            index.apply(Changes(delete_tasks=[1]))

        assert caught.value.code == errno.ENOSPC
        assert self.numbers(disk) == list(range(1, 8))

    @pytest.mark.parametrize("fate", INDEX_FATES)
    def test_a_store_comes_through_all_of_them(self, fate: str) -> None:
        disk, clock = CrashableDisk(), ManualClock()
        db = wheeldb.open("/store", disk=disk, clock=clock, driver=False)
        for number in range(12):
            db.schedule("a", number, id=f"task-{number}", delay=60)
            if number % 3 == 0:
                db.checkpoint()
        disk.crash("none", index=fate)
        clock.reboot(off=5)

        db = wheeldb.open("/store", disk=disk, clock=clock, driver=False)

        assert [task.payload for task in db.tasks()] == list(range(12))
        assert db.check() == []
        assert db.recovery.index.startswith("used") == (fate in ("new", "old", "stale"))
