"""What the engine does with a schedule, beyond the numbers of the parity matrix: order, what is alive, arithmetic."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from repro.gpipe import GPipeStrategy
from repro.gpipe.engine import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.step import Step
from repro.schedules import GENERATORS, SIMULATED_ONLY, Action, Schedule, ScheduleError, simulate
from tests.helpers.models import MODELS, WIDTH, cross_entropy, vectors
from tests.helpers.pipelines import ORDERS, Cell, make_engine, own_layers
from tests.helpers.ranks import Pools


def engine_of_equal_stages(
    schedule: str,
    num_stages: int,
    num_virtual_stages: int,
    num_micro_batches: int,
    remat: str,
    mesh: PipelineMesh | None = None,
) -> Engine:
    """A linear layer a stage, so that every stage has activations and parameters."""
    total = num_stages * num_virtual_stages
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = {index: nn.Linear(WIDTH, WIDTH).double() for index in range(total)}
    return Engine(
        layers,
        [1] * total,
        num_micro_batches=num_micro_batches,
        loss=cross_entropy,
        schedule=schedule,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
        mesh=mesh,
    )


def watched_step(engine: Engine, rows: int) -> tuple[list[tuple[int, Action]], dict[int, int]]:
    """Trains once; what ran in which order, and for each rank the most micro-batches that were alive on its stages."""
    ran: list[tuple[int, Action]] = []
    peaks: dict[int, int] = {}
    placement = engine.schedule(min(rows, engine.num_micro_batches)).placement
    original = Step.execute

    def execute(step: Step, rank: int, action: Action) -> None:
        original(step, rank, action)
        ran.append((rank, action))
        held = [stage for index, stage in engine.stages.items() if rank in placement[index]]
        peaks[rank] = max(peaks.get(rank, 0), sum(stage.live_activations for stage in held))

    reads = engine.mesh is None or engine.mesh.reads_data
    with mock.patch.object(Step, "execute", execute):
        engine.train_step(*(vectors(rows, 0) if reads else (None, None)), batch_counter=0)
    engine.close()
    assert all(stage.in_flight == 0 for stage in engine.stages.values())
    return ran, peaks


def as_run(ran: list[tuple[int, Action]], rank: int) -> tuple[Action, ...]:
    return tuple(action for where, action in ran if where == rank)


@settings(max_examples=25, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    num_stages=st.integers(1, 12),
    num_micro_batches=st.integers(1, 48),
    missing=st.integers(0, 3),
    remat=st.sampled_from(["always", "except_last", "never"]),
)
def test_order_and_live_activations_are_those_of_the_schedule(
    order: tuple[str, int], num_stages: int, num_micro_batches: int, missing: int, remat: str
) -> None:
    """Also where the mini-batch has fewer rows than there are micro-batches."""
    name, num_virtual_stages = order
    engine = engine_of_equal_stages(name, num_stages, num_virtual_stages, num_micro_batches, remat)
    rows = max(1, num_micro_batches - missing)
    ran, peaks = watched_step(engine, rows)
    schedule = engine.schedule(rows)
    assert tuple(as_run(ran, rank) for rank in range(num_stages)) == schedule.actions
    assert tuple(peaks[rank] for rank in range(num_stages)) == simulate(schedule).peak_live


def watched_steps_on_rank(rank: int, world_size: int, orders: list[tuple[str, int]]) -> list[Any]:
    mesh = PipelineMesh(world_size)
    try:
        return [
            watched_step(engine_of_equal_stages(name, world_size, number, 5, "except_last", mesh), 10)
            for name, number in orders
        ]
    finally:
        mesh.close()


def test_ranks_run_their_part_of_the_schedule(pools: Pools) -> None:
    by_rank = pools(3).run(watched_steps_on_rank, ORDERS)
    for index, (name, number) in enumerate(ORDERS):
        schedule = engine_of_equal_stages(name, 3, number, 5, "except_last").schedule()
        for rank, steps in enumerate(by_rank):
            ran, peaks = steps[index]
            assert as_run(ran, rank) == schedule.actions[rank], (name, number, rank)
            assert peaks == {rank: simulate(schedule).peak_live[rank]}, (name, number, rank)


@pytest.mark.parametrize("frozen_first", [False, True])
def test_every_schedule_does_the_same_arithmetic(frozen_first: bool) -> None:
    """I and W of all stages and micro-batches cost what B costs, also where a stage's input needs no gradient."""

    def flops(name: str, num_virtual_stages: int) -> int:
        cell = Cell("deep", 2, 3, "never", 7, num_virtual_stages, name, frozen_first)
        engine = make_engine(cell, MODELS["deep"].layers(num_frozen=2 if frozen_first else 0))
        with FlopCounterMode(display=False) as counter:
            engine.train_step(*vectors(7, 0), batch_counter=0)
        return counter.get_total_flops()

    counts = {order: flops(*order) for order in ORDERS}
    assert len(set(counts.values())) == 1, counts


def test_activations_are_never_more_than_the_schedule_says() -> None:
    """On any model: some stages have nothing to keep for B, or less for W."""
    for name, number in ORDERS:
        cell = Cell("deep", 3, 4, "never", 8, number, name)
        engine = make_engine(cell, MODELS["deep"].layers())
        _, peaks = watched_step(engine, 8)
        peak_live = simulate(engine.schedule()).peak_live
        assert all(peaks[rank] <= peak_live[rank] for rank in range(3)), (name, peaks, peak_live)


@pytest.mark.parametrize("name", SIMULATED_ONLY)
def test_what_can_only_be_simulated_is_refused(name: str) -> None:
    """At construction, by one message, whatever the other numbers are."""
    wanted = rf"schedule='{name}' can be simulated and drawn, but not executed: .*; take one of gpipe, 1f1b, .*zb-v"
    for num_stages in (None, 2, 3):
        with pytest.raises(ScheduleError, match=wanted):
            GPipeStrategy(num_stages=num_stages, num_micro_batches=4, schedule=name)
    with pytest.raises(ScheduleError, match=wanted):
        engine_of_equal_stages(name, 2, 1, 4, "never")


@pytest.mark.parametrize("remat", ["never", "always"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_split_backward_adds_up_to_the_last_bit(precision: torch.dtype, remat: str) -> None:
    """1f1b and zb-h1 add the micro-batches in the same order; under autocast I and W meet the casts of F."""
    gradients = []
    for schedule in ("1f1b", "zb-h1"):
        layers = [layer.float() for layer in MODELS["deep"].layers()]
        engine = make_engine(Cell("deep", 3, 4, remat, 8, 1, schedule), layers)
        inputs, targets = vectors(8, 0)
        with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
            engine.train_step(inputs.float(), targets, batch_counter=0).accumulate()
        gradients.append({name: p.grad for name, p in own_layers(engine).named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradients[1][name], gradient), name


def both_ways(num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Any = None) -> Schedule:
    """A user's schedule with every stage on two ranks."""
    one = GENERATORS["gpipe"](num_stages, num_micro_batches, num_virtual_stages, remat)
    return replace(one, name="both ways", placement=((0, 1), (1, 0)))


def test_a_stage_on_two_ranks_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"'both ways' places stage 0 on ranks \[0, 1\]"):
        Engine(
            {0: nn.Identity(), 1: nn.Identity()}, [1, 1], num_micro_batches=2, loss=cross_entropy, schedule=both_ways
        )


class Checkpointed(nn.Linear):
    """A linear layer that recomputes itself in a way that allows one backward only."""

    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(super().forward, value, use_reentrant=True)


def test_a_backward_that_cannot_be_split_is_told_once() -> None:
    def layers() -> dict[int, nn.Module]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return {0: nn.Linear(WIDTH, WIDTH).double(), 1: Checkpointed(WIDTH, WIDTH).double()}

    gradients = []
    for schedule in ("gpipe", "zb-h1"):
        made = layers()
        engine = Engine(made, [1, 1], num_micro_batches=4, loss=cross_entropy, schedule=schedule, remat="never")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                engine.train_step(*vectors(8, 0), batch_counter=0).accumulate()
        told = [str(warning.message) for warning in caught if "allows no split" in str(warning.message)]
        assert len(told) == (schedule == "zb-h1")
        assert all("stage 1: torch.utils.checkpoint with use_reentrant=True" in text for text in told)
        gradients.append([parameter.grad for layer in made.values() for parameter in layer.parameters()])
    for plain, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, plain, rtol=0, atol=1e-12)
