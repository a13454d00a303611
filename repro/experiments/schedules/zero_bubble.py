"""The bubble rates that the Zero Bubble paper publishes, beside those of our schedules with its profiled times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from repro.datasets.paper import published
from repro.schedules import make_schedule, simulate

COLUMNS: Mapping[str, str] = MappingProxyType(
    {"1f1b": "bubble_1f1b", "interleaved": "bubble_interleaved", "zb-h1": "bubble_zb_h1", "zb-h2": "bubble_zb_h2"}
)
"""Our name of a schedule, and its column in ``data/paper/zero_bubble.csv``. ZB-1p and ZB-2p are searched, not built."""

EXPLANATION = """\
Our figures are simulated from the times that the authors profiled: every stage with the same F, I and W, every message
with their T_comm, and as the bubble what a rank idles between its first action and its last one (they let ranks begin
the next step without waiting for the others; with a flush at the end of the step ZB-H2 gains little over ZB-H1). With
that 1F1B, ZB-H1 and ZB-H2 agree to the last published digit. The published rates of the interleaved schedule are those
of a step that is shorter by K message delays out of the 2 (V K - 1) on its longest path, which the paper does not
explain: 0.002 to 0.004 less than ours. Only four of the twelve rows have profiled times. That the first and the last
stage hold one layer fewer, as in their runs, is not in these times, nor in their rates."""


@dataclass(frozen=True)
class BubbleRate:
    """One published rate and ours.

    Attributes:
        model: of the Zero Bubble paper, for example ``"1.5B"``.
        schedule: our name for it.
        num_stages: K.
        num_micro_batches: M.
        num_virtual_stages: V; the interleaved schedule has one layer per stage there.
        published: their rate.
        simulated: ours.
    """

    model: str
    schedule: str
    num_stages: int
    num_micro_batches: int
    num_virtual_stages: int
    published: float
    simulated: float


def bubble_rates() -> list[BubbleRate]:
    """All rows with profiled times, one entry per schedule of ``COLUMNS``.

    Raises:
        DataError: there is no checkout to read the published table from.
    """
    rates = []
    for row in published("zero_bubble"):
        if row["forward_ms"] is None:
            continue
        number = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        stages, micro_batches = int(number["num_stages"]), int(number["num_micro_batches"])
        for name, column in COLUMNS.items():
            # The first and the last stage hold one layer fewer than the others, beside embedding and softmax.
            virtual = int(number["num_layers"] + 2) // stages if name == "interleaved" else 1
            schedule = make_schedule(
                name, num_stages=stages, num_micro_batches=micro_batches, num_virtual_stages=virtual
            )
            timeline = simulate(
                schedule,
                forward=number["forward_ms"] / virtual,
                backward=(number["input_gradient_ms"] + number["weight_gradient_ms"]) / virtual,
                weight=number["weight_gradient_ms"] / virtual,
                transfer=number["communication_ms"],
            )
            rate = float(timeline.bubble_without_flush)
            rates.append(BubbleRate(str(row["model"]), name, stages, micro_batches, virtual, number[column], rate))
    return rates
