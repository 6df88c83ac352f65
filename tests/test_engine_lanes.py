"""Lanes: who gets which number, and which of them are a queue's."""

from hypothesis import given
from hypothesis import strategies as st

from wheeldb.engine.lanes import LANE_FIRST, Lanes

KEYS = st.tuples(
    st.sampled_from([0, 1]), st.sampled_from(["a", "b", "c"]), st.integers(-2, 2)
)


def by_priority(lanes: Lanes, queue: str) -> list[int]:
    """Return the lanes of a queue as a look at all of them finds them."""
    found = [(key[2], lane) for key, lane in lanes.numbers.items() if key[1] == queue]
    return [lane for _, lane in sorted(found)]


def require_true(lanes: Lanes) -> None:
    assert set(lanes.queues) == {queue for _, queue, _ in lanes.keys}
    assert lanes.numbers == {
        key: lane for lane, key in enumerate(lanes.keys, LANE_FIRST)
    }
    for queue in ("a", "b", "c", "none"):
        assert list(lanes.of_queue(queue)) == by_priority(lanes, queue)


@given(st.lists(st.one_of(KEYS, st.integers(0, 30)), max_size=60))
def test_a_queue_has_its_lanes_by_priority(steps: list) -> None:  # type: ignore[type-arg]
    lanes = Lanes()
    for step in steps:
        if isinstance(step, int):
            lanes.cut(step)
        else:
            lanes.number(step)
        require_true(lanes)
    again = Lanes()
    again.restore(lanes.stored())
    assert (again.keys, again.queues) == (lanes.keys, lanes.queues)


def test_an_undo_completes_what_an_interrupt_left_undone() -> None:
    # In the order in which `number` does it.
    lanes = Lanes()
    lanes.number((0, "a", 0))
    lanes.keys.append((0, "a", 1))
    lanes.cut(1)
    require_true(lanes)
    lanes.keys.append((0, "b", 1))
    lanes.numbers[0, "b", 1] = LANE_FIRST + 1
    lanes.cut(1)
    require_true(lanes)
    lanes.number((0, "b", 1))
    lanes.queues["b"].clear()
    lanes.cut(1)
    require_true(lanes)


def test_a_lease_does_not_look_at_other_queues() -> None:
    lanes = Lanes()
    for priority in range(100):
        lanes.number((0, "other", priority))
    lane = lanes.number((0, "mine", 0))
    lanes.numbers.clear()
    assert lanes.of_queue("mine") == [lane]
