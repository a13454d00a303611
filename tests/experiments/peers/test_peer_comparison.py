from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.costs.workload import (
    BARE_LOOP,
    ENGINE,
    ENGINE_1F1B,
    IDEAL,
    ONE_PROCESS,
    TORCH,
    TORCH_1F1B,
    TORCHGPIPE,
    EqualStages,
)
from repro.experiments.peers.equal_stages import time_equal_stages
from repro.experiments.peers.peer_comparison import IDEAL_LIMIT, TARGET, parts, rows
from repro.experiments.sweeps.ranks import Job, run_jobs
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.sweep import Request, SweepPart
from repro.experiments.sweeps.turns import balanced_orders, paired_ratios, time_in_turns


def request(
    scale: str = "smoke", K: Sequence[int] | None = None, M: Sequence[int] | None = None, **more: Any
) -> Request:
    return Request(scale, "cpu", None if K is None else tuple(K), None if M is None else tuple(M), more)


def names(made: Sequence[SweepPart]) -> list[str]:
    return [part.name for part in made]


def test_the_laptop_scale_has_every_cell_within_its_minutes() -> None:
    made = parts(request("laptop"))
    cells = [f"emulated-K{k}-M{m}-{1024 * kib}" for kib in (4, 64, 2048) for k in (2, 4, 8) for m in (1, 4, 32)]
    assert names(made) == [f"real-M{m}" for m in (4, 8, 16)] + cells
    assert round(sum(part.seconds for part in made) / 60) <= TARGET.minutes["laptop"]
    assert {part.world_size for part in made} == {2, 4, 8}


def test_options_choose_cells() -> None:
    assert names(parts(request(K=[3], M=[2, 5]))) == ["emulated-K3-M2-4096", "emulated-K3-M5-4096"]
    chosen = names(parts(request(K=[2], M=[2], boundary_kib=[1, 8, 1])))
    assert chosen == ["real-M2", "emulated-K2-M2-1024", "emulated-K2-M2-8192"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"K": [1]}, "num_stages=1: peers compares pipelines"),
        ({"K": [2, 17]}, "num_stages=17"),
        ({"boundary_kib": [4, 0]}, "--boundary-kib 0"),
    ],
)
def test_what_cannot_be_compared(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        parts(request(**options))


def results(engine: float, loop: float = 0.155, torch: float = 0.17) -> dict[str, Any]:
    return {
        "real-M4": {ENGINE: [0.2] * 3, ENGINE_1F1B: [0.18] * 3, BARE_LOOP: [0.19] * 3, TORCH: [0.21] * 3}
        | {TORCH_1F1B: [0.19] * 3, ONE_PROCESS: [0.3] * 3, TORCHGPIPE: [0.3] * 3},
        "emulated-K2-M4-4096": {ENGINE: [*[engine] * 6, 9.0], BARE_LOOP: [loop] * 7, TORCH: [torch] * 7},
    }


def test_rows_are_medians_and_paired_ratios() -> None:
    made, _ = rows(request("laptop"), results(0.156))
    values = {
        (row.num_micro_batches, row.provenance, row.metric, row.params["way"], row.params.get("reference")): row.value
        for row in made
    }
    assert values[4, Provenance.MEASURED, "step_time", ENGINE, None] == 0.2
    assert values[4, Provenance.MEASURED, "step_time_ratio", ENGINE, TORCHGPIPE] == pytest.approx(2 / 3)
    assert values[4, Provenance.EMULATED, "step_time_ratio", ENGINE, IDEAL] == pytest.approx(0.156 / 0.15)
    assert values[4, Provenance.EMULATED, "step_time_ratio", BARE_LOOP, IDEAL] == pytest.approx(0.155 / 0.15)
    assert values[4, Provenance.EMULATED, "step_time_ratio", ENGINE, TORCH] == pytest.approx(0.156 / 0.17)
    assert values[4, Provenance.MEASURED, "step_time_ratio", ENGINE, TORCH_1F1B] == pytest.approx(0.2 / 0.19)
    assert values[4, Provenance.MEASURED, "step_time_ratio", ENGINE_1F1B, TORCH_1F1B] == pytest.approx(0.18 / 0.19)
    schedules = {row.params["way"]: row.schedule for row in made}
    assert schedules[ENGINE_1F1B] == schedules[TORCH_1F1B] == "1f1b"
    assert (schedules[ONE_PROCESS], schedules[ENGINE]) == (None, "gpipe")
    processes = {row.params["way"]: row.params["processes"] for row in made}
    assert (processes[TORCHGPIPE], processes[ONE_PROCESS], processes[TORCH]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"engine": 0.156}, []),
        ({"engine": 0.165, "loop": 0.165}, [f"at most {IDEAL_LIMIT:.2f}"]),
        ({"engine": 0.158, "loop": 0.151}, ["that of a bare loop"]),
        ({"engine": 0.156, "torch": 0.156}, ["below 1"]),
        ({"engine": 0.156, "loop": 0.149}, ["shorter than its waits", "that of a bare loop"]),
    ],
)
def test_limits_on_emulated_stages(change: dict[str, float], wrong: list[str]) -> None:
    _, checks = rows(request("laptop"), results(**change))
    failed = [check.text for check in checks if not check.passed]
    assert len(failed) == len(wrong)
    assert all(part in text for part, text in zip(wrong, failed, strict=True))


def test_each_schedule_is_judged_beside_the_same_one_of_pytorch() -> None:
    made = results(0.156)
    made["emulated-K2-M4-4096"] |= {ENGINE_1F1B: [0.16] * 7, TORCH_1F1B: [0.155] * 7}
    _, checks = rows(request("laptop"), made)
    (failed,) = (check.text for check in checks if not check.passed)
    assert "the step of this engine, 1F1B takes 1.0323 ± 0.0000 of that of torch.distributed.pipelining, 1F1B" in failed


def test_limits_on_real_layers() -> None:
    made = results(0.156)
    made["real-M4"] |= {TORCH: [0.19] * 3, TORCHGPIPE: [0.24] * 3}
    _, checks = rows(request("laptop"), made)
    assert [check.text.split(" of that of ")[1] for check in checks if not check.passed] == [
        "torch.distributed.pipelining, at most 1.00",
        "torchgpipe, at most 0.80",
    ]


def test_smoke_judges_no_times() -> None:
    _, checks = rows(request(), results(0.5))
    assert [check.passed for check in checks] == [True], "only that the waits were waited for"


def test_without_results_there_are_no_rows() -> None:
    assert rows(request(), {}) == ([], [])


def test_every_way_waits_as_long_as_its_stages(tmp_path: Path) -> None:
    """Three real processes a way: none is shorter than the waits on its critical path."""
    plan = EqualStages(3, 4, 4096, 0.002, 0.004, rounds=2)
    job = Job("equal stages", time_equal_stages, (plan,), tmp_path / "log", plan.num_stages)
    [[seconds, *_]] = run_jobs([job])
    assert list(seconds) == [ENGINE, BARE_LOOP, TORCH, ENGINE_1F1B, TORCH_1F1B]
    for way, values in seconds.items():
        assert len(values) == plan.rounds
        assert min(values) >= plan.ideal == pytest.approx(0.036), way


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"])
def test_every_way_runs_after_every_other_equally_often(names: str) -> None:
    orders = balanced_orders(list(names))
    assert all(sorted(order) == list(names) for order in orders)
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert set(after) == set(itertools.permutations(names, 2))
    assert len(set(after.values())) == 1
    assert all(len(set(Counter(place).values())) == 1 for place in zip(*orders, strict=True))


def test_one_way_alone_has_one_order() -> None:
    assert {tuple(order) for order in balanced_orders(["a"])} == {("a",)}


def test_ways_take_turns_and_warm_up_is_not_timed() -> None:
    order: list[str] = []
    steps = {name: lambda name=name: order.append(name) for name in "abc"}
    told: list[str] = []
    seconds = time_in_turns(steps, lambda share, words: told.append(words), rounds=2, repeats=2, warm_up=1)
    first, second = balanced_orders(list("abc"))[:2]
    assert order == [*"abc", *(name for name in first + second for _ in range(2))]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2, "c": 2}
    assert told == ["round 1 of 2", "round 2 of 2"]


def test_ratios_are_of_the_same_round() -> None:
    assert paired_ratios([1.0, 4.0], [2.0, 2.0]) == [0.5, 2.0]
