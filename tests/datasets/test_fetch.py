"""Fetching: order of sources, checksums, nothing half-built, messages that say what to do."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from repro.datasets import corpus as recipe
from repro.datasets.download import Downloads
from repro.datasets.fetch import fetch, present
from repro.datasets.fetch_images import IMAGES
from repro.datasets.fetch_translation import TRANSLATION
from repro.datasets.images import load_images
from repro.datasets.paths import DataError
from repro.datasets.sources import Sources
from repro.datasets.translation import load_pairs
from tests.datasets.builders import deb, gz, idx_files, npm, tiny_sources, wheel_members, write_wheel

MEMBERS = wheel_members(["de", "fr"], 60)
FILES = idx_files()


@dataclass
class Network:
    """A pretended network: what each client finds (None: it fails), and which were asked."""

    wheel: dict[str, bytes] | None = None
    package: bytes | None = None
    mirror: dict[str, bytes] | None = None
    npm: dict[str, bytes] | None = None
    asked: list[str] = field(default_factory=list)

    def downloads(self) -> Downloads:
        return Downloads(self._wheel, self._package, self._mirror, self._npm)

    def _npm(self, requirement: str, size: int, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self.asked.append("npm")
        if self.npm is None:
            raise DataError("there is no npm on this machine")
        (folder / "tiny-emoji-1.0.tgz").write_bytes(npm(self.npm))

    def _wheel(self, requirement: str, size: int, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self.asked.append("pip")
        if self.wheel is None:
            raise DataError("`pip download` failed: no route")
        on_bytes(size)
        write_wheel(folder / "tool-1.0-py3-none-any.whl", self.wheel)

    def _package(self, package: str, size: int, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self.asked.append("apt")
        if self.package is None:
            raise DataError("there is no apt-get on this machine")
        (folder / f"{package}_1_all.deb").write_bytes(self.package)

    def _mirror(self, name: str, size: int, on_bytes: Callable[[int], None]) -> bytes:
        self.asked.append("mirror")
        if self.mirror is None:
            raise DataError("no mirror gave it")
        return self.mirror[name]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setattr(recipe, "HELD_OUT", {"test": 5, "dev": 5})
    return tiny_sources(tmp_path, MEMBERS, FILES)


def run(names: list[str], root: Path, sources: Sources, network: Network) -> tuple[list[str], str]:
    """Errors and output of one fetch."""
    output = io.StringIO()
    errors = fetch(names, root, sources, Console(file=output, width=200), network.downloads())
    return [str(error) for error in errors], output.getvalue()


def failing(error: BaseException) -> Callable[..., None]:
    """A function that raises ``error`` whatever it is given."""

    def fail(*_: object) -> None:
        raise error

    return fail


def package() -> bytes:
    return deb({f"usr/share/tiny/{name}": data for name, data in gz(FILES).items()})


def test_both_sets_are_built_and_the_second_call_needs_no_network(tmp_path: Path, sources: Sources) -> None:
    root = tmp_path / "packaged"
    network = Network(wheel=MEMBERS, package=package())
    errors, output = run([IMAGES, TRANSLATION], root, sources, network)
    assert errors == []
    assert network.asked == ["apt", "pip"]
    assert "will download at most" in output and "Debian package tiny-pictures" in output and "0.0%" in output
    assert "figures may differ" not in output
    assert load_images(root=root)[0].shape == (20, 1, 28, 28)
    assert len(load_pairs(root=root)) == 100 and len(load_pairs(split="test", root=root)) == 10
    assert (root / "translation/licences/tool-1.0.dist-info/LICENSE").read_bytes() == b"do what you like"
    assert sorted(path.name for path in root.iterdir()) == [".lock", "fashion-mnist", "translation"]

    offline = Network()
    errors, output = run([IMAGES, TRANSLATION], root, sources, offline)
    assert (errors, offline.asked) == ([], [])
    assert output.count("nothing to do") == 2 and "will download" not in output


@pytest.mark.parametrize(
    ("network", "asked", "origin"),
    [
        (Network(package=package(), mirror=gz(FILES)), ["apt"], "Debian package tiny-pictures"),
        (Network(mirror=gz(FILES)), ["apt"] + ["mirror"] * 4, "torchvision's mirrors"),
        (Network(package=deb({}), mirror=gz(FILES)), ["apt"] + ["mirror"] * 4, "torchvision's mirrors"),
        (Network(package=b"damaged", mirror=gz(FILES)), ["apt"] + ["mirror"] * 4, "torchvision's mirrors"),
    ],
)
def test_images_come_from_the_first_source_that_is_right(
    tmp_path: Path, sources: Sources, network: Network, asked: list[str], origin: str
) -> None:
    errors, output = run([IMAGES], tmp_path / "root", sources, network)
    assert (errors, network.asked) == ([], asked)
    assert f"built from {origin}" in output
    manifest = present(IMAGES, tmp_path / "root", sources)
    assert manifest is not None and manifest.source == origin and manifest.counts == {"train": 20, "test": 10}


@pytest.mark.parametrize("kind", ["compressed", "plain", "package"])
def test_images_brought_by_hand_need_no_network(tmp_path: Path, sources: Sources, kind: str) -> None:
    incoming = tmp_path / "root" / "incoming"
    incoming.mkdir(parents=True)
    brought = {"compressed": gz(FILES), "plain": FILES, "package": {"tiny-pictures_1_all.deb": package()}}[kind]
    for name, data in brought.items():
        (incoming / name).write_bytes(data)
    network = Network()
    assert run([IMAGES], tmp_path / "root", sources, network)[0] == []
    assert network.asked == []
    assert sorted(path.name for path in incoming.iterdir()) == sorted(brought)


def test_wheel_brought_by_hand_needs_no_network(tmp_path: Path, sources: Sources) -> None:
    incoming = tmp_path / "root" / "incoming"
    incoming.mkdir(parents=True)
    write_wheel(incoming / "Tool-1.0-py3-none-any.whl", MEMBERS)
    network = Network()
    assert run([TRANSLATION], tmp_path / "root", sources, network)[0] == []
    assert network.asked == []


def test_no_network_leaves_nothing_and_says_what_is_missing(tmp_path: Path, sources: Sources) -> None:
    root = tmp_path / "root"
    errors, _ = run([IMAGES, TRANSLATION], root, sources, Network())
    images, translation = errors
    assert "train-images-idx3-ubyte.gz" in images and "tiny-pictures" in images and "no apt-get" in images
    assert f"into {root / 'incoming'}" in images and f"fetch --only images --root {root}` again" in images
    assert "Missing are 1 of 1 wheels: tool==1.0." in translation and "no route" in translation
    assert f"--dest {root / 'incoming'} tool==1.0" in translation
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_one_set_is_built_though_the_other_fails(tmp_path: Path, sources: Sources) -> None:
    errors, _ = run([IMAGES, TRANSLATION], tmp_path / "root", sources, Network(wheel=MEMBERS))
    assert len(errors) == 1 and "fashion-mnist could not be fetched" in errors[0]
    assert present(TRANSLATION, tmp_path / "root", sources) is not None


def test_wheel_with_other_contents_is_refused_and_deleted(tmp_path: Path, sources: Sources) -> None:
    root = tmp_path / "root"
    other = wheel_members(["de", "fr"], 61)
    errors, _ = run([TRANSLATION], root, sources, Network(wheel=other))
    assert len(errors) == 1 and "other files than recorded for tool==1.0" in errors[0]
    assert [path.name for path in root.iterdir()] == [".lock"]
    assert run([TRANSLATION], root, sources, Network(wheel=MEMBERS))[0] == []


def test_a_changed_picture_is_refused_whatever_its_source(tmp_path: Path, sources: Sources) -> None:
    changed = {**FILES, "train-images-idx3-ubyte": FILES["train-images-idx3-ubyte"][:-1] + b"\x01"}
    network = Network(package=deb({f"x/{name}": data for name, data in gz(changed).items()}), mirror=gz(changed))
    errors, _ = run([IMAGES], tmp_path / "root", sources, network)
    assert len(errors) == 1 and errors[0].count("train-images-idx3-ubyte has SHA-256") == 2
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".lock"]


def test_damaged_compression_is_reported(tmp_path: Path, sources: Sources) -> None:
    broken = {name: data[:-9] for name, data in gz(FILES).items()}
    errors, _ = run([IMAGES], tmp_path / "root", sources, Network(mirror=broken))
    assert len(errors) == 1 and "is damaged" in errors[0]


def test_wheels_that_arrived_are_kept_for_the_next_attempt(tmp_path: Path, sources: Sources) -> None:
    """Two wheels, the second cannot be had: the first is not downloaded again."""
    wheels = (*sources.translation.wheels, type(sources.translation.wheels[0])("late==2.0", 10, "MIT", "0" * 64))
    both = Sources(sources.images, type(sources.translation)(wheels, sources.translation.corpus))
    root, asked = tmp_path / "root", []

    def wheel(requirement: str, size: int, folder: Path, on_bytes: Callable[[int], None]) -> None:
        asked.append(requirement)
        if requirement == "late==2.0":
            raise DataError("cut off")
        write_wheel(folder / "tool-1.0-py3-none-any.whl", MEMBERS)

    downloads = Downloads(wheel, Network()._package, Network()._mirror)
    for _ in range(2):
        (error,) = fetch([TRANSLATION], root, both, Console(file=io.StringIO()), downloads)
        assert "Missing are 1 of 2 wheels: late==2.0" in str(error)
    assert asked == ["tool==1.0", "late==2.0", "late==2.0"]
    assert not (root / TRANSLATION).exists()


def test_interrupted_build_leaves_the_old_set(
    tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    assert run([TRANSLATION], root, sources, Network(wheel=MEMBERS))[0] == []
    before = (root / TRANSLATION / "manifest.json").read_bytes()
    newer = Sources(sources.images, type(sources.translation)(sources.translation.wheels, "1" * 64))
    assert present(TRANSLATION, root, newer) is None, "another recorded digest means that it is built again"
    monkeypatch.setattr(
        "repro.datasets.fetch_translation.write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run([TRANSLATION], root, newer, Network(wheel=MEMBERS))
    assert (root / TRANSLATION / "manifest.json").read_bytes() == before
    assert [path.name for path in root.iterdir() if path.name.startswith(".translation")] == []
    monkeypatch.undo()
    monkeypatch.setattr(recipe, "HELD_OUT", {"test": 5, "dev": 5})
    errors, output = run([TRANSLATION], root, newer, Network())
    assert errors == [] and "figures may differ" in output, "the wheel that had arrived is used"
    assert present(TRANSLATION, root, newer) is not None


def test_a_damaged_set_is_built_again(tmp_path: Path, sources: Sources) -> None:
    root, network = tmp_path / "root", Network(wheel=MEMBERS)
    run([TRANSLATION], root, sources, network)
    (root / TRANSLATION / "de.tsv.gz").write_bytes(gzip.compress(b"cut"))
    assert present(TRANSLATION, root, sources) is None
    assert run([TRANSLATION], root, sources, network)[0] == []
    assert network.asked == ["pip", "pip"]
    assert len(load_pairs(["de"], root=root)) == 50


def test_a_full_disk_is_one_message_and_leaves_nothing(
    tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.datasets.fetch_images.write_manifest", failing(OSError(28, "No space left on device")))
    errors, _ = run([IMAGES, TRANSLATION], tmp_path / "root", sources, Network(wheel=MEMBERS, mirror=gz(FILES)))
    assert len(errors) == 1 and "fashion-mnist could not be built" in errors[0] and "No space left" in errors[0]
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [".lock", "translation"]
