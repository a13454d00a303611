"""The report on Figure 2: timelines of real traces, and files for trace viewers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from repro.experiments.sweeps.rows import Provenance, Row

from .lines import Figure, Line, Section, line
from .loading import Results
from .style import GREEN, ORANGE, SKY, figure
from .traces import by_run, draw_actions, trace_files

PICTURES = ("figure2.png",)
_KINDS = {"F": (SKY, "F forward"), "R": (ORANGE, "R recompute"), "B": (GREEN, "B backward")}


def sections(results: Results, reference: Results | None) -> list[Section]:
    """One section: bubbles and lengths of the steps, and the picture."""
    rows, others = results.rows, () if reference is None else reference.rows
    lines: list[Line | None] = []
    for key in dict.fromkeys(_key(row) for row in (*rows, *others) if row.metric == "step_span"):
        _, stages, number = key
        way = "naive model parallelism (M = 1)" if number == 1 else f"GPipe, M = {number}"
        for metric, words in (("step_span", "length of the step"), ("bubble", "bubble")):
            lines.append(
                line(
                    f"K = {stages}, {way}: {words}",
                    rows,
                    others,
                    lambda row, key=key, metric=metric: row.metric == metric and _key(row) == key,  # type: ignore[misc]
                )
            )
    text = (
        "One mini-batch, run whole on one stage after the other, and cut into micro-batches. Each picture is the trace "
        "of the step of median length: when every action started and ended on its rank. Emulated stages are equal and "
        "wait where real ones compute; engine, processes, schedule and messages are real. Real layers need a core or "
        "GPU for each stage: without them there is no measured picture. Beside the pictures lie the "
        "same traces as JSON for chrome://tracing or ui.perfetto.dev, with every message, and as SVG."
    )
    pictures = [Figure("figure2.png", "Figure 2 of the paper from traces: naive model parallelism above, GPipe below.")]
    return [Section("Naive model parallelism beside GPipe", text, [one for one in lines if one is not None], pictures)]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``figure2.png``, and for every trace a JSON and an SVG file."""
    runs = by_run(rows)
    if not runs:
        return
    heights = [0.9 + (run[0].num_stages or 1) for run in runs]
    with figure(folder / "figure2.png", 10.5, 0.5 * sum(heights) + 1.0, *heights) as (drawn, axes):
        for axis, run in zip(axes, runs, strict=True):
            # The same mini-batch has the same scale, so that what GPipe saves is seen.
            same = [other for other in runs if _key(other[0])[:2] == _key(run[0])[:2]]
            end = max(row.params["start"] + row.value for other in same for row in other)
            draw_actions(axis, run, _title(run[0]), end)
        handles: list[Any] = [Patch(color=colour, label=name) for kind, (colour, name) in _KINDS.items() if kind != "R"]
        handles.append(Patch(facecolor="#F2F2F2", edgecolor="#BBBBBB", hatch="////", label="bubble (idle)"))
        drawn.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    for run in runs:
        provenance, stages, number = _key(run[0])
        trace_files(rows, run[0], folder, f"trace_{provenance}_k{stages}_m{number}", _title(run[0]))


def _key(row: Row) -> tuple[str, int | None, int | None]:
    return row.provenance.value, row.num_stages, row.num_micro_batches


def _title(row: Row) -> str:
    way = "naive model parallelism" if row.num_micro_batches == 1 else "GPipe"
    what = "emulated equal stages" if row.provenance is Provenance.EMULATED else row.model
    return f"{way}, K = {row.num_stages}, M = {row.num_micro_batches} ({what})"
