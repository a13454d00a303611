"""Claims of section 2 and Figure 2: schedule, bubble, recompute, the same answer for every K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from repro.experiments.bubble.bubble_rows import GRID, TRACE, WITHOUT_REMAT
from repro.experiments.bubble.bubble_verdicts import SMALL
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
    in_short = f"scaled-down models, at most {SAME:.0e}"
    return found(worst <= SAME, f"differences of at most {worst:.0e}", Provenance.MEASURED, why, in_short=in_short)


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
    """The largest bubble of emulated equal stages from M = 4K on, for every K, with remat always as the paper runs."""
    largest = {remat: _largest_from_4k(rows, remat) for remat in ("always", "never")}
    judged = largest["always"]
    if not judged:
        raise Missing("emulated bubble with M of at least 4K and remat always")
    theory = ", ".join(f"{float(bubble(k, 4 * k)):.1%} (K = {k})" for k in judged)
    why = (
        f"remat always, as the paper runs: the largest emulated bubble from M = 4K on is below {SMALL:.0%} for every "
        f"K. Remat never, where no R fills the ramp: {_by_stages(largest['never'])}; the closed form, without remat, "
        f"gives {theory} at 4K, and the engine adds its own time"
    )
    in_short = f"below {SMALL:.0%}, with remat always as in the paper"
    holds = max(judged.values()) < SMALL
    return found(holds, f"at most {_by_stages(judged)}", Provenance.EMULATED, why, in_short=in_short)


def _largest_from_4k(rows: Rows, remat: str) -> dict[int, float]:
    """By K."""
    largest: dict[int, float] = {}
    for row in select(rows["bubble"], "bubble", provenance=Provenance.EMULATED, form=TRACE):
        stages, micro_batches = row.num_stages or 1, row.num_micro_batches or 0
        if row.remat == remat and stages > 1 and micro_batches >= 4 * stages:
            largest[stages] = max(largest.get(stages, 0.0), row.value)
    return dict(sorted(largest.items()))


def _by_stages(bubbles: Mapping[int, float]) -> str:
    return ", ".join(f"{value:.1%} (K = {stages})" for stages, value in bubbles.items()) or NOTHING


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
