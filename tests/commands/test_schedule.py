from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from repro.cli import main
from repro.schedules import GENERATORS

MINE = """
from dataclasses import replace
from repro.schedules import make_schedule

def mine(num_stages, num_micro_batches, num_virtual_stages=1, remat="never"):
    numbers = dict(num_stages=num_stages, num_micro_batches=num_micro_batches, num_virtual_stages=num_virtual_stages)
    return replace(make_schedule("1f1b", **numbers, remat=remat), name="mine")

number = 3

def other(*numbers):
    return 3
"""


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``repro schedule`` with ``argv``."""
    try:
        code = main(["schedule", *argv])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_is_drawn_in_plain_ascii(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name, "-K", "4", "-M", "8", "--width", "200")
    assert (code, err) == (0, "")
    assert out.isascii() and "\x1b" not in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("rank")] == (
        [["rank", str(rank)] for rank in range(4)]
    )


def test_split_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "zb-h1", "-K", "2", "-M", "2", "--width", "100")
    assert "simulated from the costs F = 1, B = 2, of which W = 1" in out
    assert "rank 0  F0 F1 ...I0 W0 I1 W1 " in out
    assert "rank 1  ...F0 I0 F1 I1 W0 W1 " in out
    _, out, _ = run(capsys, "zb-h1", "-K", "2", "-M", "2", "--width", "100", "--weight", "0.5")
    assert "of which W = 0.5" in out


def test_pipedream_shows_how_stale_its_weights_are(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "pipedream", "-K", "4", "-M", "8")
    assert "stale by   [3, 2, 1, 0] updates" in out
    assert "simulated only: it changes the weights after every micro-batch" in out
    assert json.loads(run(capsys, "1f1b", "-K", "4", "-M", "8", "--json")[1])["staleness"] == [0, 0, 0, 0]


def test_colours_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(capsys, "1f1b", "-K", "2", "-M", "3")[1]
    coloured = run(capsys, "1f1b", "-K", "2", "-M", "3", "--color", "always")[1]
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zb.svg"
    _, out, _ = run(capsys, "zb-v", "-K", "2", "-M", "3", "--remat", "always", "--svg", str(path))
    assert out.splitlines()[-1] == f"drawn      {path}"
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"rank 0", "rank 1", "F0a", "R2b", "W1a", "R recompute", "idle"} <= set(texts)
    first = path.read_text()
    run(capsys, "zb-v", "-K", "2", "-M", "3", "--remat", "always", "--svg", str(path), "--json")
    assert path.read_text() == first
    code, out, err = run(capsys, "gpipe", "--svg", str(tmp_path / "none" / "x.svg"))
    assert code == 2 and "--svg" in err and "No such file" in err and out == ""


def test_a_function_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_the_tests.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = run(capsys, "mine_of_the_tests.mine", "-K", "2", "-M", "2")
    assert code == 0 and out.startswith("mine: K = 2")
    assert main(["bubble", "-P", "2", "-M", "2", "--schedules", "mine_of_the_tests.mine", "1f1b"]) == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert rows[0].split()[0] == "mine" and rows[0].split()[1:] == rows[1].split()[1:]
    for name, part in (
        ("mine_of_the_tests.yours", "no such function"),
        ("nowhere_at_all.mine", "no such function"),
        ("mine_of_the_tests.number", "not a function but of type int"),
        ("..", "no such function"),
        ("os.path.join", "called with (num_stages, num_micro_batches, num_virtual_stages, remat) it raises TypeError"),
        ("mine_of_the_tests.other", "must return a Schedule, but this is of type int"),
    ):
        code, _, err = run(capsys, name)
        assert code == 2 and part in err and name in err


@pytest.mark.parametrize("form", [["--json"], []])
def test_costs_whose_sum_is_no_number(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "gpipe", "--forward", "1e308", "--backward", "1e308", *form)
    assert (code, out) == (2, "")
    assert "costs F = 1e+308, B = 1e+308 add up to more than a number can hold" in err


def test_a_trace_says_its_own_numbers_and_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [(f"{kind}{part}@{stage}", stage % 2) for kind in "FB" for part in range(3) for stage in range(4)]
    events = [{"ph": "X", "name": name, "pid": rank, "ts": 0, "dur": 5} for name, rank in names]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    code, out, _ = run(capsys, "interleaved", "--costs", str(path))
    assert code == 0
    assert "K = 2 (ranks), M = 3 (micro-batches), V = 2 (stages per rank)" in out
    assert "B = 5,5,5,5 microseconds, medians of the trace" in out
    assert "K = 4 (ranks), M = 6 (micro-batches), remat" in run(capsys, "-K", "4", "-M", "6", "--costs", str(path))[1]


def test_costs_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"forward": [1, 3], "backward": 4, "weight": 1, "transfer": 0.5}))
    table = json.loads(run(capsys, "zb-h1", "-K", "2", "-M", "2", "--costs", str(path), "--json")[1])
    assert table["costs"] == {"forward": [1, 3], "backward": 4, "weight": 1, "transfer": 0.5, "recompute": [1, 3]}
    again = tmp_path / "again.json"
    again.write_text(json.dumps(table))
    assert json.loads(run(capsys, "zb-h1", "-K", "2", "-M", "2", "--costs", str(again), "--json")[1]) == table
    overridden = run(capsys, "zb-h1", "-K", "2", "-M", "2", "--costs", str(path), "--weight", "2", "--json")[1]
    assert json.loads(overridden)["costs"]["weight"] == 2


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["1f1b", "-V", "2"], ["num_virtual_stages=2", "'interleaved'"]),
        (["chimera", "-K", "3"], ["num_stages=3", "2 or 4"]),
        (["zb-h1", "--weight", "3"], ["weight=3", "backward=2"]),
        (["--costs", "nowhere.json"], ["--costs nowhere.json", "No such file"]),
        (["--color", "blue"], ["--color", "'blue'"]),
    ],
)
def test_mistakes_are_one_line(argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
