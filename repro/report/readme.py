"""The results section of the README, generated from the committed reference rows."""

from __future__ import annotations

from pathlib import Path

from repro.errors import UserError
from repro.experiments.rows import ROWS_FILE, write_text

from .lines import Line
from .loading import Results, load
from .render import table
from .targets import MODULES, headline, pictures

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_ORDER = ("laptop", "gpu", "smoke")


def block(reference: Path, root: Path) -> str:
    """What belongs between the markers: for every committed run, where and when, and its main figures.

    Args:
        reference: the folder of committed runs, ``MACHINE/TARGET/SCALE`` below it.
        root: the folder of the README; links are relative to it.
    """
    found = [load(path.parent) for path in sorted(reference.glob(f"*/*/*/{ROWS_FILE}"))]
    targets = list(MODULES)
    found.sort(key=lambda one: (_ORDER.index(one.scale), one.machine, targets.index(one.target)))
    if not found:
        return "No committed results yet: `make reproduce` writes yours to `results/local/`."
    return "\n\n".join(_one(results, root) for results in found)


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


def _one(results: Results, root: Path) -> str:
    run = results.run
    link = _relative(results.folder, root)
    lines = [Line(one.what, one.provenance, one.yours, paper=one.paper) for one in headline(results)]
    checks = run["checks"]
    failed = [check["text"] for check in checks if not check["passed"]]
    parts = [
        f"**`{run['target']}`, scale {run['scale']}**, on `{results.machine}` ({run['device_name']}, "
        f"{run['cores']} cores), {run['date'][:10]}, code {run['git_revision']}: "
        f"{len(checks) - len(failed)} of {len(checks)} checks passed"
        + (f"; failed: {'; '.join(failed)}" if failed else "")
        + f". Everything: [report]({link}/report.md), [rows]({link}/{ROWS_FILE}).",
    ]
    if lines:
        parts.append(table(lines, yours="result"))
    parts += [f"![{path.stem.replace('_', ', ')}]({link}/{path.name})" for path in pictures(results)]
    return "\n\n".join(parts)


def _relative(folder: Path, root: Path) -> str:
    try:
        return folder.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return folder.as_posix()
