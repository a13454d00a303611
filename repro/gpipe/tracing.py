"""When each action and each message ran: the recorder of one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

import torch
from typing_extensions import override

from repro.schedules import Action, Kind, Message


@dataclass(frozen=True)
class Event:
    """One action as it ran.

    Attributes:
        rank: pipeline rank.
        kind: ``"F"``, ``"R"``, ``"B"``, ...
        waited: seconds spent waiting for the action's messages before ``start``.
        start: seconds of the machine's monotonic clock (one clock for all processes of a machine).
        end: likewise; the arithmetic has ended then, on a GPU too.
    """

    rank: int
    kind: str
    stage: int
    micro_batch: int
    waited: float
    start: float
    end: float

    def as_dict(self) -> dict[str, object]:
        """Plain data, for files and messages."""
        return asdict(self)


@dataclass(frozen=True)
class Transfer:
    """One side of a message between two ranks.

    A message is under way from the ``start`` of its send to the ``end`` of its receive at the latest: what arrives
    during arithmetic is noticed only when it is asked for.

    Attributes:
        rank: pipeline rank that recorded this side.
        side: ``"send"``, from handing the message to the backend to having its thread back, or ``"receive"``, from
            asking for the message to having it.
        direction: ``"activation"`` or ``"gradient"``.
        source_stage: of the message.
        target_stage: likewise.
        micro_batch: likewise.
        num_bytes: of its tensors.
        start: seconds, as of ``Event``.
        end: likewise.
    """

    rank: int
    side: str
    direction: str
    source_stage: int
    target_stage: int
    micro_batch: int
    num_bytes: int
    start: float
    end: float

    @property
    def message(self) -> tuple[str, int, int, int]:
        """What both sides have in common."""
        return self.direction, self.source_stage, self.target_stage, self.micro_batch

    def as_dict(self) -> dict[str, object]:
        """Plain data, for files and messages."""
        return asdict(self)


@dataclass(frozen=True)
class Trace:
    """One step of a pipeline on one clock.

    Attributes:
        actions: of all ranks.
        transfers: both sides of all messages between ranks.
    """

    actions: tuple[Event, ...] = ()
    transfers: tuple[Transfer, ...] = ()


class Clock(Protocol):
    """Takes marks during a step, which become seconds of the host's monotonic clock after it."""

    def restart(self) -> None:
        """Called at the start of a step."""

    def mark(self) -> Any:
        """Now, in the order of the work that has been given to the device."""

    def seconds(self, mark: Any) -> float:
        """When that was."""


class HostClock:
    """For work that has ended when the call returns."""

    def restart(self) -> None:
        """Nothing to do."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        """The mark itself."""
        return mark


class CudaClock:
    """For work that a GPU does later: marks are CUDA events on its current stream.

    At the start of each step the device is brought to a stop once, to read its clock and the host's together.

    Args:
        device: the GPU.
        make_event: makes a timing event.
        synchronize: waits for the device.
    """

    def __init__(
        self,
        device: torch.device,
        make_event: Callable[[], Any] | None = None,
        synchronize: Callable[[torch.device], None] = torch.cuda.synchronize,
    ) -> None:
        self._device = device
        self._make_event = make_event or (lambda: torch.cuda.Event(enable_timing=True))
        self._synchronize = synchronize
        self._origin: Any = None
        self._begun = 0.0

    def restart(self) -> None:
        """Reads both clocks."""
        self._synchronize(self._device)
        self._origin = self.mark()
        self._origin.synchronize()
        self._begun = time.perf_counter()

    def mark(self) -> Any:
        """An event after all work that the current stream has so far."""
        event = self._make_event()
        event.record(torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None)
        return event

    def seconds(self, mark: Any) -> float:
        """Waits for the event."""
        mark.synchronize()
        return self._begun + float(self._origin.elapsed_time(mark)) / 1000


def clocks_for(devices: Sequence[torch.device]) -> list[Clock]:
    """A clock for the device of every stage; stages on the same device share one."""
    known: dict[torch.device, Clock] = {
        device: CudaClock(device) if device.type == "cuda" else HostClock() for device in devices
    }
    return [known[device] for device in devices]


class Carried(AbstractContextManager["Carried"]):
    """A message while it is handed over; this one notes nothing."""

    __slots__ = ()

    def note(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """What the message holds."""

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        pass


_UNRECORDED = Carried()


class Recorder:
    """Collects what happens in one step; two marks an action and two a message, made into seconds after the step.

    Args:
        clocks: of every stage; None records nothing.
    """

    def __init__(self, clocks: Sequence[Clock] | None = None) -> None:
        self._clocks = clocks
        self._actions: list[tuple[int, Action, list[tuple[Any, Any]], Any, Any]] = []
        self._transfers: list[tuple[int, str, Message, int, Any, Any]] = []
        self._waits: list[tuple[Any, Any]] = []

    @property
    def events(self) -> list[Event]:
        """The actions of the last step, in the order in which they ran."""
        made = []
        for rank, action, waits, begun, ended in self._actions:
            seconds = self._clock(action.stage).seconds
            waited = sum(seconds(end) - seconds(start) for start, end in waits)
            kind = Kind(action.kind).value
            made.append(Event(rank, kind, action.stage, action.micro_batch, waited, seconds(begun), seconds(ended)))
        return made

    @property
    def transfers(self) -> list[Transfer]:
        """This process's side of the messages of the last step."""
        made = []
        for rank, side, message, num_bytes, begun, ended in self._transfers:
            seconds = self._clock(message.source_stage if side == "send" else message.target_stage).seconds
            made.append(Transfer(rank, side, *message, num_bytes, seconds(begun), seconds(ended)))
        return made

    def clear(self) -> None:
        """Forgets the last step: another begins."""
        self._actions, self._transfers, self._waits = [], [], []
        for clock in dict.fromkeys(self._clocks or ()):
            clock.restart()

    def running(self, rank: int, action: Action) -> AbstractContextManager[Any]:
        """Around the arithmetic of ``action``."""
        return _UNRECORDED if self._clocks is None else _Running(self, rank, action)

    def sending(self, rank: int, message: Message) -> Carried:
        """Around the handing over of a message to the backend; its tensors are noted inside."""
        return _UNRECORDED if self._clocks is None else _Moving(self, rank, "send", message)

    def receiving(self, rank: int, message: Message) -> Carried:
        """Around a wait for a message of the next action; its tensors are noted inside."""
        return _UNRECORDED if self._clocks is None else _Moving(self, rank, "receive", message)

    def _clock(self, stage: int) -> Clock:
        assert self._clocks is not None
        return self._clocks[stage]


class _Running:
    __slots__ = ("_action", "_begun", "_clock", "_rank", "_recorder")

    def __init__(self, recorder: Recorder, rank: int, action: Action) -> None:
        self._recorder = recorder
        self._clock = recorder._clock(action.stage)
        self._rank = rank
        self._action = action

    def __enter__(self) -> None:
        self._begun = self._clock.mark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if kind is None:
            recorder = self._recorder
            recorder._actions.append((self._rank, self._action, recorder._waits, self._begun, self._clock.mark()))
            if recorder._waits:
                recorder._waits = []


class _Moving(Carried):
    __slots__ = ("_begun", "_clock", "_message", "_num_bytes", "_rank", "_recorder", "_side")

    def __init__(self, recorder: Recorder, rank: int, side: str, message: Message) -> None:
        self._recorder = recorder
        self._clock = recorder._clock(message.source_stage if side == "send" else message.target_stage)
        self._rank = rank
        self._side = side
        self._message = message
        self._num_bytes = 0

    @override
    def __enter__(self) -> Carried:
        self._begun = self._clock.mark()
        return self

    @override
    def note(self, tensors: Sequence[torch.Tensor | None]) -> None:
        self._num_bytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if kind is None:
            recorder, ended = self._recorder, self._clock.mark()
            recorder._transfers.append((self._rank, self._side, self._message, self._num_bytes, self._begun, ended))
            if self._side == "receive":
                recorder._waits.append((self._begun, ended))
