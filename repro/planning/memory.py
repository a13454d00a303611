"""How much memory a stage needs: parameters with their optimizer's states, and what it holds of its micro-batches.

The unit is bytes. A layer is described by what it keeps for backward of one micro-batch (``LayerMemory``; counted by
``repro.gpipe.memory``), a stage by what it holds of one micro-batch before and after its activations exist
(``StageMemory``), a schedule by how many of each a rank holds at a time (``live_sets``). The peak is their product: for
GPipe's schedule with re-materialization M inputs and one micro-batch's activations, O(N + (L/K)(N/M)) (GPipe paper,
section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from repro.errors import UserError
from repro.schedules import Kind, Schedule

OPTIMIZER_STATES: Mapping[str, int] = MappingProxyType(
    {"sgd": 0, "sgd-momentum": 1, "rmsprop": 1, "rmsprop-momentum": 2, "adam": 2, "adamw": 2, "adafactor": 0}
)
"""Tensors of a parameter's size that each optimizer keeps beside the parameter; Adafactor keeps rows and columns."""

_State = tuple[tuple[int, int, int], ...]

LiveSet = tuple[_State, ...]
"""Of one rank: the states in which it holds most, each as (stage, micro-batches waiting, micro-batches live)."""


@dataclass(frozen=True)
class OutputMemory:
    """One element of what a layer returns, for one micro-batch.

    Attributes:
        size: bytes, 0 for None.
        passes: the element of the layer's input that is handed on (or viewed), None for a new tensor.
        saved: whether the layer keeps it for its own backward.
    """

    size: int
    passes: int | None = None
    saved: bool = False


@dataclass(frozen=True)
class LayerMemory:
    """What a layer keeps for backward of one micro-batch; parameters are not counted in it.

    Attributes:
        parameters: number of parameters.
        internal: bytes of saved tensors that are neither inputs nor outputs.
        saved_inputs: for each element of the input, whether it is kept.
        outputs: what the layer returns.
    """

    parameters: int
    internal: int
    saved_inputs: tuple[bool, ...]
    outputs: tuple[OutputMemory, ...]


@dataclass(frozen=True)
class StageMemory:
    """A run of layers on one rank.

    Attributes:
        parameters: number of parameters.
        inputs: bytes of one micro-batch's input, all that is held between F and R (with the targets, on the last).
        held: bytes of one micro-batch between F, or R, and B: inputs, outputs and all that is saved, each tensor once.
    """

    parameters: int
    inputs: int
    held: int


@dataclass(frozen=True)
class ModelMemory:
    """All layers of a model, for one size of micro-batch.

    Attributes:
        layers: in order.
        inputs: bytes of each element of the model's input.
        targets: bytes of the targets; the last stage holds them.
        loss: what the loss keeps, as if it were a layer; it goes with the last layer.
    """

    layers: tuple[LayerMemory, ...]
    inputs: tuple[int, ...]
    targets: int = 0
    loss: LayerMemory | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(layer.parameters for layer in self.layers)

    def boundary(self, index: int) -> tuple[int, ...]:
        """Bytes of each element of one micro-batch's input of layer ``index``."""
        return tuple(output.size for output in self.layers[index - 1].outputs) if index else self.inputs

    def stage(self, begin: int, end: int) -> StageMemory:
        """The layers ``begin .. end - 1`` as a stage."""
        run = StageRun(self, begin)
        for _ in range(begin, end):
            run.grow()
        return run.stage()

    def stages(self, counts: Sequence[int]) -> list[StageMemory]:
        """The stages of a partition, given as numbers of layers."""
        made, begin = [], 0
        for count in counts:
            made.append(self.stage(begin, begin + count))
            begin += count
        return made


def at_rows(one: ModelMemory, two: ModelMemory, rows: int) -> ModelMemory:
    """The memory of micro-batches of ``rows`` rows from that of one row and that of two.

    Every tensor has a row per sample or none at all, so all sizes are affine in the number of rows.
    """

    def size(first: int, second: int) -> int:
        return first + (rows - 1) * (second - first)

    def layer(first: LayerMemory, second: LayerMemory) -> LayerMemory:
        outputs = tuple(
            OutputMemory(size(a.size, b.size), a.passes, a.saved)
            for a, b in zip(first.outputs, second.outputs, strict=True)
        )
        return LayerMemory(first.parameters, size(first.internal, second.internal), first.saved_inputs, outputs)

    layers = tuple(layer(first, second) for first, second in zip(one.layers, two.layers, strict=True))
    inputs = tuple(size(first, second) for first, second in zip(one.inputs, two.inputs, strict=True))
    loss = None if one.loss is None or two.loss is None else layer(one.loss, two.loss)
    return ModelMemory(layers, inputs, size(one.targets, two.targets), loss)


class StageRun:
    """A stage that grows layer by layer; every tensor has a number, so that none is counted twice.

    Attributes:
        end: the layer that comes next.
        inputs: bytes of one micro-batch's input.
        parameters: number of parameters.
        kept: what is held of one micro-batch, without outputs that nothing saves: it only grows.
    """

    def __init__(self, model: ModelMemory, begin: int) -> None:
        self._model = model
        self.end = begin
        self._sizes = list(model.boundary(begin))
        self._at = list(range(len(self._sizes)))
        self.inputs = sum(self._sizes)
        self._saved = set(self._at)
        self.parameters = 0
        self.kept = self.inputs

    def grow(self) -> None:
        """Takes the next layer in."""
        layer = self._model.layers[self.end]
        self.end += 1
        self.parameters += layer.parameters
        self._take(layer)

    def stage(self) -> StageMemory:
        """The stage as it is now; with the last layer it has the loss and the targets."""
        if self.end < len(self._model.layers):
            outputs = sum(self._sizes[number] for number in set(self._at) - self._saved)
            return StageMemory(self.parameters, self.inputs, self.kept + outputs)
        targets = self._model.targets
        kept = self.kept
        if self._model.loss is not None:
            loss = self._model.loss
            read = {number for number, saved in zip(self._at, loss.saved_inputs, strict=False) if saved}
            kept += loss.internal + sum(self._sizes[number] for number in read - self._saved)
        return StageMemory(self.parameters, self.inputs + targets, kept + targets)

    def _take(self, layer: LayerMemory) -> None:
        self.kept += layer.internal
        for number, saved in zip(self._at, layer.saved_inputs, strict=True):
            if saved:
                self._keep(number)
        after = []
        for output in layer.outputs:
            if output.passes is not None:
                after.append(self._at[output.passes])
            else:
                self._sizes.append(output.size)
                after.append(len(self._sizes) - 1)
            if output.saved:
                self._keep(after[-1])
        self._at = after

    def _keep(self, number: int) -> None:
        if number not in self._saved:
            self._saved.add(number)
            self.kept += self._sizes[number]


def bytes_per_parameter(optimizer: str, *, size: int = 4, gradients: bool = False) -> int:
    """Bytes that a parameter takes with its optimizer's states: 12 for RMSProp with momentum, as in Table 1.

    Args:
        optimizer: a key of ``OPTIMIZER_STATES``.
        size: bytes of one number.
        gradients: count the gradient as well (the paper does not).

    Raises:
        UserError: the optimizer is unknown.
    """
    if optimizer not in OPTIMIZER_STATES:
        raise UserError(f"optimizer {optimizer!r} is unknown here; choose one of {', '.join(OPTIMIZER_STATES)}")
    return size * (1 + OPTIMIZER_STATES[optimizer] + int(gradients))


def live_sets(schedule: Schedule) -> tuple[LiveSet, ...]:
    """For every rank, the states of its micro-batches in which it can hold most.

    A micro-batch whose R is to come waits from F to R: the rank holds its input. It is live from R, or from F where
    there is no R, to the end of B (of W where the backward is split). States that hold no more of anything than
    another one are left out.
    """
    return tuple(_live_set(schedule, rank) for rank in range(len(schedule.actions)))


def peak_bytes(live: Sequence[LiveSet], stages: Sequence[StageMemory] | Mapping[int, StageMemory]) -> list[int]:
    """For every rank, the largest number of bytes that it holds of its micro-batches at a time.

    Args:
        live: from ``live_sets``.
        stages: by number, K x V of them where ``live`` has all ranks.
    """
    return [
        max(
            sum(waiting * stages[stage].inputs + alive * stages[stage].held for stage, waiting, alive in state)
            for state in rank
        )
        for rank in live
    ]


def _live_set(schedule: Schedule, rank: int) -> LiveSet:
    actions = schedule.actions[rank]
    recomputed = {(stage, micro_batch) for kind, stage, micro_batch in actions if kind is Kind.RECOMPUTE}
    split = {(stage, micro_batch) for kind, stage, micro_batch in actions if kind is Kind.WEIGHT_GRADIENT}
    held = {stage: [0, 0] for _, stage, _ in actions}
    largest: list[_State] = []
    for kind, stage, micro_batch in actions:
        counts = held[stage]
        if kind is Kind.FORWARD:
            counts[0 if (stage, micro_batch) in recomputed else 1] += 1
        elif kind is Kind.RECOMPUTE:
            counts[0] -= 1
            counts[1] += 1
        elif kind is Kind.WEIGHT_GRADIENT or (kind is Kind.BACKWARD and (stage, micro_batch) not in split):
            # What a rank holds only grows from one of these to the next, so it is largest just before them.
            _note(largest, tuple((stage, waiting, live) for stage, (waiting, live) in held.items()))
            counts[1] -= 1
    _note(largest, tuple((stage, waiting, live) for stage, (waiting, live) in held.items()))
    return tuple(largest)


def _note(largest: list[_State], state: _State) -> None:
    if not any(_holds_as_much(other, state) for other in largest):
        largest[:] = [other for other in largest if not _holds_as_much(state, other)] + [state]


def _holds_as_much(one: _State, other: _State) -> bool:
    """Whether ``one`` holds at least as much of everything; a live micro-batch holds all that a waiting one does."""
    return all(a[2] >= b[2] and a[1] + a[2] >= b[1] + b[2] for a, b in zip(one, other, strict=True))
