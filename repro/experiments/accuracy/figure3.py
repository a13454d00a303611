"""Figures 3 and 1b, scaled down: multilingual translation models of growing size beside bilingual ones.

Rows have ``experiment="figure3"`` and are all measured. ``params["trained_on"]`` says which kind of model a row is of:
``multilingual``, ``bilingual`` (a model of one language), ``copy`` (copying the source) or ``nearest`` (the English of
the most similar training source). Rows of models have the params ``size`` (``base``, ``wide``, ``deep``, ``large``;
bilingual models are ``base``), ``parameters``, ``languages`` (their number), ``steps``, ``seed``, ``device`` and
``processes``; ``model`` is "T(L, H, A), width d". ``params["part"]`` says what a row is about:

============  ============================================  ============================================================
part          metrics                                       more params
============  ============================================  ============================================================
``model``     ``nll`` (held-out, nat per token), ``fit_time``
              (s), ``average_bleu`` (mean over languages;
              also of ``copy`` and ``nearest``)
``language``  ``bleu``, ``chrf``; of multilingual models    ``language``, ``group`` (``high``, ``middle``, ``low``),
              also ``bleu_gain`` (BLEU above the bilingual  ``rank`` (by data size, among those here),
              model, where there is one)                    ``rank_in_corpus``, ``training_pairs``, ``pairs_used``,
                                                            ``test_sentences``, ``signature``
``pool``      ``bleu`` of all sentences of several          ``pool``: ``all``, ``enough`` (languages with at least 100
              languages together                            test sentences), ``high``, ``middle``, ``low``, and
                                                            "fewer, GROUP" (the other languages of a group);
                                                            ``test_sentences``
``group``     ``bleu_gain``, mean over the languages that   ``group`` (also ``all``), ``with_bilingual`` (how many)
              have a bilingual model
``training``  ``training_loss`` (nat), mean of a stretch    ``step`` (the last of the stretch)
============  ============================================  ============================================================

BLEU and chrF are sacrebleu's, on test sentences as short as the training sentences; the parts of the corpus are split
by clusters of near duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.arguments import ArgumentParser

from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target

EXPERIMENT = "figure3"


def parts(request: Request) -> Sequence[SweepPart]:
    """The baselines, the models of one process (two at a time), then the largest in a pipeline of processes.

    Raises:
        UserError: K, M or the seed is out of range, or there is no corpus to train on.
    """
    from .figure3_plans import sweep_parts

    return sweep_parts(request)


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    from .figure3_rows import rows as make_rows

    return make_rows(request, results)


def add_options(parser: ArgumentParser) -> None:
    """``--seed``."""
    parser.add_argument("--seed", type=int, metavar="N", help="of weights, order of the data and dropout (default: 0)")


TARGET = Target(
    name=EXPERIMENT,
    summary="Figures 3 and 1b: multilingual translation models of growing size beside bilingual ones, by language.",
    minutes={"smoke": 1, "laptop": 21},
    parts=parts,
    rows=rows,
    add_options=add_options,
)
