"""Checkpoints from the command line: read as plain data, or refused in one line."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from repro.errors import UserError


def read_checkpoint(path: Path, *, weights_only: bool = True) -> dict[str, Any]:
    """What a training run has saved; tensors are mapped, so that asking for the rest costs little.

    Args:
        path: the file.
        weights_only: whether only plain data is read, which is all that a checkpoint of ours holds: nothing of a
            stranger's file is executed.

    Raises:
        UserError: the file is missing, broken or no checkpoint.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=weights_only, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise UserError(f"checkpoint {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of a file that is none, unpickling may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a checkpoint that can be read safely ({reason})") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path} is not a checkpoint of a training run: it has no state_dict")
    return checkpoint


def misfit(error: RuntimeError) -> str | None:
    """What torch says first of weights that do not fit a model, and of how many more; None for any other error."""
    head, *lines = [line.strip() for line in str(error).splitlines()] or [""]
    if not head.startswith("Error(s) in loading state_dict") or not lines:
        return None
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")
