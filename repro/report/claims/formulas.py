"""Formulas of the bubble that circulate, as functions; what is stated with them is in ``data/paper``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor
from types import MappingProxyType

from .replay import Case


def forward_ramp(case: Case) -> Fraction:
    """(P - 1) / M x t_F / (t_F + t_B): the idle time of the forwards' ramp / time at work."""
    forward, backward = _costs(case)
    return Fraction(case.num_stages - 1, case.num_micro_batches) * forward / (forward + backward)


def two_forward_ramps(case: Case) -> Fraction:
    """2 (P - 1) / ((M + P - 1) (1 + t_B / t_F)): two ramps of forwards / makespan."""
    forward, backward = _costs(case)
    slots = case.num_micro_batches + case.num_stages - 1
    return 2 * (case.num_stages - 1) / (slots * (1 + backward / forward))


def closed_form(case: Case) -> Fraction:
    """(P - 1) / (M + P - 1) (GPipe paper, section 2.3)."""
    return Fraction(case.num_stages - 1, case.num_micro_batches + case.num_stages - 1)


def scaled_one_f_one_b(case: Case) -> Fraction:
    """Bubble of 1F1B x (P - 1) / (P V - 1)."""
    return closed_form(case) * Fraction(case.num_stages - 1, case.num_stages * case.num_virtual_stages - 1)


def interleaved(case: Case) -> Fraction:
    """(P - 1) / (V M + P - 1) (from Narayanan et al. 2021, section 2.2.2)."""
    return Fraction(case.num_stages - 1, case.num_virtual_stages * case.num_micro_batches + case.num_stages - 1)


FORMULAS: Mapping[str, Callable[[Case], Fraction]] = MappingProxyType(
    {
        "forward ramp": forward_ramp,
        "two forward ramps": two_forward_ramps,
        "closed form": closed_form,
        "scaled 1F1B": scaled_one_f_one_b,
        "interleaved": interleaved,
    }
)
"""By the name in ``circulating_bubbles.csv``; "about 30%" is a figure without a formula."""


def int_plus_one(num_stages: int, target: Fraction) -> int:
    """int(x) + 1 for x = (P - 1)(1 - target) / target, where the bubble is exactly the target."""
    return floor((num_stages - 1) * (1 - target) / target) + 1


def _costs(case: Case) -> tuple[Fraction, Fraction]:
    if isinstance(case.forward, tuple) or isinstance(case.backward, tuple):
        raise TypeError("these formulas know equal stages only")
    return Fraction(case.forward), Fraction(case.backward)
