"""Planted faults: proof that the tests see what they are there to see.

A test that can't fail proves nothing.  So faults that stores like this one have had, or
that its design rules out, are planted one at a time in a copy of the source, and a
named test has to fail on each::

    python -m tools.mutants                     all of them
    python -m tools.mutants --sample 4 --seed 7 some of them, as the seed says
    python -m tools.mutants salt-missing …      these

`catalogue.py` lists the faults, `planting.py` makes the copy, changes it and runs the
tests.  The checkout itself is never changed.
"""
