"""The page holds every published number once, links the rows, and is what the committed rows give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import repro.cli
from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Row, write_json, write_rows
from repro.report import loading
from repro.report.paper_claims import counts, page
from repro.report.paper_claims.catalogue import claims
from repro.report.paper_claims.claim import Verdict
from repro.report.paper_claims.evidence import find_runs
from repro.report.readme import CLAIMS_BEGIN, CLAIMS_END, claims_block, with_claims
from tests.report.paper_claims.made_up import SIMULATED, row
from tests.report.test_report import RUN

STALE = "run `repro report --paper-claims` (make claims), then `repro report --readme README.md`"


@pytest.fixture(scope="module")
def counted() -> list[Row]:
    return counts.count_rows()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that take no time."""
    some = [row("parameters", 557e6, model="AmoebaNet-B (18, 512)", provenance=SIMULATED, by_layer=[557_000_000])]
    monkeypatch.setattr(page, "count_rows", lambda: some)


def put(folder: Path, target: str, scale: str, value: float) -> None:
    run = RUN | {"target": target, "scale": scale}
    rows = [row("link_share", value, provenance=SIMULATED, model="m", k=2)]
    write_rows(folder / target / scale, rows)
    write_json(folder / target / scale / "run.json", run)


@pytest.mark.parametrize(
    ("table", "of_each"),
    [
        ("table1_amoebanet", 4), ("table1_transformer", 4), ("table1_claims", 1), ("breakdown", 1), ("partitions", 1),
        ("figure1a", 1), ("figure1b", 1), ("table5", 2),
    ],
)  # fmt: skip
def test_every_published_row_has_its_claims(table: str, of_each: int) -> None:
    shapes = {"breakdown": 2}.get(table, 0)
    assert sum(claim.table == table for claim in claims()) == of_each * len(published(table)) + shapes


def test_every_number_of_the_wide_tables_is_there() -> None:
    found = {claim.name for claim in claims()}
    for table in ("table2", "table3"):
        first = min(int(line["num_micro_batches"] or 0) for line in published(table))
        for line in published(table):
            stages, micro_batches = line["num_stages"], line["num_micro_batches"]
            name = f"{table}-{str(line['model']).split('-')[0].lower()}-K{stages}-M{micro_batches}"
            assert (name in found) == ((stages, micro_batches) != (2, first))
    for line in published("figure3"):
        for column in ("first_25", "middle_52", "last_25", "all_languages"):
            if line["confidence"] == "D" and line[column] is not None:
                assert f"figure3-{line['model']}-{column}" in found
    for line in published("table4"):
        assert f"table4-{line['dataset']}-accuracy" in found
    assert {str(line["id"]) for line in published("claims")} - found == {"larger-batch"}
    assert {"larger-batch-steps", "larger-batch-samples"} < found


def test_the_largest_scale_counts_and_the_smallest_never(tmp_path: Path, few: None) -> None:
    put(tmp_path, "table3", "smoke", 0.9)
    assert find_runs(tmp_path) == {}
    entry = {one["name"]: one for one in page.judged_in(tmp_path)}["boundaries"]
    assert entry["verdict"] == "not testable here" and "make table3" in entry["why"] and entry["rows"] == []
    put(tmp_path, "table3", "laptop", 0.05)
    assert find_runs(tmp_path)["table3"].scale == "laptop"
    put(tmp_path, "table3", "gpu", 0.5)
    entry = {one["name"]: one for one in page.judged_in(tmp_path)}["boundaries"]
    assert entry["verdict"] == "contradicted" and entry["rows"] == ["table3/gpu"]


def test_the_page_and_the_terminal_show_all(tmp_path: Path, few: None, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "table3", "laptop", 0.05)
    assert repro.cli.main(["report", "--paper-claims", str(tmp_path)]) == 0
    out, text = capsys.readouterr().out, (tmp_path / "claims.md").read_text(encoding="utf-8")
    entries = page.read(tmp_path)
    assert len(entries) == len(claims())
    for entry in entries:
        assert entry["claim"] in out and entry["claim"] in text
        assert entry["section"] in out and f"## {entry['section']}" in text
    assert "[table3/laptop](table3/laptop/)" in text
    assert "| reproduced | 2 | " in text  # the count and the messages
    assert repro.cli.main(["report", "--paper-claims", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {str(tmp_path): entries}


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repro.cli.main(["report", "--paper-claims", str(tmp_path / "none")]) == 2
    assert "no such folder; give one of results" in capsys.readouterr().err


def test_models_are_counted_without_a_byte(counted: list[Row]) -> None:
    """Within 1% of the counts of ``data/paper``; the two tables of the Transformer are there."""
    by_model = {one.model: one.value for one in counted}
    for line in published("transformer_counts"):
        if line["kind"] == "two embedding tables":
            assert by_model[str(line["model"])] == pytest.approx(line["parameters"], rel=0.01)
    assert by_model["AmoebaNet-B (18, 512)"] == pytest.approx(557.29e6, rel=1e-3)


def test_committed_pages_are_what_the_committed_rows_give(counted: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "count_rows", lambda: counted)
    folders = [path.parent for path in loading.REFERENCE.glob(f"*/{page.DATA}")]
    assert folders
    for folder in folders:
        entries = page.judged_in(folder)
        assert page.read(folder) == json.loads(json.dumps(entries)), STALE
        assert (folder / page.PAGE).read_text(encoding="utf-8") == page.markdown(entries), STALE


def test_the_readme_opens_with_the_summary_of_the_committed_claims() -> None:
    readme = loading.ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert with_claims(text, loading.REFERENCE, readme) == text, STALE
    block = text.split(CLAIMS_BEGIN)[1].split(CLAIMS_END)[0]
    assert all(verdict.value in block for verdict in Verdict)
    committed = [entry for path in loading.REFERENCE.glob(f"*/{page.DATA}") for entry in page.read(path.parent)]
    assert all(entry["in_short"] in block and entry["in_short"] for entry in committed if entry["headline"])
    assert text.index(CLAIMS_BEGIN) < text.index("```")


def test_the_readme_block_sums_up_each_machine(tmp_path: Path, few: None) -> None:
    assert "Nothing judged yet" in claims_block(tmp_path, tmp_path)
    put(tmp_path / "results" / "a-machine", "table3", "laptop", 0.05)
    page.write(tmp_path / "results" / "a-machine")
    block = claims_block(tmp_path / "results", tmp_path)
    assert "`a-machine`" in block and "](results/a-machine/claims.md#table-5-batch-size)" in block
    assert f"**all {len(claims())}**" in block
