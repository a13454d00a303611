"""``repro fit | validate | test | predict``: LightningCLI over config files, with errors as one line."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from repro.arguments import suggest
from repro.errors import UserError
from repro.gpipe import ExponentialMovingAverage, GPipeStrategy, PipelineError, PipelineModule, StageError
from repro.tasks.checkpoints import misfit, read_checkpoint
from repro.tasks.image_classification import ImageClassification
from repro.tasks.image_data import ImageDataModule
from repro.tasks.progress_bar import name_known_epochs
from repro.tasks.translation import Translation, TranslationDataModule

RESULTS = "results/local"
"""Where logs and checkpoints of one's own runs go, below the current folder."""

# Imported so that a config may call them by their short names.
CLASSES = (
    ImageClassification,
    ImageDataModule,
    Translation,
    TranslationDataModule,
    GPipeStrategy,
    ExponentialMovingAverage,
)

_NOISE = (
    # Of the libraries below, about their own future; a person who trains a model can do nothing about them.
    r"(?s).*`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"(?s).*was deprecated in v4\.\d+\.\d+ and will be removed in v5",
    r"(?s).*JsonargparseDeprecationWarning",
    r".*does not have many workers which may be a bottleneck",
    r".*The dirpath has changed from",
    r".*Experiment logs directory .* exists and is not empty",
)


class Parser(LightningArgumentParser):
    """Tells a mistake in one line, with the nearest key that exists; an abbreviated option is a mistake."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(one_line(message))


class ReproCLI(LightningCLI):
    """LightningCLI for ``PipelineModule`` and its data, chosen by ``class_path`` in the config.

    With ``run=False`` there are no subcommands: ``model``, ``datamodule`` and ``trainer`` are made, nothing runs.
    """

    def __init__(self, argv: Sequence[str], *, run: bool = True) -> None:
        super().__init__(
            PipelineModule,
            pl.LightningDataModule,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"default_root_dir": RESULTS},
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"prog": "repro", **{name: _help(name) for name in self.subcommands()}},
            subclass_mode_model=True,
            subclass_mode_data=True,
            args=list(argv),
            run=run,
            auto_configure_optimizers=False,
        )

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        # The base class warns when arguments are given from within Python; ours always are.
        assert isinstance(args, list)
        self.config = parser.parse_args(_with_class_of_strategy(args))
        trainer = (self.config.get(self.config.get("subcommand") or "") or self.config).trainer
        if trainer.strategy == GPipeStrategy.__name__:  # without options of its own it is taken for a registered name
            trainer.strategy = "gpipe"

    @override
    def _parse_ckpt_path(self) -> None:
        """Nothing: the base class would set the model's options to those of the checkpoint, against the config's."""

    @override
    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except UserError:
            raise
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(one_line(str(error))) from error

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        config = self._get(self.config_init, "trainer", default={})
        if config.get("logger") in (None, True):
            root, name = config["default_root_dir"], self.subcommand or "run"
            tensorboard = TensorBoardLogger(root, name=name)
            kwargs["logger"] = [tensorboard, CSVLogger(root, name=name, version=tensorboard.version)]
        trainer = super().instantiate_trainer(**kwargs)
        name_known_epochs(trainer)
        return trainer

    def predict(self, **options: Any) -> None:
        """Called in place of ``Trainer.predict``, which would drop the predictions: they go to ``predictions.pt``."""
        predictions = self.trainer.predict(**options)
        folder = self.trainer.log_dir or self.trainer.default_root_dir
        if self.trainer.is_global_zero and predictions is not None:
            path = Path(folder) / "predictions.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(predictions, path)
            rank_zero_info(f"{len(predictions)} batches of predictions, in order: {path}")

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        check = getattr(self.datamodule, "check", None)
        if check is not None:
            check()
        check_model = getattr(self.datamodule, "check_model", None)
        if check_model is not None:
            check_model(self.model)
        self._check_checkpoint()
        super()._run_subcommand(subcommand)

    def _check_checkpoint(self) -> None:
        """Before ranks are started and data is loaded; Lightning's own words and other places than files are not ours.

        A class that this module does not know is not imported on a checkpoint's word.

        Raises:
            UserError: ``ckpt_path`` is no checkpoint that can be read, or one of another model.
        """
        options = self.config[str(self.subcommand)]
        path = options.get("ckpt_path")
        if path is None or path in ("best", "last", "hpc") or re.match(r"(?i)registry(:|$)|\w+://", path):
            return
        checkpoint = read_checkpoint(Path(path), weights_only=options.get("weights_only") is not False)
        made = checkpoint.get("hyper_parameters", {}).get("_class_path")
        kind = next((kind for kind in CLASSES if f"{kind.__module__}.{kind.__qualname__}" == made), None)
        if kind is not None and not isinstance(self.model, kind) and not issubclass(kind, type(self.model)):
            raise UserError(
                f"--ckpt_path {path} is a checkpoint of {made}, but the model is {options.model.class_path}; give the "
                "--config that it was trained with, or another checkpoint"
            )


def main(argv: Sequence[str]) -> int:
    """Runs ``argv``, which begins with the subcommand, and returns the exit code.

    It is 2 for a mistake, 1 for a failure, 130 after Ctrl-C.
    """
    with quiet():
        try:
            ReproCLI(argv)
        except UserError as error:
            return _tell(error, 2) if _rank() == 0 else 2
        except (StageError, PipelineError) as error:
            # All ranks have the same story. The first one tells it, unless it is the one that is gone.
            speaks = _rank() == 0 or getattr(error, "rank_0_is_gone", False)
            return _tell(error, 1) if speaks else 1
        except (NotADirectoryError, FileExistsError, PermissionError) as error:
            if error.filename is None:
                raise
            wrong = UserError(
                f"{error.filename}: {error.strerror}; give a --trainer.default_root_dir where results can be written"
            )
            return _tell(wrong, 2) if _rank() == 0 else 2
        except SystemExit as stop:
            if isinstance(stop.__context__, KeyboardInterrupt):  # Lightning has told of it, and ends with code 1
                return 130
            raise
        except RuntimeError as error:
            reason = misfit(error)
            if reason is None:
                raise
            wrong = UserError(f"--ckpt_path does not fit the configured model ({reason}); give the --config of its run")
            return _tell(wrong, 2) if _rank() == 0 else 2
    return 0


def one_line(message: str) -> str:
    """What is wrong, out of a message of the configuration library, which lists all types that do not fit."""
    # A plain value is worth repeating; a whole section of the config is not.
    message = re.sub(r"(?s)\n\s*Given value type:.*?\n\s*Given value: (\w+\(|\{).*?(?=\n\s*-|$)", "", message)
    message = re.sub(r"(?m)^\s*Given value type:.*\n", "", message)
    heads = r"Does not validate against any of the Union subtypes|Subtypes: .*|Errors:"
    noise = rf"(?m)^\s*(- )?({heads}|Expected a <class '(NoneType|str)'>\.?)\s*$"
    lines = [line.strip().removeprefix("- ") for line in re.sub(noise, "", message).splitlines()]
    text = " ".join(line for line in lines if line)
    text = re.sub(r'Parser key "([^"]*)":', r"\1:", text)
    text = re.sub(r"Subcommand '\w+' does not accept option '([^']*)'", r"unknown key \1", text)
    text = re.sub(r"Option '([^']*)' is not accepted", r"unknown key \1", text)
    text = re.sub(r"Expected a dot import path string: (\S+)", r"unknown class \1", text)
    text = re.sub(r"unknown class gpipe$", "gpipe takes no options of its own: name GPipeStrategy in its place", text)
    text = re.sub(r"arguments are required: (.*)", r"are missing: \1; give --config FILE (several for overlays)", text)
    strategy = re.search(r"invalid strategy name: `(strategy='(.*?)')`", text)
    if strategy:
        return f"unknown {strategy[1]}{suggest(strategy[2], StrategyRegistry.available_strategies())}"
    found = re.search(r"unknown (?:key|class) ([\w.]+)", text) or re.search(
        r"[Uu]nrecognized arguments: --([\w.]+)", text
    )
    return text + (_suggestion(found[1]) if found and "did you mean" not in text else "")


def _with_class_of_strategy(words: Sequence[str]) -> list[str]:
    """``words`` in which ``gpipe``, which is short for a strategy without options, is the class, which takes some."""
    found = list(words)
    for place, word in enumerate(words):
        if word == "--trainer.strategy=gpipe" or (word == "gpipe" and words[place - 1] == "--trainer.strategy"):
            found[place] = word.replace("gpipe", GPipeStrategy.__name__)
    return found


def _help(subcommand: str) -> dict[str, str]:
    what, example = {
        "fit": ("Train a model through the pipeline (or, with another strategy, without one).", "laptop.yaml"),
        "validate": ("Loss and metrics on the validation split.", "laptop.yaml --ckpt_path FILE.ckpt"),
        "test": ("Loss and metrics on the held-out split; BLEU for translation.", "laptop.yaml --ckpt_path FILE.ckpt"),
        "predict": ("Run the model on the inputs of the held-out split.", "laptop.yaml --ckpt_path FILE.ckpt"),
    }[subcommand]
    return {
        "usage": f"repro {subcommand} --config FILE [--config OVERLAY ...] [options]",
        "description": f"""{what} Every option may stand in a config file or on the command line; later ones win.

Options of the pipeline (number of stages and micro-batches, schedule, re-materialization, partition) are those of the
strategy: repro {subcommand} --trainer.strategy.help GPipeStrategy. Those of models and data: repro {subcommand}
--model.help Translation, --data.help TranslationDataModule (or ImageClassification, ImageDataModule).

Example: repro {subcommand} --config configs/amoebanet/base.yaml --config configs/amoebanet/{example}
--trainer.strategy GPipeStrategy --trainer.strategy.num_stages 2 --trainer.strategy.num_micro_batches 8""",
    }


@contextmanager
def quiet(level: int = logging.INFO) -> Iterator[None]:
    """Without Lightning's advertisements and the deprecation warnings of libraries about each other.

    ``level``: of the least important messages that Lightning may still print.
    """
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    lightning = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in lightning]

    def is_no_tip(record: logging.LogRecord) -> bool:
        return "Tip:" not in record.getMessage()

    log.addFilter(is_no_tip)
    for logger in lightning:
        logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            for message in _NOISE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.removeFilter(is_no_tip)
        for logger, old in zip(lightning, before, strict=True):
            logger.setLevel(old)


def _suggestion(key: str) -> str:
    known = {name for kind in (*CLASSES, pl.Trainer) for name in inspect.signature(kind).parameters}
    known |= {kind.__name__ for kind in CLASSES} | {
        "seed_everything",
        "ckpt_path",
        "trainer",
        "model",
        "data",
        "config",
    }
    return suggest(key.rsplit(".", 1)[-1], sorted(known))


def _tell(error: Exception, code: int) -> int:
    print(f"repro: error: {error}", file=sys.stderr, flush=True)
    return code


def _rank() -> int:
    """Of this process, however it was started; before a launcher has started others it is 0."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return int(os.environ.get("NODE_RANK", "0")) or int(os.environ.get("LOCAL_RANK", "0"))
