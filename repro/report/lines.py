"""Tables as data: one line a figure, with paper, reference and one's own value side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from repro.experiments.sweeps.rows import Row

Select = Callable[[Row], bool]
NOTHING = "–"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        what: in words.
        provenance: of reference and yours.
        yours: value with unit, ``NOTHING`` where there is none.
        reference: likewise, of the committed run.
        paper: likewise, of the paper.
    """

    what: str
    provenance: str
    yours: str
    reference: str = NOTHING
    paper: str = NOTHING

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return {
            "what": self.what,
            "provenance": self.provenance,
            "paper": self.paper,
            "reference": self.reference,
            "yours": self.yours,
        }


@dataclass(frozen=True)
class Figure:
    """A picture in the folder of the report.

    Attributes:
        name: file name.
        caption: what it shows and how that was obtained.
    """

    name: str
    caption: str


@dataclass(frozen=True)
class Grid:
    """A table with columns of its own, of one's own figures beside those of the paper.

    Attributes:
        title: what it shows.
        columns: heads; the first column says what a row is about.
        rows: as many texts each.
        note: below the table, such as what short heads stand for.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a report: text, a table, pictures."""

    title: str
    text: str
    lines: Sequence[Line]
    figures: Sequence[Figure] = ()
    grids: Sequence[Grid] = ()


def find_row(rows: Sequence[Row], select: Select) -> Row | None:
    """The first row that ``select`` accepts."""
    return next((row for row in rows if select(row)), None)


def line(
    what: str,
    rows: Sequence[Row],
    reference: Sequence[Row],
    select: Select,
    paper: str = NOTHING,
    digits: int = 3,
) -> Line | None:
    """The line of one figure, None where neither side has it; ``digits`` after the point are those of a ratio."""
    own, other = find_row(rows, select), find_row(reference, select)
    known = own or other
    if known is None:
        return None
    return Line(what, known.provenance.value, show(own, digits), show(other, digits), paper)


def of_model(model: str, lines: Sequence[Line]) -> list[Line]:
    """The lines with the name of their model, which stands above them in a report and not in a summary."""
    return [replace(one, what=f"{model}, {one.what}") for one in lines]


def show(row: Row | None, digits: int = 3) -> str:
    """A value with its unit and spread, as precise as makes sense; ``digits`` after the point are those of a ratio."""
    if row is None:
        return NOTHING
    value, spread = row.value, row.spread
    if row.metric.endswith("_difference"):
        return "0" if value == 0 else f"{value:.1e}"
    if row.metric in ("bubble", "accuracy", "top5"):
        return f"{100 * value:.1f}%" + ("" if spread is None else f" ± {100 * spread:.1f}")
    if row.unit == "s" and value >= 60:
        return f"{value / 60:.1f} min"
    if row.unit == "s" and value < 1:
        return f"{1000 * value:.1f}" + ("" if spread is None else f" ± {1000 * spread:.1f}") + " ms"
    if row.unit == "s":
        return f"{value:.2f}" + ("" if spread is None else f" ± {spread:.2f}") + " s"
    if row.unit == "steps":
        return f"{value:.0f}"
    if row.metric in ("step_time_ratio", "speed_up"):
        return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}") + "×"
    if row.unit == "BLEU":
        return f"{value:.1f}"
    return f"{value:.3f}"
