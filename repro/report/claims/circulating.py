"""The claims that circulate, as data/paper has them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from repro.datasets.paper import Value, published

from .replay import Case


@dataclass(frozen=True)
class Claim:
    """A formula or figure in circulation.

    Attributes:
        name: in ``circulating_bubbles.csv``.
        formula: in words; empty for a figure without one.
        stated: in percent.
        assumes: what has to be so.
        source: where it is from.
        case: the numbers that it is stated for.
    """

    name: str
    formula: str
    stated: float
    assumes: str
    source: str
    case: Case


def claims() -> dict[str, Claim]:
    """All of ``circulating_bubbles.csv``, by name."""
    return {str(row["name"]): _claim(row) for row in published("circulating_bubbles")}


def _claim(row: dict[str, Value]) -> Claim:
    case = Case(
        schedule=str(row["schedule"]),
        num_stages=whole(row["num_stages"]),
        num_micro_batches=whole(row["num_micro_batches"]),
        num_virtual_stages=whole(row["num_virtual_stages"]),
        forward=whole(row["forward"]),
        backward=whole(row["backward"]),
    )
    formula = str(row["formula"] or "")
    return Claim(
        str(row["name"]), formula, number(row["stated_percent"]), str(row["assumes"]), str(row["source"]), case
    )


def whole(value: Value) -> int:
    """A whole number of a table."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def number(value: Value) -> float:
    """A number of a table."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def target(percent: Value) -> Fraction:
    """A share of a table, exactly."""
    return Fraction(str(percent)) / 100
