"""A limit on the memory of a stage: the partition keeps within it, or the run says what is missing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import nn

from repro.errors import UserError
from repro.planning.capacity import Budget, partition_within
from repro.planning.memory import ModelMemory, bytes_per_parameter, live_sets
from repro.planning.partition import PartitionError
from repro.schedules import Schedule

from .memory import count_memory
from .microbatch import Boundary, map_tensors
from .profiling import with_rows
from .stage import Loss

_OPTIMIZER = "adam"
"""Two states a parameter, as RMSProp with momentum has too: the optimizer is not known before the layers are."""


@dataclass(frozen=True)
class StageLimit:
    """How much a stage may take: parameters, gradients and optimizer states, and its activations at their peak.

    The same on every rank, so that all cut the model alike without a message.

    Attributes:
        gib: 2**30 bytes, the option ``stage_memory``.
        schedule: how many micro-batches a stage holds at a time.
        rows: of a micro-batch.
        precision: of the run.
        loss: as for the engine; counted where there are targets.
        inputs: of a row or a few, as large as in training; None where there are none.
        targets: of the same rows; None leaves out what the loss keeps.
    """

    gib: float
    schedule: Schedule
    rows: int
    precision: Precision
    loss: Loss
    inputs: Boundary | None
    targets: Boundary | None

    def partition(
        self, skeletons: Sequence[nn.Module], costs: Sequence[float], counts: list[int], *, given: bool
    ) -> tuple[list[int], list[int]]:
        """The layers of each stage under the limit, and the bytes of each stage.

        Args:
            skeletons: the layers on the meta device.
            costs: of every layer.
            counts: the layers of each stage without a limit; kept where they fit.
            given: ``counts`` are the user's, not those of a rule: they are only checked.

        Raises:
            UserError: nothing fits, or what there is to count is not known.
        """
        memory = self._count(skeletons)
        budget, cap = self._budget(), int(self.gib * 2**30)
        if given:
            self._check(memory, budget, cap, counts)
        else:
            try:
                counts = partition_within(costs, len(counts), model=memory, budget=budget, cap=cap)
            except PartitionError as error:
                raise UserError(f"stage_memory={self.gib}: {error} ({self._how()})") from None
        return counts, _sizes(memory, budget, counts)

    def _check(self, memory: ModelMemory, budget: Budget, cap: int, counts: list[int]) -> None:
        sizes = _sizes(memory, budget, counts)
        if max(sizes) > cap:
            raise UserError(
                f"partition={counts} needs {max(sizes) / 2**30:.3g} GiB on stage {sizes.index(max(sizes))}, more than "
                f"stage_memory={self.gib}; give other layer counts, or a rule such as partition='parameters', which "
                f"keeps within it where that can be ({self._how()})"
            )

    def _budget(self) -> Budget:
        if sorted(self.schedule.placement) != [(rank,) for rank in range(self.schedule.num_stages)]:
            raise UserError(
                f"stage_memory={self.gib} is counted for ranks that hold one stage each, which schedule "
                f"{self.schedule.name!r} does not have (num_virtual_stages={self.schedule.num_virtual_stages}); use "
                "num_virtual_stages=1 and a schedule of one stage a rank, or leave stage_memory out"
            )
        live = live_sets(self.schedule)
        return Budget(tuple(live[rank] for (rank,) in self.schedule.placement), self._bytes_per_parameter)

    def _count(self, skeletons: Sequence[nn.Module]) -> ModelMemory:
        if self.inputs is None:
            raise UserError(
                f"stage_memory={self.gib} needs example_inputs(), from which the activations of the layers are "
                "counted; define it on the module, or leave stage_memory out"
            )
        # Nobody's own layers run: what a layer counts or remembers stays as it is.
        copies = [self.precision.convert_module(copy.deepcopy(layer)) for layer in skeletons]
        try:
            with _casting(self.precision):
                return count_memory(
                    [partial(_on_cpu, layer) for layer in copies],
                    with_rows(map_tensors(self.precision.convert_input, self.inputs), self.rows),
                    loss=self.loss,
                    targets=None if self.targets is None else with_rows(self.targets, self.rows),
                    dtype=self._dtype,
                )
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"stage_memory={self.gib}: the memory of the layers cannot be counted without computing "
                f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}); give "
                "layers whose shapes do not depend on values, or leave stage_memory out"
            ) from error

    @property
    def _dtype(self) -> torch.dtype:
        with self.precision.module_init_context():
            return torch.get_default_dtype()

    @property
    def _bytes_per_parameter(self) -> int:
        return bytes_per_parameter(_OPTIMIZER, size=self._dtype.itemsize, gradients=True)

    def _how(self) -> str:
        return (
            f"counted for micro-batches of {self.rows} rows and {self._bytes_per_parameter} bytes a parameter: itself, "
            "its gradient and two states of its optimizer"
        )


def _sizes(memory: ModelMemory, budget: Budget, counts: Sequence[int]) -> list[int]:
    return [budget.stage_bytes(index, stage) for index, stage in enumerate(memory.stages(counts))]


def _on_cpu(layer: nn.Module) -> nn.Module:
    """A layer from the meta device as one on the CPU, which under fake tensors takes no memory."""
    return layer.to_empty(device="cpu")


def _casting(precision: Precision) -> AbstractContextManager[object]:
    """The forward of the run with what it casts, on the CPU whatever the run's device is: there it is counted."""
    if isinstance(precision, MixedPrecision):
        dtype = torch.bfloat16 if precision.precision == "bf16-mixed" else torch.float16
        return torch.autocast("cpu", dtype=dtype, cache_enabled=False)
    return nullcontext()
