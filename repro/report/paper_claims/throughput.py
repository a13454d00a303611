"""Claims of Tables 2 and 3: throughput over K and M."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from repro.datasets.paper import Value, published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.throughput.rows import IDEAL, IMBALANCE, LINK, RATIO
from repro.experiments.throughput.table import WHOLE
from repro.report.lines import NOTHING

from .claim import Claim, Finding, Missing, Rows, Rule, Verdict, found
from .selecting import number, said, select
from .shapes import rank_correlation, rises, within

SECTIONS = {
    "table2": "Table 2: throughput over K and M",
    "table3": "Table 3: throughput without a fast interconnect",
}
BAND = 0.15
ORDER = 0.9
"""Least rank correlation over the cells of a model."""
LITTLE = 1.4
"""From K = 2 to 8 at M = 1, without a pipeline; with one it is up to 4."""
SPEED_UP_BAND = 0.10
FEW_MESSAGES = 0.10
"""Most of a step that messages may take over a slow link."""

Cell = tuple[int, int]
Cells = Mapping[Cell, float]


def claims() -> Iterator[Claim]:
    """All cells but those that are 1 by definition, and the shapes."""
    for table in SECTIONS:
        rows = published(table)
        models = list(dict.fromkeys(str(row["model"]) for row in rows))
        for row in rows:
            if not (row["num_stages"] == 2 and row["num_micro_batches"] == min(map(_micro_batches, rows))):
                yield _cell_claim(table, row)
        for model in models:
            if table == "table2":
                yield _shape(table, f"{model}: throughput rises with M at every K", partial(rises_with_m, model))
            yield _shape(table, f"{model}: throughput rises with K at M = 32", partial(rises_with_k, model))
            if table == "table2":
                yield _shape(table, f"{model}: the order of the table's cells", partial(ordered, model))
        better = f"at K = 8, M = 32 {models[1]} gains more than {models[0]}"
        yield _shape(table, better, partial(gains_more, table, models[1], models[0]))
    transformer, amoebanet = "Transformer-48", "AmoebaNet-D (18, 256)"
    yield _text("table2", "no-pipelining", partial(little_at_one, (transformer, amoebanet)))
    yield _text("table2", "transformer-speed-up", partial(speed_up, transformer), headline=True)
    yield _text("table2", "amoebanet-sub-linear", partial(sub_linear, amoebanet))
    yield _text("table3", "slow-link", similar, ("table2", "table3"), headline=True)
    yield _text("table3", "boundaries", few_messages)


def _cell_claim(table: str, row: dict[str, Value]) -> Claim:
    model, cell = str(row["model"]), (int(number(row, "num_stages")), _micro_batches(row))
    return Claim(
        f"{table}-{model.split('-')[0].lower()}-K{cell[0]}-M{cell[1]}",
        SECTIONS[table],
        f"{model}, K = {cell[0]}, M = {cell[1]}: throughput relative to K = 2 at the least M",
        f"{row['normalized_throughput']}",
        str(row["confidence"]),
        table,
        (table,),
        partial(cell_value, table, model, cell, number(row, "normalized_throughput")),
    )


def _shape(table: str, text: str, rule: Rule) -> Claim:
    confidence = str(published(table)[0]["confidence"])
    return Claim(f"{table}: {text}", SECTIONS[table], text, NOTHING, confidence, table, (table,), _at(rule, table))


def _at(rule: Rule, table: str) -> Rule:
    """The rule, on the rows of its table alone."""
    return lambda rows: rule({table: rows[table]})


def _text(
    table: str, name: str, rule: Rule, targets: tuple[str, ...] | None = None, *, headline: bool = False
) -> Claim:
    row = said(name)
    value = NOTHING if row["value"] is None else f"{row['value']}{row['unit']}"
    return Claim(
        name,
        SECTIONS[table],
        str(row["claim"]),
        value,
        str(row["confidence"]),
        "claims",
        targets or (table,),
        rule,
        headline,
    )


def cell_value(table: str, model: str, cell: Cell, printed: float, rows: Rows) -> Finding:
    """The printed ratio against ours at full size, over what may be recomputed and how layers are cut."""
    chosen = select(
        rows[table],
        RATIO,
        provenance=Provenance.SIMULATED,
        model=model,
        num_stages=cell[0],
        num_micro_batches=cell[1],
    )
    values = [row.value for row in chosen]
    ours = _range(values)
    inside = (1 - BAND) * min(values) <= printed <= (1 + BAND) * max(values)
    others = _others(rows[table], model, cell)
    why = f"{'inside' if inside else 'outside'} what our costs give at a fixed mini-batch, with {BAND:.0%} to spare"
    if not inside:
        why += "; the paper changed mini-batches and does not say to what"
        ideal = [
            row.value
            for row in rows[table]
            if row.metric == IDEAL and row.model == model and (row.num_stages, row.num_micro_batches) == cell
        ]
        if ideal and printed > max(ideal):
            why += f"; it is above {max(ideal):.2f}, what equal stages and free messages give at a fixed one"
    return found(inside, ours, Provenance.SIMULATED, why + others)


def rises_with_m(model: str, rows: Rows) -> Finding:
    """Along M at every K: simulated, and measured on the scaled-down model, which alone can say that it does.

    Simulated costs are linear in rows, so that smaller micro-batches cost nothing and throughput can hardly but rise.
    """
    (table,) = rows
    holds, simulated = _simulated_rises(rows[table], model, along=0)
    if not holds:
        return found(False, simulated, Provenance.SIMULATED, "simulated, with and without re-materialization")
    why = (
        "simulated with and without re-materialization, from costs linear in rows, by which it can hardly but rise; "
        "so only measured rows can reproduce it"
    )
    measured = _measured_lines(rows[table], model)
    if not measured:
        ours = f"simulated: rises ({simulated})"
        return Finding(Verdict.NOT_TESTABLE, ours, Provenance.SIMULATED.value, f"{why}; there are none")
    texts = "; ".join(f"{where}: {', '.join(f'{value:.2f}' for value in line)}" for where, line in measured.items())
    rising = all(rises(line) for line in measured.values())
    ours = f"simulated: rises ({simulated}); measured, scaled down: {'rises' if rising else 'does not rise'} ({texts})"
    provenances = f"{Provenance.SIMULATED.value}, {Provenance.MEASURED.value}"
    if rising:
        return Finding(Verdict.SMALL_SCALE, ours, provenances, why)
    why += (
        f"; those of the scaled-down model do not, since its micro-batches of {_fewest_rows(rows[table], model)} are "
        "too small for what each costs beside its rows, which says nothing of the paper's sizes on its accelerators"
    )
    return Finding(Verdict.NOT_TESTABLE, ours, provenances, why)


def rises_with_k(model: str, rows: Rows) -> Finding:
    """Along K at the largest M, with and without remat."""
    (table,) = rows
    holds, simulated = _simulated_rises(rows[table], model, along=1)
    return found(holds, simulated, Provenance.SIMULATED, "simulated with and without re-materialization")


def _simulated_rises(rows: Sequence[Row], model: str, *, along: int) -> tuple[bool, str]:
    """Along M at every K (``along`` 0), or along K at the largest M (1): whether it rises, and the cells of never."""
    holds, said_ = True, []
    for remat in ("always", "never"):
        cells = _cells(rows, model, remat)
        last = max(m for _, m in cells)
        for fixed in sorted({k for k, _ in cells}) if along == 0 else [last]:
            line = [cells[cell] for cell in sorted(cells) if cell[along] == fixed]
            holds = holds and rises(line)
            if remat == "never":
                said_.append(f"{'K' if along == 0 else 'M'} = {fixed}: {', '.join(f'{value:.2f}' for value in line)}")
    return holds, "; ".join(said_)


def ordered(model: str, rows: Rows) -> Finding:
    """Spearman's rank correlation over all cells."""
    (table,) = rows
    printed = {
        (int(number(row, "num_stages")), _micro_batches(row)): number(row, "normalized_throughput")
        for row in published(table)
        if row["model"] == model
    }
    coefficients = {}
    for remat in ("always", "never"):
        cells = _cells(rows[table], model, remat)
        shared = [cell for cell in printed if cell in cells]
        if len(shared) < 5:
            raise Missing(f"more than {len(shared)} cells of {model}")
        coefficients[remat] = rank_correlation([cells[c] for c in shared], [printed[c] for c in shared])
    ours = ", ".join(f"{value:.2f} (remat {remat})" for remat, value in coefficients.items())
    why = f"rank correlation of the simulated cells with the printed ones, at least {ORDER} for one of the two"
    return found(max(coefficients.values()) >= ORDER, ours, Provenance.SIMULATED, why)


def gains_more(table: str, one: str, other: str, rows: Rows) -> Finding:
    """The last cell of one model against that of the other, with the layers cut as finely as either is."""
    pairs = {}
    for remat in ("always", "never"):
        best = [max(_last(rows[table], model, remat)) for model in (one, other)]
        pairs[remat] = best
    holds = all(first > second for first, second in pairs.values())
    ours = "; ".join(f"{a:.2f} and {b:.2f} (remat {remat})" for remat, (a, b) in pairs.items())
    why = "simulated, the Transformer with attention and feed-forward as layers of their own where that is better"
    return found(holds, ours, Provenance.SIMULATED, why)


def little_at_one(models: tuple[str, ...], rows: Rows) -> Finding:
    """Without micro-batches more stages gain little."""
    gains = {}
    for model in models:
        cells = _cells(rows["table2"], model, "never")
        ends = [cells[cell] for cell in sorted(cells) if cell[1] == 1]
        if len(ends) < 2:
            raise Missing(f"cells of {model} with M = 1")
        gains[model] = ends[-1] / ends[0]
    ours = ", ".join(f"{model} {gain:.2f}x" for model, gain in gains.items())
    why = f"simulated without re-materialization, from the least K to the largest: at most {LITTLE}x"
    return found(max(gains.values()) <= LITTLE, ours, Provenance.SIMULATED, why)


def speed_up(model: str, rows: Rows) -> Finding:
    """From K = 2 to 8 at M = 32, the better of our cuts."""
    stated = number(said("transformer-speed-up"), "value")
    ratios = [ratio for remat in ("always", "never") for ratio in _gain(rows["table2"], model, remat)]
    inside = (1 - SPEED_UP_BAND) * min(ratios) <= stated <= (1 + SPEED_UP_BAND) * max(ratios)
    why = f"simulated, over re-materialization and cuts, with {SPEED_UP_BAND:.0%} to spare"
    in_short = f"simulated; the paper's is inside with {SPEED_UP_BAND:.0%} to spare"
    return found(inside, _range(ratios) + "x", Provenance.SIMULATED, why, in_short=in_short)


def sub_linear(model: str, rows: Rows) -> Finding:
    """The gain is less than that in stages, and the stages of the best cut are uneven."""
    ratios = [ratio for remat in ("always", "never") for ratio in _gain(rows["table2"], model, remat)]
    uneven = select(rows["table2"], IMBALANCE, model=model, cut_by="this project", layers=WHOLE)
    most = max(uneven, key=lambda row: row.num_stages or 0)
    holds = max(ratios) < 4 and most.value > 1.05
    ours = f"{_range(ratios)}x from K = 2 to 8; dearest stage {most.value:.2f} times the mean at K = {most.num_stages}"
    return found(
        holds, ours, Provenance.SIMULATED, "simulated: below 4x, and stages more than 5% uneven at the best cut"
    )


def similar(rows: Rows) -> Finding:
    """Gains from K = 2 to 8 over the slow link against those over the fast one, for either family."""
    pairs = {}
    for family, fast, slow in (
        ("AmoebaNet", "AmoebaNet-D (18, 256)", "AmoebaNet-D (18, 128)"),
        ("Transformer", "Transformer-48", "Transformer-24"),
    ):
        pairs[family] = max(_gain(rows["table2"], fast, "always")), max(_gain(rows["table3"], slow, "always"))
    holds = all(within(slow, fast, 2 * BAND) for fast, slow in pairs.values())
    ours = ", ".join(f"{family} {fast:.2f}x and {slow:.2f}x" for family, (fast, slow) in pairs.items())
    why = f"simulated, fast link and slow link (models of Tables 2 and 3), remat always: within {2 * BAND:.0%}"
    in_short = f"simulated, fast and slow link within {2 * BAND:.0%}"
    return found(holds, ours, Provenance.SIMULATED, why, in_short=in_short)


def few_messages(rows: Rows) -> Finding:
    """The share of a step that messages add over the slow link."""
    shares = select(rows["table3"], LINK, provenance=Provenance.SIMULATED)
    worst = max(shares, key=lambda row: row.value)
    why = f"simulated over the link of Table 3, all cells: at most {FEW_MESSAGES:.0%} of the step"
    ours = f"at most {worst.value:.1%} ({worst.model}, K = {worst.num_stages})"
    return found(worst.value <= FEW_MESSAGES, ours, Provenance.SIMULATED, why)


def _micro_batches(row: dict[str, Value]) -> int:
    return int(number(row, "num_micro_batches"))


def _cells(rows: Sequence[Row], model: str, remat: str) -> Cells:
    chosen = select(rows, RATIO, provenance=Provenance.SIMULATED, model=model, remat=remat, layers=WHOLE)
    return {(row.num_stages or 0, row.num_micro_batches or 0): row.value for row in chosen}


def _ends(rows: Sequence[Row], model: str, remat: str, stages: int) -> list[Row]:
    return select(
        rows,
        RATIO,
        provenance=Provenance.SIMULATED,
        model=model,
        remat=remat,
        num_stages=stages,
        num_micro_batches=32,
    )


def _last(rows: Sequence[Row], model: str, remat: str) -> list[float]:
    return [row.value for row in _ends(rows, model, remat, 8)]


def _gain(rows: Sequence[Row], model: str, remat: str) -> list[float]:
    """From K = 2 to 8 at M = 32, for each way to cut the layers."""
    first = {row.params["layers"]: row.value for row in _ends(rows, model, remat, 2)}
    return [row.value / first[row.params["layers"]] for row in _ends(rows, model, remat, 8)]


def _measured(rows: Sequence[Row], model: str) -> list[Row]:
    """The scaled-down model without re-materialization, the smallest M first."""
    chosen = [row for row in rows if row.metric == RATIO and row.params.get("of") == model and row.remat == "never"]
    return sorted(chosen, key=lambda row: row.num_micro_batches or 0)


def _measured_lines(rows: Sequence[Row], model: str) -> dict[str, list[float]]:
    """By K, what the scaled-down model does over M."""
    chosen = _measured(rows, model)
    lines = {
        f"K = {stages}": [row.value for row in chosen if row.num_stages == stages]
        for stages in sorted({row.num_stages or 0 for row in chosen})
    }
    return {where: line for where, line in lines.items() if len(line) > 1}


def _fewest_rows(rows: Sequence[Row], model: str) -> str:
    """Of a micro-batch of the scaled-down model at its largest M."""
    last = _measured(rows, model)[-1]
    return f"{(last.batch_size or 0) // (last.num_micro_batches or 1)} rows at M = {last.num_micro_batches}"


def _others(rows: Sequence[Row], model: str, cell: Cell) -> str:
    found_ = []
    for provenance in (Provenance.EMULATED, Provenance.MEASURED):
        values = [
            row.value
            for row in rows
            if row.metric == RATIO
            and row.provenance is provenance
            and (row.num_stages, row.num_micro_batches) == cell
            and model in (row.model, row.params.get("of"))
        ]
        if values:
            scaled = ", scaled down" if provenance is Provenance.MEASURED else ""
            found_.append(f"{provenance.value}{scaled} {_range(values)}")
    return f" ({'; '.join(found_)})" if found_ else ""


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
