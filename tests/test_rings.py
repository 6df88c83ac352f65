"""The shape of the package, read from its syntax trees.

Goal: the rules that keep the rooms apart hold for every file, today and after the next
change. Method: `findings_of` takes one module's name and source and returns what breaks
a rule; one test runs it over the package, the others feed it a bad snippet for each
rule, which shows that the rule can fail.

The rings, imports pointing down only:

    6  cli  serve  contrib  testing
    5  runtime  peers  clock.ntp                          anyio from here up
    4  store and its parts  driver  recovery  engine
    3  disk  log  index
    2  wheel  events  payload  recurrence  clock  crdt     pure
    1  model  errors
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "wheeldb"

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

RINGS = {
    "errors": 1,
    "model": 1,
    "wheel": 2,
    "events": 2,
    "unpacking": 2,
    "payload": 2,
    "recurrence": 2,
    "clock": 2,
    "crdt": 2,
    "disk": 3,
    "log": 3,
    "index": 3,
    "engine": 4,
    "recovery": 4,
    "driver": 4,
    "store": 4,
    # What the store's public class is made of.
    "access": 4,
    "batch": 4,
    "backup": 4,
    "care": 4,
    "closing": 4,
    "entropy": 4,
    "layout": 4,
    "leases": 4,
    "opening": 4,
    "planting": 4,
    "pull": 4,
    "replay": 4,
    "report": 4,
    "salvage": 4,
    "scratch": 4,
    "settings": 4,
    "vouch": 4,
    "runtime": 5,
    "peers": 5,
    "clock.ntp": 5,
    "cli": 6,
    "serve": 6,
    "contrib": 6,
    "testing": 6,
}
# The package's own `__init__` re-exports everything below the edges, and `__main__`
# calls the command line. Only the edges may import from them.
ROOT_RING = 5.5
MAIN_RING = 7

# The log knows bytes, not tasks; the index knows rows, not the log.
FORBIDDEN_ROOMS = {
    "log": {"index", "model", "events", "payload", "wheel", "recurrence", "crdt"},
    "index": {"log", "model", "events", "payload", "wheel", "recurrence", "crdt"},
}

ASYNC_MODULES = {"anyio", "asyncio", "trio", "sniffio"}
ASYNC_RING_MIN = 5

# Running bytes from a file as code, or reading objects out of it.
UNSAFE_MODULES = {"marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile"}

TIME_ROOMS = {"clock", "clock.ntp", "testing"}
NOW_CALLS = {"now", "today", "utcnow"}

FILE_ROOMS = {"disk", "cli", "index", "testing"}
FILE_MODULES_EXEMPT = {"clock.system", "clock.waiter"}  # /proc and timer descriptors
FILE_MODULES = {"mmap", "shutil", "tempfile"}
FILE_CALLS_OS = {
    "fdatasync", "fdopen", "fsync", "ftruncate", "link", "makedirs", "mkdir", "open",
    "posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "remove", "rename",
    "renames", "replace", "rmdir", "scandir", "listdir", "symlink", "sync", "truncate",
    "unlink",
}  # fmt: skip
FILE_CALLS_PATH = {"mkdir", "read_bytes", "read_text", "touch", "write_bytes",
                   "write_text"}  # fmt: skip

THREAD_ROOMS = {"driver", "runtime"}
THREAD_NAMES = {
    "Thread", "Timer", "ThreadPoolExecutor", "ThreadPool", "start_new_thread",
}  # fmt: skip


def room_of(module: str) -> str:
    """Return the room of a module named below the package, "" for the package."""
    if module == "clock.ntp":
        return module
    return module.partition(".")[0]


def ring_of(room: str) -> float | None:
    """Return the ring of a room; None if the table doesn't know it."""
    if room == "":
        return ROOT_RING
    if room == "__main__":
        return MAIN_RING
    return RINGS.get(room)


def imports_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) for each name that one statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            yield node.lineno, "." * node.level + (node.module or "")
        elif node.module == "wheeldb":
            for alias in node.names:
                is_room = ring_of(alias.name) is not None
                yield node.lineno, f"wheeldb.{alias.name}" if is_room else "wheeldb"
        elif node.module == "wheeldb.clock":
            for alias in node.names:
                is_ntp = alias.name == "ntp"
                yield node.lineno, "wheeldb.clock.ntp" if is_ntp else node.module
        elif node.module:
            yield node.lineno, node.module


def all_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every import of a module, wherever it stands.

    Imports inside functions and under `TYPE_CHECKING` count too: a module that names
    another depends on it.
    """
    for node in ast.walk(tree):
        yield from imports_of(node)


def rooms_imported(tree: ast.Module) -> set[str]:
    """Return the rooms of this package that a module needs when it runs.

    A lease knows its store, if only by its type: names under `TYPE_CHECKING` make no
    circle. They still must not point upward.
    """
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return {
        room_of(name.partition(".")[2])
        for node in ast.walk(tree)
        if id(node) not in types_only
        for _, name in imports_of(node)
        if name.partition(".")[0] == "wheeldb"
    }


def import_findings(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield what the imports of a module break."""
    room = room_of(module)
    ring = ring_of(room)
    if ring is None:
        yield f"{module}: in no ring; add it to RINGS and say why it stands there"
        return
    for line, name in all_imports(tree):
        top, _, below = name.partition(".")
        where = f"{module}:{line}"
        if top == "":
            yield f"{where}: relative import {name}; write the full name"
        elif top == "wheeldb":
            target = room_of(below)
            target_ring = ring_of(target)
            if target_ring is None:
                yield f"{where}: imports {name}, which is in no ring"
            elif target_ring > ring:
                yield f"{where}: imports {name}, which is above {room or 'wheeldb'}"
            elif target in FORBIDDEN_ROOMS.get(room, set()):
                yield f"{where}: {room} must not know {target}"
        elif top in ASYNC_MODULES and ring < ASYNC_RING_MIN:
            yield f"{where}: imports {name} below the runtime"
        elif top in UNSAFE_MODULES:
            yield f"{where}: imports {name}"
        elif top == "time" and room not in TIME_ROOMS:
            yield f"{where}: imports time; the clock comes in as an argument"
        elif top in FILE_MODULES and not may_open_files(module):
            yield f"{where}: imports {name}; files go through the Disk seam"
        elif top in {"_thread", "multiprocessing"} and room not in THREAD_ROOMS:
            yield f"{where}: imports {name}"


def may_open_files(module: str) -> bool:
    """Return whether a module may call the system's file functions itself."""
    return room_of(module) in FILE_ROOMS or module in FILE_MODULES_EXEMPT


def call_findings(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the calls that a module of this room must not make."""
    room = room_of(module)
    for node in ast.walk(tree):
        # `os.open` counts without a call too: it may be handed on as a value.
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            where = f"{module}:{node.lineno}"
            if owner == "os" and node.attr in FILE_CALLS_OS:
                if not may_open_files(module):
                    yield f"{where}: os.{node.attr}; files go through the Disk seam"
            elif node.attr in THREAD_NAMES and room not in THREAD_ROOMS:
                yield f"{where}: {node.attr}; threads start in driver and runtime only"
        if not isinstance(node, ast.Call):
            continue
        where = f"{module}:{node.lineno}"
        function = node.func
        if isinstance(function, ast.Name):
            if function.id == "open" and not may_open_files(module):
                yield f"{where}: open(); files go through the Disk seam"
            elif function.id in UNSAFE_CALLS:
                yield f"{where}: {function.id}()"
            elif function.id in THREAD_NAMES and room not in THREAD_ROOMS:
                yield f"{where}: {function.id}; threads start in driver and runtime"
        elif isinstance(function, ast.Attribute):
            if function.attr in FILE_CALLS_PATH and not may_open_files(module):
                yield f"{where}: .{function.attr}(); files go through the Disk seam"
            elif (
                function.attr in NOW_CALLS
                and isinstance(function.value, ast.Name)
                and function.value.id in {"datetime", "date"}
                and room not in TIME_ROOMS
            ):
                yield f"{where}: reads the clock; it comes in as an argument"


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the length of a function in lines, without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def shape_findings(module: str, source: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is too long and what isn't said: docstring and `__all__`."""
    lines = source.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{module}: {lines} lines; the limit is {MODULE_LINES_MAX}"
    if ast.get_docstring(tree) is None:
        yield f"{module}: has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = code_lines(node)
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{module}:{node.lineno}: {node.name} has {length} lines; "
                    f"the limit is {FUNCTION_LINES_MAX}"
                )
    if any(part.startswith("_") for part in module.split(".")):
        return
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    exported = exported_names(tree)
    if exported is None:
        if public:
            yield f"{module}: has no __all__ tuple"
        return
    yield from (
        f"{module}: {name} is missing from __all__"
        for name in sorted(public - exported)
    )


def exported_names(tree: ast.Module) -> set[str] | None:
    """Return the names in a module's `__all__`; None without such a tuple."""
    for node in tree.body:
        target: ast.expr
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and target.id == "__all__":
            if not isinstance(node.value, ast.Tuple):
                return None
            return {
                element.value
                for element in node.value.elts
                if isinstance(element, ast.Constant) and isinstance(element.value, str)
            }
    return None


def findings_of(module: str, source: str) -> list[str]:
    """Return every rule that one module breaks.

    Args:
        module: The name below the package, such as "log.frame"; "" is the package.
        source: The module's text.
    """
    tree = ast.parse(source)
    return [
        *import_findings(module, tree),
        *call_findings(module, tree),
        *shape_findings(module, source, tree),
    ]


def circle_of(rooms: dict[str, set[str]]) -> list[str]:
    """Return the rooms of one circle of imports, empty if there is none."""
    graph = {room: imported - {room} for room, imported in rooms.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def module_name(path: Path) -> str:
    """Return the module name of a file, below the package."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def test_every_module_keeps_the_rules() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no modules under {PACKAGE}"

    findings = [
        finding
        for path in files
        for finding in findings_of(module_name(path), path.read_text("utf-8"))
    ]

    assert not findings, "\n" + "\n".join(findings)


def test_no_circle_of_rooms() -> None:
    rooms: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        room = room_of(module_name(path))
        if (ring_of(room) or MAIN_RING) < ROOT_RING:
            rooms.setdefault(room, set()).update(rooms_imported(tree))

    assert circle_of(rooms) == []


GOOD = '''"""A module."""

from wheeldb.errors import WheelDBError

__all__ = ("Part",)


class Part:
    """A part."""

    def name(self) -> str:
        """Return its name."""
        raise WheelDBError
'''


def test_good_module_has_no_findings() -> None:
    assert findings_of("engine.part", GOOD) == []


@pytest.mark.parametrize(
    ("module", "line", "expected"),
    [
        ("wheel", "import wheeldb.disk", "above"),
        ("events", "from wheeldb import store", "above"),
        ("engine.commit", "from wheeldb import open", "above"),
        ("engine.commit", "from wheeldb.runtime.worker import Worker", "above"),
        ("clock.system", "from wheeldb.clock import ntp", "above"),
        ("store", "def _late():\n    import wheeldb.cli", "above"),
        ("store", "import wheeldb.nowhere", "no ring"),
        ("attic", "", "no ring"),
        ("store", "from . import driver", "relative"),
        ("log.frame", "from wheeldb.events import Event", "must not know"),
        ("log.frame", "from wheeldb.index import Index", "must not know"),
        ("index.keys", "from wheeldb.log.frame import Frame", "must not know"),
        ("store", "import anyio", "below the runtime"),
        ("store", "import pickle", "pickle"),
        ("cli.ls", "import marshal", "marshal"),
        ("cli.ls", "eval('1')", "eval"),
        ("engine.state", "import time", "imports time"),
        ("engine.state", "from time import time", "imports time"),
        ("engine.state", "datetime.now(UTC)", "reads the clock"),
        ("engine.state", "open('x')", "Disk seam"),
        ("engine.state", "os.open('x', 0)", "Disk seam"),
        ("engine.state", "sync = os.fsync", "Disk seam"),
        ("log.writer", "os.pwrite(3, b'', 0)", "Disk seam"),
        ("store", "path.write_bytes(b'')", "Disk seam"),
        ("store", "import shutil", "Disk seam"),
        ("store", "threading.Thread(target=print)", "threads"),
        ("cli.demo", "Thread(target=print)", "threads"),
        ("store", "def public():\n    pass", "missing from __all__"),
    ],
)
def test_bad_line_is_found(module: str, line: str, expected: str) -> None:
    source = GOOD + "\n\n" + line + "\n"

    findings = findings_of(module, source)

    assert len(findings) == 1, findings
    assert expected in findings[0]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("disk", "os.pwrite(3, b'', 0)"),
        ("clock.system", "import time"),
        ("driver", "threading.Thread(target=print)"),
        ("runtime.worker", "import anyio"),
        ("runtime.worker", "from wheeldb.store import WheelDB"),
        ("cli.ls", "import wheeldb"),
        ("cli.add", "open('tasks.jsonl')"),
        ("clock.ntp", "from wheeldb.clock import hlc"),
        ("__main__", "from wheeldb.cli import main"),
        ("", "from wheeldb.runtime import Handlers"),
    ],
)
def test_allowed_line_is_not_found(module: str, line: str) -> None:
    assert findings_of(module, GOOD + "\n\n" + line + "\n") == []


def test_too_long_is_found() -> None:
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    function = f'def _long():\n    """Say.\n\n    More.\n    """\n{body}'
    filler = "# a line\n" * MODULE_LINES_MAX

    assert len(findings_of("store", GOOD + function)) == 1
    assert findings_of("store", GOOD + function.replace("    x = 1\n", "", 1)) == []
    assert len(findings_of("store", GOOD + filler)) == 1


def test_missing_docstring_and_all_are_found() -> None:
    assert findings_of("store", "x = 1\n") == ["store: has no docstring"]
    assert findings_of("store", GOOD.replace('("Part",)', '["Part"]')) == [
        "store: has no __all__ tuple"
    ]


def test_only_what_runs_makes_a_circle() -> None:
    source = """
import wheeldb.disk
from wheeldb import store
def late():
    from wheeldb.index import Index
if TYPE_CHECKING:
    from wheeldb.leases import Lease
"""

    assert rooms_imported(ast.parse(source)) == {"disk", "store", "index"}


def test_circle_is_found() -> None:
    assert circle_of({"a": {"b"}, "b": {"c", "b"}, "c": set()}) == []
    assert set(circle_of({"a": {"b"}, "b": {"a"}})) == {"a", "b"}
