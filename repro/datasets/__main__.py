"""``python -m repro.datasets``: fetch the packaged sets, and say what is there."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from repro.datasets.fetch import DEFAULT, fetch, present, set_names
from repro.datasets.fetch_images import IMAGES
from repro.datasets.fetch_translation import TRANSLATION
from repro.datasets.paths import DataError, fetch_command, packaged_root
from repro.datasets.sources import Sources, load_sources

_ALIASES = {"images": IMAGES}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m repro.datasets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch_parser = commands.add_parser("fetch", help="download, verify and build the packaged sets (once)")
    which = fetch_parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", metavar="SET", help=f"these sets (default: {', '.join(DEFAULT)})")
    which.add_argument("--all", action="store_true", help="every packaged set, those for fine-tuning too")
    status_parser = commands.add_parser("status", help="say which sets are there, how big, under which licences")
    status_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    for command in (fetch_parser, status_parser):
        command.add_argument("--root", type=Path, help="folder of the sets (default: data/packaged of the checkout)")
    options = parser.parse_args(arguments)
    try:
        sources, root = load_sources(), packaged_root(options.root)
        if options.command == "status":
            return _status(root, sources, options.json)
        errors = fetch(_chosen(options, sources), root, sources, Console())
    except DataError as failure:
        errors = [failure]
    except KeyboardInterrupt:
        errors = [DataError("stopped; wheels that had arrived are kept for the next attempt")]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def _chosen(options: argparse.Namespace, sources: Sources) -> list[str]:
    if options.all or not options.only:
        return set_names(sources) if options.all else list(DEFAULT)
    names = [_ALIASES.get(name, name) for name in options.only]
    for name in names:
        if name not in set_names(sources):
            raise DataError(f"--only {name}: no such packaged set; there are {', '.join(set_names(sources))}")
    return names


def _status(root: Path, sources: Sources, as_json: bool) -> int:
    rows = []
    licences = {source.name: source.licence for source in sources.transfer}
    licences |= {IMAGES: sources.images.licence, TRANSLATION: sources.translation.licence}
    for name in set_names(sources):
        manifest = present(name, root, sources)
        rows.append(
            {
                "set": name,
                "present": manifest is not None,
                "bytes": sum(manifest.files.values()) if manifest else 0,
                "licence": licences[name],
                "source": manifest.source if manifest else None,
                "counts": manifest.counts if manifest else {},
                "folder": str(root / name),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table("set", "there", "MB", "licence", "from", "holds")
    for row in rows:
        counts = row["counts"]
        assert isinstance(counts, dict)
        held = "\n".join(f"{key.replace('_', ' ')}: {value:,}" for key, value in counts.items())
        there = "yes" if row["present"] else f"no: {fetch_command(name, root)}"
        size = row["bytes"]
        assert isinstance(size, int)
        table.add_row(str(row["set"]), there, f"{size / 1e6:.1f}", str(row["licence"]), str(row["source"] or ""), held)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
