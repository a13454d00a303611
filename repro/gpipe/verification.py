"""Compares one training step through the pipeline with one of the unsplit model, on the hardware at hand."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from repro.errors import UserError

from .building import choose_partition, make_layer, make_skeletons
from .engine import Engine
from .microbatch import Boundary, check_boundary, count_rows, elements, like, map_tensors, micro_batch_rows, scatter
from .pipeline_module import PipelineModule
from .rng import StepKey, preserved

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Largest error that counts as equal: absolute in float64; in float32 a share of the largest entry of its kind."""


@dataclass(frozen=True)
class Difference:
    """What one tensor of the pipeline's step differs in from the unsplit step's.

    Attributes:
        name: ``model.<layer>.<name>``, as in the module's state dict.
        kind: "gradient" or "buffer".
        largest: largest absolute value in the unsplit step.
        absolute: largest absolute error of an element; NaN where one side is not finite.
    """

    name: str
    kind: str
    largest: float
    absolute: float

    @property
    def relative(self) -> float:
        """The error as a share of the tensor's largest value."""
        if self.absolute == 0:
            return 0.0
        return self.absolute / self.largest if self.largest else math.inf


@dataclass(frozen=True)
class Verification:
    """Outcome of ``verify``.

    Attributes:
        differences: of all gradients, the worst first, then of all buffers.
        loss: mean loss of the unsplit step.
        loss_error: absolute difference of the pipeline's.
        whole_batch: largest absolute difference of the pipeline's gradients from those of the mini-batch in one piece;
            None where BatchNorm or dropout layers make the result depend on M.
        partition: layers of each stage.
        micro_batches: rows of each micro-batch.
        devices: of each stage.
        dtype: in which both computed.
        tolerance: largest absolute error allowed, by kind.
        batch_norm: number of BatchNorm layers.
        dropout: number of dropout layers.
    """

    differences: tuple[Difference, ...]
    loss: float
    loss_error: float
    whole_batch: float | None
    partition: tuple[int, ...]
    micro_batches: tuple[int, ...]
    devices: tuple[str, ...]
    dtype: str
    tolerance: dict[str, float]
    batch_norm: int
    dropout: int

    @property
    def passed(self) -> bool:
        """Whether no error is above the tolerance."""
        within = all(difference.absolute <= self.tolerance[difference.kind] for difference in self.differences)
        return within and self.loss_error <= self.tolerance["loss"]


@dataclass(frozen=True)
class _Step:
    loss: float
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def verify(
    module: PipelineModule,
    batch: Any,
    *,
    num_stages: int,
    num_micro_batches: int,
    remat: str = "always",
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Verification:
    """One training step of ``module`` on ``batch``, unsplit and through a pipeline of stages in this process.

    Both work on copies of the same weights, over the same micro-batches with the same random keys; the gradients are
    those of (sum of the losses) / (sum of the counts), and running statistics of BatchNorm are pooled over the
    micro-batches. ``module`` stays as it is.

    Args:
        module: with its weights, or not built yet.
        batch: as its data loader gives it.
        num_stages: K.
        num_micro_batches: M; a batch with fewer rows runs with as many micro-batches as it has rows.
        remat: "always", "except_last" or "never".
        device: such as "cpu", "cuda:1"; "cuda" spreads the stages over all GPUs that are visible.
        dtype: float64 or float32; floating-point weights and inputs are converted.
        seed: of the weights, where the module is not built, and of all random draws.

    Raises:
        UserError: the module cannot be cut as asked, there is no such device, or the dtype is another.
    """
    if dtype not in TOLERANCES:
        raise UserError(f"dtype={dtype} is not compared; use one of {', '.join(map(str, TOLERANCES))}")
    if num_micro_batches < 1:
        raise UserError(f"num_micro_batches={num_micro_batches}: give a whole number of at least 1")
    devices = _devices(device, num_stages)
    factories = module.layers()
    made = module.model or [make_layer(factory, seed, index) for index, factory in enumerate(factories)]
    layers = [copy.deepcopy(layer).to(dtype).train() for layer in made]
    for layer in layers:
        layer.zero_grad(set_to_none=True)
    example = module.example_inputs()
    counts, _, _ = choose_partition(
        None,
        make_skeletons(factories),
        num_stages,
        example=lambda: None if example is None else check_boundary(example, "example_inputs()"),
        timed=lambda inputs: [],
    )
    inputs, targets = (_convert(part, dtype) for part in module.split_batch(batch))
    rows = micro_batch_rows(count_rows(inputs, targets), num_micro_batches)

    was_training = module.training
    module.train()
    try:
        # Algorithms that may differ from call to call, or round to TF32, would drown what is looked for.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            expected = _unsplit(module, layers, inputs, targets, rows, devices[0], seed)
            got = _pipelined(module, layers, inputs, targets, counts, num_micro_batches, remat, devices, seed)
            modules = [part for layer in layers for part in layer.modules()]
            norms = sum(isinstance(part, _BatchNorm) for part in modules)
            drops = sum(isinstance(part, _DropoutNd) and part.p > 0 for part in modules)
            whole = None
            if not norms and not drops:
                one_piece = _unsplit(module, layers, inputs, targets, (sum(rows),), devices[0], seed)
                whole = max(d.absolute for d in _compare("gradient", one_piece.gradients, got.gradients))
    finally:
        module.train(was_training)

    differences = [
        *_compare("gradient", expected.gradients, got.gradients),
        *_compare("buffer", expected.buffers, got.buffers),
    ]
    tolerance = TOLERANCES[dtype]
    scales = {"gradient": 1.0, "buffer": 1.0, "loss": 1.0}
    if dtype != torch.float64:
        scales["loss"] = max(1.0, abs(expected.loss))
        for kind in ("gradient", "buffer"):
            scales[kind] = max((d.largest for d in differences if d.kind == kind), default=1.0)
    return Verification(
        differences=tuple(differences),
        loss=expected.loss,
        loss_error=abs(got.loss - expected.loss),
        whole_batch=whole,
        partition=tuple(counts),
        micro_batches=rows,
        devices=tuple(map(str, devices)),
        dtype=str(dtype).removeprefix("torch."),
        tolerance={kind: tolerance * scale for kind, scale in scales.items()},
        batch_norm=norms,
        dropout=drops,
    )


def _unsplit(
    module: PipelineModule,
    layers: Sequence[nn.Module],
    inputs: Boundary,
    targets: Boundary | None,
    rows: Sequence[int],
    device: torch.device,
    seed: int,
) -> _Step:
    """The step as anyone would write it; shares with the engine only the cut and the hash behind the random keys."""
    model = nn.Sequential(*copy.deepcopy(list(layers))).to(device)
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    before = [copy.deepcopy(norm.state_dict()) for norm in norms]
    seen: list[list[Tensor]] = [[] for _ in norms]
    for norm, inputs_seen in zip(norms, seen, strict=True):
        norm.register_forward_pre_hook(_recorder(inputs_seen))
    key = StepKey(seed, 0)
    losses: list[Tensor] = []
    counts: list[float] = []
    pieces = scatter(_to(inputs, device), rows)
    answers: list[Any] = [None] * len(rows) if targets is None else list(scatter(_to(targets, device), rows))
    with preserved(device) as generator:
        for number, (value, answer) in enumerate(zip(pieces, answers, strict=True)):
            value = map_tensors(lambda e: e.clone(), value)
            for index, layer in enumerate(model):
                generator.manual_seed(key.layer(number, index))
                value = layer(value)
            generator.manual_seed(key.layer(number, len(model)))
            loss_sum, count = module.loss(value, answer)
            losses.append(loss_sum)
            counts.append(float(count))
    loss = torch.stack(losses).sum() / sum(counts)
    loss.backward()
    for norm, state, inputs_seen in zip(norms, before, seen, strict=True):
        norm.load_state_dict(state)
        _update_once(norm, inputs_seen)
    return _Step(float(loss.detach()), *_state(enumerate(model)))


def _pipelined(
    module: PipelineModule,
    layers: Sequence[nn.Module],
    inputs: Boundary,
    targets: Boundary | None,
    partition: Sequence[int],
    num_micro_batches: int,
    remat: str,
    devices: Sequence[torch.device],
    seed: int,
) -> _Step:
    copies = {index: copy.deepcopy(layer) for index, layer in enumerate(layers)}
    stage_of = itertools.chain.from_iterable([stage] * count for stage, count in enumerate(partition))
    for index, stage in enumerate(stage_of):
        copies[index].to(devices[stage])
    engine = Engine(
        copies,
        partition,
        num_micro_batches=num_micro_batches,
        loss=module.loss,
        remat=remat,
        devices=devices,
        seed=seed,
    )
    try:
        result = engine.train_step(
            _to(inputs, devices[0]), None if targets is None else _to(targets, devices[-1]), batch_counter=0
        )
        result.accumulate()
    finally:
        engine.close()
    return _Step(result.loss, *_state(copies.items()))


def _state(layers: Iterable[tuple[int, nn.Module]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    gradients, buffers = {}, {}
    for index, layer in layers:
        for name, parameter in layer.named_parameters():
            if parameter.requires_grad:
                gradient = parameter.grad
                gradients[f"model.{index}.{name}"] = torch.zeros_like(parameter) if gradient is None else gradient
        for name, buffer in layer.named_buffers():
            buffers[f"model.{index}.{name}"] = buffer
    return gradients, buffers


def _compare(kind: str, expected: dict[str, Tensor], got: dict[str, Tensor]) -> list[Difference]:
    differences = []
    for name, value in expected.items():
        wanted, found = (tensor.detach().to("cpu", torch.float64) for tensor in (value, got[name]))
        if not wanted.numel():
            continue
        error = (found - wanted).abs().max().item()
        differences.append(Difference(name, kind, wanted.abs().max().item(), error))
    return sorted(differences, key=_badness, reverse=True)


def _badness(difference: Difference) -> tuple[bool, float, float]:
    return math.isnan(difference.absolute), difference.absolute, difference.relative


def _recorder(inputs_seen: list[Tensor]) -> Any:
    return lambda module, args: inputs_seen.append(args[0].detach().clone())


@torch.no_grad()
def _update_once(norm: _BatchNorm, inputs_seen: Sequence[Tensor]) -> None:
    """One update from the mean and the unbiased variance of all values of each channel."""
    if not inputs_seen or norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    values = torch.cat([tensor.transpose(0, 1).flatten(1) for tensor in inputs_seen], dim=1)
    norm.num_batches_tracked += 1
    momentum = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.copy_((1 - momentum) * norm.running_mean + momentum * values.mean(dim=1))
    norm.running_var.copy_((1 - momentum) * norm.running_var + momentum * values.var(dim=1, correction=1))


def _devices(device: str, num_stages: int) -> list[torch.device]:
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device={device!r} is none; use cpu, cuda or cuda:<number>") from error
    if asked.type != "cuda":
        return [asked] * num_stages
    visible = torch.cuda.device_count()
    if visible == 0 or (asked.index or 0) >= visible:
        raise UserError(f"device={device!r}: this machine has {visible} CUDA devices; use device='cpu'")
    if asked.index is not None:
        return [asked] * num_stages
    return [torch.device("cuda", stage % visible) for stage in range(num_stages)]


def _convert(part: Any, dtype: torch.dtype) -> Any:
    if part is None:
        return None
    boundary = check_boundary(part, "split_batch(batch)")
    return like(
        boundary,
        [None if e is None else e.to(dtype) if e.is_floating_point() else e for e in elements(boundary)],
    )


def _to(boundary: Boundary, device: torch.device) -> Boundary:
    return map_tensors(lambda e: e.to(device), boundary)
