"""What can be known to be wrong before any work starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import lightning.pytorch as pl
from torch import nn

from repro.errors import UserError
from repro.planning import check_partition
from repro.schedules import SIMULATED_ONLY, Schedule, make_schedule, require_executable

from .building import PARTITION_RULES
from .pipeline_module import DOCS, PipelineModule


def check_options(
    schedule: str | Callable[..., Schedule],
    *,
    num_stages: int | None,
    num_micro_batches: int | None,
    num_virtual_stages: int,
    remat: str,
    partition: str | Sequence[int] | None,
    data_parallel_size: int,
    stage_memory: float | None = None,
) -> None:
    """The options of the strategy, as far as they can be judged without a model.

    Raises:
        UserError: an option, or options together, that cannot be.
    """
    if schedule in SIMULATED_ONLY:
        require_executable(make_schedule(schedule, num_stages=2, num_micro_batches=2))
    planned = make_schedule(
        schedule,
        num_stages=1 if num_stages is None else num_stages,
        num_micro_batches=1 if num_micro_batches is None else num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
    )
    require_executable(planned)
    if data_parallel_size < 1:
        raise UserError(f"data_parallel_size={data_parallel_size}: give a whole number of at least 1")
    if stage_memory is not None:
        if not (math.isfinite(stage_memory) and stage_memory > 0):
            raise UserError(f"stage_memory={stage_memory}: give GiB that a stage may take, more than 0")
        if num_virtual_stages > 1:
            raise UserError(
                f"stage_memory={stage_memory} is counted for ranks that hold one stage each, not for "
                f"num_virtual_stages={num_virtual_stages}; use num_virtual_stages=1, or leave stage_memory out"
            )
    if isinstance(partition, str):
        if partition not in PARTITION_RULES:
            raise UserError(
                f"unknown partition={partition!r}; give layer counts or one of {', '.join(PARTITION_RULES)}"
            )
    elif partition is not None and num_stages is not None:
        check_partition(partition, sum(partition), num_stages * num_virtual_stages)


def check_module(model: pl.LightningModule) -> PipelineModule:
    """The model as a ``PipelineModule`` that the pipeline can train.

    Raises:
        UserError: it is another LightningModule, optimizes by hand, or has parameters that no layer has.
    """
    if not isinstance(model, PipelineModule):
        raise UserError(
            f"strategy='gpipe' needs a PipelineModule, got {type(model).__name__}; derive from "
            f"repro.gpipe.PipelineModule, or wrap an nn.Sequential with PipelineModule.from_sequential(model, loss) "
            f"(see {DOCS})"
        )
    if not model.automatic_optimization:
        raise UserError(
            f"manual optimization (automatic_optimization=False) is not supported with strategy='gpipe' (see {DOCS})"
        )
    check_parameters(model)
    return model


def check_parameters(module: PipelineModule) -> None:
    """All parameters are in layers, so that a stage trains them.

    Raises:
        UserError: some are not.
    """
    outside = [name for name, _ in module.named_parameters() if not name.startswith("model.")]
    if outside:
        raise UserError(
            f"parameters outside layers() are on no stage: {', '.join(outside[:5])}; move them into a layer "
            f"(see {DOCS})"
        )


def check_replicas(module: PipelineModule) -> None:
    """Before a fit: what several replicas cannot train.

    Raises:
        UserError: a layer whose gradients are sparse.
    """
    assert module.model is not None
    for index, layer in enumerate(module.model):
        for part in layer.modules():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
                raise UserError(
                    f"layer {index} has sparse gradients (nn.{type(part).__name__}(sparse=True)), which are not summed "
                    "over replicas; use sparse=False, or data_parallel_size=1"
                )


def check_run(
    module: PipelineModule,
    *,
    num_stages: int,
    num_virtual_stages: int,
    data_parallel_size: int,
    processes: int,
    partition: str | Sequence[int] | None,
    virtual_devices: Sequence[str] | None,
) -> None:
    """The numbers of a run against the model and against each other.

    Raises:
        UserError: processes that are not K x D, more stages than layers, a partition that does not add up.
    """
    asked = f"num_stages={num_stages} x data_parallel_size={data_parallel_size}"
    needed = num_stages * data_parallel_size
    if processes == 1 and data_parallel_size > 1:
        raise UserError(f"{asked} needs {needed} processes, but the Trainer has 1; use devices={needed}")
    if processes > 1 and processes != needed:
        raise UserError(
            f"{asked} is {needed} processes, but the Trainer has {processes} (devices x nodes); use "
            f"devices={needed}, or "
            "devices=1 to run all stages in one process"
        )
    stages = num_stages * num_virtual_stages
    if virtual_devices is not None and len(virtual_devices) != stages:
        raise UserError(
            f"virtual_devices={list(virtual_devices)} names {len(virtual_devices)} devices; give one for each of the "
            f"{stages} stages"
        )
    layers = len(module.layers())
    if stages > layers:
        raise UserError(
            f"num_stages={num_stages} x num_virtual_stages={num_virtual_stages} is {stages} stages, but the model "
            "has only "
            f"{layers} layers; use fewer stages, or split the layers more finely"
        )
    if partition is not None and not isinstance(partition, str):
        check_partition(partition, layers, stages)
