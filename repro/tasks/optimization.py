"""Optimizers and learning-rate schedules of both tasks, from plain options that fit into a config file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import lightning.pytorch as pl
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from repro.errors import UserError

OptimizerName = Literal["adafactor", "adam", "adamw", "rmsprop", "sgd"]
ScheduleName = Literal["constant", "one_cycle", "inverse_sqrt", "exponential"]


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
    second_momentum: float,
    epsilon: float,
) -> Optimizer:
    """An optimizer with two groups: matrices and filters decay, vectors (biases, norms) do not.

    ``adafactor`` is PyTorch's (Shazeer and Stern 2018). What a step moves is relative: the learning rate times the root
    mean square of the parameter (at least 1e-3), where the learning rate is never above 1/sqrt(step). Each parameter's
    update is clipped to a root mean square of 1.0 before that; of the squared gradients of a matrix only the means of
    rows and of columns are kept, in a moving average whose decay is 1 - step^-0.8. There is no momentum. The recipe of
    M4 (Arivazhagan et al. 2019: learning rate "3.0, 40k warm-up", then the inverse square root, clipping 1.0) is for
    another implementation. Read as 3.0/sqrt(step) it is learning_rate 3.0/sqrt(40000) = 0.015 with the schedule
    ``inverse_sqrt`` and 40,000 warm-up steps here, of which PyTorch's class takes min(0.015 x step/40000,
    1/sqrt(step)), the schedule of Shazeer and Stern after a warm-up.

    Args:
        name: which; ``adamw`` and ``adafactor`` decay apart from the gradient, the others add the decay to it.
        parameters: names and parameters; those that are on the meta device (other ranks') count too.
        learning_rate: before the schedule.
        weight_decay: of the first group.
        momentum: beta 1 of Adam, momentum of the others; Adafactor has none.
        second_momentum: beta 2 of Adam, decay of RMSProp's mean square; SGD and Adafactor have none.
        epsilon: added to the denominator; SGD and Adafactor have none.

    Raises:
        UserError: a number out of range.
    """
    for option, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay), ("epsilon", epsilon)):
        if not value >= 0:
            raise UserError(f"{option}={value} must not be negative")
    for option, value in (("momentum", momentum), ("second_momentum", second_momentum)):
        if not 0 <= value < 1:
            raise UserError(f"{option}={value} must be at least 0 and less than 1")
    named = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name in ("adam", "adamw"):
        kind = Adam if name == "adam" else AdamW
        return kind(groups, lr=learning_rate, betas=(momentum, second_momentum), eps=epsilon)
    if name == "rmsprop":
        return RMSprop(groups, lr=learning_rate, alpha=second_momentum, momentum=momentum, eps=epsilon)
    if name == "sgd":
        return SGD(groups, lr=learning_rate, momentum=momentum)
    if name == "adafactor":
        return Adafactor(groups, lr=learning_rate)
    raise UserError(f"unknown optimizer={name!r}; choose one of adafactor, adam, adamw, rmsprop, sgd")


def learning_rate_factor(
    step: int, *, name: ScheduleName, total_steps: int, warmup_steps: int, decay_rate: float, decay_steps: int
) -> float:
    """What the learning rate is multiplied by in optimizer step ``step`` (from 0).

    All begin with a linear warm-up that ends at 1 after ``warmup_steps``; then

    - ``constant``: 1,
    - ``one_cycle``: a half cosine down to 0 at ``total_steps``,
    - ``inverse_sqrt``: sqrt(warmup_steps / step) (Vaswani et al. 2017),
    - ``exponential``: ``decay_rate`` once every ``decay_steps`` (Real et al. 2018).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if name == "one_cycle":
        done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if name == "inverse_sqrt":
        return math.sqrt(max(1, warmup_steps) / (step + 1))
    if name == "exponential":
        return float(decay_rate ** ((step - warmup_steps) // decay_steps))
    return 1.0


def make_schedule(
    name: ScheduleName,
    optimizer: Optimizer,
    module: pl.LightningModule,
    *,
    warmup_steps: int,
    decay_rate: float,
    decay_steps: int,
) -> LRScheduler:
    """The schedule for ``optimizer``, one step per optimizer step; ``one_cycle`` ends with the Trainer's last step.

    Raises:
        UserError: a number out of range, or ``one_cycle`` under a Trainer without an end.
    """
    if warmup_steps < 0:
        raise UserError(f"warmup_steps={warmup_steps} must not be negative")
    if decay_steps < 1:
        raise UserError(f"decay_steps={decay_steps} must be at least 1")
    if not 0 < decay_rate <= 1:
        raise UserError(f"decay_rate={decay_rate} must be above 0 and at most 1")
    total_steps = 0
    if name == "one_cycle":
        total_steps = steps_of_run(module, "schedule='one_cycle'")
    elif name not in ("constant", "inverse_sqrt", "exponential"):
        raise UserError(f"unknown schedule={name!r}; choose one of constant, one_cycle, inverse_sqrt, exponential")
    factor = partial(
        learning_rate_factor,
        name=name,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        decay_rate=decay_rate,
        decay_steps=decay_steps,
    )
    return LambdaLR(optimizer, factor)


def steps_of_run(module: pl.LightningModule, what: str) -> int:
    """Optimizer steps from the first to the last of the Trainer, also in a run that is resumed.

    Args:
        module: under a Trainer that fits.
        what: the option that ends with the run, for the message.

    Raises:
        UserError: the run has no end.
    """
    estimate = module.trainer.estimated_stepping_batches
    if not math.isfinite(estimate) or estimate < 0:
        raise UserError(f"{what} ends with the run: set trainer.max_steps or trainer.max_epochs")
    return int(estimate)


def configured_optimizers(module: pl.LightningModule) -> dict[str, Any]:
    """What ``configure_optimizers`` returns for a module whose hyper-parameters are the options above."""
    h: Any = module.hparams
    optimizer = make_optimizer(
        h.optimizer,
        module.named_parameters(),
        learning_rate=h.learning_rate,
        weight_decay=h.weight_decay,
        momentum=h.momentum,
        second_momentum=h.second_momentum,
        epsilon=h.epsilon,
    )
    schedule = make_schedule(
        h.schedule,
        optimizer,
        module,
        warmup_steps=_steps(module, "warmup"),
        decay_rate=h.decay_rate,
        decay_steps=_steps(module, "decay"),
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _steps(module: pl.LightningModule, what: str) -> int:
    """Optimizer steps of ``warmup_epochs`` or ``decay_epochs`` where the module has them, else ``warmup_steps``..."""
    h: Any = module.hparams
    epochs = h.get(f"{what}_epochs")
    if epochs is None:
        return int(h[f"{what}_steps"])
    if epochs <= 0:
        raise UserError(f"{what}_epochs={epochs} must be above 0; null leaves the number to {what}_steps")
    trainer = module.trainer
    trainer.fit_loop.setup_data()
    if not math.isfinite(trainer.num_training_batches):
        raise UserError(f"{what}_epochs={epochs} needs epochs of known length; with this data give {what}_steps")
    steps: int = round(epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))
    return max(1, steps)
