"""How small objects travel between two ranks: in frames of one size, so that receives can be posted ahead."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .microbatch import Boundary
from .wire import Peer, start_receive, start_tensors, wait_for

MAIL = 1
"""The tag of mail."""

_FRAME = 2048
_LENGTHS = struct.Struct("<QI")


@lru_cache(maxsize=64)
def pickled(value: Hashable) -> bytes:
    """Of a value that is often equal to an earlier one."""
    return pickle.dumps(value)


@lru_cache(maxsize=64)
def _unpickled(data: bytes) -> Any:
    # Of a hashable value: sharing it does no harm.
    return pickle.loads(data)


def mail_frames(data: bytes, tail: bytes) -> list[Tensor]:
    """What is sent for two byte strings: a frame, and, where it does not hold all, the rest."""
    filled = bytearray(_LENGTHS.pack(len(data), len(tail)) + data + tail).ljust(_FRAME, b"\0")
    body = torch.frombuffer(filled, dtype=torch.uint8)
    return [body] if len(filled) == _FRAME else [body[:_FRAME], body[_FRAME:]]


class Mailbox:
    """Receives small objects that other ranks of a group send with ``Sender.send_object``.

    Once a rank has sent something, the receive of its next object is posted ahead: whoever waits for it then waits for
    one message and not for a round trip.

    Args:
        group: a gloo group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sources: dict[int, Peer] = {}
        self._posted: dict[int, tuple[dist.Work, bytearray]] = {}

    def receive(self, source: int) -> Any:
        """Waits for the next object of global rank ``source``."""
        data, _ = self._receive(source)
        self.post()
        return pickle.loads(data)

    def receive_known(self, source: int) -> tuple[Any, bytes]:
        """Waits for what global rank ``source`` sent with ``Sender.send_known``; ``post`` posts the next receive."""
        data, tail = self._receive(source)
        return _unpickled(data), tail

    def post(self) -> None:
        """Posts the receive of the next object of every rank that has sent one."""
        for rank, source in self._sources.items():
            if rank not in self._posted:
                self._posted[rank] = _start(source, _FRAME)

    def _receive(self, source: int) -> tuple[bytes, bytes]:
        peer = self._sources.get(source)
        if peer is None:
            peer = self._sources[source] = Peer.of(source, self._group)
        work, data = self._posted.pop(source) if source in self._posted else _start(peer, _FRAME)
        wait_for([work], peer)
        length, tail_length = _LENGTHS.unpack_from(data)
        end = _LENGTHS.size + length
        missing = end + tail_length - _FRAME
        if missing > 0:
            work, rest = _start(peer, missing)
            wait_for([work], peer)
            data = data + rest  # not in place: a tensor is over it
        return bytes(data[_LENGTHS.size : end]), bytes(data[end : end + tail_length])


def _start(source: Peer, size: int) -> tuple[dist.Work, bytearray]:
    """Posts the receive of a frame."""
    data = bytearray(size)
    return start_receive(torch.frombuffer(data, dtype=torch.uint8), source, MAIL), data


def receive_boundary(source: int, mail: Mailbox, group: dist.ProcessGroup, device: torch.device) -> Boundary:
    """Waits for what global rank ``source`` sent with ``Sender.send_boundary``."""
    return start_tensors(mail.receive(source), Peer.of(source, group), device)()
