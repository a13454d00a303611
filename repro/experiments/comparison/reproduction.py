"""Runs the parts of ``repro reproduce`` that are not finished, and collects rows and checks from all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from repro.errors import UserError

from ..accuracy.scales import Scale
from ..accuracy.training import examine
from ..peers.speed import speed_rows
from ..sweeps.cells import CellStore
from ..sweeps.checks import Check
from ..sweeps.parts import PartRunner
from ..sweeps.progress import Display
from ..sweeps.ranks import Job, run_jobs
from ..sweeps.rows import Row
from .agreement import OTHER_ORDER, Tolerance
from .collect import PLAIN, Run, agreement_rows, bubble_rows, learning_rows
from .plan import Plan, TrainingPart


def find_missing(plan: Plan) -> dict[str, str]:
    """By task, what is missing of its data.

    Raises:
        UserError: a model has fewer layers than the plan has stages.
    """
    found = {}
    with TemporaryDirectory() as logs:
        jobs = [
            Job(f"look at {name}", examine, (parts[0].plan.configs,), Path(logs) / f"data-{name}.log")
            for name, parts in plan.compared.items()
        ]
        outcomes = run_jobs(jobs)
    for (name, parts), [(missing, layers)] in zip(plan.compared.items(), outcomes, strict=True):
        stages = max(part.plan.num_stages for part in parts)
        if stages > layers:
            raise UserError(
                f"{parts[0].task.model} has {layers} layers at this scale, too few for {stages} stages (twice -K, in "
                f"one process); give -K {layers // 2} or less"
            )
        if missing is not None:
            found[name] = missing
    return found


class Reproduction:
    """Runs a plan part by part and collects rows and checks.

    Attributes:
        runner: with the results of the parts that have finished, and the failures of the others.
        missing: by task, what is missing of its data.
    """

    def __init__(self, plan: Plan, store: CellStore, display: Display, missing: Mapping[str, str]) -> None:
        self.runner = PartRunner(store, display)
        self.missing = dict(missing)
        self._plan = plan
        self._display = display

    def run(self) -> None:
        """Runs what has not been finished before."""
        for name, words in self.missing.items():
            self._display.say(f"{self._plan.compared[name][0].task.model} is left out: {words}")
        for group in self._plan.groups:
            if group.task is not None and group.task.name in self.missing:
                for part in group.parts:
                    self._display.finish(part.title, f"left out, {group.task.data} is missing")
                continue
            self.runner.run(group.parts)

    def collect(self, scale: Scale) -> tuple[list[Row], list[Check]]:
        """Rows and checks of the parts that have finished."""
        rows: list[Row] = []
        checks: list[Check] = []
        for name, parts in self._plan.compared.items():
            reference, *others = (self._finished(part) for part in parts)
            finished = [run for run in others if run is not None]
            unsplit, split = (self._finished(part) for part in self._plan.plain[name])
            longer = self._finished(self._plan.learning[name])
            made = []
            if reference is not None and finished:
                tolerance = Tolerance() if reference.plan.device == "cpu" else OTHER_ORDER
                made.append(agreement_rows(reference, finished, tolerance))
            if unsplit is not None and split is not None:
                made.append(agreement_rows(unsplit, [split], OTHER_ORDER, PLAIN))
            made += [(bubble_rows(run), []) for run in finished]
            if longer is not None:
                made.append(learning_rows(longer, scale.expectations.get(name, ())))
            for add_rows, add_checks in made:
                rows += add_rows
                checks += add_checks
        speed = self._plan.speed
        if speed.name in self.runner.results:
            rows += speed_rows(speed.workload, speed.plan, self.runner.results[speed.name])
        return rows, checks

    def summary(self, checks: Sequence[Check]) -> dict[str, Any]:
        """What ``run.json`` says beside where and with what: minutes, checks, what is missing, what failed."""
        return {
            "minutes": self.runner.minutes,
            "checks": [asdict(check) for check in checks],
            "missing": self.missing,
            "failures": self.runner.failures,
        }

    def succeeded(self, checks: Sequence[Check]) -> bool:
        """Whether every part that could run did, and every check passed."""
        return not self.runner.failures and all(check.passed for check in checks)

    def _finished(self, part: TrainingPart) -> Run | None:
        result = self.runner.results.get(part.name)
        return None if result is None else Run(part.task, part.plan, result)
