"""Fetching Fashion-MNIST: files that are here, Debian's package, torchvision's mirrors; the same checksums for each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from repro.datasets.archives import gunzip_if_needed, read_deb
from repro.datasets.download import Downloads, progress_bar
from repro.datasets.paths import DataError, fetch_command, incoming
from repro.datasets.sources import ImageSource, sha256
from repro.datasets.store import new_set, write_manifest

IMAGES = "fashion-mnist"


def fetch_images(root: Path, source: ImageSource, console: Console, downloads: Downloads) -> None:
    """Fashion-MNIST: files already here, else Debian's package, else torchvision's mirrors.

    Raises:
        DataError: no source gave files with the recorded checksums.
    """
    failures: list[str] = []
    attempts: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
        (f"files in {incoming(root)}", lambda: _images_in(incoming(root), source)),
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
            write_manifest(folder, IMAGES, source.recipe, origin, source.licence, counts)
        console.print(f"{IMAGES}: built from {origin}, checksums right", soft_wrap=True)
        return
    names = ", ".join(f"{file.name}.gz" for file in source.files)
    raise DataError(
        f"{IMAGES} could not be fetched:\n"
        + "\n".join(failures)
        + f"\nTo bring it by hand, put {names} (or the .deb of "
        f"the Debian package {source.package}) into {incoming(root)} and run `{fetch_command(IMAGES, root)}` again."
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
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{IMAGES}-") as name, progress_bar(console) as progress:
        folder = Path(name)
        task = progress.add_task(source.package, total=source.package_bytes)
        if not console.is_terminal:
            console.print(f"{IMAGES}: downloading {source.package} ({source.package_bytes / 1e6:.1f} MB)")
        downloads.debian_package(
            source.package, source.package_bytes, folder, lambda done: progress.update(task, completed=done)
        )
        progress.update(task, completed=source.package_bytes)
        return _images_in(folder, source)


def _images_from_mirrors(source: ImageSource, console: Console, downloads: Downloads) -> dict[str, bytes]:
    with progress_bar(console) as progress:
        task = progress.add_task("torchvision's mirrors", total=None)
        return _verified(
            source,
            lambda name: downloads.mirror_file(
                f"{name}.gz", source.package_bytes, lambda done: progress.update(task, completed=done)
            ),
        )
