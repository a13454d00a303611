"""The figures of ``repro reproduce``, each drawn from rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from repro.experiments.costs.workload import BARE_LOOP, ENGINE, ONE_PROCESS, TORCH
from repro.experiments.sweeps.rows import Provenance, Row

from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, figure

_KINDS = {"F": (SKY, "F forward"), "R": (ORANGE, "R recompute"), "B": (GREEN, "B backward")}
_RUNS = ((BLACK, "-", 4.5), (ORANGE, "--", 2.6), (BLUE, ":", 1.6), (VERMILION, "-.", 1.2))
_WINDOWS = 20


def draw_all(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draws every figure for which there are rows; returns their files."""
    drawn = []
    for experiment, draw in (("agreement", draw_losses), ("timeline", draw_timeline), ("learning", draw_learning)):
        name = {"agreement": "loss"}.get(experiment, experiment)
        for task in dict.fromkeys(row.params["task"] for row in rows if row.experiment == experiment):
            chosen = [row for row in rows if row.experiment == experiment and row.params["task"] == task]
            drawn.append(draw(chosen, folder / f"{name}_{task}.png"))
    speed = [row for row in rows if row.experiment == "step_time"]
    if speed:
        drawn.append(draw_step_times(speed, folder / "step_time.png"))
    return drawn


def draw_losses(rows: Sequence[Row], path: Path) -> Path:
    """Loss curves of runs that differ in K on top of each other, and their relative differences below."""
    curves = _curves(rows, "loss")
    reference = next((run for run in curves if run[0] == 1), next(iter(curves)))
    wanted = dict(zip(*curves[reference], strict=True))
    with figure(path, 7.2, 4.8, 3, 1.4) as (_, (upper, lower)):
        for (run, (steps, losses)), (colour, style, width) in zip(curves.items(), _RUNS, strict=False):
            upper.plot(steps, losses, style, color=colour, linewidth=width, label=_name(run), alpha=0.9)
            if run != reference:
                off = [abs(loss - wanted[step]) / abs(wanted[step]) for step, loss in zip(steps, losses, strict=True)]
                lower.plot(steps, off, style, color=colour, linewidth=1.6, marker="o", markersize=3)
        known = rows[0]
        upper.set_title(f"{known.model} on {known.params['data']}: M = {known.num_micro_batches}, same seed (measured)")
        upper.set_ylabel("training loss (nat)")
        upper.legend()
        upper.set_xticklabels([])
        lower.set_yscale("symlog", linthresh=1e-8)
        lower.set_ylim(-2e-9, 1e-4)
        lower.set_yticks([0, 1e-8, 1e-6, 1e-4])
        lower.set_yticklabels(["0", "1e-8", "1e-6", "1e-4"])
        lower.axhline(6e-8, color=GREY, linewidth=0.8)
        lower.text(1, 8e-8, "rounding of float32", fontsize=8, color=GREY, va="bottom")
        lower.set_ylabel("relative\ndifference to K=1")
        lower.set_xlabel("step")
        for panel in (upper, lower):
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_xlim(min(wanted) - 0.5, max(wanted) + 0.5)
    return path


def draw_timeline(rows: Sequence[Row], path: Path) -> Path:
    """One step of each way: ranks as rows, actions as bars with their micro-batch, the bubble hatched."""
    by_way: dict[tuple[int | None, str], list[Row]] = {}
    for row in rows:
        by_way.setdefault((row.num_stages, row.params["way"]), []).append(row)
    panels = sorted(by_way.items(), key=lambda item: item[0][0] or 0)
    heights = [1.0 + (stages or 1) for (stages, _), _ in panels]
    with figure(path, 10.5, 0.62 * sum(heights) + 1.2, *heights) as (drawn, axes):
        for axis, ((stages, way), actions) in zip(axes, panels, strict=True):
            _draw_step(axis, stages or 1, way, actions)
        handles = [Patch(color=colour, label=name) for colour, name in _KINDS.values()]
        handles.append(Patch(facecolor="#F2F2F2", edgecolor="#BBBBBB", hatch="////", label="bubble (idle)"))
        drawn.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return path


def draw_step_times(rows: Sequence[Row], path: Path) -> Path:
    """Step time of each way with its spread, and the ideal."""
    times = {row.params["way"]: row for row in rows if row.metric == "step_time"}
    names = [name for name in (ONE_PROCESS, TORCH, BARE_LOOP, ENGINE) if name in times]
    colours = {ENGINE: BLUE, BARE_LOOP: GREY, TORCH: ORANGE, ONE_PROCESS: PURPLE}
    with figure(path, 7.2, 2.7, 1) as (_, (axis,)):
        values = [1000 * times[name].value for name in names]
        spreads = [1000 * (times[name].spread or 0) for name in names]
        axis.barh(names, values, xerr=spreads, color=[colours[name] for name in names], height=0.6, capsize=3)
        for place, (name, value, spread) in enumerate(zip(names, values, spreads, strict=True)):
            label = f"{value:.0f} ms" + ("" if name == ONE_PROCESS else f", K={times[name].num_stages}")
            axis.text(value + spread + 0.015 * max(values), place, label, va="center", fontsize=9)
        ideal = next((row for row in rows if row.params.get("way") == "ideal"), None)
        if ideal is not None and ONE_PROCESS in times:
            at = 1000 * times[ONE_PROCESS].value * ideal.value
            axis.axvline(at, color=VERMILION, linestyle="--", linewidth=1.2)
            words = f" ideal {ideal.value:.2f}× one process (simulated)"
            axis.text(at, len(names) - 0.5, words, color=VERMILION, fontsize=8.5, va="center")
        axis.set_ylim(-0.6, len(names) - 0.25)
        axis.set_xlim(0, 1.25 * max(v + s for v, s in zip(values, spreads, strict=True)))
        axis.grid(axis="y", visible=False)
        known = rows[0]
        axis.set_title(f"Step time, {known.model}, M = {known.num_micro_batches} (measured)", pad=14)
        axis.set_xlabel("step time (ms), one thread a process; bars: half the interquartile range")
    return path


def draw_learning(rows: Sequence[Row], path: Path) -> Path:
    """The training loss of the longer run, and what it reached on held-out data."""
    ((stages, _), (steps, losses)), *_ = _curves(rows, "loss").items()
    held_out = {row.metric: row.value for row in rows if row.params.get("part") == "held out"}
    with figure(path, 7.2, 3.4, 1) as (_, (axis,)):
        axis.plot(steps, losses, color=SKY, linewidth=1, label="mini-batch")
        axis.plot(steps, _running_mean(losses), color=BLUE, linewidth=2, label="running mean")
        known = rows[0]
        axis.set_title(
            f"{known.model} on {known.params['data']}: K = {stages}, M = {known.num_micro_batches} (measured)"
        )
        axis.set_xlabel("step")
        axis.set_ylabel("training loss (nat)")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, max(steps))
        axis.legend(loc="upper right")
        words = _held_out(held_out)
        if words:
            # Below the legend: the curve is low there.
            axis.text(
                0.98,
                0.72,
                words,
                ha="right",
                transform=axis.transAxes,
                fontsize=9,
                va="top",
                bbox={"facecolor": "white", "edgecolor": "#CCCCCC", "boxstyle": "round,pad=0.4"},
            )
    return path


def _held_out(values: dict[str, float]) -> str:
    lines = []
    if "bleu" in values:
        lines.append(
            f"held-out BLEU {values['bleu']:.1f} (copying the source {values['bleu_copy']:.1f}, "
            f"nearest neighbour {values['bleu_nearest']:.1f})"
        )
    if "nll" in values and "unigram_nll" in values:
        lines.append(f"held-out NLL {values['nll']:.2f} nat per token (unigram model {values['unigram_nll']:.2f})")
    if not lines and "accuracy" in values:
        lines.append(f"held-out accuracy {100 * values['accuracy']:.1f}%")
    return "\n".join(lines)


def _draw_step(axis: Any, stages: int, way: str, actions: Sequence[Row]) -> None:
    end = max(row.params["start"] + row.value for row in actions)
    busy = sum(row.value for row in actions)
    for rank in range(stages):
        axis.barh(rank, 1000 * end, height=0.8, color="#F2F2F2", edgecolor="#C4C4C4", hatch="////", linewidth=0)
    for row in actions:
        colour, _ = _KINDS[row.params["kind"]]
        start, width = 1000 * row.params["start"], 1000 * row.value
        axis.barh(row.params["rank"], width, left=start, height=0.8, color=colour, edgecolor="white", linewidth=0.6)
        if width > 0.008 * 1000 * end:
            axis.text(
                start + width / 2,
                row.params["rank"],
                str(row.params["micro_batch"]),
                ha="center",
                va="center",
                fontsize=8,
            )
    simulated = actions[0].provenance is Provenance.SIMULATED
    how = "simulated from the traced costs" if simulated else "measured"
    names = "local stages" if simulated else way
    axis.set_xlabel("time (ms)")
    known, bubble = actions[0], 1 - busy / (stages * end)
    axis.set_title(f"{known.model}, K = {stages} ({names}), M = {known.num_micro_batches}: bubble {bubble:.1%} ({how})")
    axis.set_yticks(range(stages), [f"{'stage' if simulated else 'rank'} {rank}" for rank in range(stages)])
    axis.invert_yaxis()
    axis.set_xlim(0, 1000 * end)
    axis.grid(visible=False)
    axis.tick_params(axis="y", length=0)


def _curves(rows: Sequence[Row], metric: str) -> dict[tuple[int | None, str], tuple[list[int], list[float]]]:
    """By (K, way), the steps and the values of a metric."""
    found: dict[tuple[int | None, str], tuple[list[int], list[float]]] = {}
    for row in rows:
        if row.metric == metric and row.params.get("part") == "train":
            steps, values = found.setdefault((row.num_stages, row.params["way"]), ([], []))
            steps.append(row.params["step"])
            values.append(row.value)
    return found


def _name(run: tuple[int | None, str]) -> str:
    stages, way = run
    return f"K = {stages}" + ("" if way == "one stage" else f" ({way})")


def _running_mean(values: Sequence[float]) -> list[float]:
    window = max(5, len(values) // _WINDOWS)
    return [sum(values[max(0, at + 1 - window) : at + 1]) / min(window, at + 1) for at in range(len(values))]
