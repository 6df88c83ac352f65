"""`python -m tools.fuzz`: let atheris look for inputs that a reader can't bear.

It needs ``atheris``, which instruments the code and keeps every input that reaches
something new.  Each target runs in a process of its own, with a limit of time, of
memory and of the length of an input.  The seeds are made anew each time.  An input that
breaks a reader is written to the directory that is named, and repeated by `--input
FILE`; exit 1.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ("main",)

SECONDS = 10
INPUT_BYTES_MAX = 4_096
MEMORY_MB_MAX = 1_024
# One input that takes longer is a hang.
INPUT_SECONDS_MAX = 10


def main() -> int:
    """Fuzz as the command line says and return the exit status."""
    options = _parser().parse_args()
    if options.child:
        _fuzz(options.target[0], options)
        return 0
    from tools.fuzz.targets import TARGETS

    names = options.target or sorted(TARGETS)
    if not TARGETS.keys() >= set(names):
        print(f"there are these targets: {', '.join(sorted(TARGETS))}", file=sys.stderr)
        return 2
    if options.input is not None:
        TARGETS[names[0]].check(options.input.read_bytes())
        return 0
    broken = [name for name in names if not _in_child(name, options)]
    print(f"{len(names)} targets, {options.seconds} s each: ", end="")
    print(f"broken: {', '.join(broken)}" if broken else "none was broken")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", action="append", help="may be repeated")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=Path, metavar="FILE", help="read this one only")
    parser.add_argument(
        "--keep", type=Path, default=Path("."), help="where to put what breaks a reader"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def _in_child(name: str, options: argparse.Namespace) -> bool:
    program = [sys.executable, "-m", "tools.fuzz", "--child", "--target", name]
    numbers = ["--seconds", str(options.seconds), "--seed", str(options.seed)]
    done = subprocess.run(
        [*program, *numbers, "--keep", str(options.keep)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=options.seconds + 120,
    )
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        said = [line for line in lines if line.startswith("Done")]
        print(f"{name}: {said[-1] if said else 'done'}", flush=True)
        return True
    print(
        f"{name}: BROKEN (exit {done.returncode})", *lines[-25:], sep="\n  ", flush=True
    )
    return False


def _fuzz(name: str, options: argparse.Namespace) -> None:
    # Not for the tests: it is not there for every platform, and has no types.
    import atheris  # type: ignore[import-untyped]

    # Imported here, so that what is fuzzed is what it tells the coverage of.
    with atheris.instrument_imports(include=["wheeldb"]):
        from tools.fuzz.targets import TARGETS
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="wheeldb-fuzz-") as corpus:
        for number, seed in enumerate(target.seeds()):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        file_name = name.replace(" ", "-")
        arguments = [
            "tools.fuzz",
            f"-max_total_time={options.seconds}",
            f"-seed={options.seed}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-rss_limit_mb={MEMORY_MB_MAX}",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-artifact_prefix={options.keep}/{file_name}-",
            corpus,
        ]
        atheris.Setup(arguments, target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
