"""The section and the figure of the report on the planner's order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    caption = "Each point is one choice: the step time that the planner simulates, and what was measured."
    return [Section("The order of plans", text, [one for one in lines if one is not None], [Figure(PICTURE, caption)])]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Measured against predicted step time."""
    predicted = _times(rows, Provenance.SIMULATED)
    measured = _times(rows, Provenance.MEASURED)
    if not measured:
        return
    with figure(folder / PICTURE, 6.5, 5.0, 1.0) as (_, (axis,)):
        labelled: set[str] = set()
        for key, row in measured.items():
            _, schedule, number, remat = key
            label = f"{schedule}, remat {remat}"
            x, y = 1000 * predicted[key].value, 1000 * row.value
            axis.errorbar(
                x,
                y,
                1000 * (row.spread or 0.0),
                fmt=_MARKS[remat or "never"],
                color=_COLOURS[schedule or "gpipe"],
                label=label if label not in labelled else None,
            )
            axis.annotate(f"M={number}", (x, y), xytext=(4, 2), textcoords="offset points", fontsize=6)
            labelled.add(label)
        most = max(1000 * row.value for row in (*predicted.values(), *measured.values()))
        axis.plot([0, most], [0, most], color="#BBBBBB", lw=1, zorder=0)
        axis.set_xlabel("step time, simulated from profiled costs [ms]")
        axis.set_ylabel("step time, measured [ms]")
        axis.legend(fontsize=7)


def _times(rows: Sequence[Row], provenance: Provenance) -> dict[Key, Row]:
    return {_key(row): row for row in rows if row.metric == "step_time" and row.provenance is provenance}


def _key(row: Row) -> Key:
    return row.num_stages, row.schedule, row.num_micro_batches, row.remat
