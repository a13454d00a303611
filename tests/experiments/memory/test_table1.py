"""Table 1: counts and search at full size, and rows and checks from what parts return."""

from __future__ import annotations

from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.memory.full_size_memory import (
    AMOEBANET,
    MOST_AMOEBANET_LAYERS,
    TRANSFORMER,
    FullSizePlan,
    check_full_size,
    full_size,
    largest_that,
    too_many_stages,
)
from repro.experiments.memory.table1 import TARGET, as_printed, fit_growth, parts, rows
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.sweep import Request
from repro.models.amoebanet import amoebanet


def request(scale: str = "smoke", **options: Any) -> Request:
    known = {"num_stages": None, "num_micro_batches": None} | {
        name: options.pop(name) for name in ("num_stages", "num_micro_batches") if name in options
    }
    return Request(scale, "cpu", known["num_stages"], known["num_micro_batches"], options)


def told(share: float, words: str) -> None:
    assert 0 <= share <= 1 and words


@pytest.fixture(scope="module")
def transformer() -> dict[str, Any]:
    plan = FullSizePlan(TRANSFORMER, "rmsprop-momentum", None, (1, 8), 8, thorough=False)
    return full_size(0, told, plan)


def test_the_transformer_s_counts_are_those_printed(transformer: dict[str, Any]) -> None:
    assert [count["size"] for count in transformer["counts"]] == [[3], [13], [103], [415], [1663]]
    for count in transformer["counts"]:
        assert count["parameters"] == 50_358_272 * count["size"][0] + 131_104_000
        assert as_printed(count["parameters"]) == as_printed(count["published"])


def test_parameter_memory_is_twelve_bytes_each(transformer: dict[str, Any]) -> None:
    cells = [cell for cell in transformer["cells"] if cell["attention"] == "fused"]
    assert [round(cell["parameter_bytes"] / 2**30, 1) for cell in cells] == [3.2, 8.8, 59.4, 235.0, 937.4]
    for cell in cells:
        assert sum(cell["partition"]) == cell["size"][0] + 2 and len(cell["partition"]) == cell["num_stages"]
        assert cell["spare"] == transformer["memory_bytes"] - cell["largest_stage"]


def test_what_is_found_fits_and_one_layer_more_does_not(transformer: dict[str, Any]) -> None:
    found = {(one["configuration"], one["attention"]): one["size"] for one in transformer["search"]}
    # 16 GiB, M = 8: by hand, 13 layers of 12 x 50.4M bytes and 4 rows of activations each, ends and inputs beside them.
    assert found["pipeline-1", "fused"] == [13]
    assert found["naive-1", "fused"] == [2] and found["naive-1", "whole"] == [1]
    assert found["pipeline-8", "whole"][0] < found["pipeline-8", "fused"][0]
    assert set(found) == {(n, a) for n in ("naive-1", "pipeline-1", "pipeline-8") for a in ("fused", "whole")}


def test_less_memory_holds_fewer_layers() -> None:
    plan = FullSizePlan(TRANSFORMER, "sgd", 4.0, (2,), 32, thorough=False)
    few = {one["attention"]: one["size"] for one in full_size(0, told, plan)["search"] if one["num_stages"] == 2}
    plan = FullSizePlan(TRANSFORMER, "sgd", 8.0, (2,), 32, thorough=False)
    many = {one["attention"]: one["size"] for one in full_size(0, told, plan)["search"] if one["num_stages"] == 2}
    assert 0 < few["fused"][0] < many["fused"][0]


@pytest.mark.parametrize(
    ("least", "most", "limit", "expected"), [(1, 0, 100, 0), (1, 1, 100, 1), (6, 37, 100, 37), (1, 100, 50, 50)]
)
def test_largest_that(least: int, most: int, limit: int, expected: int) -> None:
    assert largest_that(lambda number: least <= number <= most, least, limit) == expected


@pytest.mark.parametrize("memory", [0.0, -1.0, float("nan")])
def test_no_memory(memory: float) -> None:
    with pytest.raises(UserError, match=r"--memory .*: give the GiB of an accelerator"):
        check_full_size(FullSizePlan(AMOEBANET, "sgd", memory, None, None, thorough=False))
    with pytest.raises(UserError, match="--memory"):
        parts(request(memory=memory))


def test_stages_that_no_amoebanet_has_layers_for_are_left_out_and_named() -> None:
    asked = parts(request(num_stages=(78, 128, 1000)))
    assert [part.title for part in asked[:2]] == [
        "Transformer-L at full size",
        "AmoebaNet-D at full size without K = 128, 1000, it has at most 78 layers",
    ]
    assert too_many_stages(FullSizePlan(AMOEBANET, "sgd", None, (78, 79), None, thorough=False)) == [79]
    assert len(amoebanet("D", num_layers=72, num_filters=8)) == MOST_AMOEBANET_LAYERS


def test_parts_by_scale() -> None:
    names = [part.name for part in parts(request())]
    assert names[:2] == ["full-size-transformer", "full-size-amoebanet"]
    assert {f"measured-{model}-K{stages}" for model in ("transformer", "amoebanet") for stages in (1, 2)} == set(
        names[2:]
    )
    asked = [part.name for part in parts(request("laptop", num_stages=(4, 128), num_micro_batches=(32,)))]
    # 128 stages are for the search only.
    assert [name for name in asked if name.startswith("measured")] == [
        "measured-transformer-K4",
        "measured-amoebanet-K4",
    ]
    assert all(part.arguments[0].model.batch_size == 32 for part in parts(request(num_micro_batches=(32,)))[2:])
    assert TARGET.minutes["smoke"] < 1


def measured(predicted: int) -> list[dict[str, Any]]:
    return [
        {
            "num_micro_batches": micro_batches,
            "remat": "always",
            "partition": [10],
            "predicted": [predicted],
            "measured": [1000],
            "allocated": None,
        }
        for micro_batches in (1, 4)
    ]


@pytest.mark.parametrize(("predicted", "passed"), [(1000, True), (1090, True), (1111, False), (890, False)])
def test_predictions_are_checked(predicted: int, passed: bool) -> None:
    made, checks = rows(request(), {"measured-transformer-K1": measured(predicted)})
    assert [check.passed for check in checks] == [passed]
    assert {row.provenance for row in made} == {Provenance.MEASURED, Provenance.SIMULATED}
    assert {row.value for row in made} == {1000, predicted}


def test_counts_are_checked(transformer: dict[str, Any]) -> None:
    made, checks = rows(request(), {"full-size-transformer": transformer})
    assert len(checks) == 5 and all(check.passed for check in checks)
    assert {row.provenance for row in made} == {Provenance.SIMULATED}
    wrong = transformer | {
        "counts": [count | {"parameters": count["parameters"] + 10**9} for count in transformer["counts"]]
    }
    assert not any(check.passed for check in rows(request(), {"full-size-transformer": wrong})[1])


@pytest.mark.parametrize(
    ("size", "off", "passed"),
    [
        ((18, 208), 0.012, False),
        ((18, 208), -0.01, True),
        ((72, 512), 0.024, True),  # printed as 1.8B
        ((72, 512), 0.026, False),
    ],
)
def test_amoebanet_s_counts_have_a_tolerance(size: tuple[int, int], off: float, passed: bool) -> None:
    count = {"configuration": "x", "num_stages": 1, "size": list(size), "parameters": 1e8 * (1 + off), "published": 1e8}
    result = {"memory_bytes": 1, "batch_size": 1, "counts": [count], "cells": [], "search": [], "sweep": []}
    (check,) = rows(request(), {"full-size-amoebanet": result})[1]
    assert check.passed is passed


def test_fit_of_growth() -> None:
    fitted = fit_growth([(8, y, 3.0 * 8 + 0.5 * y) for y in (1.0, 4.0, 16.0)])
    assert fitted == pytest.approx((3.0, 0.5))
    assert fit_growth([(8, 2, 5.0), (8, 2, 5.0), (8, 2, 5.0)]) is None


@pytest.mark.parametrize(
    ("number", "text"), [(282_178_816, "282.2M"), (5_318_006_016, "5.3B"), (785_800_000, "785.8M")]
)
def test_as_printed(number: int, text: str) -> None:
    assert as_printed(number) == text
