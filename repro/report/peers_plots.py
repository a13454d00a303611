"""The figures of ``repro run peers``, drawn from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.experiments.costs.workload import (
    BARE_LOOP,
    ENGINE,
    ENGINE_1F1B,
    IDEAL,
    ONE_PROCESS,
    TORCH,
    TORCH_1F1B,
    TORCHGPIPE,
)
from repro.experiments.peers.peer_comparison import IDEAL_LIMIT, SMALL_BOUNDARY
from repro.experiments.sweeps.rows import Row

from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, figure

_COLOURS = {
    ENGINE: BLUE,
    ENGINE_1F1B: SKY,
    BARE_LOOP: GREY,
    TORCH: ORANGE,
    TORCH_1F1B: VERMILION,
    TORCHGPIPE: GREEN,
    ONE_PROCESS: PURPLE,
}
_MARKERS = {
    ENGINE: "o",
    ENGINE_1F1B: "P",
    BARE_LOOP: "s",
    TORCH: "^",
    TORCH_1F1B: "v",
    TORCHGPIPE: "D",
    ONE_PROCESS: "X",
}


def draw_real(rows: Sequence[Row], path: Path) -> Path:
    """Paired ratios of the engine's step time to each other way's, over M."""
    ratios = [row for row in rows if row.metric == "step_time_ratio" and row.params["way"] == ENGINE]
    micro_batches = sorted({row.num_micro_batches or 0 for row in ratios})
    ways = [way for way in _COLOURS if any(row.params["reference"] == way for row in ratios)]
    with figure(path, 7.2, 3.4, 1) as (drawn, (axis,)):
        for number, way in enumerate(ways):
            chosen = [row for row in ratios if row.params["reference"] == way]
            shift = 0.6 * ((number + 0.5) / len(ways) - 0.5)
            axis.errorbar(
                [micro_batches.index(row.num_micro_batches or 0) + shift for row in chosen],
                [row.value for row in chosen],
                [row.spread or 0.0 for row in chosen],
                fmt=_MARKERS[way],
                color=_COLOURS[way],
                capsize=3,
                label=way,
            )
        axis.axhline(1.0, color=BLACK, linewidth=0.8)
        axis.set_xticks(range(len(micro_batches)), [f"M={number}" for number in micro_batches])
        axis.set_xlim(-0.5, len(micro_batches) - 0.5)
        axis.set_ylabel("step time of this engine /\nthat of the other")
        axis.set_title("Real layers, K = 2, paired ratios (measured); below 1 this engine is faster")
        drawn.legend(loc="outside lower center", ncols=3)
    return path


def draw_emulated(rows: Sequence[Row], path: Path) -> Path:
    """Step time of every way relative to the waits alone, a panel for each size of boundary."""
    chosen = [row for row in rows if row.params.get("reference") == IDEAL]
    sizes = sorted({row.params["boundary_bytes"] for row in chosen})
    cells = sorted({(row.num_stages or 0, row.num_micro_batches or 0) for row in chosen})
    ways = [way for way in _COLOURS if any(row.params["way"] == way for row in chosen)]
    with figure(path, 7.2, 1.0 + 2.1 * len(sizes), *[1.0] * len(sizes)) as (drawn, axes):
        for axis, size in zip(axes, sizes, strict=True):
            for number, way in enumerate(ways):
                shown = [row for row in chosen if (row.params["way"], row.params["boundary_bytes"]) == (way, size)]
                shift = 0.5 * ((number + 0.5) / len(ways) - 0.5)
                axis.errorbar(
                    [cells.index((row.num_stages or 0, row.num_micro_batches or 0)) + shift for row in shown],
                    [row.value for row in shown],
                    [row.spread or 0.0 for row in shown],
                    fmt=_MARKERS[way],
                    color=_COLOURS[way],
                    capsize=3,
                    label=way if axis is axes[0] else None,
                )
            axis.axhline(1.0, color=BLACK, linewidth=0.8)
            if size == SMALL_BOUNDARY:
                axis.axhline(IDEAL_LIMIT, color=GREY, linewidth=0.8, linestyle="--")
            axis.set_xticks(range(len(cells)), [f"K={stages}\nM={number}" for stages, number in cells])
            axis.set_xlim(-0.5, len(cells) - 0.5)
            axis.set_ylabel(f"step time /\n{IDEAL}")
            axis.set_title(f"Equal stages, boundaries of {size // 1024} KiB (emulated)")
        drawn.legend(loc="outside lower center", ncols=2)
    return path
