"""Image classification with AmoebaNet (sections 3 and 4 of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from repro.gpipe import PipelineModule
from repro.models.amoebanet import Stem, Variant, amoebanet
from repro.tasks.optimization import OptimizerName, ScheduleName, configured_optimizers

AUX_WEIGHT = 0.4
"""Weight of the auxiliary classifier's loss (Real et al. 2018)."""

_TOP = 5


class ImageClassification(PipelineModule):
    """AmoebaNet with a label-smoothed cross-entropy loss.

    Logged: ``loss`` (smoothed; in training with the auxiliary classifier's part), ``accuracy``, and ``top5`` where
    there are at least 10 classes.

    Args:
        variant: genotype, "A", "B" or "D".
        num_layers: L, normal cells; a multiple of 3.
        num_filters: D, filters of a normal cell of the first stack.
        num_classes: outputs.
        in_channels: channels of the pictures.
        image_size: side of the pictures in pixels; only the costs of the layers (for the partition) depend on it.
        stem: "imagenet" divides the side by 8 before the first normal cell, "small" by ``stem_stride``.
        stem_stride: stride of the stem's convolution; None: 2 for "imagenet", 1 for "small".
        dropout: probability of dropping a feature before the classifier.
        aux_head: whether to train an auxiliary classifier in mid-network, with weight 0.4.
        bn_momentum: weight of a mini-batch in BatchNorm's running statistics.
        label_smoothing: probability mass that is spread over all classes.
        optimizer: "adam", "adamw", "rmsprop" or "sgd".
        learning_rate: its peak.
        weight_decay: of matrices and filters; biases and norms do not decay.
        momentum: beta 1 of Adam, momentum of the others.
        second_momentum: beta 2 of Adam, decay of RMSProp.
        epsilon: in the denominator of Adam and RMSProp.
        schedule: "constant", "one_cycle", "inverse_sqrt" or "exponential", after the warm-up.
        warmup_steps: optimizer steps of linear warm-up.
        decay_rate: factor of "exponential".
        decay_steps: optimizer steps between two factors of "exponential".
    """

    def __init__(
        self,
        variant: Variant = "D",
        num_layers: int = 18,
        num_filters: int = 208,
        num_classes: int = 10,
        in_channels: int = 1,
        image_size: int = 32,
        stem: Stem = "small",
        stem_stride: int | None = None,
        dropout: float = 0.0,
        aux_head: bool = False,
        bn_momentum: float = 0.1,
        label_smoothing: float = 0.1,
        optimizer: OptimizerName = "adamw",
        learning_rate: float = 3e-3,
        weight_decay: float = 4e-5,
        momentum: float = 0.9,
        second_momentum: float = 0.999,
        epsilon: float = 1e-8,
        schedule: ScheduleName = "one_cycle",
        warmup_steps: int = 0,
        decay_rate: float = 0.97,
        decay_steps: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()

    @override
    def layers(self) -> list[Any]:
        h: Any = self.hparams
        return amoebanet(
            h.variant,
            num_layers=h.num_layers,
            num_filters=h.num_filters,
            num_classes=h.num_classes,
            aux_head=h.aux_head,
            in_channels=h.in_channels,
            stem=h.stem,
            stem_stride=h.stem_stride,
            dropout=h.dropout,
            bn_momentum=h.bn_momentum,
        )

    @override
    def loss(self, outputs: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> tuple[Tensor, int]:
        """Sum over rows of logits (B, classes) against labels (B,), and the number of rows."""
        logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        total = self._cross_entropy(logits, targets)
        # The auxiliary classifier is a help in training; evaluation is about the classifier. (Gradient mode would not
        # tell: a forward that will be recomputed runs without gradient.)
        if auxiliary and self.training:
            total = total + AUX_WEIGHT * self._cross_entropy(auxiliary[0], targets)
        return total, len(targets)

    @override
    def metrics(self, outputs: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> dict[str, tuple[Tensor, int]]:
        """Correct rows, by the first and by the first five guesses."""
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        found = {"accuracy": ((logits.argmax(dim=1) == targets).sum(), len(targets))}
        if logits.shape[1] >= 2 * _TOP:
            among = (logits.topk(_TOP, dim=1).indices == targets[:, None]).any(dim=1)
            found["top5"] = (among.sum(), len(targets))
        return found

    @override
    def example_inputs(self) -> Tensor:
        h: Any = self.hparams
        return torch.zeros(2, h.in_channels, h.image_size, h.image_size)

    @override
    def configure_optimizers(self) -> Any:
        return configured_optimizers(self)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.hparams["label_smoothing"])
