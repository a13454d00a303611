"""``repro report``: writes report.md and its figures beside the rows of every run, and prints the tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.experiments.sweeps.rows import ROWS_FILE, RUN_FILE, write_text

from .lines import Section
from .loading import HINT, REFERENCE, Results, find, load, references
from .readme import rewrite
from .render import as_data, markdown, show
from .targets import draw, sections

_DESCRIPTION = """\
Turn the rows of finished runs into tables, figures and a Markdown report beside them: paper | reference | yours.
Nothing is measured again; every figure says how it was obtained (measured, emulated, simulated, published)."""

_EPILOG = """\
examples:
  repro report
  repro report --results results/local/table2/smoke --json
  repro report --readme README.md
  repro report --claims docs/claims.md
  repro report --paper-claims results/local"""

_DEFAULT = "results/local"


def main(argv: Sequence[str]) -> int:
    """Runs ``repro report`` with ``argv`` and returns its exit code."""
    options = _parser().parse_all(argv)
    if options.readme is not None:
        path = Path(options.readme)
        changed = rewrite(path, REFERENCE)
        print(f"{path}: {'rewritten' if changed else 'up to date'}")
        return 0
    if options.claims is not None or options.paper_claims is not None:
        if options.claims is not None:
            _write_circulating(Path(options.claims))
        if options.paper_claims is not None:
            _write_paper_claims(options.paper_claims, as_json=options.json)
        return 0
    found = _found(options.results)
    if options.as_reference is not None:
        if len(found) != 1:
            raise UserError(f"--as-reference needs --results with one run, there are {len(found)}")
        found = [_copy(found[0], options.as_reference)]
    written = [(results, write(results)) for results in found]
    # Of what was not run here, the committed run is shown.
    others = [] if options.results or options.as_reference else _committed_alone(found)
    shown = [(results, sections(results, None)) for results in others]
    if options.json:
        print(json.dumps([as_data(results, made) for results, made in written + shown], ensure_ascii=False))
        return 0
    console = Console(highlight=False)
    for results, made in shown:
        _title(console, results, f"reference, {results.machine}")
        show(console, results, made, yours="reference")
        console.print(f"\nThe report with figures: {results.folder / 'report.md'}", soft_wrap=True)
    for results, made in written:
        _title(console, results, "yours")
        show(console, results, made)
        console.print(f"\nThe report with figures: {results.folder / 'report.md'}", soft_wrap=True)
    return 0


def write(results: Results) -> list[Section]:
    """Writes ``report.md`` and its figures into the folder of the run; returns what is in it."""
    others = references(results)
    reference = others[0] if others else None
    made = sections(results, reference)
    draw(results)
    write_text(results.folder / "report.md", markdown(results, reference, made))
    return made


def _write_circulating(path: Path) -> None:
    from .claims import write as write_claims

    page, *pictures = write_claims(path)
    print(f"{page}: written, with {len(pictures)} pictures in {pictures[0].parent}")


def _write_paper_claims(folders: Sequence[str], *, as_json: bool) -> None:
    from . import paper_claims

    chosen = [Path(folder) for folder in folders]
    if not chosen:
        own = Path(_DEFAULT)
        chosen = [*sorted(path for path in REFERENCE.glob("*") if path.is_dir()), *([own] if own.is_dir() else [])]
    made = {folder: paper_claims.write(folder) for folder in chosen}
    if as_json:
        print(json.dumps({str(folder): entries for folder, entries in made.items()}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for folder, entries in made.items():
        console.rule(f"The paper's claims, by the rows in {folder}", align="left")
        paper_claims.show(console, entries)
        console.print(f"With rules and links: {folder / paper_claims.PAGE}", soft_wrap=True)


def _found(folders: Sequence[str] | None) -> list[Results]:
    """The runs in some folders; in the default one there may be none as long as there are committed ones."""
    if folders is None:
        path = Path(_DEFAULT)
        if not (path.is_dir() and any(path.rglob(ROWS_FILE))) and any(REFERENCE.rglob(ROWS_FILE)):
            return []
    found = []
    for path in map(Path, folders or [_DEFAULT]):
        if not path.is_dir():
            raise UserError(f"--results {path}: no such folder; {HINT}")
        found += find(path)
    return found


def _committed_alone(found: Sequence[Results]) -> list[Results]:
    """Committed runs of targets and scales that were not run here."""
    own = {(results.target, results.scale) for results in found}
    committed = [load(path.parent) for path in sorted(REFERENCE.glob(f"*/*/*/{ROWS_FILE}"))]
    return [results for results in committed if (results.target, results.scale) not in own]


def _title(console: Console, results: Results, whose: str) -> None:
    console.rule(f"{results.target}, scale {results.scale} ({whose})", align="left")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro report", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--results",
        nargs="+",
        metavar="DIR",
        help=f"folders of runs, or with runs below them (default: {_DEFAULT}, and of what is not there the "
        "committed reference)",
    )
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.add_argument(
        "--readme", metavar="FILE", help="rewrite the results in FILE from the committed reference rows instead"
    )
    parser.add_argument(
        "--claims",
        metavar="FILE",
        help="write the page on claims in circulation, from replayed schedules, to FILE instead (docs/claims.md)",
    )
    parser.add_argument(
        "--paper-claims",
        nargs="*",
        metavar="DIR",
        help="judge the paper's claims by the rows in these folders instead, and write claims.md and claims.json there "
        f"(without DIR: every machine in results/reference, and {_DEFAULT})",
    )
    parser.add_argument(
        "--as-reference",
        metavar="MACHINE",
        help="copy the run to results/reference/MACHINE (a neutral name such as 2-core-cpu), to be committed",
    )
    return parser


def _copy(results: Results, machine: str) -> Results:
    if machine in ("", "..") or Path(machine).name != machine:
        raise UserError(f"--as-reference {machine!r} is no plain name of a folder; give one such as 2-core-cpu")
    target = REFERENCE / machine / results.target / results.scale
    if target.resolve() == results.folder.resolve():
        raise UserError(
            f"--as-reference {machine}: --results {results.folder} is that reference; give a run of your own"
        )
    target.mkdir(parents=True, exist_ok=True)
    for name in (ROWS_FILE, RUN_FILE):
        shutil.copyfile(results.folder / name, target / name)
    return load(target)
