"""Tiny archives and tiny packaged sets, written by the tests themselves: no network, nobody's text or pictures."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import torch
from PIL import Image

from repro.datasets import corpus as recipe
from repro.datasets.images import PACKAGED
from repro.datasets.pictures import Pictures, tables, write_pictures
from repro.datasets.sources import IdxFile, ImageSource, Sources, TranslationSource, Wheel, content_digest, sha256
from repro.datasets.store import corpus_digest, corpus_files, new_set, write_manifest, write_tables


def catalogue(pairs: list[tuple[str, str]], order: str = "<") -> bytes:
    """A gettext ``.mo`` file."""
    encoded = [(a.encode(), b.encode()) for a, b in pairs]
    tables, body = [], b""
    start = 28 + 16 * len(encoded)
    for side in (0, 1):
        for pair in encoded:
            tables.append(struct.pack(f"{order}2I", len(pair[side]), start + len(body)))
            body += pair[side] + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(encoded), 28, 28 + 8 * len(encoded), 0, 0)
    return head + b"".join(tables) + body


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def deb(files: dict[str, bytes]) -> bytes:
    """A Debian package that holds ``files``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    result = b"!<arch>\n"
    for name, body in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", buffer.getvalue())):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode()
        result += header + body + b"\n" * (len(body) % 2)
    return result


def npm(files: dict[str, bytes]) -> bytes:
    """An npm package that holds ``files``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def emoji_members() -> dict[str, bytes]:
    """A package of 30 emoji in two categories, one with a skin tone too, and an entry without a picture."""
    entries = [
        {
            "image": f"{number:04x}.png",
            "unified": f"{number:04X}",
            "category": ("Flags", "Symbols")[number % 2],
            "has_img_google": number < 30,
        }
        for number in range(31)
    ]
    files = {"emoji.json": json.dumps(entries).encode(), "LICENSE": b"MIT", "README.md": b"images: Apache-2.0"}
    generator = torch.Generator().manual_seed(0)
    for number in range(30):
        pixels = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8, generator=generator)
        buffer = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(buffer, "PNG")
        files[f"img/google/64/{number:04x}.png"] = buffer.getvalue()
    files["img/google/64/0001-1f3fb.png"] = files["img/google/64/0001.png"]
    return files


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + values


def idx_files(train: int = 20, test: int = 10) -> dict[str, bytes]:
    """Four IDX files in which the first pixel of picture i is i and its label is i modulo 10."""
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        pixels = b"".join(bytes([number % 256]) + bytes(783) for number in range(count))
        files[f"{prefix}-images-idx3-ubyte"] = idx((count, 28, 28), pixels)
        files[f"{prefix}-labels-idx1-ubyte"] = idx((count,), bytes(number % 10 for number in range(count)))
    return files


def english(number: int) -> str:
    """Sentence ``number``: no two are near duplicates."""
    return f"alpha{number} beta{number} gamma{number}"


def foreign(number: int, language: str) -> str:
    return f"{language}uno{number} {language}due{number} {language}tre{number}"


def wheel_members(languages: list[str], sentences: int) -> dict[str, bytes]:
    members = {
        f"tool/locale/{language}/LC_MESSAGES/tool.mo": catalogue(
            [("", "header")] + [(english(number), foreign(number, language)) for number in range(sentences)]
        )
        for language in languages
    }
    return {**members, "tool-1.0.dist-info/LICENSE": b"do what you like", "tool/code.py": b"print()"}


def tiny_sources(folder: Path, members: dict[str, bytes], files: dict[str, bytes]) -> Sources:
    """Pins of one wheel and one image set; nothing lies in the folder of the installed Debian package."""
    wanted = {name: data for name, data in members.items() if recipe.is_wanted(name)}
    built = corpus_files(recipe.build_corpus(list(recipe.raw_pairs(wanted))))
    return Sources(
        images=ImageSource(
            licence="MIT",
            package="tiny-pictures",
            package_bytes=1000,
            folder=str(folder / "not-installed"),
            files=tuple(IdxFile(name, len(data), sha256(data)) for name, data in sorted(files.items())),
        ),
        translation=TranslationSource(
            wheels=(Wheel("tool==1.0", 1000, "MIT", content_digest(wanted)),), corpus=corpus_digest(built)
        ),
    )


def write_images(root: Path, train: int = 20, test: int = 10, recipe: str = "recipe") -> None:
    """A packaged image set below ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    with new_set(root, "fashion-mnist") as folder:
        for name, data in idx_files(train, test).items():
            (folder / name).write_bytes(data)
        write_manifest(folder, "fashion-mnist", recipe, "test", "MIT", {"train": train, "test": test})


def write_transfer(root: Path, name: str, train: int = 24, test: int = 12) -> None:
    """A packaged transfer set below ``root``: picture i is all i, its label i modulo the number of classes."""
    known = PACKAGED[name]
    root.mkdir(parents=True, exist_ok=True)
    counts = {"train": train, "test": test}
    images = {
        split: torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(
            -1, known.channels, known.side, known.side
        )
        for split, count in counts.items()
    }
    labels = {split: torch.arange(count) % known.classes for split, count in counts.items()}
    pictures = Pictures(images, labels, tuple(f"class {number}" for number in range(known.classes)))
    with new_set(root, name) as folder:
        write_pictures(folder, tables(pictures))
        write_manifest(folder, name, "recipe", "test", "MIT", {**counts, "mean": 0.25, "std": 0.5})


def write_corpus(root: Path, languages: list[str], sentences: int = 60, held_out: int = 5) -> recipe.Corpus:
    """A packaged corpus below ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    raw = [(lang, english(number), foreign(number, lang)) for lang in languages for number in range(sentences)]
    corpus = recipe.build_corpus(raw, {"test": held_out, "dev": held_out})
    with new_set(root, "translation") as folder:
        write_tables(folder, corpus_files(corpus))
        write_manifest(folder, "translation", "recipe", "test", "MIT", {})
    return corpus


def gz(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
