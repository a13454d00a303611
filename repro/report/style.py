"""How all figures look: one style, colours that colour-blind readers can tell apart (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#8C8C8C"

_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 110,
    "savefig.dpi": 110,
}


@contextmanager
def figure(path: Path, width: float, height: float, *rows: float) -> Iterator[Any]:
    """A figure with panels below each other (relative heights ``rows``), saved to ``path`` at the end."""
    with plt.rc_context(_STYLE):
        drawn, axes = plt.subplots(
            len(rows),
            1,
            figsize=(width, height),
            layout="constrained",
            squeeze=False,
            gridspec_kw={"height_ratios": rows},
        )
        try:
            yield drawn, [row[0] for row in axes]
            path.parent.mkdir(parents=True, exist_ok=True)
            # No date and version inside: the same rows give the same file.
            drawn.savefig(path, metadata={"Software": None})
        finally:
            plt.close(drawn)
