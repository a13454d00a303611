"""Schedules by name on the command line: those of the package, and functions of the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from repro.errors import UserError
from repro.schedules import GENERATORS, Generator, Remat, Schedule

_SIGNATURE = "(num_stages, num_micro_batches, num_virtual_stages, remat)"


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
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"schedule {name}: there is no such function ({error})") from None
    if not callable(found):
        raise UserError(f"schedule {name}: this is not a function but of type {type(found).__name__}")
    return _checked(name, found)


def _checked(name: str, function: Callable[..., Any]) -> Generator:
    """The function, where it makes schedules: any function of any module may have been named."""

    def generate(
        num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.NEVER
    ) -> Schedule:
        try:
            made = function(num_stages, num_micro_batches, num_virtual_stages, remat)
        except TypeError as error:
            raise UserError(f"schedule {name}: called with {_SIGNATURE} it raises TypeError: {error}") from error
        if not isinstance(made, Schedule):
            raise UserError(f"schedule {name}: it must return a Schedule, but this is of type {type(made).__name__}")
        return made

    return generate
