"""What carries activations and gradients from stage to stage within a process."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from repro.errors import UserError
from repro.schedules import Message, Schedule

from .microbatch import CHANGED, BatchError, Boundary, changes_of, elements, like
from .stage import InputGradient
from .tracing import Recorder
from .wire import BoundarySpec, spec_of


class LocalTransport:
    """Hands messages over within one process.

    Args:
        devices: the device of every stage.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._rows: tuple[int, ...] = ()
        self._activations: dict[tuple[int, int], tuple[Boundary, tuple[int, ...]]] = {}
        self._gradients: dict[tuple[int, int], tuple[Tensor | None, ...]] = {}
        self._specs: dict[int, tuple[int, BoundarySpec]] = {}

    def begin(self, schedule: Schedule, rows: tuple[int, ...], recorder: Recorder, resembles: Hashable = None) -> None:
        """Starts a step of micro-batches with these ``rows``.

        Args:
            schedule: what is run.
            rows: of each micro-batch.
            recorder: notes what is sent and received.
            resembles: equal for two steps whose messages should have the same dtypes and shapes.
        """
        self._rows = rows

    def send_activation(self, message: Message, boundary: Boundary, requires_grad: tuple[bool, ...]) -> None:
        """Hands the output of ``message.source_stage`` on; ``requires_grad`` says which elements want a gradient."""
        self._check(message, spec_of(boundary, requires_grad))
        device = self._devices[message.target_stage]
        handed_on = like(
            boundary,
            [
                None if e is None else _handed_on(e).to(device, non_blocking=True).requires_grad_(flag)
                for e, flag in zip(elements(boundary), requires_grad, strict=True)
            ],
        )
        self._activations[message.target_stage, message.micro_batch] = handed_on, changes_of(handed_on)

    def coming_activation(self, message: Message) -> Boundary | None:
        """What ``receive_activation`` is going to return, before its values are there; None where that is not known."""
        return None

    def receive_activation(self, message: Message) -> Boundary:
        """The input of ``message.target_stage``, detached."""
        boundary, changed = self._activations.pop((message.target_stage, message.micro_batch))
        if changes_of(boundary) != changed:
            raise UserError(CHANGED)
        return boundary

    def send_gradient(self, message: Message, gradients: tuple[InputGradient | None, ...]) -> None:
        """Hands the gradients of the input of ``message.source_stage`` back."""
        device = self._devices[message.target_stage]
        self._gradients[message.target_stage, message.micro_batch] = tuple(
            None if pair is None or pair[1] is None else pair[1].to(device, non_blocking=True) for pair in gradients
        )

    def receive_gradient(self, message: Message) -> tuple[Tensor | None, ...]:
        """The gradients of the output of ``message.target_stage``, None for elements that want or have none."""
        return self._gradients.pop((message.target_stage, message.micro_batch))

    def finish(self) -> None:
        """Ends the step; every message has been received then."""

    def forget(self) -> None:
        """Drops all messages."""
        self._activations.clear()
        self._gradients.clear()
        self._specs.clear()

    def _check(self, message: Message, spec: BoundarySpec) -> bool:
        """Whether a header is due.

        Raises:
            BatchError: micro-batches of equal rows left the stage with different shapes or dtypes.
        """
        rows = self._rows[message.micro_batch]
        before = self._specs.get(message.source_stage)
        self._specs[message.source_stage] = (rows, spec)
        if before is None or before[0] != rows:
            return True
        if before[1] != spec:
            raise BatchError(
                f"stage {message.source_stage} made {spec} of micro-batch {message.micro_batch} ({rows} rows), but "
                f"{before[1]} "
                "of the micro-batch before, which has as many rows; within a step all micro-batches of equal rows must "
                "leave a stage with the same shapes and dtypes (pad to the batch's longest row, not the micro-batch's)"
            )
        return False


def _handed_on(output: Tensor) -> Tensor:
    """The values of an output; a parameter that is one gets a copy, since the next layer may work in place."""
    base = output._base if output._is_view() else output
    is_parameter = base is not None and base.is_leaf and base.requires_grad
    return output.detach().clone() if is_parameter else output.detach()
