"""What a pipeline must compute: the unsplit layers, in one process, over the same micro-batches, written naively.

Shares with the engine only the hash that gives each (micro-batch, layer) its seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from repro.gpipe.rng import StepKey

Batch = Tensor | tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Reference:
    """One training step of the unsplit layers.

    Attributes:
        loss: (sum of sums) / (sum of counts).
        gradients: of that loss, by name as in the state dict of ``nn.Sequential``; None for what it does not reach.
        outputs: of the last layer, one a micro-batch.
        buffers: after the step.
        metrics: (sum, count) by name, summed over the micro-batches.
    """

    loss: Tensor
    gradients: dict[str, Tensor | None]
    outputs: list[Batch]
    buffers: dict[str, Tensor]
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)


def cut(batch: Batch | None, num_micro_batches: int) -> list[Any]:
    """Copies of the micro-batches: at most one per row, those that are a row longer first."""
    if batch is None:
        return []
    if isinstance(batch, Tensor):
        return [piece.clone() for piece in torch.tensor_split(batch, min(num_micro_batches, len(batch)))]
    rows = next(len(element) for element in batch if element is not None)
    parts = min(rows, num_micro_batches)
    pieces = [[None] * parts if element is None else cut(element, parts) for element in batch]
    return [tuple(column[part] for column in pieces) for part in range(parts)]


def run_layers(layers: Sequence[nn.Module], value: Any, key: StepKey, micro_batch: int) -> Any:
    """Applies the layers in order, each with its own seed."""
    for index, layer in enumerate(layers):
        torch.default_generator.manual_seed(key.layer(micro_batch, index))
        value = layer(value)
    return value


def pooled_step(
    layers: Sequence[nn.Module],
    inputs: Batch,
    targets: Batch,
    loss: Callable[[Any, Any], tuple[Tensor, Any]],
    *,
    num_micro_batches: int,
    seed: int = 0,
    batch_counter: int = 0,
    replica: int = 0,
    metrics: Callable[[Any, Any], Mapping[str, tuple[Any, Any]]] | None = None,
) -> Reference:
    """One step of a copy of ``layers`` in training mode; ``layers`` themselves stay as they are."""
    model = nn.Sequential(*copy.deepcopy(list(layers))).train()
    model.zero_grad(set_to_none=True)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    before = [copy.deepcopy(norm.state_dict()) for norm in norms]
    seen: list[list[Tensor]] = [[] for _ in norms]
    watching = [
        norm.register_forward_pre_hook(
            lambda _, args, named, inputs_seen=inputs_seen: inputs_seen.append(
                (args[0] if args else named["input"]).detach().clone()
            ),
            with_kwargs=True,
        )
        for norm, inputs_seen in zip(norms, seen, strict=True)
    ]

    key = StepKey(seed, batch_counter, replica)
    sums, counts, outputs, judged = [], [], [], []
    with torch.random.fork_rng(devices=[]):
        for part, (piece, answer) in enumerate(
            zip(cut(inputs, num_micro_batches), cut(targets, num_micro_batches), strict=True)
        ):
            output = run_layers(model, piece, key, part)
            torch.default_generator.manual_seed(key.layer(part, len(model)))
            loss_sum, count = loss(output, answer)
            sums.append(loss_sum)
            counts.append(float(count))
            outputs.append(_detached(output))
            if metrics is not None:
                judged.append(metrics(_detached(output), answer))
    total = torch.stack(sums).sum() / sum(counts)
    for handle in watching:
        handle.remove()  # in the backward a layer that checkpoints runs once more
    if total.requires_grad:
        total.backward()
    for norm, state, inputs_seen in zip(norms, before, seen, strict=True):
        norm.load_state_dict(state)
        if norm.training and inputs_seen:
            _update_once(norm, inputs_seen)
    return Reference(
        loss=total.detach(),
        gradients={name: parameter.grad for name, parameter in model.named_parameters()},
        outputs=outputs,
        buffers={name: buffer.clone() for name, buffer in model.named_buffers()},
        metrics={
            name: (sum(float(part[name][0]) for part in judged), sum(float(part[name][1]) for part in judged))
            for name in (judged[0] if judged else ())
        },
    )


def whole_batch_step(
    layers: Sequence[nn.Module], inputs: Batch, targets: Batch, loss: Callable[[Any, Any], tuple[Tensor, Any]]
) -> Reference:
    """One step of plain training on the mini-batch as it is."""
    return pooled_step(layers, inputs, targets, loss, num_micro_batches=1)


def evaluate(
    layers: Sequence[nn.Module], inputs: Batch, *, num_micro_batches: int = 1, seed: int = 0, batch_counter: int = 0
) -> list[Batch]:
    """The outputs in evaluation mode, one a micro-batch."""
    model = nn.Sequential(*copy.deepcopy(list(layers))).eval()
    key = StepKey(seed, batch_counter)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return [run_layers(model, piece, key, part) for part, piece in enumerate(cut(inputs, num_micro_batches))]


def _detached(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(None if element is None else element.detach().clone() for element in value)
    return value.detach().clone()


@torch.no_grad()
def _update_once(norm: _BatchNorm, inputs_seen: list[Tensor]) -> None:
    """One update from the mean and the unbiased variance of all values of each channel."""
    values = torch.cat([tensor.transpose(0, 1).flatten(1) for tensor in inputs_seen], dim=1)
    norm.num_batches_tracked += 1
    momentum = 1.0 / norm.num_batches_tracked.item() if norm.momentum is None else norm.momentum
    norm.running_mean.copy_((1 - momentum) * norm.running_mean + momentum * values.mean(dim=1))
    norm.running_var.copy_((1 - momentum) * norm.running_var + momentum * values.var(dim=1, correction=1))
