"""How tensors travel between two ranks: headers, and what is sent for the tensors of one message."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .microbatch import Boundary, elements

_PIECE = 2**20
"""Bytes up to which the tensors of one message are sent in one piece."""

_ALIGNMENT = 64
"""Of each tensor in a piece, in bytes; enough for any dtype."""


class _Mark(NamedTuple):
    """The value of a float that says "absent": a signalling NaN, which neither arithmetic nor a conversion makes.

    As integers of the size of the float: those of PyTorch, and those that show one without a call to PyTorch.
    """

    integers: torch.dtype
    word: type[ctypes.c_int16 | ctypes.c_int32 | ctypes.c_int64]
    value: int


_REAL_MARKS = {
    torch.bfloat16: _Mark(torch.int16, ctypes.c_int16, -0x5B),  # 0xFFA5
    torch.float16: _Mark(torch.int16, ctypes.c_int16, -0x25B),  # 0xFDA5
    torch.float32: _Mark(torch.int32, ctypes.c_int32, -0x5A5A5B),  # 0xFFA5A5A5
    torch.float64: _Mark(torch.int64, ctypes.c_int64, -0xA5A5A5A5A5A5B),  # 0xFFF5A5A5A5A5A5A5
}
_MARKS = _REAL_MARKS | {
    torch.complex32: _REAL_MARKS[torch.float16],
    torch.complex64: _REAL_MARKS[torch.float32],
    torch.complex128: _REAL_MARKS[torch.float64],
}
"""By dtype; a complex number is two floats."""


class ConnectionLost(RuntimeError):
    """A wait for another rank ended with an error.

    Args:
        peer: global rank of the other side, None where it may be any.
        where: what this rank was about to run.
    """

    def __init__(self, peer: int | None, where: str = "between two steps") -> None:
        other = "another rank" if peer is None else f"rank {peer}"
        super().__init__(f"{where}: lost the connection to {other}, whose process has ended or does not answer")
        self.peer = peer
        self.where = where


class TalkingTo:
    """Names the peer in an error of the backend; where a stage waits, ``try`` does it without the time of a call."""

    __slots__ = ("_peer",)

    def __init__(self, peer: int | None) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise ConnectionLost(self._peer) from error


class Peer(NamedTuple):
    """Another rank of a group: its global rank, and its rank there, which the group's own calls take."""

    rank: int
    group: dist.ProcessGroup
    group_rank: int

    @classmethod
    def of(cls, rank: int, group: dist.ProcessGroup) -> Peer:
        """Global rank ``rank``; to be kept, since looking it up costs more than a receive."""
        return cls(rank, group, dist.get_group_rank(group, rank))


class TensorSpec(NamedTuple):
    """What a receiver must know to post a receive, and whether a gradient will come back."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    @property
    def nbytes(self) -> int:
        """Size of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def tells_absence(self) -> bool:
        """Whether ``absent`` differs from every tensor that could be sent."""
        return self.dtype in _MARKS and 0 not in self.shape


class BoundarySpec(NamedTuple):
    """The header of an edge: one spec an element, None for None."""

    is_tuple: bool
    elements: tuple[TensorSpec | None, ...]

    @property
    def tensors(self) -> list[TensorSpec]:
        """The elements that travel."""
        return [element for element in self.elements if element is not None]

    def assemble(self, tensors: Sequence[Tensor]) -> Boundary:
        """The boundary of the tensors that have arrived."""
        if not self.is_tuple:
            return tensors[0]
        remaining = iter(tensors)
        return tuple(None if element is None else next(remaining) for element in self.elements)

    def __str__(self) -> str:
        listed = ", ".join(str(element) for element in self.elements)
        return f"({listed})" if self.is_tuple else listed


def spec_of(boundary: Boundary, requires_grad: tuple[bool, ...] | None = None) -> BoundarySpec:
    """The header of ``boundary``; without ``requires_grad`` no gradient will come back."""
    values = elements(boundary)
    return BoundarySpec(
        isinstance(boundary, tuple),
        tuple(
            None if element is None else TensorSpec(element.dtype, tuple(element.shape), flag)
            for element, flag in zip(values, requires_grad or (False,) * len(values), strict=True)
        ),
    )


@lru_cache(maxsize=64)
def gradient_spec(spec: BoundarySpec) -> BoundarySpec:
    """The header of the gradients that come back for ``spec``: of its elements that require one."""
    return BoundarySpec(True, tuple(e if e is not None and e.requires_grad else None for e in spec.elements))


def absent(spec: TensorSpec, device: torch.device) -> Tensor:
    """What travels in place of a tensor that is not there; zeros where the dtype cannot tell.

    A receive may be posted before anyone knows whether there is a gradient, so something must come.
    """
    mark = _MARKS.get(spec.dtype)
    if mark is None:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=device)
    words = spec.nbytes // mark.integers.itemsize
    return torch.full((words,), mark.value, dtype=mark.integers, device=device).view(spec.dtype).view(spec.shape)


def is_absent(value: Tensor) -> bool:
    """Whether ``value`` came from ``absent``, and its dtype can tell (``TensorSpec.tells_absence``)."""
    mark = _MARKS.get(value.dtype)
    if mark is None or not value.numel():
        return False
    words = value.detach().view(-1).view(mark.integers)
    # Few are worth a look at more than the first word.
    return words[0].item() == mark.value and bool((words == mark.value).all())


class AbsenceMark:
    """``is_absent`` of a tensor that is being received: what it takes is prepared before the tensor has come.

    After that the stage waits for the answer, and each call that PyTorch dispatches then delays it.
    """

    __slots__ = ("_first", "_value")

    def __init__(self, value: Tensor) -> None:
        self._value = value
        mark = _MARKS.get(value.dtype)
        readable = value.is_cpu and value.numel() > 0
        self._first = (mark.word.from_address(value.data_ptr()), mark.value) if mark is not None and readable else None

    def is_set(self) -> bool:
        """Whether what has come is ``absent``."""
        if self._first is not None and self._first[0].value != self._first[1]:
            return False
        return is_absent(self._value)


def as_frames(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What is sent for the tensors of one message: small ones in one piece, since each send costs a wake-up."""
    sizes = [_aligned(tensor.nbytes) for tensor in tensors] if len(tensors) > 1 else []
    if not sizes or sum(sizes) > _PIECE:
        return [tensor for tensor in tensors if tensor.numel()]
    piece = torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
    for tensor, part in zip(tensors, piece.split(sizes), strict=True):
        part[: tensor.nbytes].copy_(as_bytes(plain(tensor)))
    return [piece]


def empty_frames(specs: Sequence[TensorSpec], device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Buffers to receive what ``as_frames`` sends, and the tensors in them."""
    sizes = [_aligned(spec.nbytes) for spec in specs] if len(specs) > 1 else []
    if not sizes or sum(sizes) > _PIECE:
        values = [torch.empty(spec.shape, dtype=spec.dtype, device=device) for spec in specs]
        return [value for value in values if value.numel()], values
    piece = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    parts = zip(specs, piece.split(sizes), strict=True)
    # .data: the tensors share memory but not a version counter, as if each had come in a buffer of its own.
    return [piece], [part[: spec.nbytes].view(spec.dtype).view(spec.shape).data for spec, part in parts]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def plain(tensor: Tensor) -> Tensor:
    """The tensor's values in memory as they are read, in order."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous()


def start_receive(into: Tensor, source: Peer, tag: int = 0) -> dist.Work:
    """Posts the receive of what ``source`` sends with ``Sender.send``; ``into`` is contiguous.

    The group's own call, as ``dist.irecv`` makes it: what that adds (logging, look-ups) costs more than the call.
    """
    try:
        return source.group.recv([as_sent(into)], source.group_rank, tag)
    except RuntimeError as error:
        raise ConnectionLost(source.rank) from error


def wait_for(works: list[dist.Work], source: Peer) -> None:
    """Waits for receives from ``source``, and takes them out of the list."""
    try:
        while works:
            works.pop().wait()
    except RuntimeError as error:
        raise ConnectionLost(source.rank) from error


def as_sent(tensor: Tensor) -> Tensor:
    """The tensor as the backend is given it: gloo sends bytes whatever their dtype, NCCL does not know every dtype."""
    return tensor if tensor.is_cpu else as_bytes(tensor)


def as_bytes(tensor: Tensor) -> Tensor:
    """A flat view of a contiguous tensor of any dtype as bytes, which every backend carries."""
    return tensor.reshape(-1).view(torch.uint8)


def start_tensors(spec: BoundarySpec, source: Peer, device: torch.device) -> Callable[[], Boundary]:
    """Posts the receives of what ``source`` sends with ``Sender.send_tensors``; the function returned waits for it."""
    buffers, tensors = empty_frames(spec.tensors, device)
    works = [start_receive(buffer, source) for buffer in buffers]

    def wait() -> Boundary:
        wait_for(works, source)
        return spec.assemble(tensors)

    return wait
