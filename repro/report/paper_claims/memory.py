"""Claims of Table 1: the largest model and its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from repro.datasets.paper import Value, published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING

from .claim import Claim, Finding, Missing, Rows, Rule, Verdict, consistent, found, inconsistent
from .selecting import entry, number, said, select
from .shapes import rises, within

SECTION = "Table 1: the largest model and its memory"
TARGET = "table1"
MODELS = {"AmoebaNet-D": "table1_amoebanet", "Transformer-L": "table1_transformer"}
COUNT_BAND, COARSE_BAND = 0.011, 0.025
"""Of counts against printed ones; the wider one where one decimal of a billion is printed."""
MEMORY_BAND = 0.10
SEARCH_BAND = 0.25
FACTOR_BAND = 0.05
GROWTH_BAND = 0.15
LINEAR_BAND = 0.05
UNEVEN = 0.05
GB, GIB = 1e9, 2.0**30


def claims() -> Iterator[Claim]:
    """All of the table and its text."""
    for model, table in MODELS.items():
        for column in published(table):
            yield from _of_column(model, table, column)
    for row in published("table1_claims"):
        yield Claim(
            f"table1-factor-{row['configuration']}",
            SECTION,
            f"{row['model']}: {row['note']}, so many times the parameters of {row['relative_to']}",
            f"{row['factor']}x",
            str(row["confidence"]),
            "table1_claims",
            (TARGET,),
            partial(growth, row=row),
            headline=True,
        )
    for name, rule in (
        ("amoebanet-activations", less_activations),
        ("amoebanet-memory", uneven),
        ("transformer-memory", linear),
        ("memory-remat", grows_as_stated),
        ("memory-plain", same_without_remat),
    ):
        yield _text(name, (TARGET,), rule)
    yield _text("table1-head", (), accelerator)


def _of_column(model: str, table: str, column: dict[str, Value]) -> Iterator[Claim]:
    configuration = column["configuration"]
    size = f"L = {column['num_layers']}" + (f", D = {column['num_filters']}" if "num_filters" in column else "")
    where = f"{model}, {configuration} ({size})"
    rules = {
        "parameters": (f"{number(column, 'parameters') / 1e6:,g}M", parameters),
        "parameter memory": (f"{column['parameter_memory_gb']} GB", parameter_memory),
        "peak activation memory": (f"{column['activation_memory_gb']} GB", activation_memory),
        "largest that fits": (size, largest),
    }
    for what, (value, rule) in rules.items():
        yield Claim(
            f"table1-{model.split('-')[0].lower()}-{configuration}-{what.replace(' ', '-')}",
            SECTION,
            f"{where}: {what}",
            value,
            str(column["confidence"]),
            table,
            (TARGET,),
            partial(rule, model=model, column=column),
        )


def _text(name: str, targets: tuple[str, ...], rule: Rule) -> Claim:
    row = said(name)
    value = NOTHING if row["value"] is None else f"{row['value']} {row['unit']}"
    return Claim(name, SECTION, str(row["claim"]), value, str(row["confidence"]), "claims", targets, rule)


def parameters(rows: Rows, *, model: str, column: Mapping[str, Value]) -> Finding:
    """Counted exactly, against what is printed."""
    row = _count(rows, model, column["configuration"])
    printed = number(dict(column), "parameters")
    off = row.value / printed - 1
    coarse = printed >= 1e9
    band = COARSE_BAND if coarse else COUNT_BAND
    return found(
        abs(off) <= band,
        f"{row.value:,.0f}",
        row.provenance,
        f"counted on the meta device, {off:+.2%} (at most {band:.1%}{', printed with one decimal' if coarse else ''})",
    )


def parameter_memory(rows: Rows, *, model: str, column: Mapping[str, Value]) -> Finding:
    """12 bytes a parameter, in GB or GiB: the paper does not say which it prints."""
    row = _cells(rows, "parameter_memory", model, column)[0]
    printed = number(dict(column), "parameter_memory_gb")
    ours = f"{row.value / GIB:.2f} GiB = {row.value / GB:.2f} GB"
    if any(within(row.value / unit, printed, MEMORY_BAND) for unit in (GB, GIB)):
        why = f"12 bytes a parameter, within {MEMORY_BAND:.0%} in GB or in GiB"
        return found(True, ours, row.provenance, why)
    other = number(dict(column), "activation_memory_gb")
    per_parameter = entry("table1_setup", model=model)["bytes_per_parameter"]
    assert isinstance(per_parameter, int)
    stated = per_parameter * number(dict(column), "parameters")
    if any(within(stated / unit, other, MEMORY_BAND) for unit in (GB, GIB)):
        return inconsistent(
            ours,
            f"the paper's {per_parameter} bytes times its {number(dict(column), 'parameters') / 1e6:,g}M are "
            f"{stated / GIB:.2f} GiB, which it prints as peak activation memory: the two figures look swapped",
            row.provenance,
        )
    return inconsistent(
        ours,
        f"the paper's {per_parameter} bytes times its {number(dict(column), 'parameters') / 1e9:,g}B parameters are "
        f"{stated / GB:.1f} GB, more than {MEMORY_BAND:.0%} off what it prints",
        row.provenance,
    )


def activation_memory(rows: Rows, *, model: str, column: Mapping[str, Value]) -> Finding:
    """Against what our models keep, over data types and kinds of attention.

    A pipeline's micro-batches are not stated; ours are the smallest, so ours is the least that can be.
    """
    cells = _cells(rows, "activation_memory", model, column)
    values = [row.value / GIB for row in cells]
    least, most = min(values), max(values)
    printed = number(dict(column), "activation_memory_gb")
    ours = f"{least:.2f} to {most:.2f} GiB"
    provenance = cells[0].provenance
    low, high = (1 - MEMORY_BAND) * least, (1 + MEMORY_BAND) * most
    if low <= printed <= high:
        return found(True, ours, provenance, f"inside what bfloat16 to float32 give, with {MEMORY_BAND:.0%} to spare")
    if cells[0].num_micro_batches == 1:
        swapped = number(dict(column), "parameter_memory_gb")
        if low <= swapped <= high:
            why = f"outside; the {swapped} GB printed as parameter memory lie inside: the two figures look swapped"
            return inconsistent(ours, why, provenance)
        why = "the whole mini-batch without re-materialization; other layers, compilers or paddings keep other tensors"
        return found(False, ours, provenance, why)
    if printed > high:
        return Finding(
            Verdict.NOT_TESTABLE,
            ours,
            provenance.value,
            f"the paper does not state M; ours is for one row a micro-batch (M = {cells[0].num_micro_batches}), the "
            "least that can be, and the printed figure is above it",
        )
    return found(False, ours, provenance, "below the least that our model keeps, at one row a micro-batch")


def largest(rows: Rows, *, model: str, column: Mapping[str, Value]) -> Finding:
    """The printed size fits by our prediction, and a quarter more does not."""
    found_ones = select(rows[TARGET], "search_layers", model=model, configuration=column["configuration"])
    spare = _cells(rows, "spare_memory", model, column)
    provenance = spare[0].provenance
    sizes = [list(row.params["size"] or ()) for row in found_ones]
    counts = [row.params["parameters"] for row in found_ones]
    ours = " to ".join(dict.fromkeys(_size(size) for size in (min(sizes), max(sizes))))
    printed = _count(rows, model, column["configuration"]).value
    memory = f"{spare[0].params['memory'] / GIB:g} GiB"
    if max(row.value for row in spare) < 0:
        if min(counts) <= printed <= max(counts):
            return found(True, ours, provenance, f"our own search over any L ends above it in {memory} in some variant")
        least = min(-row.value for row in spare) / GIB
        why = f"by our prediction it does not fit in {memory}: {least:.1f} GiB too much in the leanest variant"
        return found(False, ours, provenance, why)
    if min(counts) <= (1 + SEARCH_BAND) * printed:
        why = f"fits in {memory} by our prediction, and the largest that does has at most {SEARCH_BAND:.0%} more"
        return found(True, ours, provenance, f"{why} parameters, in some variant of data type and attention")
    return Finding(
        Verdict.NOT_TESTABLE,
        ours,
        provenance.value,
        f"it fits in {memory} by our prediction, and larger ones do: ours have one row a micro-batch, the least "
        "memory; the paper does not state M",
    )


def growth(rows: Rows, *, row: Mapping[str, Value]) -> Finding:
    """Counted parameters of two columns against the stated factor."""
    big, small = (_count(rows, str(row["model"]), row[name]) for name in ("configuration", "relative_to"))
    stated, ratio = number(dict(row), "factor"), big.value / small.value
    ours, in_short = f"{ratio:.1f}x", f"counted, within {FACTOR_BAND:.0%}"
    if within(ratio, stated, FACTOR_BAND):
        return found(True, ours, big.provenance, in_short, in_short=in_short)
    table = MODELS[str(row["model"])]
    printed = [number(entry(table, configuration=row[name]), "parameters") for name in ("configuration", "relative_to")]
    own = printed[0] / printed[1]
    if not within(own, stated, FACTOR_BAND):
        why = f"the parameters that the paper prints are a factor {own:.1f} apart, more than {FACTOR_BAND:.0%} off"
        sizes = " / ".join(_short_count(value) for value in printed)
        in_short = f"the paper's own Table 1 has {sizes} = {own:.1f}x, more than {FACTOR_BAND:.0%} off"
        return inconsistent(ours, why, big.provenance, in_short=in_short)
    return found(False, ours, big.provenance, f"counted, more than {FACTOR_BAND:.0%} off", in_short=in_short)


def less_activations(rows: Rows) -> Finding:
    """Though the model of pipeline-1 is larger than that of naive-1, it keeps less."""
    naive, split = (
        select(rows[TARGET], "activation_memory", model="AmoebaNet-D", configuration=name)
        for name in ("naive-1", "pipeline-1")
    )
    ratios = [one.value / other.value for one, other in zip(naive, split, strict=True)]
    return found(
        min(ratios) > 1,
        " and ".join(f"{a.value / GIB:.1f} to {b.value / GIB:.2f} GiB" for a, b in zip(naive, split, strict=True)),
        naive[0].provenance,
        "fewer bytes with remat and micro-batches, though the model has four times the parameters; by data type",
    )


def linear(rows: Rows) -> Finding:
    """Layers of the largest model found, for each accelerator, are the same for every K > 1, or nearly."""
    chosen: dict[str, dict[int, float]] = {}
    for row in select(rows[TARGET], "search_layers", model="Transformer-L"):
        stages = row.num_stages or 1
        if stages > 1:  # one accelerator holds embedding and softmax beside its layers
            chosen.setdefault(_variant(row), {})[stages] = row.value / stages
    if any(len(each) < 2 for each in chosen.values()):
        raise Missing("largest Transformers for two K")
    spread = max(max(each.values()) / min(each.values()) - 1 for each in chosen.values())
    first = sorted(next(iter(chosen.values())).items())
    ours = f"{', '.join(f'{layers:.1f}' for _, layers in first)} layers a device for K = {_listed(k for k, _ in first)}"
    why = f"largest model found by our search in {len(chosen)} variants: spread over K at most {LINEAR_BAND:.0%}"
    return found(spread <= LINEAR_BAND, f"{ours}; spread {spread:.1%}", Provenance.SIMULATED, why)


def uneven(rows: Rows) -> Finding:
    """How much more the fullest accelerator holds than the mean one, under the best partition of each column."""
    chosen: dict[str, dict[int, float]] = {}
    for row in select(rows[TARGET], "largest_accelerator", model="AmoebaNet-D"):
        if (row.num_stages or 1) > 1:
            key = {name: row.params[name] for name in ("configuration", "dtype", "attention")}
            total = sum(
                select(rows[TARGET], metric, model=row.model, **key)[0].value
                for metric in ("parameter_memory", "activation_memory")
            )
            chosen.setdefault(_variant(row), {})[row.num_stages or 1] = row.value * (row.num_stages or 1) / total
    each = [[values[k] for k in sorted(values)] for values in chosen.values()]
    ours = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in each)
    numbers = _listed(sorted(next(iter(chosen.values()))))
    why = (
        f"predicted memory of the fullest accelerator over the mean, K = {numbers}, by data type: rises with K, to "
        f"more than {1 + UNEVEN:g}"
    )
    return found(all(rises(values) and values[-1] > 1 + UNEVEN for values in each), ours, Provenance.SIMULATED, why)


def grows_as_stated(rows: Rows) -> Finding:
    """The fit of a N + b (L/K)(N/M) against measured peaks of the Transformer."""
    fits = [row for row in select(rows[TARGET], "growth_fit") if row.model.startswith("Transformer")]
    if not fits:
        raise Missing("fit of a Transformer")
    worst = max(abs(row.value / _peak(rows, row, "always") - 1) for row in fits)
    why = (
        f"measured peaks of {fits[0].model} over {len(fits)} (K, M), K > 1, against the best fit of a N + b (L/K)(N/M)"
    )
    return found(
        worst <= GROWTH_BAND,
        f"off by at most {worst:.1%}",
        Provenance.MEASURED,
        f"{why}: off by at most {GROWTH_BAND:.0%}",
    )


def same_without_remat(rows: Rows) -> Finding:
    """Measured peaks of one device do not depend on M."""
    peaks = [
        row
        for row in select(rows[TARGET], "activation_peak", provenance=Provenance.MEASURED, remat="never", num_stages=1)
        if row.model.startswith("Transformer")
    ]
    if len(peaks) < 2:
        raise Missing("peaks over M of a Transformer on one device")
    values = [row.value for row in peaks]
    spread = max(values) / min(values) - 1
    numbers = ", ".join(str(row.num_micro_batches) for row in peaks)
    why = f"{peaks[0].model}, K = 1, the same mini-batch cut into M = {numbers}: at most {LINEAR_BAND:.0%}"
    return found(spread <= LINEAR_BAND, f"spread {spread:.1%} over M", Provenance.MEASURED, why)


def accelerator(rows: Rows) -> Finding:
    """What the head of the table says against what the text says."""
    head = str(said("table1-head")["value"])
    text = str(entry("table1_setup", model="AmoebaNet-D")["accelerator"])
    if head == text:
        return consistent(text, "the text says the same")
    return inconsistent(text, "the text says so of the same table")


def _count(rows: Rows, model: str, configuration: Value) -> Row:
    return select(rows[TARGET], "parameters", model=model, configuration=configuration)[0]


def _cells(rows: Rows, metric: str, model: str, column: Mapping[str, Value]) -> list[Row]:
    return select(rows[TARGET], metric, model=model, configuration=column["configuration"])


def _peak(rows: Rows, like: Row, remat: str) -> float:
    peaks = select(
        rows[TARGET],
        "activation_peak",
        provenance=Provenance.MEASURED,
        model=like.model,
        num_stages=like.num_stages,
        num_micro_batches=like.num_micro_batches,
        remat=remat,
    )
    return max(row.value for row in peaks)


def _short_count(parameters: float) -> str:
    return f"{parameters / 1e9:g}B" if parameters >= 1e9 else f"{parameters / 1e6:g}M"


def _size(size: Sequence[int]) -> str:
    if not size:
        return "none"
    return f"L = {size[0]}" + (f", D = {size[1]}" if len(size) > 1 else "")


def _variant(row: Row) -> str:
    return f"{row.params['dtype']}, {row.params['attention']}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
