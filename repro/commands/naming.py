"""Schedules by name on the command line: those of the package, and functions of the user's own."""

from __future__ import annotations

import importlib
from typing import Any

from repro.errors import UserError
from repro.schedules import GENERATORS, Generator


def find_schedule(name: str) -> str | Generator:
    """A name for ``make_schedule``, or the function that ``module.function`` names.

    Raises:
        UserError: there is no such module or function.
    """
    module, dot, function = name.rpartition(".")
    if name in GENERATORS or not dot:
        return name
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"schedule {name}: there is no such function ({error})") from None
    if not callable(found):
        raise UserError(f"schedule {name}: this is not a function but of type {type(found).__name__}")
    generator: Generator = found
    return generator
