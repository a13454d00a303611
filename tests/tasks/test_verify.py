from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import repro.cli
from repro.gpipe import is_recomputing
from repro.tasks.image_classification import ImageClassification
from tests.tasks.test_cli import run, smoke


class Forgetful(ImageClassification):
    """Its loss differs when it is recomputed."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        total, rows = super().loss(outputs, targets)
        return total * (1.01 if is_recomputing() else 1.0), rows


@pytest.mark.parametrize("model", ["amoebanet", "transformer"])
def test_both_models_pass(model: str, packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "verify", *smoke(model, packaged))
    assert code == 0, err
    assert "K = 2 stages" in out
    assert "M = 4 micro-batches of 2 rows" in out
    assert "equal within the tolerance" in out
    assert ("running mean" in out) == (model == "amoebanet")
    assert ("masks" in out) == (model == "transformer")


def test_options_and_json(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*smoke("amoebanet", packaged), "-K", "3", "-M", "3", "--remat", "never", "--dtype", "float32", "--json"]
    code, out, err = run(capsys, "verify", *argv)
    assert code == 0, err
    outcome = json.loads(out)
    assert outcome["passed"] is True
    assert len(outcome["partition"]) == 3
    assert outcome["micro_batches"] == [3, 3, 2]
    assert outcome["dtype"] == "float32"
    assert {"name", "kind", "largest", "absolute"} == outcome["differences"][0].keys()


def test_fewer_micro_batches_than_asked_for_are_told(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repro.cli.main(["verify", *smoke("transformer", packaged), "-M", "100"]) == 0
    assert "M = 100 was asked for, but the 8 rows of the batch make 8 micro-batches" in capsys.readouterr().out


def test_a_wrong_recomputation_is_found(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*smoke("amoebanet", packaged), f"--model.class_path={__name__}.Forgetful"]
    code, out, _ = run(capsys, "verify", *argv)
    assert code == 1
    assert "NOT equal" in out
    assert run(capsys, "verify", *argv, "--remat", "never")[0] == 0


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ["--config FILE"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["-K", "0"], ["-K"]),
        (["--remat", "often"], ["--remat", "'often'"]),
        (["SMOKE", "-K", "99"], ["99", "7 layers"]),
        (["SMOKE", "--device", "cuda:77"], ["cuda:77"]),
        (["SMOKE", "--model.init_args.num_lairs", "2"], ["num_lairs", "num_layers"]),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    argv: list[str], parts: list[str], packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for given in argv for word in (smoke("amoebanet", packaged) if given == "SMOKE" else [given])]
    code, out, err = run(capsys, "verify", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_help_says_what_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "verify", "--help")
    assert code == 0
    for part in ("--device", "-K", "-M", "--remat", "--json", "exit code", "BatchNorm"):
        assert part in out


def test_the_command_is_known() -> None:
    assert repro.cli.COMMANDS["verify"].module == "repro.tasks.verify"
    assert torch.get_default_dtype() is torch.float32
