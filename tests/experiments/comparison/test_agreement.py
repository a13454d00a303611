from __future__ import annotations

import math
from dataclasses import replace

import pytest

from repro.experiments.comparison.agreement import Curves, Tolerance, compare
from repro.experiments.comparison.collect import agreement_rows
from tests.experiments.results import make_run

REFERENCE = Curves([3.0, 2.0], [0.5, 0.4], {"accuracy": 0.8})


def verdicts(other: Curves) -> dict[str, bool]:
    return {difference.name: difference.agrees for difference in compare(REFERENCE, other, Tolerance())}


def test_the_same_agrees() -> None:
    assert verdicts(REFERENCE) == {"loss": True, "gradient_norm": True, "held_out_accuracy": True}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"losses": [3.0, 2.0001]}, "loss"),
        ({"losses": [3.0, math.nan]}, "loss"),
        ({"gradient_norms": [0.5, 0.401]}, "gradient_norm"),
        ({"gradient_norms": [math.inf, 0.4]}, "gradient_norm"),
        ({"held_out": {"accuracy": 0.79}}, "held_out_accuracy"),
        ({"held_out": {"accuracy": math.nan}}, "held_out_accuracy"),
    ],
)
def test_each_disagreement_is_found(change: dict[str, object], wrong: str) -> None:
    found = verdicts(replace(REFERENCE, **change))  # type: ignore[arg-type]
    assert [name for name, agrees in found.items() if not agrees] == [wrong]


def test_rounding_is_no_disagreement() -> None:
    assert all(verdicts(Curves([3.0 * (1 + 1e-7), 2.0], [0.5, 0.4 * (1 - 1e-6)], {"accuracy": 0.8})).values())


def test_the_step_and_both_values_are_told() -> None:
    (loss, *_) = compare(REFERENCE, replace(REFERENCE, losses=[3.0, 2.2]), Tolerance())
    assert (loss.where, loss.got, loss.wanted) == (2, 2.2, 2.0)
    assert loss.value == pytest.approx(0.2 / 2.2)
    assert str(loss).startswith("loss in step 2 is 2.2, should be 2 (relative difference 9.1e-02, allowed 1e-05)")


@pytest.mark.parametrize(
    "other",
    [
        replace(REFERENCE, losses=[3.0]),
        replace(REFERENCE, gradient_norms=[]),
        replace(REFERENCE, held_out={}),
    ],
)
def test_runs_of_another_shape_are_not_compared(other: Curves) -> None:
    with pytest.raises(ValueError, match=r"steps|metrics"):
        compare(REFERENCE, other, Tolerance())


def test_nothing_agrees_with_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(Curves([], []), Curves([], []), Tolerance())


def test_a_run_that_disagrees_fails_its_check() -> None:
    reference, good = make_run(num_stages=1), make_run(num_stages=2)
    bad = make_run(num_stages=4, processes=False, losses=[3.0, 2.0, 1.1])
    rows, checks = agreement_rows(reference, [good, bad], Tolerance())
    assert [check.passed for check in checks] == [True, False]
    assert "K=4 (local)" in checks[1].text
    assert "loss in step 3 is 1.1, should be 1" in checks[1].text
    differences = {(row.num_stages, row.metric): row.value for row in rows if row.metric.endswith("_difference")}
    assert differences[2, "loss_difference"] == 0
    assert differences[4, "loss_difference"] == pytest.approx(0.1 / 1.1)


def test_a_run_that_diverges_fails_its_check() -> None:
    bad = make_run(num_stages=2, gradient_norms=[0.5, math.inf, 0.3])
    _, checks = agreement_rows(make_run(num_stages=1), [bad], Tolerance())
    assert not checks[0].passed
    assert "gradient_norm in step 2 is inf" in checks[0].text
