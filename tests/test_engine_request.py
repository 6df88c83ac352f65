"""What callers ask for, judged.

Goal: whatever is asked for, in whatever mixture, becomes the same columns on the quick
way and on the careful one, and what can't be right is refused, with its place.
Method: hypothesis makes mixtures; one foreign task at the end sends a whole request the
careful way, and the columns are compared. Refusals are tables of arguments and errors.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wheeldb.clock.timekeeper import Now
from wheeldb.engine.moment import DUE_MS_MAX, delay_ms, instant_ms, span_ms
from wheeldb.engine.names import judge_id, judge_text, lookup_id
from wheeldb.engine.request import Limits, Request, build, build_one
from wheeldb.errors import PayloadTooLarge
from wheeldb.events import ELAPSED, WALL, F
from wheeldb.model import Fixed, Linear, NewTask, Retry
from wheeldb.payload import unpack_payload

NOW = Now(
    elapsed_ms=5_000,
    wall_ms=1_800_000_000_000,
    boottime_ms=5_000,
    trust="assumed",
    reason="",
    shift_ms=0,
    cut_ms=1,
    offset_ms=0,
)
LIMITS = Limits(payload_bytes_max=200, batch_max=1_000)
INSTANT = datetime(2027, 3, 1, 2, 30, tzinfo=UTC)

flat_payloads = some.dictionaries(
    some.text(max_size=5),
    some.none()
    | some.booleans()
    | some.integers(-(2**65), 2**65)
    | some.floats(allow_nan=False)
    | some.text(max_size=5)
    | some.binary(max_size=5),
    max_size=4,
)
plain_tasks = some.builds(
    NewTask,
    some.sampled_from(["valve.close", "report.send", "süß"]),
    flat_payloads,
    delay=some.integers(-5, 10**7) | some.floats(-5, 1e7),
)


def ask(*tasks: NewTask) -> Request:
    """Build one request of several tasks."""
    return build(tasks, NOW, LIMITS)


def outcome(*tasks: NewTask) -> Request | tuple[type, object]:
    """Build one request; return it, or the kind and place of what is wrong."""
    try:
        return ask(*tasks)
    except (TypeError, ValueError) as error:
        return type(error), index_of(error)


def task_with(options: dict[str, Any]) -> NewTask:
    """Return a task with arguments that its signature does not allow."""
    return NewTask("a", None, **options)


def index_of(error: BaseException) -> object:
    """Return the position that a refusal names."""
    return getattr(error, "index", None)


class TestColumns:
    def test_one_delay(self) -> None:
        columns = ask(NewTask("valve.close", {"valve": 7}, delay=900)).columns
        assert columns.names == "valve.close"
        assert [unpack_payload(one) for one in columns.payloads] == [{"valve": 7}]
        assert columns.dues == 5_000 + 1 + 900_000
        assert columns.timelines == ELAPSED
        assert (columns.ids, columns.digests, columns.single) == (None, None, None)
        assert columns.shared == {}

    def test_more_than_are_judged_at_once(self) -> None:
        tasks = [NewTask("a", {"n": n}, delay=1) for n in range(1_100)]
        payloads = ask(*tasks).columns.payloads
        assert [unpack_payload(one) for one in payloads] == [t.payload for t in tasks]
        # In the second stretch what is no flat dict, in the third what is wrong.
        tasks[700] = NewTask("a", {"n": [700]}, delay=1)
        payloads = ask(*tasks).columns.payloads
        assert [unpack_payload(one) for one in payloads] == [t.payload for t in tasks]
        tasks[1_050] = NewTask("a", {"n": object()}, delay=1)
        with pytest.raises(TypeError, match=r"payload\['n'\] is a object") as refused:
            ask(*tasks)
        assert index_of(refused.value) == 1_050

    def test_what_differs_becomes_a_list(self) -> None:
        columns = ask(
            NewTask("a", delay=1, queue="red"),
            NewTask("b", at=INSTANT, id="x", queue="red", priority=3),
        ).columns
        assert columns.names == ["a", "b"]
        assert columns.dues == [6_001, instant_ms(INSTANT, "at")]
        assert columns.timelines == [ELAPSED, WALL]
        assert columns.ids == [None, "x"]
        assert columns.digests is not None
        assert columns.digests[0] is None
        assert columns.digests[1] is not None
        assert columns.shared == {}
        assert columns.single == {
            0: {F.QUEUE: "red"},
            1: {F.QUEUE: "red", F.PRIORITY: 3},
        }

    def test_what_all_share_stands_once(self) -> None:
        columns = ask(*[NewTask("a", delay=1, queue="red", tags=["x"])] * 3).columns
        assert columns.shared == {F.QUEUE: "red", F.TAGS: ["x"]}
        assert columns.single is None

    def test_none_at_all(self) -> None:
        request = ask()
        assert len(request) == request.size == 0

    @given(some.lists(plain_tasks, min_size=1, max_size=6))
    def test_both_ways_make_the_same(self, tasks: list[NewTask]) -> None:
        careful = NewTask("last", None, at=INSTANT, id="x")
        quick, by_task = outcome(*tasks), outcome(*tasks, careful)
        if not isinstance(quick, Request) or not isinstance(by_task, Request):
            assert quick == by_task
            return
        for position in range(len(tasks)):
            row, other = (one.columns.row_at(position) for one in (quick, by_task))
            assert row.pack() == other.pack()

    @pytest.mark.parametrize(
        ("durabilities", "together"),
        [
            ([None], None),
            (["written"], "written"),
            (["written", None], None),
            ([None, "fsync"], "fsync"),
            (["written", "fsync"], "fsync"),
            (["fsync", "written"], "fsync"),
        ],
    )
    def test_the_strongest_durability_holds(
        self, durabilities: list[str | None], together: str | None
    ) -> None:
        tasks = [
            task_with({"delay": 1, **({"durability": level} if level else {})})
            for level in durabilities
        ]
        assert ask(*tasks).durability == together


class TestDigest:
    def test_the_same_call_later_has_the_same(self) -> None:
        def digest_at(now: Now) -> object:
            task = NewTask("a", {"b": 1}, delay=5, id="x", priority=2)
            return build([task], now, LIMITS).columns.digests

        assert digest_at(NOW) == digest_at(
            replace(NOW, elapsed_ms=99_000, wall_ms=1, cut_ms=0)
        )

    @pytest.mark.parametrize(
        "other",
        [
            NewTask("b", {"b": 1}, delay=5, id="x"),
            NewTask("a", {"b": 2}, delay=5, id="x"),
            NewTask("a", {"b": 1}, delay=6, id="x"),
            NewTask("a", {"b": 1}, at=INSTANT, id="x"),
            NewTask("a", {"b": 1}, delay=5, id="x", priority=1),
            NewTask("a", {"b": 1}, delay=5, id="x", expires=1),
        ],
    )
    def test_every_argument_counts(self, other: NewTask) -> None:
        task = NewTask("a", {"b": 1}, delay=5, id="x")
        assert ask(task).columns.digests != ask(other).columns.digests

    def test_a_default_that_is_spelled_out_is_the_same(self) -> None:
        task = NewTask("a", delay=5, id="x")
        same = NewTask("a", delay=5.0, id="x", priority=0, queue="default", tags=())
        assert ask(task).columns.digests == ask(same).columns.digests


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({}, TypeError),
            ({"delay": 1, "at": INSTANT}, TypeError),
            ({"delay": None}, TypeError),
            ({"delay": "soon"}, TypeError),
            ({"delay": True}, TypeError),
            ({"delay": math.inf}, ValueError),
            ({"delay": math.nan}, ValueError),
            ({"delay": 1e300}, ValueError),
            ({"delay": 10**13}, ValueError),
            ({"at": datetime(2027, 1, 1)}, ValueError),  # noqa: DTZ001
            ({"at": 1_800_000_000}, TypeError),
            ({"delay": 1, "id": ""}, ValueError),
            ({"delay": 1, "id": 7}, TypeError),
            ({"delay": 1, "id": "x" * 256}, ValueError),
            ({"delay": 1, "id": "ä" * 128}, ValueError),
            ({"delay": 1, "id": "\ud800"}, ValueError),
            ({"delay": 1, "id": "t0000000000002a"}, ValueError),
            ({"delay": 1, "if_exists": "maybe"}, ValueError),
            ({"delay": 1, "durability": "memory"}, ValueError),
            ({"delay": 1, "version": -1}, ValueError),
            ({"delay": 1, "version": 1.0}, TypeError),
            ({"delay": 1, "priority": 128}, ValueError),
            ({"delay": 1, "queue": ""}, ValueError),
            ({"delay": 1, "retry": 3}, TypeError),
            ({"delay": 1, "retry": Retry(max_attempts=0)}, ValueError),
            ({"delay": 1, "retry": Retry(backoff=Fixed(-1))}, ValueError),
            ({"delay": 1, "retry": Retry(backoff=Linear(1, cap=math.inf))}, ValueError),
            ({"delay": 1, "lease": 0}, ValueError),
            ({"delay": 1, "expires": -1}, ValueError),
            ({"delay": 1, "tags": "a"}, TypeError),
            ({"delay": 1, "tags": ["a"] * 33}, ValueError),
            ({"delay": 1, "headers": []}, TypeError),
            ({"delay": 1, "headers": {"a": 1}}, TypeError),
            ({"delay": 1, "headers": {"a": "x" * 9_000}}, ValueError),
            ({"delay": 1, "at_most_once": 1}, TypeError),
            ({"delay": 1, "colour": "red"}, TypeError),
        ],
    )
    def test_an_argument_that_cant_be_right(
        self, options: dict[str, object], error: type[Exception]
    ) -> None:
        good = NewTask("a", delay=1)
        with pytest.raises(error) as refused:
            ask(good, task_with(options))
        assert index_of(refused.value) == 1

    @pytest.mark.parametrize("name", ["", "x" * 256, "\ud800"])
    def test_a_name(self, name: str) -> None:
        with pytest.raises(ValueError, match="name") as refused:
            ask(NewTask("a", {}, delay=1), NewTask(name, {}, delay=1))
        assert index_of(refused.value) == 1

    @pytest.mark.parametrize(
        "payload",
        [
            {"a": (1,)},
            {1: 2},
            {"a": 2**64},
            {"a": "\ud800"},
            {"a": bytearray()},
            object(),
        ],
    )
    def test_a_payload(self, payload: object) -> None:
        with pytest.raises((TypeError, ValueError), match="payload") as refused:
            ask(NewTask("a", {}, delay=1), NewTask("a", payload, delay=1))
        assert index_of(refused.value) == 1

    def test_a_payload_over_the_limit(self) -> None:
        with pytest.raises(PayloadTooLarge, match="200") as refused:
            ask(NewTask("a", {}, delay=1), NewTask("a", {"a": "x" * 300}, delay=1))
        assert index_of(refused.value) == 1

    def test_a_request_over_the_limit(self) -> None:
        limits = Limits(payload_bytes_max=2**23, batch_max=10)
        tasks = [NewTask("a", {"a": "x" * (2**23 - 2**15)}, delay=1)] * 5
        with pytest.raises(PayloadTooLarge) as refused:
            build(tasks, NOW, limits)
        assert index_of(refused.value) == 4

    def test_something_else_than_a_task(self) -> None:
        with pytest.raises(TypeError, match="NewTask"):
            build([("a", None)], NOW, LIMITS)  # type: ignore[list-item]

    def test_a_single_task_names_no_position(self) -> None:
        with pytest.raises(ValueError, match="finite") as refused:
            build_one("a", None, {"delay": math.nan}, NOW, LIMITS)
        assert index_of(refused.value) is None


class TestTime:
    @pytest.mark.parametrize(
        ("seconds", "ms"),
        [
            (0, 0),
            (1, 1_000),
            (0.1, 100),
            (0.3, 300),
            (0.1001, 101),
            (1e-6, 1),
            (1e-10, 0),
            (-0.0005, 0),
            (2.5e11, 250_000_000_000_000),
            (timedelta(microseconds=1), 1),
            (timedelta(days=1), 86_400_000),
        ],
    )
    def test_seconds_are_rounded_up(self, seconds: object, ms: int) -> None:
        assert span_ms(seconds, "it") == ms

    @given(some.floats(0, 1e9))
    def test_nothing_is_early_by_more_than_half_a_nanosecond(
        self, seconds: float
    ) -> None:
        ms = span_ms(seconds, "it")
        slip = 1e-6 + seconds * 1e-12
        assert seconds * 1000 - slip <= ms < seconds * 1000 + 1

    @given(some.integers(0, 10**10))
    def test_whole_milliseconds_stay_what_they_are(self, ms: int) -> None:
        assert span_ms(ms / 1000, "it") == ms

    def test_a_delay_is_never_negative(self) -> None:
        assert delay_ms(-3) == delay_ms(-0.5) == delay_ms(timedelta(-1)) == 0

    def test_instants(self) -> None:
        assert instant_ms(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), "at") == 1_001
        latest = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
        assert instant_ms(latest, "at") == DUE_MS_MAX


class TestNames:
    def test_lookup(self) -> None:
        assert lookup_id("valve-7") == "valve-7"
        assert lookup_id("t0000000000002a") == 42
        assert lookup_id("t0000000000002A") == "t0000000000002A"
        with pytest.raises(TypeError, match="int"):
            lookup_id(42)

    def test_bytes_are_counted_not_characters(self) -> None:
        assert judge_text("ä" * 127, "it", 255) == "ä" * 127
        assert judge_id("x" * 255) == "x" * 255
