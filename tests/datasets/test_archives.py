"""Wheels, Debian packages and gettext catalogues are read as they lie."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from repro.datasets.archives import find_wheel, gunzip_if_needed, read_catalogue, read_deb, read_wheel
from repro.datasets.paths import DataError
from tests.datasets.builders import catalogue, deb, write_wheel


def test_wheel_gives_wanted_members_only(tmp_path: Path) -> None:
    write_wheel(tmp_path / "a.whl", {"b.mo": b"2", "a.mo": b"1", "c.py": b"3"})
    assert read_wheel(tmp_path / "a.whl", lambda name: name.endswith(".mo")) == {"a.mo": b"1", "b.mo": b"2"}


def test_damaged_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"a\.whl cannot be read"):
        read_wheel(tmp_path / "a.whl", lambda name: True)


@pytest.mark.parametrize(
    ("file", "requirement", "found"),
    [
        ("Some_Tool-1.0-py3-none-any.whl", "some-tool==1.0", True),
        ("some.tool-1.0-py3-none-any.whl", "Some-Tool==1.0", True),
        ("some_tool-1.0.1-py3-none-any.whl", "some-tool==1.0", False),
        ("some_tool_extra-1.0-py3-none-any.whl", "some-tool==1.0", False),
        ("notes.whl", "some-tool==1.0", False),
    ],
)
def test_wheel_is_found_however_it_is_spelled(tmp_path: Path, file: str, requirement: str, found: bool) -> None:
    (tmp_path / file).touch()
    assert find_wheel(tmp_path, requirement) == (tmp_path / file if found else None)


def test_debian_package_is_unpacked_without_dpkg(tmp_path: Path) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(deb({"usr/share/x": b"odd", "usr/share/y": b"four", "etc/z": b""}))
    assert read_deb(path, lambda name: name.startswith("usr/")) == {"usr/share/x": b"odd", "usr/share/y": b"four"}


@pytest.mark.parametrize("content", [b"nothing", b"!<arch>\n", deb({})[:90], b"!<arch>\n" + b"x" * 60])
def test_damaged_debian_package_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.deb").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.deb"):
        read_deb(tmp_path / "a.deb", lambda name: True)


@pytest.mark.parametrize("order", ["<", ">"])
def test_catalogue(order: str) -> None:
    data = catalogue(
        [
            ("", "Content-Type: text/plain"),
            ("Open", "Öffnen"),
            ("menu\x04Close", "Schließen"),
            ("%d file\0%d files", "%d Datei\0%d Dateien"),
            ("%d day\0%d days", "%d 日"),
            ("untranslated", ""),
        ],
        order,
    )
    assert read_catalogue(data) == [
        ("Open", "Öffnen"),
        ("Close", "Schließen"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("%d days", "%d 日"),
    ]


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 40])
def test_not_a_catalogue(data: bytes) -> None:
    with pytest.raises(ValueError, match="catalogue"):
        read_catalogue(data)


def test_gunzip_only_what_is_compressed() -> None:
    assert gunzip_if_needed(gzip.compress(b"abc")) == gunzip_if_needed(b"abc") == b"abc"
