"""Fine-tuning: a model begins with the weights of a trained one, but for the softmax layers (paper, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.errors import UserError
from repro.gpipe import PipelineModule
from repro.models.amoebanet import softmax_layers
from repro.tasks.checkpoints import read_checkpoint

STRUCTURE = ("variant", "num_layers", "num_filters", "in_channels", "stem", "aux_head", "norm")
"""Options in which the two models must agree; others, such as the number of classes or the image size, may differ."""


@torch.no_grad()
def begin_with(module: PipelineModule, path: str) -> None:
    """Gives the layers of ``module`` that are on this rank their weights and buffers of a checkpoint.

    The softmax layers, of the classifier and of the auxiliary head, keep their initial weights; they may have another
    number of classes. A checkpoint of a run with a moving average of the weights gives the average: Lightning keeps it
    as the checkpoint's ``state_dict``.

    Args:
        module: AmoebaNet, its layers made; those of other ranks on the meta device.
        path: of a checkpoint of Lightning, with or without a pipeline, whatever its K.

    Raises:
        UserError: there is no such file, it is no checkpoint, or one of another model; the message says what differs.
    """
    what = f"init_from={path!r}"
    checkpoint = _read(what, path)
    _check_options(what, checkpoint.get("hyper_parameters", {}), module.hparams)
    trained: Mapping[str, Tensor] = checkpoint["state_dict"]
    assert module.model is not None
    fresh = tuple(f"model.{name}." for name in softmax_layers(module.model))
    own = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(fresh)}
    _check_tensors(what, {name: t for name, t in trained.items() if not name.startswith(fresh)}, own)
    for name, tensor in own.items():
        if not tensor.is_meta:
            tensor.copy_(trained[name])


def _read(what: str, path: str) -> dict[str, Any]:
    try:
        return read_checkpoint(Path(path))
    except UserError as error:
        raise UserError(
            f"{what}: {error}; give a checkpoint that repro fit has written (.ckpt), or null where ckpt_path has all "
            "weights"
        ) from error


def _check_options(what: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    different = [name for name in STRUCTURE if name in there and there[name] != here[name]]
    if different:
        trained = ", ".join(f"{name}={there[name]}" for name in different)
        asked = ", ".join(f"{name}={here[name]}" for name in different)
        options = ", ".join(f"--model.{name}" for name in different)
        raise UserError(
            f"{what} was trained with {trained}, this model has {asked}: fine-tuning replaces the softmax layer and "
            f"keeps all others, so set {options} as there"
        )


def _check_tensors(what: str, there: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    for name in (*here, *there):
        if name not in there or name not in here:
            problem = f"{name} is only in {'this model' if name in here else 'the checkpoint'}"
        elif there[name].shape != here[name].shape:
            problem = f"{name} is {tuple(there[name].shape)} there and {tuple(here[name].shape)} in this model"
        else:
            continue
        raise UserError(f"{what} is a checkpoint of another model: {problem}")
