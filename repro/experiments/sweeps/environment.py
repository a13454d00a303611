"""Where and with what a run was made: versions, hardware, revision of the code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .timers import keeps_cores_awake

ROOT = Path(__file__).resolve().parents[3]
CODE = ("repro", "configs")
PACKAGES = ("torch", "torchvision", "lightning", "numpy", "sacrebleu", "sentencepiece")


def describe_run(command: str, device: str) -> dict[str, Any]:
    """What ``run.json`` says: versions, device, cores, revision, date, command."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "device_name": device_name(device),
        "cores": usable_cores(),
        "emulates_on_cores_kept_awake": keeps_cores_awake(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git_revision": code_revision(),
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: str) -> str:
    """The name of the hardware, as it calls itself."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else device
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def code_revision(root: Path = ROOT) -> str:
    """The last commit that changed the code; with changes that are not committed, a digest of the code beside it."""
    commit = _git(root, "log", "-1", "--format=%h", "--abbrev=12", "--", *CODE)
    if commit and not _git(root, "status", "--porcelain", "--", *CODE):
        return commit
    digest = hashlib.sha256()
    for name in CODE:
        for path in sorted((root / name).rglob("*")):
            if path.suffix in (".py", ".yaml") and path.is_file():
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(path.read_bytes())
    return f"{commit or 'no-git'}+changes-{digest.hexdigest()[:8]}"


def _git(root: Path, *arguments: str) -> str:
    try:
        words = ["git", "-C", str(root), *arguments]
        ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
