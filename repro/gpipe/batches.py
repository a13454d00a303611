"""How the mini-batch that one rank reads comes to the ranks of the stages that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from repro.errors import UserError

from .mesh import PipelineMesh
from .microbatch import BatchError, Boundary, MicroBatches, count_rows, elements, map_tensors
from .sender import Sender
from .stage import Stage
from .step import Mode
from .wire import BoundarySpec, Peer, spec_of, start_tensors


class Coming(NamedTuple):
    """What the rank that reads data says of a step before it; a header is None where there is no such batch."""

    mode: Mode
    rows: int
    inputs: BoundarySpec | None
    targets: BoundarySpec | None


class Batches:
    """Tells the ranks of a replica what comes, and brings the inputs and the targets to their stages.

    Args:
        mesh: the ranks; None where all stages are in this process.
        sender: of this rank.
        stages: those of this rank, by number.
        placement: the ranks of every stage.
    """

    def __init__(
        self,
        mesh: PipelineMesh | None,
        sender: Sender,
        stages: Mapping[int, Stage],
        placement: Sequence[Sequence[int]],
    ) -> None:
        self._mesh = mesh
        self._sender = sender
        self._stages = stages
        self._placement = placement

    def agree(
        self, mode: Mode, inputs: Boundary | None, targets: Boundary | None, batch_counter: int
    ) -> tuple[Coming, int]:
        """What comes: the rank that reads data sees it, the others of its replica wait until they are told."""
        mesh = self._mesh
        if mesh is not None and not mesh.reads_data:
            told: Coming
            told, counter = mesh.mail.receive_known(mesh.rank_of(mesh.pipeline_rank - 1))
            self._pass_on(mesh, told, counter)
            mesh.mail.post()
            if told.mode is not mode:
                raise UserError(
                    f"rank {mesh.global_rank} was about to {mode} but the rank that reads data {told.mode}s"
                )
            return told, int.from_bytes(counter, "little", signed=True)
        coming = Coming(
            mode,
            0 if inputs is None else count_rows(inputs, targets),
            None if inputs is None else spec_of(inputs),
            None if targets is None else spec_of(targets),
        )
        if mode is not Mode.PREDICT and coming.rows and coming.targets is None:
            raise BatchError(f"{mode} needs targets; split_batch(batch) must return (inputs, targets)")
        return coming, batch_counter

    def announce(self, coming: Coming, batch_counter: int) -> None:
        """The rank that reads data tells the others, who wait for it in ``agree``."""
        assert self._mesh is not None
        self._pass_on(self._mesh, coming, batch_counter.to_bytes(8, "little", signed=True))

    def hand_out(self, batch: Boundary | None, stage: int) -> None:
        """The rank that reads data sends the inputs or targets that a stage of another rank uses."""
        mesh = self._mesh
        if mesh is not None and mesh.reads_data and batch is not None and stage not in self._stages:
            target = self._placement[stage][0]
            self._sender.send_tensors(elements(batch), mesh.rank_of(target), _channel(mesh, stage, target))

    def micro_batches(
        self, batch: Boundary | None, spec: BoundarySpec | None, stage: int, parts: tuple[int, ...]
    ) -> MicroBatches | None:
        """Of the inputs or targets, on the rank of the stage that uses them; they come whole."""
        if stage not in self._stages:
            return None
        mesh, device = self._mesh, self._stages[stage].device
        if mesh is not None and not mesh.reads_data and spec is not None:
            source = Peer.of(mesh.rank_of(0), _channel(mesh, stage, mesh.pipeline_rank))
            return MicroBatches(start_tensors(spec, source, device), parts)
        if batch is None:
            return None
        return MicroBatches(lambda: map_tensors(lambda e: e.to(device), batch), parts)

    def _pass_on(self, mesh: PipelineMesh, coming: Coming, counter: bytes) -> None:
        # From rank to rank, so that the first stage can begin after one message and not after K - 1.
        if mesh.pipeline_rank + 1 < mesh.num_stages:
            self._sender.send_known(coming, counter, mesh.rank_of(mesh.pipeline_rank + 1), mesh.control)


def _channel(mesh: PipelineMesh, stage: int, target: int) -> dist.ProcessGroup:
    """How inputs or targets go to the rank of ``stage``."""
    # Both sides come to the inputs before all activations, and to the targets before all gradients, but the sender not
    # before the first activation: NCCL matches by order.
    return mesh.channel("gradient" if stage else "activation", 0, target)
