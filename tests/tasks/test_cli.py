from __future__ import annotations

import csv
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import repro.cli
from repro.tasks.cli import one_line
from repro.tasks.image_classification import ImageClassification
from tests.helpers.ranks import Pools

IMAGES = "configs/amoebanet"
SENTENCES = "configs/transformer"
ROOT = Path(__file__).resolve().parents[2]


def smoke(model: str, packaged: Path) -> list[str]:
    """The smoke config of ``model``, made still smaller, over the tiny packaged sets."""
    files = [str(ROOT / "configs" / model / name) for name in ("base.yaml", "smoke.yaml")]
    options = {"data.init_args.root": packaged, "data.init_args.batch_size": 8, "trainer.max_steps": 2}
    options["trainer.val_check_interval"] = 2
    if model == "amoebanet":
        options |= {"data.init_args.validation": 8, "model.init_args.num_filters": 4}
    else:
        options |= {"data.init_args.languages": "[de, fr]", "data.init_args.vocab_size": 320}
        options |= {"model.init_args.vocab_size": 320, "model.init_args.d_model": 8}
    return [
        *(word for file in files for word in ("--config", file)),
        *(f"--{key}={value}" for key, value in options.items()),
    ]


def quietly(*argv: str) -> list[str]:
    return [*argv, "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go below the current folder."""
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``repro`` with ``argv``."""
    try:
        code = repro.cli.main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("model", ["amoebanet", "transformer"])
def test_fit_then_validate_test_and_predict(
    model: str,
    packaged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    config = smoke(model, packaged)
    code, _, err = run(capsys, "fit", *quietly(*config))
    assert code == 0, err
    assert "Tip:" not in caplog.text
    assert not [warning for warning in recwarn if "deprecated" in str(warning.message)]
    folder = tmp_path / "results" / "local" / "fit" / "version_0"
    assert sorted(path.name.split(".")[0] for path in folder.iterdir()) == [
        "checkpoints",
        "config",
        "events",
        "hparams",
        "metrics",
    ]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["train_loss_step"]] == ["0", "1"]
    assert any(row["val_loss"] for row in rows)
    for command in ("validate", "test", "predict"):
        code, _, err = run(capsys, command, *quietly(*config), "--ckpt_path", str(checkpoint))
        assert code == 0, err
    predictions = torch.load(tmp_path / "results/local/predict/version_0/predictions.pt", weights_only=True)
    assert sum(len(rows) for rows in predictions) == 10
    # The saved config alone says everything, and a second run does not stumble over the first one's.
    code, _, err = run(capsys, "fit", "--config", str(folder / "config.yaml"))
    assert code == 0, err
    assert (folder.parent / "version_1" / "config.yaml").is_file()


def test_a_checkpoint_of_the_command_loads_in_plain_lightning(
    packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)))[0] == 0
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    module = ImageClassification.load_from_checkpoint(checkpoint)
    assert module.hparams["num_filters"] == 4
    assert module(torch.rand(2, 1, 32, 32)).shape == (2, 10)


@pytest.fixture(scope="module")
def trained(packaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the tiny AmoebaNet."""
    folder = tmp_path_factory.mktemp("trained")
    options = [f"--trainer.default_root_dir={folder}", "--trainer.max_steps=1", "--trainer.val_check_interval=1"]
    assert repro.cli.main(["fit", *quietly(*smoke("amoebanet", packaged)), *options]) == 0
    (checkpoint,) = folder.rglob("*.ckpt")
    return checkpoint


def test_options_of_the_checkpoint_do_not_win_over_those_given(
    trained: Path, packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning sets the model's options to those that the checkpoint was made with, in silence."""
    options = ["--model.init_args.label_smoothing=0.25", f"--ckpt_path={trained}"]
    code, _, err = run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)), *options)
    assert code == 0, err
    saved = yaml.safe_load((tmp_path / "results/local/fit/version_0/config.yaml").read_text())
    assert saved["model"]["init_args"]["label_smoothing"] == 0.25


def wrong_checkpoint(case: str, trained: Path, folder: Path) -> Path:
    """A file that is no checkpoint."""
    path = folder / "wrong.ckpt"
    match case:
        case "text":
            path.write_text("hello", encoding="utf-8")
        case "truncated":
            path.write_bytes(trained.read_bytes()[:2000])
        case "weights alone":
            torch.save({"weight": torch.zeros(1)}, path)
        case "folder":
            path.mkdir()
    return path


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("missing", "cannot be read: No such file"),
        ("folder", "cannot be read: Is a directory"),
        ("text", "is not a checkpoint that can be read"),
        ("truncated", "is not a checkpoint that can be read"),
        ("weights alone", "it has no state_dict"),
        ("nothing", "checkpoint . cannot be read"),
    ],
)
def test_a_wrong_checkpoint_is_one_line(
    case: str, part: str, trained: Path, packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "" if case == "nothing" else wrong_checkpoint(case, trained, tmp_path)
    code, _, err = run(capsys, "test", *quietly(*smoke("amoebanet", packaged)), f"--ckpt_path={path}")
    assert (code, err.count("\n")) == (2, 1), err
    assert str(path) in err and part in err


def test_a_checkpoint_of_another_model_is_one_line(
    trained: Path, packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "test", *quietly(*smoke("transformer", packaged)), f"--ckpt_path={trained}")
    assert (code, err.count("\n")) == (2, 1), err
    for part in (str(trained), "ImageClassification", "the model is repro.tasks.translation.Translation"):
        assert part in err


def test_a_checkpoint_of_other_sizes_is_one_line(
    trained: Path, packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model.init_args.num_filters=8", f"--ckpt_path={trained}"]
    code, _, err = run(capsys, "test", *quietly(*smoke("amoebanet", packaged)), *options)
    told = [line for line in err.splitlines() if "error" in line.lower()]
    assert (code, len(told)) == (2, 1), err
    for part in ("--ckpt_path does not fit", "size mismatch for", "more)"):
        assert part in told[0]


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        (["--trainer.strategy=gpipe"], 1),
        (["--trainer.strategy=GPipeStrategy"], 1),
        (["--trainer.strategy=gpipe", "--trainer.strategy.num_stages=3"], 3),
        (["--trainer.strategy", "gpipe", "--trainer.strategy.num_stages", "3"], 3),
        (["--trainer.strategy=GPipeStrategy", "--trainer.strategy.num_stages=3"], 3),
        (["--trainer.strategy.num_stages=4", "--trainer.strategy.num_micro_batches=2"], 4),
        (["--trainer.strategy.init_args.num_stages=3"], 3),
    ],
)
def test_strategy_options(
    options: list[str],
    stages: int,
    packaged: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, _, err = run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)), *options, "--trainer.max_steps=1")
    assert code == 0, err
    assert f"Pipeline: K = {stages} stage" in caplog.text


def test_print_config_is_the_overlay_on_the_base(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "fit", *smoke("amoebanet", packaged), "--print_config")
    assert code == 0
    config: dict[str, Any] = yaml.safe_load(out)
    assert config["trainer"]["strategy"]["class_path"].endswith("GPipeStrategy")
    assert config["trainer"]["strategy"]["init_args"]["num_stages"] == 2  # overlay
    assert config["model"]["init_args"]["label_smoothing"] == 0.1  # base
    assert config["model"]["init_args"]["num_filters"] == 4  # command line


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--help"], ["--config FILE", "--trainer.strategy.help GPipeStrategy", "configs/amoebanet/laptop.yaml"]),
        (["--trainer.strategy.help=GPipeStrategy"], ["num_micro_batches", "slices of each mini-batch", "partition"]),
        (["--model.help=Translation"], ["label_smoothing", "encoder layers"]),
        (["--data.help=ImageDataModule"], ["batch_size", "validation"]),
    ],
)
def test_help(argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "fit", *argv)
    assert code == 0
    for part in parts:
        assert part in re.sub(r"\s+", " ", out)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--trainer.max_epoch=3"], ["--trainer.max_epoch", "did you mean max_epochs?"]),
        (["--model.init_args.num_lairs=3"], ["model: unknown key num_lairs", "did you mean num_layers?"]),
        (["--model.init_args.num_layers=four"], ["num_layers", "four"]),
        (["--model.init_args.num_layers=4"], ["num_layers=4", "multiple of 3"]),
        (["--model=ImageClasification"], ["ImageClasification", "did you mean ImageClassification?"]),
        (["--trainer.strategy.num_stages=0"], ["num_stages=0"]),
        (["--trainer.strategy.num_stages=99"], ["num_stages=99", "7 layers"]),
        (["--trainer.strategy.num_micro_batches=0"], ["num_micro_batches=0"]),
        (["--trainer.strategy.schedule=gpip"], ["schedule='gpip'", "did you mean"]),
        (["--trainer.strategy.remat=often"], ["remat='often'"]),
        (["--trainer.strategy.partition=[1,2]"], ["partition=[1, 2]", "7"]),
        (["--trainer.strategy=gpipee"], ["strategy='gpipee'", "did you mean gpipe?"]),
        (["--trainer.precision=17"], ["17"]),
        (["--data.init_args.batch_size=0"], ["batch_size=0"]),
        (["--data.init_args.root=nowhere"], ["nowhere", "python -m repro.datasets fetch", "make data"]),
        (["--config=missing.yaml"], ["missing.yaml"]),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    options: list[str], parts: list[str], packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)), *options)
    told = [line for line in err.splitlines() if "error" in line]
    assert code == 2
    assert len(told) == 1, err
    assert told[0].startswith("repro: error: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in told[0]


def test_without_a_config_it_says_how_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fit")
    assert (code, err) == (
        2,
        "repro: error: the following are missing: fit.data, fit.model; give --config FILE (several for overlays)\n",
    )


def test_the_short_name_in_a_config_takes_no_options(
    packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.yaml"
    short.write_text("trainer:\n  strategy: gpipe\n")
    options = [f"--config={short}", "--trainer.strategy.num_stages=2"]
    code, _, err = run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)), *options)
    assert code == 2
    assert "trainer.strategy: gpipe takes no options of its own: name GPipeStrategy in its place" in err


def test_results_below_a_file_are_one_line(packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    options = [f"--trainer.default_root_dir={tmp_path / 'file' / 'below'}"]
    code, _, err = run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)), *options)
    told = [line for line in err.splitlines() if "error" in line.lower()]
    assert (code, len(told)) == (2, 1), err
    assert "Not a directory; give a --trainer.default_root_dir" in told[0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("trainer:\n  max_epoch: 3\n", ["trainer.max_epoch", "did you mean max_epochs?"]),
        ("model:\n  init_args:\n    num_lairs: 3\n", ["num_lairs", "did you mean num_layers?"]),
        ("trainer: [\n", ["config"]),
    ],
)
def test_a_config_with_a_typo(
    text: str, parts: list[str], packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "typo.yaml").write_text(text)
    code, _, err = run(capsys, "fit", *smoke("amoebanet", packaged), "--config", "typo.yaml")
    assert code == 2
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize("rank", ["RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"])
def test_only_the_first_rank_tells_a_mistake(
    rank: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(rank, "1")
    assert run(capsys, "fit", "--no-such-option") == (2, "", "")


class Failing(ImageClassification):
    def loss(self, outputs: Any, targets: Any) -> Any:
        raise RuntimeError("the loss broke")


def test_a_failure_in_a_stage_is_one_line_and_exit_code_1(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = quietly(*smoke("amoebanet", packaged), f"--model.class_path={__name__}.Failing")
    code, _, err = run(capsys, "fit", *argv)
    assert code == 1
    told = [line for line in err.splitlines() if "error" in line.lower()]
    assert told == ["repro: error: rank 1, stage 1, micro-batch 0, forward: RuntimeError: the loss broke"]


def test_an_interrupt_in_training_has_exit_code_130(
    packaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(ImageClassification, "loss", stop)
    try:
        assert run(capsys, "fit", *quietly(*smoke("amoebanet", packaged)))[0] == 130
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores it from then on


def test_one_line_leaves_what_matters() -> None:
    text = """Parser key "model":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'a'>, <class 'NoneType'>]
  Errors:
    - Option 'num_lairs' is not accepted
    - Expected a <class 'NoneType'>
  Given value type: <class 'dict'>
  Given value: {'num_lairs': 3}"""
    assert one_line(text) == "model: unknown key num_lairs; did you mean num_layers?"
    assert one_line("plain") == "plain"


def command_on_this_rank(rank: int, world_size: int, argv: list[str], folder: str) -> int:
    os.chdir(folder)
    return repro.cli.main(argv)


def test_the_command_on_two_ranks(packaged: Path, tmp_path: Path, pools: Pools) -> None:
    """As under torchrun: both ranks run the same command line, one stage each; the first writes the results."""
    for model in ("amoebanet", "transformer"):
        config = [*quietly(*smoke(model, packaged)), "--trainer.devices=2"]
        folder = tmp_path / model
        folder.mkdir()
        assert pools(2).run(command_on_this_rank, ["fit", *config], str(folder)) == [0, 0]
        (checkpoint,) = folder.rglob("*.ckpt")
        assert len(list(folder.rglob("config.yaml"))) == 1
        # BLEU needs the layers of both stages on one rank.
        tested = ["test", *config, f"--ckpt_path={checkpoint}"]
        assert pools(2).run(command_on_this_rank, tested, str(folder)) == [0, 0]
        for name in ("translations.tsv", "scores_by_language.tsv"):
            assert len(list(folder.rglob(name))) == (model == "transformer"), name


def test_a_mistake_on_two_ranks_ends_both(packaged: Path, tmp_path: Path, pools: Pools) -> None:
    config = [*quietly(*smoke("amoebanet", packaged)), "--trainer.devices=2"]
    for mistake in ("--trainer.strategy.num_stages=3", "--model.init_args.num_lairs=3"):
        assert pools(2).run(command_on_this_rank, ["fit", *config, mistake], str(tmp_path)) == [2, 2]
