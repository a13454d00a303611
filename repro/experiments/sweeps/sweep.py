"""A target of ``repro run``: a table or figure of the paper as parts that run one by one, and the rows made from them.

A module of a target holds ``TARGET``. It is imported for ``--help`` too, so it imports torch (and modules that do) only
inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from repro.arguments import ArgumentParser

from .cells import TRAINING, Cell
from .checks import Check
from .ranks import Job
from .rows import Row


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        scale: ``smoke``, ``laptop`` or ``gpu``: sizes only.
        device: ``cpu``, ``cuda:0``, or several: ``cuda:0,cuda:1``.
        num_stages: every K to run; None: the target's default.
        num_micro_batches: every M to run; None: the target's default.
        options: the target's own options by name.
    """

    scale: str
    device: str
    num_stages: tuple[int, ...] | None
    num_micro_batches: tuple[int, ...] | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class SweepPart:
    """One cell of a sweep: a job on fresh processes whose result is kept, so that it is not done twice.

    Attributes:
        name: unique in the target; part of a file name.
        title: what a person reads; unique in the target.
        function: at module level, called on every rank as ``function(rank, tell, *arguments)``; what rank 0 returns
            counts, JSON values. ``tell(share, words)`` reports progress.
        arguments: frozen dataclasses and plain values; the result must depend on nothing else.
        world_size: processes.
        seconds: expected on two cores, for the estimate.
        keeps_files: whether the function gets a folder of its own as one more argument, which outlives a kill (for
            checkpoints and logs); the result must not depend on what lies there.
        together: whether it may run beside its neighbours that may, as many at a time as there are cores; one process
            each.
    """

    name: str
    title: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    world_size: int
    seconds: float
    keeps_files: bool = False
    together: bool = False

    def __post_init__(self) -> None:
        if self.together and self.world_size > 1:
            raise ValueError(f"{self.name}: only parts of one process run together, this one has {self.world_size}")

    @property
    def cell(self) -> Cell:
        """Its result depends on the function, the arguments and the number of processes."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        values = [plain(argument) for argument in self.arguments]
        return Cell(self.name, {"function": name, "arguments": values, "world_size": self.world_size})

    def job(self, logs: Path) -> Job:
        """With its log below ``logs``; ended as failed when it takes many times longer than expected."""
        timeout = max(900.0, 15 * self.seconds)
        folder = (str(training_folder(logs.parent) / self.name),) if self.keeps_files else ()
        log = logs / f"{self.name}.log"
        return Job(self.title, self.function, (*self.arguments, *folder), log, self.world_size, timeout)


def training_folder(results: Path) -> Path:
    """Where the parts of a run keep their files."""
    return results / TRAINING


def side_by_side(parts: Sequence[SweepPart]) -> list[list[SweepPart]]:
    """``parts`` in their order, cut where they must not run at the same time: neighbours that may are one group."""
    groups: list[list[SweepPart]] = []
    for part in parts:
        if groups and part.together and groups[-1][-1].together:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def no_options(parser: ArgumentParser) -> None:
    """For targets without options of their own."""


@dataclass(frozen=True)
class Target:
    """One table or figure.

    Attributes:
        name: as in ``repro run NAME``, and of its folder below ``results/``.
        summary: one line.
        minutes: expected on two cores, by scale.
        parts: what to run for a request; raises UserError for what cannot be done, before anything runs.
        rows: rows and checks from the results of the parts that have finished, by part name.
        add_options: adds options of the target's own.
    """

    name: str
    summary: str
    minutes: Mapping[str, float]
    parts: Callable[[Request], Sequence[SweepPart]]
    rows: Callable[[Request, Mapping[str, Any]], tuple[list[Row], list[Check]]]
    add_options: Callable[[ArgumentParser], None] = no_options


def plain(value: Any) -> Any:
    """``value`` as JSON values, for the key of a cell.

    Raises:
        TypeError: something in it is neither a frozen dataclass nor plain.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    raise TypeError(f"an argument of a part holds {value!r}, which is not plain data")
