"""Parameters and partitions of the paper's models, counted at full size on the meta device: nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from repro.datasets.paper import Value, published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.planning import partition, stage_costs

from .claim import COUNTS, Claim, Finding, Rows, Verdict, found, inconsistent
from .selecting import entry, number, said, select
from .shapes import within

SECTION = "Parameters and partitions of sections 4 and 5"
BAND = 0.015
ROUNDED_BAND = 0.05
"""Where the paper gives one digit or two: 400M, 1.3B, 3B, 6B."""


def claims() -> Iterator[Claim]:
    """Counts that Table 1 does not have, and the number of partitions of each model."""
    for row in published("amoebanet_counts"):
        if row["kind"] == "paper" and row["genotype"] != "D":
            name = f"AmoebaNet-{row['genotype']} ({row['num_layers']}, {row['num_filters']})"
            yield _count_claim(name, row, "amoebanet_counts")
    for row in published("transformer_counts"):
        if row["kind"] == "paper" and row["model"] != "Transformer-L":
            yield _count_claim(str(row["model"]), row, "transformer_counts")
    heads = said("deep-heads")
    yield Claim(
        "deep-heads",
        SECTION,
        str(heads["claim"]),
        str(heads["value"]),
        str(heads["confidence"]),
        "claims",
        (COUNTS,),
        other_heads,
    )
    for row in published("partitions"):
        yield Claim(
            f"partitions-{row['model']}",
            SECTION,
            f"{row['model']} is trained with this many partitions",
            f"{row['num_partitions']}",
            str(row["confidence"]),
            "partitions",
            (COUNTS,),
            partial(holds_in_partitions, str(row["model"]), int(number(row, "num_partitions"))),
        )


def _count_claim(model: str, row: dict[str, Value], table: str) -> Claim:
    return Claim(
        f"parameters-{model}",
        SECTION,
        f"{model}: parameters",
        f"{number(row, 'parameters') / 1e6:,g}M",
        str(row["confidence"]),
        table,
        (COUNTS,),
        partial(counted, model, number(row, "parameters")),
    )


def counted(model: str, printed: float, rows: Rows) -> Finding:
    """Ours against what is printed."""
    row = select(rows[COUNTS], "parameters", model=model)[0]
    rounded = model.startswith("T(")
    band = ROUNDED_BAND if rounded else BAND
    off = row.value / printed - 1
    digits = " of a figure with one digit or two" if rounded else ""
    return found(
        abs(off) <= band, f"{row.value / 1e6:,.1f}M", row.provenance, f"{off:+.1%}, at most {band:.1%}{digits}"
    )


def other_heads(rows: Rows) -> Finding:
    """The size that the text prints beside the number of partitions, and the one that it prints elsewhere."""
    printed = number(entry("partitions", model=_deep()), "parameters")
    odd, deep = (select(rows[COUNTS], "parameters", model=name)[0].value for name in (_odd(), _deep()))
    ours = f"{odd / 1e9:.2f}B"
    if within(odd, printed, ROUNDED_BAND):
        return found(True, ours, Provenance.SIMULATED, f"counted, within {ROUNDED_BAND:.0%}")
    why = f"{_deep()}, as the models are listed, has {deep / 1e9:.2f}B: a slip of the print"
    return inconsistent(ours, why, Provenance.SIMULATED)


def holds_in_partitions(model: str, num_partitions: int, rows: Rows) -> Finding:
    """A cut into so many stages whose parameters with their optimizer states fit an accelerator."""
    row = select(rows[COUNTS], "parameters", model=model)[0]
    by_layer = row.params["by_layer"]
    if num_partitions > len(by_layer):
        why = f"the model has {len(by_layer)} layers: it cannot be cut into {num_partitions} stages"
        return Finding(Verdict.CONTRADICTED, f"{len(by_layer)} layers", row.provenance.value, why)
    stages = stage_costs(by_layer, partition(by_layer, num_partitions))
    setup = entry("table1_setup", model="Transformer-L")
    per_parameter, room = (number(setup, name) for name in ("bytes_per_parameter", "accelerator_memory_gb"))
    largest = per_parameter * float(max(stages)) / 2**30
    why = (
        f"the best cut's largest stage with {per_parameter:g} bytes a parameter, at most {room:g} GiB "
        f"({setup['accelerator']}); activations are not counted"
    )
    return found(largest <= room, f"largest stage {largest:.2f} GiB", row.provenance, why)


def count_rows() -> list[Row]:
    """Rows of ``COUNTS``: every model of sections 4 and 5, with the parameters of each layer."""
    from repro.models.amoebanet import amoebanet
    from repro.models.transformer import transformer

    made = []
    for row in published("amoebanet_counts"):
        if row["kind"] == "paper" and row["genotype"] != "D":
            size = int(number(row, "num_layers")), int(number(row, "num_filters"))
            factories: Sequence[Callable[[], Any]] = amoebanet(
                str(row["genotype"]),  # type: ignore[arg-type]
                num_layers=size[0],
                num_filters=size[1],
            )
            made.append(_row(f"AmoebaNet-{row['genotype']} ({size[0]}, {size[1]})", factories))
    sizes = {
        str(row["model"]): [int(number(row, name)) for name in ("num_layers", "d_ff", "num_heads")]
        for row in published("transformer_counts")
        if row["model"] != "Transformer-L"
    }
    layers, d_ff, _ = sizes[_deep()]
    sizes[_odd()] = [layers, d_ff, int(_odd().rstrip(")").split(",")[-1])]
    for name, (layers, d_ff, heads) in sizes.items():
        made.append(_row(name, transformer(num_layers=layers, d_ff=d_ff, num_heads=heads)))
    return made


def _deep() -> str:
    """The deep model of the two with the same size."""
    return next(str(row["model"]) for row in published("partitions") if "prints" in str(row["source"]))


def _odd() -> str:
    return str(said("deep-heads")["value"])


def _row(model: str, factories: Sequence[Callable[[], Any]]) -> Row:
    from repro.gpipe.memory import count_parameters

    by_layer = [count_parameters([factory]) for factory in factories]
    return Row(
        COUNTS, model, None, None, None, None, None, Provenance.SIMULATED, "parameters", float(sum(by_layer)), "1",
        None, {"by_layer": by_layer},
    )  # fmt: skip
