"""What a stage's messages will hold, known on both sides of an edge before the first of a step has come."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from .wire import BoundarySpec


class Place(NamedTuple):
    """Messages of one stage with the same rows: within a step they have the same header."""

    stage: int
    rows: int


class Expectations:
    """The headers of a step, as long as it resembles the step before.

    A receive can be posted before its message is sent only if its size is known. Two steps of the same mode, rows and
    inputs (dtypes and shapes) nearly always have the same headers; where a layer decides otherwise, which the messages
    must be able to tell, its stage is not foreseen again. Both sides of an edge see the same headers, so they expect
    the same; a step that fails on one side ends the connection.
    """

    def __init__(self) -> None:
        self._step: Hashable = None
        self._learnt: dict[Place, BoundarySpec] = {}
        self._expected: dict[Place, BoundarySpec] = {}
        self._unsteady: set[int] = set()

    def begin(self, step: Hashable) -> None:
        """Starts a step; ``step`` is equal for two steps that should have the same headers."""
        same = step == self._step
        if not same or self._learnt != self._expected:
            self._expected = {
                place: spec
                for place, spec in self._learnt.items()
                if same and place.stage not in self._unsteady and any(tensor.tells_absence for tensor in spec.tensors)
            }
        self._step, self._learnt = step, {}

    def get(self, place: Place) -> BoundarySpec | None:
        """The header that is expected, None where it has to be read first."""
        return self._expected.get(place)

    def learn(self, place: Place, spec: BoundarySpec) -> None:
        """Notes the header that was sent or read in this step."""
        self._learnt[place] = spec
        if self._expected.get(place, spec) != spec:
            self._unsteady.add(place.stage)
