"""The sections and the figure of the report on re-materialization."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.schedules import Remat

from .lines import NOTHING, Figure, Line, Section
from .loading import Results
from .style import BLACK, BLUE, GREEN, ORANGE, figure

PICTURE = "remat.png"
PICTURES = (PICTURE,)
_COLORS = {"always": BLUE, "except_last": ORANGE, "never": GREEN}
Key = tuple[str, int | None, int | None, str | None]


def sections(results: Results, reference: Results | None) -> list[Section]:
    """All sections for which there are rows."""
    rows = list(results.rows)
    others = list(reference.rows) if reference is not None else []
    made = [_costs(rows, others), _early(rows, others), _claims(rows, others)]
    return [section for section in made if section.lines]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Time and memory relative to remat never, cell by cell, two panels for each model."""
    models = list(dict.fromkeys(row.model for row in rows if row.metric == "time_ratio"))
    if not models:
        return
    with figure(folder / PICTURE, 7.5, 5.2 * len(models) + 0.5, *[1.0, 0.8] * len(models)) as (drawn, axes):
        for number, model in enumerate(models):
            times, sizes = axes[2 * number : 2 * number + 2]
            cells = list(dict.fromkeys((row.num_stages, row.num_micro_batches) for row in rows if row.model == model))
            for shift, remat in zip((-0.18, 0.0, 0.18), Remat, strict=True):
                mode, color = remat.value, _COLORS[remat.value]
                for place, cell in enumerate(cells):
                    key: Key = (model, *cell, mode)
                    measured = _find(rows, key, "time_ratio", Provenance.MEASURED)
                    expected = _find(rows, key, "time_ratio", Provenance.SIMULATED)
                    size = _find(rows, key, "memory_ratio", Provenance.MEASURED)
                    if measured is not None:
                        x, spread = place + shift, measured.spread or 0.0
                        times.errorbar([x], [measured.value], [spread], fmt="o", color=color)
                    if expected is not None:
                        times.plot([place + shift], [expected.value], "_", ms=14, color=color)
                    if size is not None:
                        sizes.bar([place + shift], [size.value], 0.16, color=color)
            for axis, what in ((times, "step time"), (sizes, "activation memory")):
                axis.set_xticks(range(len(cells)), [f"K={stages}, M={micro}" for stages, micro in cells])
                axis.set_ylabel(f"{what} /\nthat of never")
            times.set_title(model)
        drawn.legend(handles=_handles(), loc="outside upper center", ncols=3)


def _handles() -> list[Any]:
    """Colours are modes; what was simulated is a dash."""
    modes = [Patch(color=_COLORS[remat.value], label=f"remat {remat.value}") for remat in Remat]
    marks = [
        Line2D([], [], color=BLACK, linestyle="", marker=marker, ms=size, label=f"step time, {how}")
        for how, marker, size in ((Provenance.MEASURED, "o", 6), (Provenance.SIMULATED, "_", 14))
    ]
    return [*modes, *marks]


def _costs(rows: list[Row], others: list[Row]) -> Section:
    lines = []
    for key in _keys(rows, others):
        model, stages, micro_batches, mode = key
        name = f"{model}, K={stages}, M={micro_batches}, remat {mode}"
        if mode != "never":
            for provenance in (Provenance.MEASURED, Provenance.SIMULATED):
                lines += _line(f"{name}: step time / that of never", rows, others, key, "time_ratio", provenance)
            lines += _line(f"{name}: activation memory / that of never", rows, others, key, "memory_ratio")
        what = f"{name}: K x step time / that of one full device"
        lines += _line(what, rows, others, key, "device_time_ratio")
    known = next((row for row in (*rows, *others) if row.metric == "time_ratio"), None)
    rounds = f"{known.params['rounds']} rounds or more" if known is not None else "several rounds"
    text = (
        f"Scaled-down models without dropout; the modes take turns, {rounds}; ratios are of the same round, medians, ± "
        "half the interquartile range. *simulated*: GPipe's schedule replayed with the F and B that the run without "
        "remat had, R costing an F. Memory is the peak of the fullest rank (hooks on what autograd saves, in a step of "
        "its own). The combined cost is the time of all K devices against the unsplit model on one device, which has "
        "the whole mini-batch at once and keeps everything: bubble, imbalance, messages, smaller micro-batches and R "
        "together (below 1 where smaller micro-batches suit the caches). Cells with more stages than cores are left "
        "out: their ranks would take turns on a core. Stages that share a GPU add up, without a bubble."
    )
    caption = "Step time and activation memory relative to remat never; dashes: what the schedule gives (simulated)."
    return Section("Time and memory", text, lines, [Figure(PICTURE, caption)] if rows else ())


def _early(rows: list[Row], others: list[Row]) -> Section:
    lines = []
    for key in _keys(rows, others):
        name = f"{key[0]}, K={key[1]}, M={key[2]}"
        words = "R of the last micro-batch began before its gradient was made, share of traced cases"
        lines += _line(f"{name}: {words}", rows, others, key, "early_recompute", share=True)
        words = "share of that R's time that was over by then"
        lines += _line(f"{name}: {words}", rows, others, key, "hidden_recompute", share=True)
    text = (
        "R needs no gradient: on every stage but the last, that of the last micro-batch can run in the bubble before "
        "the first gradient arrives (section 2.3). Checked from the traced times of all ranks on one clock."
    )
    return Section("R runs before the gradient arrives", text, lines)


def _claims(rows: list[Row], others: list[Row]) -> Section:
    """Rules of thumb beside what was measured over all cells."""
    lines = []
    for mode in ("always", "except_last"):
        shown = [_over_all(some, mode) for some in (rows, others)]
        if any(shown):
            what = f"remat {mode} over all cells: more time, activation memory"
            lines.append(Line(what, Provenance.MEASURED.value, *(one or NOTHING for one in shown)))
    said = "; ".join(f'"{claim["claim"]}" ({claim["source"]})' for claim in published("remat_claims"))
    text = (
        f"What one reads: {said}. How much memory is saved is set by M, and by how much a layer keeps beside its "
        "input, not by remat as such: with M = 1 nothing is. Time is set by t_B / t_F: 1 / (1 + t_B/t_F) more without "
        "a bubble, which is a third at t_B = 2 t_F, and less in a pipeline, where the bubble hides a part of R. Both "
        "sayings fit some cells, neither is a property of the method."
    )
    return Section("Rules of thumb in circulation", text, lines)


def _over_all(rows: Sequence[Row], mode: str) -> str | None:
    times, sizes = (
        [
            row.value
            for row in rows
            if row.metric == metric and row.remat == mode and row.provenance is Provenance.MEASURED
        ]
        for metric in ("time_ratio", "memory_ratio")
    )
    if not times or not sizes:
        return None
    least, most = f"{1 / max(sizes):.1f}", f"{1 / min(sizes):.1f}"
    saved = most if least == most else f"{least} to {most}"
    return f"+{_range(100 * (min(times) - 1), 100 * (max(times) - 1))}, {saved}x less"


def _range(low: Any, high: Any) -> str:
    return f"{low:.0f}%" if round(low) == round(high) else f"{low:.0f} to {high:.0f}%"


def _line(
    what: str,
    rows: list[Row],
    others: list[Row],
    key: Key,
    metric: str,
    provenance: Provenance = Provenance.MEASURED,
    *,
    share: bool = False,
) -> list[Line]:
    own, other = (_find(some, key, metric, provenance) for some in (rows, others))
    if own is None and other is None:
        return []
    return [Line(what, provenance.value, *(_show(row, share) for row in (own, other)))]


def _show(row: Row | None, share: bool) -> str:
    if row is None:
        return NOTHING
    if share:
        return f"{100 * row.value:.0f}%"
    return f"{row.value:.3f}" + ("" if row.spread is None else f" ± {row.spread:.3f}") + "×"


def _keys(rows: Sequence[Row], others: Sequence[Row]) -> list[Key]:
    known = (row for row in (*rows, *others) if row.metric == "time_ratio")
    return list(dict.fromkeys((row.model, row.num_stages, row.num_micro_batches, row.remat) for row in known))


def _find(rows: Sequence[Row], key: Key, metric: str, provenance: Provenance) -> Row | None:
    return next(
        (
            row
            for row in rows
            if row.metric == metric
            and row.provenance is provenance
            and (row.model, row.num_stages, row.num_micro_batches, row.remat) == key
        ),
        None,
    )
