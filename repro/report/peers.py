"""The report on ``repro run peers``: step times of this engine beside those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from repro.experiments.peers.peer_comparison import (
    EMULATED,
    IDEAL_LIMIT,
    REAL,
    REAL_LIMITS,
    SAME_SCHEDULE,
    SMALL_BOUNDARY,
    TORCHGPIPE_MISSING,
    is_judged,
)
from repro.experiments.sweeps.rows import Row

from .lines import Figure, Line, Section, line
from .loading import Results

_ORDER = (ENGINE, ENGINE_1F1B, BARE_LOOP, TORCH, TORCH_1F1B, TORCHGPIPE, ONE_PROCESS)
_REAL_PICTURE, _EMULATED_PICTURE = "peers_real.png", "peers_emulated.png"
PICTURES = (_EMULATED_PICTURE,)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """Real layers first, then equal emulated stages, one section a size of boundary."""
    rows, others = results.rows, reference.rows if reference is not None else ()
    judged = is_judged(results.scale)
    made = [_real(rows, others, judged=judged)]
    made += [_emulated(rows, others, size, judged=judged) for size in _values(rows, others, EMULATED, "boundary_bytes")]
    return [section for section in made if section.lines]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The step time relative to each peer in one cell each."""
    ratio_line = partial(_ratio_line, results.rows, (), judged=is_judged(results.scale))
    real = [ratio_line(REAL, way, {"num_micro_batches": 8}) for way in (TORCH, TORCHGPIPE)]
    largest = {"num_stages": 8, "num_micro_batches": 32, "boundary_bytes": SMALL_BOUNDARY}
    emulated = [ratio_line(EMULATED, way, largest) for way in (IDEAL, BARE_LOOP, TORCH)]
    named = [("real layers, K=2", one) for one in real] + [("equal emulated stages, 4 KiB", one) for one in emulated]
    return [replace(one, what=f"{name}, {one.what}") for name, one in named if one is not None]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draws ``peers_real.png`` and ``peers_emulated.png``."""
    # Only now: this loads matplotlib.
    from .peers_plots import draw_emulated, draw_real

    if _of(rows, REAL):
        draw_real(_of(rows, REAL), folder / _REAL_PICTURE)
    if _of(rows, EMULATED):
        draw_emulated(_of(rows, EMULATED), folder / _EMULATED_PICTURE)


def _real(rows: Sequence[Row], others: Sequence[Row], *, judged: bool) -> Section:
    lines: list[Line | None] = []
    ratio_line = partial(_ratio_line, rows, others, REAL, judged=judged)
    for micro_batches in _values(rows, others, REAL, "num_micro_batches"):
        cell = {"num_micro_batches": micro_batches}
        for way in _ORDER:
            select = partial(_is, part=REAL, metric="step_time", way=way, cell=cell)
            lines.append(line(f"M={micro_batches}: step time, {way}", rows, others, select))
        lines += [ratio_line(way, cell) for way in _ORDER[1:]]
        lines.append(ratio_line(TORCH_1F1B, cell, own=ENGINE_1F1B))
    known = next(iter(_of(rows, REAL) or _of(others, REAL)), None)
    text = ""
    if known is not None:
        params = known.params
        text = (
            f"{known.model}, {params['length']} tokens, {params['rows']} rows a micro-batch, K=2, no "
            f"re-materialization, float32, one thread a process; {params['rounds']} rounds in which the ways take "
            "turns. Values are medians, ± is half the interquartile range; ratios are of the same round. All ways "
            "were first shown to give the gradients of one process. torchgpipe has all its stages in one process: on "
            "GPUs they overlap, on a CPU they share one thread, so that here it does not pipeline at all."
        )
    if _of(rows, REAL) and not any(row.params["way"] == TORCHGPIPE for row in rows):
        text += f" {TORCHGPIPE_MISSING}."
    figures = [Figure(_REAL_PICTURE, "Step time of this engine relative to the others', real layers, K=2 (measured).")]
    return Section("Real layers", text, _there(lines), figures if _of(rows, REAL) else [])


def _emulated(rows: Sequence[Row], others: Sequence[Row], size: int, *, judged: bool) -> Section:
    lines: list[Line | None] = []
    ratio_line = partial(_ratio_line, rows, others, EMULATED, judged=judged)
    cells = sorted(
        {
            (row.num_stages or 0, row.num_micro_batches or 0)
            for row in (*rows, *others)
            if row.params.get("boundary_bytes") == size
        }
    )
    for stages, micro_batches in cells:
        cell = {"num_stages": stages, "num_micro_batches": micro_batches, "boundary_bytes": size}
        lines += [ratio_line(way, cell) for way in (IDEAL, BARE_LOOP, TORCH)]
        lines.append(ratio_line(TORCH_1F1B, cell, own=ENGINE_1F1B))
        for way in (BARE_LOOP, TORCH):
            select = partial(_is, part=EMULATED, metric="step_time_ratio", way=way, reference=IDEAL, cell=cell)
            what = f"K={stages}, M={micro_batches}: step time of {way} relative to {IDEAL}"
            lines.append(line(what, rows, others, select))
    known = next(row for row in (*rows, *others) if row.params.get("boundary_bytes") == size)
    params = known.params
    text = (
        f"Every stage waits {1000 * params['forward']:g} ms for F and {1000 * params['backward']:g} ms for B of a "
        f"micro-batch, and hands on {_size(size)}; processes, schedule and messages are real. What a step takes beyond "
        f"{IDEAL} is what an engine and its messages cost, and waking up from each wait. One process and one thread a "
        f"stage, no re-materialization, {params['rounds']} rounds in which the ways take turns, each with steps that "
        "follow one another as in training and fill 0.3 s or more; median ± half the interquartile range, ratios of "
        "the same round. Schedule1F1B refuses M < K."
    )
    figures = []
    if size == SMALL_BOUNDARY and _of(rows, EMULATED):
        caption = "Step time relative to (M+K-1)(t_F+t_B), equal stages of timed waits (emulated)."
        figures.append(Figure(_EMULATED_PICTURE, caption))
    return Section(f"Equal emulated stages, boundaries of {_size(size)}", text, _there(lines), figures)


def _ratio_line(
    rows: Sequence[Row],
    others: Sequence[Row],
    part: str,
    reference: str,
    cell: Mapping[str, int],
    own: str = ENGINE,
    *,
    judged: bool,
) -> Line | None:
    limit = REAL_LIMITS.get(reference) if part == REAL else None
    if reference == IDEAL and cell["boundary_bytes"] == SMALL_BOUNDARY:
        limit = IDEAL_LIMIT
    if part == EMULATED and SAME_SCHEDULE.get(reference) == own:
        limit = 1.0
    names = (("K", "num_stages"), ("M", "num_micro_batches"))
    where = ", ".join(f"{letter}={cell[name]}" for letter, name in names if name in cell)
    most = ""
    if limit is not None:
        most = f" (should be at most {limit:.2f}{'' if judged else '; not checked at this scale'})"
    select = partial(_is, part=part, metric="step_time_ratio", way=own, reference=reference, cell=cell)
    return line(f"{where}: step time of {own} relative to {reference}{most}", rows, others, select, digits=4)


def _is(row: Row, part: str, metric: str, way: str, cell: Mapping[str, int], reference: str | None = None) -> bool:
    known = row.params
    return (known["part"], row.metric, known["way"], known.get("reference")) == (part, metric, way, reference) and all(
        (getattr(row, name) if hasattr(row, name) else known.get(name)) == value for name, value in cell.items()
    )


def _of(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row.params["part"] == part]


def _values(rows: Sequence[Row], others: Sequence[Row], part: str, name: str) -> list[int]:
    known = _of((*rows, *others), part)
    return sorted({getattr(row, name) if hasattr(row, name) else row.params[name] for row in known})


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"


def _there(lines: Sequence[Line | None]) -> list[Line]:
    return [one for one in lines if one is not None]
