"""Image classification with AmoebaNet (sections 3 and 4 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from repro.gpipe import PipelineModule
from repro.models.amoebanet import NormName, Stem, Variant, amoebanet, set_drop_path
from repro.tasks.fine_tuning import begin_with
from repro.tasks.optimization import OptimizerName, ScheduleName, configured_optimizers, steps_of_run

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
        drop_path: probability of dropping an operation's output in the last cell at the end of training; it grows
            linearly over the cells and over the optimizer steps of the run (scheduled drop-path; Real et al. 2018 keep
            0.7, so drop 0.3).
        aux_head: whether to train an auxiliary classifier in mid-network, with weight 0.4.
        norm: "batch" or "group": BatchNorm, whose result depends on the micro-batch, or GroupNorm, whose does not.
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
        warmup_epochs: the warm-up in epochs, whatever the batch size; it takes the place of ``warmup_steps``.
        decay_epochs: epochs between two factors of "exponential" (2 in Real et al. 2018), in place of ``decay_steps``.
        init_from: a checkpoint with whose weights ``fit`` begins, but for the softmax layers (fine-tuning); one of
            the same model, with any number of classes, trained in any number of stages.
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
        drop_path: float = 0.0,
        aux_head: bool = False,
        norm: NormName = "batch",
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
        warmup_epochs: float | None = None,
        decay_epochs: float | None = None,
        init_from: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._init_from = init_from
        self._steps_of_run = 0

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
            drop_path=h.drop_path,
            norm=h.norm,
            bn_momentum=h.bn_momentum,
        )

    @override
    def configure_model(self) -> None:
        super().configure_model()
        # Not where a checkpoint is opened or evaluated, which has all weights: the file may be gone by then.
        fitting = self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        if fitting and self._init_from is not None:
            begin_with(self, self._init_from)
            self._init_from = None

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        self._init_from = None  # these weights take their place
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    @override
    def on_fit_start(self) -> None:
        if self.hparams["drop_path"]:
            self._steps_of_run = steps_of_run(self, f"drop_path={self.hparams['drop_path']}")

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Every rank comes here, with the same number of steps; that number survives a resume.
        if self._steps_of_run:
            assert self.model is not None
            set_drop_path(self.model, self.trainer.global_step / self._steps_of_run)

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
    def example_batch(self) -> tuple[Tensor, Tensor]:
        return self.example_inputs(), torch.zeros(2, dtype=torch.int64)

    @override
    def configure_optimizers(self) -> Any:
        return configured_optimizers(self)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.hparams["label_smoothing"])
