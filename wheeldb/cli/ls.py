"""`wheeldb ls DIR`: list tasks, as a table or as JSON lines.

    wheeldb ls gateway.wheeldb --state scheduled --queue valves --limit 20

It works beside a running owner and changes nothing. `--after ID` goes on behind a task
of an earlier listing. An empty listing is fine (exit 0).
"""

import argparse
from collections.abc import Iterator

import wheeldb
from wheeldb.cli.arguments import add_directory, instant
from wheeldb.cli.opening import ExitStatus, open_to_read, usage_errors
from wheeldb.cli.output import print_json, print_table, say

__all__ = ("configure", "run")

COLUMNS = ("id", "name", "queue", "state", "due", "attempts", "held")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    states = [state.value for state in wheeldb.TaskState]
    parser.add_argument(
        "--state",
        choices=states,
        metavar="STATE",
        help=f"only those that are {', '.join(states[:-1])} or {states[-1]}",
    )
    parser.add_argument("--queue", help="only those of this queue")
    parser.add_argument("--name", help="only those of this name")
    parser.add_argument("--tag", metavar="WORD", help="only those with this tag")
    parser.add_argument(
        "--due-before",
        type=instant,
        metavar="INSTANT",
        help="only those due before 2026-12-01T02:00:00+01:00",
    )
    parser.add_argument("--after", metavar="ID", help="go on behind this task")
    parser.add_argument("--limit", type=int, metavar="COUNT", help="at most so many")
    parser.add_argument("--json", action="store_true", help="one task a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the tasks that match."""
    with open_to_read(arguments.directory) as db:
        with usage_errors():
            tasks = db.tasks(
                state=arguments.state and wheeldb.TaskState(arguments.state),
                queue=arguments.queue,
                name=arguments.name,
                tag=arguments.tag,
                due_before=arguments.due_before,
                limit=arguments.limit,
                after=arguments.after,
            )
        if arguments.json:
            for task in tasks:
                print_json(task)
        else:
            count = print_table(COLUMNS, _rows(tasks))
            say(f"{count} tasks" if count != 1 else "1 task")
    return ExitStatus.FINE


def _rows(tasks: Iterator[wheeldb.Task]) -> Iterator[tuple[object, ...]]:
    for task in tasks:
        yield (
            task.id,
            task.name,
            task.queue,
            task.state,
            task.due_at,
            task.attempts,
            task.held,
        )
