"""Do a deep Transformer's two cures matter? Section 5 of the paper: scaled initialisation and clipped logits.

The paper saw, after a few thousand steps of its deep models, predictions that become very peaked and sensitive to
noise, and gradients that grow without limit. Thousands of steps of a deep model are hours on two cores, so here the
learning rate is far too high instead, which brings the same signs within seconds: a model of 32 encoder and 32 decoder
layers, very narrow, learns to count. With and without each cure it has the same seed and the same data.

What this shows (seed 0, CPU): without cures logits reach many times the clip, predictions peak and, at the higher rate,
the loss runs away. Scaled initialisation alone prevents the jump of the loss at the lower rate, and nothing at the
higher one. Clipping bounds logits and loss at both, by construction. What it does not show: that the cures let the
model learn. At the higher rate the loss with both stays bounded, but above that of a uniform guess, and at the lower
one clipped runs end above those that are not, since a clipped logit passes no gradient. At usual rates neither cure is
needed within so few steps.

Rows have ``experiment="depth"`` and are all measured, with the params ``part``, ``scaled`` (the feed-forward
initialisation), ``clip`` (of logits; None: without), ``learning_rate``, ``steps`` (that stayed finite), ``layers``,
``seed``, ``device``. With ``part="run"`` the metrics are ``first_loss``, ``largest_loss``, ``last_loss`` (nat per
token), ``largest_logit`` (magnitude), ``last_entropy`` (nat) and ``largest_gradient_norm`` of a run; with
``part="training"``: ``training_loss`` and ``training_logit``, the largest of some steps, ``step`` the last of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.errors import UserError

from ..sweeps.checks import Check
from ..sweeps.ranks import Tell
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target

EXPERIMENT = "depth"
BATCH_SIZE, LENGTH, VOCABULARY, SPECIAL = 32, 6, 32, 4
WIDTH, D_FF, HEADS, D_HEAD = 16, 64, 2, 8
NUM_LAYERS, STEPS = 32, 40
SMOKE_LAYERS, SMOKE_STEPS = 2, 2
HIGH_RATE, TOO_HIGH_RATE = 1.5, 3.0
CLIP = 10.0
"""Not published; chosen so that a clipped softmax can still be as good as certain: e^20 to 1."""
DIVERGED = 2.0
"""A loss that has grown by this factor, or is no longer finite, has diverged."""
_STRETCH = 2


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
        device: ``cpu`` or ``cuda:0``.
    """

    scale_ffn_init: bool
    logit_clip: float | None
    learning_rate: float
    steps: int
    num_layers: int = NUM_LAYERS
    seed: int = 0
    device: str = "cpu"

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
    ).to(run.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=run.learning_rate, momentum=0.9)
    generator = torch.Generator().manual_seed(run.seed)
    found: dict[str, Any] = {"losses": [], "gradient_norms": [], "largest_logits": [], "entropies": []}
    for step in range(run.steps):
        # Each sentence counts on from a number of its own, as does its translation.
        first = torch.randint(VOCABULARY - SPECIAL, (BATCH_SIZE, 1), generator=generator)
        counted = (SPECIAL + (first + torch.arange(LENGTH + 1)) % (VOCABULARY - SPECIAL)).to(run.device)
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


def deep_runs(request: Request) -> list[DeepRun]:
    """With and without each cure, at a rate that is too high and at one that is not quite.

    Raises:
        UserError: K or M are asked for.
    """
    for letter, values in (("K", request.num_stages), ("M", request.num_micro_batches)):
        if values is not None:
            given = " ".join(map(str, values))
            raise UserError(f"-{letter} {given}: the runs of depth take one process each; leave -{letter} out")
    smoke = request.scale == "smoke"
    layers, steps = (SMOKE_LAYERS, SMOKE_STEPS) if smoke else (NUM_LAYERS, STEPS)
    device = request.device.split(",")[0]
    return [
        DeepRun(scaled, clip, rate, steps, layers, device=device)
        for rate in (HIGH_RATE, TOO_HIGH_RATE)
        for scaled in (False, True)
        for clip in (None, CLIP)
    ]


def parts(request: Request) -> list[SweepPart]:
    """A run each, two at a time; ``gpu`` sets the same sizes as ``laptop``.

    Raises:
        UserError: K or M are asked for.
    """
    return [
        SweepPart(
            run.name,
            f"{2 * run.num_layers} layers, learning rate {run.learning_rate:g}, {run.cures}",
            train_deep,
            (run,),
            1,
            1.0 if request.scale == "smoke" else 3.0,
            together=True,
        )
        for run in deep_runs(request)
    ]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished; at the smallest scale nothing is checked."""
    finished = {run: results[run.name] for run in deep_runs(request) if run.name in results}
    made = [row for run, found in finished.items() for row in (*_of_run(run, found), *_curves(run, found))]
    return made, [] if request.scale == "smoke" else [_check(verdict) for verdict in cure_verdicts(made)]


@dataclass(frozen=True)
class CureVerdict:
    """What both cures do at one learning rate.

    Attributes:
        learning_rate: of both runs.
        without: largest loss over the first one without cures, infinite where a step was not finite.
        cured: the same with both.
    """

    learning_rate: float
    without: float
    cured: float

    @property
    def holds(self) -> bool:
        """The loss diverges without the cures and does not with both."""
        return self.cured < DIVERGED <= self.without

    @property
    def words(self) -> str:
        """Both ratios."""
        return f"{_times(self.without)} without cures, {_times(self.cured)} with both"


def cure_verdicts(rows: Sequence[Row]) -> list[CureVerdict]:
    """One for each learning rate at which there are runs with neither cure and with both, the lowest first."""
    made = []
    for rate in sorted({row.params["learning_rate"] for row in rows if row.params.get("part") == "run"}):
        without, cured = (_ratio(rows, rate, cured=both) for both in (False, True))
        if without is not None and cured is not None:
            made.append(CureVerdict(rate, without, cured))
    return made


def _check(verdict: CureVerdict) -> Check:
    return Check(
        f"{2 * NUM_LAYERS} layers, learning rate {verdict.learning_rate:g}: the largest loss is at least {DIVERGED:g} "
        f"times the first one without cures and less than that with both ({verdict.words})",
        verdict.holds,
    )


def _of_run(run: DeepRun, found: Mapping[str, Sequence[float]]) -> list[Row]:
    figures = {
        "first_loss": (found["losses"][0], "nat"),
        "largest_loss": (max(found["losses"]), "nat"),
        "last_loss": (found["losses"][-1], "nat"),
        "largest_logit": (max(found["largest_logits"]), "1"),
        "last_entropy": (found["entropies"][-1], "nat"),
        "largest_gradient_norm": (max(found["gradient_norms"]), "1"),
    }
    return [_row(run, found, metric, value, unit, part="run") for metric, (value, unit) in figures.items()]


def _curves(run: DeepRun, found: Mapping[str, Sequence[float]]) -> list[Row]:
    """The peaks stay: a run that jumps for one step must look so."""
    curves = {"training_loss": (found["losses"], "nat"), "training_logit": (found["largest_logits"], "1")}
    return [
        _row(run, found, metric, max(some), unit, part="training", step=begin + len(some))
        for metric, (values, unit) in curves.items()
        for begin in range(0, len(values), _STRETCH)
        if (some := values[begin : begin + _STRETCH])
    ]


def _row(run: DeepRun, found: Mapping[str, Sequence[float]], metric: str, value: float, unit: str, **own: Any) -> Row:
    return Row(
        experiment=EXPERIMENT,
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
            "scaled": run.scale_ffn_init,
            "clip": run.logit_clip,
            "learning_rate": run.learning_rate,
            "steps": len(found["losses"]),
            "layers": 2 * run.num_layers,
            "seed": run.seed,
            "device": run.device,
            **own,
        },
    )


def _ratio(rows: Sequence[Row], rate: float, *, cured: bool) -> float | None:
    """Largest loss over the first one, infinite where a step was not finite; of both cures or of neither."""
    found = {
        row.metric: row
        for row in rows
        if (row.params["part"], row.params["learning_rate"]) == ("run", rate)
        and row.params["scaled"] is cured
        and (row.params["clip"] is not None) is cured
    }
    if not {"first_loss", "largest_loss"} <= found.keys():
        return None
    largest = found["largest_loss"]
    return largest.value / found["first_loss"].value if largest.params["steps"] == STEPS else math.inf


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if math.isfinite(ratio) else "not finite"


TARGET = Target(
    name=EXPERIMENT,
    summary="Section 5: a Transformer of 64 layers with and without scaled initialisation and clipped logits.",
    minutes={"smoke": 0.2, "laptop": 0.22},
    parts=parts,
    rows=rows,
)
