from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from repro.cli import main
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.sweeps.sweep import plain
from repro.experiments.throughput import table as throughput_table
from repro.experiments.throughput import table2, table3
from repro.experiments.throughput.cells import simulated_step
from repro.experiments.throughput.rows import IDEAL, OFF, RATIO, STEP
from repro.experiments.throughput.table import SEPARATE, WHOLE, choose
from tests.experiments.throughput_results import asked, finished


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_table, "usable_cores", lambda: 2)


def test_every_cell_of_table_2_is_a_part_and_measured_where_there_are_cores() -> None:
    parts = table2.TARGET.parts(asked(models=None))
    emulated = [part for part in parts if part.name.startswith("emulated")]
    assert len(emulated) == 18 and len({part.name for part in parts}) == len(parts)
    assert sorted({part.world_size for part in emulated}) == [2, 4, 8]
    assert {part.world_size for part in parts if part.name.startswith("measured")} == {2}
    # The key of a finished part holds everything that it depends on.
    assert all(plain(list(part.arguments)) for part in parts)
    assert sum(part.seconds for part in parts) < 11 * 60


def test_the_longest_emulated_step_of_each_model_lasts_18_seconds() -> None:
    for row in choose(table2.TABLE, asked(models=None)):
        assert simulated_step(row.setting, row.base, "always", factor=row.factor) == pytest.approx(18.0)


def test_at_smoke_scale_the_cells_of_one_k_share_their_processes() -> None:
    parts = table2.TARGET.parts(asked("smoke"))
    assert [part.name for part in parts] == [
        "emulated-transformer-K2-M1-4-32",
        "emulated-transformer-K8-M1-4-32",
        "measured-transformer-K2",
    ]


def test_the_cell_that_all_are_relative_to_is_always_there() -> None:
    (row,) = choose(table2.TABLE, asked(stages=(8,), micro_batches=(4,)))
    assert [(cell.num_stages, cell.num_micro_batches) for cell in row.cells] == [(2, 1), (8, 4)]
    (row,) = choose(table3.TABLE, asked(stages=(4,)))
    assert [(cell.num_stages, cell.num_micro_batches) for cell in row.cells] == [(2, 32), (4, 32)]
    assert row.setting.link.name == "pcie3-host"
    # On two cores nothing but that cell could be measured.
    assert row.measured == {}


def test_finished_cells_become_rows_that_keep_their_provenance() -> None:
    request = asked()
    rows, checks = table2.TARGET.rows(request, finished(request))
    assert all(check.passed for check in checks)
    assert sorted(check.text.split(":")[0] for check in checks) == [
        "Transformer-48",
        "Transformer-48, layers attention and feed-forward separate",
        "Transformer-48, layers whole",
    ]
    assert "in all 18 cells" in checks[0].text
    of_full_size = [row for row in rows if row.provenance is not Provenance.MEASURED]
    measured = [row for row in rows if row.provenance is Provenance.MEASURED]
    assert {row.model for row in of_full_size} == {"Transformer-48"}
    assert {row.model for row in measured} == {"scaled-down Transformer-6, width 192, 32 tokens"}
    assert {row.num_stages for row in measured} == {2}
    assert {row.metric for row in measured} == {STEP, RATIO}


def ratio_of(rows: list[Row], metric: str, layers: str, remat: str) -> float:
    (found,) = [
        row.value
        for row in rows
        if (row.metric, row.remat, row.num_stages, row.num_micro_batches) == (metric, remat, 8, 32)
        and row.provenance is Provenance.SIMULATED
        and row.params["layers"] == layers
    ]
    return found


def test_beside_each_simulated_ratio_stands_the_ideal_of_its_remat() -> None:
    rows, _ = table2.TARGET.rows(asked(), {})
    for remat, ideal in (("never", 6.56), ("always", 6.01), ("except_last", 5.19)):
        for layers in (WHOLE, SEPARATE):
            assert ratio_of(rows, IDEAL, layers, remat) == pytest.approx(ideal, abs=0.01)
            assert ratio_of(rows, RATIO, layers, remat) < ideal
    assert ratio_of(rows, RATIO, WHOLE, "never") >= 5.9
    assert ratio_of(rows, RATIO, SEPARATE, "never") >= 6.15


@pytest.mark.parametrize(("late", "passed"), [(1.04, True), (1.06, False), (0.94, False)])
def test_emulated_steps_must_agree_with_simulated_ones(late: float, passed: bool) -> None:
    request = asked(stages=(2,))
    results = finished(request, late)
    rows, checks = table2.TARGET.rows(request, results)
    (check,) = [check for check in checks if "emulated" in check.text]
    assert check.passed is passed
    assert [row.value for row in rows if row.metric == OFF] == pytest.approx([late] * 6)


@pytest.mark.parametrize(("late", "passed"), [(3.0, True), (0.9, False)])
def test_short_emulated_steps_must_not_be_shorter_than_their_costs(late: float, passed: bool) -> None:
    request = asked("smoke", stages=(2,))
    _, checks = table2.TARGET.rows(request, finished(request, late))
    assert [check.passed for check in checks if "emulated" in check.text] == [passed]


def test_what_a_stopped_run_has_is_reported() -> None:
    request = asked()
    results = finished(request)
    del results["emulated-transformer-K2-M1"]
    rows, checks = table2.TARGET.rows(request, results)
    emulated = [row for row in rows if row.provenance is Provenance.EMULATED]
    # Without the cell that all are relative to there are times and no ratios.
    assert {row.metric for row in emulated} == {STEP, OFF}
    assert "in all 16 cells" in checks[0].text


def test_per_cell_mini_batches_keep_the_micro_batch() -> None:
    (row,) = choose(table2.TABLE, asked(batch_policy="per-cell", batch_size=64))
    assert {cell.rows for cell in row.cells} == {2}
    assert row.measured == {2: ((1, 2), (4, 8), (32, 64))}


def test_one_gpu_measures_nothing_and_two_measure_two_stages() -> None:
    request = asked("gpu")
    assert [row.measured for row in choose(table2.TABLE, replace(request, device="cuda:0"))] == [{}]
    for row in choose(table2.TABLE, replace(request, device="cuda:0,cuda:1")):
        assert set(row.measured) == {2}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["table2", "-K", "25", "--models", "amoebanet"], "num_stages=25 stages for 24 layers"),
        (["table3", "-K", "27", "--models", "transformer"], "num_stages=27 stages for 26 layers"),
        (["table2", "-M", "0"], "num_micro_batches=0"),
        (["table2", "-M", "5"], "-M 5 does not divide the mini-batch of 128 rows"),
        (["table2", "-M", "64", "--models", "transformer"], "-M 64 does not divide the mini-batch of 32 rows"),
        (["table2", "--models", "resnet"], "--models resnet: unknown model"),
        (["table2", "--accelerator", "tpu-v22"], "--accelerator tpu-v22: unknown; did you mean tpu-v2?"),
        (["table3", "--link", "isdn"], "--link isdn: unknown"),
        (["table3", "--bandwidth", "0"], "the link 'pcie3-host, changed' has 0 GB/s"),
        (["table3", "--latency", "-1"], "has -1 microseconds"),
        (["table2", "--costs", "guess"], "--costs guess: unknown (one of flops, profile)"),
        (["table2", "--costs", "profile", "--accelerator", "p100"], "--accelerator p100 goes with --costs flops"),
        (["table2", "--remat", "sometimes"], "--remat sometimes: unknown"),
        (["table2", "--batch-policy", "percell"], "did you mean per-cell?"),
        (["table2", "--batch-size", "0"], "--batch-size 0"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_before_any_work(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    folder = tmp_path / "results"
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["run", *argv, "--results", str(folder)]))
    told = capsys.readouterr().err.strip()
    assert ended.value.code == 2
    assert words in told and "\n" not in told
    assert not folder.exists()
