"""Claims of section 2 and Figure 2: schedule, bubble, recompute, the same answer for every K."""

from __future__ import annotations

from collections.abc import Iterator

from repro.experiments.bubble.bubble_rows import GRID, TRACE, WITHOUT_REMAT
from repro.experiments.bubble.bubble_verdicts import VERDICT
from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING
from repro.schedules import bubble

from .claim import Claim, Finding, Missing, Rows, Rule, Verdict, found
from .selecting import said, select
from .shapes import falls, rank_correlation

SECTION = "Section 2: the pipeline"
SAME = 1e-6
"""Largest relative difference of losses and gradient norms: what rounding in float32 may leave."""
ORDER = 0.95
"""Least rank correlation over K and M."""
EARLY = 0.9
"""Share of recomputations that had room to run before the gradient came, and did."""


def claims() -> Iterator[Claim]:
    """All of the section."""
    yield _text("consistent", ("reproduce",), same_answer, headline=True)
    yield _text("figure2", ("figure2",), beats_naive)
    yield _text("bubble-form", ("bubble",), closed_form)
    yield _text("bubble-small", ("bubble",), small_from_4k, headline=True)
    yield _text("early-recompute", ("remat",), early)


def _text(name: str, targets: tuple[str, ...], rule: Rule, *, headline: bool = False) -> Claim:
    row = said(name)
    value = NOTHING if row["value"] is None else f"{row['unit']} = {row['value']}"
    return Claim(
        name, SECTION, str(row["claim"]), value, str(row["confidence"]), "claims", targets, rule, headline=headline
    )


def same_answer(rows: Rows) -> Finding:
    """Losses, gradient norms and held-out losses of K > 1 against K = 1, in float64."""
    differences = [
        row
        for metric in ("loss_difference", "gradient_norm_difference", "held_out_loss_difference")
        for row in select(rows["reproduce"], metric, experiment="agreement")
    ]
    worst = max(row.value for row in differences)
    numbers = sorted({row.num_stages for row in differences if row.num_stages})
    models = " and ".join(dict.fromkeys(row.model for row in differences))
    what = "losses, gradient norms and held-out losses, relative"
    why = f"{models}, scaled down, K = {', '.join(map(str, numbers))} against K = 1: {what}, at most {SAME:.0e}"
    return found(worst <= SAME, f"differences of at most {worst:.0e}", Provenance.MEASURED, why)


def beats_naive(rows: Rows) -> Finding:
    """The step of the pipeline against that of M = 1, emulated with equal stages and measured where there are cores."""
    spans = select(rows["figure2"], "step_span")
    ratios = {}
    for row in spans:
        naive = [r for r in spans if _same_stages(r, row) and r.num_micro_batches == 1]
        if row.num_micro_batches != 1 and naive:
            ratios[f"{row.provenance.value} K = {row.num_stages}, M = {row.num_micro_batches}"] = (
                row.value / naive[0].value
            )
    if not ratios:
        raise Missing("pair of a naive and a pipelined step")
    ours = ", ".join(f"{ratio:.2f}x the time ({where})" for where, ratio in ratios.items())
    verdict = Verdict.SMALL_SCALE if max(ratios.values()) < 1 else Verdict.CONTRADICTED
    provenances = ", ".join(sorted({row.provenance.value for row in spans}))
    return Finding(verdict, ours, provenances, "below 1 in every pair")


def closed_form(rows: Rows) -> Finding:
    """Traced bubbles of equal emulated stages without remat against the closed form: falling with M, in its order.

    The engine adds to each; of each cell the step counts that was disturbed least.
    """
    seen = {
        (row.num_stages or 0, row.num_micro_batches or 0): float(row.params["least"])
        for row in select(
            rows["bubble"], "bubble", provenance=Provenance.EMULATED, panel=GRID, form=TRACE, remat="never"
        )
    }
    closed = {
        (row.num_stages or 0, row.num_micro_batches or 0): row.value
        for row in select(rows["bubble"], "bubble", panel=GRID, form=WITHOUT_REMAT, remat="never")
    }
    if len(seen) < 4:
        raise Missing("four cells of K and M")
    lines = [[seen[cell] for cell in sorted(seen) if cell[0] == k] for k in sorted({k for k, _ in seen})]
    order = rank_correlation(list(seen.values()), [closed[cell] for cell in seen])
    where = max(seen, key=lambda cell: abs(seen[cell] - closed[cell]))
    ours = (
        f"rank correlation {order:.3f}; at most {100 * abs(seen[where] - closed[where]):.1f} points off "
        f"(K = {where[0]}, M = {where[1]})"
    )
    why = (
        f"equal emulated stages, {len(seen)} cells of K and M: rank correlation with the closed form at least {ORDER}, "
        "and falling with M at every K; the engine's own time comes on top"
    )
    return found(order >= ORDER and all(falls(line) for line in lines), ours, Provenance.EMULATED, why)


def small_from_4k(rows: Rows) -> Finding:
    """The verdicts of the target ``bubble`` on emulated equal stages: below 20% from M = 4K on."""
    verdicts = [
        row
        for row in select(rows["bubble"], VERDICT, provenance=Provenance.EMULATED)
        if str(row.params["claim"]).startswith("M >= 4K")
    ]
    if not verdicts:
        raise Missing("emulated bubble with M of at least 4K")
    ours = "; ".join(f"{row.params['where']}: {str(row.params['words']).split(' (')[0]}" for row in verdicts)
    theory = ", ".join(
        f"{float(bubble(k, 4 * k)):.0%} (K = {k})" for k in sorted({row.num_stages or 1 for row in verdicts})
    )
    why = f"the largest emulated bubble from M = 4K on is below 20% for every K; the closed form gives {theory} at 4K"
    return found(all(row.value == 1 for row in verdicts), ours, Provenance.EMULATED, why)


def early(rows: Rows) -> Finding:
    """How many recomputations ran before the gradient arrived, of those that could."""
    shares = select(rows["remat"], "early_recompute", provenance=Provenance.MEASURED)
    least = min(shares, key=lambda row: row.value)
    cases = sum(int(row.params["cases"]) for row in shares)
    why = f"traced steps, {cases} recomputations with room to run early: at least {EARLY:.0%} of them do in every cell"
    ours = f"at least {least.value:.0%} ({least.model}, M = {least.num_micro_batches})"
    return found(least.value >= EARLY, ours, Provenance.MEASURED, why)


def _same_stages(one: Row, other: Row) -> bool:
    return (one.provenance, one.model, one.num_stages) == (other.provenance, other.model, other.num_stages)
