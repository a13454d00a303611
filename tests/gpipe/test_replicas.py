"""D replicas of a pipeline on parts of a mini-batch compute what one replica computes on their union."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from repro.gpipe.gradients import share_overflow, sum_over_replicas
from repro.gpipe.mesh import PipelineMesh
from tests.helpers.models import MODELS
from tests.helpers.oracle import whole_batch_step
from tests.helpers.pipelines import Cell, make_engine, own_layers
from tests.helpers.ranks import Pools

REPLICAS = 2
# Rows of each replica: equal, unequal, and one with nothing.
SHARES = ((4, 4), (5, 2), (3, 0), (0, 1))


def rows_of(batch: Any, share: tuple[int, ...], replica: int) -> Any:
    if isinstance(batch, tuple):
        return tuple(None if element is None else rows_of(element, share, replica) for element in batch)
    return batch.split(share)[replica]


def train_on_shares(
    rank: int, world_size: int, cell: Cell, shares: tuple[tuple[int, ...], ...]
) -> list[dict[str, Any]]:
    """Per share: the loss, the gradients summed over the replicas, the buffers, all of one fresh model."""
    mesh = PipelineMesh(cell.num_stages, REPLICAS)
    spec = MODELS[cell.model]
    seen = []
    try:
        for share in shares:
            engine = make_engine(cell, spec.layers(), mesh)
            own = own_layers(engine)
            inputs = targets = None
            if mesh.reads_data and share[mesh.replica]:
                batch = spec.batch(sum(share), 0)
                inputs, targets = (rows_of(part, share, mesh.replica) for part in batch)
            result = engine.train_step(inputs, targets, batch_counter=0)
            result.accumulate()
            gradients = {}
            for name, parameter in own.named_parameters():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients[name] = mesh.sum_over_replicas(gradient).detach().numpy().copy()
            buffers = {name: buffer.numpy().copy() for name, buffer in own.named_buffers()}
            rows = spec.batch(sum(share), 0)
            own.eval()
            evaluated = engine.evaluate(
                *((rows_of(part, share, mesh.replica) for part in rows) if inputs is not None else (None, None))
            )
            seen.append({"loss": result.loss, "evaluated": evaluated.loss, "gradients": gradients, "buffers": buffers})
            engine.close()
    finally:
        mesh.close()
    return seen


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "weighted", "tokens", "frozen_first"])
def test_replicas_of_unequal_size_equal_one_replica_on_the_union(name: str, num_stages: int, pools: Pools) -> None:
    spec = MODELS[name]
    by_rank = pools(num_stages * REPLICAS).run(train_on_shares, Cell(name, num_stages, 2), SHARES)
    for number, share in enumerate(SHARES):
        inputs, targets = spec.batch(sum(share), 0)
        reference = whole_batch_step(spec.layers(), inputs, targets, spec.loss)
        for rank, seen in enumerate(by_rank):
            where = f"rank {rank}, shares {share}"
            assert seen[number]["loss"] == pytest.approx(reference.loss.item(), abs=1e-10), where
            assert seen[number]["evaluated"] == pytest.approx(reference.loss.item(), abs=1e-10), where
            for key, gradient in seen[number]["gradients"].items():
                wanted = reference.gradients[key]
                wanted = torch.zeros(gradient.shape, dtype=torch.float64) if wanted is None else wanted
                torch.testing.assert_close(
                    torch.from_numpy(gradient), wanted, rtol=0, atol=1e-10, msg=f"{key}, {where}"
                )


def test_batch_norm_is_pooled_over_replicas(pools: Pools) -> None:
    """The first BatchNorm sees the same values however they are dealt out, so it must end where one replica's ends."""
    shares = ((4, 4), (5, 2))
    by_rank = pools(4).run(train_on_shares, Cell("batch_norm_2d", 2, 2), shares)
    for number, share in enumerate(shares):
        layers = MODELS["batch_norm_2d"].layers()
        inputs, _ = MODELS["batch_norm_2d"].batch(sum(share), 0)
        plain = nn.Sequential(*copy.deepcopy(layers[:2]))
        plain(inputs)
        first = dict(plain.named_buffers())
        for rank in (0, 2):
            for name, buffer in first.items():
                got = torch.from_numpy(by_rank[rank][number]["buffers"][name])
                torch.testing.assert_close(got, buffer, rtol=0, atol=1e-10, msg=f"{name} of rank {rank}")
        for one, other in ((0, 2), (1, 3)):
            for name, buffer in by_rank[one][number]["buffers"].items():
                assert (buffer == by_rank[other][number]["buffers"][name]).all(), f"{name} differs between replicas"


def layouts() -> list[nn.Parameter]:
    """Parameters that do not lie in memory as they are read, and an empty one."""
    image = torch.zeros(3, 2, 4, 4).to(memory_format=torch.channels_last)
    return [nn.Parameter(value) for value in (torch.zeros(0, 3), image, torch.zeros(5, 6)[:, :4].t(), torch.zeros(7))]


def sum_layouts(rank: int, world_size: int) -> list[tuple[bool, bool]]:
    """Whether each sum is right, and lies as the parameter does; the last parameter has a gradient on rank 1 only."""
    mesh = PipelineMesh(1, world_size)
    try:
        parameters = layouts()
        for parameter in parameters[: len(parameters) - (rank == 0)]:
            parameter.grad = torch.empty_like(parameter).copy_(
                torch.arange(parameter.numel()).view(parameter.shape) * (rank + 1.0)
            )
        sum_over_replicas(parameters, mesh)
        wanted = [torch.arange(p.numel()).view(p.shape) * (2.0 if p is parameters[-1] else 3.0) for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        pairs = zip(gradients, wanted, parameters, strict=True)
        return [(torch.equal(g, w), g.stride() == torch.empty_like(p).stride()) for g, w, p in pairs]
    finally:
        mesh.close()


def test_sums_over_replicas_keep_the_layout_of_each_gradient(pools: Pools) -> None:
    assert pools(2).run(sum_layouts) == [[(True, True)] * 4] * 2


def overflow(rank: int, world_size: int, where: int) -> list[bool]:
    """Whether each gradient here is finite after one on rank ``where`` was not."""
    mesh = PipelineMesh(world_size)
    try:
        parameters = layouts()
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
            if rank == where:
                parameter.grad.fill_(float("inf"))
        share_overflow(parameters, torch.device("cpu"))
        return [bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None]
    finally:
        mesh.close()


def test_an_overflow_on_one_stage_shows_on_all_whatever_their_layout(pools: Pools) -> None:
    for seen in pools(2).run(overflow, 1):
        assert not all(seen)
    for seen in pools(2).run(overflow, 5):
        assert all(seen)
