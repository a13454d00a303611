"""Where the shape of Tables 2 and 3 comes from, in words whose figures are taken from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.datasets.paper import published
from repro.experiments.rows import Provenance, Row
from repro.experiments.throughput_rows import IDEAL, IMBALANCE, RATIO
from repro.experiments.throughput_table import WHOLE
from repro.schedules import Remat, bubble


def explanation(name: str, model: str, rows: Sequence[Row]) -> list[str]:
    """Paragraphs, as many as the rows give figures for."""
    return [*_bubble(model, rows), *_imbalance(name, model, rows), *_above(name, model, rows)]


def _bubble(model: str, rows: Sequence[Row]) -> Iterator[str]:
    cells = _ratios(model, rows, Provenance.SIMULATED, RATIO, Remat.NEVER)
    if not cells:
        return
    most = max(k for k, _ in cells)
    idle = [f"{bubble(most, m):.0%} at M = {m}" for k, m in sorted(cells) if k == most]
    ideal = _ratios(model, rows, Provenance.SIMULATED, IDEAL, Remat.NEVER)
    last = max(cells)
    yield (
        f"**Bubble.** With K = {most} equal stages and nothing recomputed, {', '.join(idle)} of the time is idle, "
        "(K-1)/(M+K-1): the bubble sets what any cut can reach, "
        f"{ideal[last]:.2f} at K = {last[0]}, M = {last[1]} (ideal); {model} gets {cells[last]:.2f} of it (simulated). "
        "With re-materialization the ideal is lower, since what is recomputed hides in the bubble of the cell that all "
        "are relative to."
    )


def _imbalance(name: str, model: str, rows: Sequence[Row]) -> Iterator[str]:
    uneven = {
        (row.params["cut_by"], row.num_stages): row.value
        for row in rows
        if row.model == model and row.metric == IMBALANCE and row.params["layers"] == WHOLE
    }
    ours = {stages: value for (by, stages), value in uneven.items() if by == "this project" and stages is not None}
    if not ours:
        return
    few, most = min(ours), max(ours)
    text = (
        f"**Imbalance.** The dearest of K = {most} stages costs {ours[most]:.2f} times the mean, that of K = {few} "
        f"{ours[few]:.2f} times: the finer the cut, the less even whole layers can be dealt out."
    )
    theirs = uneven.get(("torchgpipe", most))
    if theirs is not None:
        text += (
            f" By the same costs torchgpipe's own cut for K = {most}, made on its machine, is at {theirs:.2f}: what a "
            "layer costs there is not in proportion to its FLOPs."
        )
    paper = _paper(name, model)
    simulated = _ratios(model, rows, Provenance.SIMULATED, RATIO, Remat.ALWAYS)
    ideal = _ratios(model, rows, Provenance.SIMULATED, IDEAL, Remat.ALWAYS)
    both = sorted({m for k, m in paper if (most, m) in simulated and (few, m) in simulated and (few, m) in paper})
    if both and few < most:
        m = both[-1]
        gains = [values[most, m] / values[few, m] for values in (paper, simulated, ideal)]
        text += (
            f" From K = {few} to K = {most} at M = {m} the paper gains {gains[0]:.2f} times, ours {gains[1]:.2f} "
            f"(simulated, remat always), equal stages {gains[2]:.2f}."
        )
        if gains[0] < 0.95 * gains[1]:
            text += (
                " What the paper loses beyond that is in no count of FLOPs, which leaves out pooling, normalisation "
                "and all that waits for memory; `--costs profile` cuts and times by real layers."
            )
    yield text


def _above(name: str, model: str, rows: Sequence[Row]) -> Iterator[str]:
    """Cells that no schedule could give if all cells had the same mini-batch."""
    paper = _paper(name, model)
    best: dict[tuple[int, int], float] = {}
    for remat in Remat:
        for cell, value in _ratios(model, rows, Provenance.SIMULATED, IDEAL, remat).items():
            best[cell] = max(best.get(cell, 0.0), value)
    # Published figures have two or three digits.
    above = [cell for cell in sorted(paper) if cell in best and paper[cell] > 1.02 * best[cell]]
    if not above:
        return
    listed = ", ".join(f"{paper[cell]:g} against {best[cell]:.2f} at K = {cell[0]}, M = {cell[1]}" for cell in above)
    yield (
        f"**Batch sizes.** The paper is above the ideal of every re-materialization in {len(above)} "
        f"{'cell' if len(above) == 1 else 'cells'}: {listed}. No schedule gives that with one mini-batch for all: a "
        "row must have taken less time there than in the cell that all are relative to. The paper changed batch sizes "
        "where memory asked for it and does not say to what" + _sizes() + "."
    )


def _sizes() -> str:
    sizes = [int(row["batch_size"] or 0) for row in published("torchgpipe_speed") if "Amoeba" in str(row["model"])]
    return f" (torchgpipe's go from {min(sizes)} to {max(sizes)} in the same table)" if sizes else ""


def _paper(name: str, model: str) -> dict[tuple[int, int], float]:
    return {
        (int(row["num_stages"] or 0), int(row["num_micro_batches"] or 0)): float(row["normalized_throughput"] or 0)
        for row in published(name)
        if row["model"] == model
    }


def _ratios(
    model: str, rows: Sequence[Row], provenance: Provenance, metric: str, remat: Remat
) -> dict[tuple[int, int], float]:
    return {
        (row.num_stages, row.num_micro_batches): row.value
        for row in rows
        if (row.model, row.provenance, row.metric, row.remat) == (model, provenance, metric, remat.value)
        and row.params.get("layers", WHOLE) == WHOLE
        and row.num_stages is not None
        and row.num_micro_batches is not None
    }
