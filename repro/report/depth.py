"""The section and the figure of the report on deep Transformers with and without their two cures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from repro.datasets.paper import published
from repro.experiments.accuracy.depth import CLIP, SPECIAL, VOCABULARY
from repro.experiments.sweeps.rows import Provenance, Row

from .lines import NOTHING, Figure, Grid, Line, Section, of_model
from .loading import Results
from .style import BLUE, GREEN, ORANGE, VERMILION, figure

PICTURE = "depth.png"
PICTURES = (PICTURE,)
Key = tuple[float, bool, bool]
"""Learning rate, scaled initialisation, clipped logits."""
_CURES = {
    (False, False): ("neither", VERMILION),
    (False, True): ("clipped logits", ORANGE),
    (True, False): ("scaled initialisation", BLUE),
    (True, True): ("both", GREEN),
}
_COLUMNS = {
    "first_loss": ("first loss", "{:.2f}"),
    "largest_loss": ("largest", "{:.2f}"),
    "last_loss": ("last", "{:.2f}"),
    "largest_logit": ("largest logit", "{:.1f}"),
    "last_entropy": ("entropy", "{:.2f}"),
    "steps": ("steps", "{:.0f}"),
}


def sections(results: Results, reference: Results | None) -> list[Section]:
    """All runs in one table, none where there are no rows."""
    rows = list(results.rows)
    others = list(reference.rows) if reference is not None else []
    known = next((row for row in (*rows, *others) if row.metric == "last_loss"), None)
    if known is None:
        return []
    (said,) = (row for row in published("claims") if row["id"] == "instability")
    text = (
        f'What the paper says: "{said["claim"]}" ({said["source"]}), after a few thousand steps; neither the threshold '
        f"nor the scale is published. Here {known.model} ({known.params['layers']} layers in all) learns to count for "
        "a few dozen steps at learning rates that are far too high on purpose, which brings the same signs within "
        f"seconds; logits are clipped at {CLIP:g}, all runs have the same seed and data. Losses and entropies in nat "
        "per token; the entropy of a prediction, at the last step, is 0 where it is certain, the loss of a uniform "
        f"guess {_guess():.2f}; steps are those that stayed finite. "
        "**What this shows:** what each cure does to logits, predictions and loss once training has become unstable. "
        "A clip bounds the loss by construction, so look where it ends, and at what scaled initialisation does alone. "
        "**What it does not show:** that usual rates need a cure within so few steps, nor that the model still learns: "
        "a clipped logit passes no gradient, and a bounded loss above that of a uniform guess has learnt nothing. One "
        "seed, one depth, one width."
    )
    grids = [
        Grid(f"{whose} (measured)", ["rate, cures", *(head for head, _ in _COLUMNS.values())], cells)
        for whose, some in (("Yours", rows), ("Reference", others))
        if (cells := [[f"{key[0]:g}, {_cures(key)}", *_cells(some, key)] for key in _keys(some)])
    ]
    caption = "Loss and largest logit by step, the largest of two steps each, with and without each cure (measured)."
    figures = [Figure(PICTURE, caption)] if rows else ()
    title = f"{known.params['layers']} layers, with and without each cure"
    return [Section(title, text, _lines(rows, others), figures, grids)]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """Every run."""
    return of_model(results.rows[0].model, _lines(list(results.rows), [])) if results.rows else []


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Loss and largest logit by step, a panel each for every learning rate."""
    keys = _keys(rows)
    if not keys:
        return
    rates = sorted({rate for rate, *_ in keys})
    metrics = {"training_loss": "loss (nat)", "training_logit": "largest logit"}
    panels = [(rate, metric) for rate in rates for metric in metrics]
    with figure(folder / PICTURE, 7.2, 2.7 * len(panels), *[1.0] * len(panels)) as (_, axes):
        for axis, (rate, metric) in zip(axes, panels, strict=True):
            for key in keys:
                points = sorted((row.params["step"], row.value) for row in rows if _is(row, key, metric))
                words, color = _CURES[key[1:]]
                if key[0] == rate and points:
                    axis.plot(*zip(*points, strict=True), "-", color=color, label=words)
            axis.set_yscale("log")
            axis.set_ylabel(metrics[metric])
            axis.set_title(f"learning rate {rate:g} (measured)")
        axes[-1].set_xlabel("step")
        axes[0].legend(ncols=2, fontsize=8)


def _guess() -> float:
    """Nat of a guess among all numbers."""
    return math.log(VOCABULARY - SPECIAL)


def _lines(rows: Sequence[Row], others: Sequence[Row]) -> list[Line]:
    keys = dict.fromkeys((*_keys(rows), *_keys(others)))
    what = "loss, first, largest and last; largest logit"
    return [
        Line(f"{_name(key)}: {what}", Provenance.MEASURED.value, *(_text(some, key) for some in (rows, others)))
        for key in keys
    ]


def _text(rows: Sequence[Row], key: Key) -> str:
    values = _values(rows, key)
    form = "{first_loss:.2f}, {largest_loss:.2f}, {last_loss:.2f} nat; {largest_logit:.1f}"
    return form.format(**values) if values else NOTHING


def _cells(rows: Sequence[Row], key: Key) -> list[str]:
    values = _values(rows, key)
    return [form.format(values[metric]) for metric, (_, form) in _COLUMNS.items()]


def _values(rows: Sequence[Row], key: Key) -> dict[str, float]:
    found = {row.metric: row for row in rows if row.params.get("part") == "run" and _is(row, key, row.metric)}
    values = {metric: row.value for metric, row in found.items()}
    return values | {"steps": found["last_loss"].params["steps"]} if values else {}


def _keys(rows: Sequence[Row]) -> list[Key]:
    return list(dict.fromkeys(_key(row) for row in rows if row.metric == "last_loss"))


def _key(row: Row) -> Key:
    return row.params["learning_rate"], row.params["scaled"], row.params["clip"] is not None


def _is(row: Row, key: Key, metric: str) -> bool:
    return row.metric == metric and _key(row) == key


def _name(key: Key) -> str:
    return f"learning rate {key[0]:g}, {_cures(key)}"


def _cures(key: Key) -> str:
    return _CURES[key[1:]][0]
