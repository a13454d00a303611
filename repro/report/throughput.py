"""Tables 2 and 3: every cell as published, simulated, emulated and measured, with the ideal of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.throughput.rows import IDEAL, RATIO
from repro.experiments.throughput.table import REMATS, SEPARATE, WHOLE
from repro.words import counted

from .lines import NOTHING, Figure, Grid, Line, Section, find_row, line
from .loading import Results
from .throughput_explained import explanation

Cell = tuple[int, int]


@dataclass(frozen=True)
class Wanted:
    """Which ratio of which model."""

    model: str
    provenance: Provenance
    metric: str = RATIO
    layers: str = WHOLE

    def of(self, rows: Sequence[Row], cell: Cell, remat: str) -> Row | None:
        """The row of a cell."""
        return find_row(rows, lambda row: self.holds(row, cell, remat))

    def holds(self, row: Row, cell: Cell, remat: str) -> bool:
        """Whether a row is it."""
        return (
            self.metric == row.metric
            and self.provenance is row.provenance
            and (row.num_stages, row.num_micro_batches, row.remat) == (*cell, remat)
            and row.params.get("layers", WHOLE) == self.layers
            and row.params.get("of", row.model) == self.model
        )


def table_sections(name: str, title: str, results: Results, reference: Results | None) -> list[Section]:
    """A section for each model of the table."""
    others = reference.rows if reference is not None else ()
    figure = Figure(
        f"{name}.png",
        f"{title}: the paper's throughput (published), ours simulated and emulated at full size and measured on "
        "scaled-down models, and what equal stages would give (ideal).",
    )
    made = []
    for number, model in enumerate(models_of(results.rows)):
        # Without a committed run beside it, the tables say all there is.
        lines = _lines(name, model, results.rows, others) if others else []
        text = "\n\n".join([_how(model, results), *explanation(name, model, results.rows)])
        grids = _grids(name, model, results.rows)
        made.append(Section(f"{title}: {model}", text, lines, [figure] if number == 0 else [], grids))
    return made


def models_of(rows: Sequence[Row]) -> list[str]:
    """The full-size models that there are rows of, in order."""
    return list(dict.fromkeys(row.model for row in rows if row.provenance is Provenance.SIMULATED))


def cells_of(rows: Sequence[Row], model: str) -> list[Cell]:
    """All (K, M) of a model, in the order of the paper: M, then K."""
    cells = {
        (row.num_stages, row.num_micro_batches) for row in rows if row.model == model and row.metric in (RATIO, IDEAL)
    }
    known = [(k, m) for k, m in cells if k is not None and m is not None]
    return sorted(known, key=lambda cell: (cell[1], cell[0]))


def published_ratios(name: str, model: str) -> dict[Cell, float]:
    """The paper's cells of a model."""
    return {
        (int(row["num_stages"] or 0), int(row["num_micro_batches"] or 0)): float(row["normalized_throughput"] or 0)
        for row in published(name)
        if row["model"] == model
    }


def torchgpipe_cells(model: str) -> dict[Cell, tuple[float, int, str]]:
    """The cells of torchgpipe for the same model: ratio, rows of the mini-batch, what was recomputed."""
    return {
        (int(row["num_stages"] or 0), int(row["num_micro_batches"] or 0)): (
            float(row["ratio"] or 0),
            int(row["batch_size"] or 0),
            str(row["checkpoint"]),
        )
        for row in published("torchgpipe_speed")
        if row["model"] == model
    }


def scaled_name(rows: Sequence[Row], model: str) -> str | None:
    """The scaled-down model that was measured beside a full-size one."""
    return next((row.model for row in rows if row.params.get("of") == model), None)


def _how(model: str, results: Results) -> str:
    rows = results.rows
    known = next(row for row in rows if row.model == model and row.metric == RATIO)
    base = known.params["base"]
    link = known.params["link"]
    text = (
        f"Throughput relative to K = {base[0]}, M = {base[1]}, mini-batch {known.batch_size}. Simulated: "
        f"{known.params['distinct_layers']} distinct layers of {known.params['num_layers']}, {known.params['costs']}; "
        f"link {link['name']}, {link['bandwidth'] / 1e9:g} GB/s each way after {1e6 * link['latency']:g} us. "
    )
    emulated = next((row for row in rows if row.model == model and row.provenance is Provenance.EMULATED), None)
    if emulated is not None:
        text += (
            "Emulated: a process a stage with the real engine, schedule, re-materialization and messages; arithmetic "
            f"is a timed wait, {emulated.params['time_factor']:.3g} seconds for each of the model's, and the link "
            "charges the real bytes. "
        )
    name = scaled_name(rows, model)
    run = results.run
    one = "core" if run["device"] == "cpu" else "GPU"
    there = run["cores"] if run["device"] == "cpu" else len(run["device"].split(","))
    stages = sorted({k for k, _ in cells_of(rows, model)})
    left = [k for k in stages if k > there]
    if name is not None:
        text += f"Measured: {name}, a process and a {one} for each stage. "
    if left:
        numbers = ", ".join(map(str, left))
        text += (
            f"Cells with K = {numbers} are not measured: there {'is' if there == 1 else 'are'} "
            f"{counted(there, one)}, and stages that share one would not run side by side. "
        )
        if name is None and there >= base[0]:
            text += f"K = {base[0]}, M = {base[1]} alone would be relative to nothing but itself. "
    if results.target == "table2" and torchgpipe_cells(model):
        text += (
            "torchgpipe changed the mini-batch and what is recomputed from cell to cell; its figures stand where its "
            "re-materialization is that of the table, all relative to its own K = 2, M = 1. "
        )
    return text + (
        "The ideal has the same schedule and re-materialization, equal stages and free messages. The paper does not "
        "say what it recomputed in this table."
    )


def _grids(name: str, model: str, rows: Sequence[Row]) -> list[Grid]:
    paper, peers = published_ratios(name, model), torchgpipe_cells(model) if name == "table2" else {}
    separate = any(row.model == model and row.params.get("layers") == SEPARATE for row in rows)
    measured = scaled_name(rows, model)
    grids = []
    for remat in REMATS:
        columns = ["K, M", "paper (published)"]
        columns += ["torchgpipe, batch (published)"] if peers else []
        columns += ["simulated", "ideal"]
        columns += ["simulated, sub-layers separate"] if separate else []
        columns += ["emulated", "measured, scaled down"]
        wanted = [Wanted(model, Provenance.SIMULATED), Wanted(model, Provenance.SIMULATED, IDEAL)]
        wanted += [Wanted(model, Provenance.SIMULATED, layers=SEPARATE)] if separate else []
        wanted += [Wanted(model, Provenance.EMULATED), Wanted(model, Provenance.MEASURED)]
        if measured is None:
            columns.pop()
            wanted.pop()
        texts = []
        for cell in cells_of(rows, model):
            other = peers.get(cell)
            said = [_number(paper.get(cell))]
            if peers:
                fits = other is not None and remat == other[2]
                said.append(f"{other[0]:.2f}, {other[1]}" if fits and other is not None else NOTHING)
            texts.append([f"{cell[0]}, {cell[1]}", *said, *(_ratio(one.of(rows, cell, remat)) for one in wanted)])
        grids.append(Grid(f"{model}, remat {remat}", columns, texts))
    return grids


def _lines(name: str, model: str, rows: Sequence[Row], others: Sequence[Row]) -> list[Line]:
    paper = published_ratios(name, model)
    lines: list[Line | None] = []
    for provenance in (Provenance.EMULATED, Provenance.MEASURED):
        wanted = Wanted(model, provenance)
        for remat in REMATS:
            for cell in cells_of(rows, model):
                known = wanted.of([*rows, *others], cell, remat)
                if known is None:
                    continue
                what = f"{known.model}, K = {cell[0]}, M = {cell[1]}, remat {remat}"
                said = _number(paper.get(cell)) if known.model == model else NOTHING
                lines.append(
                    line(what, rows, others, lambda row, w=wanted, c=cell, r=remat: w.holds(row, c, r), said)  # type: ignore[misc]
                )
    return [one for one in lines if one is not None]


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _ratio(row: Row | None) -> str:
    if row is None:
        return NOTHING
    return f"{row.value:.2f}" + ("" if not row.spread else f" ± {row.spread:.2f}")
