"""What re-materialization costs and saves: time and activation memory of always, except_last and never."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from repro.errors import UserError
from repro.schedules import Remat, make_schedule, simulate

from ..costs.scaled_down import SmallAmoebaNet, SmallModel, SmallTransformer
from ..sweeps.checks import Check
from ..sweeps.environment import usable_cores
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..sweeps.turns import median_and_spread, paired_ratios
from .remat_steps import WHOLE, RematPlan, time_remat

EXPERIMENT = "remat"
# Time of a step with remat always relative to one without: the limit in one cell, and elsewhere how far above what
# the schedule, replayed with the F and B of the same run, gives.
LIMIT_CELL = ("transformer", 2, 8)
LIMIT = 1.33
OVER_SIMULATED = 1.05
MODELS: Mapping[str, SmallModel] = {
    "transformer": SmallTransformer(num_layers=4, d_model=256, d_ff=1024, num_heads=4, batch_size=32),
    "amoebanet": SmallAmoebaNet(num_layers=3, num_filters=24, batch_size=16),
}
# Medians of fewer rounds say nothing: then times are shown, and nothing is asked of them.
ENOUGH_ROUNDS = 8
_STAGES = {"smoke": (2,), "laptop": (1, 2), "gpu": (1, 2)}
_MICRO_BATCHES = {"smoke": (8,), "laptop": (4, 8, 16), "gpu": (4, 8, 16)}
_ROUNDS = {"smoke": 2, "laptop": 10, "gpu": 20}
_LIMIT_ROUNDS = {"smoke": 2, "laptop": 24, "gpu": 24}
_WARM_UP = {"smoke": 1, "laptop": 2, "gpu": 3}
# Of a round on one process: three modes of remat and the whole mini-batch, a step each.
_ROUND_SECONDS = {"transformer": 1.6, "amoebanet": 1.6}


def parts(request: Request) -> list[SweepPart]:
    """One job for each model, K and M.

    Raises:
        UserError: a model has fewer layers than stages, or no K has as many cores.
    """
    made = []
    plans = _plans(request)
    if not plans:
        raise UserError(
            f"-K {' '.join(map(str, request.num_stages or ()))}: this machine has {usable_cores()} cores, and step "
            "times are measured with a core for each stage; give a smaller K"
        )
    for name, plan in plans.items():
        each = _ROUND_SECONDS[name.split("-")[0]] / (1.5 if plan.processes else 1)
        seconds = 3 + (plan.rounds + plan.warm_up) * each
        title = f"{plan.model.label.split(' ')[0]}, K={plan.num_stages}, M={plan.num_micro_batches}"
        made.append(SweepPart(name, title, time_remat, (plan,), plan.num_stages if plan.processes else 1, seconds))
    return made


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    made: list[Row] = []
    checks: list[Check] = []
    for name, plan in _plans(request).items():
        if name in results:
            cell = _Cell(name.split("-")[0], plan, results[name])
            made += cell.rows()
            checks += cell.checks()
    return made, checks


def _plans(request: Request) -> dict[str, RematPlan]:
    device = request.device.split(",")[0]
    smaller = 2 if request.scale == "smoke" else 1
    made = {}
    for name, model in MODELS.items():
        for stages in request.num_stages or _STAGES[request.scale]:
            if stages > len(model.costs()):
                raise UserError(
                    f"-K {stages}: {model.label} has {len(model.costs())} layers, so at most that many stages"
                )
            # More stages than cores would take turns on them: nothing of a pipeline's step time could be measured.
            if device == "cpu" and stages > max(1, usable_cores()):
                continue
            for micro_batches in request.num_micro_batches or _MICRO_BATCHES[request.scale]:
                rounds = _LIMIT_ROUNDS if (name, stages, micro_batches) == LIMIT_CELL else _ROUNDS
                made[f"{name}-K{stages}-M{micro_batches}"] = RematPlan(
                    model=replace(model, batch_size=max(model.batch_size // smaller, micro_batches)),
                    num_stages=stages,
                    num_micro_batches=micro_batches,
                    processes=device == "cpu" and stages > 1,
                    device=device,
                    rounds=rounds[request.scale],
                    warm_up=_WARM_UP[request.scale],
                )
    return made


class _Cell:
    """The results of one job."""

    def __init__(self, kind: str, plan: RematPlan, result: Mapping[str, Any]) -> None:
        self._kind = kind
        self._plan = plan
        self._result = result
        self._seconds: Mapping[str, list[float]] = result["seconds"]
        never = result["costs"]["never"]
        # R is an F that keeps its activations, as every F without remat does: it costs t_F of the same run.
        self._simulated = {remat.value: self._simulate(remat.value, never) for remat in Remat}

    def rows(self) -> list[Row]:
        """Times, ratios, memory, and what the schedule says of them."""
        made = []
        plan, seconds = self._plan, self._seconds
        for remat in Remat:
            mode = remat.value
            made.append(self._row(mode, "step_time", *median_and_spread(seconds[mode]), unit="s"))
            ratio = median_and_spread(paired_ratios(seconds[mode], seconds["never"]))
            made.append(self._row(mode, "time_ratio", *ratio))
            made.append(self._row(mode, "time_ratio", self._expected(mode), provenance=Provenance.SIMULATED))
            peaks, kept = self._result["peaks"][mode], self._result["peaks"]["never"]
            made.append(self._row(mode, "activation_peak", max(peaks), unit="B", by_rank=peaks))
            made.append(self._row(mode, "memory_ratio", max(peaks) / max(kept)))
            # K devices for the time of a step, against one device that keeps everything.
            cost = [plan.num_stages * ratio for ratio in paired_ratios(seconds[mode], seconds[WHOLE])]
            if plan.num_stages == 1 or plan.processes:
                made.append(self._row(mode, "device_time_ratio", *median_and_spread(cost)))
        early = self._result["early"]
        if early["room"] and plan.processes:
            made.append(self._row("always", "early_recompute", early["early"] / early["room"], cases=early["room"]))
            made.append(self._row("always", "hidden_recompute", early["hidden"]))
        return made

    def checks(self) -> list[Check]:
        """The limits, and that R is early."""
        plan = self._plan
        made = []
        where = f"{plan.model.label}, K={plan.num_stages}, M={plan.num_micro_batches}"
        limited = (self._kind, plan.num_stages, plan.num_micro_batches) == LIMIT_CELL and plan.processes
        for mode in ("always", "except_last") if plan.rounds >= ENOUGH_ROUNDS else ():
            ratio, spread = median_and_spread(paired_ratios(self._seconds[mode], self._seconds["never"]))
            expected = self._expected(mode)
            said = f"{where}: a step with remat {mode} takes {ratio:.3f} ± {spread:.3f} x one without"
            if limited and mode == "always":
                made.append(Check(f"{said}, at most {LIMIT:g}", ratio <= LIMIT))
                continue
            most = OVER_SIMULATED * expected
            made.append(
                Check(f"{said}, at most {OVER_SIMULATED:g} x the simulated {expected:.3f} = {most:.3f}", ratio <= most)
            )
        early = self._result["early"]
        if early["room"] and plan.processes:
            made.append(
                Check(
                    f"{where}: R of the last micro-batch began before its gradient was made in {early['early']} of "
                    f"{early['room']} traced cases ({100 * early['hidden']:.0f}% of its time is hidden)",
                    early["early"] == early["room"],
                )
            )
        return made

    def _expected(self, mode: str) -> float:
        return self._simulated[mode] / self._simulated["never"]

    def _simulate(self, mode: str, costs: Mapping[str, list[float]]) -> float:
        """Seconds of a step by the schedule, from F and B of the run without remat; stages that share a device add."""
        plan = self._plan
        schedule = make_schedule(
            "gpipe", num_stages=plan.num_stages, num_micro_batches=plan.num_micro_batches, remat=mode
        )
        timeline = simulate(schedule, forward=costs["forward"], backward=costs["backward"], recompute=costs["forward"])
        return float(timeline.makespan if plan.processes else sum(timeline.busy))

    def _row(
        self,
        mode: str,
        metric: str,
        value: float,
        spread: float | None = None,
        *,
        unit: str = "1",
        provenance: Provenance = Provenance.MEASURED,
        **params: Any,
    ) -> Row:
        plan = self._plan
        return Row(
            experiment=EXPERIMENT,
            model=plan.model.label,
            batch_size=plan.model.batch_size,
            num_stages=plan.num_stages,
            num_micro_batches=plan.num_micro_batches,
            schedule="gpipe",
            remat=mode,
            provenance=provenance,
            metric=metric,
            value=value,
            unit=unit,
            spread=spread,
            params={
                "way": "processes" if plan.processes else "local",
                "device": plan.device,
                "rounds": plan.rounds,
                "partition": self._result["partition"],
                "costs": self._result["costs"][mode],
                **params,
            },
        )


TARGET = Target(
    name=EXPERIMENT,
    summary="Re-materialization: what always, except_last and never cost in time and save in activation memory.",
    minutes={"smoke": 0.5, "laptop": 6.5},
    parts=parts,
    rows=rows,
)

__all__ = ["EXPERIMENT", "TARGET"]
