"""The section and the figure of the report on the planner's order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from repro.experiments.sweeps.rows import Provenance, Row

from .lines import Figure, Line, Section, line
from .loading import Results
from .style import BLUE, GREEN, ORANGE, VERMILION, figure

PICTURE = "plan.png"
PICTURES = (PICTURE,)
_COLOURS = {"gpipe": BLUE, "1f1b": ORANGE, "interleaved": GREEN, "zb-h1": VERMILION}
_MARKS = {"never": "o", "always": "s"}
Key = tuple[int | None, str | None, int | None, str | None]


def sections(results: Results, reference: Results | None) -> list[Section]:
    """How well the orders agree, and both times of every choice."""
    rows, others = results.rows, () if reference is None else reference.rows
    lines: list[Line | None] = []
    for stages in dict.fromkeys(row.num_stages for row in (*rows, *others)):
        for metric, words in (
            ("kendall_tau", "rank correlation (Kendall's tau-b) of predicted and measured step times"),
            ("regret", "measured time of the choice predicted to be fastest / of the fastest"),
        ):
            lines.append(
                line(
                    f"K = {stages}: {words}",
                    rows,
                    others,
                    lambda row, metric=metric, stages=stages: row.metric == metric and row.num_stages == stages,  # type: ignore[misc]
                )
            )
    for key in dict.fromkeys(_key(row) for row in (*rows, *others) if row.metric == "step_time"):
        stages, schedule, number, remat = key
        for provenance in (Provenance.SIMULATED, Provenance.MEASURED):
            lines.append(
                line(
                    f"K = {stages}, {schedule}, M = {number}, remat {remat}: step time",
                    rows,
                    others,
                    lambda row, key=key, provenance=provenance: (  # type: ignore[misc]
                        row.metric == "step_time" and _key(row) == key and row.provenance is provenance
                    ),
                )
            )
    text = (
        "A scaled-down Transformer, each stage a process of its own. Before anything is run the planner gets what "
        "`repro plan --costs profile` gives it: seconds of every layer with one row and with eight, and the time of a "
        "small and of a large message. It predicts the step time of every choice; then all choices run in turns. The "
        "planner is there to choose, so what counts is the order: tau is 1 for the same order and 0 for an unrelated "
        "one. Simulated figures leave out what the engine itself takes, and that ranks disturb each other."
    )
    caption = (
        "Each point is one choice, a panel for each M: the step time that the planner simulates, and the measured one."
    )
    return [Section("The order of plans", text, [one for one in lines if one is not None], [Figure(PICTURE, caption)])]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Measured against predicted step time, a panel for each M."""
    predicted = _times(rows, Provenance.SIMULATED)
    measured = _times(rows, Provenance.MEASURED)
    if not measured:
        return
    numbers = sorted({row.num_micro_batches or 0 for row in measured.values()})
    choices = list(dict.fromkeys((schedule, remat) for _, schedule, _, remat in measured))
    with figure(folder / PICTURE, 6.5, 2.6 * len(numbers) + 0.8, *[1.0] * len(numbers)) as (drawn, axes):
        for axis, number in zip(axes, numbers, strict=True):
            shown = {key: row for key, row in measured.items() if row.num_micro_batches == number}
            for key, row in shown.items():
                x, y, spread = (1000 * value for value in (predicted[key].value, row.value, row.spread or 0.0))
                axis.errorbar(x, y, spread, **_look(row.schedule, row.remat))
            times = [1000 * value for key, row in shown.items() for value in (predicted[key].value, row.value)]
            axis.axline((min(times), min(times)), slope=1, color="#BBBBBB", lw=1, zorder=0)
            axis.margins(x=0.15)
            axis.set_title(f"M = {number} (line: measured as simulated)")
            axis.set_ylabel("measured [ms]")
        axes[-1].set_xlabel("step time, simulated from profiled costs [ms]")
        handles = [
            Line2D([], [], linestyle="", marker=look["fmt"], color=look["color"], label=f"{schedule}, remat {remat}")
            for schedule, remat in choices
            for look in (_look(schedule, remat),)
        ]
        drawn.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)


def _look(schedule: str | None, remat: str | None) -> dict[str, Any]:
    """Of a choice: the colour is the schedule, the mark the re-materialization."""
    return {"fmt": _MARKS[remat or "never"], "color": _COLOURS[schedule or "gpipe"]}


def _times(rows: Sequence[Row], provenance: Provenance) -> dict[Key, Row]:
    return {_key(row): row for row in rows if row.metric == "step_time" and row.provenance is provenance}


def _key(row: Row) -> Key:
    return row.num_stages, row.schedule, row.num_micro_batches, row.remat
