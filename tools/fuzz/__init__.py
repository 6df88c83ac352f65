"""Fuzzing of everything that reads bytes from outside.

    python -m tools.fuzz                          every target for ten seconds
    python -m tools.fuzz --target events --seconds 600

``targets`` lists the readers.  Each takes any bytes, and may raise the typed errors
that it names and nothing else.  ``seals`` puts the checksums right behind a change, so
that what lies inside them is reached.  The tests draw inputs with Hypothesis;
`__main__` lets ``atheris`` look for more, with the coverage of the code as its guide.
"""

__all__ = ()
