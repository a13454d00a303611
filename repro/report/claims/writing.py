"""Markdown of the page on claims: paragraphs, tables, shares, commands, pictures."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from repro.report.timeline_svg import svg
from repro.schedules import Timeline

FOLDER = "pictures/claims"
_WIDTH = 120


@dataclass(frozen=True)
class Picture:
    """A timeline beside the page.

    Attributes:
        name: of its file in ``FOLDER``, without ending.
        caption: title in the picture, and what is read where it cannot be shown.
        timeline: what is drawn.
    """

    name: str
    caption: str
    timeline: Timeline

    @property
    def path(self) -> str:
        """Relative to the page."""
        return f"{FOLDER}/{self.name}.svg"

    def drawn(self) -> str:
        """The SVG document."""
        return svg(self.timeline, self.caption, width=900)


@dataclass(frozen=True)
class Entry:
    """A line of the overview and the section that it points to.

    Attributes:
        heading: of the section, with letters, digits, spaces and hyphens only.
        claim: in the overview.
        stated: figure of the claim.
        replayed: figure of the simulator, or what the paper says.
        verdict: in a few words.
        body: the section, paragraphs and blocks in order.
        pictures: those that the section shows.
    """

    heading: str
    claim: str
    stated: str
    replayed: str
    verdict: str
    body: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()

    @property
    def anchor(self) -> str:
        """Of the heading."""
        return self.heading.lower().replace(" ", "-")


def share(value: Fraction) -> str:
    """``3/7 = 42.9%``."""
    return f"{value} = {percent(value)}" if value else "0%"


def percent(value: Fraction) -> str:
    """``42.9%``; two digits that count where it is small."""
    shown = 100 * float(value)
    return f"{shown:.1f}%" if shown >= 1 or not shown else f"{shown:.2g}%"


def paragraph(text: str) -> str:
    """Wrapped as the other pages are; code and links stay whole."""
    kept = re.sub(r"`[^`]+`|\]\([^)]+\)", lambda whole: whole[0].replace(" ", "\0"), " ".join(text.split()))
    filled = textwrap.fill(kept, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    first, *others = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join((first, "|" + "---|" * len(head), *others))


def command(*lines: str) -> str:
    """A block of commands that the tests run."""
    return "\n".join(("```bash", *lines, "```"))


def image(picture: Picture) -> str:
    """The picture in the page."""
    return f"![{picture.caption}]({picture.path})"
