from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from repro.errors import UserError
from repro.experiments.sweeps.rows import Row, write_json, write_rows
from repro.report import command, loading
from repro.report.command import main
from repro.report.lines import Grid, Line, Section, show
from repro.report.loading import find, load
from repro.report.readme import BEGIN, CLAIMS_BEGIN, CLAIMS_END, END, block, rewrite, with_block
from repro.report.render import show as show_report
from repro.report.reproduce import headline, sections
from tests.experiments.results import make_rows

RUN: dict[str, Any] = {
    "target": "reproduce",
    "scale": "smoke",
    "command": "repro reproduce --scale smoke",
    "date": "2026-01-02T03:04:05+00:00",
    "device": "cpu",
    "device_name": "Some CPU",
    "cores": 2,
    "system": "Linux x86_64",
    "python": "3.11.0",
    "versions": {"torch": "2.14.1"},
    "git_revision": "0123456789ab",
    "minutes": 1.51,
    "checks": [{"text": "all agree", "passed": True}, {"text": "it learns", "passed": False}],
    "missing": {"translation": "the packaged set 'translation' is not there"},
    "failures": {"speed": "rank 1 failed"},
}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return make_rows()


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the committed results."""
    folder = tmp_path / "reference"
    monkeypatch.setattr(loading, "REFERENCE", folder)
    monkeypatch.setattr(command, "REFERENCE", folder)
    monkeypatch.setattr(command, "references", lambda results: loading.references(results, folder))
    return folder


@pytest.fixture
def store(rows: list[Row]) -> Callable[..., Path]:
    def put(folder: Path, scaled: float = 1.0, **changes: Any) -> Path:
        write_json(folder / "run.json", RUN | changes)
        write_rows(folder, [Row.from_dict(row.as_dict() | {"value": row.value * scaled}) for row in rows])
        return folder

    return put


def values(results: loading.Results, other: loading.Results | None = None) -> dict[str, tuple[str, str, str, str]]:
    return {
        line.what: (line.provenance, line.paper, line.reference, line.yours)
        for section in sections(results, other)
        for line in section.lines
    }


def test_tables_show_paper_reference_and_yours(tmp_path: Path, store: Callable[..., Path]) -> None:
    own, other = load(store(tmp_path / "own")), load(store(tmp_path / "other", scaled=2.0))
    shown = values(own, other)
    assert shown["AmoebaNet-D: bubble, K=2 (processes), M=4, closed form (K-1)/(M+K-1)"] == (
        "simulated",
        "20.0% (section 2.3)",
        "40.0%",
        "20.0%",
    )
    assert shown["Transformer on software messages to English: held-out BLEU, greedy decoding"] == (
        "measured",
        "–",
        "24.0",
        "12.0",
    )
    assert shown["step time, K=2, this engine"][2:] == ("1.21 ± 0.00 s", "605.0 ± 2.5 ms")
    assert shown["AmoebaNet-D, K=4 (local), M=4 against K=1: largest difference of the loss"][3] == "0"
    assert shown["AmoebaNet-D: bubble, K=4 (local), M=4, replayed from the costs in its trace"][0] == "simulated"
    assert "AmoebaNet-D: bubble, K=4 (local), M=4, from the trace" not in shown


def test_what_is_not_there_is_left_out(tmp_path: Path, store: Callable[..., Path]) -> None:
    folder = store(tmp_path)
    kept = [
        row for row in load(folder).rows if row.params.get("task") != "translation" and row.experiment != "step_time"
    ]
    write_rows(folder, kept)
    shown = values(load(folder))
    assert shown
    assert not any("Transformer" in what or "step time, " in what for what in shown)


def test_the_report_has_every_section_and_its_pictures(
    tmp_path: Path, store: Callable[..., Path], reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(reference / "some-machine" / "reproduce" / "smoke", scaled=2.0)
    folder = store(tmp_path / "results" / "smoke")
    assert main(["--results", str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    text = (folder / "report.md").read_text()
    for part in (
        "Some CPU",
        "0123456789ab",
        "`some-machine`",
        "## The bubble",
        "| what | provenance | paper | reference",
    ):
        assert part in text
    for part in ("passed: all agree", "**FAILED**: it learns", "**Left out**", "**Failed**, part speed: rank 1 failed"):
        assert part in text
    for part in ("passed all agree", "FAILED it learns", "Left out", "Both models learn", "report.md"):
        assert part in out
    pictures = [line.split("](")[1].split(")")[0] for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) == 7
    for name in pictures:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in text


def test_a_narrow_terminal_cuts_no_figure_off(tmp_path: Path, store: Callable[..., Path]) -> None:
    figures = ["123.456 ± 7.890 ms", "234.567", "abcdefghijklmnopqrstuvwxyz"]
    words = [word for text in figures for word in text.split()]
    grid = Grid("wide", ["what", *"abcdef"], [["a row", *figures, *figures]])
    lines = [Line("something with a name of some length " * 2, "measured", *figures)]
    console = Console(width=40, record=True, file=io.StringIO())
    show_report(console, load(store(tmp_path)), [Section("a section", "", lines, grids=[grid])])
    shown = console.export_text()
    assert "…" not in shown
    for letter in set("".join(words)):
        assert shown.count(letter) >= 3 * "".join(words).count(letter), letter


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path, store: Callable[..., Path]) -> None:
    """``repro report | head -1``"""
    command = [sys.executable, "-m", "repro", "report", "--results", str(store(tmp_path))]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json(tmp_path: Path, store: Callable[..., Path], reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path / "smoke")
    assert main(["--results", str(tmp_path / "smoke"), "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert (data["target"], data["scale"]) == ("reproduce", "smoke")
    assert len(data["sections"]) == 4
    assert set(data["sections"][0]["lines"][0]) == {"what", "provenance", "paper", "reference", "yours"}


def test_reference_rows_are_copied_and_found(
    tmp_path: Path, store: Callable[..., Path], reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(tmp_path / "smoke")
    assert main(["--results", str(folder), "--as-reference", "my-machine"]) == 0
    copied = reference / "my-machine" / "reproduce" / "smoke"
    assert (copied / "rows.jsonl").read_text() == (folder / "rows.jsonl").read_text()
    assert (copied / "report.md").exists()
    (found,) = loading.references(load(folder), reference)
    assert found.machine == "my-machine"
    assert loading.references(load(copied), reference) == [], "a run is not its own reference"
    with pytest.raises(UserError, match=r"--as-reference my-machine: .* is that reference"):
        main(["--results", str(copied), "--as-reference", "my-machine"])


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "a/b", "a/", "/tmp"])
def test_a_reference_has_a_plain_name(name: str, tmp_path: Path, store: Callable[..., Path], reference: Path) -> None:
    folder = store(tmp_path / "smoke")
    with pytest.raises(UserError, match=r"--as-reference .* is no plain name of a folder"):
        main(["--results", str(folder), "--as-reference", name])
    assert not reference.exists()


def test_earlier_results_are_not_reported(tmp_path: Path, store: Callable[..., Path]) -> None:
    store(tmp_path / "reproduce" / "smoke")
    store(tmp_path / "reproduce" / "smoke" / "earlier" / "1")
    assert [results.folder for results in find(tmp_path)] == [tmp_path / "reproduce" / "smoke"]


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--results", "does/not/exist"], "does/not/exist"),
        (["--results", "."], "no finished run"),
    ],
)
def test_nothing_to_report_is_a_clear_error(
    argv: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=part):
        main(argv)


def test_rows_without_run_json_are_a_clear_error(tmp_path: Path, store: Callable[..., Path]) -> None:
    (store(tmp_path) / "run.json").unlink()
    with pytest.raises(UserError, match=r"run\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (b"\xff", "utf-8"),
        (b"[]", "no JSON object"),
        (b"{", "Expecting"),
        (json.dumps({name: value for name, value in RUN.items() if name != "versions"}).encode(), "lacks versions"),
        (json.dumps(RUN | {"versions": "2.14.1"}).encode(), "names of versions"),
    ],
)
def test_a_damaged_run_json_is_a_clear_error(
    damage: bytes, part: str, tmp_path: Path, store: Callable[..., Path]
) -> None:
    (store(tmp_path) / "run.json").write_bytes(damage)
    with pytest.raises(UserError, match=rf"run\.json is missing or damaged .*{part}.*run the target again"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("metric", "unit", "value", "spread", "text"),
    [
        ("loss_difference", "1", 0.0, None, "0"),
        ("loss_difference", "1", 6.12e-8, None, "6.1e-08"),
        ("bubble", "1", 0.1234, 0.012, "12.3% ± 1.2"),
        ("accuracy", "1", 0.8, None, "80.0%"),
        ("step_time", "s", 0.1234, 0.01, "123.4 ± 10.0 ms"),
        ("fit_time", "s", 123.4, None, "2.1 min"),
        ("step_time_ratio", "1", 0.6, 0.01, "0.600 ± 0.010×"),
        ("bleu", "BLEU", 14.31, None, "14.3"),
        ("nll", "nat", 4.1234, None, "4.123"),
        ("steps", "steps", 200, None, "200"),
    ],
)
def test_numbers(rows: list[Row], metric: str, unit: str, value: float, spread: float | None, text: str) -> None:
    row = Row.from_dict(rows[0].as_dict() | {"metric": metric, "unit": unit, "value": value, "spread": spread})
    assert show(row) == text


def test_the_readme_block_is_what_the_rows_give(tmp_path: Path, store: Callable[..., Path]) -> None:
    reference = tmp_path / "results" / "reference"
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{CLAIMS_BEGIN}\n{CLAIMS_END}\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    assert rewrite(readme, reference)
    assert "No committed results yet" in readme.read_text()
    store(reference / "2-core-cpu" / "reproduce" / "laptop", scale="laptop")
    assert rewrite(readme, reference)
    assert not rewrite(readme, reference), "a second time changes nothing"
    text = readme.read_text()
    assert text.startswith("before\n\n") and text.endswith("\n\nafter\n") and "old" not in text
    assert "](results/reference/2-core-cpu/reproduce/laptop/report.md)" in text
    assert "| 1 of 2 | 1.5 | 2026-01-02, 0123456789ab |" in text
    assert "- `reproduce`, not passed: it learns\n- `reproduce`, failed: rank 1 failed" in text
    for line in headline(load(reference / "2-core-cpu" / "reproduce" / "laptop"), None):
        assert f"| `reproduce`: {line.what} |" in text


def test_a_target_with_many_failed_checks_does_not_flood_the_readme(tmp_path: Path, store: Callable[..., Path]) -> None:
    reference = tmp_path / "results" / "reference"
    checks = [{"text": f"check {number}", "passed": False} for number in range(5)]
    store(reference / "2-core-cpu" / "reproduce" / "laptop", scale="laptop", checks=checks)
    text = block(reference, tmp_path)
    assert text.count("not passed: check") == 3 and "| 0 of 5 |" in text
    assert "- `reproduce`: 2 more in [its report](results/reference/2-core-cpu/reproduce/laptop/report.md)" in text


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_readme_without_its_markers_is_a_clear_error(text: str) -> None:
    with pytest.raises(UserError, match="results:begin"):
        with_block(text, "new", "README.md")


def test_the_results_in_the_readme_are_those_of_the_committed_rows() -> None:
    readme = loading.ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert with_block(text, block(loading.REFERENCE, readme.parent), "README.md") == text, (
        "run `repro report --readme README.md`"
    )


def test_a_readme_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--readme .*nosuch\.md cannot be read"):
        main(["--readme", str(tmp_path / "nosuch.md")])
