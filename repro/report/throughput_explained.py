"""Where the shape of Tables 2 and 3 comes from, in words whose figures are taken from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.throughput.rows import IDEAL, IMBALANCE, LINK, RATIO
from repro.experiments.throughput.table import SEPARATE, WHOLE
from repro.schedules import Remat, bubble


def explanation(name: str, model: str, rows: Sequence[Row]) -> list[str]:
    """Paragraphs, as many as the rows give figures for."""
    return [
        *_bubble(model, rows),
        *_imbalance(name, model, rows),
        *_micro_batches(name, model, rows),
        *_link(model, rows),
        *_above(name, model, rows),
    ]


def _bubble(model: str, rows: Sequence[Row]) -> Iterator[str]:
    cells = _ratios(model, rows, Provenance.SIMULATED, RATIO, Remat.NEVER)
    if not cells:
        return
    most = max(k for k, _ in cells)
    idle = [f"{bubble(most, m):.0%} at M = {m}" for k, m in sorted(cells) if k == most]
    ideals = {remat: _ratios(model, rows, Provenance.SIMULATED, IDEAL, remat) for remat in Remat}
    last = max(cells)
    yield (
        f"**Bubble.** With K = {most} equal stages and nothing recomputed, {', '.join(idle)} of the time is idle, "
        "(K-1)/(M+K-1). It sets what any cut can reach: at "
        f"K = {last[0]}, M = {last[1]} the ideal is {ideals[Remat.NEVER][last]:.2f} without re-materialization, "
        f"{ideals[Remat.ALWAYS][last]:.2f} with it and {ideals[Remat.EXCEPT_LAST][last]:.2f} with all micro-batches "
        "but the last, since R hides in the bubble, and the cell that all are relative to has a bubble of its own. "
        f"{model} gets {cells[last]:.2f} without re-materialization (simulated)."
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
    finer = [
        row.value
        for row in rows
        if (row.model, row.metric, row.num_stages) == (model, IMBALANCE, most) and row.params["layers"] == SEPARATE
    ]
    if finer:
        text += f" With attention and feed-forward as layers of their own it is {finer[0]:.2f} at K = {most}."
    theirs = uneven.get(("torchgpipe", most))
    if theirs is not None:
        text += (
            f" By the same costs torchgpipe's own cut for K = {most}, made on its machine, is at {theirs:.2f}: what a "
            "layer costs there is not in proportion to its FLOPs."
        )
    numbers = [m for k, m in _paper(name, model) if k == most]
    if few < most and numbers:
        gains = _gains(name, model, rows, (few, max(numbers)), (most, max(numbers)))
        if gains is not None:
            text += (
                f" From K = {few} to K = {most} at M = {max(numbers)} the paper gains {gains[0]:.2f} times, ours "
                f"{_range(gains[1])} (simulated, by re-materialization), equal stages {_range(gains[2])}."
            )
            text += _beyond(gains[0], gains[1])
    yield text


def _beyond(paper: float, simulated: Sequence[float]) -> str:
    if paper >= 0.95 * min(simulated):
        return ""
    return (
        " What the paper loses beyond that is in no count of FLOPs, which leaves out pooling, normalisation and all "
        "that waits for memory; `--costs profile` cuts and times by real layers."
    )


def _micro_batches(name: str, model: str, rows: Sequence[Row]) -> Iterator[str]:
    """What more micro-batches bring where there are fewest stages, and so the smallest bubble and imbalance."""
    paper = _paper(name, model)
    few = min((k for k, _ in paper), default=0)
    numbers = sorted(m for k, m in paper if k == few)
    if len(numbers) < 2:
        return
    gains = _gains(name, model, rows, (few, numbers[0]), (few, numbers[-1]))
    if gains is None:
        return
    text = (
        f"**Micro-batches.** From M = {numbers[0]} to M = {numbers[-1]} at K = {few} the paper gains {gains[0]:.2f} "
        f"times, ours {_range(gains[1])} (simulated, by re-materialization)."
    )
    if gains[0] < 0.95 * min(gains[1]):
        text += (
            f" A row of a micro-batch must have taken {min(gains[1]) / gains[0]:.2f} times as long there or more: the "
            "simulation knows neither what small micro-batches cost nor what the paper's batch sizes were."
        )
        measured = [
            row
            for row in rows
            if row.params.get("of") == model
            and (row.metric, row.num_stages, row.num_micro_batches) == (RATIO, few, numbers[-1])
        ]
        if measured:
            values = _range([row.value for row in measured])
            text += f" On {measured[0].model} real steps of the same comparison gain {values} (measured)."
    yield text


def _link(model: str, rows: Sequence[Row]) -> Iterator[str]:
    shares = _ratios(model, rows, Provenance.SIMULATED, LINK, Remat.NEVER)
    worst = max(shares, key=lambda cell: shares[cell], default=None)
    if worst is not None and shares[worst] >= 0.005:
        yield (
            f"**Link.** Messages take at most {shares[worst]:.1%} of a step, at K = {worst[0]}, M = {worst[1]} "
            "(simulated, nothing recomputed): the rest of them passes while stages compute."
        )


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


def _gains(
    name: str, model: str, rows: Sequence[Row], begin: tuple[int, int], end: tuple[int, int]
) -> tuple[float, list[float], list[float]] | None:
    """From one cell to another: of the paper, and for each remat simulated and ideal; None where a cell is missing."""
    paper = _paper(name, model)
    by_metric = [
        [_ratios(model, rows, Provenance.SIMULATED, metric, remat) for remat in Remat] for metric in (RATIO, IDEAL)
    ]
    if any(begin not in cells or end not in cells for cells in (paper, *by_metric[0], *by_metric[1])):
        return None
    simulated, ideal = ([cells[end] / cells[begin] for cells in found] for found in by_metric)
    return paper[end] / paper[begin], simulated, ideal


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


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
