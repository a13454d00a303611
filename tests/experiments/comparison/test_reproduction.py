"""The order of parts, what is skipped, and exit codes, with made-up results in place of training."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from repro.errors import UserError
from repro.experiments.accuracy.scales import SCALES, TASKS
from repro.experiments.accuracy.training import TrainingPlan, examine, train
from repro.experiments.comparison import reproduce, reproduction
from repro.experiments.comparison.plan import Plan, make_plan
from repro.experiments.costs.workload import BARE_LOOP, ENGINE, ONE_PROCESS, TORCH
from repro.experiments.peers.speed import time_ways
from repro.experiments.sweeps import environment, parts
from repro.experiments.sweeps.cells import CellStore
from repro.experiments.sweeps.progress import Display
from repro.experiments.sweeps.ranks import Job, JobError
from repro.experiments.sweeps.rows import read_rows
from tests.experiments.results import make_run


class Machine:
    """Stands for ``run_jobs``: answers at once, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.missing: set[str] = set()
        self.broken: set[str] = set()
        self.changes: dict[str, dict[str, Any]] = {}

    def __call__(
        self, jobs: Sequence[Job], on_progress: Callable[..., None] | None = None, **options: Any
    ) -> list[list[Any]]:
        broken = [job for job in jobs if job.log.stem in self.broken]
        for job in broken:
            options["on_failure"](job, JobError(f"{job.name} failed: no reason"))
        results = [[] if job in broken else [self.answer(job)] * job.world_size for job in jobs]
        if "on_result" in options:
            for job, result in zip(jobs, results, strict=True):
                if job not in broken:
                    options["on_begin"](job)
                    options["on_result"](job, result)
        return results

    def answer(self, job: Job) -> Any:
        if job.function is examine:
            task = job.log.stem.removeprefix("data-")
            return f"the set of {task} is not there" if task in self.missing else None, 5
        self.asked.append(job.log.stem)
        if job.function is time_ways:
            return {ENGINE: [0.6], BARE_LOOP: [0.6], TORCH: [0.7], ONE_PROCESS: [1.0]}
        assert job.function is train
        (plan,) = job.arguments
        assert isinstance(plan, TrainingPlan)
        task = next(task for task in TASKS if task.folder in plan.configs[0])
        run = make_run(task, plan.num_stages, plan.processes, num_micro_batches=plan.num_micro_batches or 4)
        return dict(run.result) | self.changes.get(job.log.stem, {})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    # The code may be edited while its tests run.
    monkeypatch.setattr(environment, "code_revision", lambda: "0123456789ab")
    made = Machine()
    for module in (reproduction, parts):
        monkeypatch.setattr(module, "run_jobs", made)
    monkeypatch.setattr(reproduce, "write_report", lambda folders, as_json: 0)
    return made


def run(folder: Path, *argv: str) -> int:
    return reproduce.main(["--scale", "smoke", "--results", str(folder), *argv])


def said(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return data


def test_everything_runs_once_and_a_second_time_nothing(machine: Machine, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert len(machine.asked) == len(set(machine.asked)) == 13
    rows = (tmp_path / "rows.jsonl").read_text()
    found = {row.experiment for row in read_rows(tmp_path)}
    assert found == {"agreement", "plain", "bubble", "timeline", "learning", "step_time"}
    machine.asked.clear()
    assert run(tmp_path) == 0
    assert machine.asked == []
    assert (tmp_path / "rows.jsonl").read_text() == rows
    assert not (tmp_path / "earlier").exists()


def test_other_micro_batches_run_again_and_the_results_before_are_kept(machine: Machine, tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "rows.jsonl").read_text()
    machine.asked.clear()
    assert run(tmp_path, "-M", "2") == 0
    assert len(machine.asked) == 11, "AmoebaNet is compared with plain Lightning at M = 1 in any case"
    assert (tmp_path / "earlier" / "1" / "rows.jsonl").read_text() == before


def test_a_part_that_fails_fails_the_run_and_alone_is_run_again(machine: Machine, tmp_path: Path) -> None:
    machine.broken = {"compared-translation-K2"}
    assert run(tmp_path) == 1
    assert said(tmp_path)["failures"] == {
        "compared-translation-K2": "Transformer compared, K=2 (processes) failed: no reason"
    }
    assert len(machine.asked) == 12
    machine.broken = set()
    machine.asked.clear()
    assert run(tmp_path) == 0
    assert machine.asked == ["compared-translation-K2"]


def test_a_disagreement_fails_the_run(machine: Machine, tmp_path: Path) -> None:
    machine.changes["compared-image_classification-K4"] = {"losses": [3.0, 2.0, 1.5]}
    assert run(tmp_path) == 1
    wrong = [check["text"] for check in said(tmp_path)["checks"] if not check["passed"]]
    assert len(wrong) == 1
    assert "AmoebaNet-D on Fashion-MNIST, M=8: K=4 (local) gives what K=1 (one stage) gives" in wrong[0]
    assert "loss in step 3 is 1.5, should be 1" in wrong[0]


@pytest.mark.parametrize("task", [task.name for task in TASKS])
def test_without_one_data_set_the_other_half_runs(task: str, machine: Machine, tmp_path: Path) -> None:
    machine.missing = {task}
    assert run(tmp_path) == 0
    assert len(machine.asked) == 7
    assert not any(task in name for name in machine.asked)
    assert said(tmp_path)["missing"] == {task: f"the set of {task} is not there"}


def test_without_any_data_nothing_runs(machine: Machine, tmp_path: Path) -> None:
    machine.missing = {task.name for task in TASKS}
    with pytest.raises(UserError, match="there is no data"):
        run(tmp_path)
    assert machine.asked == []
    assert not (tmp_path / "rows.jsonl").exists()


def test_an_interrupt_keeps_what_was_finished(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(
        jobs: Sequence[Job], on_progress: Callable[..., None] | None = None, **options: Any
    ) -> list[list[Any]]:
        if jobs[0].log.stem == "speed":
            raise KeyboardInterrupt
        return machine(jobs, on_progress, **options)

    monkeypatch.setattr(parts, "run_jobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    finished = len(machine.asked)
    assert finished == 12
    machine.asked.clear()
    monkeypatch.setattr(parts, "run_jobs", machine)
    assert run(tmp_path) == 0
    assert len(machine.asked) == 13 - finished


def test_the_laptop_scale_must_learn(machine: Machine, tmp_path: Path) -> None:
    plan = make_plan(SCALES["laptop"], "cpu", 2, None)
    machine.changes["learning-image_classification-K2"] = {"held_out": {"accuracy": 0.7, "loss": 0.5}}
    done = collect(plan, tmp_path)
    wrong = [check.text for check in done if not check.passed]
    assert wrong == ["AmoebaNet-D on Fashion-MNIST: held-out accuracy 0.700, at least 0.750"]


def collect(plan: Plan, folder: Path) -> list[Any]:
    with Display({}, Console(file=io.StringIO())) as display:
        running = reproduction.Reproduction(plan, CellStore(folder, {}), display, {})
        running.run()
        return running.collect(SCALES["laptop"])[1]


def test_a_check_needs_no_data_and_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.missing = {task.name for task in TASKS}
    assert run(tmp_path / "new", "--check") == 0
    assert machine.asked == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["-M", "0"], "num_micro_batches=0"),
        (["-K", "-1"], "num_stages=-1"),
        (["-K", "3"], r"5 layers .* too few for 6 stages .* give -K 2 or less"),
        (["-K", "3", "--check"], "give -K 2 or less"),
        (["--devices", "gpu"], "--devices gpu"),
        (["--devices", "cuda:99"], "cuda:99"),
        (["--devices", "cuda:x"], "cuda:x"),
    ],
)
def test_mistakes_are_told_before_anything_runs(argv: list[str], part: str, machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=part):
        run(tmp_path / "new", *argv)
    assert machine.asked == []
    assert not (tmp_path / "new").exists()


def test_more_stages_than_layers_is_told_before_anything_runs(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 5 layers at this scale, too few for 6 stages.*give -K 2 or less"):
        run(tmp_path, "-K", "3")
    assert machine.asked == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--results"):
        run(tmp_path / "file" / "results")
    assert machine.asked == []


@pytest.mark.parametrize("argv", [["--scale", "huge"], ["--device", "cpu"], ["-M", "two"]])
def test_mistakes_of_words_are_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_terminal_shows_bars_and_a_file_lines() -> None:
    for terminal in (False, True):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=100)
        with Display({"a": 60.0, "b": 60.0}, console) as display:
            display.begin("a")
            display.update("a", 0.5, "step 1 of 2")
            display.finish("a", "done in 3 s")
        text = stream.getvalue()
        assert "a: done in 3 s" in text
        assert ("all parts" in text) is terminal
        assert ("a ..." in text) is not terminal


def test_plans_are_plain_data() -> None:
    plan = replace(make_plan(SCALES["smoke"], "cpu", 2, None).learning[TASKS[0].name].plan, overrides=("--x=1",))
    assert json.loads(json.dumps(plan.as_dict()))["overrides"] == ["--x=1"]
