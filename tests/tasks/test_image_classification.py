from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from repro.models.amoebanet import amoebanet
from repro.tasks.image_classification import AUX_WEIGHT, ImageClassification

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
