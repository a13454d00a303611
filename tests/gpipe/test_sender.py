"""What is sent is kept until it has arrived, and not much longer."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from repro.gpipe.sender import Sender
from tests.helpers.ranks import Pools

MIB = 2**18
"""Numbers in float32."""


def send_much(rank: int, world_size: int, count: int) -> list[int]:
    """MiB alive on the sender: before the receiver takes anything, once it has taken all, and after ``drain``."""
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    if rank == 1:
        dist.barrier()
        for _ in range(count):
            dist.recv(torch.empty(MIB), 0, group)
        dist.barrier()
        return []
    sender, sent = Sender(), []
    for number in range(count):
        tensor = torch.full((MIB,), float(number))
        sent.append(StorageWeakRef(tensor.untyped_storage()))
        sender.send(tensor, 1, group)
        del tensor

    def alive() -> int:
        return sum(not storage.expired() for storage in sent)

    seen = [alive()]
    dist.barrier()
    dist.barrier()
    # It takes a moment until what has arrived is let go, or would be.
    deadline = time.monotonic() + (20 if count > 16 else 0.3)
    while alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    seen.append(alive())
    sender.drain()
    return [*seen, alive()]


def test_what_has_arrived_is_let_go_where_much_is_under_way(pools: Pools) -> None:
    assert pools(2).run(send_much, 24)[0] == [24, 0, 0]


def test_what_is_little_is_kept_until_the_step_ends(pools: Pools) -> None:
    """A look at it would cost more than it holds."""
    assert pools(2).run(send_much, 3)[0] == [3, 3, 0]
