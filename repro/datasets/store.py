"""How packaged sets lie on disk: a folder per set, put in place in one step, with a manifest of what it holds."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.datasets.corpus import Corpus
from repro.datasets.paths import DataError
from repro.datasets.sources import sha256

MANIFEST = "manifest.json"
ENGLISH = "english.tsv.gz"


@dataclass(frozen=True)
class Manifest:
    """What a packaged set says about itself.

    Attributes:
        name: name of the set, also that of its folder.
        recipe: digest of everything it was built from; another one means that it has to be built again.
        source: where the data came from.
        licence: SPDX identifiers.
        files: size in bytes of every file.
        counts: numbers worth showing (pictures, sentences, languages, ...).
    """

    name: str
    recipe: str
    source: str
    licence: str
    files: dict[str, int]
    counts: dict[str, int | float]


def read_manifest(root: Path, name: str) -> Manifest | None:
    """The manifest of the set ``name`` below ``root``, or None where it is absent or one of its files is damaged."""
    folder = root / name
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        complete = all((folder / file).stat().st_size == size for file, size in manifest.files.items())
    except (OSError, ValueError, TypeError):
        return None
    return manifest if complete else None


@contextlib.contextmanager
def new_set(root: Path, name: str) -> Iterator[Path]:
    """A temporary folder that becomes ``root/name`` if the block succeeds, and vanishes if it does not."""
    temporary = Path(tempfile.mkdtemp(dir=root, prefix=f".{name}-"))
    try:
        yield temporary
        temporary.chmod(0o755)
        old = root / name
        if old.exists():
            outdated = Path(tempfile.mkdtemp(dir=root, prefix=f".old-{name}-"))
            os.replace(old, outdated / name)
            os.replace(temporary, old)
            shutil.rmtree(outdated)
        else:
            os.replace(temporary, old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_licences(folder: Path, licences: Mapping[str, bytes]) -> None:
    """Write the licences of a set, by their paths in what was fetched, below ``licences`` of its ``folder``."""
    for name, data in licences.items():
        target = folder / "licences" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def write_manifest(
    folder: Path, name: str, recipe: str, source: str, licence: str, counts: dict[str, int | float]
) -> None:
    """Write the manifest of the files that are in ``folder`` now."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
    manifest = Manifest(name, recipe, source, licence, files, counts)
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep a second fetch into the same root waiting until the first is done."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def corpus_files(corpus: Corpus) -> dict[str, bytes]:
    """The corpus as uncompressed tab-separated tables: the English sentences, and one table per language."""
    rows = zip(corpus.parts, corpus.clusters, corpus.english, strict=True)
    tables = {ENGLISH: "".join(f"{part}\t{cluster}\t{sentence}\n" for part, cluster, sentence in rows).encode()}
    for language, sentences in corpus.translations.items():
        lines = (f"{number}\t{sentences[number]}\n" for number in sorted(sentences))
        tables[f"{language}.tsv.gz"] = "".join(lines).encode()
    return tables


def corpus_digest(tables: dict[str, bytes]) -> str:
    """One SHA-256 over the uncompressed tables."""
    return sha256("".join(f"{name}\0{sha256(tables[name])}\n" for name in sorted(tables)).encode())


def write_tables(folder: Path, tables: dict[str, bytes]) -> None:
    """Compress the tables into ``folder``; the same tables give the same bytes (no time stamp)."""
    for name, data in tables.items():
        (folder / name).write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


def read_table(path: Path) -> list[list[str]]:
    """Rows of one compressed table.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Delete the folder {path.parent} and fetch the set again."
        ) from error
    return [line.split("\t") for line in text.split("\n") if line]
