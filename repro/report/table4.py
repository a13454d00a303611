"""The report on Table 4: transfer beside the published one, and what K, M and size do to accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, find_row, of_model
from .loading import Results
from .table4_plots import draw_micro_batches, draw_sizes, draw_transfer

PICTURES = ("table4_sizes.png",)
SIZES, TRANSFER, MICRO_BATCHES = "table4_sizes.png", "table4_transfer.png", "table4_micro_batches.png"
_BEFORE = "pre_training"

_TRANSFER_TEXT = (
    "The paper trains a model of 557 million parameters on ImageNet and fine-tunes it on seven other sets, the softmax "
    "layer made anew, 5 runs each. Here AmoebaNet-D with {parameters} parameters is trained on 20,000 pictures of "
    "clothes (Fashion-MNIST, as 3-channel images of 32x32) and fine-tuned on what else can be fetched with a package "
    "registry; beside it the same model from random weights, with the same steps, rates and seeds. The accuracies are "
    "of other data sets and of a model thousands of times smaller than the published ones, which stand in a table of "
    "their own: nothing is to be compared across the two. What carries over is the method: a checkpoint written by one "
    "pipeline is the start of another with another number of classes. Whether weights learned on grey clothes help "
    "with drawings in color is a question to these data, and the gain may have either sign."
)
_STAGES_TEXT = (
    "The same recipe, seed and M on K processes. A pipeline only moves layers, so the answer must not depend on K "
    "(section 2.2). In float64 it does not: at the smoke scale the same number of test images is right, and losses "
    "agree to rounding. In float32, sums over parameters in different processes round differently, and AdamW amplifies "
    "that within a few dozen steps, as another seed would: then accuracies agree within seed noise (the standard "
    "deviation over seeds and the sampling error of the test part, taken together)."
)
_WIDTHS_TEXT = (
    "A fixed mini-batch cut into M micro-batches. BatchNorm normalises each by itself in training (section 2.2), so it "
    "sees 1/M of the mini-batch; running statistics are pooled over the mini-batch once a step. Error of the running "
    "mean: |running mean - mean| / standard deviation; of the running variance: |log(running variance / variance)|; "
    "both against the statistics of all training images under the final weights, from whole mini-batches, averaged "
    "over all channels of all BatchNorm layers. A part of it is there with M = 1 too: the running statistics lag "
    "behind the weights. The last column replaces them by the recomputed ones. GroupNorm has none, and gives the same "
    "answer for every M up to rounding. One seed each: differences below the spread of seeds mean nothing. A scaled-"
    "down run with {rows} rows a mini-batch shows the smallest micro-batches; at the paper's sizes each has hundreds "
    "of rows, where neither effect was reported."
)
_SIZES_TEXT = (
    "The same recipe with 1, 2 and 4 times the filters, so about 1, 4 and 16 times the parameters; the paper's "
    "models have 82 million to 557 million. Mean and standard deviation over {seeds} seeds. All models see the same "
    "number of images, none of them twice: this shows that a larger model learns more from the same data, not where "
    "the gain ends. The published curve is in figure1."
)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """Transfer, K, M and sizes."""
    rows, others = results.rows, () if reference is None else reference.rows
    return [_sizes(rows, others), _stages(rows, others), _micro_batches(rows, others), _transfer(rows, others)]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Accuracy over size, over M, and of the transfer."""
    if any(_is(row, "sizes", "mean_accuracy") for row in rows):
        draw_sizes([row for row in rows if row.params.get("part") == "sizes"], folder / SIZES)
    if any(_is(row, "micro_batches", "accuracy") for row in rows):
        draw_micro_batches([row for row in rows if row.params.get("part") == "micro_batches"], folder / MICRO_BATCHES)
    if any(_is(row, "scratch", "mean_accuracy") for row in rows):
        draw_transfer(rows, folder / TRANSFER)


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The sizes, and the gain of fine-tuning."""
    size, *_, transfer = sections(results, reference)
    tuned = find_row(results.rows, lambda row: _is(row, "fine_tuning", "mean_accuracy"))
    name = "fine-tuning" if tuned is None else tuned.model
    return [*size.lines, *of_model(name, [line for line in transfer.lines if "fine-tuned" in line.what])]


def _sizes(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = []
    for size in _values(rows, others, "sizes", "size"):
        select = partial(_is, part="sizes", metric="mean_accuracy", size=size)
        known = next(row for row in (*rows, *others) if select(row))
        what = f"{size}: {known.model}, {_count(known.params['parameters'])} parameters, test accuracy"
        lines += _line(what, rows, others, select)
    seeds = _values(rows, others, "sizes", "seeds")
    figures = [Figure(SIZES, "Accuracy against the number of parameters, every seed and the mean (measured).")]
    text = _SIZES_TEXT.format(seeds=seeds[0] if seeds else "the")
    return Section("Larger models are better", text, lines, figures if lines else [])


def _stages(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = []
    for number in sorted(
        {row.num_stages for row in (*rows, *others) if row.params.get("part") == "stages"}, key=_order
    ):
        for metric, what in (
            ("accuracy", "test accuracy"),
            ("correct", "test images that are right"),
            ("loss_difference", "largest relative difference of the first losses to K = 1"),
        ):
            lines += _line(
                f"K = {number}: {what}",
                rows,
                others,
                partial(_is, part="stages", metric=metric, num_stages=number),
            )
    return Section("The answer does not depend on K", _STAGES_TEXT, lines)


def _micro_batches(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    columns = (
        ("accuracy", "test accuracy"),
        ("running_mean_error", "error of the running mean"),
        ("running_variance_error", "of the running variance"),
        ("accuracy_recomputed", "accuracy with recomputed statistics"),
    )
    own = [row for row in rows if _is(row, "micro_batches", "accuracy")]
    table = []
    for one in own:
        same = [find_row(rows, partial(_is, part="micro_batches", metric=metric, **_run(one))) for metric, _ in columns]
        table.append([f"{_norm(one)}, M = {one.num_micro_batches}", *(_show(row) for row in same)])
    grid = Grid("Yours (measured)", ["run", *(head for _, head in columns)], table)
    lines = []
    for one in _distinct((*rows, *others)) if others else ():
        for metric, head in columns:
            lines += _line(
                f"{_norm(one)}, M = {one.num_micro_batches}: {head}",
                rows,
                others,
                partial(_is, part="micro_batches", metric=metric, **_run(one)),
            )
    batch = own[0].batch_size if own else "few"
    figures = [Figure(MICRO_BATCHES, "Accuracy and the error of the running statistics over M (measured).")]
    return Section(
        "BatchNorm sees micro-batches",
        _WIDTHS_TEXT.format(rows=batch),
        lines,
        figures if own else [],
        [grid] if table else [],
    )


def _transfer(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = _line(
        "Fashion-MNIST, before the transfer: test accuracy", rows, others, lambda row: _is(row, _BEFORE, "accuracy")
    )
    for data in _values(rows, others, "data", "data"):
        if data == "fashion-mnist":
            continue
        for part, metric, what in (
            ("data", "largest_class_share", "share of the largest class"),
            ("scratch", "mean_accuracy", "from scratch"),
            ("fine_tuning", "mean_accuracy", "fine-tuned"),
            ("transfer", "fine_tuning_gain", "fine-tuned less from scratch (points, same seeds)"),
        ):
            lines += _line(
                f"{data}: {what}",
                rows,
                others,
                partial(_is, part=part, metric=metric, data=data),
            )
    absent = [row.params["data"] for row in rows if _is(row, "data", "fetched") and not row.value]
    before = find_row(rows, lambda row: _is(row, _BEFORE, "accuracy"))
    text = _TRANSFER_TEXT.format(parameters="few" if before is None else _count(before.params["parameters"]))
    if absent:
        text += (
            f"\n\n**Left out**, not fetched: {', '.join(absent)}; `python -m repro.datasets fetch` fetches what it can."
        )
    figures = [Figure(TRANSFER, "Accuracy from scratch and fine-tuned, every seed and the mean (measured).")]
    drawn = any(_is(row, "scratch", "mean_accuracy") for row in rows)
    return Section(
        "Table 4: transfer to other sets", text, lines, figures if drawn else [], [_sets(rows), _published()]
    )


def _sets(rows: Sequence[Row]) -> Grid:
    names = list(dict.fromkeys(row.params["data"] for row in rows if row.params.get("part") == "data"))
    table = []
    for name in names:
        found = {
            row.metric: row.value for row in rows if row.params.get("part") == "data" and row.params["data"] == name
        }
        if not found.get("fetched"):
            table.append([name, *["not fetched"] * 3])
            continue
        table.append(
            [name, *(f"{found[one]:,.0f}" for one in ("train_images", "test_images", "classes") if one in found)]
        )
    whole = [row for row in table if len(row) == 4]
    return Grid("Sets of this run, as far as it uses them", ["set", "training images", "test images", "classes"], whole)


def _published() -> Grid:
    columns = {
        "train_images": "training images",
        "test_images": "test images",
        "classes": "classes",
        "accuracy_percent": "accuracy, %",
        "previous_best_percent": "previous best, %",
    }
    return Grid(
        "The paper's Table 4 (published): AmoebaNet-B (18, 512), 557 million parameters",
        ["set", *columns.values()],
        [
            [str(row["dataset"]), *(f"{row[name]:,}" if row[name] is not None else NOTHING for name in columns)]
            for row in published("table4")
        ],
    )


def _line(what: str, rows: Sequence[Row], others: Sequence[Row], select: Callable[[Row], bool]) -> list[Line]:
    own, other = find_row(rows, select), find_row(others, select)
    if own is None and other is None:
        return []
    return [Line(what, Provenance.MEASURED.value, _show(own), _show(other))]


def _show(row: Row | None) -> str:
    if row is None:
        return NOTHING
    spread = row.spread
    if row.metric == "loss_difference":
        return "0" if row.value == 0 else f"{row.value:.0e}"
    if row.metric == "correct":
        return f"{row.value:.0f}"
    if row.metric.startswith("running_"):
        return f"{row.value:.3f}"
    sign = "+" if row.metric == "fine_tuning_gain" else ""
    unit = "" if row.metric == "fine_tuning_gain" else "%"
    return f"{100 * row.value:{sign}.1f}{unit}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def _is(row: Row, part: str, metric: str, **wanted: Any) -> bool:
    """Whether a row is of that part and metric, and its fields and params are as wanted."""
    if row.metric != metric or row.params.get("part") != part:
        return False
    return all(getattr(row, name, row.params.get(name)) == value for name, value in wanted.items())


def _run(row: Row) -> dict[str, Any]:
    return {"norm": row.params["norm"], "num_micro_batches": row.num_micro_batches}


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """One row of each norm and M."""
    some = {tuple(_run(row).values()): row for row in rows if _is(row, "micro_batches", "accuracy")}
    return list(some.values())


def _norm(row: Row) -> str:
    return "BatchNorm" if row.params["norm"] == "batch" else "GroupNorm"


def _values(rows: Sequence[Row], others: Sequence[Row], part: str, name: str) -> list[Any]:
    some = (row for row in (*rows, *others) if row.params.get("part") == part and name in row.params)
    return list(dict.fromkeys(row.params[name] for row in some))


def _order(number: int | None) -> int:
    return number or 0


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number / 1e3:.0f} thousand"
