"""What happens to gradients between the last backward of a window and the optimizer: sums, norms, overflows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .mesh import PipelineMesh
from .wire import TalkingTo


def sum_over_replicas(parameters: Sequence[nn.Parameter], mesh: PipelineMesh) -> None:
    """Sums ``.grad`` over the replicas; each one's gradients are its share of those of the union mini-batch.

    A parameter that no replica has used keeps no gradient.
    """
    trained = [p for p in parameters if p.requires_grad]
    if mesh.data_parallel_size == 1 or not trained:
        return
    present = torch.tensor([p.grad is not None for p in trained], dtype=torch.float32, device=trained[0].device)
    used = [p for p, count in zip(trained, mesh.sum_over_replicas(present).tolist(), strict=True) if count]
    for dtype in dict.fromkeys(p.dtype for p in used):
        group = [p for p in used if p.dtype == dtype]
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in group if p.grad is not None]
        # In the order of their elements and not of memory: a layout such as channels_last stays what it is.
        vector = mesh.sum_over_replicas(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, part in zip(gradients, vector.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view(gradient.shape))


def share_overflow(parameters: Sequence[nn.Parameter], device: torch.device) -> None:
    """An overflow on one stage makes the gradient scaler of every rank skip the step and lower its scale."""
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
    finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    overflow = torch.tensor([0.0 if finite else 1.0], device=device)
    with TalkingTo(None):
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
    if finite and overflow.item() and gradients:
        gradients[0].fill_(float("inf"))


def clip_grad_norm(
    parameters: Iterable[Tensor], max_norm: float, norm_type: float, mesh: PipelineMesh | None
) -> Tensor:
    """Clips the gradients of this rank's parameters by the norm over all stages.

    Args:
        parameters: those of this rank; each rank gives its own.
        max_norm: the largest norm that stays.
        norm_type: 2, another p, or ``inf``.
        mesh: the ranks; None where all stages are here.

    Returns:
        The norm before clipping, equal on every rank.
    """
    own = [p for p in parameters if p.grad is not None]
    device = mesh.device if mesh is not None else own[0].device if own else torch.device("cpu")
    # The norms of the parameters are put together in float64 (where there is one), so that neither the number of stages
    # nor their order shows in what the gradients are multiplied by: training amplifies the last bit of it.
    exact = torch.float32 if device.type == "mps" else torch.float64
    each = [torch.linalg.vector_norm(p.grad, norm_type).to(device, exact) for p in own if p.grad is not None]
    infinite = norm_type == float("inf")
    total = torch.zeros((), dtype=exact, device=device)
    if each:
        stacked = torch.stack(each)
        total = stacked.max() if infinite else stacked.pow(norm_type).sum()
    if mesh is not None:
        with TalkingTo(None):
            dist.all_reduce(total, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=mesh.pipeline)
    norm = total if infinite else total.pow(1.0 / norm_type)
    torch.nn.utils.clip_grads_with_norm_(own, max_norm, norm)
    return norm
