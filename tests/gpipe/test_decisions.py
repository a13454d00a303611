"""The advice at the start of a run: the micro-batches that its own schedule needs, and stages of too few layers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence

import pytest

from repro.gpipe.decisions import announce_decisions
from repro.schedules import Remat, Schedule
from repro.schedules.gpipe import gpipe

Advised = Callable[..., str]


@pytest.fixture
def advised(caplog: pytest.LogCaptureFixture) -> Advised:
    """What is said beside the decisions themselves, of equal stages of two layers unless costs are given."""

    def advised(
        schedule: object,
        num_stages: int,
        num_micro_batches: int,
        virtual: int = 1,
        remat: str = "never",
        costs: Sequence[float] = (),
        rule: str = "time",
    ) -> str:
        total = num_stages * virtual
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"), warnings.catch_warnings():
            warnings.simplefilter("error")
            announce_decisions(
                schedule=schedule,  # type: ignore[arg-type]
                num_stages=num_stages,
                num_micro_batches=num_micro_batches,
                num_virtual_stages=virtual,
                remat=remat,
                data_parallel_size=1,
                processes=1,
                partition=[1] * total if costs else [2] * total,
                costs=costs or [1.0] * (2 * total),
                rule=rule,
            )
        decisions, *advice = [record.getMessage() for record in caplog.records]
        assert decisions.startswith("Pipeline: K = ")
        return " ".join(advice)

    return advised


@pytest.mark.parametrize(
    ("schedule", "virtual", "enough"),
    # 3 / (n M + 3) <= 1/5 with n = 1, 1, V and 3 (t_I = t_W = t_F); zb-v has this bubble at M = K, from its closed form
    [("gpipe", 1, 12), ("1f1b", 1, 12), ("interleaved", 2, 6), ("zb-h1", 1, 4), ("zb-v", 2, 4)],
)
def test_the_advice_names_what_the_schedule_itself_needs(
    schedule: str, virtual: int, enough: int, advised: Advised
) -> None:
    said = advised(schedule, 4, enough - 1, virtual)
    assert f"num_micro_batches={enough - 1} gives schedule {schedule} on num_stages=4 with remat never a bubble" in said
    assert f"num_micro_batches={enough} is enough for 20%" in said
    assert ("the paper's rule is 4 x num_stages = 16" in said) == (schedule == "gpipe")
    assert advised(schedule, 4, enough, virtual) == ""


def test_recomputing_fills_a_part_of_the_bubble(advised: Advised) -> None:
    assert "remat always a bubble of 22.0%; num_micro_batches=9 is" in advised("gpipe", 4, 8, remat="always")
    assert advised("gpipe", 4, 9, remat="always") == ""


def test_one_stage_has_no_bubble(advised: Advised) -> None:
    assert advised("gpipe", 1, 1) == ""


def test_a_function_of_ones_own_is_asked_for_nothing_else(advised: Advised) -> None:
    def only_four(
        num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.NEVER
    ) -> Schedule:
        assert num_micro_batches == 4
        return gpipe(num_stages, num_micro_batches, num_virtual_stages, remat)

    assert "a bubble of 42.9%; more micro-batches make it smaller, unless" in advised(only_four, 4, 4)


def test_too_few_layers_are_told_where_they_make_stages_unequal(advised: Advised) -> None:
    assert "2 layers on 2 stages can hardly be balanced" in advised("gpipe", 2, 8, costs=[1.0, 3.0])
    assert advised("gpipe", 2, 8, costs=[1.0, 1.0]) == ""
    assert advised("gpipe", 2, 8, costs=[1.0, 3.0], rule="given") == ""
