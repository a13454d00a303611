"""D replicas of a pipeline on parts of a mini-batch compute what one replica computes on their union."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

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
