"""Traces kept as rows: drawn as timelines, and written as files for viewers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.experiments.sweeps.rows import Row

from .style import GREEN, ORANGE, PURPLE, SKY

COLOURS = {"F": SKY, "R": ORANGE, "B": GREEN, "I": GREEN, "W": PURPLE}
Run = tuple[str, int | None, int | None, str | None, str]


def run_of(row: Row) -> Run:
    """What the rows of one run have in common."""
    return row.model, row.num_stages, row.num_micro_batches, row.remat, row.provenance.value


def by_run(rows: Sequence[Row]) -> list[list[Row]]:
    """The actions of each run of which a trace was kept."""
    runs: dict[Run, list[Row]] = {}
    for row in rows:
        if row.metric == "action":
            runs.setdefault(run_of(row), []).append(row)
    return list(runs.values())


def draw_actions(axis: Any, actions: Sequence[Row], title: str, end: float) -> None:
    """One step on an axis: ranks as rows, actions as bars with their micro-batch, the bubble hatched.

    Args:
        end: of the axis, seconds.
    """
    stages = 1 + max(row.params["rank"] for row in actions)
    span = max(row.params["start"] + row.value for row in actions)
    for rank in range(stages):
        axis.barh(rank, 1000 * span, height=0.8, color="#F2F2F2", edgecolor="#C4C4C4", hatch="////", linewidth=0)
    for row in actions:
        start, width, rank = 1000 * row.params["start"], 1000 * row.value, row.params["rank"]
        colour = COLOURS[row.params["kind"]]
        axis.barh(rank, width, left=start, height=0.8, color=colour, edgecolor="white", linewidth=0.6)
        if width > 0.008 * 1000 * end:
            words = str(row.params["micro_batch"])
            axis.text(start + width / 2, rank, words, ha="center", va="center", fontsize=8)
    bubble = 1 - sum(row.value for row in actions) / (stages * span)
    axis.set_title(f"{title}: bubble {bubble:.1%}", fontsize=10)
    axis.set_xlabel("time (ms)", fontsize=9)
    axis.set_yticks(range(stages), [f"rank {rank}" for rank in range(stages)])
    axis.invert_yaxis()
    axis.set_xlim(0, 1000 * end)
    axis.grid(visible=False)
    axis.tick_params(axis="y", length=0)


def trace_files(rows: Sequence[Row], of: Row, folder: Path, name: str, title: str) -> None:
    """Writes the trace of a run as ``name.json`` and ``name.svg``."""
    from repro.gpipe import Event, Trace, Transfer
    from repro.gpipe.trace_files import write_trace

    own = [row for row in rows if run_of(row) == run_of(of)]
    actions = [
        Event(
            rank=row.params["rank"],
            kind=row.params["kind"],
            stage=row.params["stage"],
            micro_batch=row.params["micro_batch"],
            waited=row.params["waited"],
            start=row.params["start"],
            end=row.params["start"] + row.value,
        )
        for row in own
        if row.metric == "action"
    ]
    transfers = [
        Transfer(
            rank=row.params["rank"],
            side=row.params["side"],
            direction=row.params["direction"],
            source_stage=row.params["source_stage"],
            target_stage=row.params["target_stage"],
            micro_batch=row.params["micro_batch"],
            num_bytes=row.params["bytes"],
            start=row.params["start"],
            end=row.params["start"] + row.value,
        )
        for row in own
        if row.metric == "transfer"
    ]
    write_trace(Trace(tuple(actions), tuple(transfers)), folder, name, title)
