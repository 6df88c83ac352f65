"""The soak judges: it is quiet about a good store, and loud about each broken promise.

Method: a short soak of a real store; one whose store is put back by a while, as no
crash can do it; and made-up reports to the book alone, one story for each promise,
which must be told, beside one in good order, which must not.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.soak.clock import Sky, Weather
from tools.soak.inquest import Inquest
from tools.soak.ledger import Ledger, Violation
from tools.soak.room import QuotaRoom
from tools.soak.sessions import RATE, Soak
from wheeldb.clock.system import BUILD_MS

ROOT = Path(__file__).parent.parent
DAY_MS = 86_400_000


class Book:
    """A ledger, told a story step by step."""

    def __init__(self) -> None:
        self.ledger = Ledger(RATE)
        self.now_ms = 1_000_000
        self.wall_ms = BUILD_MS
        self.call = 0

    def tell(self, kind: str, **fields: object) -> None:
        self.now_ms += 1
        self.wall_ms += 1
        self.ledger.note(self.report(kind, **fields))

    def report(self, kind: str, **fields: object) -> dict[str, object]:
        return {
            "kind": kind,
            "wall_ms": self.wall_ms,
            "boottime_ms": self.now_ms,
            "process_us": self.now_ms * 1_000,
            **fields,
        }

    def ask(self, does: str, **fields: object) -> int:
        self.call += 1
        self.tell("asked", call=self.call, does=does, **fields)
        return self.call

    def answer(self, call: int, value: object = None, lsn: int = 0) -> None:
        self.tell("answered", call=call, outcome="ok", value=value, lsn=lsn)

    def do(
        self, does: str, value: object = None, lsn: int = 0, **fields: object
    ) -> None:
        self.answer(self.ask(does, **fields), value, lsn)

    def schedule(self, token: str, lsn: int, **due: object) -> None:
        due = due or {"delay_ms": 0}
        task = {"token": token, "id": token, "queue": "first", **due}
        self.do("schedule", [lsn], lsn, tasks=[task])

    def start(self, token: str, fence: int, *, again: bool = False) -> None:
        self.tell(
            "started",
            token=token,
            id=token,
            fence=fence,
            may_have_run=again,
            until_ms=self.now_ms + 60_000,
        )

    def die(self) -> Inquest:
        """End the process, and begin with the next one."""
        self.ledger.end()
        self.ledger.begin(0)
        return Inquest(self.ledger)

    def reopen(self, *found: str, last_lsn: int = 1_000) -> None:
        inquest = self.die()
        opened = {"reason": "unclean", "torn_bytes": 0}
        inquest.note(
            self.report("opened", recovery=opened, last_lsn=last_lsn, findings=[])
        )
        tasks = [[token, token, "scheduled"] for token in found]
        inquest.note(self.report("found", tasks=tasks))
        inquest.note(self.report("ready"))


def started_and_done(book: Book) -> None:
    book.schedule("a", 1)
    book.start("a", 2)
    book.do("ack", lsn=3, token="a", fence=2)


def started_early(book: Book) -> None:
    book.schedule("a", 1, delay_ms=60_000)
    book.start("a", 2)


def started_early_by_the_wall(book: Book) -> None:
    book.schedule("a", 1, at_ms=book.wall_ms + DAY_MS)
    book.start("a", 2)


def started_after_its_end(book: Book) -> None:
    started_and_done(book)
    book.start("a", 4, again=True)


def started_though_cancelled(book: Book) -> None:
    book.schedule("a", 1)
    book.do("cancel", "cancelled", 2, token="a")
    book.start("a", 3)


def started_though_paused(book: Book) -> None:
    book.schedule("a", 1)
    book.do("pause", lsn=2, token="a")
    book.start("a", 3)


def started_though_its_queue_is_paused(book: Book) -> None:
    book.schedule("a", 1)
    book.do("pause_queue", lsn=2, queue="first")
    book.start("a", 3)


def started_unannounced(book: Book) -> None:
    book.schedule("a", 1)
    book.start("a", 2)
    book.reopen("a")
    book.start("a", 1_001)


def started_while_held(book: Book) -> None:
    book.schedule("a", 1)
    book.start("a", 2)
    book.start("a", 3, again=True)


def started_by_nobody(book: Book) -> None:
    book.start("a", 2)


def a_fence_twice(book: Book) -> None:
    book.schedule("a", 1)
    book.schedule("b", 2)
    book.start("a", 3)
    book.start("b", 3)


def a_fence_below_an_earlier_one(book: Book) -> None:
    book.schedule("a", 1)
    book.schedule("b", 50)
    book.reopen("a", "b")
    book.start("a", 49)


def a_log_that_ends_below(book: Book) -> None:
    book.schedule("a", 50)
    book.reopen("a", last_lsn=49)


def lost(book: Book) -> None:
    book.schedule("a", 1)
    book.schedule("b", 2)
    book.reopen("b")


def back_after_its_end(book: Book) -> None:
    started_and_done(book)
    book.reopen("a")


def there_though_refused(book: Book) -> None:
    task = {"token": "a", "id": "a", "queue": "first", "delay_ms": 0}
    call = book.ask("schedule", tasks=[task])
    book.tell("answered", call=call, outcome="refused", error="QueueFull")
    book.reopen("a")


def half_of_several(book: Book) -> None:
    tasks = [
        {"token": token, "id": token, "queue": "first", "delay_ms": 0} for token in "ab"
    ]
    book.ask("schedule", tasks=tasks)
    book.reopen("a")


def half_of_a_batch(book: Book) -> None:
    book.schedule("old", 1)
    task = {"token": "a", "id": "a", "queue": "first", "delay_ms": 0}
    book.ask("batch", token="old", tasks=[task])
    book.reopen("old", "a")


def no_room_though_there_is(book: Book) -> None:
    book.now_ms += 1_000_000
    call = book.ask("cancel", token="a")
    book.tell("answered", call=call, outcome="no room")


def cancelled_by_nobody(book: Book) -> None:
    book.schedule("a", 1)
    book.do("cancel", "finished", 2, token="a")


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (started_early, "60000 ms early|5\\d{4} ms early"),
        (started_early_by_the_wall, "ms early"),
        (started_after_its_end, "after its end"),
        (started_though_cancelled, "after its end"),
        (started_though_paused, "while paused"),
        (started_though_its_queue_is_paused, "first is paused"),
        (started_unannounced, "unannounced"),
        (started_while_held, "another held it"),
        (started_by_nobody, "never was"),
        (a_fence_twice, "came before"),
        (a_fence_below_an_earlier_one, "earlier process"),
        (a_log_that_ends_below, "the log ends at 49"),
        (lost, "a is lost"),
        (back_after_its_end, "it has ended"),
        (there_though_refused, "nobody asked for it"),
        (half_of_several, "half of a schedule"),
        (half_of_a_batch, "half of a batch"),
        (no_room_though_there_is, "there is plenty"),
        (cancelled_by_nobody, "nobody ended it"),
    ],
)
def test_a_broken_promise_is_told(story: Callable[[Book], None], said: str) -> None:
    with pytest.raises(Violation, match=said):
        story(Book())


def test_a_story_in_good_order_is_not_told() -> None:
    book = Book()
    started_and_done(book)
    book.schedule("b", 10, delay_ms=60_000)
    book.now_ms += 60_000
    book.start("b", 11)
    book.reopen("b")
    book.start("b", 1_001, again=True)
    book.do("nack", lsn=1_002, token="b", fence=1_001, is_last=False, delay_ms=0)
    book.do("pause_queue", lsn=1_003, queue="first")
    book.do("resume_queue", lsn=1_004, queue="first")
    book.start("b", 1_005)
    # Cut off in the middle of these: either outcome is one.
    book.ask("ack", token="b", fence=1_005)
    book.ask(
        "schedule",
        tasks=[{"token": "c", "id": "c", "queue": "first", "delay_ms": 0}],
    )
    book.reopen("c", last_lsn=2_000)
    assert book.ledger.counts["accepted"] == 3
    assert book.ledger.counts["announced"] == 1
    assert set(book.ledger.live) == {"c"}


def test_what_has_ended_is_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tools.soak.ledger.ENDED_MAX", 10)
    book = Book()
    for number in range(30):
        book.schedule(f"{number}", 3 * number + 1)
        book.start(f"{number}", 3 * number + 2)
        book.do("ack", lsn=3 * number + 3, token=f"{number}", fence=3 * number + 2)
    assert not book.ledger.live
    assert len(book.ledger.ended) == 10
    # A start of it is wrong all the same.
    with pytest.raises(Violation, match="long ago"):
        book.start("3", 1_000)


def test_true_time_goes_on_over_a_reboot() -> None:
    sky = Sky(Weather(origin_ns=0, wall_ms=BUILD_MS, rate=1))
    fast = sky.weather.fast()

    def true_ms() -> int:
        boottime_ms = fast.read().boottime_ms + sky.weather.boottime_shift_ms
        return boottime_ms + sky.true_origin_ms

    before = true_ms()
    sky.reboot(3_600_000, in_1970=True)
    assert 3_600_000 <= true_ms() - before < 3_660_000
    assert sky.weather.boot == 2
    assert fast.read().wall_ms + sky.weather.wall_shift_ms < 60_000
    assert sky.weather.right_shift_ms == 3_600_000
    sky.reboot(1_000, in_1970=False)
    assert 3_601_000 <= true_ms() - before < 3_661_000
    # Without a battery it shows 1970 again, and belongs where it did.
    assert sky.weather.right_shift_ms == 3_601_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_is_fine() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.soak", "--minutes", "0.3", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "fine, and over" in ended.stdout
    assert "VIOLATED" not in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_store_that_is_put_back_is_told(tmp_path: Path) -> None:
    room = QuotaRoom(tmp_path)
    soak = Soak(room, 3, endings=("finish",))
    while soak.ledger.counts.get("done", 0) < 20:
        soak.run_session()
    shutil.copytree(room.path, tmp_path / "copy")
    done = soak.ledger.counts["done"]
    while soak.ledger.counts["done"] < done + 20:
        soak.run_session()
    shutil.rmtree(room.path)
    (tmp_path / "copy").rename(room.path)
    with pytest.raises(Violation):
        soak.run_session()


@pytest.mark.slow
def test_a_soak_that_is_ended_leaves_nothing_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tools.soak", "--minutes", "5"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as soak:
        assert soak.stdout is not None
        place = Path(soak.stdout.readline().rpartition(" ")[2].strip()).parent
        assert place.exists()
        soak.send_signal(signal.SIGTERM)
    assert soak.returncode == 1
    assert not place.exists()
    assert str(place) not in Path("/proc/mounts").read_text("utf-8")
