from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from repro.errors import UserError
from repro.schedules import GENERATORS, Kind, Remat, Schedule, ScheduleError, make_schedule
from repro.schedules.gpipe import gpipe


def test_a_schedule_by_name() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=3, num_virtual_stages=2, remat="always")
    assert schedule == gpipe(2, 3, 2, Remat.ALWAYS)


def test_without_remat_unless_asked_for() -> None:
    assert make_schedule("gpipe", num_stages=2, num_micro_batches=3).remat is Remat.NEVER


def test_a_function_of_ones_own() -> None:
    def last_in_first_out(num_stages: int, num_micro_batches: int, num_virtual_stages: int, remat: Remat) -> Schedule:
        return dataclasses.replace(gpipe(num_stages, num_micro_batches, num_virtual_stages, remat), name="mine")

    assert make_schedule(last_in_first_out, num_stages=2, num_micro_batches=2).name == "mine"


def test_a_function_of_ones_own_is_validated() -> None:
    def forgets_backward(num_stages: int, num_micro_batches: int, num_virtual_stages: int, remat: Remat) -> Schedule:
        schedule = gpipe(num_stages, num_micro_batches, num_virtual_stages, remat)
        actions = tuple(tuple(action for action in rank if action.kind is Kind.FORWARD) for rank in schedule.actions)
        return dataclasses.replace(schedule, actions=actions)

    with pytest.raises(ScheduleError, match="B is missing"):
        make_schedule(forgets_backward, num_stages=2, num_micro_batches=2)


def test_a_function_that_ignores_the_sizes_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"built for .* \(2, 4, 1, .*but \(2, 8, 1,"):
        make_schedule(lambda k, m, v, r: gpipe(2, 4, v, r), num_stages=2, num_micro_batches=8)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"name": "gpip"}, ["'gpip'", "did you mean 'gpipe'", *GENERATORS]),
        ({"name": "zzz"}, ["'zzz'", *GENERATORS]),
        ({"num_stages": 0}, ["num_stages=0", "at least 1"]),
        ({"num_micro_batches": 0}, ["num_micro_batches=0", "at least 1"]),
        ({"num_micro_batches": -3}, ["num_micro_batches=-3"]),
        ({"num_micro_batches": 2.5}, ["num_micro_batches=2.5", "whole number"]),
        ({"num_micro_batches": True}, ["num_micro_batches=True"]),
        ({"num_virtual_stages": 0}, ["num_virtual_stages=0"]),
        ({"remat": "alway"}, ["remat='alway'", "did you mean 'always'"]),
        ({"remat": True}, ["remat=True", "always", "except_last", "never"]),
    ],
)
def test_errors_repeat_the_input(change: dict[str, Any], parts: list[str]) -> None:
    arguments: dict[str, Any] = {"name": "gpipe", "num_stages": 2, "num_micro_batches": 4, **change}
    with pytest.raises(ScheduleError) as caught:
        make_schedule(arguments.pop("name"), **arguments)
    assert isinstance(caught.value, UserError)
    for part in parts:
        assert part in str(caught.value)
