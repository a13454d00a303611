"""Which ways of laying one model out run in turns: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from repro.planning.problem import Choice

from ..costs.scaled_down import SmallTransformer


@dataclass(frozen=True)
class PlannedSteps:
    """Steps of one model on K processes, laid out in many ways.

    Attributes:
        model: what runs.
        num_stages: K.
        choices: the ways.
        rounds: each runs a step of every way once.
        device: ``cpu``, or the GPUs of the ranks.
    """

    model: SmallTransformer
    num_stages: int
    choices: tuple[Choice, ...]
    rounds: int
    device: str
