"""All claims, in the order of the page."""

from __future__ import annotations

from . import breakdown, counts, images, memory, pipeline, throughput, translation
from .claim import Claim


def claims() -> list[Claim]:
    """Every claim once."""
    modules = (pipeline, memory, throughput, breakdown, counts, images, translation)
    return [claim for module in modules for claim in module.claims()]
