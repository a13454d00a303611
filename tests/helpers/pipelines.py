"""Runs cells of the parity matrix on the engine, here or on gloo ranks, and compares them with the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.engine import Engine
from repro.gpipe.gradients import clip_grad_norm
from repro.gpipe.mesh import PipelineMesh
from repro.schedules import Generator
from tests.helpers.models import MODELS
from tests.helpers.oracle import Reference, pooled_step, whole_batch_step
from tests.helpers.ranks import Pools

# Every schedule that the engine runs, by the numbers V of stages a rank that are tried. A new one is a row here.
SCHEDULES: dict[str, tuple[int, ...]] = {
    "gpipe": (1, 2),
    "1f1b": (1,),
    "interleaved": (2, 3),
    "zb-h1": (1,),
    "zb-h2": (1,),
    "zb-v": (2,),
}
ORDERS = [(name, num_virtual_stages) for name, numbers in SCHEDULES.items() for num_virtual_stages in numbers]

TOLERANCE = 1e-10
# The batches that a cell trains on: the first alone, then an accumulation window of two.
WINDOWS = ((0,), (0, 1))
# Small enough for every model's gradients to be clipped.
MAX_NORM = 0.05
MAX_VALUE = 0.01


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: K = ``num_stages``, M = ``num_micro_batches``, V, remat, rows of each mini-batch.

    A cell trains on single batches and on an accumulation window, and is clipped in every way.
    """

    model: str
    num_stages: int
    num_micro_batches: int
    remat: str = "always"
    rows: int = 8
    num_virtual_stages: int = 1
    schedule: str | Generator = "gpipe"
    frozen_first: bool = False

    @property
    def num_frozen(self) -> int:
        """Layers of the first stage, where it is frozen."""
        return self.partition[0] if self.frozen_first else 0

    @property
    def partition(self) -> list[int]:
        """As equal as can be, the longer stages first."""
        layers = len(MODELS[self.model].factories)
        return [len(part) for part in torch.arange(layers).tensor_split(self.num_stages * self.num_virtual_stages)]


@dataclass(frozen=True)
class Outcome:
    """What one rank holds after the windows of a cell; gradients and buffers of its own layers by name.

    Attributes:
        losses: one a mini-batch.
        metrics: of the last mini-batch.
        gradients: for each window, None for a parameter without.
        norms: for each window, over all stages.
        clipped: the gradients of the last window clipped by that norm, then, from the start again, by value.
    """

    losses: tuple[float, ...]
    metrics: dict[str, tuple[float, float]]
    gradients: tuple[dict[str, Any], ...]
    buffers: dict[str, Any]
    norms: tuple[float, ...]
    clipped: tuple[dict[str, Any], dict[str, Any]]


def make_engine(cell: Cell, layers: Sequence[nn.Module], mesh: PipelineMesh | None = None, **options: Any) -> Engine:
    """The engine of a cell over ``layers`` (all of them; a rank uses its own)."""
    spec = MODELS[cell.model]
    return Engine(
        dict(enumerate(layers)),
        cell.partition,
        num_micro_batches=cell.num_micro_batches,
        loss=spec.loss,
        metrics=spec.metrics,
        schedule=cell.schedule,
        num_virtual_stages=cell.num_virtual_stages,
        remat=cell.remat,
        mesh=mesh,
        **options,
    )


def own_layers(engine: Engine) -> nn.ModuleDict:
    """The layers of this process by global index, so that names are those of ``nn.Sequential``."""
    return nn.ModuleDict(
        {str(index): layer for stage in engine.stages.values() for index, layer in stage.layers.items()}
    )


def run_cell(cell: Cell, mesh: PipelineMesh | None = None) -> Outcome:
    """Trains on the windows of the cell, each from cleared gradients."""
    spec = MODELS[cell.model]
    engine = make_engine(cell, spec.layers(num_frozen=cell.num_frozen), mesh)
    own = own_layers(engine)
    reads = mesh is None or mesh.reads_data
    losses, gradients, norms = [], [], []
    try:
        for window in WINDOWS:
            own.zero_grad(set_to_none=True)
            for number in window:
                inputs, targets = spec.batch(cell.rows, number) if reads else (None, None)
                result = engine.train_step(inputs, targets, batch_counter=number)
                losses.append(result.loss)
                result.accumulate(1 / len(window))
            gradients.append(_gradients(own))
            norms.append(clip_grad_norm(own.parameters(), MAX_NORM, 2.0, mesh).item())
            by_norm = _gradients(own)
        for name, parameter in own.named_parameters():
            parameter.grad = None if gradients[-1][name] is None else torch.from_numpy(gradients[-1][name].copy())
        if any(parameter.grad is not None for parameter in own.parameters()):
            nn.utils.clip_grad_value_(own.parameters(), MAX_VALUE)
        buffers = {name: buffer.numpy().copy() for name, buffer in own.named_buffers()}
        metrics = dict(result.totals.metrics)
        clipped = (by_norm, _gradients(own))
        return Outcome(tuple(losses), metrics, tuple(gradients), buffers, tuple(norms), clipped)
    finally:
        engine.close()


def _gradients(own: nn.Module) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in own.named_parameters()}


def run_cells_on_rank(rank: int, world_size: int, cells: Sequence[Cell]) -> list[Outcome]:
    """All cells one after another on one mesh of ``world_size`` stages."""
    mesh = PipelineMesh(world_size)
    try:
        return [run_cell(cell, mesh) for cell in cells]
    finally:
        mesh.close()


def run_cells(way: str, cells: Sequence[Cell], pools: Pools, timeout: float = 150.0) -> list[list[Outcome]]:
    """For every cell the outcomes, one a rank; ``way`` is ``"local"`` or ``"processes"``. The cells have one K."""
    if way == "local":
        return [[run_cell(cell)] for cell in cells]
    (num_stages,) = {cell.num_stages for cell in cells}
    by_rank = pools(num_stages).run(run_cells_on_rank, list(cells), timeout=timeout)
    return [list(outcomes) for outcomes in zip(*by_rank, strict=True)]


@dataclass(frozen=True)
class Expected:
    """What the oracle says of the windows of a cell."""

    losses: tuple[float, ...]
    metrics: dict[str, tuple[float, float]]
    gradients: tuple[dict[str, Tensor | None], ...]
    buffers: dict[str, Tensor]
    norms: tuple[float, ...]
    clipped: tuple[dict[str, Tensor | None], ...]


@cache
def expected(model: str, rows: int, num_micro_batches: int, num_frozen: int = 0) -> Expected:
    """The oracle over the same micro-batches; independent of K, V, schedule, remat and way."""
    spec = MODELS[model]
    layers = spec.layers(num_frozen=num_frozen)
    losses: list[float] = []
    gradients: list[dict[str, Tensor | None]] = []
    for window in WINDOWS:
        steps: list[Reference] = []
        for number in window:
            inputs, targets = spec.batch(rows, number)
            steps.append(
                pooled_step(
                    layers,
                    inputs,
                    targets,
                    spec.loss,
                    num_micro_batches=num_micro_batches,
                    batch_counter=number,
                    metrics=spec.metrics,
                )
            )
            nn.Sequential(*layers).load_state_dict(steps[-1].buffers, strict=False)
        losses += [step.loss.item() for step in steps]
        gradients.append(
            {
                name: None if first is None else sum(step.gradients[name] for step in steps) / len(steps)  # type: ignore[misc]
                for name, first in steps[0].gradients.items()
            }
        )
    norms = [sum(float(g.square().sum()) for g in window.values() if g is not None) ** 0.5 for window in gradients]
    shrink = min(1.0, MAX_NORM / (norms[-1] + 1e-6))
    clipped = (
        {name: None if g is None else g * shrink for name, g in gradients[-1].items()},
        {name: None if g is None else g.clamp(-MAX_VALUE, MAX_VALUE) for name, g in gradients[-1].items()},
    )
    return Expected(tuple(losses), steps[-1].metrics, tuple(gradients), steps[-1].buffers, tuple(norms), clipped)


@cache
def whole_batch_gradients(model: str, rows: int, num_frozen: int = 0) -> dict[str, Tensor | None]:
    """Of one step on the first mini-batch as it is."""
    spec = MODELS[model]
    return whole_batch_step(spec.layers(num_frozen=num_frozen), *spec.batch(rows, 0), spec.loss).gradients


def differences(cell: Cell, outcomes: Sequence[Outcome]) -> list[str]:
    """Everything in which the ranks of a cell differ from the oracle by more than ``TOLERANCE``, in words."""
    wanted = expected(cell.model, cell.rows, min(cell.num_micro_batches, cell.rows), cell.num_frozen)
    found: list[str] = []

    def compare(what: str, got: Any, want: Any) -> None:
        if got is None and want is None:
            return
        if got is None or want is None:
            found.append(f"{cell}: {what} is {got}, should be {want}")
            return
        error = (torch.as_tensor(got, dtype=torch.float64) - torch.as_tensor(want, dtype=torch.float64)).abs().max()
        if not error <= TOLERANCE:
            found.append(f"{cell}: {what} is off by {error.item():.3e}")

    for rank, outcome in enumerate(outcomes):
        compare(f"the losses on rank {rank}", outcome.losses, wanted.losses)
        compare(f"the gradient norms on rank {rank}", outcome.norms, wanted.norms)
        if outcome.metrics.keys() != wanted.metrics.keys():
            found.append(f"{cell}: metrics on rank {rank} are {outcome.metrics}, should be {wanted.metrics}")
            continue
        for name, value in wanted.metrics.items():
            compare(f"metric {name} on rank {rank}", outcome.metrics[name], value)
    for window, gradients in enumerate(wanted.gradients):
        got = {name: value for outcome in outcomes for name, value in outcome.gradients[window].items()}
        if got.keys() != gradients.keys():
            found.append(f"{cell}: parameters {sorted(got.keys() ^ gradients.keys())} are on no rank or unknown")
            continue
        for name, value in gradients.items():
            compare(f"the gradient of {name} over {len(WINDOWS[window])} batches", got[name], value)
            if window == 0 and MODELS[cell.model].whole:
                whole = whole_batch_gradients(cell.model, cell.rows, cell.num_frozen)[name]
                compare(f"the gradient of {name} beside the whole batch's", got[name], whole)
    for how, (clip, clipped) in enumerate(zip(("norm", "value"), wanted.clipped, strict=True)):
        for name, value in clipped.items():
            got = next(outcome.clipped[how][name] for outcome in outcomes if name in outcome.clipped[how])
            compare(f"the gradient of {name} clipped by {clip}", got, value)
    buffers = {name: value for outcome in outcomes for name, value in outcome.buffers.items()}
    for name, buffer in wanted.buffers.items():
        compare(f"buffer {name}", buffers[name], buffer)
    return found
