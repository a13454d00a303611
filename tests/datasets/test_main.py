"""The command line of the data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from repro.datasets import __main__ as command
from repro.datasets.fetch_images import IMAGES
from repro.datasets.fetch_translation import TRANSLATION
from repro.datasets.paths import DataError
from repro.datasets.sources import load_sources
from tests.datasets.builders import write_images


def test_status_of_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["status", "--json", "--root", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [IMAGES, "digits", "emoji", "openclipart", TRANSLATION]
    assert [(row["set"], row["present"], row["bytes"]) for row in rows] == [(name, False, 0) for name in names]
    assert all(row["licence"] for row in rows)
    assert command.main(["status", "--root", str(tmp_path)]) == 0
    assert "fashion-mnist" in capsys.readouterr().out


def test_status_says_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path, recipe=load_sources().images.recipe)
    assert command.main(["status", "--json", "--root", str(tmp_path)]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row["present"] and row["counts"] == {"train": 20, "test": 10} and row["bytes"] == 30 * 785 + 2 * 16 + 2 * 8
    assert command.main(["status", "--root", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ([], [IMAGES, "digits", TRANSLATION]),
        (["--only", "images"], [IMAGES]),
        (["--only", "translation", "emoji"], [TRANSLATION, "emoji"]),
        (["--all"], [IMAGES, "digits", "emoji", "openclipart", TRANSLATION]),
    ],
)
def test_fetch_asks_for_the_named_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: list[str], names: list[str]
) -> None:
    asked: list[tuple[list[str], Path]] = []

    def fetch(names: list[str], root: Path, sources: object, console: Console) -> list[DataError]:
        asked.append((names, root))
        return []

    monkeypatch.setattr(command, "fetch", fetch)
    assert command.main(["fetch", "--root", str(tmp_path), *only]) == 0
    assert asked == [(names, tmp_path)]


def test_an_unknown_set_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["fetch", "--root", str(tmp_path), "--only", "cifar"]) == 1
    assert "--only cifar: no such packaged set; there are fashion-mnist, digits" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [DataError("what is missing"), KeyboardInterrupt()])
def test_failure_is_one_message_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    def fetch(*_: object) -> list[DataError]:
        raise failure

    monkeypatch.setattr(command, "fetch", fetch)
    assert command.main(["fetch", "--root", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
