"""``repro report``: writes report.md and its figures beside the rows of every run, and prints the tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.experiments.rows import ROWS_FILE, RUN_FILE, write_text

from .lines import Section
from .loading import REFERENCE, Results, find, load, references
from .readme import rewrite
from .render import as_data, markdown, show
from .reproduce import sections

_DESCRIPTION = """\
Turn the rows of finished runs into tables, figures and a Markdown report beside them: paper | reference | yours.
Nothing is measured again; every figure says how it was obtained (measured, emulated, simulated, published)."""

_EPILOG = """\
examples:
  repro report
  repro report --results results/local/reproduce/smoke --json
  repro report --readme README.md"""

_DEFAULT = "results/local"


def main(argv: Sequence[str]) -> int:
    """Runs ``repro report`` with ``argv`` and returns its exit code."""
    options = _parser().parse_all(argv)
    if options.readme is not None:
        path = Path(options.readme)
        changed = rewrite(path, REFERENCE)
        print(f"{path}: {'rewritten' if changed else 'up to date'}")
        return 0
    folder = Path(options.results)
    if not folder.is_dir():
        raise UserError(f"--results {folder}: no such folder; `repro reproduce --scale smoke` makes {_DEFAULT}")
    found = find(folder)
    if options.as_reference is not None:
        if len(found) != 1:
            raise UserError(f"--as-reference needs --results with one run, {folder} has {len(found)}")
        found = [_copy(found[0], options.as_reference)]
    written = [(results, write(results)) for results in found]
    if options.json:
        print(json.dumps([as_data(results, made) for results, made in written], ensure_ascii=False))
        return 0
    console = Console(highlight=False)
    for results, made in written:
        show(console, results, made)
        console.print(f"\nThe report with figures: {results.folder / 'report.md'}", soft_wrap=True)
    return 0


def write(results: Results) -> list[Section]:
    """Writes ``report.md`` and its figures into the folder of the run; returns what is in it."""
    from .plots import draw_all

    others = references(results)
    reference = others[0] if others else None
    made = sections(results, reference)
    draw_all(results.rows, results.folder)
    write_text(results.folder / "report.md", markdown(results, reference, made))
    return made


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro report", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--results",
        metavar="DIR",
        default=_DEFAULT,
        help=f"a run's folder, or one with several below it (default: {_DEFAULT})",
    )
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.add_argument(
        "--readme", metavar="FILE", help="rewrite the results in FILE from the committed reference rows instead"
    )
    parser.add_argument(
        "--as-reference",
        metavar="MACHINE",
        help="copy the run to results/reference/MACHINE (a neutral name such as 2-core-cpu), to be committed",
    )
    return parser


def _copy(results: Results, machine: str) -> Results:
    target = REFERENCE / machine / results.target / results.scale
    target.mkdir(parents=True, exist_ok=True)
    for name in (ROWS_FILE, RUN_FILE):
        shutil.copyfile(results.folder / name, target / name)
    return load(target)
