"""``docs/claims.md`` and its pictures are what the code writes, and the verdicts follow from the figures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import repro.cli
from repro.datasets.paper import published
from repro.report.claims import circulating, formula_entries, groups, paper_entries, render, worked_entries
from repro.report.claims.writing import FOLDER, Entry, paragraph

DOCS = Path(__file__).resolve().parents[3] / "docs"
HOW = "docs/ is not what the code writes; run: repro report --claims docs/claims.md"

VERDICTS = {
    "The closed form": "holds",
    "The ramp of the forwards alone": "does not hold",
    "Two ramps of forwards": "does not hold",
    "About 30 percent for 1F1B": "does not hold",
    "Interleaved as a scaled 1F1B": "does not hold",
    "What a backward costs": "does not hold",
    "A smaller bubble than GPipe": "does not hold; it saves memory",
    "All forwards first told as 1F1B": "does not hold; it is GPipe",
    "Worked cases": "hold",
    "The smallest M for a bubble": "hold, for two questions",
    "6B on 8 accelerators": "does not hold",
    "557M with K 8 and a batch of 8192": "does not hold",
    "84M to 557M": "does not hold",
    "25 times larger": "the paper's own words, not its table",
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Entry]]:
    return groups()


@pytest.fixture(scope="module")
def files(found: dict[str, list[Entry]]) -> dict[str, str]:
    return render(found)


def test_the_page_and_its_pictures_are_up_to_date(files: dict[str, str]) -> None:
    for name, text in files.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: {HOW}"
    drawn = {f"{FOLDER}/{path.name}" for path in (DOCS / FOLDER).iterdir()}
    assert drawn == set(files) - {"claims.md"}, HOW


def test_the_command_writes_the_same(files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "claims.md"
    assert repro.cli.main(["report", "--claims", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    paths = [path for path in page.parent.rglob("*") if path.is_file()]
    written = {path.relative_to(page.parent).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert written == files


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    page = tmp_path / "file" / "claims.md"
    assert repro.cli.main(["report", "--claims", str(page)]) == 2
    assert f"--claims {page}: cannot write" in capsys.readouterr().err


def test_verdicts(found: dict[str, list[Entry]]) -> None:
    assert {entry.heading: entry.verdict for entries in found.values() for entry in entries} == VERDICTS


def test_what_is_said_about_schedules_has_a_picture(files: dict[str, str], found: dict[str, list[Entry]]) -> None:
    for title in ("Formulas of the bubble", "GPipe and 1F1B"):
        for entry in found[title]:
            assert entry.pictures, entry.heading
            assert all(f"]({picture.path})" in files["claims.md"] for picture in entry.pictures)


def test_pictures_are_whole_and_say_what_they_show(found: dict[str, list[Entry]]) -> None:
    for entries in found.values():
        for picture in (one for entry in entries for one in entry.pictures):
            root = ElementTree.fromstring(picture.drawn())
            texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
            assert picture.caption in texts
            assert sum(text.startswith("rank ") for text in texts) == picture.timeline.schedule.num_stages


@pytest.mark.parametrize(
    ("reads", "entries", "table", "column", "value", "heading", "verdict"),
    [
        (
            circulating,
            formula_entries,
            "circulating_bubbles",
            "stated_percent",
            42.9,
            "The ramp of the forwards alone",
            "holds",
        ),
        (
            circulating,
            formula_entries,
            "circulating_bubbles",
            "num_micro_batches",
            5,
            "The closed form",
            "does not hold",
        ),
        (worked_entries, worked_entries, "circulating_cases", "stated_percent", 12.3, "Worked cases", "do not hold"),
        (
            worked_entries,
            worked_entries,
            "circulating_smallest",
            "at_most",
            7,
            "The smallest M for a bubble",
            "do not hold",
        ),
        (
            paper_entries,
            paper_entries,
            "circulating_about_paper",
            "num_partitions",
            16,
            "6B on 8 accelerators",
            "holds",
        ),
        (
            paper_entries,
            paper_entries,
            "circulating_about_paper",
            "from_parameters",
            82_000_000,
            "84M to 557M",
            "holds",
        ),
        (paper_entries, paper_entries, "table1_claims", "factor", 22, "25 times larger", "holds"),
    ],
)
def test_verdicts_follow_from_the_figures(
    reads: Any,
    entries: Any,
    table: str,
    column: str,
    value: float,
    heading: str,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = published(name)
        return [row | {column: value} if row[column] is not None else row for row in rows] if name == table else rows

    monkeypatch.setattr(reads, "published", changed)
    [entry] = [entry for entry in entries.entries() if entry.heading == heading]
    assert entry.verdict == verdict


def test_paragraphs_keep_code_and_links_whole() -> None:
    text = paragraph("word " * 22 + "`some code that has spaces` and [a link](with-a-long-target-that-does-not-fit)")
    assert "`some code that has spaces`" in text and "](with-a-long-target-that-does-not-fit)" in text
    assert max(map(len, text.splitlines())) <= 120
