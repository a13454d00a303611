"""The results section of the README, generated from the committed reference rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from repro.errors import UserError
from repro.experiments.rows import ROWS_FILE, write_text

from .lines import NOTHING, Line
from .loading import Results, load
from .render import table
from .targets import MODULES, headline, pictures

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_ORDER = ("laptop", "gpu", "smoke")
# Whose first figure is shown.
_SHOWN = ("reproduce", "table2")


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


def rewrite(path: Path, reference: Path) -> bool:
    """Puts ``block`` between the markers of the README; returns whether that changed it.

    Raises:
        UserError: the file has not both markers, once each and in order.
    """
    text = path.read_text(encoding="utf-8")
    new = with_block(text, block(reference, path.resolve().parent), str(path))
    if new == text:
        return False
    write_text(path, new)
    return True


def with_block(text: str, content: str, name: str) -> str:
    """``text`` with ``content`` between the markers; ``name`` is for the error."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{name} must have {BEGIN} and after it {END}, once each")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def _together(runs: Sequence[Results], root: Path) -> str:
    known = runs[0].run
    rows = ["| target | checks passed | minutes | date, code |", "|---|---|---|---|"]
    texts = []
    for results in runs:
        run, link = results.run, _relative(results.folder, root)
        failed = [check["text"] for check in run["checks"] if not check["passed"]]
        texts += [f"- `{results.target}`, not passed: {text}" for text in failed]
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
