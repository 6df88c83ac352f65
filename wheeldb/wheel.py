"""The timing wheel: which entries are due, and when the next one will be.

A hashed hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical
Timing Wheels", SOSP 1987, scheme 7), kept in Python ints and dicts. Insert and cancel
are O(1); finding the next occupied slot costs the same with one entry or a million.

An entry is one int that carries its own due instant::

     117                          69          53                       0
      |  due, ms since the epoch  |   lane    |     task number        |
      |          48 bits          |  16 bits  |        53 bits         |

so entries compared as ints are ordered by (due, lane, number). The wheel reads the due
field only; the rest is the caller's.

Time is written in base 256, one digit to a level::

    level   a slot spans    the level spans
      0         1 ms            256 ms
      1       256 ms             65 s
      2        65 s             4.7 h
      3       4.7 h              50 days
      4        50 days           35 years
      5        35 years       8,919 years

The *hand* is an instant up to which everything has been handed out. An entry lies at
the level of the highest digit in which its due instant differs from the hand, in the
slot of that digit. One example, with two digits in base 10 instead of six in base 256,
the hand at 42, and entries due at 42, 47, 53 and 58::

    level 0 (this decade, by ones):    slot 2: 42   slot 7: 47
    level 1 (this century, by tens):   slot 5: 53, 58

All digits above an entry's level are the hand's own, so whatever lies at a lower level
is due sooner than whatever lies above it, and within a level a lower slot is due sooner
than a higher one: no slot ever wraps around. With one bit per slot, level 0 lowest, the
lowest bit set *is* the earliest slot. ``advance(55)`` takes slots 2 and 7, finds slot 5
of level 1 next, moves the hand to 50 where that slot begins, and cascades it: 53 and 58
go to slots 3 and 8 of level 0. It hands out 53, meets 58, and rests the hand at 55.
``advance(60)`` would have taken slot 5 of level 1 as it is, since all of it is due.
A step of a century costs no more than that: empty slots are never visited.

An entry is stored again each time it descends a level, five times at worst. That is the
price of a cheap insert, and most timers are cancelled before they pay it.

The wheel knows no clock, lock, thread, file or task. It does not fire anything, does
not refuse what is already past due (that comes out at the next advance) and does not
go back in time: after a backward step, ``clear`` it and insert again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from itertools import islice

__all__ = ("DUE_LIMIT_MS", "DUE_SHIFT", "Wheel", "WheelStatistics")

DUE_SHIFT = 69
"""Bits below the due instant: 53 of task number and 16 of lane."""

DUE_LIMIT_MS = 1 << 48
"""Due instants and nows lie below this, the year 9999 as well."""

_LEVEL_COUNT = 6
_ENTRY_LIMIT = DUE_LIMIT_MS << DUE_SHIFT

# The number of bits in `due XOR hand` gives the shift that brings the entry's digit
# down: 0 for up to 8 bits, 8 for up to 16, and so on. 256 * level is `shift << 5`.
_SHIFT_BY_BITS = (0, *(8 * level for level in range(_LEVEL_COUNT) for _ in range(8)))

# One C call holds the interpreter lock until it returns, and a sort of 50,000 entries
# takes tens of milliseconds. Longer lists are sorted in runs, or pushed one by one.
_RUN_COUNT = 2_000

# Up to here the earliest of a slot is found by looking at all of it.
_SCAN_COUNT = 64

# What stands for a first due instant: after the last, and before the first there is.
_NEVER = DUE_LIMIT_MS
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStatistics:
    """What a wheel holds at the moment.

    Attributes:
        entry_count: Entries in the wheel.
        level_counts: Entries at each level, the finest first.
        slot_count: Occupied slots.
        heap_count: Slots that are also kept as a heap, to take them in order.
    """

    entry_count: int
    level_counts: tuple[int, ...]
    slot_count: int
    heap_count: int


class Wheel:
    """A set of entries that come out in the order of their due instants.

    An entry is in the wheel once or not at all. Not thread-safe; and a call that is
    broken off half-way (by Ctrl-C, say) leaves a wheel to be cleared and filled anew.
    """

    __slots__ = (
        "_hand",
        "_heaps",
        "_now_ms",
        "_occupied",
        "_slots",
        "first_ms",
        "size",
    )

    def __init__(self, now_ms: int) -> None:
        """Make an empty wheel whose hand stands at `now_ms`."""
        assert 0 <= now_ms < DUE_LIMIT_MS, f"now_ms {now_ms} is outside the wheel"
        # A slot is a dict without values, not a set: growing, a set takes up to 107
        # bytes an entry, a dict at most 60. An empty slot is None and holds no memory.
        self._slots: list[dict[int, None] | None] = [None] * (_LEVEL_COUNT << 8)
        # Bit n is set when slot n is occupied.
        self._occupied = 0
        # Every entry is placed as seen from the hand. It rests at `now_ms`, or before
        # it while due entries are left over.
        self._hand = now_ms
        self._now_ms = now_ms
        # How many entries there are; to be read only. `len` takes a call more.
        self.size = 0
        # The earliest due instant, below zero once that may be out; to be read only, by
        # who asks at each change whether anything is due: nothing is before it.
        self.first_ms = _NEVER
        # For some slots, by position: a heap over all its entries, and over some that
        # were cancelled since. The slot says which are which.
        self._heaps: dict[int, list[int]] = {}

    @property
    def now_ms(self) -> int:
        """The instant of the last advance."""
        return self._now_ms

    def __len__(self) -> int:
        """Return the number of entries, in O(1)."""
        return self.size

    def __contains__(self, entry: int) -> bool:
        """Return whether `entry` is in the wheel, in O(1)."""
        slot = self._slots[self._position(entry)]
        return slot is not None and entry in slot

    def insert(self, entry: int) -> bool:
        """Put `entry` into the wheel, in O(1).

        An entry that is already due is taken all the same: it comes out at the next
        advance, before all that is due later.

        Returns:
            Whether it is new; an entry that is in the wheel already stays.
        """
        assert entry < _ENTRY_LIMIT, f"entry {entry:#x} is outside the wheel"
        # `_position`, written out here and below to spare a call.
        due = entry >> DUE_SHIFT
        if due < self.first_ms:
            self.first_ms = due
        hand = self._hand
        if due < hand:
            due = hand
        shift = _SHIFT_BY_BITS[(due ^ hand).bit_length()]
        position = (shift << 5) | (due >> shift & 255)
        slot = self._slots[position]
        if slot is None:
            self._slots[position] = {entry: None}
            self._occupied |= 1 << position
        elif entry in slot:
            return False
        else:
            slot[entry] = None
            heap = self._heaps.get(position)
            if heap is not None:
                heappush(heap, entry)
        self.size += 1
        return True

    def insert_many(self, entries: Iterable[int]) -> int:
        """Put all of `entries` into the wheel, as `insert` does but quicker.

        If the iterable raises, the entries before that are in the wheel.

        Returns:
            How many of them are new.
        """
        size = self.size
        self.first_ms = _UNKNOWN
        self._place(entries)
        return self.size - size

    def cancel(self, entry: int) -> bool:
        """Take `entry` out of the wheel, in O(1), and free its memory.

        Returns:
            Whether it was there.
        """
        due = entry >> DUE_SHIFT
        if due == self.first_ms:
            self.first_ms = _UNKNOWN
        hand = self._hand
        if due < hand:
            due = hand
        shift = _SHIFT_BY_BITS[(due ^ hand).bit_length()]
        position = (shift << 5) | (due >> shift & 255)
        slot = self._slots[position]
        if slot is None:
            return False
        try:
            del slot[entry]
        except KeyError:
            return False
        self.size -= 1
        if not slot:
            self._empty(position)
        elif position in self._heaps:
            self._bound_heap(position)
        return True

    def advance(self, now_ms: int, limit: int = 64) -> list[int]:
        """Move to `now_ms`, any step ahead, and take out what is due by then.

        Args:
            now_ms: The instant to move to, at or after that of the last advance.
            limit: How many entries to take at most.

        Returns:
            The earliest `limit` entries due at or before `now_ms`, ordered by (due,
            lane, number). If there are `limit` of them more may be due; they stay in
            the wheel, can be cancelled, and come with the next advance, which may have
            the same `now_ms`.
        """
        assert now_ms >= self._now_ms, f"now_ms {now_ms} is before {self._now_ms}"
        assert now_ms < DUE_LIMIT_MS, f"now_ms {now_ms} is outside the wheel"
        assert limit >= 0, f"limit {limit} is not a number of entries"
        self._now_ms = now_ms
        self.first_ms = _UNKNOWN
        expired: list[int] = []
        while self._occupied:
            position, start = self._earliest()
            if start > now_ms:
                break
            slot = self._slots[position]
            assert slot is not None, f"slot {position} is empty, its bit is set"
            last = start + (1 << (position >> 8 << 3)) - 1
            if position > 255 and (last > now_ms or len(slot) > _RUN_COUNT):
                # The whole slot comes off before any of it is placed again.
                # Assumes: no slot before this one is occupied.
                # Ensures: whatever stays in the other slots keeps its place under the
                # new hand, since none of the digits above have changed.
                self._empty(position)
                self.size -= len(slot)
                self._hand = start
                self._place(slot)
                continue
            # The slot is due as a whole, and is put in order where it lies. The hand
            # stays in front of it, so what there is no room for keeps its place.
            room = limit - len(expired)
            if len(slot) <= min(room, _RUN_COUNT):
                expired += sorted(slot)
                self.size -= len(slot)
                self._empty(position)
            else:
                self._take(position, slot, room, expired)
            if len(expired) == limit:
                return expired
        self._hand = now_ms
        return expired

    def next_expiration(self) -> int | None:
        """Return the due instant of the earliest entry, None without entries.

        The answer is exact: neither the start of a slot nor the time of a cascade. It
        lies before the last advance if entries are past due. A slot is put into order
        the first time that it is asked for, an entry at most once a level; after that,
        and in slots of one millisecond, the cost does not depend on their size. Asked
        again before the earliest entry is out, it costs nothing.
        """
        first = self.first_ms
        if first == _UNKNOWN:
            first = self.first_ms = self._find_first()
        return None if first == _NEVER else first

    def is_due(self, now_ms: int) -> bool:
        """Return whether the earliest entry is due at `now_ms`."""
        first = self.first_ms
        if first == _UNKNOWN:
            first = self.first_ms = self._find_first()
        return first <= now_ms

    def _find_first(self) -> int:
        if not self._occupied:
            return _NEVER
        position, start = self._earliest()
        if position < 256 and start > self._hand:
            return start
        slot = self._slots[position]
        assert slot is not None, f"slot {position} is empty, its bit is set"
        if len(slot) <= _SCAN_COUNT:
            return min(slot) >> DUE_SHIFT
        heap = self._heap(position, slot)
        while heap[0] not in slot:
            heappop(heap)
        return heap[0] >> DUE_SHIFT

    def trim(self, keep: int) -> list[int]:
        """Take out all but the `keep` earliest entries.

        Whole slots go first. One slot may have to be parted, which sorts all of it:
        let the wheel overfill by a part of its size, then trim.

        Returns:
            What was taken out, in no particular order.
        """
        assert keep >= 0, f"keep {keep} is not a number of entries"
        removed: list[int] = []
        self.first_ms = _UNKNOWN
        excess = self.size - keep
        while len(removed) < excess and self._occupied:
            position = self._occupied.bit_length() - 1
            slot = self._slots[position]
            assert slot is not None, f"slot {position} is empty, its bit is set"
            missing = excess - len(removed)
            if len(slot) <= missing:
                removed += slot
                self._empty(position)
                continue
            for entry in islice(_latest_first(slot), missing):
                del slot[entry]
                removed.append(entry)
            if position in self._heaps:
                self._bound_heap(position)
        self.size -= len(removed)
        return removed

    def entries(self) -> Iterator[int]:
        """Yield all entries, slot after slot, in no order within a slot.

        The wheel must not change meanwhile.
        """
        for slot in self._slots:
            if slot is not None:
                yield from slot

    def clear(self, now_ms: int | None = None) -> None:
        """Take out everything, and set the hand to `now_ms` if it is given.

        This is the one way to go back in time.
        """
        self._heaps.clear()
        self.first_ms = _NEVER
        for position, slot in enumerate(self._slots):
            if slot is not None:
                self._slots[position] = None
        self._occupied = self.size = 0
        if now_ms is not None:
            assert 0 <= now_ms < DUE_LIMIT_MS, f"now_ms {now_ms} is outside the wheel"
            self._now_ms = now_ms
        self._hand = self._now_ms

    def statistics(self) -> WheelStatistics:
        """Return how many entries there are and at which levels."""
        counts = [0 if slot is None else len(slot) for slot in self._slots]
        return WheelStatistics(
            entry_count=self.size,
            level_counts=tuple(
                sum(counts[first : first + 256]) for first in range(0, len(counts), 256)
            ),
            slot_count=self._occupied.bit_count(),
            heap_count=len(self._heaps),
        )

    def check(self) -> list[str]:
        """Return what is wrong with the structure: nothing, in a sound wheel."""
        findings = []
        if not 0 <= self._hand <= self._now_ms < DUE_LIMIT_MS:
            findings.append(f"hand {self._hand} and now {self._now_ms} disagree")
        count = 0
        for position, slot in enumerate(self._slots):
            if bool(self._occupied >> position & 1) != (slot is not None):
                findings.append(f"slot {position}: its bit and its content disagree")
            if slot is None:
                continue
            count += len(slot)
            if not slot:
                findings.append(f"slot {position}: is empty but not released")
            findings += [
                f"slot {position}: entry {entry:#x} belongs to {self._position(entry)}"
                for entry in slot
                if self._position(entry) != position
            ]
        if self._occupied >> len(self._slots):
            findings.append("a bit is set beyond the last slot")
        first = min(self.entries(), default=_ENTRY_LIMIT) >> DUE_SHIFT
        if self.first_ms not in (_UNKNOWN, first):
            findings.append(f"first is {self.first_ms} but {first} comes first")
        if count != self.size:
            findings.append(f"size is {self.size} but {count} entries are held")
        for position, heap in self._heaps.items():
            findings += self._check_heap(position, heap)
        return findings

    def _check_heap(self, position: int, heap: list[int]) -> list[str]:
        slot = self._slots[position]
        if slot is None:
            return [f"heap {position}: its slot is empty"]
        findings = []
        if not slot.keys() <= set(heap):
            findings.append(f"heap {position}: lacks an entry of its slot")
        if any(heap[(child - 1) >> 1] > heap[child] for child in range(1, len(heap))):
            findings.append(f"heap {position}: is out of order")
        if len(heap) > 2 * len(slot) + _RUN_COUNT:
            findings.append(f"heap {position}: {len(heap)} for {len(slot)} entries")
        return findings

    def _position(self, entry: int) -> int:
        """Return the slot that `entry` belongs to, by number: 256 * level + digit.

        What is past due belongs to the slot under the hand. All there is due, and the
        hand does not leave before it is empty, so the entry will be found again.
        """
        hand = self._hand
        due = max(entry >> DUE_SHIFT, hand)
        shift = _SHIFT_BY_BITS[(due ^ hand).bit_length()]
        return (shift << 5) | (due >> shift & 255)

    def _earliest(self) -> tuple[int, int]:
        """Return the first occupied slot and the instant at which it begins."""
        occupied = self._occupied
        position = (occupied & -occupied).bit_length() - 1
        shift = position >> 8 << 3
        above = shift + 8
        return position, self._hand >> above << above | (position & 255) << shift

    def _place(self, entries: Iterable[int]) -> None:
        """Put entries into their slots."""
        slots = self._slots
        heaps = self._heaps
        hand = self._hand
        shift_by_bits = _SHIFT_BY_BITS
        new_count = 0
        try:
            for entry in entries:
                due = entry >> DUE_SHIFT
                if due < hand:
                    due = hand
                shift = shift_by_bits[(due ^ hand).bit_length()]
                position = (shift << 5) | (due >> shift & 255)
                slot = slots[position]
                if slot is None:
                    slots[position] = {entry: None}
                    self._occupied |= 1 << position
                elif entry in slot:
                    continue
                else:
                    slot[entry] = None
                    if position in heaps:
                        heappush(heaps[position], entry)
                new_count += 1
        finally:
            self.size += new_count

    def _empty(self, position: int) -> None:
        """Release an occupied slot, with its heap; leave the size."""
        self._slots[position] = None
        self._occupied ^= 1 << position
        self._heaps.pop(position, None)

    def _take(
        self, position: int, slot: dict[int, None], room: int, expired: list[int]
    ) -> None:
        """Move the earliest entries of a slot that is due to `expired`."""
        heap = self._heap(position, slot)
        while room and slot:
            entry = heappop(heap)
            if entry in slot:
                del slot[entry]
                expired.append(entry)
                self.size -= 1
                room -= 1
        if not slot:
            self._empty(position)

    def _heap(self, position: int, slot: dict[int, None]) -> list[int]:
        """Return the heap over a slot, made now if there is none.

        A heap, because the slot goes on changing while it is taken in pieces: an
        insert is one push, a cancel nothing, and no step is a long one.
        """
        heap = self._heaps.get(position)
        if heap is None:
            if len(slot) <= _RUN_COUNT:
                heap = list(slot)
                heapify(heap)
            else:
                heap = []
                for entry in slot:
                    heappush(heap, entry)
            self._heaps[position] = heap
        return heap

    def _bound_heap(self, position: int) -> None:
        """Drop a heap that is mostly cancelled entries, to free their memory."""
        slot = self._slots[position]
        assert slot is not None, f"slot {position} is empty, it has a heap"
        if len(self._heaps[position]) > 2 * len(slot) + _RUN_COUNT:
            del self._heaps[position]


def _latest_first(slot: dict[int, None]) -> Iterator[int]:
    """Yield the entries of a slot in descending order; the slot may shrink meanwhile.

    Sorted in runs and merged: the sorts are short, the merge is Python.
    """
    entries = iter(slot)
    runs = []
    while run := list(islice(entries, _RUN_COUNT)):
        run.sort(reverse=True)
        runs.append(run)
    return merge(*runs, reverse=True)
