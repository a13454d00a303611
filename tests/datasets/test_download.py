"""The clients are run in bounded time, and their failure becomes one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from repro.datasets import download
from repro.datasets.paths import DataError


def stand_in(path: Path, body: str) -> str:
    """An executable that stands in for python -m pip or apt-get."""
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}")
    path.chmod(0o755)
    return str(path)


def test_wheel_arrives_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "target = sys.argv[sys.argv.index('--dest') + 1]\nos.makedirs(target)\n"
        "assert sys.argv[-1] == 'tool==1.0' and '--no-deps' in sys.argv and ':all:' in sys.argv\n"
        "open(os.path.join(target, 'tool-1.0-py3-none-any.whl'), 'w').write('wheel')\n"
    )
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", body))
    folder = tmp_path / "folder"
    folder.mkdir()
    download.download_wheel("tool==1.0", 5, folder, lambda _: None)
    assert [path.name for path in folder.iterdir()] == ["tool-1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "print('noise')\nsys.exit('ERROR: no such version')",
            "`pip download tool==1.0` failed: ERROR: no such version",
        ),
        (
            "print('WARNING: connection broken')\nsys.exit('ERROR: no such version')",
            "(no connection: is there a network?)",
        ),
        ("sys.exit(3)", "failed: no output"),
        ("", "pip downloaded no wheel for tool==1.0"),
    ],
)
def test_pip_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", body))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(DataError) as raised:
        download.download_wheel("tool==1.0", 5, folder, lambda _: None)
    assert message in str(raised.value)
    assert list(folder.iterdir()) == []


def test_a_client_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", "time.sleep(600)"))
    monkeypatch.setattr(download, "_time_limit", lambda size: 0.3)
    with pytest.raises(DataError, match="took more than"):
        download.download_wheel("tool==1.0", 5, tmp_path, lambda _: None)


APT = """
private = any(word.startswith('Dir::State::Lists=') for word in sys.argv)
if sys.argv[-1] == 'update':
    assert private
    sys.exit('E: one of the sources did not answer')
if not private:
    sys.exit('E: Unable to locate package')
open('tiny-pictures_1_all.deb', 'w').write('package')
"""


def test_empty_package_lists_are_fetched_into_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin" / "apt-get", APT)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "folder"
    folder.mkdir()
    download.download_debian_package("tiny-pictures", 7, folder, lambda _: None)
    assert [path.name for path in folder.iterdir()] == ["tiny-pictures_1_all.deb"]


def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="no apt-get"):
        download.download_debian_package("tiny-pictures", 7, tmp_path, lambda _: None)


def test_mirrors_are_tried_in_turn(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file.gz").write_bytes(b"content")
    mirrors = [f"{(tmp_path / name).as_uri()}/" for name in ("a", "b")]
    arrived: list[int] = []
    assert download.download_from_mirrors(mirrors, "file.gz", 7, arrived.append) == b"content"
    assert arrived == [7]
    with pytest.raises(DataError, match=r"no mirror gave other\.gz"):
        download.download_from_mirrors(mirrors, "other.gz", 7, arrived.append)
    with pytest.raises(DataError, match="none is known"):
        download.download_from_mirrors([], "other.gz", 7, arrived.append)
