from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from repro.cli import main
from repro.schedules import GENERATORS, make_schedule, simulate


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``repro bubble`` with ``argv``."""
    try:
        code = main(["bubble", *argv])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_table_over_stages_and_micro_batches(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("P = ")] == ["P = 2", "P = 4", "P = 8", "P = 16"]
    four = lines[lines.index("P = 4") : lines.index("P = 8")]
    for name in ("gpipe", "1f1b"):
        row = next(line for line in four if line.split()[:3] == [name, "1", "4"])
        assert row.split()[3:] == ["42.9%", "75.0%", "57.1%", "4", "1.750"]
    assert all(any(line.startswith(name) for line in four) for name in GENERATORS)
    assert "remat never" in lines[0] and "simulated" in lines[0]


def test_json_has_the_same_figures_as_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-P", "2", "4", "-M", "3", "8", "-V", "3", "--remat", "--json")
    table = json.loads(out)
    assert {row["schedule"] for row in table} == set(GENERATORS)
    assert len(table) == len(GENERATORS) * 4
    for row in table:
        assert set(row) >= {"num_stages", "num_micro_batches", "num_virtual_stages", "utilisation"}
        virtual = row["num_virtual_stages"]
        assert virtual == {"interleaved": 3, "zb-v": 2}.get(row["schedule"], 1)
        schedule = make_schedule(
            row["schedule"],
            num_stages=row["num_stages"],
            num_micro_batches=row["num_micro_batches"],
            num_virtual_stages=virtual,
            remat="always",
        )
        timeline = simulate(schedule, 1, 2, 1)
        assert row["peak_live"] == max(timeline.peak_live)
        if row["schedule"] != "pipedream":
            assert row["bubble"] == pytest.approx(timeline.bubble, abs=1e-15)
            ideal = virtual * row["num_micro_batches"] * 3
            assert row["relative_step_time"] == pytest.approx(timeline.makespan / ideal, rel=1e-15)


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-P", "4", "-M", "4", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["schedule"] for row in rows] == list(GENERATORS)
    assert float(rows[0]["bubble"]) == pytest.approx(3 / 7)


def test_costs_cancel_in_gpipes_bubble_and_matter_to_zero_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    bubbles = {}
    for backward in ("1", "2", "3.5"):
        _, out, _ = run(capsys, "-P", "4", "-M", "8", "--backward", backward, "--json")
        bubbles[backward] = {row["schedule"]: row["bubble"] for row in json.loads(out)}
    assert len({round(found["gpipe"], 12) for found in bubbles.values()}) == 1
    assert len({round(found["zb-h1"], 12) for found in bubbles.values()}) == 3


def test_target(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-P", "8", "--target", "0.10")
    gpipe = next(line for line in out.splitlines() if line.startswith("gpipe"))
    assert gpipe.split() == ["gpipe", "1", "8", "63", "10.00%", "63", "64"]
    assert "at most 10%" in out and "strictly below" in out
    chimera = next(line for line in out.splitlines() if line.startswith("chimera"))
    assert chimera.split()[-1] == "none"


def test_target_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--target", "0.15", "--schedules", "gpipe", "chimera", "--json")
    table = json.loads(out)
    found = [(row["num_stages"], row["num_micro_batches"]) for row in table if row["schedule"] == "gpipe"]
    assert found == [(2, 6), (4, 17), (8, 40), (16, 85)]
    assert [row["strictly_below"] for row in table if row["schedule"] == "gpipe"] == [6, 18, 40, 86]
    assert {tuple(row) for row in table} == {tuple(table[0])}


def test_what_one_schedule_cannot_have_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "-P", "3", "-M", "4")
    assert code == 0
    assert "left out: num_stages=3: schedule 'chimera'" in out
    assert run(capsys, "-P", "3", "-M", "4", "--schedules", "chimera")[0] == 2


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["-P", "0"], ["num_stages=0", "at least 1"]),
        (["-M", "4", "0"], ["num_micro_batches=0"]),
        (["-V", "0"], ["num_virtual_stages=0"]),
        (["--schedules", "1f1c"], ["'1f1c'", "did you mean '1f1b'?"]),
        (["--remat", "all"], ["remat='all'", "always, except_last, never"]),
        (["--forward", "0"], ["forward=0", "above 0"]),
        (["--backward", "two"], ["--backward", "'two'"]),
        (["--target", "15"], ["target=15", "between 0 and 1"]),
        (["--target", "1/0"], ["--target", "'1/0'"]),
        (["--json", "--csv"], ["not allowed with"]),
        (["--targt", "0.1"], ["did you mean --target?"]),
    ],
)
def test_mistakes_are_one_line(argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize("command", ["bubble", "schedule"])
def test_answers_without_torch(command: str) -> None:
    script = (
        "import sys; from repro.cli import main; main([sys.argv[1]]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'lightning')))"
    )
    done = subprocess.run([sys.executable, "-c", script, command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
