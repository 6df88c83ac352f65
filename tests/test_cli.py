"""The command line from end to end: words in, lines and an exit status out.

Method: `main` is called as the entry point calls it, on real stores in a temporary
directory. Tasks lie hours ahead, so that no test depends on how fast time passes.
"""

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zoneinfo
from collections.abc import Callable
from pathlib import Path

import pytest

import wheeldb
from wheeldb.cli import VERBS, main, stat
from wheeldb.cli.arguments import Parser
from wheeldb.cli.opening import ExitStatus
from wheeldb.layout import RELEASE

Say = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command line; return exit status, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def store(tmp_path: Path, say: Say) -> Path:
    """A store with one task, `valve-7`, in an hour."""
    path = tmp_path / "gateway.wheeldb"
    status, _, err = say(
        "add", path, "valve.close", '{"valve": 7}', "--delay", "1h", "--id", "valve-7",
        "--queue", "valves", "--create",
    )  # fmt: skip
    assert status == ExitStatus.FINE, err
    return path


def test_every_verb_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit) as stopped:
            main([verb, "--help"])
        assert stopped.value.code == 0
        help_text = capsys.readouterr().out
        assert "usage: wheeldb " + verb in help_text
        assert "--json" in help_text


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_has_help(verb: str) -> None:
    parser = Parser(prog=f"wheeldb {verb}")
    module = importlib.import_module(f"wheeldb.cli.{verb.replace('-', '_')}")
    module.configure(parser)

    assert [action.dest for action in parser._actions if not action.help] == []


def test_demo_without_time_zones(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tzdata", "tzdata.zoneinfo.America"):
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(())
    try:
        status, out, err = say("demo")
    finally:
        zoneinfo.reset_tzpath()

    assert (status, out) == (ExitStatus.CANNOT_OPEN, "")
    assert "install tzdata" in err
    assert err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])

    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"wheeldb {RELEASE}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["add", "x", "name"],
        ["add", "x", "name", "--delay", "5"],
        ["add", "x", "name", "--delay", "5m", "--at", "2027-01-01T00:00Z"],
        ["add", "x", "name", "not json", "--delay", "5m"],
        ["add", "x", "name", "--at", "2027-01-01T00:00"],
        ["ls", ""],
        ["add", "", "name", "--delay", "5m", "--create"],
        ["ls", "x", "--state", "asleep"],
        ["ls", "x", "--lim", "5"],
        ["revive", "x"],
        ["revive", "x", "id", "--queue", "q"],
        ["bench", "--seconds", "0"],
        ["demo", "--hour", "0"],
    ],
)
def test_usage_is_one_line_and_exit_2(say: Say, words: list[str]) -> None:
    status, out, err = say(*words)

    assert status == ExitStatus.USAGE
    assert out == ""
    assert err.startswith("wheeldb")
    assert err.count("\n") == 1


def test_arguments_the_store_refuses_are_usage_too(say: Say, store: Path) -> None:
    status, _, err = say("add", store, "x", "--delay", "1h", "--id", "x" * 256)

    assert status == ExitStatus.USAGE
    assert "255" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "x", "--delay", "2h", "--id", "valve-7"], "--if-exists replace"),
        (["add", "x", "--delay", "2h", "--id", "valve-7"], "a higher --version"),
        (["add", "x", "--delay", "1h", "--version", "-1"], "--version is -1"),
        (["add", "x", "--delay", "999999w"], "--delay is 6999993 days"),
        (["add", "x", "--delay", "1h", "--expires", "999999w"], "--expires is 6999993"),
        (["add", "x", "--delay", "1h", "--lease", "0s"], "--lease is 0:00:00"),
        (["add", "x", '"' + "x" * 70_000 + '"', "--delay", "1h"], "65536 are allowed"),
        (["reschedule", "valve-7", "--delay", "1s", "--expect-lsn", "99"], "not 99"),
        (["reschedule", "valve-7", "--delay", "1s", "--expect-lsn", "-1"], "--expect-"),
        (["ls", "--limit", "-1"], "--limit is -1"),
        (["ls", "--after", "nobody"], "no task has the id"),
        (["dump", "--from-lsn", "-1"], "--from-lsn: '-1' is not a position"),
    ],
)
def test_errors_speak_of_options_and_verbs(
    say: Say, store: Path, words: list[str], told: str
) -> None:
    status, out, err = say(words[0], store, *words[1:])

    assert status != ExitStatus.FINE
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert not re.search(r"\w_\w|=[\"']|wheeldb\.|db\.|timedelta|Task\b", err), err


def test_so_do_those_about_owners_and_backups(
    say: Say, store: Path, tmp_path: Path
) -> None:
    assert say("backup", store, tmp_path / "b")[0] == ExitStatus.FINE
    with wheeldb.open(store, driver=False):
        _, _, locked = say("cancel", store, "valve-7")
    _, _, backup = say("ls", tmp_path / "b")
    _, _, no_backup = say("restore", store, tmp_path / "r")
    assert "stop that" in locked
    assert "`wheeldb restore BACKUP DEST`" in backup
    assert "`wheeldb backup DIR DEST`" in no_backup
    for err in (locked, backup, no_backup):
        assert "wheeldb." not in err.replace(str(store), "")
        assert "db." not in err.replace(str(store), "")


def test_an_id_that_is_no_text_is_usage_too(say: Say, store: Path) -> None:
    for words in (["show", store, "\udcff"], ["dump", store, "--task", "\udcff"]):
        status, out, err = say(*words)

        assert status == ExitStatus.USAGE
        assert out == ""
        assert err.count("\n") == 1


def test_a_path_that_is_no_utf_8_is_usage_too(
    say: Say, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir(tmp_path)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/q\xff")
    for words in (
        ["add", odd, "x", "--delay", "1h", "--create"],
        ["ls", odd],
        ["cancel", odd, "x"],
        ["backup", store, odd],
        ["replay", store, "--to", odd],
        ["demo", "--directory", odd],
    ):
        status, out, err = say(*words)

        assert (status, out) == (ExitStatus.USAGE, "")
        assert "is not UTF-8" in err
        assert err.count("\n") == 1
    assert os.listdir(tmp_path) == before
    os.mkdir(odd)
    monkeypatch.chdir(odd)
    for words in (["ls", "x"], ["bench"]):
        assert say(*words)[0] == ExitStatus.USAGE
    assert os.listdir(odd) == []


def test_add_prints_the_id_and_is_idempotent(say: Say, store: Path) -> None:
    words = ("add", store, "report.send", "--at", "2999-01-01T00:00Z", "--id", "r")

    status, out, err = say(*words)
    assert (status, out) == (ExitStatus.FINE, "r\n")
    assert "due 2999-01-01 00:00:00.000Z" in err

    status, out, err = say(*words)
    assert (status, out) == (ExitStatus.FINE, "r\n")
    assert "already" in err

    status, out, err = say(*words[:3], "--delay", "1h", "--id", "r")
    assert status == ExitStatus.FINDINGS
    assert out == ""

    status, out, _ = say(*words[:3], "--delay", "1h", "--id", "r",
                         "--if-exists", "replace", "--json")  # fmt: skip
    assert status == ExitStatus.FINE
    assert json.loads(out)["created"] is True


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--id", ""], ExitStatus.USAGE),
        (["--id", "t" + "0" * 14], ExitStatus.USAGE),
        (["--id", "x" * 256], ExitStatus.USAGE),
        (["--version", "-1"], ExitStatus.USAGE),
        (["--queue", ""], ExitStatus.USAGE),
        (["--tag", ""], ExitStatus.USAGE),
        (["--header", "a=" + "x" * 10_000], ExitStatus.USAGE),
        (["--lease", "0s"], ExitStatus.USAGE),
        (["--delay", "999999w"], ExitStatus.USAGE),
        (['"' + "x" * 70_000 + '"'], ExitStatus.FINDINGS),
    ],
)
def test_add_that_is_refused_makes_no_store(
    say: Say, tmp_path: Path, words: list[str], status: ExitStatus
) -> None:
    due = [] if "--delay" in words else ["--delay", "1h"]

    got, out, err = say("add", tmp_path / "new", "task", *words, *due, "--create")

    assert (got, out) == (status, "")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_add_without_create_makes_no_store(say: Say, tmp_path: Path) -> None:
    status, out, err = say("add", tmp_path / "typo", "x", "--delay", "1h")

    assert status == ExitStatus.CANNOT_OPEN
    assert out == ""
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["ls", "stat", "check", "dump"])
def test_missing_store_is_exit_3(say: Say, tmp_path: Path, verb: str) -> None:
    status, out, err = say(verb, tmp_path / "missing")

    assert (status, out) == (ExitStatus.CANNOT_OPEN, "")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_directory_of_something_else_is_exit_3(say: Say, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")

    status, _, _ = say("ls", tmp_path)

    assert status == ExitStatus.CANNOT_OPEN
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_ls(say: Say, store: Path) -> None:
    status, out, err = say("ls", store)
    assert status == ExitStatus.FINE
    head, row = out.splitlines()
    assert head.split() == ["ID", "NAME", "QUEUE", "STATE", "DUE", "ATTEMPTS", "HELD"]
    assert row.split()[:4] == ["valve-7", "valve.close", "valves", "scheduled"]
    assert err == "1 task\n"

    status, out, _ = say("ls", store, "--json")
    task = json.loads(out)
    assert (task["id"], task["payload"]) == ("valve-7", {"valve": 7})

    assert say("ls", store, "--queue", "other", "--json")[:2] == (ExitStatus.FINE, "")


def test_reading_works_beside_an_owner(say: Say, store: Path) -> None:
    with wheeldb.open(str(store), driver=False):
        assert say("ls", store)[0] == ExitStatus.FINE
        assert say("check", store)[0] == ExitStatus.FINE

        status, _, err = say("cancel", store, "valve-7")
        assert status == ExitStatus.CANNOT_OPEN
        assert str(os.getpid()) in err


def test_show(say: Say, store: Path) -> None:
    status, out, _ = say("show", store, "valve-7")
    assert status == ExitStatus.FINE
    assert "valve.close" in out
    assert "scheduled" in out

    shown = json.loads(say("show", store, "valve-7", "--json")[1])
    assert shown["task"]["queue"] == "valves"
    assert [event["kind"] for event in shown["history"]] == ["scheduled"]

    status, out, err = say("show", store, "valve-8")
    assert (status, out) == (ExitStatus.FINDINGS, "")
    assert "valve-8" in err


def test_cancel(say: Say, store: Path) -> None:
    status, out, _ = say("cancel", store, "valve-7", "valve-8", "--json")
    assert status == ExitStatus.FINDINGS
    outcomes = [json.loads(line) for line in out.splitlines()]
    assert outcomes == [
        {"id": "valve-7", "outcome": "cancelled"},
        {"id": "valve-8", "outcome": "unknown"},
    ]

    assert say("cancel", store, "valve-7")[0] == ExitStatus.FINE
    assert say("ls", store, "--json")[1] == ""
    cancelled = say("ls", store, "--state", "cancelled", "--json")[1]
    assert json.loads(cancelled)["id"] == "valve-7"


def test_reschedule(say: Say, store: Path) -> None:
    at = "2999-01-01T00:00Z"

    status, out, _ = say("reschedule", store, "valve-7", "--at", at)
    assert (status, out) == (ExitStatus.FINE, "2999-01-01 00:00:00.000Z\n")

    status, out, _ = say("reschedule", store, "valve-8", "--delay", "5m")
    assert (status, out) == (ExitStatus.FINDINGS, "")


def test_pause_and_resume(say: Say, store: Path) -> None:
    assert say("pause", store, "valve-7")[0] == ExitStatus.FINE
    assert json.loads(say("ls", store, "--json")[1])["state"] == "paused"
    assert say("resume", store, "valve-7")[0] == ExitStatus.FINE
    assert json.loads(say("ls", store, "--json")[1])["state"] == "scheduled"

    assert say("pause", store, "--queue", "valves")[0] == ExitStatus.FINE
    assert say("resume", store, "--queue", "valves", "--now")[0] == ExitStatus.FINE

    assert say("pause", store, "valve-8")[0] == ExitStatus.FINDINGS


def test_run_now(say: Say, store: Path) -> None:
    assert say("run-now", store, "valve-7")[0] == ExitStatus.FINE
    with wheeldb.open(str(store), driver=False) as db:
        db.poll()
        assert [lease.id for lease in db.lease("valves")] == ["valve-7"]

    assert say("run-now", store, "valve-8")[0] == ExitStatus.FINDINGS


def test_revive(say: Say, store: Path) -> None:
    say("run-now", store, "valve-7")
    with wheeldb.open(str(store), driver=False) as db:
        db.poll()
        for lease in db.lease("valves"):
            lease.reject("stuck")
    assert json.loads(say("ls", store, "--json")[1])["state"] == "dead"

    assert say("revive", store, "--queue", "valves")[0] == ExitStatus.FINE
    assert json.loads(say("ls", store, "--json")[1])["state"] in {"scheduled", "due"}

    assert say("revive", store, "valve-8")[0] == ExitStatus.FINDINGS


def test_changes_say_who_made_them(say: Say, store: Path) -> None:
    say("cancel", store, "valve-7")

    events = map(json.loads, say("dump", store, "--task", "valve-7")[1].splitlines())

    assert {event["by"] for event in events} == {f"command line, uid {os.getuid()}"}


def test_stat_leaves_out_what_a_reader_can_not_know(store: Path) -> None:
    with wheeldb.open(store, readonly=True) as db:
        statistics = db.statistics()

    left_out = {
        field.name: getattr(statistics, field.name)
        for field in dataclasses.fields(statistics)
        if field.name not in stat.FIELDS
    }
    assert not any(left_out.values()), left_out


def test_stat_check_dump(say: Say, store: Path) -> None:
    status, out, _ = say("stat", store, "--json")
    numbers = json.loads(out)
    assert status == ExitStatus.FINE
    assert numbers["pending"] == {"valves": {"scheduled": 1}}
    assert "pending_count   1" in say("stat", store)[1]

    assert say("check", store) == (ExitStatus.FINE, "", "OK\n")

    status, out, _ = say("dump", store)
    events = [json.loads(line) for line in out.splitlines()]
    assert status == ExitStatus.FINE
    assert "scheduled" in {event["kind"] for event in events}
    lsns = [event["lsn"] for event in events]
    assert lsns == sorted(lsns)

    some = say("dump", store, "--from-lsn", lsns[-1])[1].splitlines()
    assert {json.loads(line)["lsn"] for line in some} == {lsns[-1]}
    one = say("dump", store, "--task", "valve-7")[1].splitlines()
    assert {json.loads(line)["id"] for line in one} == {"valve-7"}


def test_looking_changes_nothing(say: Say, store: Path) -> None:
    def content() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted(store.rglob("*"))
            if path.is_file() and path.name != "lock.mdb"
        }

    before = content()
    for words in (["ls"], ["stat"], ["check"], ["dump"]):
        assert say(*words, store)[0] == ExitStatus.FINE, words
    assert say("show", store, "valve-7")[0] == ExitStatus.FINE

    assert content() == before


@pytest.fixture
def damaged(say: Say, store: Path) -> Path:
    """A store with a damaged event, and nothing else to read it from."""
    for number in range(9):
        say("add", store, "x", "--delay", "1h", "--id", f"other-{number}")
    for kept in ("index", "snapshots"):
        shutil.rmtree(store / kept)
        (store / kept).mkdir(0o700)
    for segment in (store / "log").glob("*.seg"):
        segment.write_bytes(segment.read_bytes().replace(b"other-4", b"0ther-4"))
    return store


def test_damage_is_exit_4(say: Say, damaged: Path) -> None:
    for words in (["ls"], ["check"], ["cancel", "valve-7"]):
        status, out, err = say(words[0], damaged, *words[1:])

        assert (status, out) == (ExitStatus.CORRUPT, "")
        assert err.count("\n") == 1
        assert ".seg at byte" in err


def test_bench(say: Say, tmp_path: Path) -> None:
    status, out, _ = say("bench", tmp_path, "--seconds", "0.01", "--json")

    assert status == ExitStatus.FINE
    rates = [json.loads(line) for line in out.splitlines()]
    assert [rate["what"] for rate in rates] == [
        "write + sync", "schedule", "schedule_many", "lease and ack",
    ]  # fmt: skip
    assert all(rate["per_second"] > 0 for rate in rates)
    assert list(tmp_path.iterdir()) == []


def test_reader_that_goes_away_is_no_traceback(store: Path) -> None:
    command = [sys.executable, "-m", "wheeldb", "ls", str(store)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)

    assert done.returncode == ExitStatus.FINDINGS
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["stat", "--json"],
        ["add", "x", "--delay", "1h", "--id", "new"],
        ["cancel", "valve-7"],
        ["pause", "valve-7"],
    ],
)
def test_without_a_stdout_nothing_is_done(store: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wheeldb", words[0], str(store), *words[1:]],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
        check=False,
    )

    assert done.returncode == ExitStatus.CANNOT_OPEN
    assert done.stderr == b"wheeldb: stdout is closed; send it to /dev/null instead\n"
    with wheeldb.open(store, readonly=True) as db:
        assert [(task.id, task.state) for task in db.tasks()] == [
            ("valve-7", "scheduled")
        ]


def test_without_a_stderr_talk_is_no_data(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wheeldb", "cancel", str(store), "valve-7", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.close(2),
        check=False,
    )
    listed = subprocess.run(
        [sys.executable, "-m", "wheeldb", "ls", str(store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.close(2),
        check=False,
    )

    assert done.returncode == listed.returncode == ExitStatus.FINE
    assert json.loads(done.stdout)["outcome"] == "cancelled"
    assert len(listed.stdout.splitlines()) == 1, listed.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a store away")
def test_root_writes_as_the_owner() -> None:
    owner = 4_711
    # Not below pytest's own directory, which only root may enter.
    with tempfile.TemporaryDirectory() as parent:
        store = Path(parent) / "gateway.wheeldb"
        main(["add", str(store), "x", "--delay", "1h", "--id", "x", "--create"])
        for path in [Path(parent), store, *store.rglob("*")]:
            os.chown(path, owner, owner)

        # In a process of its own: taking on another user is for good.
        done = subprocess.run(
            [sys.executable, "-m", "wheeldb", "cancel", str(store), "x"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == ExitStatus.FINE, done.stderr
        owners = {path.stat().st_uid for path in [store, *store.rglob("*")]}
        assert owners == {owner}


def test_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, say: Say, store: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)

    status, out, err = say("cancel", store, "valve-7")

    assert (status, out) == (ExitStatus.CANNOT_OPEN, "")
    assert "sudo -u" in err
