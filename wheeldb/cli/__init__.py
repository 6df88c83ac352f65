"""The command line: `wheeldb VERB …`, the same as `python -m wheeldb VERB …`.

One module per verb, with `configure(parser)`, which adds its arguments, and
`run(arguments)`, which returns the exit status (`wheeldb.cli.opening` lists them). A
module is imported when its verb is called, so that `wheeldb ls` doesn't pay for the
others.

The command line is an edge: nothing below imports it.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from wheeldb.cli.arguments import Parser
from wheeldb.cli.opening import guarded
from wheeldb.layout import RELEASE

__all__ = ("VERBS", "Verb", "main")


class Verb(Protocol):
    """What a verb's module has."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit status."""


# In the order in which `--help` lists them: the story, acting, looking, keeping.
VERBS = {
    "demo": "the whole story on real data: a day of departures, killed twice",
    "add": "schedule a task",
    "ls": "list tasks",
    "show": "show one task and its history",
    "cancel": "cancel tasks",
    "reschedule": "give a task another due time",
    "revive": "give dead tasks another chance",
    "run-now": "make a task due at once",
    "pause": "hold a task or a queue back",
    "resume": "let a paused task or queue go on",
    "stat": "print the store's numbers",
    "check": "verify everything and print what is wrong",
    "dump": "print the events of the log as JSON lines",
    "replay": "fold the log again, into a new store if asked",
    "snapshot": "write a snapshot",
    "backup": "copy a store",
    "restore": "make a store from a backup",
    "bench": "measure the store against this disk",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status.

    Args:
        argv: The words after `wheeldb`; by default those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    parser = Parser(prog="wheeldb", description="Crash-safe delayed tasks.")
    parser.add_argument("--version", action="version", version=f"wheeldb {RELEASE}")
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=Parser
    )
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, help_text in VERBS.items():
        verb_parser = verbs.add_parser(name, help=help_text, allow_abbrev=False)
        verb_parser.description = help_text[0].upper() + help_text[1:] + "."
        if name == chosen:
            _module(name).configure(verb_parser)
    arguments = parser.parse_args(words)
    return _module(arguments.verb).run(arguments)


def _module(name: str) -> Verb:
    module = importlib.import_module(f"wheeldb.cli.{name.replace('-', '_')}")
    return cast("Verb", module)
