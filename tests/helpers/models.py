"""Small models in float64, each with something that pipelines get wrong, by name so that every rank can make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from repro.gpipe.rng import initialisation_seed

WIDTH = 6
CLASSES = 5
VOCABULARY = 11
PADDING = 0


class Apply(nn.Module):
    """A layer without parameters."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(value)


class OnFirst(nn.Module):
    """Applies ``inner`` to the first element of a tuple and passes the others through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return (self.inner(value[0]), *value[1:])


class EmbedPair(nn.Module):
    """(source tokens, target tokens) -> (source states, None, source mask, target tokens): all that is needed later."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor | None, ...]:
        source, target = value
        return self.table(source), None, source != PADDING, target


class StartDecoder(nn.Module):
    """Fills the slot of the decoder's states from the target tokens, which only the first stage has read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, value: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        memory, _, mask, target = value
        assert target is not None
        return memory, self.table(target), mask, target


class AttendToSource(nn.Module):
    """Dot-product attention over the encoder's states under the source mask."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        memory, states, mask, target = value
        scores = (self.query(states) @ memory.transpose(1, 2)).masked_fill(~mask[:, None, :], -1e9)
        return memory, states + scores.softmax(-1) @ memory, mask, target


class Project(nn.Module):
    """Decoder states -> logits; encoder states, mask and tokens end here."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        return self.output(value[1])


class Twice(nn.Module):
    """Sends the same tensor twice, beside integers, complex numbers and one output that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, 3)

    def forward(self, value: Tensor) -> tuple[Tensor, ...]:
        hidden = self.inner(value)
        integers = (value > 0).sum(1) % 3
        return hidden, hidden, integers, torch.complex(hidden, -hidden), self.unused(value)


class Rejoin(nn.Module):
    """Uses all that ``Twice`` sent but its last element."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        first, second, integers, complex_numbers, _ = value
        return first * second + self.scale[integers][:, None] * (complex_numbers.real + complex_numbers.imag * first)


class AddInPlace(nn.Module):
    """Changes its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return value.add_(self.bias)


class WithUnused(nn.Linear):
    """A linear layer with a parameter that takes no part."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.idle = nn.Parameter(torch.ones(3))


class Scale(nn.Module):
    """A parameter that only multiplies, on the way of all gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, value: Tensor) -> Tensor:
        return value * self.scale


class Position(nn.Module):
    """Adds a parameter as large as a row: where that is the micro-batch, one tensor is the gradient of both."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return value + self.table.unsqueeze(0)


class Twins(nn.Module):
    """Two parameters whose gradients are views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.rand(2, WIDTH // 2) + 0.5)
        self.second = nn.Parameter(torch.rand(WIDTH, 1))

    def forward(self, value: Tensor) -> Tensor:
        return value * (self.first.view(-1) + self.second.view(-1))


class CheckpointedNorm(nn.Module):
    """Normalises and re-computes that by itself, with the norm called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        normed: Tensor = checkpoint(lambda rows: self.inner(self.norm(input=rows)), value, use_reentrant=False)
        return normed


class Residual(nn.Module):
    """Adds a linear layer's output to its input; the layer is applied twice, so its gradients are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.inner(self.inner(value).tanh())


class Forces(nn.Module):
    """Differentiates an energy by its input, which it makes require a gradient where nothing before it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        with torch.enable_grad():
            value = value.requires_grad_()
            (force,) = torch.autograd.grad(self.energy(value).tanh().sum(), value, create_graph=True)
        return value.detach() + force


class Awakened(nn.Module):
    """Frozen, with an output that requires a gradient all the same, for the sake of what comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, value: Tensor) -> Tensor:
        return self.inner(value).requires_grad_()


class Reentrant(nn.Module):
    """Re-computes by itself in a way that gives no gradient unless its input wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.inner, value, use_reentrant=True)
        return made


def _halves(value: Tensor) -> Tensor:
    return value.transpose(0, 1)[1:].transpose(0, 1)


def _widen(value: Tensor) -> Tensor:
    return functional.pad(value, (0, 1))


def _swap(value: Tensor) -> Tensor:
    return value.transpose(1, 2)


def _frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def _head() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """(sum over rows, rows): the mean over rows."""
    return functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)


def counting_from_one(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Changes its targets on the way, as a loss for labels from 1 to ``CLASSES`` may."""
    targets.sub_(1).remainder_(CLASSES)
    return cross_entropy(outputs, targets)


def summed(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A loss that is a sum over tokens with a fractional weight per row: counts are tensors and differ."""
    weights = 1.0 + 0.5 * targets.to(outputs.dtype)
    return (functional.cross_entropy(outputs, targets, reduction="none") * weights).sum(), weights.sum()


def token_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, number) over the tokens that are not padding, so micro-batches weigh differently."""
    loss = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum")
    return loss, (targets != PADDING).sum()


def dropped_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """A loss that draws random numbers."""
    return functional.cross_entropy(functional.dropout(outputs, 0.3), targets, reduction="sum"), len(targets)


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Correct rows, and a second metric with its own count."""
    correct = (outputs.argmax(-1) == targets).sum()
    return {"accuracy": (correct, targets.numel()), "first_class": ((targets == 0).sum(), 2 * targets.numel())}


def vectors(rows: int, number: int) -> tuple[Tensor, Tensor]:
    """A batch of float vectors with class labels; ``number`` counts the batches."""
    generator = torch.Generator().manual_seed(1000 * number + rows)
    inputs = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (rows,), generator=generator)


def images(rows: int, number: int, *, dimensions: int) -> tuple[Tensor, Tensor]:
    """Three-channel images (or signals, in one dimension) with class labels."""
    generator = torch.Generator().manual_seed(1000 * number + rows)
    inputs = torch.randn(rows, 3, *[5] * dimensions, generator=generator, dtype=torch.float64) + 0.3
    return inputs, torch.randint(0, CLASSES, (rows,), generator=generator)


def tokens(rows: int, number: int) -> tuple[Tensor, Tensor]:
    """Token rows, padded unevenly; the length changes from batch to batch."""
    generator = torch.Generator().manual_seed(1000 * number + rows)
    length = 3 + number % 3
    values = torch.randint(1, VOCABULARY, (2, rows, length), generator=generator)
    valid = torch.randint(1, length + 1, (rows, 1), generator=generator)
    values = values.masked_fill(torch.arange(length) >= valid, PADDING)
    return values[0], values[1]


def sentences(rows: int, number: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """((source, target input), target): source and target have lengths of their own."""
    source, _ = tokens(rows, number + 1)
    target, answer = tokens(rows, number)
    return (source, target), answer


@dataclass(frozen=True)
class Model:
    """A model of the tests with its batches and its loss.

    Attributes:
        factories: one per layer.
        batch: ``batch(rows, number) -> (inputs, targets)``.
        loss: ``loss(outputs, targets) -> (sum, count)``.
        whole: whether micro-batches do not matter (no BatchNorm, no dropout): equal to the whole batch too.
        min_rows: fewest rows of a micro-batch (BatchNorm over vectors needs two).
        metrics: as for ``loss``.
    """

    factories: tuple[Callable[[], nn.Module], ...]
    batch: Callable[[int, int], tuple[Any, Any]] = vectors
    loss: Callable[[Any, Any], tuple[Any, Any]] = cross_entropy
    whole: bool = True
    min_rows: int = 1
    metrics: Callable[[Any, Any], dict[str, tuple[Any, Any]]] | None = None

    def layers(self, seed: int = 0, num_frozen: int = 0) -> list[nn.Module]:
        """All layers, each initialised under a seed of its own, in float64 and training mode; the first ones frozen."""
        made = []
        with torch.random.fork_rng(devices=[]):
            for index, factory in enumerate(self.factories):
                torch.default_generator.manual_seed(initialisation_seed(seed, index))
                made.append(factory().double().train())
        for layer in made[:num_frozen]:
            layer.requires_grad_(False)
        return made


def _conv(dimensions: int, momentum: float | None = 0.1) -> tuple[Callable[[], nn.Module], ...]:
    convolution = nn.Conv1d if dimensions == 1 else nn.Conv2d
    norm = nn.BatchNorm1d if dimensions == 1 else nn.BatchNorm2d
    return (
        partial(convolution, 3, 4, 3),
        partial(norm, 4, momentum=momentum),
        nn.ReLU,
        partial(convolution, 4, 4, 3, padding=1),
        partial(norm, 4, momentum=momentum),
        partial(nn.Flatten),
        partial(nn.Linear, 4 * 3**dimensions, CLASSES),
    )


MODELS: dict[str, Model] = {
    "mlp": Model((_linear, nn.ReLU, partial(nn.LayerNorm, WIDTH), _linear, nn.Tanh, _linear, _head), metrics=accuracy),
    "deep": Model(
        (
            _linear,
            partial(nn.ReLU, inplace=True),
            partial(nn.LayerNorm, WIDTH),
            _linear,
            Scale,
            nn.Tanh,
            Residual,
            partial(nn.Linear, WIDTH, WIDTH, bias=False),
            AddInPlace,
            nn.GELU,
            _linear,
            _head,
        ),
        metrics=accuracy,
    ),
    "targets_in_place": Model((_linear, nn.Tanh, _linear, _head), loss=counting_from_one),
    "weighted": Model((_linear, nn.Tanh, _linear, _head), loss=summed),
    "batch_norm_vectors": Model(
        (
            _linear,
            partial(nn.BatchNorm1d, WIDTH),
            nn.ReLU,
            _linear,
            partial(nn.BatchNorm1d, WIDTH, momentum=None),
            _head,
        ),
        whole=False,
        min_rows=2,
    ),
    "batch_norm_checkpointed": Model(
        (_linear, CheckpointedNorm, nn.Tanh, CheckpointedNorm, _head), whole=False, min_rows=2
    ),
    "batch_norm_1d": Model(_conv(1), partial(images, dimensions=1), whole=False),
    "batch_norm_2d": Model(_conv(2), partial(images, dimensions=2), whole=False),
    "batch_norm_cumulative": Model(_conv(2, None), partial(images, dimensions=2), whole=False),
    "dropout": Model(
        (_linear, nn.Dropout, _linear, nn.Dropout, partial(nn.Dropout, 0.2), _head), loss=dropped_loss, whole=False
    ),
    "translation": Model(
        (
            EmbedPair,
            lambda: OnFirst(nn.LayerNorm(WIDTH)),
            lambda: OnFirst(nn.Linear(WIDTH, WIDTH)),
            StartDecoder,
            AttendToSource,
            Project,
        ),
        sentences,
        token_loss,
    ),
    "tokens": Model(
        (partial(nn.Embedding, VOCABULARY, WIDTH), _linear, nn.GELU, partial(nn.Linear, WIDTH, VOCABULARY)),
        tokens,
        token_loss,
    ),
    "in_place": Model(
        (partial(nn.ReLU, inplace=True), _linear, AddInPlace, _linear, partial(nn.ReLU, inplace=True), _head)
    ),
    "views": Model(
        (
            lambda: Apply(_widen),
            lambda: Apply(_halves),
            lambda: Apply(partial(torch.unsqueeze, dim=1)),
            lambda: Apply(_swap),
            lambda: nn.Linear(1, 2),
            lambda: Apply(_swap),
            lambda: nn.Linear(WIDTH, 2),
            nn.Flatten,
            lambda: nn.Linear(4, CLASSES),
        )
    ),
    "shared_gradients": Model((_linear, Position, Twins, Position, nn.Tanh, Position, Twins, _head)),
    "twice": Model((_linear, Twice, Rejoin, _head)),
    "empty_stage": Model((_linear, nn.Tanh, nn.Identity, nn.Sigmoid, _head)),
    "empty_ends": Model((nn.Identity, _linear, _head, nn.Identity)),
    "unused": Model((_linear, lambda: WithUnused(WIDTH, WIDTH), nn.Tanh, lambda: WithUnused(WIDTH, CLASSES))),
    "frozen_first": Model((lambda: _frozen(_linear()), nn.Tanh, _linear, nn.Tanh, _head)),
    "frozen_middle": Model((_linear, lambda: _frozen(_linear()), nn.Tanh, lambda: _frozen(_linear()), _head)),
    "forces": Model((lambda: _frozen(_linear()), nn.Tanh, Forces, nn.Tanh, _head)),
    "awakened": Model((Awakened, nn.Tanh, Reentrant, _head)),
    "frozen_last": Model((_linear, nn.Tanh, _linear, lambda: _frozen(_head()))),
}
"""All of them have at least four layers, so that each runs on one to four stages; ``deep`` has twelve."""
