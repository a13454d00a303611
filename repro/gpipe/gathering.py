"""The one place where the state of all stages becomes the state of the unsplit module, and back.

Parameters are named by global layer index and optimizer states are numbered as the unsplit module numbers them, so a
checkpoint depends on neither K, V, D nor the schedule, and plain Lightning opens it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from .mesh import PipelineMesh
from .wire import TalkingTo


def gather_dicts(own: dict[Any, Any], mesh: PipelineMesh | None) -> dict[Any, Any]:
    """Merges the dicts of one replica's ranks on its first rank; the others get an empty one. All ranks call it."""
    if mesh is None:
        return own
    parts: list[dict[Any, Any]] | None = [{}] * mesh.num_stages if mesh.pipeline_rank == 0 else None
    with TalkingTo(None):
        dist.gather_object(own, parts, dst=mesh.rank_of(0), group=mesh.control)
    return {key: value for part in parts or [] for key, value in part.items()}


def gather_module_state(module: nn.Module, mesh: PipelineMesh | None, last_rank: int) -> dict[str, Tensor]:
    """The unsplit module's state dict, on the first rank.

    Args:
        module: a ``PipelineModule``, with the layers of this rank.
        mesh: the ranks; None where all stages are here.
        last_rank: pipeline rank of the last stage: what the module holds beside its layers changes there, in ``loss``
            and ``metrics``.
    """
    state = module.state_dict()
    # Not by the meta device alone: a layer's extra state is what it likes.
    layers = {f"{name}.": part for name, part in module.named_modules() if _is_marked(part)} if mesh else {}
    everywhere = tuple(layers)
    elsewhere = tuple(name for name, layer in layers.items() if is_elsewhere(layer))
    own = {name: value for name, value in state.items() if not name.startswith(elsewhere)}
    if mesh is not None and mesh.pipeline_rank != last_rank:
        own = {name: value for name, value in own.items() if name.startswith(everywhere)}
    gathered = gather_dicts(own, mesh)
    return {name: gathered[name] for name in state if name in gathered}


def mark_elsewhere(layer: nn.Module, elsewhere: bool) -> None:
    """Notes on ``layer`` whether another rank holds it; copies of it say the same."""
    layer._gpipe_elsewhere = elsewhere  # type: ignore[assignment]


def is_elsewhere(layer: nn.Module) -> bool:
    """Whether ``layer`` stands for one that another rank holds."""
    return bool(getattr(layer, "_gpipe_elsewhere", False))


def _is_marked(layer: nn.Module) -> bool:
    return hasattr(layer, "_gpipe_elsewhere")


def load_module_state(module: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    """Loads this rank's part of an unsplit module's state dict.

    Raises:
        RuntimeError: names or shapes do not fit (also those of layers on other ranks), as PyTorch words it.
    """
    with filling_own_part():
        module.load_state_dict(state, strict=strict)


@contextmanager
def filling_own_part() -> Generator[None, None, None]:
    """Around loading a whole state dict into a module whose foreign layers are meta tensors."""
    # Loading into them is a no-op that still compares names and shapes; PyTorch warns that it is one.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter.*")
        yield


def share_weights(module: nn.Module, mesh: PipelineMesh) -> None:
    """Replicas begin with the weights of the first one."""
    with TalkingTo(None):
        for tensor in (*module.parameters(), *module.buffers()):
            if not tensor.is_meta:
                dist.broadcast(tensor.detach(), src=mesh.pipeline_rank, group=mesh.data)


@dataclass(frozen=True)
class OptimizerLayout:
    """How the parameters of this rank are numbered in the optimizer of the unsplit module.

    Attributes:
        groups: for each parameter group, the numbers of all its parameters.
        own: for each parameter group, the numbers of those on this rank, in the order of the rank's optimizer.
    """

    groups: tuple[tuple[int, ...], ...]
    own: tuple[tuple[int, ...], ...]

    @classmethod
    def drop_foreign(cls, optimizer: Optimizer) -> OptimizerLayout:
        """Drops the parameters of other ranks (meta tensors) from ``optimizer`` and says what stood where."""
        return cls((), ()).with_new_groups(optimizer)

    def with_new_groups(self, optimizer: Optimizer) -> OptimizerLayout:
        """The same with the groups that ``optimizer`` has been given since; their foreign parameters are dropped."""
        groups, own = list(self.groups), list(self.own)
        number = sum(map(len, groups))
        for group in optimizer.param_groups[len(groups) :]:
            parameters: Sequence[Tensor] = group["params"]
            numbered = list(enumerate(parameters, start=number))
            number += len(parameters)
            groups.append(tuple(index for index, _ in numbered))
            own.append(tuple(index for index, parameter in numbered if not parameter.is_meta))
            group["params"] = [parameter for parameter in parameters if not parameter.is_meta]
            for parameter in parameters:
                if parameter.is_meta:  # some optimizers make their state in the constructor
                    optimizer.state.pop(parameter, None)
        return OptimizerLayout(tuple(groups), tuple(own))

    @property
    def _local(self) -> list[int]:
        return [number for group in self.own for number in group]

    def gather(self, optimizer: Optimizer, mesh: PipelineMesh | None) -> dict[str, Any]:
        """The state dict of the unsplit module's optimizer, on the first rank; empty on the others."""
        state = optimizer.state_dict()
        numbers = self._local
        packed: dict[Any, Any] = state["state"]
        gathered = gather_dicts({numbers[k]: value for k, value in packed.items() if isinstance(k, int)}, mesh)
        if mesh is not None and mesh.pipeline_rank != 0:
            return {}
        groups = [
            {**group, "params": list(numbers)}
            for group, numbers in zip(state["param_groups"], self.groups, strict=True)
        ]
        # What belongs to no parameter is this rank's.
        other = {key: value for key, value in packed.items() if not isinstance(key, int)}
        return {"state": {**dict(sorted(gathered.items())), **other}, "param_groups": groups}

    def load(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Loads this rank's part of the state dict of an unsplit module's optimizer."""
        local = {number: position for position, number in enumerate(self._local)}
        groups = [
            {**group, "params": [local[number] for number in own]}
            for group, own in zip(state["param_groups"], self.own, strict=True)
        ]
        optimizer.load_state_dict(
            {
                "state": {
                    local.get(key, key): value
                    for key, value in state["state"].items()
                    if key in local or not isinstance(key, int)
                },
                "param_groups": groups,
            }
        )


def gather_gradients(module: nn.Module, mesh: PipelineMesh | None) -> dict[str, Tensor]:
    """The gradients of an accumulation window by parameter name, on the first rank, summed over the replicas."""
    own = {}
    for name, parameter in module.named_parameters():
        if not parameter.is_meta and parameter.requires_grad:
            gradient = parameter.grad
            if mesh is not None and mesh.data_parallel_size > 1:
                gradient = mesh.sum_over_replicas(torch.zeros_like(parameter) if gradient is None else gradient.clone())
            if gradient is not None:
                own[name] = gradient
    return gather_dicts(own, mesh)


@dataclass(frozen=True)
class MetricStates:
    """Lets torchmetrics objects, which are updated on the last stage alone, compute the same value on every rank.

    Left to itself torchmetrics reduces over all ranks, also over those whose states have never been updated, which may
    have another dtype or spoil a mean.

    Attributes:
        ranks: global ranks of the last stage, one for each replica.
    """

    ranks: tuple[int, ...]

    @classmethod
    def of(cls, mesh: PipelineMesh, last_rank: int) -> MetricStates:
        """Those that are updated on pipeline rank ``last_rank`` of every replica."""
        return cls(tuple(range(last_rank, mesh.num_stages * mesh.data_parallel_size, mesh.num_stages)))

    def attach(self, module: nn.Module) -> None:
        """Makes the metrics of ``module`` gather their states like this, but for those with a way of their own."""
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.dist_sync_fn is None:
                metric.dist_sync_fn = self
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric .* was called before")

    @staticmethod
    def detach(module: nn.Module) -> None:
        """Undoes ``attach``."""
        for metric in module.modules():
            if isinstance(metric, Metric) and isinstance(metric.dist_sync_fn, MetricStates):
                metric.dist_sync_fn = None

    def __call__(self, state: Tensor, group: Any = None) -> list[Tensor]:
        """The ``state`` of each rank that has updated it; all ranks call it."""
        states: list[Any] = [None] * dist.get_world_size()
        with TalkingTo(None):
            dist.all_gather_object(states, state.cpu() if dist.get_rank() in self.ranks else None)
        return [states[rank].to(state.device) for rank in self.ranks]
