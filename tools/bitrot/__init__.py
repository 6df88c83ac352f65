"""Bit rot: every bit, byte and length of a file, damaged one at a time.

    python -m tools.bitrot                      a sample of each file, seeded by the day
    python -m tools.bitrot --full               every damage there is
    python -m tools.bitrot --full --slice 3/8   an eighth of it

A store is built in memory, always the same one.  Then one of its files is damaged (a
bit flipped, a byte zeroed or set to 0xFF, the file cut), read, judged, and mended
again. What may come of it:

    exact      every event is there
    refused    ``CorruptionError`` or ``FormatError``, and nothing was changed
    torn       read as the end of a write that the power cut short: allowed for the last
               frames alone, which nothing vouches for yet; how many is printed

Anything else is a violation: events that differ or are missing, another exception.  The
rooms: ``damages`` numbers the damages of a file, ``stores`` builds what is damaged,
``judges`` reads it, ``sweep`` counts, ``index`` does the same to LMDB's file in child
processes.
"""

__all__ = ()
