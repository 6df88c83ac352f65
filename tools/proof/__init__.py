"""The complete sweeps, in slices that can be taken up again.

    python -m tools.proof cuts --slices 100 --first 0 --count 3      # 3 % of all cuts
    python -m tools.proof faults --slices 100 --scenario rotation
    python -m tools.proof cuts --slices 1000 --count 1000 --jobs 2   # all of them

Each slice of a scenario is one line of JSON in `--record`, as soon as it is done:
commit, seed, counts and verdict. What is recorded as passed for this commit, seed and
number of slices is not run again. The exit status is 1 if anything was found.

The sweeps themselves are in `tests/sweep_*.py`; this only counts.
"""
