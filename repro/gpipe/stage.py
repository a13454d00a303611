"""One stage: a contiguous run of layers, and its micro-batches between F and B."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from repro.errors import UserError

from .aliases import separate_gradients
from .autograd_engine import run_backward
from .batchnorm import PooledBatchNorm
from .microbatch import CHANGED, Boundary, changes_of, check_boundary, elements, map_tensors
from .rng import StepKey, generator
from .split_backward import WeightGradients, backward_inputs

Loss = Callable[[Boundary, Boundary], tuple[Any, Any]]
Targets = Callable[[], Boundary]
"""Gives the targets of a micro-batch; it waits for them where they come from another rank."""
Metrics = Callable[[Boundary, Boundary], Mapping[str, tuple[Any, Any]]]


_RECOMPUTING: ContextVar[bool] = ContextVar("gpipe_recomputing", default=False)


def is_recomputing() -> bool:
    """Whether the layer that asks is run by R, for a micro-batch that it has seen in F: hooks and counters may ask."""
    return _RECOMPUTING.get()


InputGradient = tuple[Tensor, Tensor | None]
"""An input of a stage and its gradient, None where nothing depends on it."""


@dataclass
class MicroBatchReport:
    """What the last stage says of one micro-batch: sums and counts, still on the device."""

    loss_sum: Tensor
    count: Any
    metrics: dict[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass
class _Flight:
    """A micro-batch between its F and its B (or W) on this stage."""

    learns: bool
    seeds: tuple[int, ...]
    inputs: Boundary
    changed: tuple[int, ...] = ()
    wanted: tuple[bool, ...] = ()
    targets: Boundary | None = None
    outputs: tuple[Tensor | None, ...] | None = None
    weights: WeightGradients | None = None

    def keep(self, outputs: Boundary, report: MicroBatchReport | None) -> None:
        """Keeps the graph for B, if there is one."""
        kept = elements(outputs) if report is None else (report.loss_sum,)
        if any(output is not None and output.requires_grad for output in kept):
            self.outputs = kept


class Stage:
    """Runs F, R and B, or I and W, of one stage.

    Each layer starts from a seed of its own, given to the device's generator; whoever runs a step puts that back.

    Args:
        index: the stage's number, 0-based, over all K x V stages.
        layers: the layers by global index, in order.
        device: where the layers are.
        loss: on the last stage in training, ``loss(outputs, targets) -> (sum, count)``; it runs as if it were one layer
            more, with the index after the last.
        metrics: on the last stage, ``metrics(outputs, targets) -> {name: (sum, count)}``, without gradient.
    """

    def __init__(
        self,
        index: int,
        layers: Mapping[int, nn.Module],
        device: torch.device,
        *,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.index = index
        self.layers = dict(layers)
        self.device = device
        self._on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        self.loss = loss
        self.metrics = metrics
        self._parameters = tuple(dict.fromkeys(p for layer in self.layers.values() for p in layer.parameters()))
        self.batch_norm = PooledBatchNorm(module for layer in self.layers.values() for module in layer.modules())
        self._draws = (*self.layers, max(self.layers, default=-1) + 1) if loss else tuple(self.layers)
        self._ready: dict[int, tuple[_Flight, Boundary | None]] = {}
        self._flights: dict[int, _Flight] = {}
        self._without_gradient: list[nn.Parameter] | None = None
        self._told = False

    def parameters(self) -> Iterator[nn.Parameter]:
        """The stage's parameters, each once."""
        return iter(self._parameters)

    @property
    def in_flight(self) -> int:
        """Micro-batches between F and B, or W where the backward is split."""
        return len(self._flights)

    @property
    def live_activations(self) -> int:
        """Micro-batches whose activations (the graph, not only the stage's input) are alive."""
        return sum(flight.outputs is not None or bool(flight.weights) for flight in self._flights.values())

    def held(self) -> Iterator[Tensor]:
        """What the stage itself keeps of its micro-batches in flight: inputs, targets, outputs (graphs keep more)."""
        for flight in self._flights.values():
            for part in (flight.inputs, flight.targets, flight.outputs):
                yield from (e for e in elements(part if part is not None else ()) if e is not None)

    def wanted(self, micro_batch: int) -> tuple[bool, ...]:
        """Which outputs of a micro-batch in flight may get a gradient."""
        return self._flights[micro_batch].wanted

    def infer(
        self, micro_batch: int, inputs: Boundary, targets: Targets | None, key: StepKey
    ) -> tuple[Boundary, MicroBatchReport | None]:
        """F without anything kept for B. The report is None where there is no loss or no target."""
        seeds = self._seeds(key, micro_batch)
        with self._on_device:
            outputs = self._run_layers(inputs, seeds)
            report = None if self.loss is None or targets is None else self._judge(outputs, targets(), seeds)
        return outputs, report

    def is_prepared(self, micro_batch: int) -> bool:
        """Whether ``prepare`` has been called for an F that is still to come."""
        return micro_batch in self._ready

    def prepare(self, micro_batch: int, inputs: Boundary, key: StepKey, *, drop: bool) -> None:
        """Does what ``forward`` with the same arguments would begin with, while the values of ``inputs`` may be absent.

        So whoever waits for them has less to do once they have come.
        """
        flight = _Flight(self._needs_gradient(inputs), self._seeds(key, micro_batch), inputs)
        # What the first layer gets; where R starts from the inputs again it is a copy of the values.
        self._ready[micro_batch] = flight, None if drop else map_tensors(_enter, inputs)

    def forward(
        self, micro_batch: int, inputs: Boundary, targets: Targets | None, key: StepKey, *, drop: bool
    ) -> tuple[Boundary, MicroBatchReport | None]:
        """F in training.

        Args:
            inputs: detached from the previous stage; elements with ``requires_grad`` collect the input gradient.
            targets: on the last stage.
            drop: drop the activations; ``recompute`` makes them again.
        """
        ready = self._ready.pop(micro_batch, None)
        if ready is None or ready[0].inputs is not inputs:
            self.prepare(micro_batch, inputs, key, drop=drop)
            ready = self._ready.pop(micro_batch)
        flight, entered = ready
        self._flights[micro_batch] = flight
        if entered is None:
            entered = map_tensors(_enter_copy, inputs)
        with _recording(not drop or not flight.learns), self.batch_norm.watching(record=True):
            outputs, report = self._run(flight, entered, targets, again=drop)
        if self.index and drop:
            flight.changed = changes_of(inputs)
        elif self.index:
            _tell_changes(inputs, entered)
        flight.wanted = _wanted(outputs, everywhere=flight.learns)
        flight.learns |= any(flight.wanted)
        if not drop:
            flight.keep(outputs, report)
        if report is not None:
            report.loss_sum = report.loss_sum.detach()
        return outputs, report

    def recompute(self, micro_batch: int) -> None:
        """R: makes the activations of ``micro_batch`` again, with the random numbers of its F."""
        flight = self._flights[micro_batch]
        if not flight.learns:
            return
        if self.index and changes_of(flight.inputs) != flight.changed:
            raise UserError(CHANGED)
        token = _RECOMPUTING.set(True)
        try:
            with self.batch_norm.watching(record=False):
                flight.keep(*self._run(flight, map_tensors(_enter, flight.inputs), metrics=False))
        finally:
            _RECOMPUTING.reset(token)

    def backward(self, micro_batch: int, gradients: tuple[Tensor | None, ...]) -> tuple[InputGradient | None, ...]:
        """B: adds to the ``.grad`` of the parameters and returns the gradients of the inputs.

        Args:
            gradients: of each output of the stage (of the loss sum on the last stage), None where there is none; empty
                where no output wants one.

        Returns:
            For each input that requires a gradient, the input and its gradient (None where nothing depends on it);
            None for the others.
        """
        flight = self._flights.pop(micro_batch)
        roots, seeds = _seeded(flight.outputs, gradients)
        if roots:
            run_backward(roots, seeds)
        return self._collected(flight.inputs, gradients)

    def backward_inputs(
        self, micro_batch: int, gradients: tuple[Tensor | None, ...]
    ) -> tuple[InputGradient | None, ...]:
        """I: as ``backward``, but parameters get their gradients in ``backward_weights``, as far as they can wait.

        Where no input requires a gradient nothing is done, and W is the whole backward.
        """
        flight = self._flights[micro_batch]
        roots, seeds = _seeded(flight.outputs, gradients)
        inputs, flight.inputs, flight.outputs, flight.targets = flight.inputs, (), None, None
        flight.weights = WeightGradients()
        if roots:
            leaves = [e for e in elements(inputs) if e is not None and e.requires_grad]
            flight.weights = backward_inputs(roots, seeds, leaves)
            self._tell(flight.weights.whole)
        return self._collected(inputs, gradients)

    def backward_weights(self, micro_batch: int) -> None:
        """W: adds the rest to the ``.grad`` of the parameters; the micro-batch leaves the stage."""
        weights = self._flights.pop(micro_batch).weights
        assert weights is not None, "I comes before W"
        weights.accumulate()
        self._separate(())

    def forget(self) -> None:
        """Drops all micro-batches in flight and all statistics gathered, after a failure or at the end of a step."""
        self._without_gradient = None
        self._ready.clear()
        self._flights.clear()
        self.batch_norm.forget()

    @cached_property
    def _generator(self) -> torch.Generator:
        return generator(self.device)

    def _needs_gradient(self, inputs: Boundary) -> bool:
        return any(e is not None and e.requires_grad for e in elements(inputs)) or any(
            p.requires_grad for p in self._parameters
        )

    def _collected(self, inputs: Boundary, received: tuple[Tensor | None, ...]) -> tuple[InputGradient | None, ...]:
        """Each input that requires a gradient, with what it has got from those that were ``received``."""
        made = tuple(None if e is None or not e.requires_grad else (e, e.grad) for e in elements(inputs))
        self._separate((*received, *(pair[1] for pair in made if pair is not None)))
        return made

    def _separate(self, others: Sequence[Tensor | None]) -> None:
        """Sees to it that what the next micro-batches add to the parameters' gradients does not change ``others``."""
        waiting = self._without_gradient
        if waiting is None:
            waiting = [parameter for parameter in self._parameters if parameter.requires_grad]
        new = [parameter for parameter in waiting if parameter.grad is not None]
        if new:
            separate_gradients(new, others)
            waiting = [parameter for parameter in waiting if parameter.grad is None]
        self._without_gradient = waiting

    def _tell(self, whole: str | None) -> None:
        if whole is not None and not self._told:
            self._told = True
            warnings.warn(
                f"stage {self.index}: {whole} allows no split of the backward, so I computes all gradients and W none: "
                "right, but the bubble is larger than the schedule's",
                stacklevel=2,
            )

    def _run(
        self,
        flight: _Flight,
        inputs: Boundary,
        targets: Targets | None = None,
        *,
        metrics: bool = True,
        again: bool = False,
    ) -> tuple[Boundary, MicroBatchReport | None]:
        with self._on_device:
            outputs = self._run_layers(inputs, flight.seeds)
            if self.loss is None:
                return outputs, None
            if flight.targets is None:
                assert targets is not None
                flight.targets = targets()
            # As the inputs, they must survive a loss that works in place where R computes it again.
            given = map_tensors(torch.clone, flight.targets) if again else flight.targets
            return outputs, self._judge(outputs, given, flight.seeds, metrics=metrics)

    def _run_layers(self, value: Boundary, seeds: tuple[int, ...]) -> Boundary:
        drawn_from = self._generator
        for seed, (index, layer) in zip(seeds, self.layers.items(), strict=False):
            drawn_from.manual_seed(seed)
            value = layer(value)
            if not isinstance(value, Tensor):
                value = check_boundary(value, f"the output of layer {index} ({type(layer).__name__})")
        return value

    def _judge(
        self, outputs: Boundary, targets: Boundary, seeds: tuple[int, ...], *, metrics: bool = True
    ) -> MicroBatchReport:
        assert self.loss is not None
        self._generator.manual_seed(seeds[-1])
        loss_sum, count = self.loss(outputs, targets)
        if isinstance(count, Tensor) and count.requires_grad:
            raise UserError(
                "the count that the loss returns depends on parameters, and no gradient goes through it; return a "
                "count of the targets, or count.detach()"
            )
        report = MicroBatchReport(loss_sum, count)
        if metrics and self.metrics is not None:
            with torch.no_grad():
                detached = map_tensors(lambda e: e.detach(), outputs)
                report.metrics = dict(self.metrics(detached, targets))
        return report

    def _seeds(self, key: StepKey, micro_batch: int) -> tuple[int, ...]:
        """One of each layer, and on the last stage one of the loss."""
        return tuple(key.layer(micro_batch, layer) for layer in self._draws)


def _recording(enabled: bool) -> AbstractContextManager[Any]:
    """Switches gradients on or off where they are not so already."""
    return nullcontext() if torch.is_grad_enabled() == enabled else torch.set_grad_enabled(enabled)


def _seeded(
    outputs: tuple[Tensor | None, ...] | None, gradients: tuple[Tensor | None, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs from which a backward starts, and their gradients."""
    roots: list[Tensor] = []
    seeds: list[Tensor] = []
    if outputs is not None and gradients:
        for output, gradient in zip(outputs, gradients, strict=True):
            if output is not None and gradient is not None and output.requires_grad:
                roots.append(output)
                seeds.append(gradient)
    return roots, seeds


def _wanted(outputs: Boundary, *, everywhere: bool) -> tuple[bool, ...]:
    """Which outputs may get a gradient.

    Args:
        everywhere: the stage learns. Then all that are differentiable: without a graph they cannot tell, and what a
            layer leaves unconnected in one micro-batch it may connect in the next. Else those that a layer has made
            require one.
    """
    return tuple(
        e is not None and (e.requires_grad or (everywhere and (e.is_floating_point() or e.is_complex())))
        for e in elements(outputs)
    )


def _enter(value: Tensor) -> Tensor:
    """A tensor that a layer may modify in place, which it may not where ``value``, a leaf, collects a gradient.

    Neither a view nor a copy; the node in the graph is C++, since B of every micro-batch goes through it. What collects
    no gradient is entered as another tensor too: a layer may ask for its own gradient (``requires_grad_``).
    """
    return torch.ops.aten._unsafe_view.default(value, value.shape) if value.requires_grad else value.detach()


def _tell_changes(inputs: Boundary, entered: Boundary) -> None:
    """Has autograd refuse what the stage before has saved of its outputs, if a layer here has changed it in place.

    In one process both are the same memory, but those that ``_enter`` has made have a count of changes of their own.
    """
    for value, given in zip(elements(inputs), elements(entered), strict=True):
        if value is not None and given is not None and value.requires_grad and given._version:
            torch.autograd.graph.increment_version(value)


def _enter_copy(value: Tensor) -> Tensor:
    """The same for a copy."""
    return _enter(value.detach().clone().requires_grad_(value.requires_grad))
