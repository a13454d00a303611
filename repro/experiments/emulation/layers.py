"""Emulated layers: modules of the real engine whose arithmetic is a timed wait, and links that delay what they carry.

A wait leaves the core to the other processes, so two cores run the real processes, schedule, re-materialization and
messages of eight stages. What is emulated is how long layers and links take, nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from repro.gpipe import is_recomputing

from ..costs.link import Link
from ..sweeps.timers import wait_until


@dataclass
class Pace:
    """The emulated device of a process: how fast it is, and until when it is busy.

    As on a real accelerator, what is launched runs one after the other, and the process goes on until it waits for all
    of it (``join``).

    Attributes:
        factor: seconds waited for each second that a layer or a link takes; 0 takes all waits out, for a step that
            warms up.
        free: when the last layer that was launched ends, seconds of ``time.perf_counter``.
    """

    factor: float = 1.0
    free: float = 0.0

    def launch(self, seconds: float) -> None:
        """Gives the device something to do that takes so long."""
        self.free = max(self.free, time.perf_counter()) + seconds * self.factor

    def join(self) -> None:
        """Waits until the device has done everything."""
        wait_until(self.free)


class TimedLayer(nn.Module):
    """A layer that hands its input on, and takes as long over it as it is told.

    As in a profile of real layers, F lasts until the call of the layer returns, and B until autograd's pass is over:
    what both take in PyTorch itself runs meanwhile.

    Its only parameter has no element and gets no gradient; it is there so that B has something to do on the first
    stage, as in a real model. Nothing is waited for on the meta device.

    Args:
        forward: seconds a row (dimension 0 of the input) in F and in R.
        backward: seconds a row in B.
        pace: shared by the layers of a process.
        joins_forward: whether F is over when ``forward`` returns; inside a stage the next layer need not wait for it.
        joins_backward: likewise whether B is over when autograd's pass is.
    """

    def __init__(
        self,
        forward: float,
        backward: float,
        pace: Pace | None = None,
        *,
        joins_forward: bool = True,
        joins_backward: bool = True,
    ) -> None:
        super().__init__()
        self.forward_seconds = forward
        self.backward_seconds = backward
        self.pace = pace or Pace()
        self.joins_forward = joins_forward
        self.joins_backward = joins_backward
        self.parameter = nn.Parameter(torch.empty(0))

    def forward(self, value: Tensor) -> Tensor:
        """Any tensor to the same tensor."""
        launched = self._launch(self.forward_seconds, value)
        passed: Tensor = _Timed.apply(value, self.parameter, self)
        if launched and self.joins_forward:
            self.pace.join()
        return passed

    def take_backward(self, gradient: Tensor) -> None:
        """Takes the time of B."""
        if self._launch(self.backward_seconds, gradient) and self.joins_backward:
            Variable._execution_engine.queue_callback(self.pace.join)

    def _launch(self, seconds: float, value: Tensor) -> bool:
        """Gives the device ``seconds`` to do for each row of ``value``; False where it is none."""
        if value.is_meta:
            return False
        self.pace.launch(seconds * value.shape[0])
        return True


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, parameter: Tensor, layer: TimedLayer) -> Tensor:
        ctx.layer = layer
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        ctx.layer.take_backward(gradient)
        return gradient, None, None


def equal_stage(forward: float, backward: float) -> TimedLayer:
    """One of K equal stages of a single layer: t_F and t_B seconds of a micro-batch of one row.

    It runs wherever a module does: as a layer of ``repro.gpipe.Engine`` (``{rank: stage}``, ``partition=[1] * K``), in
    a ``torch.distributed.pipelining.PipelineStage``, in a loop by hand.
    """
    return TimedLayer(forward, backward)


def boundary_rows(num_rows: int, nbytes: int) -> Tensor:
    """A mini-batch of float32 rows of ``nbytes`` each: what every boundary of emulated stages carries, really.

    Raises:
        ValueError: ``nbytes`` is no multiple of 4.
    """
    width, rest = divmod(nbytes, 4)
    if rest or width < 1:
        raise ValueError(f"nbytes={nbytes} is no whole number of float32 values")
    return torch.zeros(num_rows, width)


def sum_of_outputs(outputs: Any, targets: Any) -> tuple[Tensor, int]:
    """The loss of an emulated model, ``(sum, count)``: next to nothing to compute, and a gradient for each output."""
    return outputs.sum(), len(targets)


class Outlet(nn.Module):
    """Where a boundary leaves a stage: charges the link and sends the time of arrival along; in B waits for it.

    A charge delays what is sent and not the sender. R sends nothing, so it is not charged.

    Args:
        link: of this edge; its two directions do not disturb each other.
        row_bytes: bytes of the real boundary a row.
        pace: shared by the layers and links of a process.
    """

    def __init__(self, link: Link, row_bytes: float, pace: Pace) -> None:
        super().__init__()
        self.channel = _Channel(link, row_bytes, pace)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor to the tensor and the moment of its arrival, seconds of the machine's monotonic clock."""
        sent: tuple[Tensor, Tensor] = _Leave.apply(value, self.channel)
        return sent


class Inlet(nn.Module):
    """Where a boundary enters the next stage: waits for its arrival; in B charges the link for the gradient.

    Arguments as for ``Outlet``.
    """

    def __init__(self, link: Link, row_bytes: float, pace: Pace) -> None:
        super().__init__()
        self.channel = _Channel(link, row_bytes, pace)

    def forward(self, boundary: tuple[Tensor, Tensor]) -> Tensor:
        """What ``Outlet`` made, to the tensor."""
        value, arrival = boundary
        received: Tensor = _Arrive.apply(value, arrival, self.channel)
        return received


class _Channel:
    """One direction of a link between two stages: one message after the other, as on a real wire."""

    def __init__(self, link: Link, row_bytes: float, pace: Pace) -> None:
        self._link = link
        self._row_bytes = row_bytes
        self._pace = pace
        self._free = 0.0

    def charge(self, value: Tensor) -> float:
        """When a message with the rows of ``value`` arrives that is sent now."""
        factor = self._pace.factor
        # What is sent is there when the device has done what it was given.
        begun = max(self._free, self._pace.free, time.perf_counter())
        self._free = begun + factor * self._link.occupancy(self._row_bytes * value.shape[0])
        return self._free + factor * self._link.latency


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, channel: _Channel) -> tuple[Tensor, Tensor]:
        arrival = 0.0 if is_recomputing() else channel.charge(value)
        return value.detach(), torch.tensor([arrival], dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient, arrival = gradients
        wait_until(arrival.item())
        return gradient, None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, arrival: Tensor, channel: _Channel) -> Tensor:
        ctx.channel = channel
        wait_until(arrival.item())
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        arrival = ctx.channel.charge(gradient)
        # The gradient of the time of arrival is a time of arrival: the gradient's own.
        return gradient, torch.tensor([arrival], dtype=torch.float64), None


def emulated_stage(
    stage: int,
    counts: Sequence[int],
    forward: Sequence[float],
    backward: Sequence[float],
    boundary_bytes: Sequence[float],
    link: Link,
    pace: Pace,
) -> dict[int, nn.Module]:
    """The layers of one stage by global index, for ``Engine``: timed ones, with the ends of its links around them.

    The process waits for its layers at the end of each action, where a message leaves or the loss is taken, and not
    after each of them: so a wait that ends late makes an action late once.

    Args:
        stage: its number.
        counts: layers of every stage.
        forward: seconds a row of F of every layer of the model.
        backward: likewise of B.
        boundary_bytes: bytes a row of what every layer hands on.
        link: between any two neighbours.
        pace: shared by the layers and links of a process.
    """
    begin = sum(counts[:stage])
    end = begin + counts[stage]
    layers: dict[int, nn.Module] = {
        index: TimedLayer(
            forward[index],
            backward[index],
            pace,
            joins_forward=index == end - 1,
            joins_backward=index == begin,
        )
        for index in range(begin, end)
    }
    if stage > 0:
        layers[begin] = nn.Sequential(Inlet(link, boundary_bytes[begin - 1], pace), layers[begin])
    if stage < len(counts) - 1:
        layers[end - 1] = nn.Sequential(layers[end - 1], Outlet(link, boundary_bytes[end - 1], pace))
    return layers
