"""The limit on a stage's memory: when it changes the partition, what it counts, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision, Precision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from repro.errors import UserError
from repro.gpipe import GPipeStrategy, PipelineModule
from repro.gpipe.building import make_skeletons
from repro.gpipe.memory import count_memory
from repro.gpipe.stage_memory import StageLimit
from repro.planning import partition
from repro.planning.memory import live_sets, peak_bytes
from repro.schedules import Remat, Schedule, make_schedule
from repro.schedules.actions import Action
from tests.helpers.ranks import Pools

TIGHT = 1.1 / 1024
"""GiB: room for one ``Heavy`` layer."""

NUMBERS = 2**16
"""Parameters of a ``Heavy`` layer: 1 MiB with their gradients and Adam's states."""


class Heavy(nn.Module):
    """Many parameters, no product: costs nothing by FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(NUMBERS))
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        return value + self.shift[: value.shape[-1]]


def product() -> nn.Module:
    return nn.Linear(4, 4)


LAYERS = (Heavy, Heavy, product, product, product, product)
"""By FLOPs two stages are [4, 2] layers, and the first one has all the memory, 2 MiB."""


class Points(PipelineModule):
    """A sum of squares."""

    def __init__(self, *layers: Callable[[], nn.Module], example: Any = None) -> None:
        super().__init__()
        self._layers = layers or LAYERS
        self._example = torch.zeros(2, 4) if example is None else example

    def layers(self) -> tuple[Callable[[], nn.Module], ...]:
        return self._layers

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return (outputs - targets).square().sum(), len(targets)

    def example_inputs(self) -> Any:
        return None if isinstance(self._example, str) else self._example

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def runner(devices: int = 1, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        strategy=GPipeStrategy(**{"num_stages": 2, "num_micro_batches": 2, **options}),
        devices=devices,
        accelerator="cpu",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def data(batch_size: int | None = 4) -> DataLoader[Any]:
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(rows, rows), batch_size=batch_size)


def cut(rank: int, world_size: int, options: dict[str, Any]) -> tuple[int, ...]:
    """The partition of a run, which then takes a step."""
    trainer = runner(world_size, **options)
    trainer.fit(Points(), data())
    assert isinstance(trainer.strategy, GPipeStrategy)
    return trainer.strategy.partition


def skeletons(*factories: Callable[[], nn.Module]) -> list[nn.Module]:
    with torch.device("meta"):
        return [factory() for factory in factories]


def limit(gib: float = 1.0, **changes: Any) -> StageLimit:
    plan = make_schedule("gpipe", num_stages=2, num_micro_batches=2, remat=changes.pop("remat", "always"))
    given: dict[str, Any] = {
        "schedule": plan,
        "rows": 3,
        "precision": Precision(),
        "loss": Points().loss,
        "inputs": torch.zeros(2, 4),
        "targets": None,
    }
    return StageLimit(gib, **{**given, **changes})


@pytest.mark.parametrize(
    ("rule", "gib", "expected"),
    [
        ("flops", None, (4, 2)),
        ("flops", 1.0, (4, 2)),
        ("flops", 2.1 / 1024, (4, 2)),
        ("flops", TIGHT, (1, 5)),
        ("uniform", 2.1 / 1024, (3, 3)),
        ("uniform", TIGHT, (1, 5)),
        ("parameters", TIGHT, (1, 5)),
        ([3, 3], 2.1 / 1024, (3, 3)),
    ],
)
def test_the_limit_changes_the_partition_where_it_must(
    rule: Any, gib: float | None, expected: tuple[int, ...], pools: Pools
) -> None:
    options = {"partition": rule, "stage_memory": gib}
    assert cut(0, 1, options) == expected
    if gib == TIGHT:
        assert pools(2).run(cut, options) == [expected] * 2


def test_what_is_counted() -> None:
    layers = (Heavy, nn.Tanh, product, product)
    counts, sizes = limit().partition(skeletons(*layers), [1.0] * 4, [2, 2], given=False)
    # 3 rows of 4 numbers, 2 micro-batches: one waits for R with its input, the other has what comes in, and what tanh
    # keeps, its output, which goes on; the second stage keeps the inputs of both products.
    row = 3 * 4 * 4
    assert counts == [2, 2]
    assert sizes == [16 * NUMBERS + row + 2 * row, 16 * 2 * 20 + row + 2 * row]
    model = count_memory(layers, torch.zeros(3, 4))
    live = live_sets(limit().schedule)
    held = peak_bytes(live, model.stages(counts))
    assert [size - 16 * stage.parameters for size, stage in zip(sizes, model.stages(counts), strict=True)] == held


def test_the_loss_counts_where_there_are_targets() -> None:
    layers = skeletons(product, product)
    sizes = [
        limit(targets=targets).partition(layers, [1, 1], [1, 1], given=False)[1]
        for targets in (None, torch.zeros(2, 4))
    ]
    row = 3 * 4 * 4
    assert sizes[0][0] == sizes[1][0]
    # The difference that the square keeps; the targets are there for both micro-batches.
    assert sizes[1][1] - sizes[0][1] == row + 2 * row


@pytest.mark.parametrize(
    ("precision", "row", "parameter"),
    [(Precision(), 4, 16), (DoublePrecision(), 8, 32), (MixedPrecision("bf16-mixed", "cpu"), 2, 16)],
)
def test_sizes_are_those_of_the_precision(precision: Precision, row: int, parameter: int) -> None:
    sizes = limit(precision=precision, remat="never").partition(
        skeletons(product, product), [1, 1], [1, 1], given=True
    )[1]
    mixed = isinstance(precision, MixedPrecision)
    # Both micro-batches are live. The first stage has its inputs, in a mixed run as they are cast too, and its outputs;
    # the last one what it receives, and the weight as it is cast, for the gradient that goes back.
    held = [12 * (4 + row if mixed else row) + 12 * row, 12 * row + 16 * row * mixed]
    assert sizes == [20 * parameter + 2 * part for part in held]


def test_nothing_of_the_layers_or_the_random_state_changes() -> None:
    kept = nn.Sequential(Heavy(), nn.BatchNorm1d(4), nn.Dropout(0.5), product())
    module = PipelineModule.from_sequential(kept, nn.functional.mse_loss, example_inputs=torch.randn(2, 4))
    before = {name: value.clone() for name, value in kept.state_dict().items()}
    state = torch.get_rng_state()
    copies = make_skeletons(module.layers())
    limit(inputs=module.example_inputs()).partition(copies, [1.0] * 4, [2, 2], given=False)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in kept.state_dict().items())
    assert kept[0].calls == copies[0].calls == 0


def test_a_schedule_of_ones_own_may_place_stages_anywhere() -> None:
    def upwards(
        num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.NEVER
    ) -> Schedule:
        made = make_schedule("1f1b", num_stages=num_stages, num_micro_batches=num_micro_batches, remat=remat)
        return Schedule("upwards", num_stages, num_micro_batches, 1, remat, made.placement[::-1], made.actions[::-1])

    layers = skeletons(product, product)
    plain, turned = (
        limit(schedule=make_schedule(name, num_stages=2, num_micro_batches=4)).partition(
            layers, [1, 1], [1, 1], given=False
        )[1]
        for name in ("1f1b", upwards)
    )
    # 1F1B's first stage has two micro-batches alive, its second one.
    assert plain == turned and plain[0] > plain[1]


def test_a_rank_without_a_stage() -> None:
    actions = tuple(
        Action(*made) for rank in make_schedule("gpipe", num_stages=1, num_micro_batches=1).actions for made in rank
    )
    both = Schedule("both", 2, 1, 1, Remat.NEVER, ((0,), (0,)), ((*actions[:1],), ()))
    with pytest.raises(UserError, match=r"ranks that hold one stage each, which schedule 'both' does not have"):
        limit(schedule=both).partition(skeletons(product, product), [1, 1], [1, 1], given=False)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"stage_memory": 0}, ("stage_memory=0", "GiB")),
        ({"stage_memory": float("nan")}, ("stage_memory=nan",)),
        ({"stage_memory": 2, "num_virtual_stages": 2}, ("stage_memory=2", "num_virtual_stages=2")),
        ({"stage_memory": 2, "num_virtual_stages": 2, "schedule": "zb-v"}, ("stage_memory=2", "num_virtual_stages=2")),
    ],
)
def test_told_when_the_strategy_is_made(options: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        GPipeStrategy(**options)
    assert all(part in str(caught.value) for part in parts), caught.value


class Asking(nn.Linear):
    """A layer whose way depends on a value."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) if bool(value.sum() > 0) else value


def vast() -> nn.Module:
    return nn.Linear(2**14, 2**14)


@pytest.mark.parametrize(
    ("module", "batch_size", "options", "parts"),
    [
        (
            # 2 GiB of parameters each with Adam's states take 4 GiB; nothing is allocated before this is told.
            lambda: Points(vast, vast, example=torch.zeros(1, 2**14)),
            4,
            {"stage_memory": 1.5},
            (
                "stage_memory=1.5: num_stages=2: no partition fits into 1.50 GiB a stage",
                "[1, 1]",
                "4.00 GiB",
                "16 bytes",
            ),
        ),
        (Points, 4, {"partition": [5, 1], "stage_memory": 0.001}, ("partition=[5, 1]", "0.00195 GiB on stage 0")),
        (lambda: Points(example="none"), 4, {"stage_memory": 1}, ("stage_memory=1 ", "example_inputs()")),
        (Points, None, {"stage_memory": 1}, ("stage_memory=1 ", "batch_size")),
        (
            lambda: Points(partial(Asking, 4, 4), product),
            4,
            {"stage_memory": 1, "partition": "uniform"},
            ("stage_memory=1: ", "without computing", "DataDependentOutputException"),
        ),
    ],
    ids=["nothing fits", "given", "no example", "no batch size", "depends on values"],
)
def test_told_at_set_up(
    module: Callable[[], PipelineModule], batch_size: int | None, options: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        runner(**options).fit(module(), data(batch_size))
    assert all(part in str(caught.value) for part in parts), caught.value


def test_evaluation_alone_has_nothing_to_limit() -> None:
    trainer = runner(stage_memory=TIGHT, partition="flops")
    rows = [(torch.ones(4, 4), torch.ones(4, 4))]
    trainer.validate(Points(), DataLoader(rows, batch_size=None))  # type: ignore[arg-type]
    assert isinstance(trainer.strategy, GPipeStrategy)
    assert trainer.strategy.partition == tuple(partition([0, 0, 1, 1, 1, 1], 2))


def test_a_run_says_within_what_it_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger=logger.name):
            cut(0, 1, {"partition": "flops", "stage_memory": TIGHT})
    finally:
        logger.removeHandler(caplog.handler)
    assert f"Partition by flops within stage_memory={TIGHT}: [1, 5] layers" in caplog.text
    assert "stage 1 takes the most memory, 0.000978 GiB" in caplog.text
