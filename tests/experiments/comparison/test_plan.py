from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments.accuracy.scales import SCALES, TASKS
from repro.experiments.comparison.plan import SpeedPart, TrainingPart, make_plan


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_every_scale_names_files_that_exist(scale: object) -> None:
    for task in TASKS:
        for path in task.configs(SCALES["smoke"].overlay) + task.configs(scale.overlay):  # type: ignore[attr-defined]
            assert Path(path).is_file()


def test_the_laptop_scale_fits_its_budget_and_the_smoke_scale_its_own() -> None:
    assert SCALES["laptop"].minutes <= 15
    assert SCALES["smoke"].minutes < 3


def test_runs_differ_in_stages_alone() -> None:
    plan = make_plan(SCALES["laptop"], "cpu", 2, None)
    for task in TASKS:
        reference, pipeline, local = plan.compared[task.name]
        shapes = [
            (part.plan.num_stages, part.plan.processes, part.plan.world_size) for part in plan.compared[task.name]
        ]
        assert shapes == [(1, False, 1), (2, True, 2), (4, False, 1)]
        assert {(p.plan.num_micro_batches, p.plan.seed, p.plan.steps) for p in (reference, pipeline, local)} == {
            (8, 0, 20)
        }
        unsplit, split = (part.plan for part in plan.plain[task.name])
        assert "--trainer.strategy=auto" in unsplit.options()
        assert (split.num_stages, split.world_size, split.overrides) == (2, 1, unsplit.overrides)
        assert plan.learning[task.name].plan.num_micro_batches is None
        assert plan.learning[task.name].plan.processes
    names = [part.name for group in plan.groups for part in group.parts]
    assert len(set(names)) == len(names) == 13
    assert [type(part) for group in plan.groups for part in group.parts].count(SpeedPart) == 1


@pytest.mark.parametrize(
    ("device", "stages", "processes"),
    [
        ("cpu", 2, True),
        ("cpu", 1, False),
        ("cuda:0", 2, False),
        ("cuda:0,cuda:1", 2, True),
        ("cuda:0,cuda:1", 3, False),
    ],
)
def test_stages_have_processes_where_there_are_devices(device: str, stages: int, processes: bool) -> None:
    plan = make_plan(SCALES["smoke"], device, stages, 4)
    _, pipeline, local = plan.compared[TASKS[0].name]
    assert pipeline.plan.processes is processes
    assert (local.plan.num_stages, local.plan.processes) == (2 * stages, False)
    assert local.plan.trace
    assert bool(pipeline.plan.trace) is (device == "cpu" or not processes)
    assert plan.speed.workload.num_micro_batches == 4
    options = pipeline.plan.options()
    if device == "cpu":
        assert f"--trainer.devices={stages if processes else 1}" in options
    else:
        assert f"--trainer.devices=[{'0,1' if processes else '0'}]" in options


def test_a_cell_depends_on_what_the_config_files_say(tmp_path: Path) -> None:
    part = make_plan(SCALES["smoke"], "cpu", 2, None).learning[TASKS[0].name]
    files = []
    for name in part.plan.configs:
        copy = tmp_path / Path(name).name
        copy.write_text(Path(name).read_text())
        files.append(str(copy))
    from dataclasses import replace

    copied = TrainingPart(part.task, replace(part.plan, configs=tuple(files)), part.kind)
    before = copied.cell
    Path(files[1]).write_text("trainer: {max_steps: 3}\n")
    assert copied.cell.parameters != before.parameters
    assert copied.cell.name == before.name
