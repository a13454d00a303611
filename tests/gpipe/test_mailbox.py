"""Small objects between ranks."""

from __future__ import annotations

import torch.distributed as dist

from repro.gpipe.mailbox import Mailbox
from repro.gpipe.sender import Sender
from tests.helpers.ranks import Pools


def exchange_objects(rank: int, world_size: int, sizes: tuple[int, ...]) -> list[int]:
    # Of its own: a mailbox goes on listening on its group.
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    if rank == 1:
        mail = Mailbox(group)
        return [len(mail.receive(0)) for _ in sizes]
    sender = Sender()
    for size in sizes:
        sender.send_object("x" * size, 1, group)
    sender.drain()
    return []


def test_objects_around_the_size_of_a_frame_arrive_whole(pools: Pools) -> None:
    sizes = (0, 1, *range(2000, 2060), 5000, 100_000)
    assert pools(2).run(exchange_objects, sizes)[1] == list(sizes)
