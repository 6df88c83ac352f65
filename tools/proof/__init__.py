"""What is proved, and by how much trying: slices of sweeps, taken up where they ended.

    python -m tools.proof --full                       every power cut, every fault
    python -m tools.proof --full powercuts mutants     and these rigs, one run a slice
    python -m tools.proof --full cuts --seeds 3 --minutes 30
    python -m tools.proof --readme                     write the sums into the README
    python -m tools.proof cuts --scenario rotation --slices 100 --first 7 --count 3

    kind        a slice of it
    cuts        a share of all images of the sweeps of simulated power cuts
    faults      a share of all calls of a file system that can fail
    powercuts   a run of `tools.powercut` on one file system
    bitrot      a share of all damages of `tools.bitrot`
    index       a run of `tools.bitrot` on LMDB's file
    mutants     a share of the planted faults of `tools.mutants`

Each finished slice is one line of JSON in the record: commit, format, seed, counts and
verdict. With ``--full`` that is `runs.jsonl` beside this file, which is kept: a run
that is stopped, at any moment, goes on behind the last line, on whatever commit is
checked out then; ``--afresh`` lets only this commit's own lines count as done.
Two kinds are drawn, cuts and powercuts: each of ``--seeds`` gives others. The rest is
the same for every seed and done once.

A violation is a line like any other. It stays open until the same slice has passed on a
later commit, and is counted for ever. The exit status is 1 if one was found or is open,
3 if a rig could not run. Only committed code is tried for `runs.jsonl`, and only one
commit by one run: who works on the checkout meanwhile lets this run in a clone, with
``--record``.

Rooms: `slices` runs one, `rigs` those that are runs of other tools, `campaign` chooses
and paces them, `record` keeps the lines, `sums` adds them up.
"""
