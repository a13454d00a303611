"""How far BatchNorm's running statistics are from those of the training set under the final weights.

In training each BatchNorm normalises 1/M of the mini-batch by itself, and its running mean and variance average what it
saw over the last mini-batches. Evaluation uses them for every image. Here they are compared with the mean and variance
over the training images under the weights at the end of training, computed from whole mini-batches
(``torch.optim.swa_utils.update_bn``; "precise BN" in Wu and Johnson 2021). What is left is the lag of the average
behind the weights, the same for every M, and what the small micro-batches of training changed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, Subset

from repro.datasets.images import PACKAGED
from repro.tasks.cli import ReproCLI

from ..sweeps.ranks import Tell
from .fitting import CHECKPOINT, FitPlan, fit
from .training import quiet


def fit_and_measure(rank: int, tell: Tell, plan: FitPlan, images: int, folder: str) -> dict[str, Any]:
    """Trains as ``fit`` does, in one process, then compares running statistics.

    Args:
        rank: 0.
        tell: reports progress.
        plan: the run.
        images: training images to compute the statistics from, at most.
        folder: see ``fit``.

    Returns:
        What ``fit`` returns and ``statistics``: see ``compare``, and ``accuracy_recomputed``, on the test part with the
        recomputed statistics; None where the model has no BatchNorm.
    """
    result = fit(rank, tell, plan, folder)
    tell(1.0, "recomputing the running statistics")
    quiet()
    # The module is evaluated unsplit, in plain PyTorch.
    cli = ReproCLI(plan.training.options(), run=False)
    model, data = cli.model, cli.datamodule
    checkpoint = plan.folder(Path(folder).parent) / CHECKPOINT
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"])
    model.to(plan.training.device.split(",")[0])
    if not _batch_norms(model):
        return result | {"statistics": None}
    data.setup("fit")
    training = data.train_dataloader().dataset
    chosen = Subset(training, range(min(images, len(training))))
    # As many rows as a mini-batch has, drawn once each.
    order = torch.Generator().manual_seed(plan.training.seed)
    loader = DataLoader(chosen, data.batch_size, shuffle=True, generator=order, drop_last=True)
    recomputed = recompute(model, loader)
    data.setup("test")
    return result | {
        "statistics": compare(model, recomputed) | {"accuracy_recomputed": accuracy(recomputed, data.test_dataloader())}
    }


def describe_sets(rank: int, tell: Tell, names: tuple[str, ...], configs: tuple[str, ...]) -> dict[str, Any]:
    """Counts of image sets that have been fetched.

    Args:
        rank: 0.
        tell: reports progress.
        names: of the sets.
        configs: files of ``repro fit`` with the sizes of the training and the test part.

    Returns:
        By name ``train_images``, ``test_images``, ``classes``, ``largest_class_share`` (of the test part).
    """
    quiet()
    found: dict[str, Any] = {}
    for place, name in enumerate(names):
        tell(place / len(names), name)
        data = ReproCLI([*(f"--config={path}" for path in configs), f"--data.dataset={name}"], run=False).datamodule
        data.setup("fit")
        data.setup("test")
        counts = torch.bincount(torch.tensor([int(label) for _, label in data.test_dataloader().dataset]))
        found[name] = {
            "train_images": len(data.train_dataloader().dataset),
            "test_images": int(counts.sum()),
            "classes": PACKAGED[name].classes,  # of a part that is cut short some may be missing
            "largest_class_share": int(counts.max()) / int(counts.sum()),
        }
    return found


def recompute(model: nn.Module, loader: DataLoader[Any]) -> nn.Module:
    """A copy of ``model`` whose running statistics are the averages over the batches of ``loader``."""
    copied = copy.deepcopy(model)
    parameter = next(copied.parameters())
    update_bn(((images.to(parameter.device, parameter.dtype), labels) for images, labels in loader), copied)
    return copied


def compare(model: nn.Module, recomputed: nn.Module) -> dict[str, float]:
    """How far the running statistics of ``model`` are from those of ``recomputed``, averaged over all channels.

    Returns:
        ``running_mean_error``: |running mean - mean| / standard deviation; ``running_variance_error``:
        |log(running variance / variance)|; ``channels``: how many were compared.
    """
    means: list[Tensor] = []
    variances: list[Tensor] = []
    for running, exact in zip(_batch_norms(model), _batch_norms(recomputed), strict=True):
        assert running.running_mean is not None and running.running_var is not None
        assert exact.running_mean is not None and exact.running_var is not None
        # What is added to a variance before it divides keeps dead channels from counting.
        known = exact.running_var + exact.eps
        means.append((running.running_mean - exact.running_mean).abs() / known.sqrt())
        variances.append(((running.running_var + running.eps) / known).log().abs())
    return {
        "running_mean_error": float(torch.cat(means).mean()),
        "running_variance_error": float(torch.cat(variances).mean()),
        "channels": sum(len(mean) for mean in means),
    }


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """The share of images whose most probable class is their label."""
    model.eval()
    parameter = next(model.parameters())
    right = total = 0
    for images, labels in loader:
        outputs = model(images.to(parameter.device, parameter.dtype))
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        right += int((logits.argmax(dim=1).cpu() == labels).sum())
        total += len(labels)
    return right / total


def _batch_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
