"""When each action ran: the recorder of one rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from repro.schedules import Action, Kind


@dataclass(frozen=True)
class Event:
    """One action as it ran.

    Attributes:
        rank: pipeline rank.
        kind: ``"F"``, ``"R"``, ``"B"``, ...
        waited: seconds spent waiting for the action's messages before ``start``.
        start: seconds of the machine's monotonic clock (one clock for all processes of a machine).
        end: likewise; on CPU the arithmetic has ended then.
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


class Recorder:
    """Collects the events of one step; it costs two clock reads an action."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._waited = 0.0

    def clear(self) -> None:
        """Forgets the last step."""
        self.events = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for messages of the next action."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - begun

    @contextmanager
    def running(self, rank: int, action: Action) -> Iterator[None]:
        """Around the arithmetic of ``action``."""
        waited, self._waited = self._waited, 0.0
        begun = time.perf_counter()
        yield
        kind = Kind(action.kind).value
        self.events.append(Event(rank, kind, action.stage, action.micro_batch, waited, begun, time.perf_counter()))

    @contextmanager
    def ignoring(self, rank: int, action: Action) -> Iterator[None]:
        """In place of ``running`` where nothing is recorded."""
        self._waited = 0.0
        yield
