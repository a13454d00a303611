"""The figures of Tables 2 and 3, drawn from rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.throughput.rows import IDEAL
from repro.experiments.throughput.table import REMATS

from .style import BLACK, BLUE, GREEN, GREY, SKY, VERMILION, figure
from .throughput import Wanted, cells_of, models_of, published_ratios, scaled_name, torchgpipe_cells

_BARS = ((Provenance.SIMULATED, SKY), (Provenance.EMULATED, BLUE), (Provenance.MEASURED, GREEN))
_WIDTH = 0.27


def draw_table(name: str, rows: Sequence[Row], path: Path) -> Path:
    """For each model, the cells side by side: bars for ours, diamonds for what is published, dashes for the ideal."""
    models = models_of(rows)
    emulated = {row.remat for row in rows if row.provenance is Provenance.EMULATED}
    remat = next((remat for remat in REMATS if remat in emulated), REMATS[0])
    with figure(path, 9.0, 3.3 * len(models) + 0.4, *[1.0] * len(models)) as (_, axes):
        for axis, model in zip(axes, models, strict=True):
            cells = cells_of(rows, model)
            places = range(len(cells))
            for number, (provenance, colour) in enumerate(_BARS):
                wanted = Wanted(model, provenance)
                found = [wanted.of(rows, cell, remat) for cell in cells]
                if not any(found):
                    continue
                label = f"measured, {scaled_name(rows, model)}" if provenance is Provenance.MEASURED else provenance
                axis.bar(
                    [place + (number - 1) * _WIDTH for place in places],
                    [0.0 if row is None else row.value for row in found],
                    yerr=[0.0 if row is None or row.spread is None else row.spread for row in found],
                    width=_WIDTH,
                    color=colour,
                    label=label,
                )
            ideal = [Wanted(model, Provenance.SIMULATED, IDEAL).of(rows, cell, remat) for cell in cells]
            for place, row in zip(places, ideal, strict=True):
                if row is not None:
                    axis.hlines(
                        row.value,
                        place - 1.5 * _WIDTH,
                        place + 1.5 * _WIDTH,
                        color=VERMILION,
                        linestyle="--",
                        label="ideal, equal stages" if place == 0 else None,
                    )
            paper = published_ratios(name, model)
            known = [place for place, cell in zip(places, cells, strict=True) if cell in paper]
            axis.plot(known, [paper[cells[place]] for place in known], "D", color=BLACK, label="paper (published)")
            peers = torchgpipe_cells(model) if name == "table2" else {}
            known = [place for place, cell in zip(places, cells, strict=True) if cell in peers]
            if known:
                axis.plot(
                    known,
                    [peers[cells[place]][0] for place in known],
                    "x",
                    color=GREY,
                    markeredgewidth=2,
                    label="torchgpipe (published)",
                )
            axis.set_xticks(list(places), [f"K={k}, M={m}" for k, m in cells])
            axis.grid(axis="x", visible=False)
            axis.set_ylabel("relative throughput")
            axis.set_title(f"{model}, remat {remat}")
            axis.legend(loc="upper left")
    return path
