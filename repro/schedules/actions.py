"""The vocabulary of a pipeline schedule: actions, re-materialization, and the schedule itself as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from repro.errors import UserError


class ScheduleError(UserError):
    """A schedule that cannot be built or cannot run; the message repeats the numbers and says which would do."""


class Kind(StrEnum):
    """What a rank does with one micro-batch on one stage."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


class Remat(StrEnum):
    """Which micro-batches drop their activations after F and compute them again in R (paper, section 2.3)."""

    ALWAYS = "always"
    EXCEPT_LAST = "except_last"
    NEVER = "never"

    def recomputes(self, micro_batch: int, num_micro_batches: int) -> bool:
        """Whether ``micro_batch`` (0-based, of ``num_micro_batches``) drops its activations after F."""
        if self is Remat.EXCEPT_LAST:
            return micro_batch < num_micro_batches - 1
        return self is Remat.ALWAYS

    def num_recomputed(self, num_micro_batches: int) -> int:
        """How many of ``num_micro_batches`` have an R."""
        return {Remat.ALWAYS: num_micro_batches, Remat.EXCEPT_LAST: num_micro_batches - 1, Remat.NEVER: 0}[self]


class Action(NamedTuple):
    """One micro-batch on one stage. ``stage`` and ``micro_batch`` are 0-based and global."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.micro_batch}@{self.stage}"


@dataclass(frozen=True)
class Schedule:
    """For every rank, the order of its actions.

    Attributes:
        name: the family, for example ``"gpipe"``.
        num_stages: K, the number of pipeline ranks.
        num_micro_batches: M.
        num_virtual_stages: V, how many stages each rank holds; K x V stages in all.
        remat: which micro-batches have an R action.
        placement: for every stage (K x V of them) the ranks that hold it. Nothing may assume that stage = rank or
            that neighbouring stages are on neighbouring ranks.
        actions: for every rank, its actions in the order in which it runs them.
        flush: whether the weights change once, after the last action; if not, after the backward of every micro-batch.
        restriction: for a schedule that can be simulated and drawn only, why it cannot be executed; else empty.
    """

    name: str
    num_stages: int
    num_micro_batches: int
    num_virtual_stages: int
    remat: Remat
    placement: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]
    flush: bool = True
    restriction: str = ""

    @property
    def total_stages(self) -> int:
        """K x V."""
        return len(self.placement)
