"""The report on the time breakdown: shares beside the paper's, a bar for each run, and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from matplotlib.patches import Patch

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, find_row, line
from .loading import Results
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, figure
from .traces import by_run, run_of, trace_files

PICTURES = ("breakdown.png",)
_PARTS = {
    "computation": GREEN,
    "recompute": ORANGE,
    "bubble": GREY,
    "load imbalance": YELLOW,
    "communication": BLUE,
    "weight update": PURPLE,
    "setup": SKY,
}
_TEXT = (
    "Ranks x step time of one training step, dealt out to causes, from its trace. Computation is F and B, recompute R. "
    "The bubble is what a pipeline of equal stages with the same mean costs leaves idle (less the weight updates that "
    "run in it), load imbalance what unequal actions add to that (between stages: what their mean costs have; the rest "
    "is noise from action to action), communication what messages and the engine's own work between actions (and, "
    "where other work shares the cores, waits for one) add to the replay of the step without messages. Weight update "
    "is the optimizer's; setup is the rest: reading the batch and bringing it to its stages, adding up gradients, "
    "sharing the loss. The parts add up to all of the time.\n\n"
    "Measured models are scaled down, and compute on the hardware, where each stage can have a core or GPU; emulated "
    "ones are the paper's at full size: each layer waits in proportion to its FLOPs, messages are small, and nothing "
    "is updated (their weight update is not emulated). The paper's run is not described: K = 2 from its text, neither "
    "model nor M; it lists no communication of its own, and the label of its smallest slice is missing in the copy "
    "that was seen."
)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """Shares beside the paper's, and what tracing costs."""
    rows, others = results.rows, () if reference is None else reference.rows
    runs = list(dict.fromkeys(run_of(row) for row in rows if row.metric == "share"))
    paper = {str(row["part"]): row["percent"] for row in published("breakdown")}
    table = []
    for part in _PARTS:
        mine = [find_row(rows, partial(_is, run=run, part=part)) for run in runs]
        if part == "communication":  # below the imbalance, of which it is a part
            uneven = [find_row(rows, partial(_between_stages, run=run)) for run in runs]
            table.append(["of that, between stages", NOTHING, *(_percent(row) for row in uneven)])
        table.append([part, f"{paper[part]}%" if part in paper else NOTHING, *(_percent(row) for row in mine)])
    letters = dict(zip(runs, ascii_uppercase, strict=False))
    grid = Grid(
        "Shares of ranks x step time",
        ["part", "paper", *(f"{letter}, {run[4]}" for run, letter in letters.items())],
        table,
        "Paper: published. "
        + "; ".join(f"{letter}: {run[0]}, K = {run[1]}, M = {run[2]}" for run, letter in letters.items()),
    )
    lines: list[Line | None] = []
    for run in runs:
        what = f"{run[0]}, K = {run[1]}, M = {run[2]}"
        if others:
            for part in _PARTS:
                number = f"{paper[part]}%" if part in paper else NOTHING
                lines.append(
                    _line(f"{what}: {part}", rows, others, lambda r, run=run, part=part: _is(r, run, part), number)
                )
        lines.append(
            line(
                f"{what}: step time",
                rows,
                others,
                lambda r, run=run: r.metric == "step_time" and run_of(r) == run,  # type: ignore[misc]
            )
        )
    pictures = [Figure("breakdown.png", "Where the time of a step goes: the paper's (published) above ours.")]
    made = [Section("Where the time of a step goes", _TEXT, [one for one in lines if one], pictures, [grid])]
    tracing = line(
        "step time with tracing relative to without (paired)",
        rows,
        others,
        lambda row: row.experiment == "tracing_overhead",
    )
    cost = line(
        "processor time of recording one action, a receive and a send",
        rows,
        others,
        lambda row: row.metric == "recorder_time",
    )
    if tracing is not None and cost is not None:
        cost = _in_microseconds(cost, rows, others)
        text = "Two ranks of emulated equal stages with actions of a millisecond; the ways take turns."
        made.append(Section("What tracing costs", text, [tracing, cost]))
    return made


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``breakdown.png``, and the trace of every run as JSON and SVG."""
    runs = list(dict.fromkeys(run_of(row) for row in rows if row.metric == "share"))
    if not runs:
        return
    bars: list[tuple[str, dict[str, float]]] = [
        ("paper (published)", {str(row["part"]): float(row["percent"] or 0) for row in published("breakdown")})
    ]
    for run in runs:
        shares = {row.params["part"]: 100 * row.value for row in rows if row.metric == "share" and run_of(row) == run}
        bars.append((f"{run[0]}\nK = {run[1]}, M = {run[2]} ({run[4]})", shares))
    with figure(folder / "breakdown.png", 10.5, 1.2 + 0.62 * len(bars), 1) as (drawn, (axis,)):
        for place, (_, shares) in enumerate(bars):
            left = 0.0
            for part, colour in _PARTS.items():
                share = max(0.0, shares.get(part, 0.0))
                axis.barh(place, share, left=left, height=0.7, color=colour, edgecolor="white")
                if share >= 2.5:
                    axis.text(left + share / 2, place, f"{share:.1f}", ha="center", va="center", fontsize=8)
                left += share
        axis.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel("% of ranks x step time")
        axis.grid(axis="y", visible=False)
        handles: list[Any] = [Patch(color=colour, label=part) for part, colour in _PARTS.items()]
        drawn.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8)
    for actions in by_run(rows):
        known = actions[0]
        family = "amoebanet" if "AmoebaNet" in known.model else "transformer"
        name = f"trace_{known.provenance.value}_{family}_k{known.num_stages}_m{known.num_micro_batches}"
        title = f"{known.model}, K = {known.num_stages}, M = {known.num_micro_batches} ({known.provenance.value})"
        trace_files(rows, known, folder, name, title)


def _in_microseconds(known: Line, rows: Sequence[Row], others: Sequence[Row]) -> Line:
    def show(some: Sequence[Row]) -> str:
        found = find_row(some, lambda row: row.metric == "recorder_time")
        return NOTHING if found is None else f"{1e6 * found.value:.1f} µs"

    return replace(known, yours=show(rows), reference=show(others))


def _is(row: Row, run: Any, part: str) -> bool:
    return row.metric == "share" and run_of(row) == run and row.params.get("part") == part


def _between_stages(row: Row, run: Any) -> bool:
    return row.metric == "share_between_stages" and run_of(row) == run


def _line(what: str, rows: Sequence[Row], others: Sequence[Row], select: Any, paper: str) -> Line | None:
    own, other = (next((row for row in some if select(row)), None) for some in (rows, others))
    known = own or other
    return None if known is None else Line(what, known.provenance.value, _percent(own), _percent(other), paper)


def _percent(row: Row | None) -> str:
    if row is None:
        return NOTHING
    if row.provenance is Provenance.EMULATED and row.params.get("part") == "weight update":
        return "not emulated"
    return f"{100 * row.value:.1f}%" + ("" if row.spread is None else f" ± {100 * row.spread:.1f}")
