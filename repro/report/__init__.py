"""From rows to tables, figures and text; ``timeline`` draws schedules.

Nothing heavy is imported here: drawing a schedule needs neither torch nor matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Runs ``repro report`` with ``argv`` and returns its exit code."""
    from repro.report.command import main as run

    return run(argv)
