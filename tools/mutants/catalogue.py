"""The list of faults, from `faults.toml`.

    [[mutant]]
    name = "chain-ignored"
    file = "wheeldb/log/cursor.py"
    fault = "a frame need not follow the one before it"
    old = '''…'''         stands in the file exactly once
    new = '''…'''         stands there instead
    tests = ["tests/test_log_reader.py::test_a_valid_frame_that_follows_another_…"]

A fault is one that stores like this have had, or that the design rules out.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ("MUTANTS", "Mutant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault.

    Attributes:
        name: What it is called on the command line.
        file: Where it is planted.
        fault: What it means for a store.
        old: The text that it replaces.
        new: What stands there instead.
        tests: Who has to see it, as pytest names them.
    """

    name: str
    file: str
    fault: str
    old: str
    new: str
    tests: tuple[str, ...]


def _read() -> tuple[Mutant, ...]:
    with (Path(__file__).parent / "faults.toml").open("rb") as file:
        listed = tomllib.load(file)["mutant"]
    return tuple(Mutant(**(one | {"tests": tuple(one["tests"])})) for one in listed)


MUTANTS = _read()
