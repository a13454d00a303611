from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.gpipe.batchnorm import PooledBatchNorm

SHAPES = {
    "vectors": (nn.BatchNorm1d, ()),
    "1d": (nn.BatchNorm1d, (5,)),
    "2d": (nn.BatchNorm2d, (3, 4)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
}


def made(kind: str, momentum: float | None = 0.1) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    norm_class, tail = SHAPES[kind]
    norm = norm_class(3, momentum=momentum).double()
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.num_batches_tracked.fill_(4)
    return norm, torch.randn(9, 3, *tail, dtype=torch.float64) * 3 + 100


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("rows", [[9], [5, 4], [2, 3, 4]])
def test_pooled_update_equals_torch_on_the_whole_batch(kind: str, momentum: float | None, rows: list[int]) -> None:
    norm, batch = made(kind, momentum)
    whole = copy.deepcopy(norm)
    whole(batch)
    pooled = PooledBatchNorm([norm])
    for piece in batch.split(rows):
        with pooled.watching(record=True):
            output = norm(piece)
        fresh = copy.deepcopy(norm)
        torch.testing.assert_close(output, fresh(piece), rtol=0, atol=1e-12)
    pooled.update()
    torch.testing.assert_close(norm.state_dict(), whole.state_dict(), rtol=1e-12, atol=1e-12)


def test_nothing_changes_before_the_update_and_recomputation_does_not_count() -> None:
    norm, batch = made("2d")
    before = copy.deepcopy(norm.state_dict())
    pooled = PooledBatchNorm([norm])
    with pooled.watching(record=True):
        norm(batch)
    with pooled.watching(record=False):
        norm(batch + 1)
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)
    assert norm.momentum == 0.1
    pooled.update()
    after = copy.deepcopy(norm.state_dict())
    assert after["num_batches_tracked"] == 5
    pooled.update()
    torch.testing.assert_close(norm.state_dict(), after, rtol=0, atol=0)


def test_an_exception_in_the_middle_leaves_the_layer_as_it_was() -> None:
    norm, batch = made("vectors")
    before = copy.deepcopy(norm.state_dict())
    pooled = PooledBatchNorm([norm])
    with pooled.watching(record=True):
        norm(batch)
    with pytest.raises(ValueError, match="more than 1 value"), pooled.watching(record=True):
        norm(batch[:1])
    pooled.forget()
    pooled.update()
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)
    assert not norm._forward_hooks and not norm._forward_pre_hooks
    norm(batch)
    assert norm.num_batches_tracked == 5


def test_a_layer_that_is_used_twice_pools_over_both_uses() -> None:
    norm, batch = made("2d")
    whole = copy.deepcopy(norm)
    whole(torch.cat([batch, 2 * batch]))
    pooled = PooledBatchNorm([norm])
    with pooled.watching(record=True):
        norm(batch)
        norm(2 * batch)
    pooled.update()
    torch.testing.assert_close(norm.state_dict(), whole.state_dict(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ["evaluation", "no statistics"])
def test_a_layer_that_does_not_track_is_left_alone(case: str) -> None:
    norm, batch = made("2d")
    if case == "evaluation":
        norm.eval()
    else:
        norm = nn.BatchNorm2d(3, track_running_stats=False).double()
    before = copy.deepcopy(norm.state_dict())
    expected = copy.deepcopy(norm)(batch)
    pooled = PooledBatchNorm([norm])
    with pooled.watching(record=True):
        torch.testing.assert_close(norm(batch), expected, rtol=0, atol=0)
    pooled.update()
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 20.0), (torch.bfloat16, 1.0)])
def test_half_precision_neither_overflows_nor_stops_growing(dtype: torch.dtype, scale: float) -> None:
    """The sum of squared deviations left the range of float16, and the precision of bfloat16."""
    torch.manual_seed(0)
    batch = (torch.randn(4096, 3) * scale).to(dtype)
    norm = nn.BatchNorm1d(3, momentum=1.0).to(dtype)
    pooled = PooledBatchNorm([norm])
    for piece in batch.split(8):
        with pooled.watching(record=True):
            norm(piece)
    pooled.update()
    torch.testing.assert_close(norm.running_var.float(), batch.float().var(0), rtol=0.02, atol=0)


def test_replicas_are_pooled_weighted_by_size_also_one_without_rows() -> None:
    norm, batch = made("2d")
    whole = copy.deepcopy(norm)
    whole(batch)
    replicas = [copy.deepcopy(norm) for _ in range(3)]
    pools = [PooledBatchNorm([replica]) for replica in replicas]
    for replica, pooled, piece in zip(replicas, pools, batch.split([6, 3, 0]), strict=True):
        if len(piece):
            with pooled.watching(record=True):
                replica(piece)
    # Each replica's contributions are recorded on a first, dry pass and summed; the second pass gets the sums.
    rounds = _rounds([copy.deepcopy(pooled) for pooled in pools])
    for replica, pooled in zip(replicas, pools, strict=True):
        sums = iter(rounds)
        pooled.update(lambda _, sums=sums: next(sums))
        torch.testing.assert_close(replica.state_dict(), whole.state_dict(), rtol=1e-11, atol=1e-11)


def _rounds(pools: list[PooledBatchNorm]) -> list[Tensor]:
    """What a sum over the replicas gives in each of the three reductions of one layer."""
    known: list[Tensor] = []
    for number in range(3):
        contributions = []
        for pooled in pools:
            seen: list[Tensor] = []

            def reduce(tensor: Tensor, seen: list[Tensor] = seen) -> Tensor:
                seen.append(tensor.clone())
                return known[len(seen) - 1].clone() if len(seen) <= len(known) else tensor

            copy.deepcopy(pooled).update(reduce)
            contributions.append(seen[number])
        known.append(torch.stack(contributions).sum(0))
    return known


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.SyncBatchNorm(3), "SyncBatchNorm is not supported"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "InstanceNorm with track_running_stats=True"),
    ],
)
def test_what_cannot_be_pooled_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PooledBatchNorm([module])
