"""Formulas and figures in circulation, held against replayed schedules: ``docs/claims.md`` and its pictures."""

from __future__ import annotations

from .page import groups, render, write

__all__ = ["groups", "render", "write"]
