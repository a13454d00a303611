"""The sections and figures of the report on Table 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from repro.datasets.paper import published
from repro.experiments.memory.table1 import AMOEBANET, TRANSFORMER, Variant
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Line, Section, find_row
from .loading import Results
from .style import BLACK, BLUE, GREEN, ORANGE, VERMILION, figure

SEARCH, MEASURED = "table1_search.png", "table1_measured.png"
PICTURES = (MEASURED,)
_TABLES = {AMOEBANET: "table1_amoebanet", TRANSFORMER: "table1_transformer"}
_GIB = 2**30
_COLORS = (BLUE, ORANGE, GREEN, VERMILION)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """All sections for which there are rows."""
    rows = list(results.rows)
    others = list(reference.rows) if reference is not None else []
    made = [_counts(rows, others)]
    for model in (AMOEBANET, TRANSFORMER):
        made += [_memory(model, rows, others), _search(model, rows, others)]
    made.append(_measured(rows, others))
    return [section for section in made if section.lines]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The search under the plainest assumptions, and the worst prediction."""
    made = sections(results, reference)
    plain = [one for section in made for one in section.lines if "largest in" in one.what and "float32" in one.what]
    return plain + [one for section in made for one in section.lines if "largest difference" in one.what]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Writes the figures."""
    if any(row.metric == "sweep_layers" for row in rows):
        _draw_search(rows, folder / SEARCH)
    if any(row.metric == "activation_peak" for row in rows):
        _draw_measured(rows, folder / MEASURED)


def _counts(rows: list[Row], others: list[Row]) -> Section:
    lines = []
    for model in (AMOEBANET, TRANSFORMER):
        for column in published(_TABLES[model]):
            name = str(column["configuration"])
            shown = _pair(rows, others, partial(_is, model=model, metric="parameters", configuration=name), _count)
            if shown is not None:
                own, other, row = shown
                what = f"{model} {_size(row)}: parameters ({name})"
                lines.append(Line(what, _SIMULATED, own, other, _published_count(column)))
    text = (
        "Counted exactly, every layer built at full size on the meta device (no memory is used). "
        f"{_claims_text()} The Transformer's counts are right to the printed digits with untied tables for embedding "
        "and softmax; AmoebaNet-D's with the genotype and stem of the public TPU code."
    )
    return Section("Parameters of every column", text, lines)


def _memory(model: str, rows: list[Row], others: list[Row]) -> Section:
    lines = []
    metrics = {
        "parameter_memory": ("parameters with optimizer states, all accelerators", "parameter_memory_gb"),
        "activation_memory": ("peak activations, all accelerators", "activation_memory_gb"),
        "largest_accelerator": ("both on the fullest accelerator, and what is left free of it", None),
    }
    for column in published(_TABLES[model]):
        name = str(column["configuration"])
        for metric, (words, key) in metrics.items():
            for variant in _variants(rows, others, model, metric):
                # Parameters stay in float32 whatever becomes of activations.
                if metric == "parameter_memory" and variant != _variants(rows, others, model, metric)[0]:
                    continue
                shown = _pair(
                    rows,
                    others,
                    partial(_is, model=model, metric=metric, configuration=name, variant=variant),
                    _with_spare if metric == "largest_accelerator" else _gib_and_gb,
                )
                if shown is None:
                    continue
                own, other, row = shown
                how = "" if metric == "parameter_memory" else f", {variant.label}"
                what = f"{name} {_size(row)}, M={row.num_micro_batches}{how}: {words}"
                paper = f"{column[key]:g} GB" if key is not None else NOTHING
                lines.append(Line(what, _SIMULATED, own, other, paper))
    text = (
        "Activations are the tensors that PyTorch saves for backward, counted layer by layer under fake tensors, plus "
        "the inputs that wait for R; a stage's peak is that of one micro-batch times what GPipe's schedule holds (all "
        "M inputs and one micro-batch's activations). Stages are cut so that the fullest accelerator holds least. "
        "Gradients, workspaces and messages under way are not in it, nor in the paper's 12 bytes per parameter. "
    ) + (_swapped_text() if model == TRANSFORMER else _torchgpipe_text())
    return Section(f"Memory of the published sizes: {model}", text, lines)


def _search(model: str, rows: list[Row], others: list[Row]) -> Section:
    lines = []
    known = [row for row in (*rows, *others) if row.model == model and row.metric == "search_layers"]
    columns = {str(column["configuration"]): column for column in published(_TABLES[model])}
    for name, variant in dict.fromkeys((row.params["configuration"], _variant(row)) for row in known):
        shown = _pair(
            rows,
            others,
            partial(_is, model=model, metric="search_layers", configuration=name, variant=variant),
            _found,
        )
        if shown is None:
            continue
        own, other, row = shown
        column = columns.get(name)
        fits = row.params["memory"] / _GIB
        what = f"{model}, {name}, M={row.num_micro_batches}, {variant.label}: largest in {fits:g} GiB an accelerator"
        lines.append(Line(what, _SIMULATED, own, other, NOTHING if column is None else _paper_size(column)))
    every = [row for row in (rows or others) if row.model == model]
    what = "largest L" if model == TRANSFORMER else "largest published (L, D)"
    text = f"The {what} that fits. {_difference_text(model, every)} {_match_text(model, every)}".rstrip()
    figures = []
    if model == TRANSFORMER and any(row.metric == "sweep_layers" for row in rows):
        figures.append(
            Figure(SEARCH, "The largest L that fits, by M at a fixed mini-batch (simulated); dashed: the paper's L.")
        )
    return Section(f"The search: {model}", text, lines, figures)


def _measured(rows: list[Row], others: list[Row]) -> Section:
    lines = []
    known = [row for row in (*rows, *others) if row.metric == "activation_peak"]
    keys = dict.fromkeys((row.model, row.num_stages, row.num_micro_batches, row.remat) for row in known)
    for key in keys:
        name = f"{key[0]}, K={key[1]}, M={key[2]}, remat {key[3]}: peak activations of the fullest rank"
        for provenance in (Provenance.MEASURED, Provenance.SIMULATED):
            pair = [_fullest(some, key, provenance) for some in (rows, others)]
            if any(pair):
                lines.append(Line(name, provenance.value, *(_mib(row) if row else NOTHING for row in pair)))
    for model in dict.fromkeys(row.model for row in known):
        off = [_worst(some, model) for some in (rows, others)]
        what = f"{model}: largest difference of prediction and measurement, any rank"
        lines.append(Line(what, "measured and simulated", *(NOTHING if one is None else f"{one:.2%}" for one in off)))
    text = (
        "One step of the real engine on scaled-down models; every tensor that autograd saves passes a hook, views of "
        "one storage count once, until autograd lets go of it, and so do the inputs and outputs that a stage keeps. "
        f"{_growth_text(rows or others)}"
    )
    figures = [
        Figure(
            MEASURED,
            "Peak activations of the fullest rank over K and M at a fixed mini-batch: measured (points) and "
            "predicted (lines; simulated). Remat never keeps the same bytes whatever M is.",
        )
    ]
    return Section("Measured on scaled-down models", text, lines, figures if rows else ())


def _claims_text() -> str:
    """What the text claims beside what its own table and the exact counts say."""
    said = []
    for claim in published("table1_claims"):
        model = str(claim["model"])
        columns = {column["configuration"]: column for column in published(_TABLES[model])}
        large, small = (columns[claim[key]] for key in ("configuration", "relative_to"))
        ratio = float(large["parameters"] or 0) / float(small["parameters"] or 1)
        agrees = abs(ratio / float(claim["factor"] or 1) - 1) < 0.05
        said.append(
            f"{claim['factor']:g}x for {model} {claim['configuration']} against {claim['relative_to']}, where its own "
            f"table has {ratio:.3g}x" + ("" if agrees else " (**not the same**)")
        )
    return f"The paper's text claims {'; '.join(said)}."


def _swapped_text() -> str:
    """Cells of the paper whose parameter memory is not its parameters times bytes, while the other figure is."""
    per_parameter = next(row for row in published("table1_setup") if row["model"] == TRANSFORMER)["bytes_per_parameter"]
    said = []
    for column in published(_TABLES[TRANSFORMER]):
        expected = float(column["parameters"] or 0) * float(per_parameter or 0) / _GIB
        for_parameters, for_activations = (
            float(column[key] or 0) for key in ("parameter_memory_gb", "activation_memory_gb")
        )
        if abs(for_activations / expected - 1) < 0.02 < abs(for_parameters / expected - 1):
            said.append(
                f"{column['configuration']} prints {for_parameters:g} for parameters and {for_activations:g} for "
                f"activations; {per_parameter} bytes per parameter are {expected:.2f} GiB, so the two look swapped"
            )
    return f"In the paper, {'; '.join(said)}; all other cells are {per_parameter} bytes per parameter." if said else ""


def _torchgpipe_text() -> str:
    said = [
        f"{row['configuration']} {row['model_memory_gib']:g} and "
        + (f"{row['activation_memory_gib']:g}" if row["activation_memory_gib"] is not None else "out of memory")
        for row in published("torchgpipe_memory")
        if row["model"] == AMOEBANET
    ]
    return (
        f"torchgpipe, with one row per micro-batch, has (published, GiB, parameters and activations): {', '.join(said)}"
        "; its activations are what the allocator had cached."
    )


def _difference_text(model: str, rows: Sequence[Row]) -> str:
    """Where the search differs from the paper's choice, and by how much memory."""
    said = []
    for column in published(_TABLES[model]):
        name = str(column["configuration"])
        spare = [row for row in rows if _is(row, model, "spare_memory", name)]
        found = {_variant(row): row for row in rows if _is(row, model, "search_layers", name)}
        parts = []
        for row in spare:
            largest = found.get(_variant(row))
            if largest is not None and _found(largest) != _paper_size(column):
                way = "leaves" if row.value >= 0 else "lacks"
                parts.append(f"{way} {abs(row.value) / _GIB:.1f} GiB ({_variant(row).label})")
        if parts:
            said.append(f"{name}: the paper's {_paper_size(column)} {', '.join(parts)}")
    if not said:
        return "It is the paper's choice in every column."
    return f"Where it differs from the paper's choice, by memory of the fullest accelerator: {'; '.join(said)}."


def _match_text(model: str, rows: Sequence[Row]) -> str:
    """The M, which the paper does not state, at which the search gives the paper's size."""
    said = []
    for column in published(_TABLES[model]):
        name, wanted = str(column["configuration"]), _paper_size(column)
        for row in rows:
            if _is(row, model, "sweep_layers", name) and _found(row) == wanted:
                said.append(f"{name} with M={row.num_micro_batches}, {_variant(row).label}")
    if not said:
        return ""
    return f"The paper does not state M; the search gives exactly its choice for {'; '.join(said)}."


def _growth_text(rows: Sequence[Row]) -> str:
    said = []
    for model in dict.fromkeys(row.model for row in rows if row.metric == "growth_fit"):
        fits = [row for row in rows if row.model == model and row.metric == "growth_fit"]
        off = []
        for fit in fits:
            peak = _fullest(rows, (model, fit.num_stages, fit.num_micro_batches, "always"), Provenance.MEASURED)
            if peak is not None:
                off.append(abs(fit.value / peak.value - 1))
        if off:
            per_row, per_layer = (fits[0].params[key] for key in ("bytes_per_row", "bytes_per_layer_and_row"))
            said.append(
                f"{model}: {per_row / 1024:.0f} KiB x N + {per_layer / 1024:.0f} KiB x (L/K)(N/M), off by at most "
                f"{max(off):.0%}"
            )
    if not said:
        return ""
    return (
        "Against O(N + (L/K)(N/M)) (section 2.3), fitted to the fullest rank with remat always and K > 1: "
        f"{'; '.join(said)}. AmoebaNet's layers are uneven, so L/K does not say how much its fullest stage holds."
    )


_SIMULATED = Provenance.SIMULATED.value


def _pair(
    rows: list[Row], others: list[Row], select: Callable[[Row], bool], show: Callable[[Row], str]
) -> tuple[str, str, Row] | None:
    own, other = find_row(rows, select), find_row(others, select)
    known = own or other
    if known is None:
        return None
    return NOTHING if own is None else show(own), NOTHING if other is None else show(other), known


def _is(row: Row, model: str, metric: str, configuration: str, variant: Variant | None = None) -> bool:
    known = (row.model, row.metric, row.params.get("configuration"))
    return known == (model, metric, configuration) and (variant is None or _variant(row) == variant)


def _variant(row: Row) -> Variant:
    return Variant(row.params.get("dtype", "float32"), row.params.get("attention"))


def _variants(rows: list[Row], others: list[Row], model: str, metric: str) -> list[Variant]:
    known = (row for row in (*rows, *others) if row.model == model and row.metric == metric)
    return list(dict.fromkeys(_variant(row) for row in known))


def _size(row: Row) -> str:
    size = row.params["size"]
    return f"L={size[0]}" if len(size) == 1 else f"({size[0]}, {size[1]})"


def _paper_size(column: dict[str, Any]) -> str:
    if "num_filters" in column:
        return f"({column['num_layers']}, {column['num_filters']})"
    return f"L={column['num_layers']}"


def _found(row: Row) -> str:
    return _size(row) if row.params.get("size") else "none fits"


def _published_count(column: dict[str, Any]) -> str:
    parameters = float(column["parameters"])
    return f"{parameters / 1e9:g}B" if parameters >= 1e9 else f"{parameters / 1e6:g}M"


def _count(row: Row) -> str:
    return f"{row.value:,.0f}"


def _gib(row: Row) -> str:
    return f"{row.value / _GIB:.2f} GiB"


def _gib_and_gb(row: Row) -> str:
    """In the paper's unit as well, which it does not define: the Transformer's figures fit GiB."""
    return f"{_gib(row)} = {row.value / 1e9:.2f} GB"


def _with_spare(row: Row) -> str:
    spare = (row.params["memory"] - row.value) / _GIB
    return f"{_gib(row)} ({abs(spare):.2f} {'free' if spare >= 0 else 'too much'})"


def _mib(row: Row) -> str:
    return f"{row.value / 2**20:.2f} MiB"


def _fullest(rows: Sequence[Row], key: tuple[Any, ...], provenance: Provenance) -> Row | None:
    found = [
        row
        for row in rows
        if row.metric == "activation_peak"
        and row.provenance is provenance
        and (row.model, row.num_stages, row.num_micro_batches, row.remat) == key
    ]
    return max(found, key=lambda row: row.value) if found else None


def _worst(rows: Sequence[Row], model: str) -> float | None:
    peaks: dict[Provenance, dict[tuple[Any, ...], float]] = {Provenance.MEASURED: {}, Provenance.SIMULATED: {}}
    for row in rows:
        if row.model == model and row.metric == "activation_peak":
            key = (row.num_stages, row.num_micro_batches, row.remat, row.params["rank"])
            peaks[row.provenance][key] = row.value
    pairs = [(value, peaks[Provenance.SIMULATED].get(key)) for key, value in peaks[Provenance.MEASURED].items()]
    return max((abs(other / value - 1) for value, other in pairs if other is not None), default=None)


def _draw_search(rows: Sequence[Row], path: Path) -> None:
    known = [row for row in rows if row.model == TRANSFORMER and row.metric == "sweep_layers"]
    stages = sorted({row.num_stages or 0 for row in known})
    columns = {str(column["configuration"]): column for column in published(_TABLES[TRANSFORMER])}
    with figure(path, 7.5, 3.0 * len(stages), *[1.0] * len(stages)) as (_, axes):
        for axis, count in zip(axes, stages, strict=True):
            mine = [row for row in known if row.num_stages == count]
            for color, variant in zip(_COLORS, dict.fromkeys(_variant(row) for row in mine), strict=False):
                points = sorted((row.num_micro_batches or 0, row.value) for row in mine if _variant(row) == variant)
                axis.plot(*zip(*points, strict=True), "o-", color=color, label=variant.label)
            column = columns.get(f"pipeline-{count}")
            if column is not None:
                axis.axhline(float(column["num_layers"] or 0), color=BLACK, ls="--", lw=1, label="paper (published)")
            _whole_ticks(axis, {row.num_micro_batches or 0 for row in mine})
            axis.set_title(f"Transformer-L, K={count}, remat always, {mine[0].params['memory'] / _GIB:g} GiB")
            axis.set_xlabel("M at the paper's mini-batch")
            axis.set_ylabel("largest L (simulated)")
            axis.legend()


def _draw_measured(rows: Sequence[Row], path: Path) -> None:
    known = [row for row in rows if row.metric == "activation_peak"]
    models = list(dict.fromkeys(row.model for row in known))
    with figure(path, 7.5, 3.4 * len(models) + 0.5, *[1.0] * len(models)) as (drawn, axes):
        for axis, model in zip(axes, models, strict=True):
            mine = [row for row in known if row.model == model]
            for color, stages in zip(_COLORS, sorted({row.num_stages or 0 for row in mine}), strict=False):
                for remat, marker, style in (("always", "o", "-"), ("never", "x", ":")):
                    counts = sorted(
                        {r.num_micro_batches or 0 for r in mine if r.num_stages == stages and r.remat == remat}
                    )
                    for provenance in (Provenance.MEASURED, Provenance.SIMULATED):
                        found = [_fullest(mine, (model, stages, count, remat), provenance) for count in counts]
                        values = [row.value / 2**20 for row in found if row is not None]
                        measured = provenance is Provenance.MEASURED
                        axis.plot(
                            counts,
                            values,
                            marker if measured else style,
                            color=color,
                            label=f"K={stages}, remat {remat}" if measured else None,
                        )
            _whole_ticks(axis, {row.num_micro_batches or 0 for row in mine})
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_title(model)
            axis.set_xlabel("M at a fixed mini-batch")
            axis.set_ylabel("MiB on the fullest rank")
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)


def _whole_ticks(axis: Any, numbers: Iterable[int]) -> None:
    """A logarithmic axis of M with a tick at each that there is."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(numbers), [str(number) for number in sorted(numbers)])
    axis.minorticks_off()
