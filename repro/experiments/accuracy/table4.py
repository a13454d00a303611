"""Table 4, scaled down: AmoebaNet on packaged pictures, its transfer to other sets, and what K, M and size do to it.

Rows have ``experiment="table4"`` and are all measured. ``params["part"]`` says which comparison a row belongs to, and
accuracies are shares of the test rows, from 0 to 1. Every row of a single run has the params ``data``, ``size``
(``small``, ``middle``, ``large``), ``num_filters``, ``parameters``, ``norm``, ``seed``, ``steps``.

==================  =======================================================  ==========================================
part                metrics of one run                                       metrics over several
==================  =======================================================  ==========================================
``sizes``           ``accuracy``                                             ``mean_accuracy`` (params ``size``,
                                                                             ``parameters``, ``seeds``)
``pre_training``    ``accuracy``
``fine_tuning``,    ``accuracy``                                             ``mean_accuracy`` (params ``data``,
``scratch``                                                                  ``seeds``)
``transfer``                                                                 ``fine_tuning_gain`` (params ``data``):
                                                                             mean of the differences, same seed
``stages``          ``accuracy``, ``correct`` (test rows that are right),
                    ``loss_difference`` (to K = 1, largest relative one of
                    the first 5 steps); num_stages is K
``micro_batches``   ``accuracy``, for BatchNorm also ``running_mean_error``,
                    ``running_variance_error`` and
                    ``accuracy_recomputed`` (see ``running_statistics``),
                    for GroupNorm ``loss_difference`` (to the smallest M);
                    num_micro_batches is M, params ``norm``
``data``            ``train_images``, ``test_images``, ``classes``,
                    ``largest_class_share`` (of the test part), one set each
                    (params ``data``); ``fetched`` 1 or 0
==================  =======================================================  ==========================================

The spread of a mean is the standard deviation over the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError

from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target

_MOST_SEEDS = 20


def parts(request: Request) -> Sequence[SweepPart]:
    """The sizes first (one of them is what others start from or are compared with), then K, M and the transfer.

    Raises:
        UserError: K or M that the model or the batch cannot have, no or too many seeds, or no pictures to train on.
    """
    seeds = request.options.get("seeds")
    if seeds is not None and not 1 <= seeds <= _MOST_SEEDS:
        raise UserError(f"--seeds {seeds}: give a number from 1 to {_MOST_SEEDS}")
    from .table4_plans import sweep_parts

    return sweep_parts(request)


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    from .table4_rows import rows as make_rows

    return make_rows(request, results)


def add_options(parser: ArgumentParser) -> None:
    """``--seeds``."""
    parser.add_argument(
        "--seeds", type=int, metavar="N", help=f"seeds of every mean, 1 to {_MOST_SEEDS} (default: the scale's)"
    )


TARGET = Target(
    name="table4",
    summary="accuracy of AmoebaNet: transfer to other sets, the same answer for every K, BatchNorm and M, size",
    minutes={"smoke": 1, "laptop": 7},
    parts=parts,
    rows=rows,
    add_options=add_options,
)
