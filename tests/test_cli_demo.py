"""The demo tells its story and comes to its verdict."""

import json
from pathlib import Path

import pytest

from wheeldb.cli import main


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_demo_keeps_every_promise(
    capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    status = main(["demo", "--json", "--hour", "0.25", "--seed", str(seed)])

    story = json.loads(capsys.readouterr().out)
    assert status == 0, story
    assert story["ok"] is True
    assert story["failure"] is None
    assert len(story["kills"]) == 2
    assert len(story["recoveries"]) == 3
    assert [tally["fired"] for tally in story["tallies"].values()] == [842, 842, 300]


def test_demo_never_touches_what_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()

    assert main(["demo", "--directory", str(tmp_path)]) == 3

    assert "exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
