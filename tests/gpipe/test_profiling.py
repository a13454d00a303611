"""Costs by time: in the run's precision and micro-batch size, without a trace in the model, kept on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision
from torch import Tensor, nn

from repro.gpipe import GPipeStrategy, PipelineModule
from repro.gpipe.profile_cache import ProfileCache, cache_folder, digest
from repro.gpipe.profiling import cached_time_costs, micro_batch_rows_of, time_costs, with_rows

CPU = torch.device("cpu")
SEEN: list[tuple[torch.dtype, int, bool]] = []


class Watching(nn.Module):
    """A layer that tells what it was given: dtype of its product, rows, whether a gradient is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, value: Tensor) -> Tensor:
        product = self.linear(value)
        SEEN.append((product.dtype, len(value), torch.is_grad_enabled()))
        dropped: Tensor = self.drop(self.norm(product))
        return dropped


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The profiles of a user whose cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpipe-repro" / "profiles"


def skeletons(factories: list[Callable[[], nn.Module]]) -> list[nn.Module]:
    with torch.device("meta"):
        return [factory() for factory in factories]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (None, torch.float32),
        (DoublePrecision(), torch.float64),
        (MixedPrecision("bf16-mixed", "cpu"), torch.bfloat16),
    ],
)
def test_layers_run_in_the_precision_and_with_the_rows_of_the_run(precision: Any, dtype: torch.dtype) -> None:
    costs = time_costs([Watching, Watching], torch.zeros(2, 4), CPU, precision=precision, rows=5, repeats=3)
    assert len(costs) == 2
    assert all(cost > 0 for cost in costs)
    # Three runs and a warm-up of each layer.
    assert set(SEEN) == {(dtype, 5, True)}
    assert len(SEEN) == 8


def test_nothing_of_the_model_or_the_random_state_changes() -> None:
    layer = Watching()
    layer(torch.randn(3, 4)).sum().backward()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    state = torch.get_rng_state()

    def copy() -> nn.Module:
        made = Watching()
        made.load_state_dict(layer.state_dict())
        return made

    with torch.no_grad():
        time_costs([copy], torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), CPU)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    after = [p.grad for p in layer.parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(gradients, after, strict=True))
    assert not torch.is_inference_mode_enabled()


def test_layers_are_timed_in_inference_mode_too() -> None:
    with torch.inference_mode():
        assert len(time_costs([lambda: nn.Linear(4, 4)] * 2, torch.zeros(2, 4), CPU)) == 2


def test_rows_are_repeated_or_cut() -> None:
    example = (torch.tensor([[1], [2]]), None)
    more, nothing = with_rows(example, 3)
    assert more is not None and nothing is None
    assert more.tolist() == [[1], [2], [1]]
    fewer, _ = with_rows(example, 1)
    assert fewer is not None and fewer.tolist() == [[1]]


@pytest.mark.parametrize(("size", "rows"), [(8, 2), (9, 3), (1, 1), (None, None), (True, None), ("8", None)])
def test_rows_of_a_micro_batch_are_those_of_the_largest(size: Any, rows: int | None) -> None:
    data = type("Data", (), {"batch_size": size})()
    assert micro_batch_rows_of(data, 4) == rows
    assert micro_batch_rows_of(None, 4) is None


def test_a_profile_is_made_once_and_again_for_anything_else(folder: Path) -> None:
    factories: list[Callable[[], nn.Module]] = [Watching]

    def profiled(rows: int = 2, precision: Any = None, factories: Any = factories) -> int:
        SEEN.clear()
        example = torch.zeros(rows, 4)
        costs = cached_time_costs(
            ProfileCache(), skeletons(factories), factories, example, CPU, precision=precision, repeats=1
        )
        assert len(costs) == len(factories)
        return len(SEEN)

    assert profiled() == 2
    assert profiled() == 0
    assert profiled(rows=3) == 2
    assert profiled(precision=DoublePrecision()) == 2
    assert profiled(factories=[Watching, nn.ReLU]) == 2
    assert profiled() == 0
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"key": "other", "seconds": [1.0]}',
        '{"key": KEY, "seconds": [1.0, 2.0]}',
        '{"key": KEY, "seconds": ["fast"]}',
        '{"key": KEY, "seconds": [-1.0]}',
        '{"key": KEY, "seconds": [NaN]}',
        '{"key": KEY, "seconds": [true]}',
        "\udcff",
    ],
)
def test_a_damaged_profile_counts_as_absent_and_is_replaced(damage: str, folder: Path) -> None:
    cache, key = ProfileCache(), digest("layers")
    cache.save(key, [0.25])
    assert cache.load(key, 1) == [0.25]
    cache.path(key).write_bytes(damage.replace("KEY", json.dumps(key)).encode(errors="surrogateescape"))
    assert cache.load(key, 1) is None
    cache.save(key, [0.5])
    assert cache.load(key, 1) == [0.5]
    assert [path.name for path in folder.iterdir()] == [cache.path(key).name]


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpipe-repro").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = ProfileCache()
    cache.save("key", [1.0])
    assert cache.load("key", 1) is None


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{os.sep}somewhere")
    assert cache_folder() == Path(os.sep, "somewhere", "gpipe-repro")
    for value in ("", "relative"):  # which the specification asks to ignore
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == Path.home() / ".cache" / "gpipe-repro"


class Untouched(pl.Callback):
    """Sees to it that the profile has run copies, and not the layers that are trained."""

    def __init__(self) -> None:
        self.seen = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        buffers = dict(pl_module.named_buffers())
        assert [int(value) for name, value in buffers.items() if name.endswith("num_batches_tracked")] == [0]
        assert all(parameter.grad is None for parameter in pl_module.parameters())
        self.seen = True


def test_a_run_partitions_by_time_with_its_own_micro_batches(folder: Path) -> None:
    model = nn.Sequential(Watching(), nn.Linear(4, 4), nn.Linear(4, 4))
    module = PipelineModule.from_sequential(model, nn.functional.mse_loss, example_inputs=torch.zeros(2, 4))
    rows = torch.randn(12, 4)
    untouched = Untouched()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows), batch_size=12)
    trainer = pl.Trainer(
        strategy=GPipeStrategy(num_stages=2, num_micro_batches=4, partition="time"),
        devices=1,
        accelerator="cpu",
        max_steps=1,
        callbacks=[untouched],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    assert untouched.seen
    assert {rows for _, rows, _ in SEEN} == {3}
    assert len(list(folder.iterdir())) == 1
    strategy = trainer.strategy
    assert isinstance(strategy, GPipeStrategy)
    assert sum(strategy.partition) == 3
