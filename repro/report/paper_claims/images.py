"""Claims of Table 4 and Figure 1a: accuracy on images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING

from .claim import Claim, Finding, Missing, Rows, Rule, Verdict, consistent, found, inconsistent, not_testable
from .selecting import number, said, select
from .shapes import rises, within

TABLE, FIGURE = "Table 4: accuracy on images", "Figure 1a: accuracy over model size"
TARGET = "table4"
BAND = 0.01
"""Of accuracy, absolute."""
SIZE_BAND = 0.02
"""Reading error of sizes in the digitised figure."""
CAPACITY_BAND = 0.05


def claims() -> Iterator[Claim]:
    """Every data set and every point of the figure, and what is said of them."""
    for row in published("table4"):
        for column, what in (("accuracy_percent", "accuracy"), ("top5_percent", "top-5 accuracy")):
            if row[column] is not None:
                yield Claim(
                    f"table4-{row['dataset']}-{what.split()[0]}",
                    TABLE,
                    f"{row['dataset']}: {what} of AmoebaNet-B (18, 512), "
                    f"{'trained' if row['dataset'] == 'ImageNet-2012' else 'fine-tuned'}",
                    f"{row[column]}%",
                    str(row["confidence"]),
                    "table4",
                    (TARGET,),
                    partial(accuracy, str(row["dataset"]), what, number(row, column) / 100),
                )
    yield _text("new-best", TABLE, (), new_best)
    yield _text("transfer", TABLE, (TARGET,), transfers)
    yield _text("consistent", TABLE, (TARGET,), same_for_every_k, suffix="accuracy")
    for row in published("figure1a"):
        yield Claim(
            f"figure1a-{row['model']}",
            FIGURE,
            f"{row['model']} with {number(row, 'parameters') / 1e6:g}M parameters: ImageNet top-1 accuracy",
            f"{row['top1_percent']}%",
            str(row["confidence"]),
            "figure1a",
            (),
            partial(point, str(row["model"]), number(row, "parameters")),
        )
    yield _text("capacity", FIGURE, (), capacity)
    yield _text("larger-images", FIGURE, (TARGET,), larger_is_better, headline=True)


def _text(
    key: str, section: str, targets: tuple[str, ...], rule: Rule, *, suffix: str = "", headline: bool = False
) -> Claim:
    row = said(key)
    value = NOTHING if row["value"] is None else f"{row['value']} {row['unit']}"
    name, text = (f"{key}-{suffix}", f"{row['claim']}: {suffix}") if suffix else (key, str(row["claim"]))
    return Claim(name, section, text, value, str(row["confidence"]), "claims", targets, rule, headline)


def accuracy(dataset: str, what: str, printed: float, rows: Rows) -> Finding:
    """Only rows of the data set itself, with the paper's model, can tell."""
    metric = "accuracy" if what == "accuracy" else "top5"
    model = _paper_model()
    own = [
        row
        for row in rows[TARGET]
        if row.metric == metric and row.model == model and _same(dataset, str(row.params.get("data")))
    ]
    if not own:
        sets = sorted({str(row.params["data"]) for row in rows[TARGET] if row.metric == "accuracy"})
        why = f"needs {dataset} and accelerators for {model}"
        if sets:
            why += f"; what was trained here is scaled down, on {', '.join(sets)}, and tests the shape alone"
        return not_testable(why)
    mean = sum(row.value for row in own) / len(own)
    why = f"mean of {len(own)} runs, within {100 * BAND:g} point of the printed one"
    verdict = Verdict.REPRODUCED if abs(mean - printed) <= BAND else Verdict.CONTRADICTED
    return Finding(verdict, f"{100 * mean:.1f}%", Provenance.MEASURED.value, why)


def new_best(rows: Rows) -> Finding:
    """Counted in the table itself."""
    better = [
        str(row["dataset"])
        for row in published("table4")
        if number(row, "accuracy_percent") > number(row, "previous_best_percent")
    ]
    others = [str(row["dataset"]) for row in published("table4") if row["dataset"] not in better]
    stated = number(said("new-best"), "value")
    ours = f"{len(better)} of {len(better) + len(others)}"
    why = f"the printed accuracies are above the printed previous best ones, but for {' and '.join(others)}"
    named = all(name in str(said("new-best")["claim"]) for name in others)
    return consistent(ours, why) if len(better) == stated and named else inconsistent(ours, why)


def transfers(rows: Rows) -> Finding:
    """Fine-tuned against trained from scratch with the same steps, paired by seed, beyond the spread."""
    gains = select(rows[TARGET], "fine_tuning_gain")
    ours = "; ".join(f"{row.params['data']} {100 * row.value:+.1f}{_spread(row)} points" for row in gains)
    why = "mean gain over training from scratch, scaled down: above the standard deviation over seeds on every set"
    return found(all(row.value > (row.spread or 0.0) for row in gains), ours, Provenance.MEASURED, why)


def same_for_every_k(rows: Rows) -> Finding:
    """Correct test images of K = 1, 2, 4; to the sample in float64, else within seed noise of the accuracy."""
    accuracies = {row.num_stages: row.value for row in select(rows[TARGET], "accuracy", part="stages")}
    if 1 not in accuracies or len(accuracies) < 2:
        raise Missing("accuracy of K = 1 and of another K")
    losses = [row.value for row in select(rows[TARGET], "loss_difference", part="stages")]
    seeds = [row.value for row in select(rows[TARGET], "accuracy", part="sizes", size="small")]
    noise = max(max(seeds) - min(seeds), BAND)
    off = max(abs(value - accuracies[1]) for value in accuracies.values())
    ours = ", ".join(f"K = {k}: {100 * value:.2f}%" for k, value in sorted(accuracies.items(), key=str))
    why = (
        f"accuracy within the range over seeds ({100 * noise:.1f} points) of that of K = 1; losses of the first steps "
        f"differ by {max(losses):.0e} (relative)"
    )
    return found(off <= noise, ours, Provenance.MEASURED, why)


def point(model: str, size: float, rows: Rows) -> Finding:
    """The accuracy needs ImageNet; the size can be checked where a count is published."""
    match = re.fullmatch(r"AmoebaNet-(\w) \((\d+), (\d+)\)", model)
    if match is not None:
        filters = int(match[3])
        counts = [
            row
            for row in published("amoebanet_counts")
            if row["genotype"] == match[1] and row["num_filters"] == filters and row["confidence"] == "C"
        ]
        for row in counts:
            if not within(size, number(row, "parameters"), SIZE_BAND):
                count = f"{number(row, 'parameters') / 1e6:.1f}M parameters"
                return inconsistent(count, f"counted by the {row['source']}; the figure has {size / 1e6:g}M")
    return not_testable("needs ImageNet; read off the published figure")


def capacity(rows: Rows) -> Finding:
    """Between the winners of 2014 and 2017, as the points of the figure have them."""
    sizes = {str(row["model"]): number(row, "parameters") for row in published("figure1a")}
    stated = number(said("capacity"), "value")
    first, last = min(sizes, key=lambda name: sizes[name]), "SENet"
    ratio = sizes[last] / sizes[first]
    why = f"{last} over {first} in the figure, within {CAPACITY_BAND:.0%}"
    ours = f"{ratio:.1f}x"
    return consistent(ours, why) if within(ratio, stated, CAPACITY_BAND) else inconsistent(ours, why)


def larger_is_better(rows: Rows) -> Finding:
    """Mean accuracies over seeds rise with the parameters, each step beyond the spreads of both."""
    means = sorted(select(rows[TARGET], "mean_accuracy", part="sizes"), key=lambda row: row.params["parameters"])
    if len(means) < 2:
        raise Missing("mean accuracies of two sizes")
    ours = ", ".join(
        f"{row.params['parameters'] / 1e3:,.0f} thousand: {100 * row.value:.1f}{_spread(row)}%" for row in means
    )
    clear = all(
        later.value - earlier.value > (earlier.spread or 0.0) + (later.spread or 0.0)
        for earlier, later in pairwise(means)
    )
    why = f"mean over seeds on {means[0].params['data']} rises with the parameters, by more than the spreads of seeds"
    in_short = "scaled-down models, rises by more than the spreads of seeds"
    return found(rises([row.value for row in means]) and clear, ours, Provenance.MEASURED, why, in_short=in_short)


def _paper_model() -> str:
    return str(next(row["model"] for row in published("partitions") if str(row["model"]).startswith("AmoebaNet")))


def _same(title: str, data: str) -> bool:
    one, other = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (title, data))
    return one == other or one.removesuffix("2012") == other


def _spread(row: Row) -> str:
    return "" if row.spread is None else f" ± {100 * row.spread:.1f}"
