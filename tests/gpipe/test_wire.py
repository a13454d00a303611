"""Tensors and objects between two ranks: every dtype, any layout, any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.mailbox import Mailbox, receive_boundary
from repro.gpipe.sender import Sender
from repro.gpipe.wire import AbsenceMark, TensorSpec, absent, is_absent, spec_of
from tests.helpers.ranks import Pools

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def boundaries() -> list[Any]:
    torch.manual_seed(3)
    base = torch.randn(4, 6, 2)
    complex_numbers = torch.randn(3, 5, dtype=torch.complex64)
    made: list[Any] = [(torch.randn(3, 4) * 10).to(dtype) for dtype in DTYPES]
    made += [
        base.transpose(0, 2),
        base[::2, 1:5:2],
        base[:1].expand(3, 6, 2),
        complex_numbers.conj(),
        complex_numbers.conj().imag,
        torch.zeros(0, 5),
        torch.tensor(2.5),
        (base, None, base[:, 0] > 0),
        (None, torch.arange(3)),
        (),
        (base, base),
        torch.randn(300_000),
    ]
    return made


def exchange_boundaries(rank: int, world_size: int) -> list[bool]:
    """Rank 0 sends all of them at once; rank 1 tells which arrived as they were."""
    # Of its own: a mailbox goes on listening on its group.
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    if rank == 0:
        sender = Sender()
        for boundary in boundaries():
            sender.send_boundary(boundary, 1, group, group)
        sender.drain()
        return []
    mail = Mailbox(group)
    return [same(receive_boundary(0, mail, group, torch.device("cpu")), boundary) for boundary in boundaries()]


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(got, tuple) and len(got) == len(wanted) and all(map(same, got, wanted))
    if wanted is None:
        return got is None
    return got.dtype == wanted.dtype and got.shape == wanted.shape and torch.equal(got, wanted.resolve_conj())


def test_every_boundary_arrives_as_it_was(pools: Pools) -> None:
    _, arrived = pools(2).run(exchange_boundaries)
    assert arrived == [True] * len(boundaries()), [b for b, ok in zip(boundaries(), arrived, strict=True) if not ok]


@pytest.mark.parametrize(
    ("boundary", "text"),
    [
        (torch.zeros(2, 3), "float32[2, 3]"),
        ((torch.zeros(2, dtype=torch.bool), None), "(bool[2], None)"),
    ],
)
def test_headers_read_well_in_an_error(boundary: Tensor | tuple[Tensor | None, ...], text: str) -> None:
    flags = (False,) * (len(boundary) if isinstance(boundary, tuple) else 1)
    assert str(spec_of(boundary, flags)) == text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_what_is_absent_is_taken_for_absent(dtype: torch.dtype) -> None:
    """A conversion to bfloat16 makes NaNs of ones alone, which once meant "absent"."""
    spec = TensorSpec(dtype, (3, 20), False)
    nothing = absent(spec, torch.device("cpu"))
    assert (nothing.dtype, tuple(nothing.shape)) == (dtype, spec.shape)
    assert is_absent(nothing) == AbsenceMark(nothing).is_set() == spec.tells_absence
    ones = torch.full((spec.nbytes,), 0xFF if dtype != torch.bool else 1, dtype=torch.uint8).view(dtype).view(3, 20)
    made = [torch.full((3, 20), float("nan")).to(dtype), torch.zeros(3, 20).log().mul(0).to(dtype), ones]
    for value in made:
        assert not is_absent(value) and not AbsenceMark(value).is_set()
    first = nothing.clone()
    first.view(-1)[1] = 0
    assert not is_absent(first) and not AbsenceMark(first).is_set()


def test_an_empty_tensor_is_not_absent() -> None:
    spec = TensorSpec(torch.float32, (0, 4), False)
    nothing = absent(spec, torch.device("cpu"))
    assert nothing.shape == (0, 4) and not is_absent(nothing) and not AbsenceMark(nothing).is_set()
