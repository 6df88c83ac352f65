"""The write-ahead log: numbered segments of checksummed frames.

The rooms, bottom up: ``frame`` (bytes of one group commit), ``segment`` (names
and headers of files), ``writer`` (append, rotate, retire), ``reader`` (scan, tell
a torn tail from damage), ``repair`` (begin a segment at every opening),
``reserve`` (room kept for the events that must never fail).

The log knows bytes and numbers. It does not know what a task is, when anything is
due, or which index reads it.
"""

__all__ = ()
