"""Profiles of layers on disk, so that the same model on the same device is timed once."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CPU_INFO = Path("/proc/cpuinfo")


class ProfileCache:
    """One small JSON file a profile. What cannot be read, or is not what it should be, counts as absent; what cannot be
    written is not kept: a cache never stops a run.

    Args:
        folder: None: ``gpipe-repro/profiles`` in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "profiles"

    def load(self, key: str, num_layers: int) -> list[float] | None:
        """The costs that were saved under ``key``, one a layer; None where there are none."""
        try:
            data = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        costs = data.get("seconds") if isinstance(data, dict) and data.get("key") == key else None
        valid = isinstance(costs, list) and len(costs) == num_layers and all(map(_is_cost, costs))
        return [float(cost) for cost in costs] if valid and costs else None

    def save(self, key: str, costs: Sequence[float]) -> None:
        """Keeps the costs; a reader sees the whole file or none."""
        temporary: str | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".profile.")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"key": key, "seconds": list(costs)}, file)
            os.replace(temporary, self.path(key))
        except OSError:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        """The file of a profile."""
        return self.folder / f"{key[:32]}.json"


def cache_folder() -> Path:
    """The project's folder below the user's cache folder, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gpipe-repro"


def digest(value: Any) -> str:
    """A name for everything that a profile depends on (JSON values)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def processor_name() -> str:
    """The model name that the kernel gives for the processor; empty where it gives none."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
