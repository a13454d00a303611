"""Claims of the time breakdown (NeurIPS version, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING
from repro.schedules import bubble

from .claim import Claim, Finding, Missing, Rows, Rule, found
from .selecting import number, said, select
from .shapes import rank_correlation

SECTION = "Section 3.1: where the time of a step goes"
TARGET = "breakdown"
BAND, POINTS = 0.25, 0.01
"""A share of ours may be off the paper's by a quarter of it, or by a point of the step, whichever is more."""
_NEAR = f"at most {BAND:.0%} of it or {100 * POINTS:.0f} point"
ORDER = 0.7
"""Least rank correlation over the parts."""


def claims() -> Iterator[Claim]:
    """The parts of the pie, their order, and what the text says of them."""
    for row in published("breakdown"):
        yield Claim(
            f"breakdown-{str(row['part']).replace(' ', '-')}",
            SECTION,
            f"share of the step: {row['part']}",
            f"{row['percent']}%",
            str(row["confidence"]),
            "breakdown",
            (TARGET,),
            partial(share, str(row["part"]), number(row, "percent") / 100),
        )
    order = "the order of the parts of a step"
    yield Claim("breakdown-order", SECTION, order, NOTHING, "S1", "breakdown", (TARGET,), same_order_of_parts)
    ratio = "recomputation takes this share of computation"
    yield Claim("breakdown-ratio", SECTION, ratio, _ratio(), "S1", "breakdown", (TARGET,), recompute_ratio)
    for name, rule in (
        ("recompute-share", main_overhead),
        ("bubble-below", below_theory),
        ("update-small", small_update),
    ):
        yield _text(name, rule)


def _text(name: str, rule: Rule) -> Claim:
    row = said(name)
    value = NOTHING if row["value"] is None else f"{row['value']}{row['unit']}"
    return Claim(name, SECTION, str(row["claim"]), value, str(row["confidence"]), "claims", (TARGET,), rule)


def share(part: str, printed: float, rows: Rows) -> Finding:
    """A share against that of emulated full-size models, or where timed waits have none of it of measured ones."""
    chosen = _shares(rows, part, _of(part))
    values = [row.value for row in chosen]
    inside = any(_near(value, printed) for value in values)
    why = f"{_how(_of(part))}, K = 2: {_NEAR} off in one of them; the paper states neither model nor M"
    return found(inside, _each(chosen), _of(part), why)


def same_order_of_parts(rows: Rows) -> Finding:
    """Rank correlation of the shares of each emulated model with the pie's."""
    printed = {str(row["part"]): number(row, "percent") for row in published("breakdown")}
    by_model: dict[str, dict[str, float]] = {}
    for row in select(rows[TARGET], "share", provenance=Provenance.EMULATED):
        by_model.setdefault(row.model, {})[row.params["part"]] = row.value
    found_ = {
        model: rank_correlation([shares[part] for part in printed], list(printed.values()))
        for model, shares in by_model.items()
    }
    ours = ", ".join(f"{value:.2f} ({model})" for model, value in found_.items())
    why = f"rank correlation over the {len(printed)} parts, emulated: at least {ORDER}"
    return found(min(found_.values()) >= ORDER, ours, Provenance.EMULATED, why)


def recompute_ratio(rows: Rows) -> Finding:
    """R is an F: about a third of F and B, within what models differ by."""
    stated = _percent("recompute") / _percent("computation")
    work = {row.model: row.value for row in _shares(rows, "computation", Provenance.EMULATED)}
    ratios = {row.model: row.value / work[row.model] for row in _shares(rows, "recompute", Provenance.EMULATED)}
    low, high = min(ratios.values()), max(ratios.values())
    inside = 0.85 * low <= stated <= 1.15 * high
    ours = ", ".join(f"{ratio:.2f} ({model})" for model, ratio in ratios.items())
    return found(inside, ours, Provenance.EMULATED, "full-size models as timed waits, with 15% to spare")


def main_overhead(rows: Rows) -> Finding:
    """The largest part beside computation, and its size."""
    stated = number(said("recompute-share"), "value") / 100
    chosen = _shares(rows, "recompute", Provenance.EMULATED)
    others = [
        row
        for row in select(rows[TARGET], "share", provenance=Provenance.EMULATED)
        if row.params["part"] not in ("computation", "recompute")
    ]
    if not others:
        raise Missing("shares of other parts")
    largest = all(max(r.value for r in others if r.model == row.model) < row.value for row in chosen)
    near = any(_near(row.value, stated) for row in chosen)
    why = f"emulated: larger than every other overhead, and {_NEAR} off the stated share in one of the models"
    return found(largest and near, _each(chosen), Provenance.EMULATED, why)


def below_theory(rows: Rows) -> Finding:
    """The share of the bubble against (K-1)/(M+K-1)."""
    chosen = _shares(rows, "bubble", Provenance.EMULATED)
    theory = {row.model: float(bubble(row.num_stages or 1, row.num_micro_batches or 1)) for row in chosen}
    why = f"emulated with remat always, below the closed form {max(theory.values()):.1%}"
    return found(all(row.value < theory[row.model] for row in chosen), _each(chosen), Provenance.EMULATED, why)


def small_update(rows: Rows) -> Finding:
    """The share of the weight update where weights exist: in the measured, scaled-down models."""
    chosen = _shares(rows, "weight update", Provenance.MEASURED)
    stated = _percent("weight update") / 100
    why = f"measured, scaled down: below the printed share of the step in one of the models, or {_NEAR} off it"
    holds = any(row.value <= stated or _near(row.value, stated) for row in chosen)
    return found(holds, _each(chosen), Provenance.MEASURED, why)


def _near(value: float, stated: float) -> bool:
    return abs(value - stated) <= max(BAND * stated, POINTS)


def _of(part: str) -> Provenance:
    return Provenance.MEASURED if part in ("weight update", "setup") else Provenance.EMULATED


def _how(provenance: Provenance) -> str:
    emulated = "full-size models as timed waits"
    return (
        emulated
        if provenance is Provenance.EMULATED
        else "measured, scaled down (timed waits have no weights and read no data)"
    )


def _shares(rows: Rows, part: str, provenance: Provenance) -> list[Row]:
    chosen = select(rows[TARGET], "share", provenance=provenance, part=part, num_stages=2)
    last = max(row.num_micro_batches or 0 for row in chosen)
    return [row for row in chosen if row.num_micro_batches == last]


def _each(rows: list[Row]) -> str:
    return ", ".join(f"{100 * row.value:.1f}% ({row.model})" for row in rows)


def _percent(part: str) -> float:
    return next(number(row, "percent") for row in published("breakdown") if row["part"] == part)


def _ratio() -> str:
    return f"{_percent('recompute') / _percent('computation'):.2f}"
