from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from repro.errors import UserError
from repro.gpipe.verification import verify
from repro.models.amoebanet import amoebanet, set_drop_path
from repro.tasks.image_classification import AUX_WEIGHT, ImageClassification
from tests.helpers.ranks import Pools
from tests.tasks.image_runs import TINY, Said, fit, fit_on_rank
from tests.trainer.running import PLAIN, Pipeline

SMALL: dict[str, Any] = {"num_layers": 3, "num_filters": 4, "stem_stride": 2}


def test_the_model_is_amoebanet() -> None:
    module = ImageClassification(variant="B", num_classes=7, in_channels=3, aux_head=True, **SMALL)
    module.configure_model()
    expected = nn.Sequential(
        *(
            make()
            for make in amoebanet(
                "B",
                num_layers=3,
                num_filters=4,
                num_classes=7,
                in_channels=3,
                aux_head=True,
                stem="small",
                stem_stride=2,
            )
        )
    )
    assert module.model is not None
    assert {name: p.shape for name, p in module.model.named_parameters()} == {
        name: p.shape for name, p in expected.named_parameters()
    }
    outputs = module(torch.rand(2, 3, 32, 32))
    assert [tuple(logits.shape) for logits in outputs] == [(2, 7), (2, 7)]


def test_loss_is_a_sum_over_rows_with_smoothing_and_the_auxiliary_part_in_training_only() -> None:
    module = ImageClassification(label_smoothing=0.2, aux_head=True, **SMALL)
    logits, auxiliary = torch.randn(6, 10), torch.randn(6, 10)
    labels = torch.arange(6)
    main, side = (6 * F.cross_entropy(values, labels, label_smoothing=0.2) for values in (logits, auxiliary))
    module.train()
    total, rows = module.loss((logits, auxiliary), labels)
    torch.testing.assert_close(total, main + AUX_WEIGHT * side)
    assert rows == 6
    with torch.no_grad():  # a forward that will be recomputed
        torch.testing.assert_close(module.loss((logits, auxiliary), labels)[0], total)
    torch.testing.assert_close(module.loss(logits, labels)[0], main)
    module.eval()
    torch.testing.assert_close(module.loss((logits, auxiliary), labels)[0], main)


@pytest.mark.parametrize(("classes", "names"), [(10, {"accuracy", "top5"}), (9, {"accuracy"})])
def test_metrics(classes: int, names: set[str]) -> None:
    module = ImageClassification(num_classes=classes, **SMALL)
    logits = torch.zeros(4, classes)
    for row, order in enumerate([[0, 1, 2, 3, 4, 5], [1, 0], [1, 2, 3, 4, 0, 5], [1, 2, 3, 4, 5, 0]]):
        for place, label in enumerate(order):
            logits[row, label] = 10.0 - place
    found = module.metrics(logits, torch.zeros(4, dtype=torch.int64))
    assert found.keys() == names
    assert (int(found["accuracy"][0]), found["accuracy"][1]) == (1, 4)
    if "top5" in found:
        assert (int(found["top5"][0]), found["top5"][1]) == (3, 4)


def test_hyperparameters_are_saved_and_the_example_fits() -> None:
    module = ImageClassification(image_size=16, **SMALL)
    assert module.hparams["image_size"] == 16
    assert module.example_inputs().shape == (2, 1, 16, 16)
    assert module(module.example_inputs()).shape == (2, 10)


# An epoch has three batches.
DECAYING = {"schedule": "exponential", "warmup_epochs": 0.34, "decay_epochs": 1, "decay_rate": 0.5}
DROPPING = {"drop_path": 0.5, "dropout": 0.2, **DECAYING}


@pytest.fixture(scope="module")
def dropping(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Said]]:
    """The folder of a fit with drop-path in three processes, and what they say of it."""
    folder = tmp_path_factory.mktemp("dropping")
    job = (Pipeline(3, 2, partition=(3, 3, 2)), str(folder), {"options": DROPPING})
    return folder, [said for (said,) in pools(3).run(fit_on_rank, [job])]


def test_with_drop_path_and_auxiliary_head_the_curve_does_not_depend_on_the_stages(
    dropping: tuple[Path, list[Said]], tmp_path: Path
) -> None:
    """The auxiliary logits travel from the second stage to the loss; masks are keyed, so recomputation draws them."""
    _, ranks = dropping
    one = fit(Pipeline(1, 2, local=True, remat="never"), str(tmp_path), options=DROPPING)
    for said in ranks:
        assert said.drop_path == one.drop_path == pytest.approx([0.5 * step / 6 for step in range(6)])
        assert said.learning_rates == one.learning_rates == pytest.approx([0.01] * 4 + [0.005] * 2)
        assert said.losses == pytest.approx(one.losses, rel=0, abs=1e-10)


def test_drop_path_goes_on_where_it_was(dropping: tuple[Path, list[Said]], tmp_path: Path) -> None:
    folder, ranks = dropping
    resumed = fit(
        Pipeline(2, 2, local=True, schedule="zb-h1", remat="never"),
        str(tmp_path),
        resume=str(folder / "4.ckpt"),
        options=DROPPING,
        num_sanity_val_steps=0,
    )
    assert resumed.drop_path == ranks[0].drop_path[4:]
    assert resumed.learning_rates == ranks[0].learning_rates[4:]
    assert resumed.losses == pytest.approx(ranks[0].losses[4:], rel=0, abs=1e-10)


def test_optimizer_steps_count_without_a_pipeline_too(tmp_path: Path) -> None:
    """Windows of two batches and of one: two steps an epoch."""
    said = fit(PLAIN, str(tmp_path), options=DROPPING, accumulate_grad_batches=2)
    assert said.drop_path == [0.0, 0.0, 0.125, 0.25, 0.25, 0.375]
    assert said.learning_rates == pytest.approx([0.01] * 5 + [0.005])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_path": 0.5}, r"drop_path=0\.5 ends with the run: set trainer\.max_steps"),
        ({"warmup_epochs": 0}, "warmup_epochs=0 must be above 0"),
        ({"decay_epochs": -1.0}, r"decay_epochs=-1\.0 must be above 0"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit(PLAIN, str(tmp_path), options=options, max_epochs=-1)


@pytest.mark.parametrize("remat", ["always", "never"])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_drop_path_equals_the_unsplit_model(num_stages: int, remat: str) -> None:
    module = ImageClassification(**TINY | DROPPING)
    module.configure_model()
    assert module.model is not None
    set_drop_path(module.model, 0.8)
    batch = (torch.rand(7, 1, 8, 8), torch.arange(7) % 5)
    outcome = verify(module, batch, num_stages=num_stages, num_micro_batches=3, remat=remat)
    assert outcome.passed and outcome.tolerance["gradient"] <= 1e-10
    assert outcome.dropout == 6  # five cells, and the classifier


def test_with_group_norm_the_whole_batch_gives_the_same_gradients() -> None:
    module = ImageClassification(**TINY | {"norm": "group"})
    outcome = verify(module, (torch.rand(5, 1, 8, 8), torch.arange(5)), num_stages=2, num_micro_batches=5)
    assert outcome.passed and outcome.batch_norm == 0
    assert outcome.whole_batch is not None and outcome.whole_batch < 1e-10
