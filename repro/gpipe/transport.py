"""What carries activations and gradients from stage to stage: within a process, and between processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from repro.schedules import Direction, Message, Schedule, incoming, receive_windows

from .mesh import PipelineMesh
from .microbatch import BatchError, Boundary, elements, like
from .stage import InputGradient
from .tracing import Recorder
from .wire import (
    BoundarySpec,
    Sender,
    absent_like,
    as_bytes,
    empty_frames,
    is_absent,
    receive_object,
    spec_of,
    talking_to,
)

_AHEAD = 2
"""Receives that are always posted beyond the one that is needed now, so that messages arrive during arithmetic."""


class LocalTransport:
    """Hands messages over within one process.

    Args:
        devices: the device of every stage.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._rows: tuple[int, ...] = ()
        self._activations: dict[tuple[int, int], Boundary] = {}
        self._gradients: dict[tuple[int, int], tuple[Tensor | None, ...]] = {}
        self._specs: dict[int, tuple[int, BoundarySpec]] = {}

    def begin(self, schedule: Schedule, rows: tuple[int, ...], recorder: Recorder) -> None:
        """Starts a step of micro-batches with these ``rows``."""
        self._rows = rows
        self.forget()

    def send_activation(self, message: Message, boundary: Boundary, requires_grad: tuple[bool, ...]) -> None:
        """Hands the output of ``message.source_stage`` on; ``requires_grad`` says which elements want a gradient."""
        self._check(message, spec_of(boundary, requires_grad))
        device = self._devices[message.target_stage]
        self._activations[message.target_stage, message.micro_batch] = like(
            boundary,
            [
                None if e is None else e.detach().to(device, non_blocking=True).requires_grad_(flag)
                for e, flag in zip(elements(boundary), requires_grad, strict=True)
            ],
        )

    def receive_activation(self, message: Message) -> Boundary:
        """The input of ``message.target_stage``, detached."""
        return self._activations.pop((message.target_stage, message.micro_batch))

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


@dataclass
class _Posted:
    """Receives under way for one message."""

    works: list[dist.Work]
    values: tuple[Tensor | None, ...]
    spec: BoundarySpec


class _Inbox:
    """The messages from one peer in one direction of travel, in the order in which they are sent."""

    def __init__(self, source: int, group: dist.ProcessGroup, messages: tuple[Message, ...]) -> None:
        self.source = source
        self.group = group
        self.unposted = deque(messages)
        self.count = 0
        self.posted: dict[Message, _Posted] = {}

    def post(self, spec: BoundarySpec, device: torch.device) -> None:
        """Posts the receives of the next message."""
        buffers, tensors = empty_frames(spec.tensors, device)
        works: list[dist.Work] = []
        for buffer in buffers:
            with talking_to(self.source):
                work = dist.irecv(as_bytes(buffer), src=self.source, group=self.group)
            assert work is not None
            works.append(work)
        self.count += 1
        self.posted[self.unposted.popleft()] = _Posted(works, elements(spec.assemble(tensors)), spec)


class ProcessTransport(LocalTransport):
    """Carries messages between the ranks of a pipeline with ``torch.distributed``; within a rank they stay local.

    Each edge sends one header with the first micro-batch of a step, and again when the rows of a micro-batch change.
    The receiver posts its receives in the sender's order and ahead of need, see ``receive_windows``.

    Args:
        mesh: ranks and groups.
        device: this rank's device.
        total_stages: K x V.
        sender: keeps what is under way alive.
    """

    def __init__(self, mesh: PipelineMesh, device: torch.device, total_stages: int, sender: Sender) -> None:
        super().__init__([device] * total_stages)
        self._mesh = mesh
        self._device = device
        self._sender = sender
        self._recorder = Recorder()
        self._runs_on: tuple[int, ...] = ()
        self._inboxes: dict[tuple[int, str], _Inbox] = {}
        self._schedule: Schedule | None = None
        self._channels: dict[tuple[int, Direction], tuple[Message, ...]] = {}
        self._windows: dict[Message, int] = {}
        self._headers: dict[int, tuple[int, BoundarySpec]] = {}
        self._wanted: dict[tuple[int, int], BoundarySpec] = {}

    @override
    def begin(self, schedule: Schedule, rows: tuple[int, ...], recorder: Recorder) -> None:
        super().begin(schedule, rows, recorder)
        self._recorder = recorder
        self._runs_on = tuple(ranks[0] for ranks in schedule.placement)
        if schedule is not self._schedule:
            self._schedule = schedule
            self._channels = incoming(schedule, self._mesh.pipeline_rank)
            self._windows = receive_windows(schedule, self._mesh.pipeline_rank, _AHEAD)
        groups = {"activation": self._mesh.activations, "gradient": self._mesh.gradients}
        self._inboxes = {
            (source, direction): _Inbox(self._mesh.rank_of(source), groups[direction], messages)
            for (source, direction), messages in self._channels.items()
        }

    @override
    def send_activation(self, message: Message, boundary: Boundary, requires_grad: tuple[bool, ...]) -> None:
        target = self._runs_on[message.target_stage]
        if target == self._mesh.pipeline_rank:
            return super().send_activation(message, boundary, requires_grad)
        spec = spec_of(boundary, requires_grad)
        if self._check(message, spec):
            self._sender.send_object(spec, self._mesh.rank_of(target), self._mesh.control)
        wanted = tuple(e if e is not None and e.requires_grad else None for e in spec.elements)
        self._wanted[message.source_stage, message.micro_batch] = BoundarySpec(True, wanted)
        with self._recorder.sending(self._mesh.pipeline_rank, message) as carried:
            carried.tensors = elements(boundary)
            self._sender.send_tensors(carried.tensors, self._mesh.rank_of(target), self._mesh.activations)

    @override
    def receive_activation(self, message: Message) -> Boundary:
        source = self._runs_on[message.source_stage]
        if source == self._mesh.pipeline_rank:
            return super().receive_activation(message)
        received = self._take(self._inboxes[source, message.direction], message)
        for value, element in zip(received.values, received.spec.elements, strict=True):
            if value is not None and element is not None:
                value.requires_grad_(element.requires_grad)
        return received.values if received.spec.is_tuple else next(v for v in received.values if v is not None)

    @override
    def send_gradient(self, message: Message, gradients: tuple[InputGradient | None, ...]) -> None:
        target = self._runs_on[message.target_stage]
        if target == self._mesh.pipeline_rank:
            return super().send_gradient(message, gradients)
        wanted = [pair for pair in gradients if pair is not None]
        filled = [absent_like(value) if gradient is None else gradient for value, gradient in wanted]
        with self._recorder.sending(self._mesh.pipeline_rank, message) as carried:
            carried.tensors = filled
            self._sender.send_tensors(filled, self._mesh.rank_of(target), self._mesh.gradients)

    @override
    def receive_gradient(self, message: Message) -> tuple[Tensor | None, ...]:
        source = self._runs_on[message.source_stage]
        if source == self._mesh.pipeline_rank:
            return super().receive_gradient(message)
        received = self._take(self._inboxes[source, message.direction], message)
        del self._wanted[message.target_stage, message.micro_batch]
        return tuple(None if value is None or is_absent(value) else value for value in received.values)

    @override
    def finish(self) -> None:
        """Ends the step: everything that was sent has arrived."""
        self._sender.drain()

    @override
    def forget(self) -> None:
        super().forget()
        self._inboxes = {}
        self._headers.clear()
        self._wanted.clear()

    def _take(self, inbox: _Inbox, message: Message) -> _Posted:
        with self._recorder.receiving(self._mesh.pipeline_rank, message) as carried:
            while message not in inbox.posted:
                spec = self._spec(inbox.unposted[0], may_wait=True)
                assert spec is not None
                inbox.post(spec, self._device)
            received = inbox.posted.pop(message)
            while inbox.unposted and inbox.count < self._windows[message]:
                spec = self._spec(inbox.unposted[0], may_wait=False)
                if spec is None:
                    break
                inbox.post(spec, self._device)
            with talking_to(inbox.source):
                for work in received.works:
                    work.wait()
            carried.tensors = received.values
        return received

    def _spec(self, message: Message, *, may_wait: bool) -> BoundarySpec | None:
        """What the next message of a channel holds; None where only a header that has to be waited for could tell."""
        if message.direction == "gradient":
            return self._wanted.get((message.target_stage, message.micro_batch))
        rows = self._rows[message.micro_batch]
        known = self._headers.get(message.source_stage)
        if known is not None and known[0] == rows:
            return known[1]
        if not may_wait:
            return None
        source = self._mesh.rank_of(self._runs_on[message.source_stage])
        spec: BoundarySpec = receive_object(source, self._mesh.control)
        self._headers[message.source_stage] = (rows, spec)
        return spec
