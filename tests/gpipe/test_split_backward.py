"""I and W together are B: the same gradients, each operation once, hooks once, and what I is done with is freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from repro.gpipe.microbatch import elements
from repro.gpipe.split_backward import WeightGradients, backward_inputs

WIDTH = 6


class Both(torch.autograd.Function):
    """x w for a matrix w, both gradients in one piece."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(value, weight)
        return value @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        value, weight = ctx.saved_tensors
        return gradients[0] @ weight.T, value.T @ gradients[0]


class AddsByItself(torch.autograd.Function):
    """Adds to the ``.grad`` of its weight in its backward, as fused gradient accumulation does."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        ctx.weight = weight
        return value @ weight.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (value,) = ctx.saved_tensors
        made = value.T @ gradients[0]
        ctx.weight.grad = made if ctx.weight.grad is None else ctx.weight.grad + made
        return gradients[0] @ ctx.weight.detach().T, None


class Body(nn.Module):
    """A graph that is made by ``function(module, value)`` from three linear layers, two vectors and a matrix."""

    def __init__(self, function: Callable[[Body, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale, self.shift = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.randn(WIDTH))
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.table = nn.Embedding(11, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.convolution = nn.Conv1d(2, 2, 3, padding=1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.bilinear = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Any:
        return self.function(self, value)


def _hooked(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
    tensor.register_hook(hook)
    return tensor


def _node_hooked(tensor: Tensor) -> Tensor:
    assert tensor.grad_fn is not None
    tensor.grad_fn.register_hook(lambda made, received: tuple(None if g is None else 3 * g for g in made))
    return tensor


def _changed_in_place(module: Body, value: Tensor) -> Tensor:
    hidden = module.first(value) * 1.0
    hidden[:, :2].add_(module.shift[:2])
    hidden.mul_(module.scale)
    return module.second(hidden)


def _tokens(value: Tensor) -> Tensor:
    return torch.arange(len(value)) % 11


def _gradient_in_forward(module: Body, value: Tensor) -> Tensor:
    hidden = module.first(value).tanh()
    (inner,) = torch.autograd.grad(hidden.square().sum(), module.first.weight, create_graph=True)
    return module.second(hidden) + inner.sum()


def _two_layers(module: Body) -> Callable[[Tensor], Tensor]:
    return lambda value: module.second(module.first(value).relu())


def _weight_norm(module: Body, value: Tensor) -> Tensor:
    weight = module.matrix * (module.scale / module.matrix.norm(dim=1))[:, None]
    return functional.linear(module.first(value).relu(), weight)


def _packed(module: Body, value: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, 1), lambda packed: packed[0]):
        hidden = module.first(value).relu()
    return module.second(hidden)


GRAPHS: dict[str, Callable[[Body, Tensor], Any]] = {
    "linear": lambda m, x: m.second(m.first(x).relu()),
    "three dimensions": lambda m, x: m.second(functional.gelu(m.first(x[:, None].expand(-1, 3, -1)))),
    "input reaches nothing": lambda m, x: m.first(torch.ones(3, WIDTH, dtype=x.dtype)),
    "one output without the input": lambda m, x: (m.first(x), m.second(m.table(_tokens(x)))),
    "embedding added": lambda m, x: m.second(m.first(x) + m.third(m.table(_tokens(x)))),
    "parameter is an output": lambda m, x: (m.first(x), m.matrix, m.shift * 2),
    "input is an output": lambda m, x: (x, m.first(x), x * m.scale),
    "scale and shift": lambda m, x: m.first(x) * m.scale + m.shift - m.scale / 2,
    "division": lambda m, x: m.first(x) / m.scale,
    "broadcast parameter": lambda m, x: m.first(x)[:, None] * m.matrix,
    "concatenation": lambda m, x: torch.cat([m.first(x), m.matrix, m.shift[None]]),
    "used twice in a row": lambda m, x: m.first(m.first(x).tanh()),
    "used twice side by side": lambda m, x: m.first(x) * m.first(x.tanh()),
    "used three times, skip": lambda m, x: m.first(x) + m.first(m.second(m.first(x).relu())),
    "weight of one, bias of another": lambda m, x: functional.linear(m.first(x).relu(), m.second.weight, m.first.bias),
    "transposed weight again": lambda m, x: m.first(x).relu() @ m.first.weight,
    "weight times itself": lambda m, x: x @ (m.matrix @ m.matrix) @ m.matrix,
    "two matrices": lambda m, x: (x @ m.matrix) @ (m.matrix.T @ x.T),
    "weight norm": _weight_norm,
    "layer norm": lambda m, x: m.second(m.norm(m.first(x))),
    "batch norm": lambda m, x: m.second(m.batch_norm(m.first(x)).relu()),
    "convolution": lambda m, x: m.convolution(m.convolution(m.first(x)[:, None].expand(-1, 2, -1)).relu()),
    "attention": lambda m, x: m.attention(m.first(x)[None], m.second(x)[None], x[None])[0][0],
    "attention over parameters": lambda m, x: functional.scaled_dot_product_attention(
        m.first(x)[None, None], m.matrix[None, None], m.second(m.matrix)[None, None]
    )[0, 0],
    "recurrent": lambda m, x: m.recurrent(m.first(x)[None])[0][0],
    "bilinear": lambda m, x: m.bilinear(m.first(x), x),
    "batched product": lambda m, x: torch.einsum("bi,ijk,bk->bj", m.first(x), m.bilinear.weight, x),
    "function of the user": lambda m, x: m.second(Both.apply(m.first(x), m.matrix)),
    "function of parameters": lambda m, x: m.first(x) @ Both.apply(m.matrix, m.matrix),
    "function that adds by itself": lambda m, x: AddsByItself.apply(m.first(x), m.matrix),
    "shared with a function": lambda m, x: (Both.apply(m.first(x), m.matrix) + x).relu() @ m.matrix,
    "in place": _changed_in_place,
    "in place on the input": lambda m, x: m.first(x.mul_(m.scale).relu_()),
    "complex": lambda m, x: torch.view_as_real(torch.complex(m.first(x), x) * torch.complex(m.scale, m.shift)).sum(-1),
    "complex times real": lambda m, x: (torch.complex(m.first(x), x) * m.scale).abs(),
    "lower precision": lambda m, x: functional.linear(m.first(x).float(), m.matrix.float(), m.shift.float()).double(),
    "gradient in forward": _gradient_in_forward,
    "hook on an activation": lambda m, x: m.second(_hooked(m.first(x), lambda g: 2 * g).relu()),
    "hook on the last activation": lambda m, x: _hooked(m.first(x), lambda g: g * g),
    "hook on a derived weight": lambda m, x: m.first(x) @ _hooked(m.matrix * m.scale, lambda g: g * g),
    "hook on a node": lambda m, x: m.second(_node_hooked(m.first(x))),
    "saved with hooks": _packed,
    "detached": lambda m, x: m.second(m.first(x).detach()) + m.first(x).detach() * m.scale + x,
    "parts of a weight": lambda m, x: (
        m.first(x)[:, :3] @ m.matrix[:3] + x[:, :4] @ m.matrix.view(-1)[:24].view(4, WIDTH)
    ),
    "checkpoint": lambda m, x: m.third(checkpoint(_two_layers(m), x, use_reentrant=False)),
    "checkpointed derived weight": lambda m, x: checkpoint(lambda v: v @ (m.matrix @ m.matrix), x, use_reentrant=False),
    "reentrant checkpoint": lambda m, x: m.third(checkpoint(_two_layers(m), x, use_reentrant=True)),
    "frozen": lambda m, x: functional.linear(m.first(x).relu(), m.matrix.detach(), m.shift),
}


@dataclass(frozen=True)
class Made:
    """What a backward made: gradients by name (the input's too), the FLOPs of its parts, and the names left for W."""

    gradients: dict[str, Tensor | None]
    flops: list[int]
    waited: set[str]
    whole: str | None


def counted(part: Callable[[], Any]) -> tuple[Any, int]:
    with FlopCounterMode(display=False) as counter:
        result = part()
    return result, counter.get_total_flops()


def differentiate(function: Callable[[Body, Tensor], Any], *, split: bool) -> Made:
    """One micro-batch of four rows through ``function``, then B, or I and W."""
    torch.manual_seed(0)
    module = Body(function).double()
    leaf = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
    outputs = [output for output in elements(module(leaf.clone())) if output is not None and output.requires_grad]
    seeds = [torch.randn(output.shape, dtype=output.dtype) for output in outputs]
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    if split:
        weights, first = counted(lambda: backward_inputs(outputs, seeds, [leaf]))
        waited = {names[id(parameter)] for parameter in weights.parameters}
        early = None if leaf.grad is None else leaf.grad.clone()
        _, second = counted(weights.accumulate)
        assert (leaf.grad is None) == (early is None)
        assert early is None or torch.equal(early, leaf.grad), "W changed the gradient of the input"
        flops, whole = [first, second], weights.whole
    else:
        flops = [counted(lambda: torch.autograd.backward(outputs, seeds))[1]]
        waited, whole = set(), None
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return Made({**gradients, "input": leaf.grad}, flops, waited, whole)


def compare(split: Made, plain: Made) -> None:
    for name, expected in plain.gradients.items():
        torch.testing.assert_close(
            split.gradients[name], expected, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert sum(split.flops) == sum(plain.flops), "some arithmetic is done twice, or not at all"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(GRAPHS))
def test_both_parts_make_what_one_backward_makes(name: str) -> None:
    compare(differentiate(GRAPHS[name], split=True), differentiate(GRAPHS[name], split=False))


LEFT_FOR_WEIGHTS = {
    "linear": {"first.weight", "first.bias", "second.weight", "second.bias"},
    "input reaches nothing": {"first.weight", "first.bias"},
    "one output without the input": {"first.weight", "first.bias", "second.weight", "second.bias", "table.weight"},
    "embedding added": {f"{layer}.{part}" for layer in ("first", "second", "third") for part in ("weight", "bias")}
    | {"table.weight"},
    "parameter is an output": {"first.weight", "first.bias", "matrix", "shift"},
    "scale and shift": {"first.weight", "first.bias", "scale", "shift"},
    "used twice in a row": {"first.weight", "first.bias"},
    "transposed weight again": {"first.weight", "first.bias"},
    "weight norm": {"first.weight", "first.bias", "matrix", "scale"},
    "convolution": {"first.weight", "first.bias", "convolution.weight", "convolution.bias"},
    "layer norm": {"first.weight", "first.bias", "second.weight", "second.bias"},
    "function of the user": {"first.weight", "first.bias", "second.weight", "second.bias"},
    "shared with a function": {"first.weight", "first.bias"},
    "hook on a node": {"second.weight", "second.bias"},
    "reentrant checkpoint": set(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(LEFT_FOR_WEIGHTS))
def test_what_waits_for_the_second_part(name: str) -> None:
    """Parameters that the input does not reach wait too; a node that makes all in one piece does not."""
    made = differentiate(GRAPHS[name], split=True)
    assert made.waited == LEFT_FOR_WEIGHTS[name]
    assert (made.whole is None) == (name != "reentrant checkpoint")


def test_matrix_products_are_halved() -> None:
    for name in ("linear", "used twice in a row", "convolution"):
        first, second = differentiate(GRAPHS[name], split=True).flops
        assert first == second > 0, name


STEPS = ("linear", "tied", "add", "multiply", "scale", "function", "norm", "tanh", "in place", "detach", "halves")


@settings(max_examples=60, deadline=None)
@given(
    program=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12),
    outputs=st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_any_graph(program: list[tuple[str, int, int]], outputs: list[int]) -> None:
    """Random graphs over the input, a value that the input does not reach, and shared parameters."""

    def build(module: Body, value: Tensor) -> Any:
        values = [value, module.table(torch.arange(4))]
        for step, left, right in program:
            one, other = values[left % len(values)], values[right % len(values)]
            if step == "linear":
                made = (module.second if right % 2 else module.third)(one)
            elif step == "tied":
                made = functional.linear(one, module.first.weight)
            elif step == "add":
                made = one + other
            elif step == "multiply":
                made = one * other
            elif step == "scale":
                made = one * module.scale + module.shift
            elif step == "function":
                made = Both.apply(one, module.matrix)
            elif step == "norm":
                made = module.norm(one)
            elif step == "tanh":
                made = one.tanh()
            elif step == "in place":
                made = (one + 1).mul_(module.scale)
            elif step == "detach":
                made = one.detach() + module.shift
            else:
                made = torch.cat([one[:, :2], other[:, 2:]], dim=1)
            values.append(made.clamp(-3, 3))
        return tuple(values[index % len(values)] for index in outputs)

    compare(differentiate(build, split=True), differentiate(build, split=False))


def test_hooks_run_once_for_a_micro_batch() -> None:
    def calls(*, split: bool) -> dict[str, int]:
        seen: dict[str, int] = {}

        def count(what: str) -> Callable[..., None]:
            def hook(*arguments: Any) -> None:
                seen[what] = seen.get(what, 0) + 1

            return hook

        def graph(module: Body, value: Tensor) -> Tensor:
            module.first.register_full_backward_hook(count("module"))
            module.second.register_full_backward_pre_hook(count("before module"))
            module.first.weight.register_hook(count("weight"))
            module.first.bias.register_post_accumulate_grad_hook(count("after bias"))
            module.norm.weight.register_hook(count("norm"))
            hidden = module.first(value)
            hidden.register_hook(count("activation"))
            again = module.norm(functional.linear(hidden.tanh(), module.first.weight))
            derived = module.matrix * module.scale
            derived.register_hook(count("derived weight"))
            return module.second(again) @ derived

        differentiate(graph, split=split)
        return seen

    once = calls(split=False)
    assert set(once.values()) == {1}
    assert len(once) == 7
    assert calls(split=True) == once


class PassesOn(torch.autograd.Function):
    """A sum whose gradients are views of what it gets."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        return value + weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].view_as(gradients[0])


@pytest.mark.parametrize("order", ["I0 W0 I1 W1", "I0 I1 W0 W1", "I1 I0 W0 W1", "I0 I1 W1 W0"])
def test_micro_batches_between_both_parts_do_not_disturb_each_other(order: str) -> None:
    """A parameter's gradient could share memory with what another micro-batch keeps for W."""

    def gradients(order: str) -> dict[str, Tensor | None]:
        torch.manual_seed(0)
        module = Body(lambda m, x: PassesOn.apply(m.first(x), m.matrix) + m.shift).double()
        leaves = [torch.randn(WIDTH, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        outputs = [module(leaf) * 2 for leaf in leaves]
        waiting: dict[str, WeightGradients] = {}
        for part, number in order.split():
            index = int(number)
            if part == "I":
                waiting[number] = backward_inputs([outputs[index]], [leaves[index].detach()], [leaves[index]])
            elif part == "W":
                waiting.pop(number).accumulate()
            else:
                torch.autograd.backward([outputs[index]], [leaves[index].detach()])
        return {name: p.grad for name, p in module.named_parameters()} | {"0": leaves[0].grad, "1": leaves[1].grad}

    expected = gradients("B0 B1")
    for name, gradient in gradients(order).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-12)


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_what_is_needed_no_more_is_freed() -> None:
    """During I what has been used, but for what W needs, and after W everything: without the garbage collector."""
    made: dict[str, weakref.ref[Any]] = {}

    def note(name: str, tensor: Tensor) -> Tensor:
        made[name] = weakref.ref(tensor.untyped_storage())
        return tensor

    def alive() -> set[str]:
        return {name for name, reference in made.items() if reference() is not None}

    def graph(module: Body, value: Tensor) -> Tensor:
        hidden = note("input of second", note("output of first", module.first(value)).tanh())
        return note("sigmoid", module.norm(note("input of norm", module.second(hidden))).sigmoid()).exp()

    at_the_end_of_inputs: list[set[str]] = []
    with without_collector():
        torch.manual_seed(0)
        module = Body(graph).double()
        leaf = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
        leaf.register_hook(lambda gradient: at_the_end_of_inputs.append(alive()))
        outputs = [module(leaf)]
        assert alive() == {"input of second", "input of norm", "sigmoid"}
        weights = backward_inputs(outputs, [torch.ones(4, WIDTH, dtype=torch.float64)], [leaf])
        outputs.clear()
        assert alive() == {"input of second"}
        assert at_the_end_of_inputs == [{"input of second"}]
        weights.accumulate()
        assert not alive()


def test_a_second_run_of_the_first_part_is_an_error() -> None:
    module = Body(lambda m, x: m.second(m.first(x).tanh()))
    leaf = torch.randn(4, WIDTH, requires_grad=True)
    output = module(leaf)
    backward_inputs([output], [torch.ones_like(output)], [leaf])
    with pytest.raises(RuntimeError, match="activations of this stage are freed: I has run"):
        torch.autograd.backward([output], [torch.ones_like(output)])
