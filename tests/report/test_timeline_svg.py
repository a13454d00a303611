from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from repro.report.timeline_svg import COLOURS, svg
from repro.schedules import GENERATORS, Kind, Timeline, make_schedule, simulate

SVG = "{http://www.w3.org/2000/svg}"


def timeline(name: str, virtual: int = 1, **costs: float) -> Timeline:
    schedule = make_schedule(name, num_stages=2, num_micro_batches=3, num_virtual_stages=virtual, remat="except_last")
    return simulate(schedule, **{"forward": 1, "backward": 2, "recompute": 1, **costs})


def boxes(text: str) -> list[ElementTree.Element]:
    """The rectangles of actions: those that tell what they are."""
    return [box for box in ElementTree.fromstring(text).iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_action_is_a_box_of_its_length(name: str) -> None:
    drawn = timeline(name, 2 if name == "zb-v" else 1)
    found = boxes(svg(drawn, "title", width=64 + 16 + 100 * int(drawn.makespan)))
    times = [
        (action, start, end)
        for actions, starts, ends in zip(drawn.schedule.actions, drawn.starts, drawn.ends, strict=True)
        for action, start, end in zip(actions, starts, ends, strict=True)
    ]
    assert len(found) == len(times)
    for box, (action, start, end) in zip(found, times, strict=True):
        assert float(box.attrib["x"]) == pytest.approx(64 + 100 * start, abs=0.01)
        assert float(box.attrib["width"]) == pytest.approx(100 * (end - start), abs=0.01)
        assert box.attrib["fill"] == COLOURS[action.kind]


def test_kinds_have_colours_and_words_of_their_own() -> None:
    legend = [text.text for text in ElementTree.fromstring(svg(timeline("zb-h1"), "t")).iter(f"{SVG}text")]
    assert {"F forward", "R recompute", "I input gradient", "W weight gradient", "idle"} <= set(legend)
    assert "B backward" not in legend
    assert set(COLOURS) == set(Kind)


def test_the_title_is_escaped_and_nothing_is_drawn_without_time() -> None:
    nothing = timeline("gpipe", forward=0, backward=0, recompute=0)
    root = ElementTree.fromstring(svg(nothing, "K < 3 & M"))
    title = root.find(f"{SVG}title")
    assert title is not None and title.text == "K < 3 & M"
    assert all(float(box.attrib["width"]) == 0 for box in boxes(svg(nothing, "")))
