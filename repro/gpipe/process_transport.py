"""What carries activations and gradients from stage to stage between processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from repro.schedules import Direction, Message, Schedule, incoming, receive_windows

from .headers import Expectations, Place
from .mesh import PipelineMesh
from .microbatch import Boundary, elements
from .sender import Sender
from .stage import InputGradient
from .tracing import Recorder
from .transport import LocalTransport
from .wire import (
    AbsenceMark,
    BoundarySpec,
    Peer,
    TensorSpec,
    absent,
    empty_frames,
    gradient_spec,
    spec_of,
    start_receive,
    wait_for,
)

_AHEAD = 2
"""Receives that are always posted beyond the one that is needed now, so that messages arrive during arithmetic."""


@dataclass
class _Posted:
    """Receives under way for one message.

    ``place`` is set where its header was foreseen, ``due`` where it might have been foreseen wrongly; ``marks`` are
    those of the values that may be absent.
    """

    works: list[dist.Work]
    values: tuple[Tensor | None, ...]
    spec: BoundarySpec
    place: Place | None = None
    due: bool = False
    marks: tuple[AbsenceMark | None, ...] = ()

    @property
    def boundary(self) -> Boundary:
        """What the stage is given."""
        if self.spec.is_tuple:
            return self.values
        (value,) = self.values
        assert value is not None
        return value


class _Inbox:
    """The messages from one peer in one direction of travel, in the order in which they are sent."""

    def __init__(self, source: Peer, messages: tuple[Message, ...]) -> None:
        self.source = source
        self._messages = messages
        self.restart()

    def restart(self) -> None:
        """Nothing is posted, as at the start of a step."""
        self.unposted = deque(self._messages)
        self.count = 0
        self.posted: dict[Message, _Posted] = {}
        self.foreseen: deque[_Posted] = deque()

    def post(self, spec: BoundarySpec, device: torch.device, place: Place | None = None, *, due: bool = False) -> None:
        """Posts the receives of the next message."""
        buffers, tensors = empty_frames(spec.tensors, device)
        works = [start_receive(buffer, self.source) for buffer in buffers]
        self.count += 1
        message = self.unposted.popleft()
        posted = _Posted(works, elements(spec.assemble(tensors)), spec, place, due)
        if message.direction == "gradient":
            posted.marks = tuple(None if value is None else AbsenceMark(value) for value in posted.values)
        else:
            if due and place is not None:
                pairs = zip(posted.values, spec.elements, strict=True)
                tells = next(value for value, e in pairs if value is not None and e is not None and e.tells_absence)
                posted.marks = (AbsenceMark(tells),)
            _collecting(posted.values, spec)
        self.posted[message] = posted
        if place is not None:
            self.foreseen.append(posted)

    def wait(self, posted: _Posted) -> None:
        """Waits until the message is there."""
        wait_for(posted.works, self.source)


class ProcessTransport(LocalTransport):
    """Carries messages between the ranks of a pipeline with ``torch.distributed``; within a rank they stay local.

    Each edge sends one header with the first micro-batch of a step, and again when the rows of a micro-batch change,
    unless the receiver could foresee it. Where it was foreseen wrongly, what the receiver expects is sent as absent,
    and after it the real tensors with the header.
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
        self._windows: dict[Message, int] = {}
        self._headers: dict[int, tuple[int, BoundarySpec]] = {}
        self._expectations = Expectations()
        self._detours: set[Place] = set()
        self._wanted: dict[tuple[int, int], BoundarySpec] = {}

    @override
    def begin(self, schedule: Schedule, rows: tuple[int, ...], recorder: Recorder, resembles: Hashable = None) -> None:
        super().begin(schedule, rows, recorder)
        self._expectations.begin(resembles)
        self._recorder = recorder
        self._headers, self._detours, self._wanted = {}, set(), {}
        if schedule is not self._schedule:
            self._schedule = schedule
            self._runs_on = tuple(ranks[0] for ranks in schedule.placement)
            self._windows = receive_windows(schedule, self._mesh.pipeline_rank, _AHEAD)
            mesh, here = self._mesh, self._mesh.pipeline_rank
            self._inboxes = {
                (source, direction): _Inbox(
                    Peer.of(mesh.rank_of(source), mesh.channel(direction, source, here)), messages
                )
                for (source, direction), messages in incoming(schedule, here).items()
            }
        for inbox in self._inboxes.values():
            inbox.restart()
            self._post_ahead(inbox, inbox.unposted[0])

    @override
    def send_activation(self, message: Message, boundary: Boundary, requires_grad: tuple[bool, ...]) -> None:
        target = self._runs_on[message.target_stage]
        if target == self._mesh.pipeline_rank:
            return super().send_activation(message, boundary, requires_grad)
        spec = spec_of(boundary, requires_grad)
        place = Place(message.source_stage, self._rows[message.micro_batch])
        expected, due = self._expectations.get(place), self._check(message, spec)
        peer, control = self._mesh.rank_of(target), self._mesh.control
        if due:
            self._expectations.learn(place, spec)
            if expected is None:
                self._sender.send_object(spec, peer, control)
            elif expected != spec:
                self._detours.add(place)
        values, follows = elements(boundary), None
        if place in self._detours:
            assert expected is not None
            follows = (spec, tuple(None if e is None else e.detach().cpu().clone() for e in values))
            values = tuple(absent(e, self._device) for e in expected.tensors)
        with self._recorder.sending(self._mesh.pipeline_rank, message) as carried:
            carried.note(values)
            self._sender.send_tensors(values, peer, self._channel(message.direction, target))
        if follows is not None:
            self._sender.send_object(follows, peer, control)
        self._wanted[message.source_stage, message.micro_batch] = gradient_spec(spec)

    @override
    def coming_activation(self, message: Message) -> Boundary | None:
        source = self._runs_on[message.source_stage]
        if source == self._mesh.pipeline_rank:
            return None
        posted = self._inboxes[source, message.direction].posted.get(message)
        return None if posted is None else posted.boundary

    @override
    def receive_activation(self, message: Message) -> Boundary:
        source = self._runs_on[message.source_stage]
        if source == self._mesh.pipeline_rank:
            return super().receive_activation(message)
        return self._take(self._inboxes[source, message.direction], message).boundary

    @override
    def send_gradient(self, message: Message, gradients: tuple[InputGradient | None, ...]) -> None:
        target = self._runs_on[message.target_stage]
        if target == self._mesh.pipeline_rank:
            return super().send_gradient(message, gradients)
        wanted = [pair for pair in gradients if pair is not None]
        filled = [
            absent(TensorSpec(value.dtype, tuple(value.shape), False), self._device) if gradient is None else gradient
            for value, gradient in wanted
        ]
        with self._recorder.sending(self._mesh.pipeline_rank, message) as carried:
            carried.note(filled)
            self._sender.send_tensors(filled, self._mesh.rank_of(target), self._channel(message.direction, target))

    @override
    def receive_gradient(self, message: Message) -> tuple[Tensor | None, ...]:
        source = self._runs_on[message.source_stage]
        if source == self._mesh.pipeline_rank:
            return super().receive_gradient(message)
        received = self._take(self._inboxes[source, message.direction], message)
        pairs = zip(received.values, received.marks, strict=True)
        return tuple(None if mark is None or mark.is_set() else value for value, mark in pairs)

    @override
    def finish(self) -> None:
        """Ends the step: everything that was sent has arrived."""
        self._sender.drain()

    def _channel(self, direction: Direction, target: int) -> dist.ProcessGroup:
        return self._mesh.channel(direction, self._mesh.pipeline_rank, target)

    def _take(self, inbox: _Inbox, message: Message) -> _Posted:
        with self._recorder.receiving(self._mesh.pipeline_rank, message) as carried:
            while message not in inbox.posted:
                self._post(inbox, may_wait=True)
            received = inbox.posted.pop(message)
            self._post_ahead(inbox, message)
            inbox.wait(received)
            self._confirm(inbox, received)
            carried.note(received.values)
        return received

    def _post_ahead(self, inbox: _Inbox, message: Message) -> None:
        """Posts what may be on its way when ``message`` is waited for."""
        while inbox.unposted and inbox.count < self._windows[message] and self._post(inbox, may_wait=False):
            pass

    def _post(self, inbox: _Inbox, *, may_wait: bool) -> bool:
        """Posts the next message of a channel; False where only a header that has to be waited for tells its size."""
        message = inbox.unposted[0]
        if message.direction == "gradient":
            wanted = self._wanted.pop((message.target_stage, message.micro_batch), None)
            if wanted is not None:
                inbox.post(wanted, self._device)
            return wanted is not None
        place = Place(message.source_stage, self._rows[message.micro_batch])
        expected = self._expectations.get(place)
        rows, spec = self._headers.get(place.stage, (None, None))
        due = rows != place.rows
        if due:
            if expected is None and not may_wait:
                return False
            if expected is None:
                spec = self._mesh.mail.receive(inbox.source.rank)
                self._expectations.learn(place, spec)
            else:
                spec = expected
            self._headers[place.stage] = (place.rows, spec)
        assert spec is not None
        inbox.post(spec, self._device, None if expected is None else place, due=due)
        return True

    def _confirm(self, inbox: _Inbox, received: _Posted) -> None:
        """Sees whether foreseen messages are what was expected, in the sender's order, up to ``received``."""
        while received.place is not None:
            posted = inbox.foreseen.popleft()
            place = posted.place
            assert place is not None
            inbox.wait(posted)
            if place in self._detours or (posted.due and _is_marked(posted)):
                posted.spec, values = self._mesh.mail.receive(inbox.source.rank)
                posted.values = tuple(None if e is None else e.to(self._device) for e in values)
                _collecting(posted.values, posted.spec)
                self._detours.add(place)
            if posted.due:
                self._expectations.learn(place, posted.spec)
            posted.place = None


def _collecting(values: tuple[Tensor | None, ...], spec: BoundarySpec) -> None:
    """Has the inputs of a stage collect their gradients where one will be sent back."""
    for value, element in zip(values, spec.elements, strict=True):
        if value is not None and element is not None:
            value.requires_grad_(element.requires_grad)


def _is_marked(posted: _Posted) -> bool:
    return any(mark is not None and mark.is_set() for mark in posted.marks)
