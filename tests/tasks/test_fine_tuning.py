"""Fine-tuning: what is taken from a checkpoint, what begins anew, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor

from repro.errors import UserError
from repro.tasks.fine_tuning import begin_with
from repro.tasks.image_classification import ImageClassification
from tests.helpers.ranks import Pools
from tests.tasks.image_runs import TINY, fit, fit_on_rank
from tests.trainer.running import PLAIN, Pipeline

SOFTMAX = ("model.4.layers.9.weight", "model.4.layers.9.bias", "model.7.linear.weight", "model.7.linear.bias")


def state_of(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=False)["state_dict"]
    return state


def built(**options: Any) -> ImageClassification:
    module = ImageClassification(**TINY | options)
    module.configure_model()
    return module


def assert_fine_tuned(state: dict[str, Tensor], trained: dict[str, Tensor], num_classes: int) -> None:
    assert state.keys() == trained.keys() and set(SOFTMAX) <= set(state)
    for name, tensor in state.items():
        if name in SOFTMAX:
            assert len(tensor) == num_classes
        else:
            assert torch.equal(tensor, trained[name]), name


def test_other_stages_and_other_classes(pools: Pools, tmp_path: Path) -> None:
    """Trained in three processes; fine-tuned in two and in one to the same curve."""
    (_,), *_ = pools(3).run(fit_on_rank, [(Pipeline(3, 2), str(tmp_path / "3"), {"options": {}, "max_steps": 2})])
    checkpoint = tmp_path / "3" / "2.ckpt"
    options = {"num_classes": 3, "init_from": str(checkpoint)}
    (two,), _ = pools(2).run(fit_on_rank, [(Pipeline(2, 2), str(tmp_path / "2"), {"options": options, "max_steps": 2})])
    one = fit(Pipeline(1, 2, local=True), str(tmp_path / "1"), options=options, max_steps=2)
    assert one.losses == pytest.approx(two.losses, rel=0, abs=1e-10)
    trained, begun = state_of(checkpoint), [state_of(tmp_path / number / "start.ckpt") for number in "12"]
    assert int(trained["model.1.project.2.num_batches_tracked"]) == 2
    for state in begun:
        assert_fine_tuned(state, trained, 3)
    assert all(torch.equal(begun[0][name], begun[1][name]) for name in SOFTMAX)

    # What was fine-tuned needs the checkpoint that it began with no more.
    checkpoint.unlink()
    tuned = ImageClassification.load_from_checkpoint(tmp_path / "1" / "2.ckpt", weights_only=False)
    assert tuned.hparams["init_from"] == str(checkpoint)
    assert torch.equal(tuned.state_dict()[SOFTMAX[2]], state_of(tmp_path / "1" / "2.ckpt")[SOFTMAX[2]].float())


def test_as_many_classes_begin_anew_too_and_the_moving_average_is_taken(tmp_path: Path) -> None:
    fit(PLAIN, str(tmp_path), callbacks=(EMAWeightAveraging(decay=0.5),), options={}, max_steps=3)
    checkpoint = torch.load(tmp_path / "3.ckpt", weights_only=False)
    average, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    assert any(not torch.equal(average[name], current[name]) for name in average)
    fit(PLAIN, str(tmp_path), options={"init_from": str(tmp_path / "3.ckpt")}, max_steps=1)
    begun = state_of(tmp_path / "start.ckpt")
    assert_fine_tuned(begun, average, 5)
    assert not any(torch.allclose(begun[name], average[name].double()) for name in SOFTMAX)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    module = built()
    path = tmp_path / "trained.ckpt"
    torch.save({"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams)}, path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_filters": 8}, r"with num_filters=4, this model has num_filters=8.*set --model\.num_filters"),
        ({"num_layers": 6, "variant": "A"}, "with variant=D, num_layers=3, this model has variant=A, num_layers=6"),
        ({"norm": "group"}, "with norm=batch, this model has norm=group"),
        ({"aux_head": False}, "with aux_head=True, this model has aux_head=False"),
        ({"in_channels": 3}, "with in_channels=1, this model has in_channels=3"),
        ({"stem": "imagenet"}, "with stem=small, this model has stem=imagenet"),
    ],
)
def test_another_model_is_one_clear_error(checkpoint: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"init_from='.*trained.ckpt' was trained {message}"):
        begin_with(built(**options), str(checkpoint))


def test_what_does_not_change_the_weights_may_differ(checkpoint: Path) -> None:
    options = {"stem_stride": 1, "image_size": 16, "dropout": 0.5, "drop_path": 0.3, "bn_momentum": 0.01}
    begin_with(built(**options), str(checkpoint))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; give a checkpoint that repro fit has written"),
        ("accuracy 0.9", "is not a checkpoint that can be read safely"),
        ([1, 2], "is not a checkpoint of a training run: it has no state_dict"),
        ({"weights": {}}, "is not a checkpoint of a training run: it has no state_dict"),
        (
            {"state_dict": {"model.0.table.weight": torch.zeros(2)}},
            "another model: .*convolution.weight is only in this",
        ),
    ],
)
def test_what_is_no_checkpoint_is_one_clear_error(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "some.ckpt"
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(UserError, match=message):
        begin_with(built(), str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update({"model.8.weight": torch.zeros(1)}), "model.8.weight is only in the checkpoint"),
        (
            lambda state: state.update({"model.0.norm.weight": torch.zeros(3)}),
            r"model\.0\.norm\.weight is \(3,\) there and \(4,\) in this model",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(checkpoint: Path, change: Any, message: str) -> None:
    content = torch.load(checkpoint, weights_only=True)
    content.pop("hyper_parameters")  # as where somebody else wrote the file
    change(content["state_dict"])
    torch.save(content, checkpoint)
    with pytest.raises(UserError, match=message):
        begin_with(built(), str(checkpoint))
