"""The results of the README, generated from the committed reference rows: the paper's claims, and the main figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from repro.errors import UserError
from repro.experiments.sweeps.rows import ROWS_FILE, write_text

from .lines import NOTHING, Line
from .loading import Results, load
from .paper_claims import PAGE, by_section, headlines, read
from .render import table
from .targets import MODULES, headline, pictures

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
CLAIMS_BEGIN, CLAIMS_END = "<!-- claims:begin -->", "<!-- claims:end -->"
_ORDER = ("laptop", "gpu", "smoke")
# Whose first figure is shown.
_SHOWN = ("reproduce", "table2")
_FAILED_SHOWN = 3
"""Checks of one target that did not pass and are told; the others are counted."""


def block(reference: Path, root: Path) -> str:
    """What belongs between the markers: for every machine and scale, which targets were run, and their main figures.

    Args:
        reference: the folder of committed runs, ``MACHINE/TARGET/SCALE`` below it.
        root: the folder of the README; links are relative to it.
    """
    found = [load(path.parent) for path in sorted(reference.glob(f"*/*/*/{ROWS_FILE}"))]
    if not found:
        return "No committed results yet: `make reproduce` writes yours to `results/local/`."
    targets = list(MODULES)
    found.sort(key=lambda one: (_ORDER.index(one.scale), one.machine, targets.index(one.target)))
    return "\n\n".join(
        _together(list(runs), root) for _, runs in groupby(found, key=lambda one: (one.scale, one.machine))
    )


def claims_block(reference: Path, root: Path) -> str:
    """What the committed rows say about the paper's claims: verdicts by section, and the main claims.

    Args:
        reference: the folder of committed runs; of each machine ``claims.json`` is read.
        root: the folder of the README; links are relative to it.
    """
    parts = []
    for folder in sorted(path for path in reference.glob("*") if path.is_dir()):
        entries = read(folder)
        if entries:
            page = f"{_relative(folder, root)}/{PAGE}"
            parts.append(
                f"{len(entries)} statements and numbers of the paper, judged by rules in code from the rows of "
                f"`{folder.name}` ([each with its rule and rows]({page}), `make claims`):"
            )
            parts += [by_section(entries, page), "The main ones:", headlines(entries)]
    return "\n\n".join(parts) if parts else "Nothing judged yet: `make claims` judges what has been run."


def rewrite(path: Path, reference: Path) -> bool:
    """Puts ``block`` and ``claims_block`` between their markers in the README; returns whether that changed it.

    Raises:
        UserError: the file cannot be read, or has not all markers, once each and in order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--readme {path} cannot be read: {error}") from error
    new = with_claims(with_block(text, block(reference, path.resolve().parent), str(path)), reference, path)
    if new == text:
        return False
    write_text(path, new)
    return True


def with_block(text: str, content: str, name: str, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with ``content`` between the markers; ``name`` is for the error."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(f"{name} must have {begin} and after it {end}, once each")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


def with_claims(text: str, reference: Path, path: Path) -> str:
    """``text`` of the README at ``path`` with ``claims_block`` between its markers."""
    content = claims_block(reference, path.resolve().parent)
    return with_block(text, content, str(path), CLAIMS_BEGIN, CLAIMS_END)


def _together(runs: Sequence[Results], root: Path) -> str:
    known = runs[0].run
    rows = ["| target | checks passed | minutes | date, code |", "|---|---|---|---|"]
    texts = []
    for results in runs:
        run, link = results.run, _relative(results.folder, root)
        failed = [check["text"] for check in run["checks"] if not check["passed"]]
        texts += [f"- `{results.target}`, not passed: {text}" for text in failed[:_FAILED_SHOWN]]
        if len(failed) > _FAILED_SHOWN:
            texts.append(f"- `{results.target}`: {len(failed) - _FAILED_SHOWN} more in [its report]({link}/report.md)")
        texts += [f"- `{results.target}`, failed: {text}" for text in run.get("failures", {}).values()]
        count = len(run["checks"])
        minutes = f"{run['minutes']:.1f}" if "minutes" in run else NOTHING
        name = f"[`{results.target}`]({link}/report.md) ([rows]({link}/{ROWS_FILE}))"
        passed = f"{count - len(failed)} of {count}"
        rows.append(f"| {name} | {passed} | {minutes} | {run['date'][:10]}, {run['git_revision']} |")
    lines = [
        Line(f"`{results.target}`: {one.what}", one.provenance, one.yours, paper=one.paper)
        for results in runs
        for one in headline(results)
    ]
    parts = [
        f"**Scale {known['scale']}**, on `{runs[0].machine}` ({known['device_name']}, {known['cores']} cores):",
        "\n".join(rows),
    ]
    if texts:
        parts.append("\n".join(texts))
    if lines:
        parts.append(table(lines, yours="result"))
    for results in runs:
        for path in pictures(results)[:1] if results.target in _SHOWN else ():
            parts.append(f"![{results.target}: {path.stem}]({_relative(results.folder, root)}/{path.name})")
    return "\n\n".join(parts)


def _relative(folder: Path, root: Path) -> str:
    try:
        return folder.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return folder.as_posix()
