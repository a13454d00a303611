"""What must hold of a run's figures, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Something that must hold, in words, and whether it does."""

    text: str
    passed: bool
