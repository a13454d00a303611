"""The warning at the start of a run: the micro-batches that its own schedule needs."""

from __future__ import annotations

import warnings

import pytest

from repro.gpipe.decisions import announce_decisions
from repro.schedules import Remat, Schedule
from repro.schedules.gpipe import gpipe


def warned(schedule: object, num_stages: int, num_micro_batches: int, virtual: int = 1, remat: str = "never") -> str:
    total = num_stages * virtual
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        announce_decisions(
            schedule=schedule,  # type: ignore[arg-type]
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            num_virtual_stages=virtual,
            remat=remat,
            data_parallel_size=1,
            processes=1,
            partition=[2] * total,
            costs=[1.0] * (2 * total),
            rule="time",
        )
    return " ".join(str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("schedule", "virtual", "enough"),
    # 3 / (n M + 3) <= 1/5 with n = 1, 1, V and 3 (t_I = t_W = t_F); zb-v has this bubble at M = K, from its closed form
    [("gpipe", 1, 12), ("1f1b", 1, 12), ("interleaved", 2, 6), ("zb-h1", 1, 4), ("zb-v", 2, 4)],
)
def test_the_warning_names_what_the_schedule_itself_needs(schedule: str, virtual: int, enough: int) -> None:
    said = warned(schedule, 4, enough - 1, virtual)
    assert f"num_micro_batches={enough - 1} gives schedule {schedule} on num_stages=4 a bubble of" in said
    assert f"at most 20% takes num_micro_batches={enough}." in said
    assert warned(schedule, 4, enough, virtual) == ""


def test_recomputing_fills_a_part_of_the_bubble() -> None:
    assert "num_micro_batches=9." in warned("gpipe", 4, 8, remat="always")
    assert warned("gpipe", 4, 9, remat="always") == ""


def test_one_stage_has_no_bubble() -> None:
    assert warned("gpipe", 1, 1) == ""


def test_a_function_of_ones_own_is_asked_for_nothing_else() -> None:
    def only_four(
        num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.NEVER
    ) -> Schedule:
        assert num_micro_batches == 4
        return gpipe(num_stages, num_micro_batches, num_virtual_stages, remat)

    assert "a bubble of 42.9% with equal stages; more micro-batches make it smaller." in warned(only_four, 4, 4)
