"""``repro run`` with a target of its own, on real processes where that matters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.experiments import catalogue, run
from repro.experiments.sweeps import environment, parts
from repro.experiments.sweeps.checks import Check
from repro.experiments.sweeps.ranks import Job, JobError, Tell
from repro.experiments.sweeps.rows import Provenance, Row, read_rows
from repro.experiments.sweeps.sweep import Request, SweepPart, Target, plain, side_by_side

ROW = Row("square", "numbers", None, None, None, None, None, Provenance.MEASURED, "square", 0.0, "1")


@dataclass(frozen=True)
class Number:
    value: int


def square(rank: int, tell: Tell, number: Number) -> dict[str, Any]:
    tell(0.5, "half")
    return {"square": number.value**2, "pair": (rank, 1)}


def sweep(request: Request) -> list[SweepPart]:
    stages = request.num_stages or (1, 2, 3)
    if max(stages) > 4:
        raise UserError(f"num_stages={max(stages)}: the model has 4 layers; give -K 4 or less")
    return [SweepPart(f"K{k}", f"square of {k}", square, (Number(k),), 1, 1.0) for k in stages]


def rows_of(request: Request, results: Any) -> tuple[list[Row], list[Check]]:
    found = [replace(ROW, num_stages=int(name[1:]), value=result["square"]) for name, result in results.items()]
    assert all(isinstance(result["pair"], list) for result in results.values()), "as JSON has it, from the start"
    limit = request.options["limit"]
    return found, [Check(f"below {limit}", all(row.value < limit for row in found))]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="what no square may reach")


TARGET = Target("squares", "Squares of numbers.", {"smoke": 0.1, "laptop": 2}, sweep, rows_of, add_options)


class Machine:
    """Stands for ``run_jobs``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()

    def __call__(
        self, jobs: Sequence[Job], on_progress: Callable[..., None] | None = None, **options: Any
    ) -> list[list[Any]]:
        results = []
        for job in jobs:
            if job.log.stem in self.broken:
                options["on_failure"](job, JobError(f"{job.name} failed: no reason"))
                continue
            self.asked.append(job.log.stem)
            options["on_begin"](job)
            arguments = job.arguments
            results.append([job.function(rank, lambda *_: None, *arguments) for rank in range(job.world_size)])
            options["on_result"](job, results[-1])
        return results


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    module = ModuleType("a_target_of_the_tests")
    module.TARGET = TARGET  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalogue, "TARGETS", {"squares": module.__name__})
    # The code may be edited while its tests run.
    monkeypatch.setattr(environment, "code_revision", lambda: "0123456789ab")
    made = Machine()
    monkeypatch.setattr(parts, "run_jobs", made)
    monkeypatch.setattr(run, "write_report", lambda folders, as_json: 0)
    return made


def go(folder: Path, *argv: str) -> int:
    return run.main(["squares", "--scale", "smoke", "--results", str(folder), *argv])


def said(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return data


def test_every_part_runs_once_and_a_second_time_none(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go(tmp_path) == 0
    assert machine.asked == ["K1", "K2", "K3"]
    assert [row.value for row in read_rows(tmp_path)] == [1, 4, 9]
    data = said(tmp_path)
    assert (data["target"], data["scale"], data["failures"]) == ("squares", "smoke", {})
    assert data["minutes"] >= 0
    told = capsys.readouterr().err
    assert "3 parts, 3 seconds on two cores" in told
    assert "1 of 3 done" in told
    machine.asked.clear()
    assert go(tmp_path) == 0
    assert machine.asked == []
    assert said(tmp_path) == data
    assert "finished before" in capsys.readouterr().err


def test_several_targets_in_one_command(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("another_target_of_the_tests")
    module.TARGET = replace(TARGET, name="again")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(catalogue.TARGETS, "again", module.__name__)  # type: ignore[arg-type]
    reported: list[Path] = []
    monkeypatch.setattr(run, "write_report", lambda folders, as_json: reported.extend(folders))
    assert (
        run.main(["squares", "again", "squares", "--scale", "smoke", "--results", str(tmp_path), "--limit", "5"]) == 1
    )
    assert reported == [tmp_path / "squares" / "smoke", tmp_path / "again" / "smoke"]
    assert machine.asked == ["K1", "K2", "K3"] * 2
    assert said(reported[1])["command"].startswith("repro run again --scale smoke")


def test_another_sweep_runs_only_what_is_new(machine: Machine, tmp_path: Path) -> None:
    go(tmp_path, "-K", "1", "2")
    machine.asked.clear()
    assert go(tmp_path, "-K", "2", "4") == 0
    assert machine.asked == ["K4"]
    assert [row.num_stages for row in read_rows(tmp_path)] == [2, 4]
    assert [row.num_stages for row in read_rows(tmp_path / "earlier" / "1")] == [1, 2]


def test_a_part_that_fails_does_not_lose_the_others(machine: Machine, tmp_path: Path) -> None:
    machine.broken = {"K2"}
    assert go(tmp_path) == 1
    assert machine.asked == ["K1", "K3"]
    assert [row.num_stages for row in read_rows(tmp_path)] == [1, 3]
    assert said(tmp_path)["failures"] == {"K2": "square of 2 failed: no reason"}
    machine.broken = set()
    machine.asked.clear()
    assert go(tmp_path) == 0
    assert machine.asked == ["K2"]


def test_a_check_that_does_not_hold_is_exit_code_1(machine: Machine, tmp_path: Path) -> None:
    assert go(tmp_path, "--limit", "5") == 1
    assert said(tmp_path)["checks"] == [{"text": "below 5", "passed": False}]
    machine.asked.clear()
    assert go(tmp_path, "--limit", "50") == 0, "the verdict is a new one though the rows are the same"
    assert (machine.asked, said(tmp_path)["checks"][0]["passed"]) == ([], True)


def test_an_interrupt_keeps_what_was_finished(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(
        jobs: Sequence[Job], on_progress: Callable[..., None] | None = None, **options: Any
    ) -> list[list[Any]]:
        if jobs[0].log.stem == "K3":
            raise KeyboardInterrupt
        return machine(jobs, on_progress, **options)

    monkeypatch.setattr(parts, "run_jobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    monkeypatch.setattr(parts, "run_jobs", machine)
    machine.asked.clear()
    assert go(tmp_path) == 0
    assert machine.asked == ["K3"]


def test_minutes_include_what_an_earlier_command_did(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])

    def slow(jobs: Sequence[Job], on_progress: Callable[..., None] | None = None, **options: Any) -> list[list[Any]]:
        now[0] += 60
        return machine(jobs, on_progress, **options)

    monkeypatch.setattr(parts, "run_jobs", slow)
    go(tmp_path, "-K", "1", "2")
    go(tmp_path, "-K", "1", "2", "3")
    assert said(tmp_path)["minutes"] == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["-M", "0"], "num_micro_batches=0"),
        (["-K", "2", "0"], "num_stages=0"),
        (["-K", "5"], "the model has 4 layers"),
        (["--devices", "cuda:99"], "cuda:99"),
        (["--devices", "tpu"], "--devices tpu"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    argv: list[str], part: str, machine: Machine, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=part):
        go(tmp_path / "new", *argv)
    assert machine.asked == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("argv", "part"),
    [(["square"], "unknown target square; did you mean squares?"), (["--scale", "smoke"], "the target comes first")],
)
def test_a_target_that_is_not_there(argv: list[str], part: str, machine: Machine) -> None:
    with pytest.raises(UserError, match=part.replace("?", r"\?")):
        run.main(argv)


def test_a_folder_that_cannot_be_written_is_told_first(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--results"):
        go(tmp_path / "file" / "results")
    assert machine.asked == []


@pytest.mark.parametrize("argv", [["--scale", "huge"], ["-M", "two"], ["--limt", "1"]])
def test_mistakes_of_words_are_one_line(argv: list[str], machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(["squares", *argv])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_help_of_a_target(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(["squares", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for part in (
        "usage: repro run squares",
        "Squares of numbers.",
        "smoke 6 seconds, laptop about 2 minutes",
        "--limit",
    ):
        assert part in text


def test_two_parts_of_the_same_name_are_a_bug(machine: Machine, tmp_path: Path) -> None:
    [part] = sweep(Request("smoke", "cpu", (1,), None, {}))
    with pytest.raises(ValueError, match="the same name"):
        run._check_unique(TARGET, [part, replace(part, title="other")])


def test_the_key_of_a_part_is_plain_data() -> None:
    value = {"a": (Number(2), Provenance.MEASURED, Path("x")), "b": None}
    assert json.loads(json.dumps(plain(value))) == plain(value)
    assert plain(value) == {"a": [{"value": 2}, "measured", "x"], "b": None}
    with pytest.raises(TypeError, match="not plain data"):
        plain({"a": object()})


def test_a_part_with_other_arguments_or_processes_is_another_cell() -> None:
    [part] = sweep(Request("smoke", "cpu", (1,), None, {}))
    cells = {
        json.dumps(plain(one.cell.parameters), sort_keys=True)
        for one in (part, replace(part, arguments=(Number(2),)), replace(part, world_size=2), replace(part, title="x"))
    }
    assert len(cells) == 3, "a title changes nothing"


def test_neighbours_that_may_run_together_are_one_group() -> None:
    alone = sweep(Request("smoke", "cpu", (1, 2, 3, 4), None, {}))
    parts = [replace(part, together=number in (1, 2)) for number, part in enumerate(alone)]
    assert [[part.name for part in group] for group in side_by_side(parts)] == [["K1"], ["K2", "K3"], ["K4"]]
    with pytest.raises(ValueError, match="only parts of one process"):
        replace(parts[1], world_size=2)


def test_a_part_that_keeps_files_is_told_where(tmp_path: Path) -> None:
    [part] = sweep(Request("smoke", "cpu", (1,), None, {}))
    assert part.job(tmp_path / "logs").arguments == (Number(1),)
    keeping = replace(part, keeps_files=True)
    assert keeping.job(tmp_path / "logs").arguments == (Number(1), str(tmp_path / "training" / "K1"))
    assert keeping.cell == part.cell


def test_the_list_of_targets_is_light_and_complete() -> None:
    code = (
        "import sys; from repro.experiments import run; run.main(['--help']); "
        "print([name for name in ('torch', 'lightning', 'matplotlib') if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.strip() == "[]"
    for name in catalogue.TARGETS:
        target = catalogue.find_target(name)
        assert target.name == name
        assert " ".join(target.summary.split()) in " ".join(ran.stdout.split())
        assert set(target.minutes) >= {"smoke", "laptop"}


SCRIPT = """
import sys
from types import ModuleType
from repro.experiments import catalogue, run
from repro.experiments.sweeps import environment
from tests.experiments import stoppable
environment.code_revision = lambda: "0123456789ab"
catalogue.TARGETS = {"stoppable": stoppable.__name__}
run.write_report = lambda folders, as_json: 0
run.main(["stoppable", "--scale", "smoke", "--results", sys.argv[1]])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_goes_on_where_it_was(how: signal.Signals, tmp_path: Path) -> None:
    """Real processes: the second part waits until it is allowed to end, and the run is killed meanwhile."""
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not list((tmp_path / "cells").glob("first-*")) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(how)
    assert not (tmp_path / "rows.jsonl").exists()
    first = list((tmp_path / "cells").glob("first-*"))
    assert len(first) == 1
    before = first[0].stat().st_mtime_ns
    (tmp_path / "go").write_text("")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "first: finished before" in ran.stderr
    assert first[0].stat().st_mtime_ns == before
    assert [row.params["part"] for row in read_rows(tmp_path)] == ["first", "second"]
