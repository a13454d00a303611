"""Fetching the transfer sets: by hand or by the registry's client, verified, all or nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from repro.datasets.archives import read_npm
from repro.datasets.fetch import present, set_names
from repro.datasets.images import load_images, pixel_statistics
from repro.datasets.paths import DataError
from repro.datasets.picture_recipes import RECIPES
from repro.datasets.pictures import digest, tables
from repro.datasets.sources import Sources, TransferSource, content_digest, load_sources
from tests.datasets.builders import emoji_members, npm, tiny_sources, wheel_members
from tests.datasets.test_fetch import FILES, Network, run

MEMBERS = emoji_members()


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    read = {name: data for name, data in MEMBERS.items() if RECIPES["emoji"].wanted(name)}
    built = digest(tables(RECIPES["emoji"].build(read)))
    source = TransferSource("emoji", "npm", "tiny-emoji@1.0", 1000, 100, 0.1, "Apache-2.0", content_digest(read), built)
    return replace(tiny_sources(tmp_path, wheel_members(["de"], 1), FILES), transfer=(source,))


def test_a_set_is_built_once_and_its_manifest_says_what_it_holds(tmp_path: Path, sources: Sources) -> None:
    root, network = tmp_path / "root", Network(npm=MEMBERS)
    errors, output = run(["emoji"], root, sources, network)
    assert (errors, network.asked) == ([], ["npm"])
    assert "npm package tiny-emoji@1.0" in output and "figures may differ" not in output
    manifest = present("emoji", root, sources)
    assert manifest is not None and (manifest.licence, manifest.source) == ("Apache-2.0", "tiny-emoji@1.0")
    assert {name: manifest.counts[name] for name in ("train", "test", "classes", "skipped")} == {
        "train": 24, "test": 6, "classes": 2, "skipped": 0,
    }  # fmt: skip
    train, test = (load_images("emoji", split, root)[0] for split in ("train", "test"))
    assert (train.shape, test.shape) == ((24, 3, 64, 64), (6, 3, 64, 64))
    assert pixel_statistics("emoji", root) == (manifest.counts["mean"], manifest.counts["std"])
    assert (root / "emoji/licences/README.md").read_bytes() == b"images: Apache-2.0"
    assert sorted(path.name for path in root.iterdir()) == [".lock", "emoji"]
    offline = Network()
    assert run(["emoji"], root, sources, offline)[0] == [] and offline.asked == []


def test_a_file_brought_by_hand_is_used_and_left_there(tmp_path: Path, sources: Sources) -> None:
    root, network = tmp_path / "root", Network()
    (root / "incoming").mkdir(parents=True)
    (root / "incoming/tiny-emoji-1.0.tgz").write_bytes(npm(MEMBERS))
    assert run(["emoji"], root, sources, network)[0] == [] and network.asked == []
    assert (root / "incoming/tiny-emoji-1.0.tgz").exists() and (root / "emoji/manifest.json").exists()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(), r"no npm on this machine\nTo bring it by hand, run `npm pack tiny-emoji@1.0` .* --only emoji"),
        (Network(npm={**MEMBERS, "emoji.json": b"[]"}), "holds other files than recorded for emoji"),
        (Network(npm={}), "holds other files than recorded for emoji"),
    ],
)
def test_what_cannot_be_had_leaves_nothing(tmp_path: Path, sources: Sources, network: Network, message: str) -> None:
    (error,), _ = run(["emoji"], tmp_path / "root", sources, network)
    assert re.search(message, error)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".lock"]


def test_a_set_that_builds_into_something_else_is_kept_with_a_warning(tmp_path: Path, sources: Sources) -> None:
    other = replace(sources, transfer=(replace(sources.transfer[0], built="0" * 64),))
    errors, output = run(["emoji"], tmp_path / "root", other, Network(npm=MEMBERS))
    assert errors == [] and "figures may differ" in output and present("emoji", tmp_path / "root", other) is not None


def test_a_damaged_package_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(npm(MEMBERS)[:5000])
    with pytest.raises(DataError, match="cannot be read as an npm package"):
        read_npm(path, lambda _: True)


def test_the_recorded_sets_have_recipes_and_licences() -> None:
    sources = load_sources()
    assert [source.name for source in sources.transfer] == list(RECIPES)
    assert set_names(sources) == ["fashion-mnist", *RECIPES, "translation"]
    for source in sources.transfer:
        assert source.licence in {"BSD-3-Clause", "Apache-2.0", "public domain"}
        assert len(source.content) == len(source.built) == 64 and source.bytes > 1_000_000
