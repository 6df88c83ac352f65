"""Rows of the index made by the thousand.

Goal: they are byte for byte those that are made one by one, and so are their digests.
Method: hypothesis gives the columns; the other side of each comparison is `keys.py`.
"""

from hypothesis import given
from hypothesis import strategies as some

from wheeldb.index.bulk import due_fields, pack_due_rows, pack_tasks
from wheeldb.index.changes import Changes, encode
from wheeldb.index.keys import (
    COARSE_MS,
    DIGEST_MASK,
    due_digest,
    due_field,
    due_key,
    number_key,
    pack_due,
    pack_row,
    row_crc,
    row_digest,
)

numbers_and_bodies = some.dictionaries(
    some.integers(0, 2**53 - 1), some.binary(max_size=20), max_size=5
)
dues_by_number = some.dictionaries(
    some.integers(0, 2**53 - 1), some.integers(0, 2**48), max_size=5
)


@given(numbers_and_bodies)
def test_tasks(bodies: dict[int, bytes]) -> None:
    rows, digest = pack_tasks(list(bodies), list(bodies.values()))
    keys = {number: number_key(number) for number in bodies}
    assert rows == [
        (keys[number], pack_row(keys[number], number, body))
        for number, body in bodies.items()
    ]
    assert digest & DIGEST_MASK == DIGEST_MASK & sum(
        row_digest(number, row_crc(keys[number], number, body))
        for number, body in bodies.items()
    )


@given(dues_by_number, some.integers(0, 2**16), some.integers(0, 2**48))
def test_due_rows(dues: dict[int, int], lane: int, now_ms: int) -> None:
    fields = due_fields(list(dues.values()), now_ms)
    assert fields == [due_field(due_ms, now_ms) for due_ms in dues.values()]

    rows, digest = pack_due_rows(lane, fields, list(dues), list(dues.values()))
    keys = [
        due_key(lane, field, number) for field, number in zip(fields, dues, strict=True)
    ]
    assert [key for key, _ in rows] == keys
    assert [value for _, value in rows] == [
        pack_due(key, due_ms) for key, due_ms in zip(keys, dues.values(), strict=True)
    ]
    assert digest & DIGEST_MASK == DIGEST_MASK & sum(
        due_digest(lane, field, number, dues[number])
        for field, number in zip(fields, dues, strict=True)
    )


def test_ready_rows_are_encoded_with_the_others() -> None:
    near, far = 7, 5 * COARSE_MS
    rows, _ = pack_tasks([2, 4], [b"two", b"four"])
    due_rows, _ = pack_due_rows(16, [near, far], [2, 4], [near, far + 1])
    ready = Changes(task_rows=rows, due_rows=due_rows)
    ready.put_tasks.append((3, 9, b"three"))
    ready.put_due.append((16, 8, 3, 8))

    single = Changes(put_tasks=[(2, 2, b"two"), (3, 9, b"three"), (4, 4, b"four")])
    single.put_due += [(16, near, 2, near), (16, 8, 3, 8), (16, far, 4, far + 1)]

    assert encode(ready) == encode(single)
