"""The write-ahead log: numbered segments of checksummed frames.

The rooms, bottom up:

    frame      the bytes of one group commit
    segment    names and headers of files, and how one comes into being
    source     the bytes of one file, read in pieces
    cursor     the frames of one file, each verified against the one before
    tail       what the first invalid frame of the last segment means
    writer     append, rotate, retire
    reader     scan all segments in order
    repair     begin a segment at every opening
    aside      keep what a repair cuts off
    wreck      read on past damage, to salvage what is whole
    snapshot   a compacted log in one file
    reserve    room kept for the events that must never fail
    spare      a copy of the last block, while that is written again

The log knows bytes and numbers. It does not know what a task is, when anything is
due, or which index reads it.
"""

__all__ = ()
