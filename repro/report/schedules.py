"""The report on the schedules: step time, bubble and live activations, emulated beside simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from repro.experiments.schedules.schedules import IDEAL, REPLAY
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, line, show
from .loading import Results
from .style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure

PICTURES = ("schedules.png",)
_COLOURS = (BLUE, VERMILION, ORANGE, GREEN, PURPLE, SKY)
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
    pictures = [Figure("schedules.png", "Bubble and live activations: bars are emulated, circles simulated.")]
    return [
        Section("Step times of the schedules", _TEXT, shown, grids=times),
        Section("The bubble, and what it costs in memory", _MEMORY, [], pictures, memory),
    ]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``schedules.png``: for each K and remat the bubble of every schedule and M, and below it the live activations."""
    panels = _panels(rows)
    if not panels:
        return
    colours = dict(zip(dict.fromkeys(row.schedule for row in rows), _COLOURS, strict=False))
    shapes = [1.0, 0.7] * len(panels)
    with figure(folder / "schedules.png", 8.4, 4.2 * len(panels) + 0.7, *shapes) as (drawn, axes):
        for number, (stages, remat) in enumerate(panels):
            own = [row for row in rows if (row.num_stages, row.remat) == (stages, remat)]
            bubbles, peaks = axes[2 * number : 2 * number + 2]
            _draw_bars(bubbles, own, "bubble", 100.0, colours)
            _draw_bars(peaks, own, "peak_live_ranks", 1.0, colours)
            bubbles.set_title(f"K = {stages}, remat {remat} (bars: emulated; circles: simulated)")
            bubbles.set_ylabel("bubble (%)")
            peaks.set_ylabel("live activations\n(micro-batches)")
            peaks.set_xlabel("M")
        handles: list[Any] = [Patch(color=colour, label=_full_name(rows, name)) for name, colour in colours.items()]
        drawn.legend(handles=handles, loc="outside upper center", ncols=3)


def _draw_bars(axis: Any, rows: Sequence[Row], metric: str, unit: float, colours: Mapping[str | None, str]) -> None:
    """A group of bars for each schedule, one bar for each M."""
    place, ticks = 0.0, []
    for name, colour in colours.items():
        own = [row for row in rows if (row.schedule, row.metric) == (name, metric)]
        for micro_batches in sorted({row.num_micro_batches or 0 for row in own}):
            values = {row.provenance: unit * row.value for row in own if row.num_micro_batches == micro_batches}
            axis.bar(place, values.get(Provenance.EMULATED, 0.0), 0.8, color=colour)
            if Provenance.SIMULATED in values:
                axis.plot(place, values[Provenance.SIMULATED], "o", color=BLACK, fillstyle="none", markersize=5)
            ticks.append((place, str(micro_batches)))
            place += 1.0
        place += 0.7
    axis.set_xticks([where for where, _ in ticks], [text for _, text in ticks], fontsize=8)
    axis.grid(axis="x", visible=False)


def _full_name(rows: Sequence[Row], schedule: str | None) -> str:
    virtual = max(int(row.params["num_virtual_stages"]) for row in rows if row.schedule == schedule)
    return f"{schedule} (V = {virtual})" if virtual > 1 else str(schedule)


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
