"""A store under everything at once, for as long as asked, and a book that judges it.

    python -m tools.soak --minutes 2 --seed 1

A child process works with a store: it schedules, leases, acks, cancels, moves, pauses,
takes checkpoints and snapshots, and steps its clock. This process ends it, over and
over: with SIGKILL in the middle of its work, of its opening or of its closing, with
SIGTERM, or not at all; then it starts it again, now and then after a reboot with hours
of power-off or a clock that shows 1970, and fills up its file system meanwhile.

    clock     the child's clock: fast, and with steps, suspends and reboots of its own
    room      the small file system that runs full
    worker    the child: load, and a report before and after each call
    ledger    the book kept outside the store: what was acknowledged must hold
    inquest   what an opening must show of it, after whatever came before
    sessions  starts, ends and starts again

Time decides what comes when, so a seed repeats the draws, not the moments. No power is
cut here: what was written survives. `tools.powercut` does that.
"""
