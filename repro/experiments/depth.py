"""Do a deep Transformer's two cures matter? Section 5 of the paper: scaled initialisation and clipped logits.

The paper saw, after a few thousand steps of its deep models, predictions that become very peaked and sensitive to
noise, and gradients that grow without limit. Thousands of steps of a deep model are hours on two cores, so here the
learning rate is far too high instead, which brings the same signs within seconds: a model of 32 encoder and 32 decoder
layers, very narrow, learns to count. With and without each cure it has the same seed and the same data.

What this shows: without cures the logits grow without limit, the predictions peak and, at the higher rate, the loss
runs away; with both the logits and the loss are bounded, and at the lower rate the model learns at least as well. What
it does not show: at the higher rate the model with both cures does not run away, but stays near chance, since a clipped
logit passes no gradient. At usual rates neither cure is needed within so few steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import Check
from .ranks import Tell
from .rows import Provenance, Row
from .sweep import SweepPart

BATCH_SIZE, LENGTH, VOCABULARY, SPECIAL = 32, 6, 32, 4
WIDTH, D_FF, HEADS, D_HEAD = 16, 64, 2, 8
STEPS = 40
HIGH_RATE, TOO_HIGH_RATE = 1.5, 3.0
CLIP = 10.0
"""Not published; chosen so that a clipped softmax can still be as good as certain: e^20 to 1."""


@dataclass(frozen=True)
class DeepRun:
    """A short training run of a deep, narrow encoder-decoder.

    Attributes:
        scale_ffn_init: the first cure.
        logit_clip: the second cure; None: without.
        learning_rate: of SGD with momentum 0.9, which lets a step grow with the gradient.
        steps: optimizer steps.
        num_layers: of the encoder, and of the decoder.
        seed: of weights and data.
    """

    scale_ffn_init: bool
    logit_clip: float | None
    learning_rate: float
    steps: int
    num_layers: int = 32
    seed: int = 0

    @property
    def cures(self) -> str:
        """Which are on, in words."""
        on = [
            name for name, is_on in (("scaled", self.scale_ffn_init), ("clipped", self.logit_clip is not None)) if is_on
        ]
        return " and ".join(on) or "neither"

    @property
    def name(self) -> str:
        """Of its part."""
        return f"depth_{self.cures.replace(' ', '_')}_{self.learning_rate:g}"


def train_deep(rank: int, tell: Tell, run: DeepRun) -> dict[str, Any]:
    """Trains; stops where something is no longer finite.

    Returns:
        One number a step of ``losses`` (nat per token), ``gradient_norms``, ``largest_logits`` (magnitude) and
        ``entropies`` (nat; 0 for a prediction that is certain), each before the step.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from repro.models import transformer

    torch.manual_seed(run.seed)
    model = nn.Sequential(
        *(
            make()
            for make in transformer(
                num_layers=run.num_layers,
                d_ff=D_FF,
                num_heads=HEADS,
                d_head=D_HEAD,
                d_model=WIDTH,
                vocab_size=VOCABULARY,
                dropout=0.0,
                scale_ffn_init=run.scale_ffn_init,
                logit_clip=run.logit_clip,
            )
        )
    )
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=run.learning_rate, momentum=0.9)
    generator = torch.Generator().manual_seed(run.seed)
    found: dict[str, Any] = {"losses": [], "gradient_norms": [], "largest_logits": [], "entropies": []}
    for step in range(run.steps):
        # Each sentence counts on from a number of its own, as does its translation.
        first = torch.randint(VOCABULARY - SPECIAL, (BATCH_SIZE, 1), generator=generator)
        counted = SPECIAL + (first + torch.arange(LENGTH + 1)) % (VOCABULARY - SPECIAL)
        logits = model((counted[:, 1:], counted[:, :-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), counted[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        predicted = logits.detach().log_softmax(-1)
        measured = {
            "losses": float(loss.detach()),
            "gradient_norms": float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])),
            "largest_logits": float(logits.detach().abs().max()),
            "entropies": float(-(predicted.exp() * predicted).sum(-1).mean()),
        }
        if not all(math.isfinite(value) for value in measured.values()):
            break
        for name, value in measured.items():
            found[name].append(value)
        optimizer.step()
        tell((step + 1) / run.steps, f"step {step + 1} of {run.steps}, loss {measured['losses']:.2f}")
    return found


def deep_runs() -> list[DeepRun]:
    """With and without each cure, at a rate that is too high and at one that is not quite."""
    return [
        DeepRun(scaled, clip, rate, STEPS)
        for rate in (HIGH_RATE, TOO_HIGH_RATE)
        for scaled in (False, True)
        for clip in (None, CLIP)
    ]


def parts() -> list[SweepPart]:
    """About a minute in all on two cores."""
    return [
        SweepPart(run.name, f"64 layers, learning rate {run.learning_rate:g}, {run.cures}", train_deep, (run,), 1, 12.0)
        for run in deep_runs()
    ]


def rows(experiment: str, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Of the parts that have finished: the loss at the start, the worst and the last; the peak of the predictions.

    Rows have ``params["part"] = "depth"``, ``scaled``, ``clip``, ``learning_rate``, ``steps`` (that stayed finite) and
    ``seed``.
    """
    finished = {run: results[run.name] for run in deep_runs() if run.name in results}
    made = [row for run, found in finished.items() for row in _of_run(experiment, run, found)]
    return made, _checks(finished)


def _of_run(experiment: str, run: DeepRun, found: Mapping[str, Sequence[float]]) -> list[Row]:
    figures = {
        "first_loss": (found["losses"][0], "nat"),
        "largest_loss": (max(found["losses"]), "nat"),
        "last_loss": (found["losses"][-1], "nat"),
        "largest_logit": (max(found["largest_logits"]), "1"),
        "last_entropy": (found["entropies"][-1], "nat"),
        "largest_gradient_norm": (max(found["gradient_norms"]), "1"),
    }
    return [
        Row(
            experiment=experiment,
            model=f"T({run.num_layers}, {D_FF}, {HEADS}), width {WIDTH}",
            batch_size=BATCH_SIZE,
            num_stages=None,
            num_micro_batches=None,
            schedule=None,
            remat=None,
            provenance=Provenance.MEASURED,
            metric=metric,
            value=value,
            unit=unit,
            params={
                "part": "depth",
                "scaled": run.scale_ffn_init,
                "clip": run.logit_clip,
                "learning_rate": run.learning_rate,
                "steps": len(found["losses"]),
                "seed": run.seed,
            },
        )
        for metric, (value, unit) in figures.items()
    ]


def _checks(finished: Mapping[DeepRun, Mapping[str, Sequence[float]]]) -> list[Check]:
    chosen = {run.cures: found for run, found in finished.items() if run.learning_rate == TOO_HIGH_RATE}
    if not {"neither", "scaled and clipped"} <= chosen.keys():
        return []
    plain, cured = chosen["neither"], chosen["scaled and clipped"]
    before, after, bounded = plain["losses"][0], plain["losses"][-1], cured["losses"][-1]
    diverged = after > 2 * before or len(plain["losses"]) < STEPS
    return [
        Check(
            f"64 layers at a learning rate that is too high: without cures the loss goes from {before:.1f} to "
            f"{after:.1f} nat and logits reach {max(plain['largest_logits']):.0f}; with both the last loss is "
            f"{bounded:.1f} nat",
            diverged and bounded < after,
        )
    ]
