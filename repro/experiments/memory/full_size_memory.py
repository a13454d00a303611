"""Table 1 at full size, without the hardware: exact counts, predicted memory, and the search for the largest model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from repro.datasets.paper import published
from repro.errors import UserError
from repro.planning.capacity import Budget, fits, partition_by_memory
from repro.planning.memory import ModelMemory, at_rows, bytes_per_parameter, live_sets
from repro.schedules import make_schedule

from ..sweeps.ranks import Tell

AMOEBANET, TRANSFORMER = "AmoebaNet-D", "Transformer-L"
NAIVE = "naive-1"
GIB = 2**30
MOST_AMOEBANET_LAYERS = max(int(row["num_layers"] or 0) for row in published("table1_amoebanet")) + 6
"""Of the largest one in Table 1: beside the L cells the stem, its two reductions, two more, and the classifier."""


@dataclass(frozen=True)
class Variant:
    """How activations are kept.

    Attributes:
        dtype: of activations: ``float32`` or ``bfloat16``. Parameters and optimizer states stay in float32.
        attention: ``fused`` (what torch runs: no matrix of all pairs of tokens is kept) or ``whole`` (it is kept, as by
            the hardware and libraries of 2018); None for a model without attention.
    """

    dtype: str = "float32"
    attention: str | None = None

    @property
    def label(self) -> str:
        """In words."""
        kinds = {"fused": ", fused attention", "whole": ", attention matrices kept", None: ""}
        return f"{self.dtype}{kinds[self.attention]}"


@dataclass(frozen=True)
class FullSizePlan:
    """What is computed for one model.

    Attributes:
        model: ``AMOEBANET`` or ``TRANSFORMER``.
        optimizer: a key of ``OPTIMIZER_STATES``.
        memory_gib: bytes of an accelerator / 2^30; None takes the paper's.
        num_stages: every K of the search; None takes the paper's columns.
        num_micro_batches: M of the pipelines; None takes one row per micro-batch, which needs least memory.
        thorough: also bfloat16, all published sizes of AmoebaNet, and the search with other M.
    """

    model: str
    optimizer: str
    memory_gib: float | None
    num_stages: tuple[int, ...] | None
    num_micro_batches: int | None
    thorough: bool


@dataclass(frozen=True)
class Configuration:
    """One column of the table."""

    name: str
    num_stages: int
    num_micro_batches: int
    remat: str


def full_size(rank: int, tell: Tell, plan: FullSizePlan) -> dict[str, Any]:
    """Counts, predicted memory of the published sizes, and the largest size that fits, for every variant."""
    setup = next(row for row in published("table1_setup") if row["model"] == plan.model)
    cap = int((plan.memory_gib or float(setup["accelerator_memory_gb"] or 0)) * GIB)
    search = _Search(plan, setup, cap)
    columns = published(search.table)
    cells, found = [], []
    variants = search.variants
    for number, variant in enumerate(variants):
        tell(number / len(variants), variant.label)
        for column in columns:
            configuration = _configuration(column, plan, search.batch_size)
            cells.append(search.cell(variant, configuration, search.size_of(column)))
        for configuration in _searched(columns, plan, search.batch_size):
            found.append(search.largest(variant, configuration))
    sweep = []
    if plan.thorough:
        for variant in variants:
            for stages in sorted({int(column["num_stages"] or 0) for column in columns})[:2]:
                for micro_batches in _powers(search.batch_size):
                    one = Configuration(f"pipeline-{stages}", stages, micro_batches, "always")
                    sweep.append(search.largest(variant, one))
    return {
        "memory_bytes": cap,
        "batch_size": search.batch_size,
        "counts": search.counts(columns),
        "cells": cells,
        "search": found,
        "sweep": sweep,
    }


class _Search:
    """Memory of one model family by size; what has been counted is kept."""

    def __init__(self, plan: FullSizePlan, setup: Mapping[str, Any], cap: int) -> None:
        self._plan = plan
        self._setup = setup
        self._cap = cap
        self._per_parameter = bytes_per_parameter(plan.optimizer)
        self._models: dict[tuple[Any, ...], ModelMemory] = {}
        self._known: dict[Variant, dict[Any, Any]] = {}
        self._budgets: dict[Configuration, Budget] = {}
        self.batch_size = int(setup["batch_size"])
        self.table = "table1_amoebanet" if plan.model == AMOEBANET else "table1_transformer"

    @property
    def variants(self) -> list[Variant]:
        attentions = (None,) if self._plan.model == AMOEBANET else ("fused", "whole")
        dtypes = ("float32", "bfloat16") if self._plan.thorough else ("float32",)
        return [Variant(dtype, attention) for dtype in dtypes for attention in attentions]

    def size_of(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """(L, D), or (L,)."""
        names = ("num_layers", "num_filters") if self._plan.model == AMOEBANET else ("num_layers",)
        return tuple(int(row[name]) for name in names)

    def counts(self, columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Exact parameters of every column."""
        from repro.gpipe.memory import count_parameters

        return [
            {
                "configuration": column["configuration"],
                "num_stages": column["num_stages"],
                "size": list(self.size_of(column)),
                "parameters": count_parameters(self._factories(self.size_of(column))),
                "published": column["parameters"],
            }
            for column in columns
        ]

    def cell(self, variant: Variant, configuration: Configuration, size: tuple[int, ...]) -> dict[str, Any]:
        """Predicted memory of a size under its best partition."""
        model = self._model(variant, configuration, size)
        budget = self._budget(configuration)
        counts = partition_by_memory(model, configuration.num_stages, budget)
        stages = model.stages(counts)
        activations = [budget.activation_bytes(index, stage) for index, stage in enumerate(stages)]
        return _about(variant, configuration) | {
            "size": list(size),
            "parameters": model.parameters,
            "partition": counts,
            "parameter_bytes": model.parameters * self._per_parameter,
            "activation_bytes": activations,
            "largest_stage": budget.largest_stage(model, counts),
            "spare": self._cap - budget.largest_stage(model, counts),
        }

    def largest(self, variant: Variant, configuration: Configuration) -> dict[str, Any]:
        """The largest size that fits: any L, or a published (L, D)."""

        def holds(size: tuple[int, ...]) -> bool:
            model = self._model(variant, configuration, size)
            return fits(model, configuration.num_stages, self._budget(configuration), self._cap)

        size: tuple[int, ...] | None
        if self._plan.model == TRANSFORMER:
            # Embedding and softmax are layers of the sequence too.
            least = max(1, configuration.num_stages - 2)
            largest = largest_that(lambda num_layers: holds((num_layers,)), least)
            size = (largest,) if largest else None
        else:
            size = next((one for one in self._published_sizes() if holds(one)), None)
        found = _about(variant, configuration) | {"size": list(size) if size else None}
        if size is not None:
            found["parameters"] = self._model(variant, configuration, size).parameters
        return found

    def _published_sizes(self) -> list[tuple[int, ...]]:
        """The (L, D) of Table 1, largest first; if thorough, every (L, D) of AmoebaNet-D that is published."""
        rows = published("table1_amoebanet")
        if self._plan.thorough:
            rows = [row for row in published("amoebanet_counts") if row["genotype"] == "D"]
        largest = {self.size_of(row): int(row["parameters"] or 0) for row in rows}
        return sorted(largest, key=lambda size: largest[size], reverse=True)

    def _budget(self, configuration: Configuration) -> Budget:
        if configuration not in self._budgets:
            schedule = make_schedule(
                "gpipe",
                num_stages=configuration.num_stages,
                num_micro_batches=configuration.num_micro_batches,
                remat=configuration.remat,
            )
            self._budgets[configuration] = Budget(live_sets(schedule), self._per_parameter)
        return self._budgets[configuration]

    def _model(self, variant: Variant, configuration: Configuration, size: tuple[int, ...]) -> ModelMemory:
        rows = -(-self.batch_size // configuration.num_micro_batches)
        key = (variant, rows, size)
        if key not in self._models:
            # All layers of a Transformer between embedding and softmax are equal: what one keeps, all keep.
            counted = (1,) if self._plan.model == TRANSFORMER else size
            one, two = (self._counted(variant, few, counted) for few in (1, 2))
            model = at_rows(one, two, rows)
            if self._plan.model == TRANSFORMER:
                first, layer, last = model.layers
                model = replace(model, layers=(first, *[layer] * size[0], last))
            self._models[key] = model
        return self._models[key]

    def _counted(self, variant: Variant, rows: int, size: tuple[int, ...]) -> ModelMemory:
        import torch

        from repro.gpipe.memory import count_memory

        from ..costs.scaled_down import cross_entropy

        side = int(self._setup["input_size"])
        if self._plan.model == AMOEBANET:
            inputs = torch.empty(rows, 3, side, side, device="meta")
            targets = torch.empty(rows, dtype=torch.int64, device="meta")
        else:
            inputs = targets = torch.empty(rows, side, dtype=torch.int64, device="meta")
        with _attention(variant):
            return count_memory(
                self._factories(size),
                inputs,
                loss=cross_entropy,
                targets=targets,
                dtype=getattr(torch, variant.dtype),
                known=self._known.setdefault(variant, {}),
            )

    def _factories(self, size: tuple[int, ...]) -> list[Callable[[], Any]]:
        if self._plan.model == AMOEBANET:
            from repro.models.amoebanet import amoebanet

            return amoebanet("D", num_layers=size[0], num_filters=size[1])
        from repro.models.transformer import transformer_lm

        d_model, d_ff, num_heads, vocab_size = (
            int(self._setup[name]) for name in ("d_model", "d_ff", "num_heads", "vocab_size")
        )
        return transformer_lm(
            num_layers=size[0], d_model=d_model, d_ff=d_ff, num_heads=num_heads, vocab_size=vocab_size
        )


def largest_that(holds: Callable[[int], bool], least: int = 1, limit: int = 2**20) -> int:
    """The largest n in least .. limit with ``holds(n)``, 0 where there is none; ``holds`` is true up to some n."""
    if not holds(least):
        return 0
    low, high = least, 2 * least
    while high <= limit and holds(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def check_full_size(plan: FullSizePlan) -> None:
    """Refuses what cannot be.

    Raises:
        UserError: no memory, or more micro-batches than rows.
    """
    if plan.memory_gib is not None and not 0 < plan.memory_gib < 2**20:
        raise UserError(f"--memory {plan.memory_gib:g}: give the GiB of an accelerator, for example --memory 16")
    bytes_per_parameter(plan.optimizer)


def too_many_stages(plan: FullSizePlan) -> list[int]:
    """Those K that no published size of the model has layers for; of the Transformer every size is tried."""
    if plan.model == TRANSFORMER:
        return []
    return [stages for stages in plan.num_stages or () if stages > MOST_AMOEBANET_LAYERS]


def _configuration(column: Mapping[str, Any], plan: FullSizePlan, batch_size: int) -> Configuration:
    if column["configuration"] == NAIVE:
        return Configuration(NAIVE, 1, 1, "never")
    micro_batches = min(plan.num_micro_batches or batch_size, batch_size)
    return Configuration(str(column["configuration"]), int(column["num_stages"]), micro_batches, "always")


def _searched(columns: Sequence[Mapping[str, Any]], plan: FullSizePlan, batch_size: int) -> list[Configuration]:
    configurations = [_configuration(column, plan, batch_size) for column in columns]
    if plan.num_stages is None:
        return configurations
    micro_batches = min(plan.num_micro_batches or batch_size, batch_size)
    left_out = too_many_stages(plan)
    own = [
        Configuration(f"pipeline-{stages}", stages, micro_batches, "always")
        for stages in plan.num_stages
        if stages not in left_out
    ]
    return [configurations[0], *own]


def _about(variant: Variant, configuration: Configuration) -> dict[str, Any]:
    return {
        "dtype": variant.dtype,
        "attention": variant.attention,
        "configuration": configuration.name,
        "num_stages": configuration.num_stages,
        "num_micro_batches": configuration.num_micro_batches,
        "remat": configuration.remat,
    }


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _attention(variant: Variant) -> AbstractContextManager[Any]:
    if variant.attention != "whole":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
    return context
