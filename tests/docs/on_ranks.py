"""What the tests of the documentation run on ranks: scripts and the command, as a reader would."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import repro.cli

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")


def run_scripts(rank: int, world_size: int, folder: str, files: list[str]) -> dict[str, tuple[str, str]]:
    """Runs Python files of ``folder`` one after the other; what each printed, and its traceback or "", by name.

    On one rank they run as if no launcher were there.
    """
    outcomes = {}
    environment: dict[str, str | None] = {} if world_size > 1 else dict.fromkeys(_LAUNCHED)
    with _in(Path(folder), environment):
        for file in files:
            with contextlib.redirect_stdout(io.StringIO()) as output:
                failure = ""
                try:
                    runpy.run_path(str(Path(folder) / file), run_name="__main__")
                except Exception:
                    if world_size > 1:
                        raise
                    failure = traceback.format_exc()
            outcomes[file] = output.getvalue(), failure
    return outcomes


def run_commands(
    rank: int, world_size: int, folder: str, commands: list[list[str]], environment: Mapping[str, list[str]]
) -> list[tuple[int, str]]:
    """Runs ``repro`` with each list of words; exit codes, and what was printed.

    Args:
        environment: variables of each rank, as a launcher would set them.
    """
    outcomes = []
    variables: dict[str, str | None] = {} if world_size > 1 else dict.fromkeys(_LAUNCHED)
    with _in(Path(folder), variables | {name: values[rank] for name, values in environment.items()}):
        for words in commands:
            with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
                try:
                    code = repro.cli.main(words)
                except SystemExit as stop:
                    code = int(stop.code or 0)
            outcomes.append((code, output.getvalue()))
    return outcomes


@contextlib.contextmanager
def _in(folder: Path, variables: Mapping[str, str | None]) -> Iterator[None]:
    """In ``folder``, which is also searched for modules, with some variables of the environment changed, on CPUs."""
    cwd, environment, path, modules = Path.cwd(), dict(os.environ), list(sys.path), set(sys.modules)
    level = logging.getLogger("lightning.pytorch").level
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name, value in {"CUDA_VISIBLE_DEVICES": "", **variables}.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(cwd)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        logging.getLogger("lightning.pytorch").setLevel(level)
