"""Sections on what is told about the paper itself, beside what it says and what is counted."""

from __future__ import annotations

from math import ceil

from repro.datasets.paper import Value, published

from .circulating import number, whole
from .writing import Entry, command, paragraph, table


def entries() -> list[Entry]:
    """In the order of the page."""
    told = {str(row["name"]): row for row in published("circulating_about_paper")}
    return [_six_billion(told["6B"]), _amoebanet(told["557M"]), _growth(told["84M"]), _larger(told["25x"])]


def _six_billion(told: dict[str, Value]) -> Entry:
    rows = [row for row in published("partitions") if str(row["model"]).startswith("T(")]
    largest = max(rows, key=lambda row: whole(row["parameters"]))
    counted = _counts(str(largest["model"]), "two embedding tables")
    eight = [
        ("AmoebaNet-D", _of("table1_amoebanet", "pipeline-8")["parameters"]),
        ("Transformer-L", _of("table1_transformer", "pipeline-8")["parameters"]),
    ]
    body = (
        paragraph(
            f"The paper has its {size(largest['parameters'])} Transformer, {largest['model']}, on "
            f"{largest['num_partitions']} partitions ({largest['source']}); its matrices with two embedding tables are "
            f"{size(counted)}. The models for translation:"
        ),
        table(
            ["model", "parameters", "partitions"],
            [[str(row["model"]), size(row["parameters"]), str(row["num_partitions"])] for row in rows],
        ),
        paragraph(
            "With 8 partitions Table 1 has "
            + " and ".join(f"{name} of {size(parameters)}" for name, parameters in eight)
            + ", models that were sized for memory, not trained for a result."
        ),
    )
    return _entry(
        "6B on 8 accelerators",
        told,
        f"{told['num_partitions']} accelerators",
        f"{largest['num_partitions']} partitions",
        "does not hold" if told["num_partitions"] != largest["num_partitions"] else "holds",
        body,
    )


def _amoebanet(told: dict[str, Value]) -> Entry:
    [model] = [row for row in published("partitions") if str(row["model"]).startswith("AmoebaNet")]
    counted = _amoebanet_count("B", 18, 512)
    body = (
        paragraph(
            f"The paper: {model['model']}, {size(model['parameters'])} parameters (counted: {size(counted)}), on "
            f"{model['num_partitions']} partitions ({model['source']}). Neither the size of the mini-batch nor M is "
            "published for this run, so there is nothing to compare a batch of "
            f"{told['batch_size']} and M = {told['num_micro_batches']} with, and its bubble cannot be computed. In "
            "this repository `configs/amoebanet` says for every value whether it is the paper's."
        ),
        command(
            f"repro bubble -P {model['num_partitions']} {told['num_partitions']} -M {told['num_micro_batches']} "
            "--schedules gpipe"
        ),
    )
    return _entry(
        "557M with K 8 and a batch of 8192",
        told,
        f"K = {told['num_partitions']}, batch {told['batch_size']}, M = {told['num_micro_batches']}",
        f"{model['num_partitions']} partitions; batch and M unpublished",
        "does not hold" if told["num_partitions"] != model["num_partitions"] else "holds",
        body,
    )


def _growth(told: dict[str, Value]) -> Entry:
    smallest = _of("table1_amoebanet", "naive-1")
    [accuracy] = [row for row in published("table4") if row["dataset"] == "ImageNet-2012"]
    [largest] = [row for row in published("partitions") if str(row["model"]).startswith("AmoebaNet")]
    near = min(published("figure1a"), key=lambda row: abs(whole(row["parameters"]) - whole(told["from_parameters"])))
    body = (
        paragraph(
            f"Table 1 begins at {size(smallest['parameters'])}, AmoebaNet-D ({smallest['num_layers']}, "
            f"{smallest['num_filters']}), which fits one accelerator without a pipeline (counted: "
            f"{size(_amoebanet_count('D', whole(smallest['num_layers']), whole(smallest['num_filters'])))}). "
            f"{size(told['from_parameters'])} is in none of its tables (in Figure 1a {near['model']} has about "
            f"{size(near['parameters'])}); {number(accuracy['accuracy_percent']):g} is the "
            f"accuracy in percent on ImageNet of the {size(largest['parameters'])} model. That one is "
            f"{largest['model']}: another cell, trained for accuracy. So the two ends are no growth of one model; "
            f"Table 1 ends at {size(_of('table1_amoebanet', 'pipeline-8')['parameters'])}."
        ),
    )
    same = told["from_parameters"] == smallest["parameters"]
    return _entry(
        "84M to 557M",
        told,
        f"{size(told['from_parameters'])} to {size(told['parameters'])}",
        f"{size(smallest['parameters'])} (D) and {size(largest['parameters'])} (B), two models",
        "holds" if same else "does not hold",
        body,
    )


def _larger(told: dict[str, Value]) -> Entry:
    rows, off = [], []
    for claim in published("table1_claims"):
        table1 = "table1_amoebanet" if claim["model"] == "AmoebaNet-D" else "table1_transformer"
        last, first = _of(table1, str(claim["configuration"])), _of(table1, str(claim["relative_to"]))
        ratio = number(last["parameters"]) / number(first["parameters"])
        off.append(abs(ratio / number(claim["factor"]) - 1))
        rows.append(
            [
                f"{claim['model']}, {claim['configuration']}",
                f"{number(claim['factor']):g}x",
                f"{size(last['parameters'])} / {size(first['parameters'])} = {_ratio(ratio)}x",
            ]
        )
    last, first = _of("table1_amoebanet", "pipeline-8"), _of("table1_amoebanet", "naive-1")
    counts = [_amoebanet_count("D", whole(row["num_layers"]), whole(row["num_filters"])) for row in (last, first)]
    memory = number(last["parameter_memory_gb"]) / number(first["parameter_memory_gb"])
    ratio = number(last["parameters"]) / number(first["parameters"])
    body = (
        paragraph(
            f"The paper says so of AmoebaNet-D ({told['source']}), and its own Table 1 says {ratio:.0f}x. The models "
            f"counted give {size(counts[0])} / {size(counts[1])} = {counts[0] / counts[1]:.1f}x, the table's parameter "
            f"memory {memory:.1f}x; none of these is {number(told['factor']):g}. The other two factors of the text "
            f"come within {_percent_up(max(off[1:]))}% of the table's:"
        ),
        table(["", "text", "Table 1"], rows),
    )
    return _entry(
        "25 times larger",
        told,
        f"{number(told['factor']):g}x",
        f"{ratio:.0f}x by Table 1",
        "the paper's own words, not its table" if off[0] > 0.05 else "holds",
        body,
    )


def _entry(
    heading: str, told: dict[str, Value], stated: str, replayed: str, verdict: str, body: tuple[str, ...]
) -> Entry:
    return Entry(heading, str(told["claim"]), stated, replayed, verdict, body)


def _of(name: str, configuration: str) -> dict[str, Value]:
    [row] = [row for row in published(name) if row["configuration"] == configuration]
    return row


def _counts(model: str, kind: str) -> int:
    [row] = [row for row in published("transformer_counts") if row["model"] == model and row["kind"] == kind]
    return whole(row["parameters"])


def _amoebanet_count(genotype: str, num_layers: int, num_filters: int) -> int:
    """Counted after the public TPU code, as the models here are built."""
    [row] = [
        row
        for row in published("amoebanet_counts")
        if (row["genotype"], row["num_layers"], row["num_filters"]) == (genotype, num_layers, num_filters)
        and row["kind"] == "tensorflow construction"
    ]
    return whole(row["parameters"])


def size(parameters: Value) -> str:
    """``557M``, ``1.05B``."""
    value = number(parameters)
    return f"{value / 1e9:.4g}B" if value >= 1e9 else f"{value / 1e6:.4g}M"


def _percent_up(part: float) -> int:
    return ceil(100 * part)


def _ratio(value: float) -> str:
    return f"{value:.3g}"
