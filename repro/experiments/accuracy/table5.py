"""Table 5, scaled down: translation of the best-resourced language with three batch sizes a factor of four apart.

The paper says that the optimiser's settings stay and does not say whether the number of steps does. Both are run: the
same steps (a larger batch then sees more samples; settings that stay, the schedule of the learning rate among them,
mean this) and the same samples (a larger batch then makes fewer steps).

Rows have ``experiment="table5"`` and are all measured. ``batch_size`` is in sentence pairs. Every row of a run has the
params ``held_fixed`` (a list: ``steps``, ``samples`` or both), ``steps``, ``samples`` (sentence pairs seen),
``language``, ``parameters``, ``seed``, ``device``, ``processes``. With ``part="model"`` the metrics are ``bleu``,
``chrf``, ``nll`` (held-out, nat per token), ``fit_time`` (s); params ``test_sentences``. With ``part="training"``:
``training_loss`` (nat), mean of a stretch of steps that ends with ``step``. The baselines (models "copying the source"
and "nearest training sentence") have ``bleu`` and ``chrf``, and the params ``training_pairs``, ``pairs_used``,
``tokens_of_a_pair`` (pieces of source and target in training, ends included, mean).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.arguments import ArgumentParser

from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target

EXPERIMENT = "table5"


def parts(request: Request) -> Sequence[SweepPart]:
    """The baselines, then a run for each batch size and what is held fixed, two at a time.

    Raises:
        UserError: K or M are asked for, the seed is out of range, or there is no corpus to train on.
    """
    from .table5_plans import sweep_parts

    return sweep_parts(request)


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    from .table5_rows import rows as make_rows

    return make_rows(request, results)


def add_options(parser: ArgumentParser) -> None:
    """``--seed``."""
    parser.add_argument("--seed", type=int, metavar="N", help="of weights, order of the data and dropout (default: 0)")


TARGET = Target(
    name=EXPERIMENT,
    summary="Table 5: BLEU and held-out NLL of translation with three batch sizes, at equal steps and equal samples.",
    minutes={"smoke": 0.5, "laptop": 5},
    parts=parts,
    rows=rows,
    add_options=add_options,
)
