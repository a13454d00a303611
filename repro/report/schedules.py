"""The report on the schedules: step time, bubble and live activations, emulated beside simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repro.experiments.schedules.schedules import IDEAL, REPLAY
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, line, show
from .loading import Results
from .style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure

PICTURES = ("schedules.png",)
_COLOURS = (BLUE, VERMILION, ORANGE, GREEN, PURPLE, SKY)
_MARKERS = "osD^vP"
Cell = tuple[int | None, int | None, str | None, str | None, int]
"""K, M, remat, schedule, V."""

_TEXT = (
    "Every schedule that the engine executes, on K processes whose stages are equal and wait where real ones compute; "
    "engine, schedule and messages are real. Each rank takes the same time over a micro-batch under every schedule: V "
    "stages of a rank take 1/V of it each, and where the backward is split I and W take half of it each. The schedules "
    "run in turns, so that what disturbs the machine disturbs all alike. A step lasts from the first rank's start to "
    "the last one's end, the bubble is from its trace, and live activations are counted while it runs. The simulator "
    "replays the same schedule twice: with the same waits, messages and engine free (what the schedule gives); and "
    "with what actions, the time between them and messages cost in the trace of each step (whether the engine runs the "
    "schedule as it stands; the difference in the last column is from this one). Between the two lies what engine and "
    "messages cost on this machine: the more actions and messages, the more."
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
    times: list[Grid] = []
    memory: list[Grid] = []
    lines: list[Line | None] = []
    heads = ["emulated", "simulated", "simulated with traced costs", "emulated beyond that"]
    both = [f"{what} ({how})" for what in ("bubble", "live activations") for how in ("emulated", "simulated")]
    for stages, remat in _panels(rows):
        cells = [cell for cell in dict.fromkeys(map(_cell, rows)) if (cell[0], cell[2]) == (stages, remat)]
        slow, big = [], []
        for cell in cells:
            own = {_kind(row): row for row in rows if _cell(row) == cell}
            emulated, ideal, replay = (own.get((form, "step_time")) for form in (None, IDEAL, REPLAY))
            slow.append([_words(cell), show(emulated), show(ideal), show(replay), _beyond(replay)])
            bubbles = [show(own.get((form, "bubble"))) for form in (None, IDEAL)]
            peaks = [_count(own.get((form, "peak_live_ranks"))) for form in (None, IDEAL)]
            big.append([_words(cell), *bubbles, *peaks])
            if others:
                what = f"K = {stages}, remat {remat}, {_words(cell)}: step time"
                lines.append(line(what, rows, others, _step_time_of(cell)))
        title = f"K = {stages}, remat {remat}: {rows[0].model}"
        times.append(Grid(title, ["schedule", *heads], slow))
        memory.append(Grid(title, ["schedule", *both], big))
    shown = [one for one in lines if one is not None]
    pictures = [Figure("schedules.png", "Bubble against live activations: points are emulated, circles simulated.")]
    return [
        Section("Step times of the schedules", _TEXT, shown, grids=times),
        Section("The bubble, and what it costs in memory", _MEMORY, [], pictures, memory),
    ]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``schedules.png``: a panel for each K and remat."""
    panels = _panels(rows)
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


def _panels(rows: Sequence[Row]) -> list[tuple[int | None, str | None]]:
    return list(dict.fromkeys((row.num_stages, row.remat) for row in rows))


def _cell(row: Row) -> Cell:
    return row.num_stages, row.num_micro_batches, row.remat, row.schedule, row.params["num_virtual_stages"]


def _kind(row: Row) -> tuple[str | None, str]:
    return row.params.get("form"), row.metric


def _step_time_of(cell: Cell) -> Callable[[Row], bool]:
    return lambda row: _cell(row) == cell and _kind(row) == (None, "step_time")


def _words(cell: Cell) -> str:
    _, number, _, schedule, virtual = cell
    return f"M = {number}: {schedule}" + (f" (V = {virtual})" if virtual > 1 else "")


def _beyond(replay: Row | None) -> str:
    return NOTHING if replay is None else f"{100 * replay.params['beyond']:+.1f}%"


def _count(row: Row | None) -> str:
    return NOTHING if row is None else f"{row.value:g}"
