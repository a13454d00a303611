"""Table 1: the largest model and its memory; counted and predicted at full size, measured on scaled-down models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro.arguments import ArgumentParser
from repro.planning.memory import OPTIMIZER_STATES

from ..costs.scaled_down import SmallAmoebaNet, SmallModel, SmallTransformer
from ..sweeps.checks import Check
from ..sweeps.environment import usable_cores
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target
from .full_size_memory import (
    AMOEBANET,
    MOST_AMOEBANET_LAYERS,
    NAIVE,
    TRANSFORMER,
    FullSizePlan,
    Variant,
    check_full_size,
    full_size,
    too_many_stages,
)
from .measured_memory import MemoryPlan, measure_memory

EXPERIMENT = "table1"
# Of exact counts against the printed ones; 1.8B is a coarse rounding of its column.
COUNT_TOLERANCE = 0.011
COARSE_TOLERANCE = {(72, 512): 0.025}
# Of predicted peaks against measured ones, and of measured ones against a N + b (L/K)(N/M).
PREDICTION_TOLERANCE = 0.10
GROWTH_TOLERANCE = 0.15
MODELS: tuple[SmallModel, ...] = (SmallTransformer(), SmallAmoebaNet())
_NAMES = {SmallTransformer: "transformer", SmallAmoebaNet: "amoebanet"}
_STAGES = {"smoke": (1, 2), "laptop": (1, 2, 4, 8), "gpu": (1, 2, 4, 8)}
_MICRO_BATCHES = {"smoke": (1, 4), "laptop": (1, 2, 4, 8), "gpu": (1, 2, 4, 8)}


def parts(request: Request) -> list[SweepPart]:
    """Two computations at full size, and one job of measurements for each model and K."""
    thorough = request.scale != "smoke"
    largest_m = max(request.num_micro_batches) if request.num_micro_batches else None
    made = []
    for model, seconds in ((TRANSFORMER, 4.0), (AMOEBANET, 8.0)):
        plan = FullSizePlan(
            model=model,
            optimizer=request.options.get("optimizer", "rmsprop-momentum"),
            memory_gib=request.options.get("memory"),
            num_stages=request.num_stages,
            num_micro_batches=largest_m,
            thorough=thorough,
        )
        check_full_size(plan)
        name = f"full-size-{model.split('-')[0].lower()}"
        title = f"{model} at full size"
        left_out = too_many_stages(plan)
        if left_out:
            title += f" without K = {', '.join(map(str, left_out))}, it has at most {MOST_AMOEBANET_LAYERS} layers"
        made.append(SweepPart(name, title, full_size, (plan,), 1, seconds * (4 if thorough else 1)))
    made += [
        SweepPart(
            name,
            f"{plan.model.label.split(' ')[0]} measured, K={plan.num_stages}",
            measure_memory,
            (plan,),
            plan.num_stages if plan.processes else 1,
            2.0 if not thorough else 6.0,
        )
        for name, plan in _plans(request).items()
    ]
    return made


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    made: list[Row] = []
    checks: list[Check] = []
    for model in (TRANSFORMER, AMOEBANET):
        result = results.get(f"full-size-{model.split('-')[0].lower()}")
        if result is not None:
            made += _full_size_rows(model, result)
            checks += [_count_check(model, count) for count in result["counts"]]
    plans = _plans(request)
    for small in MODELS:
        cells = [
            (plan, cell)
            for name, plan in plans.items()
            if type(plan.model) is type(small) and name in results
            for cell in results[name]
        ]
        if cells:
            made += [row for plan, cell in cells for row in _measured_rows(plan, cell)]
            checks.append(_prediction_check(cells))
            growth, check = _growth(cells)
            made += growth
            checks += [check] if check is not None else []
    return made, checks


def add_options(parser: ArgumentParser) -> None:
    """Options of the search."""
    parser.add_argument(
        "--memory", type=float, metavar="GIB", help="GiB of an accelerator (default: the paper's 8 and 16)"
    )
    parser.add_argument(
        "--optimizer",
        choices=list(OPTIMIZER_STATES),
        default="rmsprop-momentum",
        help="whose states count (default: the paper's RMSProp with momentum, 12 bytes per parameter)",
    )


def _plans(request: Request) -> dict[str, MemoryPlan]:
    """What is measured, by part; every M has a row for each micro-batch."""
    micro_batches = request.num_micro_batches or _MICRO_BATCHES[request.scale]
    device = request.device.split(",")[0]
    made = {}
    for small in MODELS:
        model = replace(small, batch_size=max(small.batch_size, *micro_batches, 1))
        for stages in request.num_stages or _STAGES[request.scale]:
            # One layer for each stage at least: the search at full size goes further.
            if stages <= small.num_layers + 2:
                made[f"measured-{_NAMES[type(small)]}-K{stages}"] = MemoryPlan(
                    model=model,
                    num_stages=stages,
                    num_micro_batches=tuple(micro_batches),
                    remats=("always", "never"),
                    processes=device == "cpu" and 1 < stages <= usable_cores(),
                    device=device,
                )
    return made


def _full_size_rows(model: str, result: Mapping[str, Any]) -> list[Row]:
    made = []

    def add(cell: Mapping[str, Any], metric: str, value: float, unit: str, **params: Any) -> None:
        pipeline = "num_micro_batches" in cell
        known = ("configuration", "dtype", "attention", "size")
        made.append(
            Row(
                experiment=EXPERIMENT,
                model=model,
                batch_size=result["batch_size"],
                num_stages=cell["num_stages"],
                num_micro_batches=cell.get("num_micro_batches"),
                schedule="gpipe" if pipeline else None,
                remat=cell.get("remat"),
                provenance=Provenance.SIMULATED,
                metric=metric,
                value=value,
                unit=unit,
                params={name: cell[name] for name in known if name in cell} | params,
            )
        )

    for count in result["counts"]:
        add(count, "parameters", count["parameters"], "1", published=count["published"])
    for cell in result["cells"]:
        most = {"memory": result["memory_bytes"]}
        add(cell, "parameter_memory", cell["parameter_bytes"], "B")
        add(cell, "activation_memory", sum(cell["activation_bytes"]), "B", by_stage=cell["activation_bytes"])
        add(cell, "largest_accelerator", cell["largest_stage"], "B", partition=cell["partition"], **most)
        add(cell, "spare_memory", cell["spare"], "B", **most)
    for kind in ("search", "sweep"):
        for found in result[kind]:
            layers, parameters = (found["size"][0], found["parameters"]) if found["size"] else (0, 0)
            add(found, f"{kind}_layers", layers, "layers", memory=result["memory_bytes"], parameters=parameters)
    return made


def _count_check(model: str, count: Mapping[str, Any]) -> Check:
    ours, printed = count["parameters"], count["published"]
    size = ", ".join(str(number) for number in count["size"])
    name = f"{model} ({size}): {ours:,} parameters, the paper has {printed / 1e6:,g}M"
    if model == TRANSFORMER:
        return Check(f"{name}, equal to the printed digits", as_printed(ours) == as_printed(printed))
    allowed = COARSE_TOLERANCE.get(tuple(count["size"]), COUNT_TOLERANCE)
    off = ours / printed - 1
    return Check(f"{name}, {100 * off:+.2f}% (at most {100 * allowed:.1f}%)", abs(off) <= allowed)


def as_printed(parameters: float) -> str:
    """As Table 1 prints the Transformer's: one decimal, in millions or billions."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _measured_rows(plan: MemoryPlan, cell: Mapping[str, Any]) -> list[Row]:
    made = []

    def add(metric: str, value: float, provenance: Provenance, **params: Any) -> None:
        made.append(
            Row(
                experiment=EXPERIMENT,
                model=plan.model.label,
                batch_size=plan.model.batch_size,
                num_stages=plan.num_stages,
                num_micro_batches=cell["num_micro_batches"],
                schedule="gpipe",
                remat=cell["remat"],
                provenance=provenance,
                metric=metric,
                value=value,
                unit="B",
                params={
                    "way": "processes" if plan.processes else "local",
                    "device": plan.device,
                    "partition": cell["partition"],
                    **params,
                },
            )
        )

    for index, (predicted, measured) in enumerate(zip(cell["predicted"], cell["measured"], strict=True)):
        add("activation_peak", measured, Provenance.MEASURED, rank=index)
        add("activation_peak", predicted, Provenance.SIMULATED, rank=index)
    if cell["allocated"] is not None:
        add("allocated_peak", cell["allocated"], Provenance.MEASURED)
    return made


def _prediction_check(cells: Sequence[tuple[MemoryPlan, Mapping[str, Any]]]) -> Check:
    worst = max(
        (abs(predicted / measured - 1), plan.num_stages, cell["num_micro_batches"], cell["remat"])
        for plan, cell in cells
        for predicted, measured in zip(cell["predicted"], cell["measured"], strict=True)
    )
    stages = sorted({plan.num_stages for plan, _ in cells})
    text = (
        f"{cells[0][0].model.label}: the predicted peak of activations is within {100 * PREDICTION_TOLERANCE:.0f}% of "
        f"the measured one on every rank, K in {stages} (largest error {100 * worst[0]:.2f}%, at K={worst[1]}, "
        f"M={worst[2]}, remat {worst[3]})"
    )
    return Check(text, worst[0] <= PREDICTION_TOLERANCE)


def _growth(cells: Sequence[tuple[MemoryPlan, Mapping[str, Any]]]) -> tuple[list[Row], Check | None]:
    """How well a N + b (L/K)(N/M) describes the peak of the rank that holds most, with remat always, K > 1.

    One stage has no boundary: its inputs are the mini-batch itself, tokens or pictures.
    """
    model = cells[0][0].model
    points = [
        (plan.num_stages, cell["num_micro_batches"], max(cell["measured"]))
        for plan, cell in cells
        if cell["remat"] == "always" and plan.num_stages > 1
    ]
    if len(points) < 3:
        return [], None
    rows_, layers = model.batch_size, model.num_layers
    fitted = fit_growth([(rows_, layers / k * rows_ / m, peak) for k, m, peak in points])
    if fitted is None:
        return [], None
    boundary, layer = fitted
    made = []
    worst = 0.0
    for stages, micro_batches, peak in points:
        value = boundary * rows_ + layer * layers / stages * rows_ / micro_batches
        worst = max(worst, abs(value / peak - 1))
        made.append(
            Row(
                experiment=EXPERIMENT,
                model=model.label,
                batch_size=rows_,
                num_stages=stages,
                num_micro_batches=micro_batches,
                schedule="gpipe",
                remat="always",
                provenance=Provenance.SIMULATED,
                metric="growth_fit",
                value=value,
                unit="B",
                params={"bytes_per_row": boundary, "bytes_per_layer_and_row": layer},
            )
        )
    if isinstance(model, SmallAmoebaNet):
        # Its layers are uneven: the fit is shown, and nothing is asked of it.
        return made, None
    text = (
        f"{model.label}: with remat always the peak grows as N + (L/K)(N/M) over K and M (largest deviation of the fit "
        f"{100 * worst:.1f}%, at most {100 * GROWTH_TOLERANCE:.0f}%)"
    )
    return made, Check(text, worst <= GROWTH_TOLERANCE)


def fit_growth(points: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """(a, b) with a x + b y closest to z, by relative squares, for points (x, y, z); None where they do not tell."""
    scaled = [(x / z, y / z) for x, y, z in points]
    xx, xy, yy = (sum(p[i] * p[j] for p in scaled) for i, j in ((0, 0), (0, 1), (1, 1)))
    x1, y1 = (sum(p[i] for p in scaled) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return None
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant


TARGET = Target(
    name=EXPERIMENT,
    summary="The largest model and its memory: exact counts, predicted memory, the search, and measured peaks.",
    minutes={"smoke": 0.3, "laptop": 3.5},
    parts=parts,
    rows=rows,
    add_options=add_options,
)

__all__ = ["AMOEBANET", "EXPERIMENT", "NAIVE", "TARGET", "TRANSFORMER", "Variant", "as_printed"]
