from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import UserError
from repro.schedules import (
    GENERATORS,
    SIMULATED_ONLY,
    Kind,
    Remat,
    Schedule,
    ScheduleError,
    make_schedule,
    require_executable,
    staleness,
)
from repro.schedules.gpipe import gpipe

VIRTUAL_STAGES: dict[str, Collection[int]] = {
    "gpipe": range(1, 99),
    "1f1b": (1,),
    "interleaved": range(1, 99),
    "zb-h1": (1,),
    "zb-h2": (1,),
    "zb-v": (2,),
    "chimera": (1,),
    "pipedream": (1,),
}


def sizes(name: str, num_stages: int, num_virtual_stages: int) -> bool:
    """Whether the schedule can have these numbers: what its constructor refuses, once more, independently."""
    odd = name == "chimera" and num_stages % 2 and num_stages > 1
    return num_virtual_stages in VIRTUAL_STAGES[name] and not odd


ROWS = [
    # A new schedule is one more row: its name, (K, M, V), remat, and its order as one line per rank.
    ("1f1b", (3, 4, 1), "never", ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    ("1f1b", (3, 2, 1), "never", ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
    ("1f1b", (2, 3, 1), "always", ["F0 F1 R0 B0 F2 R1 B1 R2 B2", "F0 R0 B0 F1 R1 B1 F2 R2 B2"]),
    ("1f1b", (2, 3, 1), "except_last", ["F0 F1 R0 B0 F2 R1 B1 B2", "F0 R0 B0 F1 R1 B1 F2 B2"]),
    ("1f1b", (1, 2, 1), "never", ["F0 B0 F1 B1"]),
    ("zb-h1", (2, 3, 1), "never", ["F0 F1 I0 W0 F2 I1 W1 I2 W2", "F0 I0 F1 I1 W0 F2 I2 W1 W2"]),
    ("zb-h1", (2, 2, 1), "always", ["F0 F1 R0 I0 W0 R1 I1 W1", "F0 R0 I0 F1 R1 I1 W0 W1"]),
    ("zb-h2", (2, 4, 1), "never", ["F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"]),
    (
        "interleaved",
        (2, 2, 2),
        "never",
        ["F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0", "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 B0@1 B1@1"],
    ),
    # Three micro-batches for two ranks make one group of three.
    (
        "interleaved",
        (2, 3, 2),
        "never",
        [
            "F0@0 F1@0 F2@0 F0@2 F1@2 F2@2 B0@2 B1@2 B2@2 B0@0 B1@0 B2@0",
            "F0@1 F1@1 F2@1 F0@3 B0@3 F1@3 B1@3 F2@3 B2@3 B0@1 B1@1 B2@1",
        ],
    ),
    ("interleaved", (2, 2, 1), "never", ["F0 F1 B0 B1", "F0 B0 F1 B1"]),
    (
        "zb-v",
        (2, 3, 2),
        "never",
        [
            "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 I0@0 W0@0 F2@3 I2@3 W2@3 I1@0 W1@0 I2@0 W2@0",
            "F0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 I1@1 I2@2 I2@1 W1@1 W2@2 W2@1",
        ],
    ),
    ("zb-v", (1, 1, 2), "always", ["F0@0 F0@1 R0@1 I0@1 W0@1 R0@0 I0@0 W0@0"]),
    ("chimera", (2, 2, 1), "never", ["F0@0 F1@1 B1@1 B0@0", "F1@0 F0@1 B0@1 B1@0"]),
    (
        "chimera",
        (4, 4, 1),
        "never",
        [
            "F0@0 F2@0 F1@3 B1@3 F3@3 B3@3 B0@0 B2@0",
            "F0@1 F1@2 F2@1 F3@2 B1@2 B0@1 B3@2 B2@1",
            "F1@1 F0@2 F3@1 F2@2 B0@2 B1@1 B2@2 B3@1",
            "F1@0 F3@0 F0@3 B0@3 F2@3 B2@3 B1@0 B3@0",
        ],
    ),
    ("pipedream", (2, 3, 1), "never", ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]),
]


@pytest.mark.parametrize(("name", "numbers", "remat", "expected"), ROWS)
def test_order(name: str, numbers: tuple[int, int, int], remat: str, expected: list[str]) -> None:
    num_stages, num_micro_batches, virtual = numbers
    schedule = make_schedule(
        name,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=virtual,
        remat=remat,
    )
    with_stage = any(len(ranks) > 1 for ranks in schedule.placement) or virtual > 1
    assert schedule.name == name
    assert [
        " ".join(str(action) if with_stage else str(action).split("@")[0] for action in actions)
        for actions in schedule.actions
    ] == expected


def test_every_schedule_has_a_row() -> None:
    assert {name for name, *_ in ROWS} | {"gpipe"} == set(GENERATORS)


def test_zb_v_is_placed_in_a_v() -> None:
    schedule = make_schedule("zb-v", num_stages=3, num_micro_batches=5, num_virtual_stages=2)
    assert schedule.placement == ((0,), (1,), (2,), (2,), (1,), (0,))


@pytest.mark.parametrize("name", GENERATORS)
def test_every_small_size_runs_to_its_end(name: str) -> None:
    for num_stages, num_micro_batches, virtual in product(range(1, 9), range(1, 17), range(1, 4)):
        for remat in Remat if num_micro_batches % 4 == 1 else (Remat.NEVER,):
            if virtual in VIRTUAL_STAGES.get(name, ()) and sizes(name, num_stages, virtual):
                make_schedule(
                    name,
                    num_stages=num_stages,
                    num_micro_batches=num_micro_batches,
                    num_virtual_stages=virtual,
                    remat=remat,
                )


@settings(max_examples=150)
@given(
    name=st.sampled_from(list(GENERATORS)),
    num_stages=st.integers(1, 12),
    num_micro_batches=st.integers(1, 48),
    virtual=st.integers(1, 4),
    remat=st.sampled_from(Remat),
)
def test_any_numbers_are_valid_or_refused(
    name: str, num_stages: int, num_micro_batches: int, virtual: int, remat: Remat
) -> None:
    numbers: dict[str, Any] = {"num_stages": num_stages, "num_micro_batches": num_micro_batches}
    try:
        schedule = make_schedule(name, **numbers, num_virtual_stages=virtual, remat=remat)
    except ScheduleError as error:
        assert repr(name) in str(error) and re.match(r"num_\w+=\d+: ", str(error))
        assert name not in VIRTUAL_STAGES or not sizes(name, num_stages, virtual)
    else:
        kinds = Counter(action.kind for actions in schedule.actions for action in actions)
        assert kinds[Kind.FORWARD] == num_stages * virtual * num_micro_batches
        assert name not in VIRTUAL_STAGES or sizes(name, num_stages, virtual)


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        (
            "1f1b",
            {"num_virtual_stages": 2},
            ["num_virtual_stages=2", "'1f1b'", "num_virtual_stages=1", "'interleaved'"],
        ),
        ("zb-h1", {"num_virtual_stages": 3}, ["num_virtual_stages=3", "'zb-v'"]),
        ("zb-h2", {"num_virtual_stages": 2}, ["'zb-h2'", "'zb-v'"]),
        ("zb-v", {}, ["num_virtual_stages=1", "num_virtual_stages=2", "'zb-h1'"]),
        ("chimera", {"num_stages": 5}, ["num_stages=5", "even", "4 or 6"]),
        ("chimera", {"num_virtual_stages": 2}, ["num_virtual_stages=2", "'chimera'"]),
        ("pipedream", {"num_virtual_stages": 2}, ["num_virtual_stages=2", "'pipedream'"]),
        ("gpipe", {"num_micro_batches": 10**9}, ["num_micro_batches=1000000000", "4,000,000,000", "10,000,000"]),
    ],
)
def test_what_a_schedule_cannot_have(name: str, change: dict[str, int], parts: list[str]) -> None:
    numbers = {"num_stages": 4, "num_micro_batches": 8, "num_virtual_stages": 1, **change}
    with pytest.raises(ScheduleError) as caught:
        make_schedule(name, **numbers)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", GENERATORS)
def test_what_can_be_executed(name: str) -> None:
    virtual = 2 if name == "zb-v" else 1
    schedule = make_schedule(name, num_stages=2, num_micro_batches=2, num_virtual_stages=virtual)
    if name not in SIMULATED_ONLY:
        return require_executable(schedule)
    with pytest.raises(
        ScheduleError, match=f"'{name}' can be simulated and drawn, but not executed.*take one of gpipe"
    ):
        require_executable(schedule)


@pytest.mark.parametrize("name", GENERATORS)
def test_staleness(name: str) -> None:
    virtual = 2 if name == "zb-v" else 1
    schedule = make_schedule(name, num_stages=4, num_micro_batches=8, num_virtual_stages=virtual)
    assert staleness(schedule) == ((3, 2, 1, 0) if name == "pipedream" else (0,) * 4 * virtual)


def test_weights_are_stale_by_the_updates_between_forward_and_backward() -> None:
    flushed = make_schedule("zb-h1", num_stages=2, num_micro_batches=4)
    assert staleness(dataclasses.replace(flushed, flush=False)) == (1, 1)
    short = make_schedule("pipedream", num_stages=4, num_micro_batches=2)
    assert staleness(short) == (1, 1, 1, 0)


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
