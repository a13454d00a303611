"""BatchNorm under micro-batches (paper, section 2.3).

In training each micro-batch is normalised with its own mean and variance. The running statistics, which evaluation
uses, are updated once per mini-batch, from the pooled mean and unbiased variance of all inputs that the layer saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from repro.errors import UserError


@dataclass
class _Moments:
    """Count, mean and sum of squared deviations per channel of the inputs seen so far."""

    count: float
    mean: Tensor
    deviations: Tensor

    def include(self, other: _Moments) -> None:
        """Chan's update: exact for any split of the inputs."""
        total = self.count + other.count
        if other.count == 0:
            return
        delta = other.mean - self.mean
        self.mean = self.mean + delta * (other.count / total)
        self.deviations = self.deviations + other.deviations + delta.square() * (self.count * other.count / total)
        self.count = total


class PooledBatchNorm:
    """Gathers what the BatchNorm layers of a stage see in one mini-batch, and updates their running statistics once.

    The statistics of a micro-batch come from the BatchNorm kernel itself: for the length of the forward the layer is
    given empty running buffers and momentum 1, which makes it write its own batch mean and unbiased variance there.
    So nothing is computed twice. A layer that checkpoints within itself runs its BatchNorm once more in B, where nobody
    looks: what that does to the running statistics is taken back at the end of the mini-batch.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._layers: list[_BatchNorm] = []
        for module in modules:
            if isinstance(module, nn.SyncBatchNorm):
                raise UserError(
                    "SyncBatchNorm is not supported: each micro-batch is normalised with its own statistics, and the "
                    "running "
                    "statistics are pooled over micro-batches and replicas already; use nn.BatchNorm (Trainer: "
                    "sync_batchnorm=False)"
                )
            if isinstance(module, _InstanceNorm) and module.track_running_stats:
                raise UserError(
                    "InstanceNorm with track_running_stats=True is not supported; use track_running_stats=False"
                )
            if isinstance(module, _BatchNorm):
                self._layers.append(module)
        self._moments: dict[_BatchNorm, _Moments] = {}
        self._before: dict[_BatchNorm, list[tuple[Tensor, Tensor]]] = {}

    def __bool__(self) -> bool:
        return bool(self._layers)

    def watching(self, *, record: bool) -> AbstractContextManager[None]:
        """Around one training F (``record``) or R (not): running statistics stay as they are."""
        return self._watching(record) if self._layers else nullcontext()

    @contextmanager
    def _watching(self, record: bool) -> Iterator[None]:
        undo: list[Callable[[], None]] = []
        handles = []
        for layer in self._layers:
            handles.append(layer.register_forward_pre_hook(lambda module, args: self._lend_buffers(module, undo)))
            handles.append(
                layer.register_forward_hook(
                    lambda module, args, named, output: self._take_back(
                        module, args[0] if args else named["input"], undo, record=record
                    ),
                    with_kwargs=True,
                )
            )
        try:
            yield
        finally:
            while undo:
                undo.pop()()
            for handle in handles:
                handle.remove()

    def _lend_buffers(self, layer: nn.Module, undo: list[Callable[[], None]]) -> None:
        assert isinstance(layer, _BatchNorm)
        if not _tracks(layer):
            return
        mean, variance, counter = layer.running_mean, layer.running_var, layer.num_batches_tracked
        momentum = layer.momentum
        assert mean is not None and variance is not None
        if layer not in self._before:
            buffers = [buffer for buffer in (mean, variance, counter) if buffer is not None]
            self._before[layer] = [(buffer, buffer.clone()) for buffer in buffers]

        def restore() -> None:
            layer.running_mean, layer.running_var, layer.num_batches_tracked = mean, variance, counter
            layer.momentum = momentum

        undo.append(restore)
        layer.running_mean, layer.running_var = torch.zeros_like(mean), torch.zeros_like(variance)
        layer.num_batches_tracked = None
        layer.momentum = 1.0

    def _take_back(self, layer: nn.Module, seen: Tensor, undo: list[Callable[[], None]], *, record: bool) -> None:
        assert isinstance(layer, _BatchNorm)
        if not undo:
            return
        mean, variance = layer.running_mean, layer.running_var
        undo.pop()()
        if not record or mean is None or variance is None:
            return
        count = seen.numel() / seen.shape[1]
        moments = _Moments(count, _wide(mean), _wide(variance) * (count - 1))
        if layer in self._moments:
            self._moments[layer].include(moments)
        else:
            self._moments[layer] = moments

    def update(self, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        """One update of every running statistic; then forgets the mini-batch.

        Args:
            reduce: sums a tensor over the data-parallel replicas, so that the pool is the union mini-batch. Every
                replica must call it, also one that had no rows.
        """
        self._restore()
        for layer in self._layers:
            if not _tracks(layer):
                continue
            moments = self._moments.get(layer)
            if reduce is not None:
                moments = _pool_replicas(layer, moments, reduce)
            if moments is not None and moments.count > 0:
                _update_running(layer, moments)
        self.forget()

    def forget(self) -> None:
        """Drops what was gathered, for a mini-batch that did not end well."""
        self._restore()
        self._moments.clear()

    def _restore(self) -> None:
        for buffers in self._before.values():
            for buffer, value in buffers:
                buffer.copy_(value)
        self._before.clear()


def _tracks(layer: _BatchNorm) -> bool:
    return layer.training and layer.track_running_stats and layer.running_mean is not None


def _wide(statistic: Tensor) -> Tensor:
    """Half precision would overflow, or stop growing, where many inputs are summed."""
    return statistic.to(torch.promote_types(statistic.dtype, torch.float32))


def _pool_replicas(layer: _BatchNorm, own: _Moments | None, reduce: Callable[[Tensor], Tensor]) -> _Moments | None:
    assert layer.running_mean is not None
    zeros = _wide(torch.zeros_like(layer.running_mean))
    own = own or _Moments(0.0, zeros, zeros)
    count = float(reduce(zeros.new_full((1,), own.count)))
    if count == 0:
        return None
    mean = reduce(own.mean * own.count) / count
    deviations = reduce(own.deviations + own.count * (own.mean - mean).square())
    return _Moments(count, mean, deviations)


@torch.no_grad()
def _update_running(layer: _BatchNorm, moments: _Moments) -> None:
    assert layer.running_mean is not None and layer.running_var is not None
    factor = 0.0 if layer.momentum is None else layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:
            factor = 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(moments.mean.to(layer.running_mean.dtype), factor)
    layer.running_var.lerp_((moments.deviations / (moments.count - 1)).to(layer.running_var.dtype), factor)
