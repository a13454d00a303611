"""The tracked list of sources is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repro.datasets.paths import DataError, data_folder
from repro.datasets.sources import content_digest, load_sources

DIGEST = re.compile(r"[0-9a-f]{64}")


def test_every_source_has_pin_licence_and_checksum() -> None:
    sources = load_sources()
    assert len(sources.translation.wheels) == 12
    for wheel in sources.translation.wheels:
        assert re.fullmatch(r"[A-Za-z-]+==[0-9.]+", wheel.requirement)
        assert wheel.licence in {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT"}
        assert DIGEST.fullmatch(wheel.content) and wheel.bytes > 100_000
    assert DIGEST.fullmatch(sources.translation.corpus)
    assert sources.images.licence == "MIT"
    assert {file.name: file.bytes for file in sources.images.files} == {
        "train-images-idx3-ubyte": 16 + 60000 * 784,
        "train-labels-idx1-ubyte": 8 + 60000,
        "t10k-images-idx3-ubyte": 16 + 10000 * 784,
        "t10k-labels-idx1-ubyte": 8 + 10000,
    }
    assert all(DIGEST.fullmatch(file.sha256) for file in sources.images.files)


def test_a_source_without_licence_is_not_offered(tmp_path: Path) -> None:
    text = (data_folder() / "sources.toml").read_text()
    (tmp_path / "sources.toml").write_text(text.replace('licence = "Apache-2.0"\n', "", 1))
    with pytest.raises(DataError, match="licence"):
        load_sources(tmp_path / "sources.toml")


@pytest.mark.parametrize("content", [None, "not toml", "a = 1"])
def test_unreadable_list_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "sources.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"sources\.toml.*Restore it"):
        load_sources(path)


def test_content_digest_depends_on_names_and_contents_only() -> None:
    first = content_digest({"a": b"1", "b": b"2"})
    assert first == content_digest({"b": b"2", "a": b"1"})
    assert len({first, content_digest({"a": b"1", "b": b"3"}), content_digest({"a": b"1", "c": b"2"})}) == 3
