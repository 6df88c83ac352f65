"""`python -m tools.soak`: run, say how it goes once a minute, end with a verdict.

exit 0   nothing was violated
exit 1   something was: it is told at once, with the seed, and where to look
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tools.soak.ledger import Violation
from tools.soak.room import Room, new_room
from tools.soak.sessions import Soak
from wheeldb.clock.system import SystemClock

__all__ = ("main",)

NS_PER_MINUTE = 60 * 10**9
TOLD = (
    *("accepted", "starts", "done", "cancelled", "gone", "announced", "torn"),
    *("steps", "reboots", "full", "no room", "unopened"),
)


def main() -> int:
    """Soak a store for as long as asked."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long")
    parser.add_argument("--seed", type=int, default=1, help="where the draws come from")
    parser.add_argument(
        "--keep", type=Path, help="copy a store that broke a promise there"
    )
    arguments = parser.parse_args()
    # The mount is undone, and the child ended, also then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory(prefix="wheeldb-soak-") as directory:
        room = new_room(Path(directory))
        print(f"seed {arguments.seed}; the store is {room.path}", flush=True)
        try:
            return _soak(room, arguments.seed, arguments.minutes, arguments.keep)
        finally:
            room.close()


def _soak(room: Room, seed: int, minutes: float, keep: Path | None) -> int:
    now_ns = SystemClock().process_ns
    begun_ns = told_ns = now_ns()
    end_ns = begun_ns + round(minutes * NS_PER_MINUTE)
    soak = Soak(room, seed)
    try:
        while now_ns() < end_ns:
            soak.run_session(is_over=lambda: now_ns() >= end_ns)
            if now_ns() - told_ns >= NS_PER_MINUTE:
                told_ns += NS_PER_MINUTE
                _tell(soak, (now_ns() - begun_ns) / NS_PER_MINUTE, "fine")
    except Violation as violation:
        _tell(soak, (now_ns() - begun_ns) / NS_PER_MINUTE, "VIOLATED")
        print(f"seed {seed}, session {soak.session}: {violation}")
        if keep is not None:
            shutil.copytree(room.path, keep)
            print(f"look at it: python -m wheeldb dump {keep}; … check {keep}")
        else:
            print("run it again with --keep DIR to look at the store")
        return 1
    _tell(soak, (now_ns() - begun_ns) / NS_PER_MINUTE, "fine, and over")
    return 0


def _tell(soak: Soak, minutes: float, verdict: str) -> None:
    counts = soak.ledger.counts
    ends = ", ".join(f"{counts.get(end, 0)} {end}" for end in sorted(set(soak.endings)))
    told = ", ".join(f"{counts[what]} {what}" for what in TOLD if what in counts)
    print(
        f"minute {minutes:.1f}: {verdict}; {soak.session} sessions ({ends}); {told}; "
        f"{len(soak.ledger.live)} live",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
