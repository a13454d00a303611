from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro import __version__, cli
from repro.cli import COMMANDS, main
from repro.errors import UserError


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``repro`` with ``argv``."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, err) == (0, "")
    for name, command in COMMANDS.items():
        assert name in out
        assert command.summary in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"repro {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["shedule"], ["unknown command shedule", "did you mean schedule?", "repro --help"]),
        (["frobnicate"], ["unknown command frobnicate", "repro --help"]),
        (["--versio"], ["unknown option --versio", "did you mean --version?"]),
        (["schedule", "--forwrd", "2"], ["unknown option --forwrd", "did you mean --forward?", "schedule --help"]),
        (["schedule", "--forwrd=2"], ["unknown option --forwrd", "did you mean --forward?"]),
        (["schedule", "--num-micro", "2"], ["unknown option --num-micro"]),
        (["schedule", "gpipe", "extra"], ["unknown argument extra"]),
        (["schedule", "gpip"], ["unknown schedule='gpip'", "did you mean 'gpipe'?"]),
        (["schedule", "-K", "two"], ["-K/--num-stages", "'two'"]),
        (["schedule", "-K", "0"], ["num_stages=0"]),
        (["schedule", "-M", "0"], ["num_micro_batches=0"]),
        (["schedule", "-V", "0"], ["num_virtual_stages=0"]),
        (["schedule", "--remat", "sometimes"], ["remat='sometimes'", "always, except_last, never"]),
        (["schedule", "--forward", "a,b"], ["--forward", "'a,b'"]),
        (["schedule", "--forward", "1,2"], ["forward has 2 values for 4 stages"]),
        (["schedule", "--backward", "-1"], ["backward=-1.0"]),
        (["schedule", "--width", "3"], ["--width 3", "at least 20"]),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("repro")
    assert err.count("\n") == 1
    for part in [*parts, "error: "]:
        assert part in err


def test_schedule_draws_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "gpipe", "-K", "2", "-M", "3", "--width", "100")
    assert (code, err) == (0, "")
    assert out.splitlines()[:5] == [
        "gpipe: K = 2 (ranks), M = 3 (micro-batches), remat never",
        "simulated from the costs F = 1, B = 2",
        "",
        "rank 0  F0 F1 F2 .........B2--- B1--- B0--- ",
        "rank 1  ...F0 F1 F2 B2--- B1--- B0--- ......",
    ]
    assert "bubble     25.0%" in out
    assert "makespan   12" in out
    assert "peak live  3 on every rank" in out


def test_schedule_recomputes_at_the_cost_of_a_forward(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schedule", "-K", "2", "-M", "2", "--remat", "except_last", "--width", "100")
    assert code == 0
    assert "F = 1, B = 2, R = 1" in out
    assert "rank 1  ...F0 F1 B1--- R0 B0--- ......" in out
    assert "peak live  1 on every rank" in out


def test_schedule_has_four_micro_batches_per_stage_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "schedule", "-K", "3")
    assert "M = 12 (micro-batches)" in out


def test_schedule_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "schedule", "-K", "2", "-M", "2", "--remat", "always", "--forward", "1,3", "--transfer", "0.5", "--json"
    )
    table = json.loads(out)
    assert code == 0
    assert table["provenance"] == "simulated"
    assert table["costs"] == {"forward": [1, 3], "backward": 2, "recompute": [1, 3], "transfer": 0.5}
    assert (table["num_stages"], table["num_micro_batches"], table["num_virtual_stages"]) == (2, 2, 1)
    # Rank 1: F at 1.5-4.5 and 4.5-7.5, then R3 B2 twice; rank 0 ends one delay and one B later.
    assert [(one["kind"], one["micro_batch"], one["start"], one["end"]) for one in table["ranks"][1]] == [
        ("F", 0, 1.5, 4.5),
        ("F", 1, 4.5, 7.5),
        ("R", 1, 7.5, 10.5),
        ("B", 1, 10.5, 12.5),
        ("R", 0, 12.5, 15.5),
        ("B", 0, 15.5, 17.5),
    ]
    assert table["makespan"] == 20
    assert table["bubble"] == pytest.approx(1 - (2 * 4 + 2 * 8) / 40)
    assert table["peak_live"] == [1, 1]


@pytest.mark.parametrize("name", ["schedule"])
def test_the_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"usage: repro {name}" in out
    assert "examples:" in out


def test_examples_in_the_help_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    _, out, _ = run(capsys, "schedule", "--help")
    examples = [line.split("   ")[0].split() for line in out.split("examples:")[1].splitlines() if line.strip()]
    assert len(examples) >= 4
    for program, *argv in examples:
        assert program == "repro"
        assert run(capsys, *argv)[0] == 0


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ``broken`` whose main raises what its first argument says."""
    (tmp_path / "broken_command.py").write_text(
        "from repro.errors import UserError\n"
        "KINDS = {'user': UserError('no such file: x'), 'stop': KeyboardInterrupt(), 'bug': RuntimeError('bug')}\n"
        "def main(argv):\n"
        "    print('got', argv)\n"
        "    if argv[-1] in KINDS:\n"
        "        raise KINDS[argv[-1]]\n"
        "    return 3 if argv[-1] == 'three' else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    commands = {
        "broken": cli.Command("broken_command", "main", "fails"),
        "named": cli.Command("broken_command", "main", "fails", passes_name=True),
        "long": cli.Command("broken_command", "main", "fails", goes_on=True),
    }
    monkeypatch.setattr(cli, "COMMANDS", commands)


@pytest.mark.usefixtures("failing")
def test_errors_of_ours_print_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "broken", "user") == (2, "got ['user']\n", "repro: error: no such file: x\n")


@pytest.mark.usefixtures("failing")
def test_an_interrupt_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "broken", "stop") == (130, "got ['stop']\n", "repro: interrupted\n")
    told = "repro: interrupted; run the same command again to go on\n"
    assert run(capsys, "long", "stop") == (130, "got ['stop']\n", told)


@pytest.mark.usefixtures("failing")
def test_bugs_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="bug"):
        main(["broken", "bug"])


@pytest.mark.usefixtures("failing")
def test_exit_codes_and_names_are_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "broken", "three")[0] == 3
    assert run(capsys, "broken", "fine")[0] == 0
    assert run(capsys, "named", "fine")[1] == "got ['named', 'fine']\n"


def test_errors_of_ours_are_value_errors() -> None:
    assert issubclass(UserError, ValueError)


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    argv = [sys.executable, "-m", "repro", "schedule", "-K", "64", "-M", "256", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == "{"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0
