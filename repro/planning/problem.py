"""What a plan is made for: a model's costs and memory, the devices, and which choices are open. Plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from repro.errors import UserError
from repro.schedules import Remat

from .memory import ModelMemory, at_rows

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
"""The schedules that a plan can choose, all of them executable."""

SPLITTING = ("zb-h1", "zb-h2", "zb-v")
"""Those that split B into I and W."""

VIRTUAL_STAGES = (2, 3, 4)
"""V that is tried where a schedule leaves it open."""


@dataclass(frozen=True)
class LayerCost:
    """Seconds of one layer for a micro-batch of ``rows`` rows: ``fixed + rows x per_row``, for F and for B.

    Attributes:
        forward: of F (and of R), seconds a row.
        backward: of B, seconds a row.
        forward_fixed: of F, seconds that do not depend on the rows.
        backward_fixed: likewise of B.
    """

    forward: float
    backward: float
    forward_fixed: float = 0.0
    backward_fixed: float = 0.0


@dataclass(frozen=True)
class Wire:
    """How fast a device sends: a message of n bytes takes ``latency + n / bandwidth`` seconds."""

    name: str
    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """Of one message."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Problem:
    """A model on a number of equal devices.

    Attributes:
        costs: of every layer.
        least_rows: of a micro-batch: BatchNorm over a single value cannot train with one row.
        least: memory of micro-batches of so many rows.
        one_more: the same of one row more, for what grows with the rows.
        returned: for every boundary between layers, bytes a row of the gradients that come back.
        batch_size: rows of the mini-batch, those of all replicas together.
        devices: K x D.
        per_node: devices of a node.
        memory: bytes that a device has for parameters, gradients, optimizer states and activations.
        bytes_per_parameter: with gradient and optimizer states.
        gradient_bytes: bytes of a parameter's gradient.
        wire: between devices of a node.
        node_wire: between devices of different nodes.
    """

    costs: tuple[LayerCost, ...]
    least_rows: int
    least: ModelMemory
    one_more: ModelMemory
    returned: tuple[int, ...]
    batch_size: int
    devices: int
    per_node: int
    memory: int
    bytes_per_parameter: int
    gradient_bytes: int
    wire: Wire
    node_wire: Wire
    _by_rows: dict[int, ModelMemory] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for option, number in (
            ("devices", self.devices),
            ("per_node", self.per_node),
            ("batch_size", self.batch_size),
            ("memory", self.memory),
            ("least_rows", self.least_rows),
        ):
            if number < 1:
                raise UserError(f"{option}={number}: give at least 1")
        if not len(self.costs) == len(self.least.layers) == len(self.one_more.layers) == len(self.returned) + 1:
            raise UserError(f"{len(self.costs)} costs for {len(self.least.layers)} layers: give one for each")

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.costs)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.least.parameters

    def model(self, rows: int) -> ModelMemory:
        """Memory of micro-batches of so many rows."""
        if rows not in self._by_rows:
            # Sizes are affine: counted from the least rows, these are the first and the second.
            self._by_rows[rows] = at_rows(self.least, self.one_more, rows - self.least_rows + 1)
        return self._by_rows[rows]

    def forward(self, rows: int) -> list[float]:
        """Seconds of each layer's F."""
        return [cost.forward_fixed + rows * cost.forward for cost in self.costs]

    def backward(self, rows: int) -> list[float]:
        """Seconds of each layer's B."""
        return [cost.backward_fixed + rows * cost.backward for cost in self.costs]

    def wire_between(self, num_stages: int, first: int, second: int) -> Wire:
        """The slowest wire between two ranks of a pipeline over all its replicas: rank r of replica d is d K + r."""
        return self._wire(
            (replica * num_stages + first, replica * num_stages + second)
            for replica in range(max(1, self.devices // num_stages))
        )

    def wire_of_replicas(self, num_stages: int, rank: int) -> Wire:
        """The slowest wire among the replicas of a rank."""
        return self._wire([tuple(range(rank, self.devices, num_stages))])

    def _wire(self, groups: Iterator[tuple[int, int]] | Sequence[tuple[int, ...]]) -> Wire:
        within = all(len({device // self.per_node for device in group}) == 1 for group in groups)
        return self.wire if within else self.node_wire


@dataclass(frozen=True)
class Space:
    """Which choices are open; None leaves a number open.

    Attributes:
        num_stages: every K to try.
        schedules: names.
        num_virtual_stages: every V to try, where the schedule has more than one stage a rank.
        remats: which micro-batches are recomputed.
        num_micro_batches: every M to try.
    """

    num_stages: tuple[int, ...] | None = None
    schedules: tuple[str, ...] = SCHEDULES
    num_virtual_stages: tuple[int, ...] = VIRTUAL_STAGES
    remats: tuple[str, ...] = tuple(remat.value for remat in Remat)
    num_micro_batches: tuple[int, ...] | None = None

    def stages(self, devices: int) -> tuple[int, ...]:
        """Every K: the divisors of the number of devices."""
        return divisors(devices) if self.num_stages is None else self.num_stages

    def micro_batches(self, rows: int, num_stages: int) -> tuple[int, ...]:
        """Every M for so many rows of a replica.

        The divisors up to 16 K, from which on the bubble is below 6% and smaller micro-batches only cost; one row a
        micro-batch, which needs least memory; and K, 2 K, 4 K (the paper's rule) and 8 K.
        """
        if self.num_micro_batches is not None:
            return self.num_micro_batches
        few = {number for number in divisors(rows) if number <= 16 * num_stages}
        return tuple(sorted(few | {rows} | {factor * num_stages for factor in (1, 2, 4, 8)}))

    def virtual_stages(self, schedule: str) -> tuple[int, ...]:
        """Every V for a schedule."""
        if schedule == "zb-v":
            return (2,)
        return self.num_virtual_stages if schedule == "interleaved" else (1,)


@dataclass(frozen=True)
class Choice:
    """One way of laying a model over the devices; the partition is not in it, it follows."""

    num_stages: int
    data_parallel_size: int
    schedule: str
    num_virtual_stages: int
    num_micro_batches: int
    remat: str

    @property
    def total_stages(self) -> int:
        """K x V."""
        return self.num_stages * self.num_virtual_stages

    @property
    def family(self) -> tuple[int, str, int]:
        """What M and remat leave the same: K (and with it D), schedule, V."""
        return self.num_stages, self.schedule, self.num_virtual_stages

    def __str__(self) -> str:
        virtual = f" V={self.num_virtual_stages}" if self.num_virtual_stages > 1 else ""
        return (
            f"{self.schedule}{virtual}, K={self.num_stages} x D={self.data_parallel_size}, "
            f"M={self.num_micro_batches}, remat {self.remat}"
        )


def divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small)}))
