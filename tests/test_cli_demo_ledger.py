"""The demo's judge must see each kind of broken promise.

Method: reports as the worker would write them, one story per test; a judge that never
finds anything would make the demo worthless.
"""

import pytest

from wheeldb.cli.demo_ledger import Entry, Ledger, Tally, lateness_of

DONE = {"b": "done", "g": "done"}


@pytest.fixture
def ledger() -> Ledger:
    """One boarding, due at 1,000 on the wall clock, and its follow-up 50 later."""
    ledger = Ledger(rate=10)
    ledger.expect("b", Entry(group="boarding", due_ms=1_000, follow_up="g"))
    ledger.expect("g", Entry(group="gate", timeline="boottime_ms", delay_ms=50))
    return ledger


def note(ledger: Ledger, kind: str, id: str, ms: int, *, again: bool = False) -> None:
    report: dict[str, object] = {"kind": kind, "wall_ms": ms, "boottime_ms": ms}
    if kind in {"asked", "accepted"}:
        report["ids"] = [id]
    else:
        report["id"] = id
        report["may_have_run"] = again
    ledger.note(report)


def good_story(ledger: Ledger) -> None:
    for kind, id, ms in (
        ("asked", "b", 10),
        ("accepted", "b", 11),
        ("started", "b", 1_020),
        ("finishing", "b", 1_021),
        ("finished", "b", 1_022),
        ("started", "g", 1_071),
        ("finishing", "g", 1_072),
        ("finished", "g", 1_073),
    ):
        note(ledger, kind, id, ms)


def both(ledger: Ledger, states: dict[str, str] | None = None) -> tuple[Tally, Tally]:
    final = DONE if states is None else states
    return ledger.tally("boarding", final), ledger.tally("gate", final)


def test_good_story(ledger: Ledger) -> None:
    good_story(ledger)

    boarding, gate = both(ledger)
    assert boarding.is_fine
    assert gate.is_fine
    assert (boarding.accepted, boarding.fired, boarding.lost) == (1, 1, 0)
    assert (gate.accepted, gate.fired, gate.lost) == (1, 1, 0)
    assert boarding.late_ms.max == 2.0  # 20 on a clock ten times as fast
    assert gate.late_ms.max == 0.0


def test_early_start_is_seen(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "started", "b", 999)

    assert both(ledger)[0].fired_early == 1


def test_early_follow_up_is_seen(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "started", "b", 1_000)
    note(ledger, "finishing", "b", 1_001)
    note(ledger, "started", "g", 1_050)

    assert both(ledger)[1].fired_early == 1


def test_follow_up_of_nothing_is_early(ledger: Ledger) -> None:
    note(ledger, "started", "g", 5_000)

    assert both(ledger)[1].fired_early == 1


def test_announced_repeat_is_fine(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "started", "b", 1_000)
    note(ledger, "started", "b", 1_100, again=True)
    note(ledger, "finished", "b", 1_101)

    boarding = both(ledger)[0]
    assert boarding.fired_again_announced == 1
    assert boarding.is_fine


def test_unannounced_repeat_is_seen(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "started", "b", 1_000)
    note(ledger, "started", "b", 1_100)

    assert both(ledger)[0].fired_again_unannounced == 1
    assert not both(ledger)[0].is_fine


def test_start_behind_the_end_is_wrong_even_if_announced(ledger: Ledger) -> None:
    good_story(ledger)
    note(ledger, "started", "b", 2_000, again=True)

    assert both(ledger)[0].fired_again_unannounced == 1


def test_never_started_is_lost(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "accepted", "b", 11)

    boarding, gate = both(ledger, {})
    assert (boarding.accepted, boarding.lost) == (1, 1)
    assert gate.lost == 1


def test_end_that_no_report_saw_is_settled_by_the_store(ledger: Ledger) -> None:
    note(ledger, "asked", "b", 10)
    note(ledger, "started", "b", 1_000)
    note(ledger, "finishing", "b", 1_001)

    assert both(ledger, {"b": "done"})[0].lost == 0
    assert both(ledger, {"b": "leased"})[0].lost == 1
    assert both(ledger, {})[0].lost == 1


def test_unknown_task_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(KeyError):
        note(ledger, "started", "x", 10)


def test_lateness_percentiles() -> None:
    late = lateness_of([float(n) for n in range(1, 101)])

    assert (late.p50, late.p99, late.max) == (50.0, 99.0, 100.0)
    assert lateness_of([7.0]).p50 == 7.0
    assert lateness_of([]).max == 0.0
