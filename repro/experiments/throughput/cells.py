"""The cells of a throughput table: what a step of a full-size model takes, by simulation, and what it would ideally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from repro.errors import UserError
from repro.planning import partition
from repro.planning.partition import stage_costs
from repro.schedules import Remat, gpipe_makespan, make_schedule

from ..costs.full_models import FullModel, LayerCosts
from ..costs.link import Link, step_seconds

FIXED, PER_CELL = "fixed", "per-cell"
BATCH_POLICIES = (FIXED, PER_CELL)
LARGEST_MICRO_BATCHES = 32
"""M of the last line of Table 2: with the batch policy per-cell, every micro-batch has as many rows as there."""

LARGEST_MESSAGE = 2**16
"""Bytes of a message that really travels in an emulated run; those of the real one are charged by the link model."""


@dataclass(frozen=True)
class TableCell:
    """One entry of a throughput table.

    Attributes:
        num_stages: K.
        num_micro_batches: M.
        batch_size: rows of the mini-batch, a multiple of M.
    """

    num_stages: int
    num_micro_batches: int
    batch_size: int

    @property
    def rows(self) -> int:
        """Rows of a micro-batch."""
        return self.batch_size // self.num_micro_batches


@dataclass(frozen=True)
class Host:
    """What a run on this machine adds to waits and messages, measured in that run.

    Attributes:
        overshoot: seconds by which a timed wait is late; each action waits once.
        latency: seconds of a message without content.
        bandwidth: bytes a second beyond that.
    """

    overshoot: float
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Setting:
    """A full-size model with the time that its layers and messages take.

    Attributes:
        model: which one.
        costs: seconds of each layer.
        origin: where the seconds come from, in words.
        link: between any two neighbours.
    """

    model: FullModel
    costs: LayerCosts
    origin: str
    link: Link


def table_cells(
    num_stages: Sequence[int], num_micro_batches: Sequence[int], batch_size: int, policy: str
) -> list[TableCell]:
    """All cells of a row of the table, in the order of the paper.

    Args:
        batch_size: of every cell (``fixed``), or of the cell with M = 32 (``per-cell``), whose micro-batches all cells
            then have.

    Raises:
        UserError: M does not divide the mini-batch, or the micro-batch has no row.
    """
    cells = []
    for micro_batches in num_micro_batches:
        size = batch_size
        if policy == PER_CELL:
            size = batch_size // LARGEST_MICRO_BATCHES * micro_batches
            if size == 0:
                raise UserError(
                    f"--batch-size {batch_size}: with --batch-policy per-cell it is cut into {LARGEST_MICRO_BATCHES} "
                    f"micro-batches, so give at least {LARGEST_MICRO_BATCHES}"
                )
        if micro_batches < 1 or size % micro_batches:
            raise UserError(
                f"-M {micro_batches} does not divide the mini-batch of {size} rows into equal micro-batches; give "
                "another M, or a multiple of it as --batch-size"
            )
        cells += [TableCell(stages, micro_batches, size) for stages in num_stages]
    return cells


def simulated_step(
    setting: Setting, cell: TableCell, remat: Remat | str, *, factor: float = 1.0, host: Host | None = None
) -> float:
    """Seconds of a step: the schedule replayed with the costs of the optimal partition's stages and the link.

    Args:
        factor: seconds for each second that a layer or a link takes.
        host: what an emulated run adds to them.

    Raises:
        UserError: fewer layers than stages.
    """
    counts, rows = partition(setting.costs.both, cell.num_stages), cell.rows
    late = 0.0
    latency = factor * setting.link.latency
    if host is not None:
        late = host.overshoot
        latency += host.latency + rows * message_row_bytes(setting, cell.batch_size) / host.bandwidth
    forward, backward = (
        [factor * rows * float(cost) + late for cost in stage_costs(costs, counts)]
        for costs in (setting.costs.forward, setting.costs.backward)
    )
    carried = [setting.costs.boundary_bytes[end - 1] * rows for end in list(accumulate(counts))[:-1]]
    return step_seconds(
        make_schedule(
            "gpipe", num_stages=cell.num_stages, num_micro_batches=cell.num_micro_batches, remat=Remat(remat).value
        ),
        forward,
        backward,
        occupancy=[factor * setting.link.occupancy(nbytes) for nbytes in carried],
        latency=latency,
    )


def message_row_bytes(setting: Setting, batch_size: int) -> int:
    """Bytes of a row of what really travels between emulated stages, so that no micro-batch is above 64 KiB."""
    smallest = min(setting.costs.boundary_bytes[:-1])
    return 4 * max(1, int(min(LARGEST_MESSAGE / batch_size, smallest)) // 4)


def ideal_step(setting: Setting, cell: TableCell, remat: Remat | str) -> float:
    """Seconds of a step with the same schedule and remat, equal stages and free messages."""
    share = cell.rows / cell.num_stages
    forward, backward = (share * sum(costs) for costs in (setting.costs.forward, setting.costs.backward))
    return float(
        gpipe_makespan(
            cell.num_stages,
            cell.num_micro_batches,
            forward=forward,
            backward=backward,
            recompute=forward,
            remat=remat,
        )
    )


def imbalance(setting: Setting, num_stages: int) -> float:
    """Cost of the dearest stage relative to the mean of all."""
    costs = [float(cost) for cost in stage_costs(setting.costs.both, partition(setting.costs.both, num_stages))]
    return max(costs) * num_stages / sum(costs)


def relative_throughput(cell: TableCell, seconds: float, base: TableCell, base_seconds: float) -> float:
    """Rows a second of a cell, relative to those of the base cell."""
    return (cell.batch_size / seconds) / (base.batch_size / base_seconds)


def time_factor(setting: Setting, cells: Sequence[TableCell], remat: Remat | str, longest: float) -> float:
    """The factor that makes the longest step of the cells with the fewest stages last ``longest`` seconds.

    With the mini-batch held fixed that is the step of M = 1.
    """
    fewest = min(cell.num_stages for cell in cells)
    return longest / max(simulated_step(setting, cell, remat) for cell in cells if cell.num_stages == fewest)
