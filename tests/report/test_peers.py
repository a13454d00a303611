from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.experiments.costs.workload import BARE_LOOP, ENGINE, TORCH, TORCHGPIPE
from repro.experiments.peers.peer_comparison import TORCHGPIPE_MISSING, rows
from repro.experiments.sweeps.rows import Row
from repro.report.loading import Results
from repro.report.peers import draw, headline, sections
from tests.experiments.peers.test_peer_comparison import request, results


def run(made: list[Row]) -> Results:
    return Results(Path("results"), made, {"target": "peers", "scale": "laptop"})


@pytest.fixture
def finished() -> dict[str, Any]:
    cell = {ENGINE: [8.0], BARE_LOOP: [7.9], TORCH: [9.0]}
    sizes = {f"emulated-K8-M32-{size}": cell for size in (4096, 65536)}
    return results(0.156) | sizes | {"real-M8": results(0.156)["real-M4"]}


def test_a_section_for_real_layers_and_one_for_each_boundary(finished: dict[str, Any]) -> None:
    made = sections(run(rows(request("laptop"), finished)[0]), None)
    titles = [section.title for section in made]
    emulated = "Equal emulated stages, boundaries of"
    assert titles == ["Real layers", f"{emulated} 4 KiB", f"{emulated} 64 KiB"]
    shown = {line.what: (line.provenance, line.yours) for section in made for line in section.lines}
    name = "K=2, M=4: step time of this engine relative to (M+K-1)(t_F+t_B) (should be at most 1.06)"
    assert shown[name][0] == "emulated"
    assert shown[name][1].startswith("1.0400 ±")
    assert shown["M=4: step time of this engine relative to torchgpipe (should be at most 0.80)"][0] == "measured"
    assert TORCHGPIPE_MISSING not in made[0].text


def test_a_limit_that_the_scale_does_not_check_says_so(finished: dict[str, Any]) -> None:
    made = Results(Path("results"), rows(request("laptop"), finished)[0], {"target": "peers", "scale": "smoke"})
    whats = [line.what for section in sections(made, None) for line in section.lines if "should be" in line.what]
    assert whats and all(what.endswith("; not checked at this scale)") for what in whats)


def test_without_torchgpipe_the_report_says_how_to_get_it(finished: dict[str, Any]) -> None:
    for part in finished.values():
        part.pop(TORCHGPIPE, None)
    assert TORCHGPIPE_MISSING in sections(run(rows(request("laptop"), finished)[0]), None)[0].text


def test_the_reference_stands_beside_ones_own_and_alone(finished: dict[str, Any]) -> None:
    made = run(rows(request("laptop"), finished)[0])
    both, alone = sections(made, made), sections(run([]), made)
    assert [line.what for section in both for line in section.lines] == [
        line.what for section in alone for line in section.lines
    ]
    assert all(line.yours == line.reference for section in both for line in section.lines)
    assert all(line.yours == "–" for section in alone for line in section.lines)
    assert sections(run([]), None) == []


def test_the_figures_that_sections_name_are_drawn(finished: dict[str, Any], tmp_path: Path) -> None:
    made = rows(request("laptop"), finished)[0]
    draw(made, tmp_path)
    named = {figure.name for section in sections(run(made), None) for figure in section.figures}
    assert named == {path.name for path in tmp_path.iterdir()} == {"peers_real.png", "peers_emulated.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in named)


def test_the_headline_has_one_cell_of_each(finished: dict[str, Any]) -> None:
    whats = [line.what for line in headline(run(rows(request("laptop"), finished)[0]), None)]
    assert [what.split(": ")[0] for what in whats] == [
        "real layers, K=2, M=8",
        "real layers, K=2, M=8",
        *["equal emulated stages, 4 KiB, K=8, M=32"] * 3,
    ]
