"""``repro plan`` on the smoke configurations: what it finds, what it says where nothing fits, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from repro.cli import main
from repro.commands import plan_text
from repro.commands.plan import _bytes
from repro.gpipe import GPipeStrategy
from repro.tasks.cli import ReproCLI, quiet

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TRANSFORMER, AMOEBANET = (
    [str(CONFIGS / model / "base.yaml"), str(CONFIGS / model / "smoke.yaml")] for model in ("transformer", "amoebanet")
)
SMALL = ["--schedules", "gpipe", "1f1b", "--devices", "2"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("files", [TRANSFORMER, AMOEBANET], ids=["transformer", "amoebanet"])
def test_plans_fit_and_come_fastest_first(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, *files, *SMALL, "--memory", "1GiB")
    assert code == 0
    plans = found["plans"]
    assert plans and all(plan["fits"] for plan in plans)
    steps = [plan["step_seconds"] for plan in plans]
    assert steps == sorted(steps)
    for plan in plans:
        assert plan["num_stages"] * plan["data_parallel_size"] == 2
        assert sum(plan["partition"]) == found["num_layers"]
        rows = plan["micro_batch_rows"] * plan["num_micro_batches"] * plan["data_parallel_size"]
        assert rows == found["batch_size"]
    assert found["as_configured"]["num_micro_batches"] == 4 and found["as_configured"]["fits"]


def test_parameters_are_those_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = answer(capsys, *AMOEBANET, *SMALL)
    with quiet():
        module = ReproCLI([f"--config={file}" for file in AMOEBANET] + ["--trainer.accelerator=cpu"], run=False).model
    with torch.device("meta"):
        made = torch.nn.Sequential(*(make() for make in module.layers()))
    assert found["parameters"] == sum(parameter.numel() for parameter in made.parameters())


def test_what_is_configured_at_full_size_is_not_allocated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.init_args.num_layers=12", "--model.init_args.d_model=8192", "--model.init_args.d_ff=32768"]
    code, found = answer(capsys, TRANSFORMER[0], *words, "--devices", "8", "--schedules", "1f1b", "-M", "32")
    assert code == 1
    assert found["parameters"] > 1e10  # 40 GB
    assert found["as_configured"]["fits"] is False


def test_a_case_that_cannot_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TRANSFORMER, *SMALL, "--batch", "512", "-K", "2", "-M", "1", "--remat", "never"]
    _, roomy = answer(capsys, *words, "--memory", "4GiB", "--reserve", "0")
    needed = max(roomy["plans"][0]["rank_bytes"])
    code, found = answer(capsys, *words, "--memory", f"{needed / 2 / 2**30:.4f}GiB", "--reserve", "0")
    assert code == 1 and found["plans"] == []
    changes = " ".join(one["change"] for one in found["would_fit"]["changes"])
    assert "smaller micro-batches" in changes and "more stages" in changes
    assert found["would_fit"]["memory"] == pytest.approx(needed, rel=0.05)
    assert main(["plan", *words, "--memory", f"{needed / 2 / 2**30:.4f}GiB", "--reserve", "0"]) == 1
    said = capsys.readouterr().out
    assert "nothing fits. What would:" in said and "smaller micro-batches: " in said


def test_a_fewer_states_optimizer_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TRANSFORMER, "--devices", "1", "--schedules", "1f1b", "--reserve", "0", "--tokens", "8"]
    words += ["--remat", "always", "-M", "8", "--optimizer"]
    _, sgd = answer(capsys, *words, "sgd", "--memory", "1GiB")
    bound = max(sgd["plans"][0]["rank_bytes"])
    code, found = answer(capsys, *words, "adam", "--memory", f"{bound / 2**20 + 0.01:.3f}MiB")
    assert code == 1
    assert found["would_fit"]["other"][0].startswith("--optimizer sgd")


def test_text_says_what_a_person_needs(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model.init_args.d_ff", "96"]
    assert main(["plan", "--per-node", "1", "--accelerator", "p100", *SMALL, "--top", "3", *TRANSFORMER, *own]) == 0
    said = capsys.readouterr().out
    for words in (
        "between nodes ethernet-100g",
        "as configured",
        "best plans (predicted)",
        "tensor parallelism",
        "Patarasuk and Yuan 2009",
        "why the others fell out",
        "layers by stage",
        "of the peak of p100",
    ):
        assert words in said


def test_the_overlay_is_one_that_fit_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    words = ["-K", "2", "--devices", "4", "--per-node", "2", "--schedules", "interleaved", "-V", "2"]
    assert main(["plan", *TRANSFORMER[:1], *words, "--write", str(path)]) == 0
    assert f"written  {path}" in capsys.readouterr().out
    given = yaml.safe_load(path.read_text())
    options = given["trainer"]["strategy"]["init_args"]
    assert (options["num_stages"], options["data_parallel_size"], options["num_virtual_stages"]) == (2, 2, 2)
    assert (given["trainer"]["devices"], given["trainer"]["num_nodes"]) == (2, 2)
    files = [f"--config={file}" for file in (TRANSFORMER[0], path)]
    # The smallest Trainer that takes four ranks on this machine: parsed and made, nothing starts.
    plain = ["--trainer.accelerator=cpu", "--trainer.devices=4", "--trainer.num_nodes=1", "--trainer.logger=false"]
    with quiet():
        cli = ReproCLI([*files, *plain], run=False)
    strategy = cli.trainer.strategy
    assert isinstance(strategy, GPipeStrategy)
    strategy.check(cli.model)
    assert (strategy.num_stages, strategy.num_micro_batches) == (2, options["num_micro_batches"])
    assert cli.datamodule.batch_size == 256  # 512 rows over two replicas
    assert cli.config.seed_everything == 0


def test_batches_by_tokens_count_the_longest_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    # 26 + 22 pieces and two ends: 16 rows of 50 tokens.
    words = ["--data.init_args.batch_tokens=820", "-K", "2", "-M", "4", "--devices", "2", "--schedules", "gpipe"]
    code, found = answer(capsys, *TRANSFORMER, *words, "--write", str(path))
    assert (code, found["batch_size"]) == (0, 16)
    assert yaml.safe_load(path.read_text())["data"]["init_args"] == {"batch_tokens": 800}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "much"], "'much' is no size"),
        (["--devices", "0"], "--devices 0"),
        (["--schedules", "1f1"], "did you mean 1f1b?"),
        (["--accelerator", "v1000"], "--accelerator v1000"),
        (["--node-link", "string"], "--link string"),
        (["--optimizer", "lion"], "optimizer 'lion'"),
        (["--reserve", "1"], "--reserve 1"),
        (["--efficiency", "2"], "--efficiency 2"),
        (["--overhead", "-1"], "--overhead -1"),
        (["-M", "0"], "--num-micro-batches 0"),
        (["--devices", "6", "--per-node", "4"], "--devices 6 is no multiple of --per-node 4"),
        (["--devise", "4"], "unknown option --devise; did you mean --device"),
        (["--model.init_args.d_mode=4"], "d_mode"),
        (["--trainer.precision=8-true"], "trainer.precision"),
        (["--tokens", "0"], "give the pieces"),
        (["--devices", "8", "-K", "3"], "-K 3: 8 devices are no multiple of K=3. Give --devices 6, or -K 1, 2 or 4"),
        (
            ["--devices", "2", "-M", "7"],
            "-M 7: M does not divide the rows of a replica. Give --batch 35, or -M 1, 2",
        ),
        (["--devices", "2", "--batch", "7", "-K", "1"], "-K 1: the mini-batch of 7 rows has no D equal shares. Give"),
        (["--write", "/no/such/folder/plan.yaml"], "--write /no/such/folder/plan.yaml"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["plan", *TRANSFORMER, *SMALL, *words])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to profile on")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TRANSFORMER, *SMALL, "--costs", "profile", "--device", "cuda"]) == 2
    assert "--device cuda cannot be used here" in capsys.readouterr().err


def test_tokens_are_for_models_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *AMOEBANET, "--tokens", "16"]) == 2
    assert "has no tokens" in capsys.readouterr().err


def test_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "--devices", "2"])
    assert exit_.value.code == 2
    assert "required: CONFIG" in capsys.readouterr().err


def test_profiled_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, found = answer(capsys, *TRANSFORMER, *SMALL, "--costs", "profile")
    assert code == 0 and found["costs"] == "profile"
    assert found["plans"][0]["step_seconds"] > 0


@pytest.mark.parametrize(
    ("text", "size"), [("16GiB", 16 * 2**30), ("16", 16 * 2**30), ("1.5 gb", 15 * 10**8), ("512MiB", 2**29)]
)
def test_sizes(text: str, size: int) -> None:
    assert _bytes(text) == size


def test_equal_stages_are_written_together() -> None:
    assert plan_text._counts([5, 3, 3, 3, 2]) == "5, 3 x 3, 2"
    assert plan_text.size(3 * 2**20) == "3 MiB" and plan_text.size(12) == "12 B"
    assert plan_text.seconds(0.0123) == "12.3 ms" and plan_text.seconds(2.5) == "2.5 s"
