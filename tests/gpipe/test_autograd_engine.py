"""The engine that is called itself does what ``torch.autograd.backward`` does."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from repro.gpipe.autograd_engine import run_backward


def _graph() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    outputs = [leaves[0] * leaves[1], leaves[1].exp() @ leaves[2].T]
    return leaves, outputs, [torch.randn(output.shape, generator=generator).double() for output in outputs]


@pytest.mark.parametrize("chosen", [(), (1,), (0, 2)])
def test_it_collects_the_gradients_of_torch_autograd_backward(chosen: tuple[int, ...]) -> None:
    leaves, outputs, seeds = _graph()
    reference, same_outputs, _ = _graph()

    run_backward(outputs, seeds, inputs=[leaves[number] for number in chosen])
    torch.autograd.backward(same_outputs, seeds, inputs=[reference[number] for number in chosen] or None)

    for leaf, other in zip(leaves, reference, strict=True):
        assert (leaf.grad is None) == (other.grad is None)
        assert leaf.grad is None or torch.equal(leaf.grad, other.grad)


def test_the_graph_goes_unless_it_is_retained() -> None:
    leaves, outputs, seeds = _graph()

    run_backward(outputs, seeds, retain_graph=True)
    once = [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]
    run_backward(outputs, seeds)

    assert all(torch.equal(leaf.grad, 2 * first) for leaf, first in zip(leaves, once, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        run_backward(outputs, seeds)


class _Watched(Tensor):
    """A tensor whose class has a say in its backward."""

    calls: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_of_a_class_of_its_own_is_asked() -> None:
    leaf = torch.ones(3, requires_grad=True)
    output = (2 * leaf).as_subclass(_Watched)
    _Watched.calls.clear()

    run_backward([output], [torch.ones(3)])

    assert torch.autograd.backward in _Watched.calls
    assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2]


def test_other_devices_go_through_torch_autograd_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = torch.ones(3, device="meta", requires_grad=True)
    seen: list[Any] = []
    whole = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: (seen.append(args), whole(*args, **kwargs)))

    run_backward([2 * leaf], [torch.ones(3, device="meta")])

    assert len(seen) == 1 and leaf.grad is not None
