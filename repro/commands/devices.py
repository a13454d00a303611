"""Devices by name on the command line."""

from __future__ import annotations

import torch

from repro.errors import UserError


def find_device(name: str) -> torch.device:
    """The device that ``--device`` names.

    Raises:
        UserError: there is none, or nothing can be computed on it (``meta``).
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name} cannot be used here ({reason}); cpu always can") from error
    return device
