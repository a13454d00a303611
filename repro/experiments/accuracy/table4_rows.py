"""Rows and checks of Table 4 from the results of its training runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request
from .table4_plans import (
    PRE_TRAINING_SET,
    TRANSFER,
    TRANSFER_SETS,
    ImageRun,
    Settings,
    image_runs,
    present_sets,
    settings,
)

EXPERIMENT = "table4"

Trained = tuple[ImageRun, Mapping[str, Any]]
"""A run and what it returned."""

FIRST_STEPS = 5
"""Of these the losses are compared: later, AdamW has amplified what rounding began."""

EXACT = 1e-9
"""Largest relative difference of losses in float64."""


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    chosen = settings(request.scale)
    done = [(run, results[run.plan.name]) for run in image_runs(request) if run.plan.name in results]
    counts = results.get("data", {})
    made = _data_rows(counts)
    checks: list[Check] = []
    for found in (
        _sizes(done, chosen),
        _stages(done, chosen),
        _micro_batches(done),
        _transfer(done, chosen, counts),
    ):
        made += found[0]
        # Nothing is asked of accuracies at the smallest scale; that K does not matter, it shows exactly.
        checks += found[1]
    return made, checks


def _data_rows(counts: Mapping[str, Mapping[str, float]]) -> list[Row]:
    fetched = present_sets()
    made = []
    for name in (PRE_TRAINING_SET, *TRANSFER_SETS):
        params = {"part": "data", "data": name}
        made.append(_plain_row("fetched", float(name in fetched), params))
        for metric, value in counts.get(name, {}).items():
            made.append(_plain_row(metric, value, params))
    return made


def _sizes(done: Sequence[Trained], chosen: Settings) -> tuple[list[Row], list[Check]]:
    made, means = [], {}
    for size in chosen.num_filters:
        some = _of(done, "sizes", size=size)
        made += [_row(one, "accuracy", _accuracy(one)) for one in some]
        if some:
            means[size] = _mean(some)
            made.append(_mean_row(some, "mean_accuracy", *means[size]))
    checks = []
    if chosen.size_seeds > 1 and all(spread is not None for _, spread in means.values()):
        for (small, (low, low_spread)), (large, (high, high_spread)) in pairwise(means.items()):
            # The type knows no spread of one seed; there is none of it here.
            noise = (low_spread or 0.0) + (high_spread or 0.0)
            checks.append(
                Check(
                    f"the {large} model is better than the {small} one beyond the spread of seeds: {_points(high)} "
                    f"against {_points(low)}, a gain of {100 * (high - low):.1f} points (standard deviations add up to "
                    f"{100 * noise:.1f})",
                    high - low > noise,
                )
            )
    return made, checks


def _stages(done: Sequence[Trained], chosen: Settings) -> tuple[list[Row], list[Check]]:
    seeds = _of(done, "sizes", size="small")
    reference = next((one for one in seeds if one[0].plan.training.seed == 0), None)
    split = _of(done, "stages")
    if reference is None or not split:
        return [], []
    made, checks = [], []
    for one in (reference, *split):
        made.append(_row(one, "accuracy", _accuracy(one), part="stages"))
        made.append(_row(one, "correct", _correct(one, chosen), part="stages"))
        made.append(_row(one, "loss_difference", _loss_difference(one, reference), part="stages"))
    # Two runs of the recipe differ by its seeds, and by which images happen to be in the test part.
    share = _accuracy(reference)
    spread = _mean(seeds)[1] or 0.0
    noise = math.hypot(spread, math.sqrt(share * (1 - share) / chosen.test_images))
    for one in split:
        number = one[0].plan.training.num_stages
        if chosen.precision == "64-true":
            same, off = _correct(one, chosen) == _correct(reference, chosen), _loss_difference(one, reference)
            checks.append(
                Check(
                    f"K = {number} is right on as many of {chosen.test_images} test images as K = 1 in float64: "
                    f"{_correct(one, chosen)} and {_correct(reference, chosen)}; losses differ by {off:.0e} (relative)",
                    same and off <= EXACT,
                )
            )
        else:
            off = abs(_accuracy(one) - share)
            checks.append(
                Check(
                    f"K = {number} is as accurate as K = 1 within seed noise: {_points(_accuracy(one))} and "
                    f"{_points(share)}, a difference of {100 * off:.2f} points, at most twice {100 * noise:.2f}",
                    off <= 2 * noise,
                )
            )
    return made, checks


def _micro_batches(done: Sequence[Trained]) -> tuple[list[Row], list[Check]]:
    own = [one for one in _of(done, "sizes", size="small") if one[0].plan.training.seed == 0]
    runs = sorted(
        [*own, *_of(done, "micro_batches")],
        key=lambda one: (one[0].norm, one[0].plan.training.num_micro_batches or 0),
    )
    made = []
    grouped = [one for one in runs if one[0].norm == "group"]
    for one in runs:
        made.append(_row(one, "accuracy", _accuracy(one), part="micro_batches"))
        if one[1].get("statistics"):
            for metric in ("running_mean_error", "running_variance_error", "accuracy_recomputed"):
                made.append(_row(one, metric, one[1]["statistics"][metric], part="micro_batches"))
        if one in grouped:
            made.append(_row(one, "loss_difference", _loss_difference(one, grouped[0]), part="micro_batches"))
    exact = bool(grouped) and "--trainer.precision=64-true" in grouped[0][0].plan.training.overrides
    if not exact or len(grouped) < 2:
        return made, []
    off = max(_loss_difference(one, grouped[0]) for one in grouped)
    numbers = ", ".join(str(one[0].plan.training.num_micro_batches) for one in grouped)
    text = f"with GroupNorm the answer does not depend on M = {numbers}: losses differ by {off:.0e} (relative, float64)"
    return made, [Check(text, off <= EXACT)]


def _transfer(
    done: Sequence[Trained], chosen: Settings, counts: Mapping[str, Mapping[str, float]]
) -> tuple[list[Row], list[Check]]:
    made = [_row(one, "accuracy", _accuracy(one)) for one in _of(done, "pre_training")]
    checks = []
    for data in chosen.transfer_sets:
        kinds = {kind: _of(done, kind, data=data) for kind in TRANSFER}
        for some in kinds.values():
            made += [_row(one, "accuracy", _accuracy(one)) for one in some]
            if some:
                made.append(_mean_row(some, "mean_accuracy", *_mean(some)))
        tuned, fresh = ({one[0].plan.training.seed: one for one in some} for some in kinds.values())
        gains = [_accuracy(tuned[seed]) - _accuracy(fresh[seed]) for seed in tuned if seed in fresh]
        if gains:
            first = next(iter(tuned.values()))
            row = _row(first, "fine_tuning_gain", statistics.mean(gains), spread=_deviation(gains), part="transfer")
            made.append(_over_seeds(row, len(gains)))
        if chosen.transfer_seeds > 1 and tuned and data in counts:
            mean, most = _mean(kinds["fine_tuning"])[0], counts[data]["largest_class_share"]
            text = f"{data}: fine-tuned, {_points(mean)} are right, more than the largest class has ({_points(most)})"
            checks.append(Check(text, mean > most))
    return made, checks


def _of(done: Sequence[Trained], part: str, **wanted: str) -> list[Trained]:
    return [
        one
        for one in done
        if one[0].part == part and all(getattr(one[0], name) == value for name, value in wanted.items())
    ]


def _accuracy(one: Trained) -> float:
    return float(one[1]["held_out"]["accuracy"])


def _correct(one: Trained, chosen: Settings) -> int:
    return round(_accuracy(one) * chosen.test_images)


def _loss_difference(one: Trained, reference: Trained) -> float:
    pairs = zip(one[1]["losses"][:FIRST_STEPS], reference[1]["losses"][:FIRST_STEPS], strict=True)
    return float(max(abs(loss - wanted) / abs(wanted) for loss, wanted in pairs))


def _mean(some: Sequence[Trained]) -> tuple[float, float | None]:
    values = [_accuracy(one) for one in some]
    return statistics.mean(values), _deviation(values)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _points(share: float) -> str:
    return f"{100 * share:.1f}%"


def _mean_row(some: Sequence[Trained], metric: str, value: float, spread: float | None) -> Row:
    return _over_seeds(_row(some[0], metric, value, spread=spread), len(some))


def _over_seeds(row: Row, number: int) -> Row:
    params = {name: value for name, value in row.params.items() if name != "seed"}
    return Row.from_dict(row.as_dict() | {"params": params | {"seeds": number}})


def _row(one: Trained, metric: str, value: float, *, spread: float | None = None, part: str | None = None) -> Row:
    run, result = one
    training = run.plan.training
    return Row(
        EXPERIMENT,
        run.model,
        result["batch_size"],
        training.num_stages,
        training.num_micro_batches,
        result["schedule"],
        result["remat"],
        Provenance.MEASURED,
        metric,
        float(value),
        "images" if metric == "correct" else "1",
        spread,
        {
            "part": part or run.part,
            "data": run.data,
            "size": run.size,
            "num_filters": run.num_filters,
            "parameters": result["num_parameters"],
            "norm": run.norm,
            "seed": training.seed,
            "steps": training.steps,
        },
    )


def _plain_row(metric: str, value: float, params: Mapping[str, Any]) -> Row:
    unit = {"train_images": "images", "test_images": "images", "classes": "classes"}.get(metric, "1")
    return Row(
        EXPERIMENT, "none", None, None, None, None, None, Provenance.MEASURED, metric, float(value), unit, None, params
    )
