"""The report on the schedules: step time, bubble and live activations, emulated beside simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.experiments.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Section, line, show
from .loading import Results
from .style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure

PICTURES = ("schedules.png",)
_COLOURS = (BLUE, VERMILION, ORANGE, GREEN, PURPLE, SKY)
_MARKERS = "osD^vP"
_TEXT = (
    "Every schedule that the engine executes, on K processes whose stages are equal and wait where real ones compute; "
    "engine, schedule and messages are real. Each rank takes the same time over a micro-batch under every schedule: V "
    "stages of a rank take 1/V of it each, and where the backward is split I and W take half of it each. The schedules "
    "run in turns, so that what disturbs the machine disturbs all alike. A step lasts from the first rank's start to "
    "the last one's end, the bubble is from its trace, and live activations are counted while it runs. The simulator "
    "replays the same schedule with the same times, and with messages and engine free: what the emulation says beyond "
    "it is what they cost here, and noise."
)
_MEMORY = (
    "Live activations are the micro-batches whose activations a rank keeps at once, on the rank with most of them, "
    "counted in micro-batches of all its layers: with V stages a rank one micro-batch of one stage counts 1/V. With "
    "re-materialization only what R has made again is counted, not the inputs of the stages that all schedules keep "
    "for it; schedules that split the backward hold what R made until W. 1F1B has GPipe's bubble and keeps K where "
    "GPipe keeps M; the others buy a smaller bubble with more messages, more activations, or a split backward."
)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """Step times, and the bubble against memory."""
    rows, others = results.rows, () if reference is None else reference.rows
    if not rows:
        return []
    times, memory = [], []
    lines = []
    for cell in dict.fromkeys(map(_cell, rows)):
        stages, number, remat = cell
        where = f"K = {stages}, M = {number}, remat {remat}"
        for name in dict.fromkeys(row.schedule for row in rows):
            own = {(row.provenance, row.metric): row for row in rows if _cell(row) == cell and row.schedule == name}
            if not own:
                continue
            known = next(iter(own.values()))
            virtual = int(known.params["num_virtual_stages"])
            what = f"{where}: {name}" + (f" (V = {virtual})" if virtual > 1 else "")
            emulated, simulated = (own.get((how, "step_time")) for how in (Provenance.EMULATED, Provenance.SIMULATED))
            times.append([what, show(emulated), show(simulated), _beyond(emulated, simulated)])
            memory.append(
                [
                    what,
                    *(
                        tell(own.get((how, metric)))
                        for metric, tell in (("bubble", show), ("peak_live_ranks", _count))
                        for how in (Provenance.EMULATED, Provenance.SIMULATED)
                    ),
                ]
            )
            if others:
                found = line(
                    f"{what}, step time",
                    rows,
                    others,
                    lambda row, at=(cell, name): (  # type: ignore[misc]
                        (_cell(row), row.schedule) == at
                        and (row.provenance, row.metric) == (Provenance.EMULATED, "step_time")
                    ),
                )
                lines += [found] if found else []
    heads = ["step time (emulated)", "step time (simulated)", "difference"]
    both = [f"{what} ({how})" for what in ("bubble", "live activations") for how in ("emulated", "simulated")]
    pictures = [Figure("schedules.png", "Bubble against live activations: points are emulated, circles simulated.")]
    return [
        Section("Step times of the schedules", _TEXT, lines, [], [Grid(_model(rows), ["schedule", *heads], times)]),
        Section(
            "The bubble and what it costs in memory",
            _MEMORY,
            [],
            pictures,
            [Grid(_model(rows), ["schedule", *both], memory)],
        ),
    ]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``schedules.png``: a panel for each K and remat."""
    panels = list(dict.fromkeys((row.num_stages, row.remat) for row in rows))
    if not panels:
        return
    names = list(dict.fromkeys(row.schedule for row in rows))
    looks = dict(zip(names, zip(_COLOURS, _MARKERS, strict=True), strict=False))
    with figure(folder / "schedules.png", 7.2, 3.3 * len(panels) + 0.6, *[1.0] * len(panels)) as (drawn, axes):
        for axis, (stages, remat) in zip(axes, panels, strict=True):
            own = [row for row in rows if (row.num_stages, row.remat) == (stages, remat)]
            _draw_panel(axis, own, looks, label=axis is axes[0])
            axis.set_title(f"K = {stages}, remat {remat} (points: emulated; circles: simulated; numbers: M)")
        drawn.legend(loc="outside upper center", ncols=3)


def _draw_panel(axis: Any, rows: Sequence[Row], looks: dict[str | None, tuple[str, str]], *, label: bool) -> None:
    ticks = set()
    for name, (colour, marker) in looks.items():
        for how in (Provenance.SIMULATED, Provenance.EMULATED):
            own = [row for row in rows if (row.schedule, row.provenance) == (name, how)]
            numbers = sorted({row.num_micro_batches or 0 for row in own})
            bubbles, peaks = (
                [
                    next(row.value for row in own if (row.metric, row.num_micro_batches) == (metric, number))
                    for number in numbers
                ]
                for metric in ("bubble", "peak_live_ranks")
            )
            if not numbers:
                continue
            heights = [100 * value for value in bubbles]
            ticks |= set(peaks)
            if how is Provenance.SIMULATED:
                axis.plot(peaks, heights, "o", color=colour, markersize=11, fillstyle="none", linewidth=1.0)
                continue
            virtual = int(own[0].params["num_virtual_stages"])
            words = f"{name} (V = {virtual})" if virtual > 1 else name
            style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.0, "alpha": 0.9}
            axis.plot(peaks, heights, **style, label=words if label else None)
            for place in zip(peaks, heights, numbers, strict=True):
                axis.annotate(str(place[2]), place[:2], textcoords="offset points", xytext=(7, 3), fontsize=7)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    axis.minorticks_off()
    axis.set_xlabel("live activations (micro-batches of a rank)")
    axis.set_ylabel("bubble (%)")
    axis.set_ylim(bottom=0)


def _cell(row: Row) -> tuple[int | None, int | None, str | None]:
    return row.num_stages, row.num_micro_batches, row.remat


def _model(rows: Sequence[Row]) -> str:
    return rows[0].model.capitalize()


def _beyond(emulated: Row | None, simulated: Row | None) -> str:
    if emulated is None or simulated is None:
        return NOTHING
    return f"{100 * (emulated.value / simulated.value - 1):+.1f}%"


def _count(row: Row | None) -> str:
    return NOTHING if row is None else f"{row.value:g}"
