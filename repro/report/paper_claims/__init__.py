"""Every claim and published number of the paper, with ours and a verdict that a rule gives."""

from __future__ import annotations

from .page import DATA, PAGE, by_section, headlines, read, show, write

__all__ = ["DATA", "PAGE", "by_section", "headlines", "read", "show", "write"]
