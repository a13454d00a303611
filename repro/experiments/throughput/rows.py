"""Rows and checks of Tables 2 and 3: simulated, emulated and measured figures, each under its own name."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from repro.datasets.paper import published
from repro.planning import partition
from repro.planning.partition import stage_costs
from repro.schedules import Remat

from ..costs.link import Link
from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request
from .cells import (
    Host,
    Setting,
    TableCell,
    ideal_step,
    imbalance,
    relative_throughput,
    simulated_step,
)
from .table import REMATS, SEPARATE, SIZES, WHOLE, Table, TableRow, choose

STEP, RATIO, IDEAL, OFF, IMBALANCE, LINK = (
    "step_time",
    "throughput_ratio",
    "ideal_ratio",
    "emulated_over_simulated",
    "imbalance",
    "link_share",
)
_ROUNDING = 0.02
"""By how much what was measured around the steps, latency and lateness of waits, may be above what it was in them."""

Key = tuple[int, int, str]


def rows(table: Table, request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished; what is simulated needs none."""
    made: list[Row] = []
    checks: list[Check] = []
    for row in choose(table, request):
        made += _simulated(table, row)
        emulated = list(_emulated(table, row, results))
        made += emulated
        made += _measured(table, row, results)
        checks += _agreement(request, row, emulated)
    checks += _balance(table, made)
    return made, checks


def _simulated(table: Table, row: TableRow) -> Iterator[Row]:
    settings = {WHOLE: row.setting} | ({} if row.separate is None else {SEPARATE: row.separate})
    for layers, setting in settings.items():
        for stages in sorted({cell.num_stages for cell in row.cells}):
            if stages <= setting.costs.num_layers:
                params = _params(row, setting, stages, layers)
                share = imbalance(setting, stages)
                yield Row(
                    table.name, setting.model.name, None, stages, None, None, None,
                    Provenance.SIMULATED, IMBALANCE, share, "1", None, params | {"cut_by": "this project"},
                )  # fmt: skip
        for remat in REMATS:
            base, base_ideal = (step(setting, row.base, remat) for step in (simulated_step, ideal_step))
            for cell in row.cells:
                seconds = simulated_step(setting, cell, remat)
                ratio = relative_throughput(cell, seconds, row.base, base)
                ideal = relative_throughput(cell, ideal_step(setting, cell, remat), row.base, base_ideal)
                free = simulated_step(replace(setting, link=Link("free", 0.0, 1e30)), cell, remat)
                params = _params(row, setting, cell.num_stages, layers)
                for metric, value, unit in (
                    (STEP, seconds, "s"),
                    (RATIO, ratio, "1"),
                    (IDEAL, ideal, "1"),
                    (LINK, 1 - free / seconds, "1"),
                ):
                    yield _row(table, row, cell, remat, Provenance.SIMULATED, metric, value, unit, **params)
    yield from _others_balance(table, row)


def _others_balance(table: Table, row: TableRow) -> Iterator[Row]:
    """How even torchgpipe's cuts of the same model are by our costs."""
    for line in published("torchgpipe_speed"):
        counts = [int(count) for count in str(line["balance"] or "").split()]
        costs = row.setting.costs
        if line["model"] != row.setting.model.name or sum(counts) != costs.num_layers:
            continue
        stages = [float(cost) for cost in stage_costs(costs.both, counts)]
        params = _params(row, row.setting, len(counts), WHOLE) | {"cut_by": "torchgpipe", "partition": counts}
        yield Row(
            table.name, row.setting.model.name, None, len(counts), int(line["num_micro_batches"] or 0), None, None,
            Provenance.SIMULATED, IMBALANCE, max(stages) * len(stages) / sum(stages), "1", None, params,
        )  # fmt: skip


def _emulated(table: Table, row: TableRow, results: Mapping[str, Any]) -> Iterator[Row]:
    found: dict[Key, tuple[list[float], Host]] = {}
    for name, result in results.items():
        if not name.startswith(f"emulated-{row.setting.model.family}-"):
            continue
        stages = int(name.split("-K")[1].split("-")[0])
        host = Host(result["overshoot"], result["latency"], result["bandwidth"])
        for step in result["steps"]:
            found[stages, step["num_micro_batches"], step["remat"]] = (step["seconds"], host)
    for cell in row.cells:
        for remat in REMATS:
            known = found.get((cell.num_stages, cell.num_micro_batches, remat))
            if known is None:
                continue
            seconds, spread = _middle(known[0])
            host = known[1]
            expected = simulated_step(row.setting, cell, remat, factor=row.factor, host=host)
            params = _params(row, row.setting, cell.num_stages, WHOLE) | {
                "time_factor": row.factor,
                "repeats": len(known[0]),
                "host": asdict(host),
                "simulated_with_host": expected,
            }
            yield _row(table, row, cell, remat, Provenance.EMULATED, STEP, seconds, "s", spread, **params)
            yield _row(table, row, cell, remat, Provenance.EMULATED, OFF, seconds / expected, "1", None, **params)
            base = found.get((row.base.num_stages, row.base.num_micro_batches, remat))
            if base is not None:
                ratio = relative_throughput(cell, seconds, row.base, _middle(base[0])[0])
                yield _row(table, row, cell, remat, Provenance.EMULATED, RATIO, ratio, "1", None, **params)


def _measured(table: Table, row: TableRow, results: Mapping[str, Any]) -> Iterator[Row]:
    found: dict[Key, Mapping[str, Any]] = {}
    for stages in row.measured:
        for step in results.get(f"measured-{row.setting.model.family}-K{stages}", ()):
            found[stages, step["num_micro_batches"], step["remat"]] = step
    sizes = {(stages, number): size for stages, numbers in row.measured.items() for number, size in numbers}
    for (stages, number, remat), step in found.items():
        cell = TableCell(stages, number, sizes[stages, number])
        base = found.get((row.base.num_stages, row.base.num_micro_batches, remat))
        seconds, spread = _middle(step["seconds"])
        params = {"scaled_down": True, "of": row.setting.model.name, "partition": step["partition"]}
        params |= {"repeats": len(step["seconds"]), "base": [row.base.num_stages, row.base.num_micro_batches]}
        common = ("gpipe", remat, Provenance.MEASURED)
        yield Row(
            table.name, row.scaled.name, cell.batch_size, stages, number, *common, STEP, seconds, "s", spread, params
        )
        if base is None:
            continue
        base_size = sizes[row.base.num_stages, row.base.num_micro_batches]
        # Steps of the same round ran one right after the other.
        paired = [
            (cell.batch_size / ours) / (base_size / other)
            for ours, other in zip(step["seconds"], base["seconds"], strict=True)
        ]
        ratio, spread = _middle(paired)
        yield Row(
            table.name, row.scaled.name, cell.batch_size, stages, number, *common, RATIO, ratio, "1", spread, params
        )


def _agreement(request: Request, row: TableRow, emulated: Sequence[Row]) -> list[Check]:
    ratios = [one for one in emulated if one.metric == OFF]
    if not ratios:
        return []
    limit = SIZES[request.scale].tolerance
    worst = max(ratios, key=lambda one: abs(one.value - 1))
    name, number = row.setting.model.name, len(ratios)
    where = f"K = {worst.num_stages}, M = {worst.num_micro_batches}, remat {worst.remat}"
    if limit is None:
        text = (
            f"{name}: in all {number} cells the emulated step is no shorter than the simulated one, whose times it "
            "waits for. That is no agreement, which is not checked at this scale: the engine outweighs such short "
            f"waits (up to {worst.value:.1f} times as long, {where})"
        )
        return [Check(text, all(one.value >= 1 - _ROUNDING for one in ratios))]
    extent = f"in all {number} cells (largest difference {worst.value - 1:+.1%}, {where})"
    text = f"{name}: emulated within {limit:.0%} of simulated {extent}"
    return [Check(text, all(abs(one.value - 1) <= limit for one in ratios))]


def _balance(table: Table, made: Sequence[Row]) -> list[Check]:
    """At the end of Table 2's diagonal, without remat, what the cut leaves of the ideal."""
    if table.name != "table2":
        return []
    wanted = [("Transformer-48", WHOLE, 5.9), ("Transformer-48", SEPARATE, 6.15)]
    wanted += [
        (str(line["model"]), WHOLE, float(line["normalized_throughput"] or 0))
        for line in published("table2")
        if line["model"] != "Transformer-48" and (line["num_stages"], line["num_micro_batches"]) == (8, 32)
    ]
    checks = []
    for model, layers, least in wanted:
        for one in made:
            if (one.model, one.metric, one.provenance, one.remat, one.num_stages, one.num_micro_batches) == (
                (model, RATIO, Provenance.SIMULATED, Remat.NEVER.value, 8, 32)
            ) and one.params["layers"] == layers:
                text = (
                    f"{model}, layers {layers}: simulated throughput at K = 8, M = 32 without remat at least {least:g} "
                    f"times that of K = 2, M = 1 ({one.value:.2f})"
                )
                checks.append(Check(text, one.value >= least))
    return checks


def _row(
    table: Table,
    row: TableRow,
    cell: TableCell,
    remat: str,
    provenance: Provenance,
    metric: str,
    value: float,
    unit: str,
    spread: float | None = None,
    **params: Any,
) -> Row:
    return Row(
        experiment=table.name,
        model=row.setting.model.name,
        batch_size=cell.batch_size,
        num_stages=cell.num_stages,
        num_micro_batches=cell.num_micro_batches,
        schedule="gpipe",
        remat=remat,
        provenance=provenance,
        metric=metric,
        value=value,
        unit=unit,
        spread=spread,
        params=params,
    )


def _params(row: TableRow, setting: Setting, stages: int, layers: str) -> dict[str, Any]:
    return {
        "layers": layers,
        "costs": setting.origin,
        "distinct_layers": setting.costs.distinct,
        "num_layers": setting.costs.num_layers,
        "partition": list(partition(setting.costs.both, stages)),
        "link": {"name": setting.link.name, "latency": setting.link.latency, "bandwidth": setting.link.bandwidth},
        "base": [row.base.num_stages, row.base.num_micro_batches],
    }


def _middle(values: Sequence[float]) -> tuple[float, float | None]:
    """The median, and half the interquartile range where there are at least two."""
    if len(values) < 2:
        return values[0], None
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return middle, (third - first) / 2
