from __future__ import annotations

import pytest

from repro.experiments.accuracy.scales import TRANSLATION, Expectation
from repro.experiments.comparison.collect import MAX_POINTS, curve_rows, learning_rows
from tests.experiments.results import make_run


@pytest.mark.parametrize(
    ("expectation", "passed"),
    [
        (Expectation("bleu", above="bleu_copy"), True),
        (Expectation("bleu", above="bleu_nearest"), False),
        (Expectation("nll", below="unigram_nll", margin=1.0), True),
        (Expectation("nll", below="unigram_nll", margin=3.0), False),
        (Expectation("bleu", at_least=12.0), True),
        (Expectation("bleu", at_least=12.1), False),
    ],
)
def test_what_a_run_must_reach(expectation: Expectation, passed: bool) -> None:
    _, checks = learning_rows(make_run(TRANSLATION), [expectation])
    assert [check.passed for check in checks] == [passed, True]
    assert expectation.metric in checks[0].text


@pytest.mark.parametrize("losses", [[1.0, 2.0, 3.0], [1.0, 1.0], [1.0, float("nan")]])
def test_a_loss_that_does_not_fall_is_no_learning(losses: list[float]) -> None:
    _, (check,) = learning_rows(make_run(losses=losses), [])
    assert not check.passed


def test_long_curves_are_thinned_and_keep_their_steps() -> None:
    losses = [float(step) for step in range(1, 1001)]
    rows = [row for row in curve_rows(make_run(losses=losses), "learning") if row.metric == "loss"]
    steps = [row.params["step"] for row in rows if row.params["part"] == "train"]
    assert len(steps) <= MAX_POINTS
    assert all(row.value == row.params["step"] for row in rows if row.params["part"] == "train")
    assert steps[0] == 1
