"""The report on the bubble: K x M beside the closed forms, what M costs, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.experiments.bubble.bubble import REMATS
from repro.experiments.bubble.bubble_rows import GRID, MICRO_BATCH, MINI_BATCH, REPLAY, TRACE, WITH_REMAT, WITHOUT_REMAT
from repro.experiments.bubble.bubble_verdicts import VERDICT
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, line, show
from .loading import Results
from .style import BLUE, GREEN, GREY, ORANGE, VERMILION, figure

PICTURES = ("bubble.png",)
_PANELS = (MINI_BATCH, MICRO_BATCH)
_BUBBLE = (
    "Idle time of the ranks / (ranks x makespan), from the trace of real steps; R counts as work. Emulated stages are "
    "equal and wait where real ones compute; measured ones are real layers with a core or GPU each, so a K that is "
    "larger than the number of cores or GPUs is emulated only. The closed form "
    "without remat is (K - 1) / (M + K - 1) (section 2.3); with remat R runs in the bubble, where the first one fits, "
    "and the share is smaller. The replay has the costs of each stage as they were traced, and messages free: what it "
    "says beyond the closed form is imbalance, what the trace says beyond it are messages, the engine, and noise."
)
_COST = (
    "The same layers with another M, under one of two conditions that must not be mixed. With the mini-batch fixed, "
    "more micro-batches are smaller ones: live activations without remat do not change, the bubble shrinks, and matrix "
    "products become small, down to one row. With the micro-batch fixed, the mini-batch grows with M: live activations "
    "without remat grow with it, and throughput can only gain. With remat always a rank holds the inputs of its stage "
    "for all micro-batches and the activations of one."
)
_VERDICTS = (
    "Computed from the rows above. A bubble is small below 20%, which the closed form stays below from M = 4K on, "
    "whatever K. A number of micro-batches is as good as the best where its throughput is within 2% of it, or within "
    "the spread of both."
)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """The bubble, what M costs, and the verdicts."""
    rows, others = results.rows, () if reference is None else reference.rows
    made = [_bubbles(rows, others), _costs(rows, others), _judged(rows)]
    return [section for section in made if section.lines or section.grids]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``bubble.png`` and ``micro_batches.png``."""
    _draw_bubbles(rows, folder / "bubble.png")
    if any(row.metric == "throughput" for row in rows):
        _draw_costs(rows, folder / "micro_batches.png")


def _bubbles(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    grids, lines = [], []
    for panel, provenance in ((GRID, Provenance.EMULATED), (MINI_BATCH, Provenance.MEASURED)):
        table = []
        for stages, number, remat in _cells(rows, panel):
            own = {
                row.params["form"]: row
                for row in rows
                if row.metric == "bubble" and _is(row, panel, stages, number, remat)
            }
            forms = (TRACE, REPLAY, WITH_REMAT, WITHOUT_REMAT)
            table.append([f"K = {stages}, M = {number}, remat {remat}", *(show(own.get(form)) for form in forms)])
            if others:
                found = line(
                    f"K = {stages}, M = {number}, remat {remat}: bubble from the trace",
                    rows,
                    others,
                    lambda r, at=(panel, stages, number, remat): _traced(r, *at),  # type: ignore[misc]
                    f"{show(own.get(WITHOUT_REMAT))} (section 2.3)",
                )
                lines += [found] if found else []
        if table:
            heads = [f"trace ({provenance.value})", "replay (simulated)", "closed form, with remat", "(K-1)/(M+K-1)"]
            what = next(row.model for row in rows if row.params.get("panel") == panel)
            grids.append(Grid(f"The bubble of {what}", ["cell", *heads], table))
    pictures = [Figure("bubble.png", "The bubble over M: points are traces, lines the closed forms.")]
    return Section("The bubble over K and M", _BUBBLE, lines, pictures, grids)


def _costs(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    grids: list[Grid] = []
    lines: list[Line] = []
    for panel in _PANELS:
        table = []
        for stages, number, remat in _cells(rows, panel):
            cell = f"K = {stages}, M = {number}, remat {remat}"
            own = [row for row in rows if _is(row, panel, stages, number, remat)]
            by_metric = {row.metric: row for row in own if row.metric != "bubble"}
            known = own[0]
            size = f"{known.batch_size} = {number} x {known.params['rows']}"
            table.append([cell, size, _rate(by_metric.get("throughput")), _bytes(by_metric.get("live_activations"))])
            for metric, words, tell in (("throughput", "throughput", _rate), ("live_activations", "live", _bytes)):
                other = [row for row in others if row.metric == metric and _is(row, panel, stages, number, remat)]
                if other and metric in by_metric:
                    what = f"{panel}, {cell}: {words}"
                    lines.append(Line(what, known.provenance.value, tell(by_metric[metric]), tell(other[0])))
        if table:
            heads = ["rows = M x rows each", "throughput (measured)", "live activations, largest rank (measured)"]
            grids.append(Grid(f"{panel.capitalize()}", ["cell", *heads], table))
    pictures = [Figure("micro_batches.png", "Throughput and live activations over M (measured), by what is fixed.")]
    return Section("What the number of micro-batches costs", _COST, lines, pictures if grids else [], grids)


def _judged(rows: Sequence[Row]) -> Section:
    table = [
        [
            str(row.params["claim"]),
            f"{row.params['where']} ({row.provenance.value})",
            "holds" if row.value else "does not hold",
            str(row.params["words"]),
        ]
        for row in rows
        if row.metric == VERDICT
    ]
    grids = [Grid("Verdicts", ["rule", "where", "verdict", "why"], table)] if table else []
    return Section("M >= 4K, and M = 4K to 8K", _VERDICTS, [], [], grids)


def _draw_bubbles(rows: Sequence[Row], path: Path) -> None:
    traced = [row for row in rows if row.metric == "bubble" and row.params["form"] == TRACE]
    remats = [remat for remat in REMATS if any(row.remat == remat for row in traced)]
    if not traced:
        return
    colours = dict(zip(sorted({row.num_stages or 0 for row in traced}), (BLUE, ORANGE, GREEN, VERMILION), strict=False))
    with figure(path, 7.2, 3.1 * len(remats), *[1.0] * len(remats)) as (drawn, axes):
        for axis, remat in zip(axes, remats, strict=True):
            for stages, colour in colours.items():
                for form, style in ((WITHOUT_REMAT, ":"), (WITH_REMAT, "-")):
                    points = sorted(
                        (row.num_micro_batches or 0, 100 * row.value)
                        for row in rows
                        if row.metric == "bubble"
                        and (row.params["form"], row.params["panel"]) == (form, GRID)
                        and (row.num_stages, row.remat) == (stages, remat)
                    )
                    if points and (form == WITH_REMAT or remat != "never"):
                        axis.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.3)
                for panel, marker in ((GRID, "o"), (MINI_BATCH, "x")):
                    own = [
                        row
                        for row in traced
                        if (row.num_stages, row.remat, row.params["panel"]) == (stages, remat, panel)
                    ]
                    if own:
                        axis.errorbar(
                            [row.num_micro_batches or 0 for row in own],
                            [100 * row.value for row in own],
                            yerr=[100 * (row.spread or 0) for row in own],
                            fmt=marker,
                            color=colour,
                            markersize=5,
                            capsize=2,
                            label=f"K = {stages} ({own[0].provenance.value})" if remat == remats[0] else None,
                        )
            dotted = "; dotted: without R" if remat != "never" else ""
            axis.set_title(f"remat {remat} (points: traces; lines: closed form{dotted})")
            _number_axis(axis, traced)
            axis.set_ylabel("bubble (%)")
            axis.set_ylim(0, 100)
        drawn.legend(loc="outside upper right", ncols=len(colours) + 1, fontsize=8)


def _draw_costs(rows: Sequence[Row], path: Path) -> None:
    shown = (("throughput", "rows/s", 1.0), ("live_activations", "live activations (MiB)", float(2**20)))
    chosen = [row for row in rows if row.params.get("panel") in _PANELS and row.metric != "bubble"]
    stages = min(row.num_stages or 0 for row in chosen)
    with figure(path, 7.2, 11.0, *[1.0] * 4) as (drawn, axes):
        places = [(panel, *metric) for panel in _PANELS for metric in shown]
        for axis, (panel, metric, words, unit) in zip(axes, places, strict=True):
            for remat, colour in zip(REMATS, (BLUE, ORANGE), strict=True):
                own = [
                    row
                    for row in chosen
                    if (row.params["panel"], row.metric, row.remat, row.num_stages) == (panel, metric, remat, stages)
                ]
                axis.errorbar(
                    [row.num_micro_batches or 0 for row in own],
                    [row.value / unit for row in own],
                    yerr=[(row.spread or 0) / unit for row in own],
                    fmt="o-",
                    color=colour,
                    markersize=4,
                    capsize=2,
                    label=f"remat {remat}" if axis is axes[0] else None,
                )
            axis.axvspan(4 * stages, 8 * stages, color=GREY, alpha=0.15, linewidth=0)
            axis.set_title(f"{panel}, K = {stages} (measured; grey: M = 4K to 8K)")
            axis.set_ylabel(words)
            axis.set_ylim(bottom=0)
            _number_axis(axis, chosen)
        drawn.legend(loc="outside upper right", ncols=2)


def _number_axis(axis: Any, rows: Sequence[Row]) -> None:
    numbers = sorted({row.num_micro_batches for row in rows if row.num_micro_batches is not None})
    axis.set_xscale("log", base=2)
    axis.set_xticks(numbers, [str(number) for number in numbers])
    axis.set_xlabel("micro-batches M")


def _cells(rows: Sequence[Row], panel: str) -> list[tuple[int, int, str]]:
    found = {
        (row.num_stages or 0, row.num_micro_batches or 0, str(row.remat))
        for row in rows
        if row.params.get("panel") == panel and row.num_micro_batches is not None
    }
    return sorted(found, key=lambda cell: (cell[2] != "never", cell[0], cell[1]))


def _is(row: Row, panel: str, stages: int, number: int, remat: str) -> bool:
    known = (row.params.get("panel"), row.num_stages, row.num_micro_batches, row.remat)
    return known == (panel, stages, number, remat)


def _traced(row: Row, panel: str, stages: int, number: int, remat: str) -> bool:
    return row.metric == "bubble" and row.params["form"] == TRACE and _is(row, panel, stages, number, remat)


def _rate(row: Row | None) -> str:
    return NOTHING if row is None else f"{row.value:.1f} ± {row.spread or 0:.1f} rows/s"


def _bytes(row: Row | None) -> str:
    return NOTHING if row is None else f"{row.value / 2**20:.2f} MiB"
