"""Where data lives, and the one error that everything in this package raises."""

from __future__ import annotations

from pathlib import Path

from repro.errors import UserError

FETCH_COMMAND = "python -m repro.datasets fetch"


class DataError(UserError):
    """Data that is missing, damaged or cannot be fetched; the message says which and what to do about it."""


def data_folder() -> Path:
    """The checkout's ``data/`` folder (recipes, pins and published tables are tracked there).

    Raises:
        DataError: the package does not run from a checkout, so there is no such folder.
    """
    folder = Path(__file__).resolve().parents[2] / "data"
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}: pins and published tables live in the repository, not in the installed package. "
            "Clone the repository and install it from there with `pip install -e .`."
        )
    return folder


def packaged_root(root: str | Path | None = None) -> Path:
    """Folder of the packaged sets: ``root`` where given, else ``data/packaged`` of the checkout."""
    return Path(root) if root is not None else data_folder() / "packaged"


def incoming(root: Path) -> Path:
    """Where files that were brought by hand are looked for."""
    return root / "incoming"


def fetch_command(name: str, root: Path) -> str:
    """The command that fetches the set ``name`` into ``root``."""
    command = f"{FETCH_COMMAND} --only {'images' if name == 'fashion-mnist' else name}"
    return command if root == packaged_root() else f"{command} --root {root}"


def missing_set(name: str, root: Path) -> DataError:
    """The error of a reader whose set has not been fetched."""
    return DataError(
        f"the packaged set {name!r} is not in {root}. Fetch it with `{fetch_command(name, root)}` (`make data` fetches "
        "what the quick targets need); data/README.md says how to bring the files by hand."
    )
