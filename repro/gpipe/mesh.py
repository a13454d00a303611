"""The ranks of a run: a (data, pipeline) device mesh, its process groups, and its watchdog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from repro.errors import UserError
from repro.schedules import Direction

from .failure import PipelineError, Watchdog
from .mailbox import Mailbox
from .wire import ConnectionLost, TalkingTo
from .workers import leave_garbage_to_parent

_UNUSED_TAG = 2**31 - 1
"""Of a receive that no message must match: gloo aborts the process where a longer message does."""


def one_way(device: torch.device) -> bool:
    """Whether a group of ranks with such devices may carry messages between two of them one way only."""
    return device.type == "cuda"


class PipelineMesh:
    """Owns the process groups of D replicas of a pipeline of K ranks.

    Global rank = replica x K + pipeline rank. Pipeline rank 0 of each replica reads the data. Activations and gradients
    travel in groups of their own, see ``channel``; small control messages go over gloo.

    Args:
        num_stages: K.
        data_parallel_size: D.
        device: of this rank: the CPU (gloo), which is the default, or a GPU (NCCL).

    Attributes:
        global_rank: of this process.
        replica: of this rank, 0-based.
        pipeline_rank: of this rank within its replica.
        reads_data: whether this rank reads the data of its replica.

    Raises:
        UserError: the world has not K x D ranks.
    """

    def __init__(self, num_stages: int, data_parallel_size: int = 1, device: torch.device | None = None) -> None:
        world = dist.get_world_size()
        if world != num_stages * data_parallel_size:
            raise UserError(
                f"num_stages={num_stages} x data_parallel_size={data_parallel_size} needs "
                f"{num_stages * data_parallel_size} processes, but there are {world}"
            )
        leave_garbage_to_parent()
        self.num_stages = num_stages
        self.data_parallel_size = data_parallel_size
        self.global_rank = dist.get_rank()
        self.device = device or torch.device("cpu")
        self.replica, self.pipeline_rank = divmod(self.global_rank, num_stages)
        self.reads_data = self.pipeline_rank == 0
        self.device_mesh = init_device_mesh(
            self.device.type, (data_parallel_size, num_stages), mesh_dim_names=("data", "pipeline")
        )
        replicas = [[r * num_stages + p for p in range(num_stages)] for r in range(data_parallel_size)]
        columns = [[r * num_stages + p for r in range(data_parallel_size)] for p in range(num_stages)]
        self.pipeline: dist.ProcessGroup = self.device_mesh.get_group("pipeline")
        self.data: dist.ProcessGroup = self.device_mesh.get_group("data")
        gradients = self._new_group(replicas)
        self._channels: dict[tuple[Direction, bool], dist.ProcessGroup] = {
            ("activation", True): self.pipeline,
            ("activation", False): self._new_group(replicas) if one_way(self.device) else self.pipeline,
            ("gradient", True): self._new_group(replicas) if one_way(self.device) else gradients,
            ("gradient", False): gradients,
        }
        self.control = self._new_group(replicas, backend="gloo")
        self.mail = Mailbox(self.control)
        self.data_control = self._new_group(columns, backend="gloo") if self.device.type == "cuda" else self.data
        self._open = True
        self.watchdog = Watchdog(
            dist.distributed_c10d._get_default_store(), self.global_rank, world, self.break_connections
        )
        # No rank starts work, and may fail, before every rank can be told of it.
        dist.barrier(group=self.control)

    def rank_of(self, pipeline_rank: int) -> int:
        """Global rank of a pipeline rank of this replica."""
        return self.replica * self.num_stages + pipeline_rank

    def channel(self, direction: Direction, source: int, target: int) -> dist.ProcessGroup:
        """The group in which activations or gradients go from pipeline rank ``source`` to ``target``.

        On NCCL, which matches what two ranks of a group do by order alone, each group carries messages between two
        ranks one way: a receive that is posted ahead would hold back what goes the other way, and with virtual stages
        both ways are used.
        """
        return self._channels[direction, source < target]

    def sum_over_replicas(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` summed over the replicas of this pipeline rank, in place."""
        if self.data_parallel_size > 1:
            with self._talking_to_replicas():
                dist.all_reduce(tensor, group=self.data)
        return tensor

    def gather_over_replicas(self, into: list[Any], value: Any) -> None:
        """Fills ``into`` with the small object ``value`` of each replica of this pipeline rank, in order."""
        with self._talking_to_replicas():
            dist.all_gather_object(into, value, group=self.data_control)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Tells a lost connection as the failure that it is due to.

        Raises:
            PipelineError: another rank has failed, or its process has ended.
        """
        try:
            yield
        except ConnectionLost as error:
            raise self.explained(error) from error

    def explained(self, error: ConnectionLost) -> PipelineError:
        """The failure that a lost connection is due to."""
        failure = self.watchdog.explain()
        if failure is None:
            self.watchdog.report(str(error))
            return PipelineError(str(error))
        if self.watchdog.store_is_lost:
            return PipelineError(f"{error.where}: {failure.message}", rank_0_is_gone=True)
        return PipelineError(failure.message)

    def break_connections(self) -> None:
        """Ends every pending wait of this process with an error.

        On gloo a wait that times out kills the connection that it waits on (``abort`` releases nobody there).
        """
        for group in self._all_groups():
            if not self._open:
                return
            if dist.get_backend(group) == "nccl":
                group._get_backend(torch.device("cuda")).abort()
                continue
            for peer in dist.get_process_group_ranks(group):
                if peer != self.global_rank:
                    try:
                        work = dist.irecv(torch.empty(1), src=peer, group=group, tag=_UNUSED_TAG)
                        assert work is not None
                        work.wait(timedelta(milliseconds=1))
                    except Exception:  # the connection is gone, which is what was wanted
                        continue

    def close(self) -> None:
        """Ends the watchdog and all groups but the default one."""
        if not self._open:
            return
        self._open = False
        self.watchdog.close()
        for group in self._all_groups():
            if group is dist.group.WORLD:
                continue
            try:
                dist.destroy_process_group(group)
            except Exception:  # a group that a failure has broken
                continue

    def _talking_to_replicas(self) -> AbstractContextManager[None]:
        return TalkingTo((self.global_rank + self.num_stages) % dist.get_world_size())

    def _all_groups(self) -> list[dist.ProcessGroup]:
        groups = [*self._channels.values(), self.control, self.data, self.data_control]
        return list(dict.fromkeys([*groups, dist.distributed_c10d._get_default_group()]))

    def _new_group(self, ranks: Sequence[Sequence[int]], backend: str | None = None) -> dist.ProcessGroup:
        own, _ = dist.new_subgroups_by_enumeration([list(members) for members in ranks], backend=backend)
        assert isinstance(own, dist.ProcessGroup)
        return own
