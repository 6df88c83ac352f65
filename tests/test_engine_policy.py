"""How long a failed task waits: what is stored with it, and what comes of that."""

from hypothesis import given
from hypothesis import strategies as st

from wheeldb.engine.moment import DUE_MS_MAX
from wheeldb.engine.policy import max_attempts, retry_wait_ms
from wheeldb.engine.row import Row
from wheeldb.events import ELAPSED, F


def failed(retry: list[object] | None, attempts: int, number: int = 7) -> Row:
    options: dict[int, object] = {} if retry is None else {F.RETRY: retry}
    row = Row(number, "a", b"\xc0", ELAPSED, 0, 0, options=options)
    row.attempts = attempts
    return row


finite = st.floats(0, allow_infinity=False) | st.integers(0, 2**53)
policies = st.one_of(
    st.builds(lambda base, cap: [5, "exponential", base, cap, []], finite, finite),
    st.builds(lambda step, cap: [5, "linear", step, cap, []], finite, finite),
    st.builds(lambda wait: [5, "fixed", wait, []], finite),
)


@given(policies, st.integers(1, 2**31))
def test_every_stored_policy_gives_a_wait_that_can_be_added(
    retry: list[object], attempts: int
) -> None:
    """A wait that can't be told would fail within a decision, and that is final."""
    assert 0 <= retry_wait_ms(failed(retry, attempts)) <= DUE_MS_MAX


@given(st.integers(1, 20), st.integers(1, 2**53 - 1))
def test_the_wait_is_below_the_back_off_and_always_the_same(
    attempts: int, number: int
) -> None:
    row = failed([30, "exponential", 1, 600, []], attempts, number)

    wait_ms = retry_wait_ms(row)

    assert 0 <= wait_ms <= min(1000 * 2 ** (attempts - 1), 600_000)
    assert retry_wait_ms(row) == wait_ms


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    waits = {retry_wait_ms(failed(None, 3, number)) for number in range(1, 101)}

    assert len(waits) > 90


def test_a_policy_of_a_newer_release_counts_as_the_default() -> None:
    assert max_attempts(failed([9, "fibonacci", 1, []], 1)) == 3
