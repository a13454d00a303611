"""A configured model as a problem for the planner: read on the meta device, nothing of its size is allocated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from repro.errors import UserError
from repro.experiments.costs.layer_costs import count_layers
from repro.gpipe import PipelineModule
from repro.gpipe.building import make_skeletons
from repro.gpipe.memory import count_memory
from repro.gpipe.microbatch import Boundary, elements, map_tensors
from repro.gpipe.profile_cache import ProfileCache
from repro.gpipe.profiling import cached_time_costs, with_rows
from repro.planning.memory import ModelMemory
from repro.planning.problem import LayerCost
from repro.tasks.cli import ReproCLI, quiet
from repro.tasks.image_classification import ImageClassification
from repro.tasks.translation import Translation, TranslationDataModule

from .devices import find_device

_DTYPES: Mapping[str, tuple[torch.dtype, int]] = {
    "32": (torch.float32, 4),
    "32-true": (torch.float32, 4),
    "bf16-mixed": (torch.bfloat16, 4),
    "16-mixed": (torch.float16, 4),
    "bf16-true": (torch.bfloat16, 2),
    "16-true": (torch.float16, 2),
    "64": (torch.float64, 8),
    "64-true": (torch.float64, 8),
}


@dataclass(frozen=True)
class Configured:
    """A model with what its configuration says about running it.

    Attributes:
        module: its layers are not made.
        data: the data module; nothing is read.
        strategy: options of the strategy.
        is_pipeline: whether the configuration names the pipeline's strategy.
        precision: of the Trainer.
        tokens: pieces of a row, source and target; None for what has no tokens.
    """

    module: PipelineModule
    data: Any
    strategy: Mapping[str, Any]
    is_pipeline: bool
    precision: str
    tokens: tuple[int, int] | None

    @property
    def name(self) -> str:
        """Of its class."""
        return type(self.module).__name__

    @property
    def family(self) -> str | None:
        """A key of an accelerator's efficiencies."""
        if isinstance(self.module, ImageClassification):
            return "amoebanet"
        return "transformer" if isinstance(self.module, Translation) else None

    @property
    def optimizer(self) -> str | None:
        """A key of ``OPTIMIZER_STATES``, where the configuration names one."""
        name = self.module.hparams.get("optimizer")
        if name in ("sgd", "rmsprop") and self.module.hparams.get("momentum"):
            return f"{name}-momentum"
        return name

    @property
    def rows(self) -> int | None:
        """Of a replica's mini-batch; where batches are by tokens, those of the longest rows that fit."""
        if self.tokens_of_row is not None:
            return max(1, int(self.data.batch_tokens) // self.tokens_of_row)
        found: int | None = getattr(self.data, "batch_size", None)
        return found

    @property
    def tokens_of_row(self) -> int | None:
        """Where batches are by tokens, those of the longest row, source and target."""
        if self.tokens is None or getattr(self.data, "batch_tokens", None) is None:
            return None
        return sum(self.tokens)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return self._sizes[0]

    @property
    def parameter_size(self) -> int:
        """Bytes of a parameter, and of its gradient."""
        return self._sizes[1]

    @property
    def _sizes(self) -> tuple[torch.dtype, int]:
        if self.precision not in _DTYPES:
            raise UserError(f"trainer.precision={self.precision}: plans are made for one of {', '.join(_DTYPES)}")
        return _DTYPES[self.precision]

    def inputs(self, rows: int) -> Boundary:
        """Inputs of so many rows, as long as training has them at most, on the meta device."""
        if self.tokens is not None:
            source, target = (torch.empty(rows, length, dtype=torch.int64, device="meta") for length in self.tokens)
            return source, target
        example = self.module.example_inputs()
        if example is None:
            raise UserError(f"{self.name} has no example_inputs(), from which a plan takes the shape of a row")
        return map_tensors(lambda e: e.to("meta"), with_rows(example, rows))

    def targets(self, rows: int) -> Tensor | None:
        """What the loss compares with; None for a model that is not ours."""
        if self.tokens is not None:
            return torch.empty(rows, self.tokens[1], dtype=torch.int64, device="meta")
        if self.family == "amoebanet":
            return torch.empty(rows, dtype=torch.int64, device="meta")
        return None


class _Reader(ReproCLI):
    """Makes model and data; the Trainer is a plain one, whatever the configuration asks of the hardware."""

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        return pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)


def read_config(files: Sequence[str], others: Sequence[str], tokens: tuple[int, int] | None) -> Configured:
    """The model, data and strategy of config files.

    Args:
        files: overlays last.
        others: options of ``repro fit``.
        tokens: pieces of a row in place of the data's limits.

    Raises:
        UserError: a file or an option is wrong.
    """
    with quiet(logging.WARNING):
        words = [word for file in files for word in ("--config", file)]
        cli = _Reader([*words, *others], run=False)
    trainer = cli.config.trainer
    strategy = trainer.strategy
    named = getattr(strategy, "class_path", strategy)
    options = {} if isinstance(strategy, str) else dict(vars(strategy.get("init_args", {})))
    is_pipeline = str(named).rsplit(".", 1)[-1] in ("GPipeStrategy", "gpipe")
    data = cli.datamodule
    if isinstance(cli.model, Translation):
        tokens = tokens or _limits(data)
    elif tokens is not None:
        raise UserError(f"--tokens {tokens[0]},{tokens[1]}: {type(cli.model).__name__} has no tokens")
    precision = "32-true" if trainer.precision is None else str(trainer.precision)
    return Configured(cli.model, data, options, is_pipeline, precision, tokens)


def memory_of(configured: Configured) -> tuple[int, ModelMemory, ModelMemory]:
    """The fewest rows of a micro-batch, and what the layers keep of it and of one with a row more.

    That is one row, or two where a BatchNorm has a single value for each row.
    """
    known: dict[Any, Any] = {}

    def count(rows: int) -> ModelMemory:
        return count_memory(
            configured.module.layers(),
            configured.inputs(rows),
            loss=configured.module.loss,
            targets=configured.targets(rows),
            dtype=configured.dtype,
            known=known,
        )

    try:
        return 1, count(1), count(2)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
    return 2, count(2), count(3)


def returned_bytes(configured: Configured) -> tuple[int, ...]:
    """For every boundary between layers, bytes a row of the gradients that come back: what is floating point."""
    known: dict[Any, Boundary] = {}
    value = configured.inputs(2)
    found = []
    with torch.device("meta"), torch.no_grad():
        for factory in configured.module.layers():
            key = (_described(factory), tuple(None if e is None else (e.shape, e.dtype) for e in elements(value)))
            if key not in known:
                known[key] = factory()(value)
            value = known[key]
            floating = [e.numel() for e in elements(value) if e is not None and e.is_floating_point()]
            found.append(sum(floating) * configured.dtype.itemsize // 2)
    return tuple(found[:-1])


def estimated_costs(configured: Configured, rate: float, overhead: float) -> tuple[LayerCost, ...]:
    """FLOPs of F and B of every layer at ``rate`` FLOP a second.

    Args:
        configured: the model.
        rate: that is reached.
        overhead: seconds of each layer's F that do not depend on the rows; B has twice as many.
    """
    return tuple(LayerCost(f / rate, b / rate, overhead, 2 * overhead) for f, b in _flops(configured))


def profiled_costs(configured: Configured, device: str) -> tuple[LayerCost, ...]:
    """Seconds of every layer on this machine, timed with 2 and with 8 rows, so that what does not depend on them shows.

    F and B are timed together and shared out by FLOPs.
    """
    timed_on = find_device(device)
    factories = configured.module.layers()
    skeletons = make_skeletons(factories)
    example = map_tensors(lambda e: torch.zeros(e.shape, dtype=e.dtype), configured.inputs(1))
    few, more = (
        cached_time_costs(ProfileCache(), skeletons, factories, example, timed_on, rows=rows) for rows in (2, 8)
    )
    costs = []
    for (f, b), two, eight in zip(_flops(configured), few, more, strict=True):
        share = f / (f + b) if f + b else 1 / 3
        per_row = max(0.0, min(two / 2, (eight - two) / 6))
        fixed = two - 2 * per_row
        costs.append(LayerCost(share * per_row, (1 - share) * per_row, share * fixed, (1 - share) * fixed))
    return tuple(costs)


def _flops(configured: Configured) -> list[tuple[float, float]]:
    """Of F and B of each layer, a row."""
    found = count_layers([_as_partial(factory) for factory in configured.module.layers()], configured.inputs(2))
    return [(f / 2, b / 2) for f, b in zip(found.forward, found.backward, strict=True)]


def _limits(data: Any) -> tuple[int, int]:
    if not isinstance(data, TranslationDataModule) or data.max_source is None or data.max_target is None:
        raise UserError("the data sets no longest row: give the pieces of source and target with --tokens S,T")
    return data.max_source + 1, data.max_target + 1  # with the piece that ends, or begins, a row


def _as_partial(factory: Callable[[], nn.Module]) -> partial[nn.Module]:
    return factory if isinstance(factory, partial) else partial(_make, factory)


def _make(factory: Callable[[], nn.Module]) -> nn.Module:
    return factory()


def _described(factory: Callable[[], nn.Module]) -> str:
    made = _as_partial(factory)
    return f"{made.func.__qualname__} {made.args} {sorted(made.keywords.items())}"
