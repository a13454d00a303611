"""Checks of options that the data modules share."""

from __future__ import annotations

from repro.errors import UserError


def check_least(least: int, **options: int | None) -> None:
    """Raises: UserError: an option is smaller than ``least``; as the end of a slice it would drop rows in silence."""
    for name, value in options.items():
        if value is not None and value < least:
            raise UserError(f"{name}={value} must be at least {least}: change --data.{name}")
