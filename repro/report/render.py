"""Sections as Markdown, as tables in a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .lines import NOTHING, Grid, Line, Section
from .loading import Results


def markdown(results: Results, reference: Results | None, sections: Sequence[Section]) -> str:
    """The whole report."""
    run = results.run
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    blocks = [
        f"# {results.target}, scale {results.scale}",
        f"`{run['command']}`, {run['date']}, on {run['device']} ({run['device_name']}), {run['cores']} cores, "
        f"{run['system']}; code {run['git_revision']}; Python {run['python']}, {versions}.",
    ]
    if reference is not None:
        blocks.append(
            f"*reference*: the committed run on `{reference.machine}` ({reference.run['date'][:10]}, "
            f"{reference.run['device_name']}, {reference.run['cores']} cores). *paper*: only where the paper has the "
            "figure; its models are full-size, and what was measured here is scaled down and named so."
        )
    blocks += _left_out(run)
    if run.get("checks"):
        blocks.append("## Checks")
        blocks.append("\n".join(f"- {'passed' if c['passed'] else '**FAILED**'}: {c['text']}" for c in run["checks"]))
    for section in sections:
        blocks.append(f"## {section.title}")
        if section.text:
            blocks.append(section.text)
        for one in section.grids:
            blocks += [f"**{one.title}**", grid(one), *([one.note] if one.note else [])]
        if section.lines:
            blocks.append(table(section.lines))
        blocks += [f"![{figure.caption}]({figure.name})\n\n*{figure.caption}*" for figure in section.figures]
    return "\n\n".join(blocks) + "\n"


def table(lines: Sequence[Line], prefix: str = "", yours: str = "yours") -> str:
    """A Markdown table with the columns that have anything in them; ``yours`` heads the last one."""
    columns = _columns(lines)
    header = "| what | " + " | ".join([*columns[:-1], yours]) + " |"
    rule = "|---|" + "---|" * len(columns)
    rows = ["| " + " | ".join([one.what, *(one.as_dict()[column] for column in columns)]) + " |" for one in lines]
    return "\n".join(prefix + row for row in (header, rule, *rows))


def grid(one: Grid) -> str:
    """A Markdown table with its own columns."""
    lines = [one.columns, ["---"] + ["---:"] * (len(one.columns) - 1), *one.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def show(console: Console, results: Results, sections: Sequence[Section], yours: str = "yours") -> None:
    """Checks and tables in a terminal; ``yours`` heads the last column."""
    run = results.run
    for text in _left_out(run):
        console.print(text.replace("**", ""), style="yellow", highlight=False)
    for section in sections:
        for one in section.grids:
            _show_grid(console, one)
        made = Table(title=section.title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
        made.add_column("what", overflow="fold")
        columns = _columns(section.lines)
        for column in columns:
            head = yours if column == "yours" else column
            made.add_column(head, justify="left" if column == "provenance" else "right", overflow="fold")
        for one_line in section.lines:
            made.add_row(one_line.what, *(one_line.as_dict()[column] for column in columns))
        if section.lines:
            console.print(made)
            console.print()
    for check in run.get("checks", ()):
        word, style = ("passed", "green") if check["passed"] else ("FAILED", "bold red")
        console.print(f"[{style}]{word}[/] {check['text']}", highlight=False, soft_wrap=True)


def as_data(results: Results, sections: Sequence[Section]) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "target": results.target,
        "scale": results.scale,
        "run": results.run,
        "sections": [
            {
                "title": section.title,
                "lines": [one.as_dict() for one in section.lines],
                "tables": [
                    {"title": one.title, "columns": one.columns, "rows": one.rows, "note": one.note}
                    for one in section.grids
                ],
            }
            for section in sections
        ],
    }


def _show_grid(console: Console, one: Grid) -> None:
    made = Table(title=one.title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    for place, column in enumerate(one.columns):
        made.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in one.rows:
        made.add_row(*row)
    console.print(made)
    if one.note:
        console.print(one.note)
    console.print()


def _columns(lines: Sequence[Line]) -> list[str]:
    always = ("provenance", "yours")
    return [
        column
        for column in ("provenance", "paper", "reference", "yours")
        if column in always or any(one.as_dict()[column] != NOTHING for one in lines)
    ]


def _left_out(run: dict[str, Any]) -> list[str]:
    texts = [f"**Left out**, no data: {text}" for text in run.get("missing", {}).values()]
    return texts + [f"**Failed**, part {name}: {text}" for name, text in run.get("failures", {}).items()]
