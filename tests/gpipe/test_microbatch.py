from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.gpipe.microbatch import (
    BatchError,
    check_boundary,
    count_rows,
    elements,
    gather,
    like,
    micro_batch_rows,
    scatter,
)


@pytest.mark.parametrize(
    ("rows", "parts", "expected"),
    [
        (8, 4, (2, 2, 2, 2)),
        (7, 4, (2, 2, 2, 1)),
        (7, 3, (3, 2, 2)),
        (3, 8, (1, 1, 1)),
        (1, 1, (1,)),
        (1, 16, (1,)),
        (0, 4, ()),
        (9, 1, (9,)),
    ],
)
def test_micro_batches_are_as_equal_as_can_be_and_never_empty(rows: int, parts: int, expected: tuple[int, ...]) -> None:
    assert micro_batch_rows(rows, parts) == expected


def test_cutting_agrees_with_tensor_split_for_every_size() -> None:
    for rows in range(1, 20):
        for parts in range(1, 20):
            pieces = torch.arange(rows).tensor_split(min(rows, parts))
            assert micro_batch_rows(rows, parts) == tuple(map(len, pieces))


def test_scatter_and_gather_are_inverse_and_keep_none() -> None:
    batch = (torch.arange(14).reshape(7, 2), None, torch.arange(7) > 3)
    pieces = scatter(batch, micro_batch_rows(7, 3))
    assert [len(elements(piece)[0]) for piece in pieces] == [3, 2, 2]  # type: ignore[arg-type]
    assert all(piece[1] is None for piece in pieces)
    whole = gather(pieces)
    assert torch.equal(whole[0], batch[0]) and whole[1] is None and torch.equal(whole[2], batch[2])  # type: ignore[arg-type]


def test_a_single_tensor_stays_a_single_tensor() -> None:
    batch = torch.arange(5)
    assert torch.equal(gather(scatter(batch, (3, 2))), batch)  # type: ignore[arg-type]
    assert like(batch, [batch]) is batch
    assert like((batch,), [batch]) == (batch,)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ((torch.zeros(4, 2), torch.zeros(3)), None, r"inputs\[1\] has 3 rows .*inputs\[0\] has 4"),
        (torch.zeros(4, 2), (torch.zeros(4), torch.zeros(5, 1)), r"targets\[1\] has 5 rows .*inputs has 4"),
        ((None, torch.zeros(4)), torch.zeros(2), r"targets has 2 rows .*inputs\[1\] has 4"),
        (torch.tensor(1.0), None, "inputs is a scalar"),
        ((torch.zeros(3), torch.tensor(1.0)), None, r"inputs\[1\] is a scalar"),
        (None, None, "holds no tensor"),
        ({"x": torch.zeros(2)}, None, "inputs is a dict"),
        ((torch.zeros(2), (torch.zeros(2),)), None, "element 1 is a tuple"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_an_error_that_names_the_element(inputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        count_rows(inputs, targets)


def test_a_boundary_is_a_tensor_or_a_flat_tuple() -> None:
    tensor = torch.zeros(2)
    assert check_boundary(tensor, "here") is tensor
    assert check_boundary([tensor, None], "here") == (tensor, None)
    with pytest.raises(BatchError, match=r"the output of layer 3.*float"):
        check_boundary(1.0, "the output of layer 3")
