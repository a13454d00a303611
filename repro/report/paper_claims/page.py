"""The page on the paper's claims, ``claims.md`` in a folder of results, and ``claims.json`` with the same as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from repro.datasets.paper import CONFIDENCE
from repro.errors import UserError
from repro.experiments.sweeps.rows import write_json, write_text
from repro.report.lines import NOTHING

from .catalogue import claims
from .claim import MEANING, Verdict
from .counts import count_rows
from .evidence import find_runs, judge

PAGE, DATA = "claims.md", "claims.json"

Entry = Mapping[str, Any]
"""One claim as ``Judged.as_dict`` gives it."""

_STYLES: Mapping[Verdict, str] = {
    Verdict.REPRODUCED: "green",
    Verdict.SMALL_SCALE: "cyan",
    Verdict.NOT_TESTABLE: "dim",
    Verdict.CONTRADICTED: "red",
}


def judged_in(folder: Path) -> list[Entry]:
    """Every claim against the rows in a folder of results, such as ``results/local``.

    Raises:
        UserError: there is no such folder, or a run in it is damaged.
    """
    if not folder.is_dir():
        raise UserError(f"--paper-claims {folder}: no such folder; give one of results, such as results/local")
    return [one.as_dict() for one in judge(claims(), find_runs(folder), count_rows())]


def write(folder: Path) -> list[Entry]:
    """Writes page and data into ``folder``; returns what is in them.

    Raises:
        UserError: see ``judged_in``; or the folder cannot be written.
    """
    entries = judged_in(folder)
    write_text(folder / PAGE, markdown(entries))
    write_json(folder / DATA, entries)
    return entries


def read(folder: Path) -> list[Entry]:
    """What ``write`` has written; empty where it has not."""
    path = folder / DATA
    found: list[Entry] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found


def markdown(entries: Sequence[Entry]) -> str:
    """The page."""
    confidence = "; ".join(f"{tag}: {meaning}" for tag, meaning in CONFIDENCE.items())
    blocks = [
        "# The paper's claims",
        f"{len(entries)} statements and numbers of the paper, each with ours, how ours was obtained, and a verdict. A "
        "verdict follows from the rows by a rule in code, written out in the last column; none is given by hand.",
        meanings(entries),
        by_section(entries),
        "**The main ones**",
        headlines(entries),
        f"Confidence in the published number: {confidence}. A provenance of `published` means that the paper's own "
        "numbers were compared. Rows of the scale `smoke` are not used.",
    ]
    for section, some in _sections(entries):
        blocks += [f"## {section}", _table(some)]
    return "\n\n".join(blocks) + "\n"


def meanings(entries: Sequence[Entry]) -> str:
    """A table of the verdicts, how many claims have each, and what it means."""
    numbers = Counter(entry["verdict"] for entry in entries)
    own = sum(bool(entry["by_own_numbers"]) for entry in entries)
    lines = ["| verdict | claims | meaning |", "|---|---:|---|"]
    for verdict, meaning in MEANING.items():
        text = f"{meaning} ({own} of them)" if verdict is Verdict.CONTRADICTED else meaning
        lines.append(f"| {verdict.value} | {numbers[verdict.value]} | {text} |")
    return "\n".join(lines)


def by_section(entries: Sequence[Entry], page: str = "") -> str:
    """A table of how many claims of each section have which verdict; ``page`` is what the sections link to."""
    lines = ["| | " + " | ".join(verdict.value for verdict in Verdict) + " |", "|---|" + "---:|" * len(Verdict)]
    for section, some in _sections(entries):
        numbers = Counter(entry["verdict"] for entry in some)
        cells = [str(numbers[verdict.value] or NOTHING) for verdict in Verdict]
        lines.append(f"| [{section}]({page}#{_anchor(section)}) | {' | '.join(cells)} |")
    numbers = Counter(entry["verdict"] for entry in entries)
    total = [f"**{numbers[verdict.value]}**" for verdict in Verdict]
    return "\n".join([*lines, f"| **all {len(entries)}** | {' | '.join(total)} |"])


def headlines(entries: Iterable[Entry]) -> str:
    """The main claims, one line each, with the rule of each verdict in a few words."""
    chosen = [entry for entry in entries if entry["headline"]]
    lines = ["| claim | paper | ours | verdict |", "|---|---|---|---|"]
    lines += [_row(entry["claim"], entry["paper"], _with_provenance(entry), _with_rule(entry)) for entry in chosen]
    return "\n".join(lines)


def show(console: Console, entries: Sequence[Entry]) -> None:
    """All claims in a terminal, a line each."""
    width = max(len(verdict) for verdict in Verdict)
    for section, some in _sections(entries):
        console.print(section, style="bold")
        for entry in some:
            line = Text(f"{entry['verdict']:<{width}}  ", _STYLES[Verdict(entry["verdict"])])
            ours = _with_provenance(entry)
            console.print(line.append(f"{entry['claim']}: paper {entry['paper']}, ours {ours}", "none"), soft_wrap=True)
        console.print()
    numbers = Counter(entry["verdict"] for entry in entries)
    said = ", ".join(f"{numbers[verdict.value]} {verdict.value}" for verdict in Verdict)
    console.print(f"{len(entries)} claims: {said}", soft_wrap=True)


def _table(entries: Sequence[Entry]) -> str:
    lines = ["| claim | paper | ours | verdict | rule, and rows |", "|---|---|---|---|---|"]
    for entry in entries:
        paper = f"{entry['paper']} [{entry['confidence']}]"
        rows = ", ".join(f"[{link}]({link}/)" for link in entry["rows"])
        why = f"{entry['why']}{f'; {rows}' if rows else ''}"
        lines.append(_row(entry["claim"], paper, _with_provenance(entry), f"**{entry['verdict']}**", why))
    return "\n".join(lines)


def _with_provenance(entry: Entry) -> str:
    return f"{entry['ours']} ({entry['provenance']})" if entry["ours"] != NOTHING else NOTHING


def _with_rule(entry: Entry) -> str:
    return f"**{entry['verdict']}**" + (f": {entry['in_short']}" if entry["in_short"] else "")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sections(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    order = list(dict.fromkeys(entry["section"] for entry in entries))
    ordered = sorted(entries, key=lambda entry: order.index(entry["section"]))
    return [(name, list(some)) for name, some in groupby(ordered, key=lambda entry: entry["section"])]


def _anchor(section: str) -> str:
    kept = "".join(letter for letter in section.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")
