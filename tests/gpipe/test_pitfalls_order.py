"""NCCL knows no tags: two ranks of a group must come to their messages in the same order, or both wait forever."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from torch import Tensor

from repro.gpipe import mesh as meshes
from repro.gpipe import process_transport, wire
from repro.gpipe.mailbox import MAIL
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.sender import Sender
from repro.gpipe.wire import Peer, start_receive
from tests.helpers.models import MODELS
from tests.helpers.pipelines import ORDERS, Cell, make_engine
from tests.helpers.ranks import Pools

CHANNELS = [("activation", True), ("activation", False), ("gradient", True), ("gradient", False)]


class Operation(NamedTuple):
    """What a rank hands to a group; ``sends`` or receives."""

    group: int
    peer: int
    sends: bool
    num_bytes: int


def operations(rank: int, world_size: int, cell: Cell, one_way: bool) -> list[Operation]:
    """Those of two training steps, an evaluation and a prediction, with the groups of GPUs or those of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meshes, "one_way", lambda device: one_way)
        mesh = PipelineMesh(world_size)
        groups = list(dict.fromkeys(mesh.channel(kind, 0 if up else 1, 1 if up else 0) for kind, up in CHANNELS))  # type: ignore[arg-type]
        noted: list[Operation] = []
        start = Sender._start

        def sending(self: Sender, whole: Tensor, destination: int, group: dist.ProcessGroup, tag: int) -> None:
            if tag != MAIL:
                noted.append(Operation(groups.index(group), destination, True, whole.nbytes))
            start(self, whole, destination, group, tag)

        def receiving(into: Tensor, source: Peer, tag: int = 0) -> dist.Work:
            noted.append(Operation(groups.index(source.group), source.rank, False, into.nbytes))
            return start_receive(into, source, tag)

        patch.setattr(Sender, "_start", sending)
        patch.setattr(process_transport, "start_receive", receiving)
        patch.setattr(wire, "start_receive", receiving)
        spec = MODELS[cell.model]
        engine = make_engine(cell, spec.layers(), mesh)
        batch = spec.batch(cell.rows, 0) if rank == 0 else (None, None)
        try:
            for counter in range(2):
                engine.train_step(*batch, batch_counter=counter)
            engine.evaluate(*batch)
            engine.predict(batch[0])
        finally:
            engine.close()
            mesh.close()
        return noted


def out_of_order(by_rank: list[list[Operation]]) -> list[Any]:
    """Where one side of a group sends and the other does not receive just that."""
    sides: dict[tuple[int, int, int], list[tuple[bool, int]]] = defaultdict(list)
    for rank, noted in enumerate(by_rank):
        for operation in noted:
            sides[operation.group, rank, operation.peer].append((operation.sends, operation.num_bytes))
    return [
        (group, rank, peer, position)
        for (group, rank, peer), side in sides.items()
        for position, (one, other) in enumerate(
            zip(side, sides.get((group, peer, rank), []) + [(True, -1)] * len(side), strict=False)
        )
        if one != (not other[0], other[1])
    ]


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize(("schedule", "num_virtual_stages"), ORDERS)
def test_both_sides_of_a_group_come_to_their_messages_in_one_order(
    schedule: str, num_virtual_stages: int, num_stages: int, pools: Pools
) -> None:
    """Targets that came after a receive from the same rank, and activations that went both ways in one group."""
    cell = Cell("deep", num_stages, 4, "except_last", 7, num_virtual_stages, schedule)
    by_rank = pools(num_stages).run(operations, cell, True)
    assert all(len(noted) > 16 for noted in by_rank)
    assert {sends for noted in by_rank for _, _, sends, _ in noted} == {True, False}
    assert out_of_order(by_rank) == []


def test_virtual_stages_need_a_group_for_each_way(pools: Pools) -> None:
    """So the test above can fail; gloo, which the CPU has, keeps the two ways apart by itself."""
    by_rank = pools(2).run(operations, Cell("deep", 2, 4, "never", 8, 2, "interleaved"), False)
    assert out_of_order(by_rank)
