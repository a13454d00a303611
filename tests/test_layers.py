"""Which package may import which: the layers of the design, and what answers without loading torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import repro

PACKAGE = Path(repro.__file__).parent

# For every part of the package, the parts that it may import (itself aside). Each line only names lines above it.
BASE = {"errors", "arguments", "words"}
PURE = BASE | {"schedules", "planning"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arguments": {"errors"},
    "words": set(),
    "schedules": BASE,
    "planning": BASE | {"schedules"},
    "gpipe": PURE,
    "models": BASE,
    "datasets": BASE,
    "tasks": PURE | {"gpipe", "models", "datasets"},
    "experiments": PURE | {"gpipe", "models", "datasets", "tasks"},
    "report": PURE | {"gpipe", "models", "datasets", "tasks", "experiments"},
    "commands": PURE | {"gpipe", "models", "datasets", "tasks", "experiments", "report"},
    "cli": BASE | {"commands"},
    "__main__": {"cli"},
    "__init__": set(),
}

# Likewise for the folders of the experiments; files beside them may import all.
EXPERIMENTS_MAY_IMPORT: dict[str, set[str]] = {
    "sweeps": set(),
    "costs": {"sweeps"},
    "emulation": {"sweeps", "costs"},
    "peers": {"sweeps", "costs", "emulation"},
    "traces": {"sweeps", "costs", "emulation", "peers"},
    "throughput": {"sweeps", "costs", "emulation"},
    "memory": {"sweeps", "costs", "traces"},
    "bubble": {"sweeps", "costs", "traces"},
    "schedules": {"sweeps", "emulation", "traces"},
    "planner": {"sweeps", "costs", "traces"},
    "accuracy": {"sweeps", "costs"},
    "comparison": {"sweeps", "costs", "peers", "traces", "accuracy"},
}

# Third-party packages that a part stays free of.
FREE_OF = {
    "errors": {"torch", "torchvision", "lightning", "numpy"},
    "arguments": {"torch", "torchvision", "lightning", "numpy"},
    "words": {"torch", "torchvision", "lightning", "numpy"},
    "schedules": {"torch", "torchvision", "lightning", "numpy"},
    "planning": {"torch", "torchvision", "lightning", "numpy"},
    "models": {"lightning"},
    "datasets": {"lightning"},
}


def imports(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, modules or what is in them, also inside functions."""
    package = ["repro", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(["repro", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("table", [MAY_IMPORT, EXPERIMENTS_MAY_IMPORT], ids=["package", "experiments"])
def test_the_table_goes_down_only(table: dict[str, set[str]]) -> None:
    above: set[str] = set()
    for part, allowed in table.items():
        assert allowed <= above, part
        above.add(part)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"new part {part!r}: give it a line in MAY_IMPORT"
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "repro" and rest and rest[0] != "__version__":
            assert rest[0] == part or rest[0] in MAY_IMPORT[part], f"{part} must not import {name}"
        assert head not in FREE_OF.get(part, set()), f"{part} must not import {name}"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.glob("experiments/*/*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_the_folders_of_the_experiments_import_down_only(path: Path) -> None:
    folder = path.parent.name
    assert folder in EXPERIMENTS_MAY_IMPORT, f"new folder {folder!r}: give it a line in EXPERIMENTS_MAY_IMPORT"
    for name in imports(path):
        if name.startswith("repro.experiments."):
            used = name.split(".")[2]
            assert used == folder or used in EXPERIMENTS_MAY_IMPORT[folder], f"{folder} must not import {name}"


def test_no_two_files_import_each_other_even_round_about() -> None:
    modules = {module_of(path): path for path in SOURCES}

    def files(path: Path) -> Iterator[str]:
        for name in imports(path):
            yield from [known for known in (name, name.rpartition(".")[0]) if known in modules][:1]

    TopologicalSorter({name: set(files(path)) for name, path in modules.items()}).prepare()  # a CycleError names them


def test_imports_finds_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    path = tmp_path / "gpipe" / "deep" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import torch.nn\n"
        "import os, repro.report\n"
        "from repro import tasks\n"
        "from ... import cli\n"
        "from ..engine import x\n"
        "from . import y\n"
        "from ...schedules.theory import bubble\n"
        "def f():\n"
        "    from repro.models import amoebanet\n"
    )
    assert list(imports(path)) == [
        "torch.nn",
        "os",
        "repro.report",
        "repro.tasks",
        "repro.cli",
        "repro.gpipe.engine.x",
        "repro.gpipe.deep.y",
        "repro.schedules.theory.bubble",
        "repro.models.amoebanet",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import repro.schedules, repro.planning",
        "import repro.cli",
        "import repro.report.timeline",
        "from repro.cli import main; main(['schedule', '-K', '2', '-M', '2'])",
        "from repro.cli import main; main(['--help'])",
    ],
)
def test_no_torch(statement: str) -> None:
    heavy = "('torch', 'lightning', 'torchvision', 'numpy', 'matplotlib')"
    check = f"import sys; {statement}; print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.strip() == "[]"
