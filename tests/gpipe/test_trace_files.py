"""Traces as files: everything in them, on one scale, in a form that the viewers read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from repro.errors import UserError
from repro.gpipe import Event, GPipeStrategy, PipelineModule, Trace, TraceWriter, Transfer
from repro.gpipe.trace_files import COLOURS, chrome_trace, svg_timeline, write_trace

SVG = "{http://www.w3.org/2000/svg}"
# Rank 0 works for 1 + 3 of 8 ms, rank 1 for 1 + 1 + 2: the bubble is half of the step.
ACTIONS = (
    Event(0, "F", 0, 0, 0.0, 7.000, 7.001),
    Event(1, "F", 1, 0, 0.0005, 7.0015, 7.0025),
    Event(1, "R", 1, 0, 0.0, 7.0025, 7.0035),
    Event(1, "B", 1, 0, 0.0, 7.0035, 7.0055),
    Event(0, "B", 0, 0, 0.004, 7.005, 7.008),
)
TRANSFERS = (
    Transfer(0, "send", "activation", 0, 1, 0, 64, 7.001, 7.0011),
    Transfer(1, "receive", "activation", 0, 1, 0, 64, 7.0, 7.0015),
    Transfer(1, "send", "gradient", 1, 0, 0, 64, 7.0055, 7.0056),
)
TRACE = Trace(ACTIONS, TRANSFERS)


def test_the_chrome_trace_has_every_action_in_microseconds_from_the_first_start() -> None:
    made = json.loads(json.dumps(chrome_trace(TRACE)))["traceEvents"]
    actions = [event for event in made if event["ph"] == "X" and event["tid"] == 0]
    assert [(event["pid"], event["name"], event["cat"]) for event in actions] == [
        (0, "F0@0", "forward"),
        (1, "F0@1", "forward"),
        (1, "R0@1", "recompute"),
        (1, "B0@1", "backward"),
        (0, "B0@0", "backward"),
    ]
    assert [(event["ts"], event["dur"]) for event in actions] == [
        pytest.approx(pair) for pair in [(0, 1000), (1500, 1000), (2500, 1000), (3500, 2000), (5000, 3000)]
    ]
    assert {event["args"]["name"] for event in made if event["name"] == "process_name"} == {"rank 0", "rank 1"}


def test_arrows_lead_from_each_send_to_its_receive() -> None:
    made = chrome_trace(TRACE)["traceEvents"]
    arrows = [(event["ph"], event["id"], event["pid"], round(event["ts"])) for event in made if event["ph"] in "sf"]
    assert arrows == [("s", 0, 0, 1000), ("f", 0, 1, 1500), ("s", 1, 1, 5500)]
    messages = [event for event in made if event["ph"] == "X" and event["tid"] == 1]
    assert [event["args"]["bytes"] for event in messages] == [64, 64, 64]


def test_a_trace_of_nothing_is_a_file_of_nothing() -> None:
    assert chrome_trace(Trace())["traceEvents"] == []
    ElementTree.fromstring(svg_timeline((), "nothing"))


def test_the_timeline_draws_ranks_as_rows_and_actions_to_scale() -> None:
    root = ElementTree.fromstring(svg_timeline(ACTIONS, "K = 2 < M"))
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(bars) == len(ACTIONS)
    by_fill = {colour: [bar for bar in bars if bar.get("fill") == colour] for colour in COLOURS.values()}
    assert [len(by_fill[COLOURS[kind]]) for kind in "FRB"] == [2, 1, 2]
    widths = {bar.findtext(f"{SVG}title"): float(bar.get("width") or 0) for bar in bars}
    assert widths["B0, stage 0: 3.00 ms"] == pytest.approx(3 * widths["F0, stage 0: 1.00 ms"], rel=1e-3)
    assert len({bar.get("y") for bar in bars}) == 2
    # Behind each row lies the hatched bubble, as wide as the step.
    idle = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == "url(#idle)" and rect.get("height") == "28"]
    assert [float(rect.get("width") or 0) for rect in idle] == pytest.approx([8 * 880 / 8] * 2)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "K = 2 < M: bubble 50.0%" in words
    assert {"rank 0", "rank 1", "F forward", "R recompute", "B backward", "bubble (idle)", "8.0 ms"} <= set(words)


def test_both_files_are_written_and_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        made, drawn = write_trace(TRACE, tmp_path / "new", "step", "title")
    assert json.loads(made.read_text()) == chrome_trace(TRACE)
    assert drawn.read_text() == svg_timeline(ACTIONS, "title")
    assert sorted(path.name for path in made.parent.iterdir()) == ["step.json", "step.svg"]


def test_a_folder_that_cannot_be_written_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_trace(TRACE, tmp_path / "file", "step", "title")


def fit(folder: Path, trace: bool, step: int = 1) -> None:
    module = PipelineModule.from_sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.functional.mse_loss)
    rows = torch.randn(12, 4)
    trainer = pl.Trainer(
        strategy=GPipeStrategy(num_stages=2, num_micro_batches=2, trace=trace),
        devices=1,
        accelerator="cpu",
        max_steps=3,
        callbacks=[TraceWriter(str(folder), step=step)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows), batch_size=4))


def test_the_callback_writes_one_step_of_training(tmp_path: Path) -> None:
    fit(tmp_path, trace=True)
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    expected = {f"{kind}{part}@{stage}" for kind in "FRB" for part in range(2) for stage in range(2)}
    assert expected <= names
    assert "K = 2, M = 2: bubble" in (tmp_path / "trace.svg").read_text()


def test_a_run_that_ends_before_the_step_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"TraceWriter\(step=3\) wrote nothing into .* the run had 3 batches"):
        fit(tmp_path, trace=True, step=3)
    assert list(tmp_path.iterdir()) == []


def test_the_callback_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trace=True"):
        fit(tmp_path, trace=False)
    assert list(tmp_path.iterdir()) == []
