"""Target ``peers``: this engine beside PyTorch's own pipeline, torchgpipe, and a loop without any engine."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError

from ..costs.workload import (
    BARE_LOOP,
    ENGINE,
    ENGINE_1F1B,
    IDEAL,
    NUM_STAGES,
    ONE_PROCESS,
    TORCH,
    TORCH_1F1B,
    TORCHGPIPE,
    EqualStages,
    SpeedPlan,
    Workload,
)
from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..sweeps.turns import median_and_spread, paired_ratios

EXPERIMENT = "peers"
REAL, EMULATED = "real", "emulated"
TORCHGPIPE_MISSING = "torchgpipe is not installed here, so it was left out; `.venv/bin/pip install torchgpipe` does it"

# What must hold of step times, engine relative to another way.
REAL_LIMITS: Mapping[str, float] = {TORCH: 1.0, TORCHGPIPE: 0.8}
IDEAL_LIMIT, LOOP_LIMIT = 1.06, 0.02
SMALL_BOUNDARY = 4096

SAME_SCHEDULE: Mapping[str, str] = {TORCH: ENGINE, TORCH_1F1B: ENGINE_1F1B}
"""The way of this engine that runs the schedule of another way."""

_KIB = 1024
_MAX_STAGES = 16
_MANY = 16

_SHORT = 120
"""Micro-batches that all rounds of a way of real layers come to at least."""


@dataclass(frozen=True)
class _Scale:
    """How much is run.

    Attributes:
        real: M of the runs with real layers, at K = 2.
        real_plan: how long those are timed.
        stages: K of the emulated runs.
        micro_batches: M of the emulated runs.
        boundaries: bytes that cross a boundary in them.
        rounds: of the emulated runs with the smallest boundary, with the others, and of these with many micro-batches.
        judged: whether limits on times are checked.
    """

    real: tuple[int, ...]
    real_plan: SpeedPlan
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]
    boundaries: tuple[int, ...]
    rounds: tuple[int, int, int]
    judged: bool = True


_LAPTOP = _Scale(
    real=(4, 8, 16),
    real_plan=SpeedPlan(rounds=12, steps=1),
    stages=(2, 4, 8),
    micro_batches=(1, 4, 32),
    boundaries=(SMALL_BOUNDARY, 64 * _KIB, 2048 * _KIB),
    rounds=(10, 3, 2),
)
_SCALES: Mapping[str, _Scale] = {
    # Enough to see that everything runs; a shared machine of CI says nothing about times.
    "smoke": _Scale((4,), SpeedPlan(2, 1, 1), (2, 4), (4,), (SMALL_BOUNDARY,), (3, 3, 3), judged=False),
    "laptop": _LAPTOP,
    "gpu": _LAPTOP,
}


def parts(request: Request) -> list[SweepPart]:
    """One part for each M with real layers, one for each K, M and boundary with emulated ones."""
    scale = _scale(request)
    # Only now: they load torch.
    from .equal_stages import time_equal_stages
    from .speed import time_ways

    made = []
    for micro_batches in scale.real:
        workload, names = Workload(num_micro_batches=micro_batches), _ways()
        speed = _speed_plan(scale, micro_batches)
        seconds = 5 + 0.04 * micro_batches * len(names) * (speed.rounds + 3)
        made.append(
            SweepPart(
                _real(micro_batches),
                f"real layers, K={NUM_STAGES}, M={micro_batches}",
                time_ways,
                (workload, speed, names),
                NUM_STAGES,
                seconds,
            )
        )
    for plan in _plans(scale):
        made.append(
            SweepPart(
                _emulated(plan),
                f"emulated, K={plan.num_stages}, M={plan.num_micro_batches}, {plan.boundary_bytes // _KIB} KiB",
                time_equal_stages,
                (plan,),
                plan.num_stages,
                3 + 0.4 * plan.num_stages + 1.1 * _count(plan) * plan.ideal * (plan.rounds * plan.steps + plan.warm_up),
            )
        )
    return made


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Step times, and paired ratios of the engine's to each other way's."""
    scale = _scale(request)
    made: list[Row] = []
    checks: list[Check] = []
    for micro_batches in scale.real:
        seconds = results.get(_real(micro_batches))
        if seconds is not None:
            workload = Workload(num_micro_batches=micro_batches)
            made += _rows_of(_real_row(workload, _speed_plan(scale, micro_batches)), seconds)
            checks += _real_checks(workload, seconds) if scale.judged else []
    for plan in _plans(scale):
        seconds = results.get(_emulated(plan))
        if seconds is not None:
            made += _rows_of(_emulated_row(plan), seconds, plan.ideal)
            checks.append(_lasts(plan, seconds))
            checks += _emulated_checks(plan, seconds) if scale.judged else []
    return made, checks


def is_judged(scale: str) -> bool:
    """Whether limits on times are checked at this scale."""
    return _SCALES[scale].judged


def add_options(parser: ArgumentParser) -> None:
    """``--boundary-kib``."""
    parser.add_argument(
        "--boundary-kib",
        type=int,
        nargs="+",
        metavar="N",
        help="what crosses a boundary of the emulated stages per micro-batch, several sizes (default: 4 64 2048)",
    )


def _scale(request: Request) -> _Scale:
    scale = _SCALES[request.scale]
    if request.num_micro_batches is not None:
        scale = replace(scale, real=request.num_micro_batches, micro_batches=request.num_micro_batches)
    if request.num_stages is not None:
        wrong = [stages for stages in request.num_stages if not 2 <= stages <= _MAX_STAGES]
        if wrong:
            raise UserError(
                f"num_stages={wrong[0]}: peers compares pipelines with a process a stage; give -K 2 to {_MAX_STAGES}"
            )
        real = scale.real if NUM_STAGES in request.num_stages else ()
        scale = replace(scale, stages=request.num_stages, real=real)
    sizes = request.options.get("boundary_kib")
    if sizes is not None:
        if min(sizes) < 1:
            raise UserError(f"--boundary-kib {min(sizes)}: give a whole number of at least 1")
        scale = replace(scale, boundaries=tuple(dict.fromkeys(_KIB * size for size in sizes)))
    return scale


def _ways() -> tuple[str, ...]:
    installed = importlib.util.find_spec("torchgpipe") is not None
    return (ENGINE, ENGINE_1F1B, BARE_LOOP, TORCH, TORCH_1F1B, ONE_PROCESS, *([TORCHGPIPE] if installed else []))


def _speed_plan(scale: _Scale, micro_batches: int) -> SpeedPlan:
    """More rounds of short steps, whose ratios scatter more."""
    plan = scale.real_plan
    return replace(plan, rounds=max(plan.rounds, _SHORT // micro_batches)) if scale.judged else plan


def _plans(scale: _Scale) -> list[EqualStages]:
    many, few, fewest = scale.rounds

    def rounds(size: int, micro_batches: int) -> int:
        return many if size == min(scale.boundaries) else few if micro_batches < _MANY else fewest

    return [
        EqualStages(stages, micro_batches, size, 0.010, 0.020, rounds(size, micro_batches))
        for size in scale.boundaries
        for stages in scale.stages
        for micro_batches in scale.micro_batches
    ]


def _count(plan: EqualStages) -> int:
    """Ways that are timed."""
    return 5 if plan.allows_1f1b else 3


def _real(micro_batches: int) -> str:
    return f"real-M{micro_batches}"


def _emulated(plan: EqualStages) -> str:
    return f"emulated-K{plan.num_stages}-M{plan.num_micro_batches}-{plan.boundary_bytes}"


def _real_row(workload: Workload, plan: SpeedPlan) -> Row:
    return Row(
        experiment=EXPERIMENT,
        model=f"{workload.num_layers} Transformer layers ({workload.d_model}, {workload.d_ff}, {workload.num_heads})",
        batch_size=workload.batch_size,
        num_stages=NUM_STAGES,
        num_micro_batches=workload.num_micro_batches,
        schedule="gpipe",
        remat="never",
        provenance=Provenance.MEASURED,
        metric="step_time",
        value=0.0,
        unit="s",
        params={"part": REAL, "threads_per_process": 1, **asdict(plan), **asdict(workload)},
    )


def _emulated_row(plan: EqualStages) -> Row:
    return Row(
        experiment=EXPERIMENT,
        model="equal stages of timed waits",
        batch_size=plan.num_micro_batches,
        num_stages=plan.num_stages,
        num_micro_batches=plan.num_micro_batches,
        schedule="gpipe",
        remat="never",
        provenance=Provenance.EMULATED,
        metric="step_time",
        value=0.0,
        unit="s",
        params={"part": EMULATED, "threads_per_process": 1, "steps": plan.steps, **asdict(plan)},
    )


def _rows_of(known: Row, seconds: Mapping[str, Sequence[float]], ideal: float | None = None) -> list[Row]:
    """Of one part: the step time of every way; what of it is relative to the ideal; the engine's to the others'.

    ``step_time_ratio`` of the engine is that of its GPipe schedule, to PyTorch's 1F1B also that of its own 1F1B.
    """
    made = []
    for way, values in seconds.items():
        row = _of_way(known, way)
        made.append(_with(row, values))
        if ideal is not None:
            made.append(_with(row, [value / ideal for value in values], reference=IDEAL))
    pairs = [(ENGINE, way) for way in seconds if way != ENGINE]
    pairs += [(own, way) for way, own in SAME_SCHEDULE.items() if own != ENGINE and {own, way} <= seconds.keys()]
    for own, way in pairs:
        made.append(_with(_of_way(known, own), paired_ratios(seconds[own], seconds[way]), reference=way))
    return made


def _of_way(known: Row, way: str) -> Row:
    alone = way in (ONE_PROCESS, TORCHGPIPE)
    row = replace(known, schedule=None) if way == ONE_PROCESS else known
    row = replace(row, schedule="1f1b") if way in (ENGINE_1F1B, TORCH_1F1B) else row
    return replace(row, params={**known.params, "way": way, "processes": 1 if alone else known.num_stages})


def _with(row: Row, values: Sequence[float], reference: str | None = None) -> Row:
    value, spread = median_and_spread(values)
    if reference is None:
        return replace(row, value=value, spread=spread)
    params = {**row.params, "reference": reference}
    return replace(row, metric="step_time_ratio", unit="1", value=value, spread=spread, params=params)


def _real_checks(workload: Workload, seconds: Mapping[str, Sequence[float]]) -> list[Check]:
    checks = []
    for way, limit in REAL_LIMITS.items():
        if way in seconds:
            value, spread = median_and_spread(paired_ratios(seconds[ENGINE], seconds[way]))
            text = (
                f"real layers, K={NUM_STAGES}, M={workload.num_micro_batches}: the step takes {value:.4f} ± "
                f"{spread:.4f} of that of {way}, at most {limit:.2f}"
            )
            checks.append(Check(text, value <= limit))
    return checks


def _emulated_checks(plan: EqualStages, seconds: Mapping[str, Sequence[float]]) -> list[Check]:
    name = f"emulated, K={plan.num_stages}, M={plan.num_micro_batches}, {plan.boundary_bytes // _KIB} KiB"
    checks = []
    if plan.boundary_bytes == SMALL_BOUNDARY:
        value, loop = (statistics.median(seconds[way]) / plan.ideal for way in (ENGINE, BARE_LOOP))
        text = f"{name}: the step takes {value:.4f} of {IDEAL} (a bare loop {loop:.4f}), at most {IDEAL_LIMIT:.2f}"
        checks.append(Check(text, value <= IDEAL_LIMIT))
        value, spread = median_and_spread(paired_ratios(seconds[ENGINE], seconds[BARE_LOOP]))
        limit = 1 + max(LOOP_LIMIT, spread)
        text = f"{name}: the step takes {value:.4f} ± {spread:.4f} of that of a bare loop, at most {limit:.4f}"
        checks.append(Check(text, value <= limit))
    for way, own in SAME_SCHEDULE.items():
        if way in seconds:
            value, spread = median_and_spread(paired_ratios(seconds[own], seconds[way]))
            text = f"{name}: the step of {own} takes {value:.4f} ± {spread:.4f} of that of {way}, below 1"
            checks.append(Check(text, value < 1))
    return checks


def _lasts(plan: EqualStages, seconds: Mapping[str, Sequence[float]]) -> Check:
    """No way can be faster than the waits: else it would not have waited for all of them."""
    shortest = min(min(values) for values in seconds.values())
    text = (
        f"emulated, K={plan.num_stages}, M={plan.num_micro_batches}, {plan.boundary_bytes // _KIB} KiB: no step is "
        f"shorter than its waits (shortest {shortest:.3f} s, waits {plan.ideal:.3f} s)"
    )
    return Check(text, shortest >= plan.ideal)


TARGET = Target(
    name="peers",
    summary="This engine beside torch.distributed.pipelining, torchgpipe and a bare isend/irecv loop: step times.",
    minutes={"smoke": 0.5, "laptop": 13},
    parts=parts,
    rows=rows,
    add_options=add_options,
)
