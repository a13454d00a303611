"""The ranks of a pipeline under Lightning: processes, process groups, and collectives over all of them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import (
    ReduceOp,
    _get_default_process_group_backend_for_device,
    _init_dist_connection,
    _sync_ddp_if_available,
)
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.strategies.strategy import TBroadcast
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor
from typing_extensions import override

from .failure import PipelineError, StageError, describe
from .mesh import PipelineMesh
from .wire import TalkingTo


class RankedStrategy(ParallelStrategy):
    """K x D ranks, with a process each, or one process that is all of them.

    Args:
        num_stages: K. None: the number of processes divided by ``data_parallel_size``.
        data_parallel_size: D.
        timeout: of the process groups.
        lightning: what ``ParallelStrategy`` takes.
    """

    def __init__(
        self, num_stages: int | None, data_parallel_size: int, timeout: timedelta | None, **lightning: Any
    ) -> None:
        super().__init__(**lightning)
        self._asked_stages = num_stages
        self._data_parallel_size = data_parallel_size
        self._timeout = timeout
        self._num_nodes = 1
        self._mesh: PipelineMesh | None = None

    @property
    def num_nodes(self) -> int:
        """Machines; set by the Trainer."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @property
    def num_processes(self) -> int:
        """Processes on this machine."""
        return len(self.parallel_devices) if self.parallel_devices is not None else 1

    @property
    def num_stages(self) -> int:
        """K."""
        return self._asked_stages or self._num_ranks // self._data_parallel_size

    @property
    def mesh(self) -> PipelineMesh | None:
        """The ranks; None where all stages run in one process."""
        return self._mesh

    @property
    @override
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self._num_ranks > 1:
            # No reset_seed as in DDP: the reading rank goes on drawing what one process would.
            self.set_world_ranks()
            backend = _get_default_process_group_backend_for_device(self.root_device)
            device_id = self.root_device if self.root_device.type != "cpu" else None
            _init_dist_connection(self.cluster_environment, backend, timeout=self._timeout, device_id=device_id)  # type: ignore[arg-type]
            if self._mesh is None:
                self._mesh = PipelineMesh(self.num_stages, self._data_parallel_size, self.root_device)

    def set_world_ranks(self) -> None:
        """Tells cluster environment and logging who this process is."""
        assert self.cluster_environment is not None
        self.cluster_environment.set_global_rank(self.node_rank * self.num_processes + self.local_rank)
        self.cluster_environment.set_world_size(self.num_nodes * self.num_processes)
        rank_zero_only.rank = fabric_rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    @override
    def barrier(self, name: str | None = None) -> None:
        if self._num_ranks > 1 and dist.is_initialized() and not self._has_failed:
            with self._explaining():
                dist.barrier()

    @override
    def broadcast(self, obj: TBroadcast, src: int = 0) -> TBroadcast:
        if self._num_ranks == 1 or not dist.is_initialized() or self._has_failed:
            return obj
        holder = [obj]
        with self._explaining():
            dist.broadcast_object_list(holder, src)
        return holder[0]

    @override
    def reduce(
        self, tensor: Tensor | Any, group: Any | None = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> Tensor | Any:
        with self._explaining():
            return _sync_ddp_if_available(tensor, group, reduce_op=reduce_op) if isinstance(tensor, Tensor) else tensor

    @override
    def on_exception(self, exception: BaseException) -> None:
        if self._mesh is not None and not isinstance(exception, PipelineError | StageError):
            self._mesh.watchdog.report(f"rank {self.global_rank}: {describe(exception)}")

    @property
    def _num_ranks(self) -> int:
        if self.cluster_environment is not None and self.cluster_environment.creates_processes_externally:
            return self.cluster_environment.world_size()
        return self._num_nodes * self.num_processes

    @property
    def _has_failed(self) -> bool:
        """Whether an exception ends a run of several processes: no two of them are at the same place any more."""
        trainer = None if self._lightning_module is None else self._lightning_module._trainer
        return self._num_ranks > 1 and trainer is not None and trainer.state.status == TrainerStatus.INTERRUPTED

    @contextmanager
    def _connected(self) -> Generator[PipelineMesh | None, None, None]:
        """The mesh; opened for the moment where a checkpoint is saved after the run."""
        if self._mesh is not None or self._num_ranks == 1:
            with self._mesh_explaining():
                yield self._mesh
            return
        mesh = PipelineMesh(self.num_stages, self._data_parallel_size, self.root_device)
        try:
            yield mesh
        finally:
            mesh.close()

    @contextmanager
    def _explaining(self) -> Generator[None, None, None]:
        """Around collectives over all ranks: an error is told as the failure that it is due to."""
        with self._mesh_explaining(), TalkingTo(None):
            yield

    def _mesh_explaining(self) -> AbstractContextManager[None]:
        return nullcontext() if self._mesh is None else self._mesh.explaining()
