"""Which traced steps the targets breakdown, bubble and figure2 run: plain numbers, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.errors import UserError

from ..costs.full_models import FullModel
from ..costs.scaled_down import SmallModel
from ..costs.workload import Workload


@dataclass(frozen=True)
class EqualWaits:
    """Emulated: one layer a stage, all alike, whose arithmetic is a timed wait.

    Attributes:
        forward: seconds of a row in F; R takes as long.
        backward: seconds of a row in B.
    """

    forward: float
    backward: float

    @property
    def label(self) -> str:
        """For rows."""
        return f"equal stages of timed waits ({1000 * self.forward:g} and {1000 * self.backward:g} ms a row)"


@dataclass(frozen=True)
class WaitsOf:
    """Emulated: the layers of a full-size model as timed waits in proportion to their FLOPs, links free.

    Attributes:
        model: the model.
        seconds: F and B of all layers together, for a whole mini-batch.
    """

    model: FullModel
    seconds: float

    @property
    def label(self) -> str:
        """For rows."""
        return f"{self.model.name}, FLOPs as timed waits"


Model = EqualWaits | WaitsOf | SmallModel | Workload


@dataclass(frozen=True)
class StepCell:
    """One way of running the mini-batch.

    Attributes:
        num_micro_batches: M.
        rows: of a micro-batch.
        remat: which micro-batches are recomputed.
    """

    num_micro_batches: int
    rows: int
    remat: str

    @property
    def batch_size(self) -> int:
        """Rows of the mini-batch."""
        return self.num_micro_batches * self.rows


@dataclass(frozen=True)
class StepPlan:
    """Traced steps of one model on K processes.

    Attributes:
        model: what runs.
        num_stages: K.
        cells: run one after the other.
        steps: of each cell, traced.
        warm_up: steps of each cell before.
        keep: whether the actions and messages of a step are kept.
        memory: whether live activations are measured, in a step of their own.
        device: ``cpu``, or the GPUs of the ranks: ``cuda:0,cuda:1``.
    """

    model: Model
    num_stages: int
    cells: tuple[StepCell, ...]
    steps: int
    warm_up: int = 1
    keep: bool = False
    memory: bool = False
    device: str = "cpu"

    @property
    def emulated(self) -> bool:
        """Whether arithmetic is replaced by waits."""
        return isinstance(self.model, EqualWaits | WaitsOf)


def label_of(model: Model) -> str:
    """The name of a model in rows."""
    if isinstance(model, Workload):
        return f"{model.num_layers} Transformer layers ({model.d_model}, {model.d_ff}, {model.num_heads})"
    return model.label


def can_measure(num_stages: int, device: str, cores: int | None) -> str | None:
    """None where each of K stages can have a core or GPU of its own; else why not, in words."""
    if device != "cpu":
        count = len(device.split(","))
        return None if num_stages <= count else f"K = {num_stages} stages need as many GPUs; --devices names {count}"
    if cores is not None and num_stages > cores:
        return f"K = {num_stages} stages need a core each; this machine has {cores}"
    return None


def check_pipeline(num_stages: Sequence[int] | None) -> None:
    """Checks the numbers of stages that a user gave.

    Raises:
        UserError: a single stage, which has no bubble and no messages.
    """
    for number in num_stages or ():
        if number < 2:
            raise UserError(f"-K {number}: a trace of a pipeline needs at least 2 stages")
